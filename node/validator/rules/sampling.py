"""sampling: every token is the argmax of the validator's own logits plus the assigned noise, but for rounding. Hard.

Per token the unclipped margin; per chunk of 32 and per sequence the tokens whose margin counts as a mismatch; per sequence
the mean of clipped margins; and the claimed logprobs. All tokens of a chosen row are looked at, the last one included.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from torch import Tensor

from node.validator.candidate import Candidate
from node.validator.rules.limits import judge, worst
from protocol import sampling
from protocol.constants import TOPLOC_CHUNK
from protocol.errors import IntegrityError
from protocol.rollout import Sample
from protocol.sampling import TokenScores
from protocol.verdict import Finding

_LOGITS_AT_ONCE = 1 << 21  # in float64, with the noise and what that is made of: a hundred bytes each


def check(c: Candidate) -> Finding | None:
    for batch in c.prefilled([row for row in c.rows if row not in c.sampled]):
        for row, hidden in batch.items():
            c.sampled[row] = of_row(c, row, hidden)
    return worst([c.sampled[row] for row in c.rows])


_judge = partial(judge, "sampling")


def of_row(c: Candidate, row: int, hidden_TH: Tensor) -> Finding | None:
    """What there is against one sample, given the validator's own hidden states for it."""
    sample, limits = c.samples[row], c.spec.verification.sampling
    scores = _scores(c, sample, hidden_TH)
    margins = scores.margins
    mismatched = margins > float(limits.mismatch_above)
    chunks = np.add.reduceat(mismatched, np.arange(0, len(margins), TOPLOC_CHUNK))
    error = np.abs(scores.logprobs - sample.logprobs)
    worst_token, worst_chunk, worst_logprob = int(margins.argmax()), int(chunks.argmax()), int(error.argmax())
    mean = float(np.minimum(margins, float(limits.margin_clip)).mean())
    return worst(
        [
            _judge(row, float(margins[worst_token]), limits.token_margin, f"token {worst_token}: margin"),
            _judge(row, float(chunks[worst_chunk]), limits.chunk_mismatches, f"chunk {worst_chunk}: mismatches"),
            _judge(row, float(mismatched.sum()), limits.sequence_mismatches, "the sequence: mismatches"),
            _judge(row, mean, limits.mean_margin, "the sequence: mean margin"),
            _judge(row, float(error[worst_logprob]), limits.logprob_error, f"token {worst_logprob}: logprob"),
        ]
    )


def _scores(c: Candidate, sample: Sample, hidden_TH: Tensor) -> TokenScores:
    """Scores of all tokens, some at a time: logits and noise of a long sample with a large vocabulary take gigabytes."""
    step = max(1, _LOGITS_AT_ONCE // c.engine.vocabulary)
    parts = []
    for start in range(0, len(sample.completion), step):
        logits = c.engine.logits(hidden_TH[start : start + step])
        if not np.isfinite(logits).all():
            raise IntegrityError("this validator's own logits hold NaN or infinity")
        parts.append(
            sampling.score(
                logits, sample.completion[start : start + step], key=c.key(sample), start=start,
                temperature=float(c.spec.sampling.temperature),
            )
        )  # fmt: skip
    return TokenScores(np.concatenate([p.margins for p in parts]), np.concatenate([p.logprobs for p in parts]))
