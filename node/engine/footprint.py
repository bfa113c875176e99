"""What a model takes of its device, by the arithmetic of node/engine/memory.py: looked up in the model, not in its name.

A model on torch's meta device will do, so that it is known before anything is loaded.
"""

from __future__ import annotations

from typing import Any

import torch

from node.engine.memory import Footprint
from node.engine.weights import stored_tensors
from protocol.constants import TOPLOC_CHUNK


@torch.inference_mode()
def of(model: Any, on: torch.device) -> Footprint:
    """The cache of a token is looked up in a cache of one; activations are estimated from the widths of a layer."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    ids = torch.zeros(1, 1, dtype=torch.long, device=on)
    model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
    held = [layer for layer in cache.layers if layer.keys is not None]  # none of a layer that the model does not run
    layers = [layer.keys.nbytes + layer.values.nbytes for layer in held]
    config = model.config
    hidden, vocabulary, size = int(config.hidden_size), int(config.vocab_size), model.dtype.itemsize
    groups = int(config.num_attention_heads) // held[0].keys.shape[1]
    copies = 1 + (groups if groups > 1 else 0)  # of a layer that grows, and of its keys and values for every query head
    wide = max(int(getattr(config, "intermediate_size", None) or 0), 4 * hidden)
    return Footprint(
        weights=sum(tensor.nbytes for tensor in stored_tensors(model).values()),
        cache_token=sum(layers) + copies * max(layers),
        row=vocabulary * (2 * size + 8) + TOPLOC_CHUNK * hidden * 2,
        prefill_token=size * (8 * hidden + 3 * wide) + 8 * hidden,
        pair=1 + size,
    )
