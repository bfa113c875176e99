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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from protocol import config_bounds
from protocol.config_keys import DROPOUTS, FEATURES, FIXED, NEVER, NOTES, REFUSED, ROPE_KEYS, ROPE_REASONS, SIZES
from protocol.errors import ConfigError, Malformed, Oversized
from protocol.model_files import read_json

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
    switched: bool = False
    """Whether `use_sliding_window` has to be on for that."""
    ropes: bool = False
    """Whether layers with a window have rotary positions of their own: `rope_parameters` by the layer's type."""
    rope_types: frozenset[str] = _ROPES
    """Kinds of rotary positions that were compared."""
    partial: bool = False
    """Whether only a part of each head may be rotated."""
    title: str = ""
    """What people call it; empty: `name` without its ending."""
    on_vllm: bool | None = None
    """Whether the engine on vLLM passes its self-check with a tiny one: it does, it cannot load it, or nobody has tried."""
    positions: str | None = None
    """Key of the number of learnt positions, beyond which nothing can be computed; None: positions are rotary."""


_MIXTURE = frozenset(
    {"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"}
)

_GEMMA = frozenset({"hidden_activation", "query_pre_attn_scalar", "final_logit_softcapping"})

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", frozenset({"mlp_bias"}), on_vllm=True),
    "qwen2": Architecture("Qwen2ForCausalLM", windows="listed", switched=True, title="Qwen 2, 2.5"),
    "qwen3": Architecture("Qwen3ForCausalLM", windows="listed", switched=True, title="Qwen 3", on_vllm=True),
    "qwen3_moe": Architecture(
        "Qwen3MoeForCausalLM", _MIXTURE | {"decoder_sparse_step", "mlp_only_layers"}, windows="listed", switched=True, title="Qwen 3 MoE",
        on_vllm=True,
    ),
    "mistral": Architecture("MistralForCausalLM", windows="every"),
    "mixtral": Architecture("MixtralForCausalLM", _MIXTURE, windows="every", on_vllm=False),
    "gemma": Architecture("GemmaForCausalLM", frozenset({"hidden_activation"}), title="Gemma (the first)"),
    "gemma2": Architecture("Gemma2ForCausalLM", _GEMMA | {"attn_logit_softcapping"}, windows="listed", title="Gemma 2", on_vllm=True),
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
        "SmolLM3ForCausalLM", frozenset({"mlp_bias", "no_rope_layers", "no_rope_layer_interval"}), windows="listed", switched=True, title="SmolLM 3"
    ),
    "deepseek_v3": Architecture(
        "DeepseekV3ForCausalLM",
        _MIXTURE | {
            "n_routed_experts", "n_shared_experts", "n_group", "topk_group", "routed_scaling_factor", "first_k_dense_replace",
            "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "qk_head_dim", "v_head_dim", "rope_interleave",
        },
        title="DeepSeek-V3",
        on_vllm=False,
    ),
}  # fmt: skip
"""By `model_type`."""

UNLISTED = "murmuration_unlisted"
"""Key of config.json: true where the model is none of the list, and its self-check passed when it was imported."""

_FULL, _SLIDING = "full_attention", "sliding_attention"


def require_right(config: Config, where: str = "config.json") -> None:
    """Raises ConfigError that names what of a model's config.json has not been shown to be computed rightly.

    Of a model that was let in unlisted it names only what is never computed.
    """
    kind = config.get("model_type")
    known = ARCHITECTURES.get(kind) if isinstance(kind, str) else None
    for key in NEVER:
        if config.get(key):
            raise _refused(where, f"{key} is set", FEATURES[key])
    for what, expected in config_bounds.unbounded(config):
        raise _refused(where, what, expected)
    if is_unlisted(config):
        _require_steady(config, where)
        return
    if known is None:
        reason = REFUSED.get(str(kind), "nobody has shown that it is computed rightly")
        hint = "these are: " + ", ".join(sorted(ARCHITECTURES))
        raise ConfigError(f"{where}: models of type {kind!r} are refused: {reason}", hint=hint)
    named = config.get("architectures") or [known.name]
    if named != [known.name]:
        raise _refused(where, f"architectures is {named!r}", f"of type {kind!r} only {known.name} is computed")
    _require_layers(config, known, where)
    _require_amounts(config, known, where)
    _require_rope(config, known, where)
    if positions(config) is None:
        raise _refused(
            where,
            "max_position_embeddings is missing",
            "it is where all parties stop",
            "write what the model was trained for",
        )
    _require_known_keys(config, known, where)


def _require_known_keys(config: Config, known: Architecture, where: str) -> None:
    for key, value in {**known.defaults, **config}.items():
        if key in ("layer_types", "rope_scaling", "rope_parameters") or _is_free(key, known):
            continue
        said = f"{key} is {value!r}" + ("" if key in config else " where config.json leaves it out")
        if key in FEATURES:
            if value:
                raise _refused(where, said, FEATURES[key], _hint(key))
        elif key in FIXED:
            if value is not None and value != FIXED[key]:
                raise _refused(where, said, f"only {FIXED[key]!r} is computed")
        elif value is not None:
            hint = "remove the key, if the model is the same without it"
            raise _refused(where, said, "nobody has compared what it changes", hint)


def routes(config: Config) -> bool:
    """Whether the model is a mixture of experts, in which rounding may send a token to other experts."""
    known = ARCHITECTURES.get(str(config.get("model_type")))
    return (known is not None and known.sizes >= _MIXTURE) or any(config.get(key) for key in config_bounds.EXPERTS)


def require_soft(config: Config, calibrated: Sequence[int]) -> None:
    """Raises ConfigError for a mixture of experts under which seats could be slashed: where two honest machines round otherwise a token goes
    to other experts, and its states have nothing in common any more. In float32 that is rare, some decisions in a million: too rare for a
    calibration to have seen it, and not for a run."""
    if routes(config) and calibrated:
        raise ConfigError(
            "the model is a mixture of experts: rounding sends tokens to other experts, so that honest work"
            " may lie beyond any limit, and nobody may be slashed for it",
            hint=f"set spec.verification.calibrated = [] and uncalibrated = {list(calibrated)}",
        )


def is_unlisted(config: Config) -> bool:
    """Whether a model was let in that is not in the list."""
    return config.get(UNLISTED) is True


def require_file(path: Path) -> dict[str, Any]:
    """What a config.json holds, if it is right. Raises ConfigError for what is no JSON object, too."""
    try:
        config = read_json(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", hint="name the folder of a model") from error
    except (Oversized, Malformed) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} holds no JSON object")
    require_right(config, str(path))
    return config


def without_dropout(config: Config) -> dict[str, Any]:
    """The same config.json, with every chance of leaving something out at 0."""
    known = ARCHITECTURES.get(str(config.get("model_type")))
    defaults = known.defaults if known else dict[str, Any]()
    return dict(config) | {key: 0.0 for key in DROPOUTS if config.get(key, defaults.get(key))}


def positions(config: Config) -> int | None:
    """Tokens of the longest sequence, prompt and completion, where config.json or the architecture says so. Rotary positions would go on
    beyond it; that all parties stop at the same place is worth more."""
    known = ARCHITECTURES.get(str(config.get("model_type")))
    learnt = known.positions if known else None
    keys = (*([learnt] if learnt else []), "max_position_embeddings", "n_positions")
    said = next((config[key] for key in keys if isinstance(config.get(key), int)), None)
    return 1024 if said is None and learnt else said  # as transformers has it where GPT-2's leaves it out


def require_positions(config: Config, tokens: int) -> None:
    """Raises ConfigError where a prompt and its completion, so many tokens together, are longer than the model has positions."""
    most = positions(config)
    if most is not None and tokens > most:
        raise ConfigError(
            f"a prompt and its completion may take {tokens} tokens, and the model has {most} positions",
            hint="lower spec.sampling.max_new_tokens, or choose another model",
        )


def _is_free(key: str, known: Architecture) -> bool:
    if key == "use_sliding_window":
        return known.switched
    if key == "sliding_window":
        return known.windows != "none"
    return key in SIZES or key in NOTES or key in known.sizes


def _require_layers(config: Config, known: Architecture, where: str) -> None:
    """Layers of which each attends to everything or, where the architecture has them, to a window."""
    types = config.get("layer_types") or []
    if not isinstance(types, list):
        raise _refused(where, f"layer_types holds {types!r}", "expected a list")
    if odd := [kind for kind in types if kind not in _kinds(config, known)]:
        known_kind = odd[0] in (_FULL, _SLIDING)
        reason = "layers of this architecture are all alike" if known_kind else "nobody has compared such layers"
        raise _refused(where, f"layer_types holds {odd[0]!r}", reason)
    if known.windows == "none" or known.switched:
        return
    if config.get("use_sliding_window") is not None and config.get("sliding_window"):
        raise _refused(
            where, "use_sliding_window stands beside sliding_window", FEATURES["use_sliding_window"], "remove it"
        )
    if known.windows == "listed" and not config.get("sliding_window", True) and not types:
        hint = f"list every layer as {_FULL!r} in layer_types, if the model has no windows"
        raise _refused(where, f"sliding_window is {config['sliding_window']!r}", "some layers have it by default", hint)


def _kinds(config: Config, known: Architecture) -> tuple[str, ...]:
    """What `layer_types` may hold."""
    if known.windows == "none":
        return (_FULL,)
    if known.windows == "every":  # whatever the list says, transformers gives the window to all layers
        return ((_SLIDING,) if config["sliding_window"] else (_FULL,)) if "sliding_window" in config else ()
    is_on = config.get("use_sliding_window") if known.switched else True
    return (_FULL, _SLIDING) if is_on and config.get("sliding_window", True) else (_FULL,)


def _require_amounts(config: Config, known: Architecture, where: str) -> None:
    """Of windows, caps and scales, where the model has them, that they are numbers above 0: places that read another differ."""
    for key in sorted(config.keys() & known.sizes & FEATURES.keys()):
        value = config[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value < math.inf):
            raise _refused(where, f"{key} is {value!r}", "expected a number above 0")
    window = config.get("sliding_window")
    if known.windows != "none" and window is not None and (type(window) is not int or window < 1):
        raise _refused(where, f"sliding_window is {window!r}", "expected a number of tokens")


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


def _require_steady(config: Config, where: str) -> None:
    """Of a model that is not listed: nothing by chance, and no rotary frequencies that change, which the sequences of a self-check may
    be too short or too long to show."""
    for key in sorted(DROPOUTS & config.keys()):
        if config[key]:
            raise _refused(where, f"{key} is {config[key]!r}", FEATURES[key], _hint(key))
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        ropes = [rope, *rope.values()] if isinstance(rope, dict) else []
        for one in (one for one in ropes if isinstance(one, dict)):
            for kind in (str(one.get("rope_type")), str(one.get("type"))):
                if kind in ROPE_REASONS:
                    raise _refused(where, f"{key} is of type {kind!r}", ROPE_REASONS[kind])


def _require_one_rope(rope: Any, key: str, known: Architecture, where: str) -> None:
    if not isinstance(rope, dict):
        raise _refused(where, f"{key} is {rope!r}", "expected an object")
    for name in ("rope_type", "type"):
        kind = rope.get(name)
        if kind is not None and (not isinstance(kind, str) or kind not in known.rope_types):
            reason = ROPE_REASONS.get(str(kind), "nobody has shown that it is computed rightly")
            raise _refused(where, f"{key}.{name} is {kind!r}", reason)
    partial = {"partial_rotary_factor"} if known.partial else set()
    if odd := sorted(rope.keys() - ROPE_KEYS - partial):
        raise _refused(where, f"{key} holds {odd[0]!r}", "nobody has compared what it changes")


def _hint(key: str) -> str:
    if "sliding_window" in key:
        return f"remove {key}: the model is the same without it"
    if key in DROPOUTS:
        return f"set {key} to 0; `murmur trainer import` does"
    return "choose another model"


def _refused(where: str, what: str, why: str, hint: str = "choose another model") -> ConfigError:
    return ConfigError(f"{where}: {what}: {why}", hint=hint)
