"""Scores of tokens of which a test says no more than their margins and logprobs."""

from __future__ import annotations

import numpy as np

from protocol.sampling import RIVALS, Floats, TokenScores


def scored(margins: Floats, logprobs: Floats | None = None) -> TokenScores:
    """Without rivals anywhere; logprobs are 0 where none are given. Logits range over one, so that noise is in logits."""
    none = np.zeros(len(margins))
    gaps = np.full((len(margins), RIVALS), np.inf)
    return TokenScores(
        margins, none if logprobs is None else logprobs, none.astype(np.int64), none, gaps, np.ones(len(margins))
    )
