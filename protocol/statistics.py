"""The statistics that are summed over a seat's work: which there are, and how a receipt tells them.

| name | kind | what is counted |
|---|---|---|
| `margins_soft`, `margins_hard` | excess | margins, in the run's soft or hard noise, against what that noise explains (protocol/logit_noise.py) |
| `temperature` | share | tokens that are not the draw; a success is one whose logit is higher than the draw's |
| `ALTERNATIVE.tokens` | share | positions where a named alternative draws another token, and the work has one of the two; a success is the alternative's |
| `ALTERNATIVE.proofs` | share | chunks of proofs; a success is one nearer to the alternative's activations than to the reference's |

A *named alternative* is what a cheat may have computed with in place of the published weights (ALTERNATIVES); a validator prefills some work with it as
well. Whoever computes with the published weights is on the reference's side at least as often as not, whatever its noise: the alternative strays by a
difference of its own besides. That assumes that the noise of honest devices has nothing to do with that difference.

`temperature` is a *directional* statistic: its honest mean is one half whatever the noise, for between two tokens as good as equal rounding
favours neither the one with the higher logit nor the one with the higher noise. It assumes that the errors of logits are symmetrical, and that
near ties are as dense on one side as on the other, which holds where the noise is small against the temperature. A lower temperature favours
the higher logit, a higher one the higher noise.

Sums of a receipt are over the rows that were drawn for the prefill, in whole numbers (protocol/eprocess.py). node/judging/sums.py takes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from protocol.constants import SCORE_MAX, SUM_MAX, SUM_UNIT
from protocol.eprocess import Sums
from protocol.errors import Malformed

MARGINS_SOFT: Final = "margins_soft"
MARGINS_HARD: Final = "margins_hard"
TEMPERATURE: Final = "temperature"
ALTERNATIVES: Final = (
    "before_1", "before_2", "before_4", "bfloat16", "colder", "fp8", "int4", "int8", "kv_fp8", "kv_int8", "warmer",
)  # fmt: skip
"""The versions one, two and four steps before; computing in bfloat16 where the run computes in float32; weights rounded to float8, 4 and 8 bits; keys and
values so rounded (what each is exactly: node/engine/degrade.py); and draws at TEMPERATURES times the run's temperature."""
TEMPERATURES: Final = {"colder": 0.9, "warmer": 1.1}
"""Factors on the temperature. Their activations are the reference's, so of these only tokens take sides."""


def tokens_by(alternative: str) -> str:
    """Name of the statistic of tokens."""
    return f"{alternative}.tokens"


def proofs_by(alternative: str) -> str:
    """Name of the statistic of proofs."""
    return f"{alternative}.proofs"


SHARES: Final = frozenset({TEMPERATURE, *map(tokens_by, ALTERNATIVES), *map(proofs_by, ALTERNATIVES)})
"""Statistics that count trials."""
NAMES: Final = SHARES | {MARGINS_HARD, MARGINS_SOFT}

SumsByName = Mapping[str, Sums]


def total(parts: Iterable[SumsByName]) -> dict[str, Sums]:
    """All of them together."""
    found: dict[str, Sums] = {}
    for part in parts:
        for name, sums in part.items():
            found[name] = found.get(name, Sums()) + sums
    return found


def encode(sums: SumsByName) -> dict[str, list[int]]:
    """As a receipt has them: total, squares and count by name, of statistics that say anything."""
    return {name: [of.total, of.squares, of.count] for name, of in sorted(sums.items()) if of != Sums()}


def decode(table: Mapping[str, list[int]]) -> dict[str, Sums]:
    """Of a receipt that was checked."""
    return {name: Sums(*values) for name, values in table.items()}


def require_form(table: Any, given: bool) -> None:
    """Raises Malformed for what no receipt can hold. `given`: whether the receipt has the field, which is left out where it is empty."""
    if not isinstance(table, dict) or (given and not table) or set(table) - NAMES:
        raise Malformed("receipt: sums are not those of known statistics")
    for name, values in table.items():
        if not isinstance(values, list) or len(values) != 3 or any(type(v) is not int for v in values):
            raise Malformed(f"receipt: the sums {name!r} are not three whole numbers")
        total, _, count = values
        if not all(0 <= value <= SUM_MAX for value in values) or not any(values):
            raise Malformed(f"receipt: the sums {name!r} are out of range")
        if name in SHARES and total > count:
            raise Malformed(f"receipt: the sums {name!r} have more successes than trials")


def require_possible(table: Mapping[str, list[int]], tokens: int) -> None:
    """Raises Malformed for sums that so many checked tokens cannot have: each is in one block or trial at most."""
    for name, (total, squares, count) in table.items():
        each = 1 if name in SHARES else int(SCORE_MAX)
        if max(total, squares // each) > each * tokens * SUM_UNIT or count > tokens * SUM_UNIT:
            raise Malformed(f"receipt: the sums {name!r} are more than {tokens} tokens can have")
