"""The statistics that are summed over a seat's work: which there are, and how a receipt tells them.

| name | kind | what is counted |
|---|---|---|
| `margins_soft`, `margins_hard` | excess | margins, in the run's soft or hard noise, against what that noise explains (protocol/logit_noise.py) |
| `temperature` | share | tokens that are not the draw; a success is one whose logit is higher than the draw's |

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
NAMES: Final = (MARGINS_HARD, MARGINS_SOFT, TEMPERATURE)
"""Sorted."""

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
    if not isinstance(table, dict) or (given and not table) or set(table) - set(NAMES):
        raise Malformed("receipt: sums are not those of known statistics")
    for name, values in table.items():
        if not isinstance(values, list) or len(values) != 3 or any(type(v) is not int for v in values):
            raise Malformed(f"receipt: the sums {name!r} are not three whole numbers")
        total, _, count = values
        if not all(0 <= value <= SUM_MAX for value in values) or not any(values):
            raise Malformed(f"receipt: the sums {name!r} are out of range")
        if name == TEMPERATURE and total > count:
            raise Malformed(f"receipt: the sums {name!r} have more successes than trials")


def require_possible(table: Mapping[str, list[int]], tokens: int) -> None:
    """Raises Malformed for sums that so many checked tokens cannot have: each is in one block or trial at most."""
    for name, (total, squares, count) in table.items():
        each = 1 if name == TEMPERATURE else int(SCORE_MAX)
        if max(total, squares // each) > each * tokens * SUM_UNIT or count > tokens * SUM_UNIT:
            raise Malformed(f"receipt: the sums {name!r} are more than {tokens} tokens can have")
