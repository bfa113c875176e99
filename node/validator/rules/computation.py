"""computation: TOPLOC proofs against the validator's own prefill. Hard.

Exponent and sign mismatches as shares of the k points, mantissa mean and median in units of the 7-bit mantissa, per chunk.
Soft for hardware classes outside the calibration, but for a proof that is none: no device explains that.
"""

from __future__ import annotations

from node.engine.torch_engine import bits
from node.validator.candidate import Candidate
from node.validator.rules.limits import capped, judge, worst
from protocol import toploc
from protocol.errors import IntegrityError, Malformed
from protocol.toploc import ChunkScore
from protocol.verdict import Finding, Outcome


def check(c: Candidate) -> Finding | None:
    for row, sample in enumerate(c.samples):  # all of them: a malformed proof is seen without a prefill
        try:
            toploc.require_form(sample.proofs, len(sample.completion), c.engine.hidden_size)
        except Malformed as error:
            return Finding("computation", Outcome.HARD, "malformed proof", "a proof", f"row {row}: {error}", 1 << row)
    try:
        rows = [bits(hidden) for hidden in c.hidden]
        scores = toploc.score(rows, [c.samples[row].proofs for row in c.rows])
    except ValueError as error:
        raise IntegrityError(f"this validator's own prefill is broken: {error}") from error
    c.checked.proofs = sum(len(of_row) for of_row in scores)
    found = [_chunk(c, row, i, s) for row, of_row in zip(c.rows, scores, strict=True) for i, s in enumerate(of_row)]
    return capped(c, worst(found))


def _chunk(c: Candidate, row: int, chunk: int, score: ChunkScore) -> Finding | None:
    limits = c.spec.verification.computation
    measured = {
        "exponents": score.exponents / score.k,
        "signs": score.signs / score.k,
        "mantissa_mean": score.mantissa_mean,
        "mantissa_median": score.mantissa_median,
    }
    return worst(
        [judge("computation", row, v, getattr(limits, name), f"chunk {chunk}: {name}") for name, v in measured.items()]
    )
