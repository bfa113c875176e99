"""sampling: every token is the draw from the validator's own logits and the assigned noise, but for rounding. Hard.

Positions count generated tokens, through all turns. Per token the unclipped margin; per chunk of 32, none of which crosses a turn, and per sequence the tokens whose margin counts as a mismatch, and the mean of
clipped margins; and the claimed logprobs, where the run has them. All tokens of a chosen row are looked at, the last chunk and the last token included.
What these are, protocol/sampling.py defines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from node.judging import bitwise, sums
from node.judging.candidate import Candidate
from node.judging.rules.limits import judge, worst
from protocol import sampling
from protocol.runspec import SamplingLimits
from protocol.sampling import Measured, TokenScores
from protocol.verdict import Finding


def check(c: Candidate) -> Finding | None:
    return of_rows(c, c.rows)


def of_rows(c: Candidate, rows: Sequence[int]) -> Finding | None:
    for batch in c.prefilled([row for row in rows if row not in c.sampled]):
        for row, hidden in batch.items():
            c.sampled[row] = of_row(c, row, hidden)
    return worst([c.sampled[row] for row in rows])


def of_row(c: Candidate, row: int, hidden_TH: Tensor) -> Finding | None:
    """What there is against one sample, given the validator's own hidden states for it."""
    found = scores(c, row, hidden_TH)
    limits = c.spec.verification.sampling
    return worst([*judged(limits, row, _measured(c, row, found)), bitwise.draws(c, row, found)])


def judged(limits: SamplingLimits, row: int, values: Mapping[str, Measured]) -> list[Finding | None]:
    """What there is against each quantity that the run has a limit for."""
    found = []
    for name, worst_one in values.items():
        limit = getattr(limits, name)
        if limit is not None:
            found.append(judge("sampling", row, worst_one.value, limit, f"{worst_one.place}: {_WORDS[name]}"))
    return found


def measured(c: Candidate, row: int, hidden_TH: Tensor) -> dict[str, Measured]:
    """The worst of each quantity in one sample, given the validator's own hidden states for it. Notes what it adds to the seat's sums."""
    return _measured(c, row, scores(c, row, hidden_TH))


def _measured(c: Candidate, row: int, found: TokenScores) -> dict[str, Measured]:
    sample, limits = c.samples[row], c.spec.verification.sampling
    if c.spec.verification.noise is not None:
        temperature = c.spec.sampling.distribution["temperature"]
        c.checked.sums[row] = sums.of_completion(found, c.spec.verification.noise, temperature)
    return sampling.measure(
        found, sample.logprobs,
        mismatch_above=float(limits.mismatch_above), margin_clip=float(limits.margin_clip), turns=sample.conversation,
    )  # fmt: skip


def scores(c: Candidate, row: int, hidden_TH: Tensor) -> TokenScores:
    """Every token of one sample, likewise."""
    sample = c.samples[row]
    return c.engine.score(hidden_TH, sample.completion, key=c.key(sample), **c.spec.sampling.distribution)


_WORDS = {
    "token_margin": "margin", "chunk_mismatches": "mismatches", "sequence_mismatches": "mismatches",
    "chunk_mean_margin": "mean margin", "mean_margin": "mean margin", "logprob_error": "logprob",
    "mean_logprob_error": "mean distance of logprobs",
}  # fmt: skip
