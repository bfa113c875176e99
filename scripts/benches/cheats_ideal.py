"""What the best bet on a cheat's tokens would need: how far the sums of a run are from what any test of the same null could do.

At a position the reference draws token a, and b is what the alternative scores highest beside a; g and h are the scores of a less those of b
(logit + T·noise of the draw) by the reference and by the alternative. Work has a, b or another token there.

*The honest worker that is hardest to tell from the cheat.* The null lets honest noise be as large as σ = noise · range of the position's logits, and knows nothing of the alternative
but that it strays on its own. So it may be nothing else than a further honest look at the same logits: reference, alternative and worker then stray from
these by independent errors of variance σ²/2 in a difference of two logits. With no opinion about the logits themselves, two looks g and h say that a worker's
difference is normal with mean (g + h)/2 and variance σ²/4 + σ²/2, hence it has b with probability

    p = ρ + (1 - ρ)·Φ(-(g + h)/2 / (√¾·σ)).

ρ is what nothing explains: without it one odd token would be infinite evidence. Where the alternative follows from the reference, as draws at another temperature do, it is no look of its own, and p = ρ + (1 - ρ)·Φ(-g / σ).

*The bet.* q = ρ + (1 - 2ρ)·Φ(-h / (σ/2)), what a worker of half the null's noise does that computes the alternative. Nothing is staked where q ≤ 1.02·p, nor by a third token: the null allows less
noise as well, so there is an honest worker that has b as rarely as the cheat has, and is at other positions as noisy as allowed.
A token b multiplies the wealth by q/p, a by (1 - q)/(1 - p).

*Why that is a bound.* Let P be the law of that worker. A valid test is an e-value, E, of which no law of the null expects more than 1, P among them. Under the cheat's law Q then
E_Q[log E] ≤ KL(Q‖P), for log E - log dQ/dP has at most the logarithm of E_P[E] ≤ 1 in expectation. So no test grows faster than by KL(Q‖P), and by Wald's identity none reaches a bound of log 1/α in fewer tokens than the
bound over the growth of one, on average. `submissions` takes the measured growth of this bet in place of KL(Q‖P).

*What is assumed, and makes it approximate.* q is not the cheat's law: the best bet grows faster by KL(Q‖q) where anything is staked, so a test may come below `ideal`, and by most where the cheat is only like the alternative
(8 bits in groups as `int8`, the fifth version before as `before_4`); of temperatures the cheat's own is taken. That the worker's noise is normal, and
independent from position to position given the logits. That only tokens are looked at, and of these only a and b: proofs of a cheat that proves itself, single values, and draws that neither explains are left out, and may find it sooner. What a
real test pays besides is not counted: its part of the mixture, not knowing which alternative it is, the last bet's overshoot. A null that says more of honest noise than its size, for instance how it goes with the alternative, would have
another bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.logit_noise import chances_of_rivals
from protocol.sampling import Floats, noise

_UNEXPLAINED = 0.02  # ρ
_LEAST_ODDS = 1.02
_MIDWAY = math.sqrt(3 / 4)


@dataclass(frozen=True)
class Looks:
    """One completion's tokens [T] in the eyes of reference and alternative. Gaps and ranges in logits."""

    gaps: Floats
    """Of the reference's draw before the rival, by the reference: none is below 0."""
    gaps_of_alternative: Floats
    ranges: Floats
    took: NDArray[np.int8]
    """1 where the token is the rival, -1 where it is the reference's draw, 0 where it is another."""
    follows: bool
    """Whether the alternative is a function of the reference."""

    @classmethod
    def of(
        cls, tokens: NDArray[np.integer[Any]], reference_TV: NDArray[np.floating[Any]], alternative_TV: NDArray[np.floating[Any]],
        *, key: int, factor: float | None = None,
    ) -> Looks:  # fmt: skip
        """`factor`: of the temperature, 1 in the run, at which the alternative draws from the reference's logits."""
        at = np.arange(len(tokens))
        of_draw = noise(key, at, reference_TV.shape[1])
        scores, others = reference_TV + of_draw, alternative_TV + (factor or 1) * of_draw
        drawn = scores.argmax(1)
        beside = others.copy()
        beside[at, drawn] = -np.inf
        rivals = beside.argmax(1)
        return cls(
            scores[at, drawn] - scores[at, rivals],
            others[at, drawn] - others[at, rivals],
            np.ptp(reference_TV, axis=1).astype(np.float64),
            ((tokens == rivals).astype(np.int8) - (tokens == drawn)).astype(np.int8),
            factor is not None,
        )

    def growth(self, noise: float) -> Floats:
        """Logarithm of what each token multiplies the wealth by, against a null of this noise in shares of the range."""
        spread = noise * self.ranges
        middle, width = (self.gaps, 1.0) if self.follows else ((self.gaps + self.gaps_of_alternative) / 2, _MIDWAY)
        honest = _UNEXPLAINED + (1 - _UNEXPLAINED) * _chances(middle, width * spread)
        bet = _UNEXPLAINED + (1 - 2 * _UNEXPLAINED) * _chances(self.gaps_of_alternative, spread / 2)
        stakes = bet > _LEAST_ODDS * honest
        won, lost = np.log(bet / honest), np.log1p(-bet) - np.log1p(-np.minimum(honest, bet))
        return np.where(stakes & (self.took > 0), won, np.where(stakes & (self.took < 0), lost, 0.0))


def submissions(looks: Sequence[Looks], noise: float, bound: float, tokens: int) -> float | None:
    """How many of so many tokens the bet takes to a logarithm of the wealth of `bound`; None where it never comes there."""
    growth = float(np.concatenate([one.growth(noise) for one in looks]).mean())
    return bound / (growth * tokens) if growth > 0 else None


def _chances(gaps: Floats, spread: Floats) -> Floats:
    """Φ(-gap / spread), of gaps with either sign."""
    beyond = chances_of_rivals(np.abs(gaps), spread)
    return np.where(gaps >= 0, beyond, 1 - beyond)
