"""Scoring of environments: answers of mathematics a CPU second, beside math-verify by itself, and programs (programs.py).

The work is tests/corpora/math.jsonl, half of it pairs whose texts are the same or plain numbers (the fast path), repeated as often as
needed, and half of it pairs that must be read. The peer does what its page shows: `verify(parse(reference), parse(completion))`,
with its own extraction, the reference in dollars. What a fork of ours computes for math-verify is counted as ours. Shares are of the whole corpus, judged by
its frozen labels.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benches import Bench, Row, programs
from benches.programs import Rate, cpu
from protocol.environments.maths import final, grade
from protocol.errors import PreflightError

CORPUS = Path(__file__).resolve().parents[2] / "tests/corpora/math.jsonl"
_ROUNDS = 2
_LEAST_S = 0.2  # of CPU time in a round: clocks of some machines tick

Pair = tuple[str, str, bool]


def run() -> Bench:
    pairs = [
        (row["reference"], row["completion"], row["equal"]) for row in map(json.loads, CORPUS.open(encoding="utf-8"))
    ]
    quick, slow = [pair for pair in pairs if _is_quick(pair)], [pair for pair in pairs if not _is_quick(pair)]
    half = [*slow, *(quick * len(slow))[: len(slow)]]
    bench = Bench("env")
    works: list[tuple[str, Sequence[Pair], float | None]] = [
        ("maths, half of them not string-equal", half, 100.0),
        ("maths, fast path", quick, None),
        ("maths, what must be read", slow, None),
    ]
    for name, work, goal in works:
        ours, peer = _fastest(_ours, work), _fastest(_peer, work)
        bench.rows.append(Rate(name, "answers a CPU second", ours, peer, ours / peer, goal))
    for name, equal in (("equal pairs accepted", True), ("unequal pairs accepted", False)):
        some = [pair for pair in pairs if pair[2] is equal]
        ours, peer = (sum(judge(pair) for pair in some) / len(some) * 100 for judge in (_ours, _peer))
        bench.rows.append(Row(f"maths, {name}", "%", ours, peer, None, None))
    try:
        bench.rows += programs.rows()
    except PreflightError as error:
        print(f"no programs were run: {error}\n  try: {error.hint}", file=sys.stderr)
    return bench


def _is_quick(pair: Pair) -> bool:
    found = final.said(pair[1])
    return found is not None and grade.same_text(found, final.of_reference(pair[0]))


def _ours(pair: Pair) -> bool:
    return grade.is_right(pair[1], pair[0])


def _peer(pair: Pair) -> bool:
    reference = pair[0] if "$" in pair[0] or "boxed" in pair[0] else f"${pair[0]}$"
    return bool(_math_verify().verify(_math_verify().parse(reference), _math_verify().parse(pair[1])))


def _math_verify() -> Any:
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    return math_verify


def _fastest(judge: Callable[[Pair], bool], work: Sequence[Pair]) -> float:
    """Answers a CPU second in the best round, forks included."""
    judge(work[0])
    best = 0.0
    for _ in range(_ROUNDS):
        started, judged = cpu(), 0
        while (spent := cpu() - started) < _LEAST_S:
            for pair in work:
                judge(pair)
            judged += len(work)
        best = max(best, judged / spent)
    return best
