"""A bf16 copy of the learner's weights, as they are published: with adapters merged into them, where those are what is trained.

What transformers holds in float32 whatever the model's type stays so: trainer and engines choose a mixture's experts by the same numbers.

The learner goes on at once; the copy is written meanwhile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from node.engine.weights import stored_type
from trainer.learning.lora import merged
from trainer.learning.ranks import gathered


def snapshot(model: Any, *, keep: bool = True) -> dict[str, Tensor]:
    """The weights as they are published, on the CPU, in memory of their own.

    All ranks call it: each has a part of them. They are gathered tensor by tensor, and let go where not kept. Rounding is the copy: it
    moves less memory than a copy in full precision would.
    """
    kept = {}
    for name, tensor in merged(model):
        whole = gathered(tensor.to(stored_type(model, name, torch.bfloat16), copy=True))
        if keep:
            kept[name] = whole.cpu().contiguous()
    return kept
