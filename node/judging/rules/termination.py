"""termination: each turn ends in an end token, its only one, or at its limit, where the completion is as long as may be. Hard.

Whether the end token was really drawn is for `sampling`, which always looks at the last token of a turn.
"""

from __future__ import annotations

from node.judging.candidate import Candidate
from protocol.turns import wrong_end
from protocol.verdict import Finding, Outcome


def check(c: Candidate) -> Finding | None:
    for row, sample in enumerate(c.samples):
        wrong = wrong_end(
            sample.conversation, sample.completion, c.tokenizer.end_tokens, c.spec.sampling.max_new_tokens
        )
        if wrong is not None:
            place = f"row {row}" if len(sample.conversation) == 1 else f"row {row}, turn {wrong.turn}"
            return Finding(
                "termination",
                Outcome.HARD,
                f"{wrong.tokens} tokens",
                f"{wrong.expected} tokens",
                f"{place}: {wrong.why}",
                1 << row,
            )
    return None
