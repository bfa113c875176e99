"""Logits from hidden states: the one place that knows what follows the matrix of the output layer.

Some models bend what their output layer gives: Gemma 2 caps it softly, Cohere and Granite scale it. Who calls `lm_head` alone gets
other logprobs than the model. Engines, scores and the trainer's chunks (trainer/learning/logprobs.py) all come by here; inside
vLLM its own `compute_logits` does the same, and the self-check at start compares them (self_check.py).

Shapes: N rows, H hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Bend:
    """logits → cap · tanh(scale · logits ÷ divisor ÷ cap), without what is at its default."""

    scale: float = 1.0
    divisor: float = 1.0
    """Beside `scale`, because in bfloat16 a division is not the product with its inverse."""
    cap: float | None = None

    @property
    def is_none(self) -> bool:
        return self == _NONE

    def apply_(self, logits_NV: Tensor) -> Tensor:
        """In place, in the type of the logits, as transformers does it."""
        if self.scale != 1.0:
            logits_NV.mul_(self.scale)
        if self.divisor != 1.0:
            logits_NV.div_(self.divisor)
        if self.cap is not None:
            logits_NV.div_(self.cap).tanh_().mul_(self.cap)
        return logits_NV

    def slope(self, bent_NV: Tensor) -> Tensor | float:
        """d bent ÷ d raw, from what came out; 0 where nothing more can come through the cap."""
        factor = self.scale / self.divisor
        if self.cap is None:
            return factor
        return (bent_NV / self.cap).square_().neg_().add_(1.0).clamp_(min=0.0).mul_(factor)


_NONE = Bend()


def bend_of(config: Any) -> Bend:
    """What the model of this transformers configuration does to its logits."""
    return Bend(
        scale=float(getattr(config, "logit_scale", None) or 1.0),
        divisor=float(getattr(config, "logits_scaling", None) or 1.0),
        cap=getattr(config, "final_logit_softcapping", None) or None,
    )


def logits(model: Any, hidden_NH: Tensor) -> Tensor:
    """The model's own logits [N, V] of hidden states as they enter its output layer, in its type."""
    return bend_of(model.config).apply_(model.get_output_embeddings()(hidden_NH))
