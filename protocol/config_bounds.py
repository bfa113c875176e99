"""What the numbers of a config.json may be: sizes before anything is allocated, and what no computation gets a number from.

transformers makes what a config.json asks for, layer by layer and label by label, before it looks at a weight. So whoever reads one
reads these bounds first. They say nothing of whether a model is computed rightly (architectures.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

LAYERS_MAX = 1024
LABELS_MAX = 1024
EXPERTS_MAX = 4096
_MOST = {"layer": LAYERS_MAX, "label": LABELS_MAX, "expert": EXPERTS_MAX}
"""Of whole numbers and lists under a key that has this word in it."""
_SIZE_MAX = 1 << 31
_AT_LEAST_ONE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings", "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
    "decoder_sparse_step", "n_positions", "n_embd", "n_layer", "n_head",
)  # fmt: skip
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Keys that count the experts of a layer, by architecture."""
_NULLABLE = (
    *EXPERTS,
    "num_experts_per_tok",
    "moe_intermediate_size",
    "decoder_sparse_step",
    "num_key_value_heads",
    "head_dim",
)
"""Keys that say nothing by null: no experts, as many heads as there are, hidden size ÷ heads."""
_POSITIVE = (
    "rope_theta",
    "rotary_emb_base",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)
_TYPES = ("float32", "bfloat16", "float16", "float64", "auto", None)


def unbounded(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is out of bounds, as in `num_hidden_layers is 10000000`, and what was expected."""
    for key, value in config.items():
        yield from _unbounded(key, value)
    for key in _AT_LEAST_ONE:
        value = config.get(key, 1)
        if (type(value) is not int or value < 1) and not (value is None and key in _NULLABLE):
            yield f"{key} is {value!r}", "expected a whole number above 0"
    for rope in _ropes(config):
        for key in _POSITIVE:
            if key in rope and not _is_positive(rope[key]):
                yield f"{key} is {rope[key]!r}", "expected a number above 0"
    chosen = config.get("num_experts_per_tok")
    among = [config[key] for key in EXPERTS if type(config.get(key)) is int]
    if type(chosen) is int and among and chosen > min(among):
        yield f"num_experts_per_tok is {chosen}", f"there are {min(among)} experts"
    for key in ("dtype", "torch_dtype"):
        if config.get(key) not in _TYPES:
            yield f"{key} is {config[key]!r}", "expected float32, bfloat16 or float16"


def _unbounded(key: str, value: Any) -> Iterator[tuple[str, str]]:
    most = next((most for word, most in _MOST.items() if word in key), _SIZE_MAX)
    if isinstance(value, list | dict) and most < _SIZE_MAX and len(value) > most:
        yield f"{key} has {len(value)} entries", f"at most {most} are read"
    if isinstance(value, int) and abs(value) > most:
        yield f"{key} is {value}", f"at most {most} is read"


def _ropes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield config
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        if isinstance(rope, dict):
            yield from (one for one in (rope, *rope.values()) if isinstance(one, dict))


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
