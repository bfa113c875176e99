"""What one completion adds to the sums over its seat's work (protocol/statistics.py says what is summed)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol import logit_noise
from protocol.eprocess import Sums
from protocol.runspec import Limit
from protocol.sampling import TokenScores
from protocol.statistics import MARGINS_HARD, MARGINS_SOFT, TEMPERATURE


def of_completion(scores: TokenScores, noise: Limit) -> dict[str, Sums]:
    """What a completion adds, by statistic."""
    mismatched = (scores.margins > 0) & (scores.leads != 0)
    higher = int(np.count_nonzero(scores.leads[mismatched] > 0))
    return {
        MARGINS_HARD: logit_noise.excess_margins(scores, float(noise.hard)),
        MARGINS_SOFT: logit_noise.excess_margins(scores, float(noise.soft)),
        TEMPERATURE: Sums.of_trials(higher, int(np.count_nonzero(mismatched))),
    }


def sides(scores: TokenScores, tokens: NDArray[np.integer[Any]], alternative: NDArray[np.integer[Any]]) -> Sums:
    """Of the positions where the alternative draws another token than the reference, and the completion has one of the two: a success is
    one where it has the alternative's. `tokens` and `alternative` [T].

    Directional: whoever computes the reference with rounding of its own sides with it at least as often as with the alternative, for the
    alternative strays from it by its own difference besides. That assumes that the worker's rounding has nothing to do with the difference.
    """
    differ = (scores.drawn != alternative) & ((tokens == scores.drawn) | (tokens == alternative))
    return Sums.of_trials(int(np.count_nonzero(tokens[differ] == alternative[differ])), int(np.count_nonzero(differ)))
