"""termination: each completion ends in an end token, its only one, or at exactly the maximum length. Hard.

Whether the end token was really drawn is for `sampling`, which always looks at the last token.
"""

from __future__ import annotations

from node.judging.candidate import Candidate
from protocol.verdict import Finding, Outcome


def check(c: Candidate) -> Finding | None:
    most = c.spec.sampling.max_new_tokens
    for row, sample in enumerate(c.samples):
        ends = [i for i, token in enumerate(sample.completion.tolist()) if token in c.tokenizer.end_tokens]
        last = len(sample.completion) - 1
        if ends and ends[0] != last:
            return Finding(
                "termination",
                Outcome.HARD,
                f"ends at {ends[0]}",
                f"at {last}",
                f"row {row}: tokens after the end",
                1 << row,
            )
        if not ends and len(sample.completion) != most:
            return Finding(
                "termination", Outcome.HARD, f"{last + 1} tokens", f"{most} tokens", f"row {row}: cut short", 1 << row
            )
    return None
