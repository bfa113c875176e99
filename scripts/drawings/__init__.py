"""Drawings of the documentation, made by `scripts/make-docs` into docs/pictures/.

canvas       boxes and arrows as an SVG
rollout      the life of a rollout
stake        what becomes of a contributor's stake and pay, along time
verdict      the way of a verdict
weights      the way of a version of the weights
"""

from __future__ import annotations

from drawings.rollout import rollout
from drawings.stake import stake
from drawings.verdict import verdict
from drawings.weights import weights


def drawings() -> dict[str, str]:
    """Each by the name of its file."""
    return {"rollout.svg": rollout(), "stake.svg": stake(), "verdict.svg": verdict(), "weights.svg": weights()}
