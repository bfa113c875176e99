"""Comparison bit by bit with an engine of the worker's build, where the run asks for it (docs/decisions/0021).

Both compute in shapes that do not depend on the batch (node/engine/fixed_rows.py), so that nothing at all may differ: each proof is made anew
from own states and is the claimed one, each token is the draw, each claimed logprob the own. Soft at most: one wrong bit shows that one of two
machines was wrong, and not which one, nor why. What is hard stays hard by the run's limits, which hold beside this.

Does not cover: machines of different builds. The run's other limits hold there alone.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from node.engine.proofs import bits
from node.judging.candidate import Candidate
from protocol import toploc
from protocol.sampling import TokenScores
from protocol.verdict import Finding, Outcome

OTHER_BITS, _EQUAL = "other bits", "the same bits"


def proofs(c: Candidate, row: int, hidden_TH: Tensor) -> Finding | None:
    """What there is against the proofs of a row, given own hidden states of its generated tokens."""
    if not c.is_bitwise:
        return None
    sample = c.samples[row]
    made = toploc.prove(sample.conversation.split(bits(hidden_TH)))
    own = [proof for of_turn in made for proof in of_turn]
    differing = [i for i, (mine, claimed) in enumerate(zip(own, sample.proofs, strict=True)) if mine != claimed]
    if not differing:
        return None
    return _found(
        "computation", row, f"{len(differing)} of {len(own)} proofs differ, the first of chunk {differing[0]}"
    )


def draws(c: Candidate, row: int, scores: TokenScores) -> Finding | None:
    """What there is against the tokens of a row and their logprobs, given own scores of them."""
    if not c.is_bitwise:
        return None
    sample = c.samples[row]
    others = np.flatnonzero(scores.drawn != sample.completion)
    if len(others):
        return _found(
            "sampling", row, f"{len(others)} of {len(scores.drawn)} tokens are not the draw, the first at {others[0]}"
        )
    if sample.logprobs is None:
        return None
    off = np.flatnonzero(scores.logprobs.astype(np.float32) != sample.logprobs)
    if not len(off):
        return None
    return _found("sampling", row, f"{len(off)} of {len(scores.drawn)} logprobs differ, the first at {off[0]}")


def _found(rule: str, row: int, what: str) -> Finding:
    return Finding(rule, Outcome.SOFT, OTHER_BITS, _EQUAL, f"row {row}: {what}, in one build", 1 << row)
