"""The list of architectures whose every way of being computed was compared, and what of each (architectures.py says why).

One entry is what a comparison has earned (tests/engine/test_architectures.py); what the keys say is in config_keys.py. Nothing is decided
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Config = Mapping[str, Any]

_ROPES = frozenset({"default", "linear", "llama3", "yarn"})


@dataclass(frozen=True)
class Architecture:
    """What is known of one `model_type`."""

    name: str
    """Its class in transformers, the only one that `architectures` of config.json may name."""
    sizes: frozenset[str] = frozenset()
    """Keys, beyond those of all, that may hold any value: sizes, and choices that were compared either way."""
    unread: frozenset[str] = frozenset()
    """Keys of all that its class does not read, or reads as something that nobody has compared."""
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
    pattern: int = 0
    """Every how many layers one has no window, where config.json lists no layers and names no `sliding_window_pattern`; 0: not so."""
    title: str = ""
    """What people call it; empty: `name` without its ending."""
    on_vllm: bool | None = None
    """Whether the engine on vLLM passes its self-check with a tiny one: it does, it cannot load it, or nobody has tried."""
    positions: str | None = None
    """Key of the number of learnt positions, beyond which nothing can be computed; None: positions are rotary."""


MIXTURE = frozenset(
    {"num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"}
)

_GEMMA = frozenset({"hidden_activation", "query_pre_attn_scalar", "final_logit_softcapping"})

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", frozenset({"mlp_bias"}), on_vllm=True),
    "qwen2": Architecture("Qwen2ForCausalLM", windows="listed", switched=True, title="Qwen 2, 2.5"),
    "qwen3": Architecture("Qwen3ForCausalLM", windows="listed", switched=True, title="Qwen 3", on_vllm=True),
    "qwen3_moe": Architecture(
        "Qwen3MoeForCausalLM", MIXTURE | {"decoder_sparse_step", "mlp_only_layers"}, windows="listed", switched=True, title="Qwen 3 MoE",
        on_vllm=True,
    ),
    "mistral": Architecture("MistralForCausalLM", windows="every"),
    "mixtral": Architecture("MixtralForCausalLM", MIXTURE, windows="every", on_vllm=False),
    "gemma": Architecture("GemmaForCausalLM", title="Gemma (the first)"),
    "gemma2": Architecture("Gemma2ForCausalLM", _GEMMA | {"attn_logit_softcapping"}, windows="listed", title="Gemma 2", on_vllm=True),
    "gemma3_text": Architecture(
        "Gemma3ForCausalLM", _GEMMA | {"rope_local_base_freq"}, windows="listed", ropes=True, pattern=6,
        title="Gemma 3 (text)",
    ),
    "phi3": Architecture(
        "Phi3ForCausalLM", frozenset({"original_max_position_embeddings", "partial_rotary_factor"}), windows="every",
        rope_types=frozenset({"default"}), partial=True, title="Phi-3, Phi-4",
    ),
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        frozenset({"n_embd", "n_layer", "n_head", "n_positions", "n_ctx", "n_inner", "activation_function", "layer_norm_epsilon"}),
        unread=frozenset({"hidden_act", "head_dim", "intermediate_size", "rope_theta", "attention_bias", "rms_norm_eps"}),
        defaults={"attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
        positions="n_positions",
        title="GPT-2",
    ),
    "gpt_neox": Architecture(
        "GPTNeoXForCausalLM",
        frozenset({"layer_norm_eps", "use_parallel_residual", "rotary_pct", "rotary_emb_base"}),
        unread=frozenset({"head_dim", "rms_norm_eps"}),
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
        "Cohere2ForCausalLM", frozenset({"layer_norm_eps", "logit_scale"}), windows="listed", pattern=4,
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
        MIXTURE | {
            "n_routed_experts", "n_shared_experts", "n_group", "topk_group", "routed_scaling_factor", "first_k_dense_replace",
            "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "qk_head_dim", "v_head_dim", "rope_interleave",
        },
        title="DeepSeek-V3",
        on_vllm=False,
    ),
}  # fmt: skip
"""By `model_type`."""
