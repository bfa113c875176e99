"""tokens: ids inside the vocabulary, lengths and turns within limits and the model's positions, one logprob per generated token, units = generated tokens. Hard.

What the environment gave between turns is no completion: it counts for nothing, and lies inside the vocabulary too. No environment is asked for
any of this: a row of too many turns would have a validator run the program of each, and one of too many given tokens may be more than its
engine has memory for.
"""

from __future__ import annotations

from node.judging.candidate import Candidate
from protocol.verdict import ALL_SAMPLES, Finding, Outcome


def check(c: Candidate) -> Finding | None:
    most = c.spec.sampling.max_new_tokens
    for row, sample in enumerate(c.samples):
        length = len(sample.completion)
        if not 1 <= length <= most:
            return _finding(length, f"1 … {most}", "completion tokens", row)
        if len(sample.conversation) > c.spec.sampling.turns:
            return _finding(len(sample.conversation), c.spec.sampling.turns, "turns", row)
        if len(sample.given) > c.spec.sampling.reply_tokens:
            return _finding(len(sample.given), c.spec.sampling.reply_tokens, "tokens of replies", row)
        if sample.logprobs is not None and len(sample.logprobs) != length:
            return _finding(len(sample.logprobs), length, "logprobs", row)
        if c.tokenizer.positions is not None and len(sample.context) > c.tokenizer.positions:
            return _finding(
                len(sample.context), c.tokenizer.positions, "tokens of prompt and completion, against positions", row
            )
        low, high = int(sample.context.min()), int(sample.context.max())
        if low < 0 or high >= c.tokenizer.vocabulary:
            return _finding(f"{low} … {high}", f"0 … {c.tokenizer.vocabulary - 1}", "token ids", row)
    if c.file.units != c.commitment.units:
        return _finding(c.commitment.units, c.file.units, "claimed units against completion tokens")
    return None


def _finding(measured: object, threshold: object, detail: str, row: int | None = None) -> Finding:
    """`row` None: it is the file as a whole."""
    place, samples = ("", ALL_SAMPLES) if row is None else (f"row {row}: ", 1 << row)
    return Finding("tokens", Outcome.HARD, str(measured), str(threshold), place + detail, samples)
