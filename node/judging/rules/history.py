"""history: the seat's work up to this submission, taken together, is not what honest devices' noise explains. Hard.

What earlier submissions add comes from receipts, what this one adds from the rows that were drawn, and that were prefilled again with named alternatives where
the validator has chosen so. It is asked last, and finds nothing where the run's spec has no budget for it. Who judges without a history (a worker its own
work) finds nothing either.
"""

from __future__ import annotations

import logging

from node.engine import Verifier, memory
from node.engine.proofs import bits
from node.judging.alternatives import nearer, sides
from node.judging.candidate import Candidate
from protocol.eprocess import Sums
from protocol.errors import MurmurationError
from protocol.statistics import proofs_by, tokens_by
from protocol.verdict import Finding

log = logging.getLogger(__name__)


def check(c: Candidate) -> Finding | None:
    for name in c.plan.alternatives:
        _prefill_again(c, name)
    if c.history is None:
        return None
    return c.history.finding(c.checked.summed, c.checked.tokens)


def _prefill_again(c: Candidate, name: str) -> None:
    """Adds what an alternative says of the rows that are compared: of all of them, or of none where it cannot be had."""
    if c.alternative is None:
        return
    rows = sorted(c.compared & c.scored.keys() & c.points.keys())
    try:
        with memory.told():
            found = _compared(c, c.alternative(name), rows)
    except MurmurationError as error:
        log.info("nothing is prefilled again as %s: %s", name, error)
        return
    for row, (tokens, proofs) in found.items():
        c.checked.sums.setdefault(row, {}).update({tokens_by(name): tokens, proofs_by(name): proofs})
    c.checked.again[name] = sum(len(c.samples[row].completion) for row in rows)


def _compared(c: Candidate, engine: Verifier, rows: list[int]) -> dict[int, tuple[Sums, Sums]]:
    """By row: on whose side its tokens and its proofs are."""
    found = {}
    for batch in c.prefilled_by(engine, rows):
        for row, hidden in batch.items():
            sample = c.samples[row]
            drawn = engine.score(hidden, sample.completion, key=c.key(sample), **c.spec.sampling.distribution).drawn
            chunks = [rows.reshape(-1) for rows in (bits(hidden)[part] for part in sample.conversation.chunks)]
            found[row] = sides(c.scored[row], sample.completion, drawn), nearer(c.points[row], chunks)
    return found
