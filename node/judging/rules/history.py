"""history: the seat's work up to this submission, taken together, is not what honest devices' noise explains. Hard.

What earlier submissions add comes from receipts, what this one adds from the rows that were drawn, and that were prefilled again with named alternatives where
the validator has chosen so. It is asked last, and finds nothing where the run's spec has no budget for it. Who judges without a history (a worker its own
work) finds nothing either.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from node.engine import Verifier
from node.engine.proofs import bits
from node.judging.alternatives import REFERENCE, nearer, sides
from node.judging.candidate import Candidate
from node.judging.sums import takes_no_side
from protocol import toploc
from protocol.eprocess import Sums
from protocol.sampling import TokenScores
from protocol.shell import machine
from protocol.statistics import TEMPERATURES, proofs_by, tokens_by
from protocol.toploc import Points
from protocol.verdict import Finding

log = logging.getLogger(__name__)

References = Mapping[int, tuple[TokenScores, list[Points]]]
"""By row, how the published weights see its tokens and its proofs."""


def check(c: Candidate) -> Finding | None:
    if c.plan.alternatives and c.alternative is not None:
        try:
            _prefill_again(c)
        except Exception as error:  # whatever keeps alternatives from being computed keeps no verdict from being made
            if machine.trouble(error):
                raise
            log.warning("nothing more is prefilled again: %s", error)
    if c.history is None:
        return None
    return c.history.finding(c.checked.summed, c.checked.tokens)


def _prefill_again(c: Candidate) -> None:
    """Adds what each alternative says of the rows that are compared, of all of them. The published weights are computed by the same engine once more: compared with
    another one's states, honest work by this engine would be on the side of whatever differs less than the two engines do."""
    assert c.alternative is not None
    references = _references(c, c.alternative(REFERENCE))
    tokens = sum(len(c.samples[row].completion) for row in references)
    c.checked.again += tokens
    for name in c.plan.alternatives:
        for row, (of_tokens, of_proofs) in _compared(c, name, references).items():
            c.checked.sums.setdefault(row, {}).update({tokens_by(name): of_tokens, proofs_by(name): of_proofs})
        c.checked.alternatives.append(name)
        c.checked.again += tokens


def _references(c: Candidate, engine: Verifier) -> References:
    found = {}
    for batch in c.prefilled_by(engine, c.compared):
        for row, hidden in batch.items():
            sample = c.samples[row]
            turns = sample.conversation
            scores = engine.score(hidden, sample.completion, key=c.key(sample), **c.spec.sampling.distribution)
            points = toploc.points(turns.split(bits(hidden)), turns.proofs_of(sample.proofs))
            found[row] = scores, [one for of_turn in points for one in of_turn]
    return found


def _compared(c: Candidate, name: str, references: References) -> dict[int, tuple[Sums, Sums]]:
    """By row: on whose side its tokens and its proofs are. Where noise is wide against the temperature, honest draws are on the side of another
    temperature's: there these are not counted."""
    assert c.alternative is not None
    engine, found, noise = c.alternative(name), {}, c.spec.verification.noise
    for batch in c.prefilled_by(engine, list(references)):
        for row, hidden in batch.items():
            sample, (scores, points) = c.samples[row], references[row]
            drawn = engine.score(hidden, sample.completion, key=c.key(sample), **c.spec.sampling.distribution).drawn
            states = bits(hidden)
            chunks = [np.reshape(states[part], -1) for part in sample.conversation.chunks]
            counts = None
            if name in TEMPERATURES and noise is not None:
                counts = takes_no_side(scores, noise, float(c.spec.sampling.temperature))
            found[row] = sides(scores, sample.completion, drawn, counts), nearer(points, chunks)
    return found
