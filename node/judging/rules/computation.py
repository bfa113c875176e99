"""computation: TOPLOC proofs against the validator's own prefill. Hard.

Exponent and sign mismatches as shares of the k points, mantissa mean and median in units of the 7-bit mantissa, per chunk. Where bits are compared
(node/judging/bitwise.py), proofs that are not the very same are soft.
Goes through the prefill for `sampling` too, which works on the same hidden states: they are never held for all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from node.engine.proofs import bits
from node.judging import bitwise
from node.judging.candidate import Candidate
from node.judging.rules import sampling
from node.judging.rules.limits import judge, worst
from protocol import toploc
from protocol.errors import IntegrityError, Malformed
from protocol.runspec import ComputationLimits
from protocol.toploc import ChunkScore
from protocol.verdict import Finding, Outcome


def check(c: Candidate) -> Finding | None:
    for row, sample in enumerate(c.samples):  # all of them: a malformed proof is seen without a prefill
        try:
            turns = sample.conversation
            for proofs, tokens in zip(turns.proofs_of(sample.proofs), turns.generated, strict=True):
                toploc.require_form(proofs, tokens, c.engine.hidden_size)
        except Malformed as error:
            return Finding("computation", Outcome.HARD, "malformed proof", "a proof", f"row {row}: {error}", 1 << row)
    c.checked.proofs = 0
    c.checked.other_build = "" if c.is_bitwise else c.file.header.build
    return of_rows(c, c.rows)


def of_rows(c: Candidate, rows: Sequence[int]) -> Finding | None:
    """What there is against these rows, whose proofs are known to be proofs."""
    found: dict[int, Finding | None] = {}
    for batch in c.prefilled(rows):
        try:
            scores = score(c, batch)
        except ValueError as error:
            raise IntegrityError(f"this validator's own prefill is broken: {error}") from error
        for row, hidden in batch.items():
            of_row = scores[row]
            c.checked.proofs += len(of_row)
            limits = c.spec.verification.computation
            chunks = [of_chunk(limits, row, i, score) for i, score in enumerate(of_row)]
            found[row] = worst([*chunks, bitwise.proofs(c, row, hidden)])
            c.sampled[row] = sampling.of_row(c, row, hidden)  # now, for these states are not kept
            both = worst([found[row], c.sampled[row]])
            c.checked.near |= both.near if both is not None else 0
    return worst([found[row] for row in rows])


def score(c: Candidate, hidden_of: Mapping[int, Tensor]) -> dict[int, list[ChunkScore]]:
    """The chunks of these rows, given the validator's own hidden states [T, H] for their generated tokens. No chunk crosses a turn."""
    turns = [
        (row, turn) for row, hidden in hidden_of.items() for turn in c.samples[row].conversation.split(bits(hidden))
    ]
    proofs = [own for row in hidden_of for own in c.samples[row].conversation.proofs_of(c.samples[row].proofs)]
    found: dict[int, list[ChunkScore]] = {row: [] for row in hidden_of}
    for (row, _), of_turn in zip(turns, toploc.score([turn for _, turn in turns], proofs), strict=True):
        found[row] += of_turn
    return found


def of_chunk(limits: ComputationLimits, row: int, chunk: int, score: ChunkScore) -> Finding | None:
    """What there is against one proof."""
    measured = score.measured.items()
    return worst(
        [judge("computation", row, v, getattr(limits, name), f"chunk {chunk}: {name}") for name, v in measured]
    )
