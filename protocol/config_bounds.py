"""What the numbers of a config.json may be: sizes before anything is allocated, and what no computation gets a number from.

transformers makes what a config.json asks for, layer by layer and label by label, before it looks at a weight. So whoever reads one
reads these bounds first. A key is bounded by what it means, not by a word in its name: `shared_expert_intermediate_size` is a width and
no count of experts. They say nothing of whether a model is computed rightly (architectures.py).
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

KEYS_MAX = 1024
LAYERS_MAX = 1024
EXPERTS_MAX = 1 << 16
LABELS_MAX = 1 << 16
_ENTRIES_MAX = 1 << 16
_ENDS_MAX = 64
_WIDTH_MAX = 1 << 20
_VOCABULARY_MAX = 1 << 24
_LEARNT_MAX = 1 << 20  # positions of which each has a row of its own
_IN_ALL_MAX = 1 << 20  # experts of all layers
_SIZE_MAX = 1 << 31
_SQUARE_MAX = 1 << 14

_LAYERS = re.compile(
    r"(.*_)?(num|n)_(.*_)?(layers?|blocks)|(encoder|decoder)_layers|layers|depth|first_k_dense_replace|attention_types"
)
"""Keys that count layers, by whatever name an architecture calls them; `attention_types` holds how often its kinds are repeated."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys that count the experts of a layer, by architecture."""
CHOSEN = "num_experts_per_tok"
_EXPERTS = re.compile(
    r"(.*_)?(num|n)_(.*_)?experts|zero_expert_num|num_experts_per_tok|top_k_experts|n_group|topk_group"
)
_LABELS = frozenset({"num_labels", "_num_labels", "id2label", "label2id"})
_WIDTHS = frozenset({
    "hidden_size", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
    "shared_intermediate_size", "expert_ffn_hidden_size", "n_embd", "n_inner", "d_model", "d_ff", "ffn_dim", "ffn_hidden_size", "head_dim",
    "rotary_dim", "word_embed_proj_dim", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "qk_head_dim", "v_head_dim",
    "num_attention_heads", "num_key_value_heads", "num_heads", "n_head", "n_heads",
})  # fmt: skip
_MOST = {
    **dict.fromkeys(_LABELS, LABELS_MAX),
    **dict.fromkeys(_WIDTHS, _WIDTH_MAX),
    "vocab_size": _VOCABULARY_MAX,
    "n_positions": _LEARNT_MAX,
    "n_ctx": _LEARNT_MAX,
}
_SQUARES = {
    "gpt_neo": "max_position_embeddings",
    "gpt_bigcode": "n_positions",
    "imagegpt": "n_positions",
    "openai-gpt": "n_positions",
}
"""Key, by `model_type`, of positions each of whose pairs every layer holds a mask of."""

_AT_LEAST_ONE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings", "moe_intermediate_size", "decoder_sparse_step", "n_positions", "n_embd", "n_layer", "n_layers",
    "num_layers", "n_head", "n_group", "topk_group", "no_rope_layer_interval",
)  # fmt: skip
_NULLABLE = frozenset(
    {
        "intermediate_size",
        "moe_intermediate_size",
        "decoder_sparse_step",
        "num_key_value_heads",
        "head_dim",
        "n_group",
        "topk_group",
    }
)
"""Keys that say nothing by null: four times the hidden size, no experts, as many heads as there are, hidden size ÷ heads."""
_POSITIVE = (
    "rope_theta",
    "rotary_emb_base",
    "rope_local_base_freq",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)
_POSITIVE_OR_NULL = ("beta_fast", "beta_slow", "attention_factor")
_SHARES = ("partial_rotary_factor", "rotary_pct")
_NORMS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
_LEAST, _GREATEST = 1e-6, 1e12
"""Of bases and factors of rotary positions: beyond them frequencies are zeros and infinities."""
_TYPES = ("float32", "bfloat16", "float16", "float64", "auto", None)

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


def shown(value: Any) -> str:
    """`value` in a sentence, however large it is."""
    return _short.repr(value)


def unbounded(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is out of bounds, as in `num_hidden_layers is 10000000`, and what was expected. Of no more than KEYS_MAX keys."""
    for key, value in config.items():
        yield from _too_many(key, value)
    for key in _AT_LEAST_ONE:
        if key in config and not _is_count(config[key]) and not (config[key] is None and key in _NULLABLE):
            yield f"{key} is {shown(config[key])}", "expected a whole number above 0"
    for rope in _ropes(config):
        yield from _odd_rope(rope)
    for key in _NORMS:
        if config.get(key) is not None and not _is_between(config[key], 0, 1):
            yield f"{key} is {shown(config[key])}", "expected a number between 0 and 1"
    yield from _odd_heads(config)
    yield from _odd_experts(config)
    square = _SQUARES.get(str(config.get("model_type")), "")
    if _is_count(config.get(square)) and config[square] > _SQUARE_MAX:
        yield (
            f"{square} is {config[square]}",
            f"each layer holds a mask of all pairs, and at most {_SQUARE_MAX} is read",
        )
    for key in ("dtype", "torch_dtype"):
        if config.get(key) not in _TYPES:
            yield f"{key} is {shown(config[key])}", "expected float32, bfloat16 or float16"


def _too_many(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Of `value` and what it holds, under whatever key."""
    if isinstance(value, list | dict):
        most = LAYERS_MAX if isinstance(value, list) and "layer" in key else min(_most(key), _ENTRIES_MAX)
        if key == "eos_token_id":
            most = _ENDS_MAX
        if len(value) > most:
            yield f"{key} has {len(value)} entries", f"at most {most} are read"
            return
        pairs = value.items() if isinstance(value, dict) else ((key, one) for one in value)
        for name, one in pairs:
            yield from _too_many(name, one)
    elif isinstance(value, int) and abs(value) > _most(key):
        yield f"{key} is {value}", f"at most {_most(key)} is read"


def _most(key: str) -> int:
    if counts_layers(key):
        return LAYERS_MAX
    return EXPERTS_MAX if _EXPERTS.fullmatch(key) else _MOST.get(key, _SIZE_MAX)


def counts_layers(key: str) -> bool:
    """Whether a key of config.json says how many layers of some kind there are."""
    return _LAYERS.fullmatch(key) is not None


def _odd_rope(rope: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in (*_POSITIVE, *_POSITIVE_OR_NULL):
        value = rope.get(key)
        if key in rope and not (value is None and key in _POSITIVE_OR_NULL):
            if not _is_between(value, 0, math.inf):
                yield f"{key} is {shown(value)}", "expected a number above 0"
            elif not _LEAST <= value <= _GREATEST:
                yield f"{key} is {shown(value)}", f"expected a number from {_LEAST:g} to {_GREATEST:g}"
    for key in _SHARES:
        value = rope.get(key)
        if value is not None and not _is_between(value, 0, 1):
            yield f"{key} is {shown(value)}", "expected a share of a head, above 0 and at most 1"
    low, high = rope.get("low_freq_factor"), rope.get("high_freq_factor")
    if _is_between(low, 0, math.inf) and _is_between(high, 0, math.inf) and high <= low:
        yield f"high_freq_factor is {shown(high)}", f"expected more than low_freq_factor, {shown(low)}"


def _odd_heads(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if type(heads) is int and type(groups) is int and heads > 0 and groups > 0 and heads % groups:
        yield f"num_key_value_heads is {groups}", f"{heads} heads are not as many for each"


def _odd_experts(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Of a mixture, counts that do not fit together. 0 and null say that there is none, where all of them say it."""
    for key in (*EXPERTS, CHOSEN):
        value = config.get(key)
        if value is not None and (type(value) is not int or value < 0):
            yield f"{key} is {shown(value)}", "expected a whole number, and 0 where there are no experts"
    among = [config[key] for key in EXPERTS if type(config.get(key)) is int]
    chosen, groups = config.get(CHOSEN), config.get("n_group")
    if not among:
        return
    least, layers = min(among), config.get("num_hidden_layers")
    if type(layers) is int and layers * max(among) > _IN_ALL_MAX:
        yield f"num_hidden_layers is {layers}, each of {max(among)} experts", f"at most {_IN_ALL_MAX} in all are read"
    if type(chosen) is int and least >= 0 and (chosen > least or (chosen == 0 and least > 0)):
        yield f"{CHOSEN} is {chosen}", f"there are {least} experts"
    if type(groups) is int and groups > 0 and least % groups:
        yield f"n_group is {groups}", f"{least} experts are not as many in each"
    kept = config.get("topk_group")
    if type(groups) is int and type(kept) is int and kept > groups > 0:
        yield f"topk_group is {kept}", f"there are {groups} groups"


def _ropes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield config
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        if isinstance(rope, dict):
            yield from (one for one in (rope, *rope.values()) if isinstance(one, dict))


def _is_count(value: Any) -> bool:
    """A whole number above 0, or a list of such, one for each layer."""
    if isinstance(value, list):
        return bool(value) and all(_is_count(one) for one in value)
    return type(value) is int and value > 0


def _is_between(value: Any, above: float, most: float) -> TypeGuard[float]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and above < value <= most and value < math.inf
