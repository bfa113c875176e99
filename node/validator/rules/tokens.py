"""tokens: ids inside the vocabulary, lengths within limits, one logprob per token, units = completion tokens. Hard."""

from __future__ import annotations

from node.validator.candidate import Candidate
from protocol.verdict import Finding, Outcome


def check(c: Candidate) -> Finding | None:
    most = c.spec.sampling.max_new_tokens
    for row, sample in enumerate(c.samples):
        length = len(sample.completion)
        if not 1 <= length <= most:
            return _finding(length, f"1 … {most}", f"row {row}: completion tokens")
        if len(sample.logprobs) != length:
            return _finding(len(sample.logprobs), length, f"row {row}: logprobs")
        low, high = int(sample.completion.min()), int(sample.completion.max())
        if low < 0 or high >= c.tokens.vocabulary:
            return _finding(f"{low} … {high}", f"0 … {c.tokens.vocabulary - 1}", f"row {row}: token ids")
    if c.file.units != c.commitment.units:
        return _finding(c.commitment.units, c.file.units, "claimed units against completion tokens")
    return None


def _finding(measured: object, threshold: object, detail: str) -> Finding:
    return Finding("tokens", Outcome.HARD, str(measured), str(threshold), detail)
