"""What one completion adds to the sums over its seat's work (protocol/statistics.py says what is summed)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol import logit_noise
from protocol.constants import HARD_SPREAD_OF_TEMPERATURE, SPREAD_OF_TEMPERATURE
from protocol.eprocess import Sums
from protocol.runspec import Limit
from protocol.sampling import TokenScores
from protocol.statistics import MARGINS_HARD, MARGINS_SOFT, TEMPERATURE


def takes_no_side(scores: TokenScores, noise: Limit, temperature: float) -> NDArray[np.bool_]:
    """[T] Whether noise is small enough against the temperature for honest rounding to favour no side of the draw at a position."""
    return np.logical_and(
        logit_noise.spread(scores, float(noise.soft)) <= SPREAD_OF_TEMPERATURE * temperature,
        logit_noise.spread(scores, float(noise.hard)) <= HARD_SPREAD_OF_TEMPERATURE * temperature,
    )


def of_completion(scores: TokenScores, noise: Limit, temperature: float) -> dict[str, Sums]:
    """What a completion adds, by statistic."""
    mismatched = takes_no_side(scores, noise, temperature) & (scores.margins > 0) & (scores.leads != 0)
    higher = int(np.count_nonzero(scores.leads[mismatched] > 0))
    return {
        MARGINS_HARD: logit_noise.excess_margins(scores, float(noise.hard)),
        MARGINS_SOFT: logit_noise.excess_margins(scores, float(noise.soft)),
        TEMPERATURE: Sums.of_trials(higher, int(np.count_nonzero(mismatched))),
    }
