"""Which models are computed rightly: an allow-list of architectures, and of what a config.json may ask of each.

A run computes one model in three ways: alone and cached (a node generates), batched (a validator's prefill) and packed (the trainer).
An architecture, or a feature of it, that one of them computes differently pays nodes for noise and trains on it, and nothing else
would tell. So what is listed here was compared with the model alone, in all three (tests/engine/test_architectures.py), and all else
is refused by name: by `murmur trainer import`, by `murmur run create` and by every engine that loads.

A model that is not listed may be let in by `murmur trainer import --unlisted`, where its self-check passes: the key UNLISTED of its
config.json says so to every role, the run spec repeats it, and verdicts on such a model are soft only.

It looks at config.json alone and imports no torch. A key that nobody has compared is refused as well, if it says anything: what
transformers makes of a stray `sliding_window` depends on the place that reads it. Does not cover whether the weights fit
(node/engine/weights.py), nor kernels (the setting `trainer.kernels`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from protocol.errors import ConfigError

Config = Mapping[str, Any]


_ROPES = frozenset({"default", "linear", "llama3", "yarn"})


@dataclass(frozen=True)
class Architecture:
    """What is known of one `model_type`."""

    name: str
    """Its class in transformers, the only one that `architectures` of config.json may name."""
    sizes: frozenset[str] = frozenset()
    """Keys, beyond those of all, that may hold any value: sizes, and choices that were compared either way."""
    defaults: Config = field(default_factory=dict)
    """What transformers takes where config.json leaves out a feature of `FEATURES` and does not leave it off."""
    windows: Literal["none", "every", "listed"] = "none"
    """Which layers have the window of `sliding_window`, where it is set: every one, or those that `layer_types` lists."""
    ropes: bool = False
    """Whether layers with a window have rotary positions of their own: `rope_parameters` by the layer's type."""
    rope_types: frozenset[str] = _ROPES
    """Kinds of rotary positions that were compared."""
    partial: bool = False
    """Whether only a part of each head may be rotated."""
    title: str = ""
    """What people call it; empty: `name` without its ending."""
    positions: str | None = None
    """Key of the number of learnt positions, beyond which nothing can be computed; None: positions are rotary."""


_MIXTURE = frozenset(
    {"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"}
)

_GEMMA = frozenset({"hidden_activation", "query_pre_attn_scalar", "final_logit_softcapping"})

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", frozenset({"mlp_bias"})),
    "qwen2": Architecture("Qwen2ForCausalLM", windows="listed", title="Qwen 2, 2.5"),
    "qwen3": Architecture("Qwen3ForCausalLM", windows="listed", title="Qwen 3"),
    "qwen3_moe": Architecture(
        "Qwen3MoeForCausalLM", _MIXTURE | {"decoder_sparse_step", "mlp_only_layers"}, windows="listed", title="Qwen 3 MoE"
    ),
    "mistral": Architecture("MistralForCausalLM", windows="every"),
    "mixtral": Architecture("MixtralForCausalLM", _MIXTURE, windows="every"),
    "gemma": Architecture("GemmaForCausalLM", frozenset({"hidden_activation"}), title="Gemma (the first)"),
    "gemma2": Architecture("Gemma2ForCausalLM", _GEMMA | {"attn_logit_softcapping"}, windows="listed", title="Gemma 2"),
    "gemma3_text": Architecture(
        "Gemma3ForCausalLM", _GEMMA | {"rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"}, windows="listed", ropes=True,
        title="Gemma 3 (text)",
    ),
    "phi3": Architecture(
        "Phi3ForCausalLM", frozenset({"original_max_position_embeddings", "partial_rotary_factor"}), windows="every",
        rope_types=frozenset({"default"}), partial=True, title="Phi-3, Phi-4",
    ),
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        frozenset({"n_embd", "n_layer", "n_head", "n_positions", "n_ctx", "n_inner", "activation_function", "layer_norm_epsilon"}),
        defaults={"attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
        positions="n_positions",
        title="GPT-2",
    ),
    "gpt_neox": Architecture(
        "GPTNeoXForCausalLM",
        frozenset({"layer_norm_eps", "use_parallel_residual", "rotary_pct", "rotary_emb_base", "partial_rotary_factor"}),
        partial=True,
        title="GPT-NeoX, Pythia",
    ),
    "olmo2": Architecture("Olmo2ForCausalLM", title="OLMo 2"),
    "olmo3": Architecture("Olmo3ForCausalLM", windows="listed", ropes=True, title="OLMo 3"),
    "granite": Architecture(
        "GraniteForCausalLM",
        frozenset({"mlp_bias", "logits_scaling", "embedding_multiplier", "residual_multiplier", "attention_multiplier"}),
    ),
    "cohere": Architecture(
        "CohereForCausalLM", frozenset({"layer_norm_eps", "logit_scale", "use_qk_norm"}), title="Cohere Command R"
    ),
    "cohere2": Architecture(
        "Cohere2ForCausalLM", frozenset({"layer_norm_eps", "logit_scale", "sliding_window_pattern"}), windows="listed",
        title="Cohere Command R7B, A",
    ),
    "starcoder2": Architecture(
        "Starcoder2ForCausalLM", frozenset({"norm_epsilon", "use_bias"}), windows="every", title="StarCoder 2"
    ),
    "ministral": Architecture("MinistralForCausalLM", windows="listed"),
    "smollm3": Architecture(
        "SmolLM3ForCausalLM", frozenset({"mlp_bias", "no_rope_layers", "no_rope_layer_interval"}), windows="listed", title="SmolLM 3"
    ),
    "deepseek_v3": Architecture(
        "DeepseekV3ForCausalLM",
        _MIXTURE | {
            "n_routed_experts", "n_shared_experts", "n_group", "topk_group", "routed_scaling_factor", "first_k_dense_replace",
            "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "qk_head_dim", "v_head_dim", "rope_interleave",
        },
        title="DeepSeek-V3",
    ),
}  # fmt: skip
"""By `model_type`."""

_SIZES = frozenset({
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "attention_bias", "rope_theta",
})  # fmt: skip
"""Keys of all architectures that may hold any value."""

_NOTES = frozenset({
    "model_type", "architectures", "cache_implementation", "_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "initializer_range",
    "bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "num_labels", "problem_type", "return_dict", "_commit_hash",
    "name_or_path", "_attn_implementation_autoset", "gradient_checkpointing", "tokenizer_class",
    "pretraining_tp", "max_window_layers", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "ep_size", "num_mtp_layers",
    "num_nextn_predict_layers", "classifier_dropout", "is_llama_config", "transformers.js_config", "task_specific_params", "summary_type",
    "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "unsloth_version", "unsloth_fixed",
    # Settings of text generation, from the time when they stood in config.json: nothing here reads them.
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "early_stopping", "do_sample", "num_beams", "num_beam_groups",
    "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "diversity_penalty", "repetition_penalty",
    "encoder_repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id",
    "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "sep_token_id",
    "decoder_start_token_id", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
    "assistant_lookbehind", "target_lookbehind",
})  # fmt: skip
"""Keys that say nothing of the computation."""

_FIXED: Config = {
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "scale_attn_weights": True,
    "use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": False, "use_embedding_sharing": True,
    "position_embedding_type": "rope_gptj", "order_of_interleaved_layers": "local_attn_first",
}  # fmt: skip
"""Keys of which one value is right: what transformers computes whatever they say, or what was compared."""

DROPOUTS = frozenset({
    "attention_dropout", "residual_dropout", "embedding_dropout", "hidden_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "router_jitter_noise",
})  # fmt: skip
"""Chances of leaving something out in training: the trainer's logprobs would not be those of the nodes."""

_NOT_HERE = "but for the models whose own it is: what a stray key changes depends on who reads it"
_WINDOWS = "its windows have not been compared in packed rows"
_STATE = "the state of its linear attention would leak from one packed sequence into the next"
_BIASES = "its positions are biases of the attention (alibi), which packed rows do not have"

FEATURES: dict[str, str] = {
    "auto_map": "it names program code of its own, and nobody runs a stranger's code",
    "quantization_config": "quantized weights cannot be trained, and no two engines compute them alike",
    "text_config": "models of more than text are not computed here",
    "vision_config": "models of more than text are not computed here",
    "audio_config": "models of more than text are not computed here",
    "is_encoder_decoder": "it is no decoder alone",
    "add_cross_attention": "it is no decoder alone",
    "is_decoder": "it is part of a larger model",
    "use_sliding_window": _NOT_HERE,
    "sliding_window": _NOT_HERE,
    "attention_chunk_size": "packed rows know no chunks",
    "use_bidirectional_attention": "tokens would see what comes after them",
    "attn_logit_softcapping": _NOT_HERE,
    "final_logit_softcapping": _NOT_HERE,
    "logit_scale": _NOT_HERE,
    "logits_scaling": _NOT_HERE,
    "embedding_multiplier": _NOT_HERE,
    "residual_multiplier": _NOT_HERE,
    "attention_multiplier": _NOT_HERE,
    "alibi": _BIASES,
    "use_mrope": "its positions are those of images",
    "rope_interleaved": "its rotary positions are interleaved, which is ignored",
    "scale_attn_by_inverse_layer_idx": "it has not been compared",
    "reorder_and_upcast_attn": "it is ignored by the kernels in use",
    "output_attentions": "the kernels in use have none to give",
    "output_hidden_states": "it keeps every layer's states in memory",
    "output_router_logits": "it keeps every layer's routes in memory",
    "chunk_size_feed_forward": "it has not been compared",
    "per_layer_config": "layers that differ have not been compared",
    **dict.fromkeys(DROPOUTS, "what it leaves out by chance would make the trainer's logprobs others than the nodes'"),
}
"""Keys that must be off (false, null, 0 or empty), and why."""

_ROPE_KEYS = frozenset({
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
})  # fmt: skip
_ROPE_REASONS = {
    "dynamic": "its frequencies change with the longest sequence of the batch",
    "longrope": "its frequencies change with the length of the sequence",
}

REFUSED: dict[str, str] = {
    **dict.fromkeys(("gemma3", "gemma3n", "gemma4", "mistral3", "llama4"), "models of more than text are not computed here"),
    **dict.fromkeys(("vaultgemma", "gemma3n_text", "gemma4_text", "exaone4", "afmoe"), _WINDOWS),
    **dict.fromkeys(("phimoe", "mimo_v2_flash"), _WINDOWS),
    "gpt_oss": "the sinks of its attention are missing in packed rows",
    **dict.fromkeys(("granitemoe", "granitemoeshared"), "nobody has compared its mixture of experts; Granite without one is right"),
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "lfm2", "lfm2_moe"), _STATE),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "falcon_h1", "jamba", "bamba", "zamba", "zamba2", "nemotron_h"), _STATE),
    **dict.fromkeys(("granitemoehybrid", "kimi_linear", "minimax", "olmo_hybrid", "recurrent_gemma", "rwkv", "xlstm"), _STATE),
    **dict.fromkeys(("falcon", "bloom", "mpt"), _BIASES),
}  # fmt: skip
"""Why some `model_type` is not in the list; of the others it is only known that nobody has compared them."""

UNLISTED = "murmuration_unlisted"
"""Key of config.json: true where the model is none of the list, and its self-check passed when it was imported."""
_NEVER = (
    "auto_map", "quantization_config", "text_config", "vision_config", "audio_config", "is_encoder_decoder", "add_cross_attention",
)  # fmt: skip
"""Features that no self-check makes up for."""

_FULL, _SLIDING = "full_attention", "sliding_attention"


def require_right(config: Config, where: str = "config.json") -> None:
    """Raises ConfigError that names what of a model's config.json has not been shown to be computed rightly.

    Of a model that was let in unlisted it names only what is never computed.
    """
    kind = config.get("model_type")
    known = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    for key in _NEVER:
        if config.get(key):
            raise _refused(where, f"{key} is set", FEATURES[key])
    if is_unlisted(config):
        _require_steady_rope(config, where)
        return
    if known is None:
        reason = REFUSED.get(str(kind), "nobody has shown that it is computed rightly")
        hint = "these are: " + ", ".join(sorted(ARCHITECTURES))
        raise ConfigError(f"{where}: models of type {kind!r} are refused: {reason}", hint=hint)
    named = config.get("architectures") or [known.name]
    if named != [known.name]:
        raise _refused(where, f"architectures is {named!r}", f"of type {kind!r} only {known.name} is computed")
    _require_layers(config, known, where)
    _require_rope(config, known, where)
    for key, value in {**known.defaults, **config}.items():
        if key in ("layer_types", "rope_scaling", "rope_parameters") or _is_free(key, known):
            continue
        said = f"{key} is {value!r}" + ("" if key in config else " where config.json leaves it out")
        if key in FEATURES:
            if value:
                raise _refused(where, said, FEATURES[key], _hint(key))
        elif key in _FIXED:
            if value is not None and value != _FIXED[key]:
                raise _refused(where, said, f"only {_FIXED[key]!r} is computed")
        elif value is not None:
            hint = "remove the key, if the model is the same without it"
            raise _refused(where, said, "nobody has compared what it changes", hint)


def is_unlisted(config: Config) -> bool:
    """Whether a model was let in that is not in the list."""
    return config.get(UNLISTED) is True


def require_file(path: Path) -> dict[str, Any]:
    """What a config.json holds, if it is right. Raises ConfigError for what is no JSON object, too."""
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint="name the folder of a model") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds no JSON object")
    require_right(config, str(path))
    return config


def without_dropout(config: Config) -> dict[str, Any]:
    """The same config.json, with every chance of leaving something out at 0."""
    known = ARCHITECTURES.get(str(config.get("model_type")))
    defaults = known.defaults if known else dict[str, Any]()
    return dict(config) | {key: 0.0 for key in DROPOUTS if config.get(key, defaults.get(key))}


def most_tokens(config: Config) -> int | None:
    """Tokens of the longest sequence that can be computed, prompt and completion; None: there is no such limit."""
    known = ARCHITECTURES.get(str(config.get("model_type")))
    if known is None or known.positions is None:
        return None
    most = config.get(known.positions, config.get("max_position_embeddings", 1024))
    return most if isinstance(most, int) else None


def _is_free(key: str, known: Architecture) -> bool:
    if key in ("use_sliding_window", "sliding_window"):
        return known.windows != "none"
    return key in _SIZES or key in _NOTES or key in known.sizes


def _require_layers(config: Config, known: Architecture, where: str) -> None:
    """Layers of which each attends to everything or, where the architecture has them, to a window."""
    types = config.get("layer_types") or []
    if not isinstance(types, list):
        raise _refused(where, f"layer_types holds {types!r}", "expected a list")
    allowed = {_FULL, _SLIDING} if known.windows == "listed" else {_FULL}
    if known.windows == "every" and config.get("sliding_window"):
        allowed = {_SLIDING}  # whatever the list says, transformers gives every layer the window
    if odd := [kind for kind in types if kind not in allowed]:
        known_kind = odd[0] in (_FULL, _SLIDING)
        reason = "layers of this architecture are all alike" if known_kind else "nobody has compared such layers"
        raise _refused(where, f"layer_types holds {odd[0]!r}", reason)


def _require_rope(config: Config, known: Architecture, where: str) -> None:
    """Of rotary positions those whose frequencies never change."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        if not rope:
            continue
        if not isinstance(rope, dict):
            raise _refused(where, f"{key} is {rope!r}", "expected an object")
        by_layer = known.ropes and set(rope) <= {_FULL, _SLIDING}
        for name, one in rope.items() if by_layer else [("", rope)]:
            if one:
                _require_one_rope(one, f"{key}.{name}" if name else key, known, where)


def _require_steady_rope(config: Config, where: str) -> None:
    """Of a model that is not listed: no frequencies that change, which sequences of a self-check may be too short or too long to show."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        ropes = [rope, *rope.values()] if isinstance(rope, dict) else []
        for one in (one for one in ropes if isinstance(one, dict)):
            kind = str(one.get("rope_type", one.get("type")))
            if kind in _ROPE_REASONS:
                raise _refused(where, f"{key} is of type {kind!r}", _ROPE_REASONS[kind])


def _require_one_rope(rope: Any, key: str, known: Architecture, where: str) -> None:
    if not isinstance(rope, dict):
        raise _refused(where, f"{key} is {rope!r}", "expected an object")
    for name in ("rope_type", "type"):
        kind = rope.get(name)
        if kind is not None and kind not in known.rope_types:
            reason = _ROPE_REASONS.get(str(kind), "nobody has shown that it is computed rightly")
            raise _refused(where, f"{key}.{name} is {kind!r}", reason)
    partial = {"partial_rotary_factor"} if known.partial else set()
    if odd := sorted(rope.keys() - _ROPE_KEYS - partial):
        raise _refused(where, f"{key} holds {odd[0]!r}", "nobody has compared what it changes")


def _hint(key: str) -> str:
    if "sliding_window" in key:
        return f"remove {key}: the model is the same without it"
    if key in DROPOUTS:
        return f"set {key} to 0; `murmur trainer import` does"
    return "choose another model"


def _refused(where: str, what: str, why: str, hint: str = "choose another model") -> ConfigError:
    return ConfigError(f"{where}: {what}: {why}", hint=hint)
