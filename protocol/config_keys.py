"""What the keys of a config.json say, and which models are refused and why: the tables of architectures.py.

Nothing is decided here. A key that is in none of these tables, nor an architecture's own, has been compared by nobody.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.config_bounds import CHOSEN, EXPERTS

SIZES = frozenset({
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "attention_bias", "rope_theta",
})  # fmt: skip
"""Keys of all architectures that may hold any value."""

NOTES = frozenset({
    "model_type", "architectures", "cache_implementation", "_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache", "initializer_range",
    "bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "num_labels", "problem_type", "_commit_hash",
    "name_or_path", "_attn_implementation_autoset", "gradient_checkpointing", "tokenizer_class",
    "pretraining_tp", "max_window_layers", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "ep_size", "num_mtp_layers",
    "num_nextn_predict_layers", "classifier_dropout", "is_llama_config", "transformers.js_config", "task_specific_params", "summary_type",
    "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "unsloth_version", "unsloth_fixed",
    "output_past", "_num_labels", "model_max_length", "max_sequence_length", "finetuning_task", "torchscript", "use_bfloat16", "tf_legacy_loss",
    "prefix", "custom_pipelines", "make_vocab_size_divisible_by", "_flash_attn_2_enabled",
    # Settings of text generation, from the time when they stood in config.json: nothing here reads them.
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "early_stopping", "do_sample", "num_beams", "num_beam_groups",
    "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "diversity_penalty", "repetition_penalty",
    "encoder_repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id",
    "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "sep_token_id",
    "decoder_start_token_id", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
    "assistant_lookbehind", "target_lookbehind",
})  # fmt: skip
"""Keys that say nothing of the computation. A length among them is the tokenizer's, or what training took: `max_position_embeddings` is
where all parties stop."""

FIXED: Mapping[str, tuple[object, ...]] = {
    "return_dict": (True,),
    **dict.fromkeys((*EXPERTS, CHOSEN, "n_shared_experts", "shared_expert_intermediate_size"), (0,)),
}
"""Keys of which these values are right, unless they are an architecture's own: what its class computes whatever they say."""

OWN: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "qwen3_moe": {"qkv_bias": (False,), "use_qk_norm": (True,)},
    "gemma": {"hidden_activation": ("gelu_pytorch_tanh",)},
    "gemma2": {"hidden_act": ("gelu_pytorch_tanh",)},
    "gemma3_text": {"hidden_act": ("gelu_pytorch_tanh",)},
    "gpt2": {"scale_attn_weights": (True,), "n_special": (0,), "predict_special_tokens": (True,)},
    "starcoder2": {
        "mlp_type": ("default",), "norm_type": ("layer_norm",), "activation_function": ("gelu", "gelu_pytorch_tanh"), "scale_attn_weights": (True,),
        "attention_softmax_in_fp32": (True,), "scale_attention_softmax_in_fp32": (True,),
    },
    "cohere2": {
        "use_gated_activation": (True,), "use_parallel_block": (True,), "use_parallel_embedding": (False,), "use_embedding_sharing": (True,),
        "position_embedding_type": ("rope_gptj",), "order_of_interleaved_layers": ("local_attn_first",), "rotary_pct": (1.0,),
        "use_qk_norm": (False,),
    },
    "deepseek_v3": {"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",), "moe_layer_freq": (1,)},
}  # fmt: skip
"""The same by architecture: each is what its class computes, which reads none of these keys (GPT-2's `scale_attn_weights` alone is read,
and true was compared). StarCoder 2 names the activation of the code that it was trained with, and the class's beside it, in `hidden_act`."""

SAME: Mapping[str, Mapping[str, str]] = {
    "gemma2": {"sliding_window_size": "sliding_window"},
    "gpt2": {
        "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "num_key_value_heads": "n_head",
        "max_position_embeddings": "n_positions",
    },
    "gpt_neox": {
        "num_key_value_heads": "num_attention_heads", "rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct",
    },
    "starcoder2": {"layer_norm_epsilon": "norm_epsilon"},
}  # fmt: skip
"""Keys, by architecture, that may only say what another one says: the class reads the other, and an engine or a plan this one."""

PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern", "layer_switch")
"""Keys that say every how many layers one has no window. transformers reads the first, where config.json lists no layers."""

DROPOUTS = frozenset({
    "attention_dropout", "residual_dropout", "embedding_dropout", "hidden_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "router_jitter_noise",
    "attention_dropout_prob", "hidden_dropout_prob", "attention_probs_dropout_prob",
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
    "dual_chunk_attention_config": "beyond its chunks some engines attend to other positions, and transformers does not",
    "pruned_heads": "heads that are taken out have not been compared",
    "tie_encoder_decoder": "it is no decoder alone",
    "cross_attention_hidden_size": "it is no decoder alone",
    **dict.fromkeys(DROPOUTS, "what it leaves out by chance would make the trainer's logprobs others than the nodes'"),
}
"""Keys that must be off (false, null, 0 or empty), and why."""

ROPE_KEYS = frozenset({
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
    "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
})  # fmt: skip
ROPE_KEY_REASONS = {"attn_factor": "some engines multiply by it, and transformers reads `attention_factor`"}
ROPE_REASONS = {
    "dynamic": "its frequencies change with the longest sequence of the batch",
    **dict.fromkeys(("longrope", "su"), "its frequencies change with the length of the sequence"),
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

NEVER = (
    "auto_map", "quantization_config", "text_config", "vision_config", "audio_config", "is_encoder_decoder", "add_cross_attention",
)  # fmt: skip
"""Features that no self-check makes up for."""
