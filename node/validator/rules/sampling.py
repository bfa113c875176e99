"""sampling: every token is the argmax of the validator's own logits plus the assigned noise, but for rounding. Hard.

Per token the unclipped margin; per chunk of 32 and per sequence the tokens whose margin counts as a mismatch; per sequence
the mean of clipped margins; and the claimed logprobs. All tokens of a chosen row are looked at, the last one included.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from node.validator.candidate import Candidate
from node.validator.rules.limits import capped, judge, worst
from protocol import sampling
from protocol.constants import TOPLOC_CHUNK
from protocol.errors import IntegrityError
from protocol.verdict import Finding


def check(c: Candidate) -> Finding | None:
    return capped(c, worst([_row(c, row, i) for i, row in enumerate(c.rows)]))


_judge = partial(judge, "sampling")


def _row(c: Candidate, row: int, chosen: int) -> Finding | None:
    sample, limits = c.samples[row], c.spec.verification.sampling
    logits = c.engine.logits(c.hidden[chosen])
    if not np.isfinite(logits).all():
        raise IntegrityError("this validator's own logits hold NaN or infinity")
    temperature = float(c.spec.sampling.temperature)
    scores = sampling.score(logits, sample.completion, key=c.key(sample), temperature=temperature)
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
