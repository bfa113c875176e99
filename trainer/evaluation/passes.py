"""pass@k: Chen et al.'s unbiased estimator (arXiv 2107.03374, section 2.1).

Of n samples of a problem with c right ones it is 1 − C(n − c, k) / C(n, k), averaged over problems. An answer is right where its task
reward is 1: a program that passes some of its tests is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import comb


def pass_at(k: int, samples: int, right: int) -> float:
    """The unbiased estimate of the share of k answers, drawn from `samples` ≥ k without repeating, of which one is right."""
    return 1.0 - comb(samples - right, k) / comb(samples, k)


def ks(samples: int) -> list[int]:
    """The powers of two up to `samples`, and itself."""
    return sorted({samples, *(1 << power for power in range(samples.bit_length()) if 1 << power <= samples)})


def table(samples: int, right: Sequence[int]) -> dict[str, str]:
    """pass@k of problems with so many right answers each, as decimals of six places by k; empty where there is no problem.

    Computed exactly and rounded once: what is hashed must not depend on the order of a sum.
    """
    if not right:
        return {}
    none = {k: sum(comb(samples - of, k) for of in right) for k in ks(samples)}
    return {str(k): decimal(1 - Fraction(of, comb(samples, k) * len(right))) for k, of in none.items()}


def decimal(value: float | Fraction) -> str:
    """Up to six places, and no zeros at the end."""
    return f"{float(value):.6f}".rstrip("0").rstrip(".") or "0"
