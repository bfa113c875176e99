"""Tiny random models of many families, as config.json has them: what is computed rightly, and what is not.

Weights are drawn wide: with the usual 0.02 attention is nearly uniform, and a window that is ignored would change nothing that a
comparison could see. Biases and norms are drawn as well; fresh ones are zeros and ones, which hide that they are left out.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers import models as tokenizers

WEIGHTS = "model.safetensors"
VOCABULARY = 96
WINDOW = 8
"""Of all that have one: shorter than any sequence that is compared."""

_SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_GPT2 = {
    "model_type": "gpt2", "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128, "bos_token_id": 0,
    "initializer_range": 0.2, "eos_token_id": 1, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
}  # fmt: skip
_DEEPSEEK = {
    **_SIZES, **_EXPERTS, "model_type": "deepseek_v3", "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1,
    "n_group": 2, "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 12, "first_k_dense_replace": 1,
}  # fmt: skip
_NEOX = {"model_type": "gpt_neox", **{key: value for key, value in _SIZES.items() if key != "num_key_value_heads"}}


def _of(model_type: str, **features: Any) -> dict[str, Any]:
    return {"model_type": model_type, **_SIZES, **features}


def _rope(rope_type: str, **how: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 10_000.0, **how}}


RIGHT: dict[str, dict[str, Any]] = {
    "llama": _of("llama"),
    "llama with biases and wide heads": _of("llama", attention_bias=True, mlp_bias=True, head_dim=12),
    "llama with a tied head": _of("llama", tie_word_embeddings=True),
    "llama with linear rope": _of("llama", **_rope("linear", factor=4.0)),
    "llama with llama3 rope": _of(
        "llama", **_rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
    ),
    "llama with yarn rope": _of("llama", **_rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "qwen2": _of("qwen2"),
    "qwen3": _of("qwen3", head_dim=16),
    "qwen3_moe": _of("qwen3_moe", **_EXPERTS, num_experts=4, head_dim=16, mlp_only_layers=[1]),
    "qwen2 with a window": _of("qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "qwen2 with layers of its own": _of(
        "qwen2", use_sliding_window=True, sliding_window=WINDOW, layer_types=["full_attention", "sliding_attention", "full_attention"]
    ),
    "qwen3 with a window": _of("qwen3", head_dim=16, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2),
    "mistral": _of("mistral", sliding_window=None),
    "mistral with a window": _of("mistral", sliding_window=WINDOW),
    "mixtral": _of("mixtral", num_local_experts=4, num_experts_per_tok=2),
    "mixtral with a window": _of("mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW),
    "gemma": _of("gemma", head_dim=16),
    "gemma2": _of(
        "gemma2", head_dim=16, sliding_window=WINDOW, query_pre_attn_scalar=16, attn_logit_softcapping=2.0, final_logit_softcapping=3.0
    ),
    "gemma2 without windows": _of(
        "gemma2", head_dim=16, layer_types=["full_attention"] * 3, attn_logit_softcapping=1.0, query_pre_attn_scalar=16,
        final_logit_softcapping=None,
    ),
    "gemma3": _of("gemma3_text", head_dim=16, sliding_window=WINDOW, sliding_window_pattern=3, query_pre_attn_scalar=16),
    "phi3": _of("phi3"),
    "phi3 with a window": _of("phi3", sliding_window=WINDOW),
    "gpt2": _GPT2,
    "gpt_neox": _NEOX,
    "gpt_neox in sequence": _NEOX | {"use_parallel_residual": False, **_rope("default", partial_rotary_factor=1.0)},
    "olmo2": _of("olmo2"),
    "olmo3": _of(
        "olmo3", sliding_window=WINDOW, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32},
        },
    ),
    "granite": _of(
        "granite", logits_scaling=8.0, embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.1
    ),
    "cohere": _of("cohere", logit_scale=0.25),
    "cohere2": _of("cohere2", sliding_window=WINDOW, sliding_window_pattern=3, logit_scale=0.25),
    "starcoder2": _of("starcoder2", sliding_window=WINDOW, norm_epsilon=1e-6),
    "ministral": _of("ministral", head_dim=8, **_rope("default"), sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "smollm3 with a window": _of("smollm3", use_sliding_window=True, sliding_window=WINDOW, no_rope_layer_interval=2),
    "smollm3": _of("smollm3", no_rope_layer_interval=2),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v3 with yarn rope": _DEEPSEEK | {
        "q_lora_rank": None,
        **_rope("yarn", factor=4.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=1.0),
    },
}  # fmt: skip
"""What protocol/architectures.py allows."""

WRONG: dict[str, dict[str, Any]] = {
    "gpt_oss": _of("gpt_oss", sliding_window=WINDOW, head_dim=16, num_local_experts=4, num_experts_per_tok=2),
    "falcon": {
        "model_type": "falcon", "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "alibi": True, "new_decoder_architecture": False, "initializer_range": 0.2, "eos_token_id": 1,
    },
    "qwen3_next": _of(
        "qwen3_next", **_EXPERTS, num_experts=4, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=8, shared_expert_intermediate_size=16, num_hidden_layers=4,
    ),
    "lfm2": _of("lfm2", layer_types=["conv", "full_attention", "conv"], block_multiple_of=8),
    "mamba": {
        "model_type": "mamba", "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "eos_token_id": 1,
    },
    "llama with dynamic rope": _of("llama", **_rope("dynamic", factor=4.0), max_position_embeddings=16),
    "llama with long rope": _of(
        "llama",
        **_rope(
            "longrope", factor=8.0, original_max_position_embeddings=16, short_factor=[1.0] * 4, long_factor=[1.0, 2.0, 3.0, 4.0]
        ),
    ),
    "llama with dropout": _of("llama", attention_dropout=0.3),
    "gpt2 with dropout": _GPT2 | {"resid_pdrop": 0.3},
}  # fmt: skip
"""What it refuses, and a comparison would have found."""


def make(config: dict[str, Any], folder: Path) -> Path:
    """A folder as transformers writes one, in bfloat16, with a tokenizer of three tokens."""
    from transformers import AutoConfig

    known = AutoConfig.for_model(config["model_type"], **{k: v for k, v in config.items() if k != "model_type"})
    return write(known, folder)


def write(config: Any, folder: Path) -> Path:
    """The same of a configuration of transformers."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.ndim == 1 and tensor.is_floating_point():
                tensor.add_(0.2 * torch.randn(tensor.shape))
    model.save_pretrained(folder)
    vocabulary = {"<pad>": 0, "<eos>": 1, "a": 2}
    Tokenizer(tokenizers.BPE(vocab=vocabulary, merges=[])).save(str(folder / "tokenizer.json"))
    return folder


def versions(folder: Path, config: dict[str, Any]) -> tuple[Path, Path, tuple[Path, Path]]:
    """Two versions of one model, and two that are not to be loaded: one lacks tensors, and all of the other but its last tensor is right."""
    from trainer.models.pretrained import make_policy

    version, another, lacking, half = (folder / name for name in ("version", "another", "lacking", "half"))
    make_policy(make(config, folder / "theirs"), version)
    for copy in (another, lacking, half):
        shutil.copytree(version, copy)
    tensors = load_file(version / WEIGHTS)
    torch.manual_seed(1)
    changed = {name: t + 0.1 * torch.randn(t.shape).bfloat16() for name, t in tensors.items()}
    save_file(changed, another / WEIGHTS)
    save_file({name: t for name, t in tensors.items() if "layers.0" not in name}, lacking / WEIGHTS)
    last = max(changed)
    save_file(changed | {last: torch.full_like(changed[last], torch.nan)}, half / WEIGHTS)
    return version, another, (lacking, half)


@cache
def alone(folder: Path) -> Any:
    """The model as transformers loads it: float32, eager mode."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def reference(folder: Path, tokens: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Hidden states [T, H] that enter the output layer, and logits [T, V]: all of it transformers' own, one sequence at a time."""
    with torch.no_grad():
        out = alone(folder)(input_ids=torch.tensor([list(tokens)]), use_cache=False, output_hidden_states=True)
    return out.hidden_states[-1][0].numpy(), out.logits[0].numpy()
