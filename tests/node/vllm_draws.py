"""Generates with vLLM and the seeded logits processor, and scores the tokens by transformers' logits and the definition.

python tests/node/vllm_draws.py FOLDER      writes FOLDER/margins.npy; started by test_vllm_sampling.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from protocol import sampling

CUTS = ({"top_k": 0, "top_p": 1.0}, {"top_k": 12, "top_p": 1.0}, {"top_k": 0, "top_p": 0.8})


def main(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
    from vllm import LLM, SamplingParams

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, max_position_embeddings=512, initializer_range=0.15, tie_word_embeddings=False,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder / "model")
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 500, int(length)).tolist() for length in rng.integers(2, 30, 24)]
    keys = [int(key) for key in rng.integers(0, 2**64, len(prompts), np.uint64)]
    distributions = [{"temperature": 0.8, **CUTS[i % len(CUTS)]} for i in range(len(prompts))]
    llm = LLM(
        str(folder / "model"), dtype="float32", skip_tokenizer_init=True, enforce_eager=True, max_model_len=256, max_num_seqs=8,
        max_num_batched_tokens=512, enable_chunked_prefill=False, disable_log_stats=True,
        logits_processors=["node.engine.vllm_sampling:SeededDraw"],
    )  # fmt: skip
    params = [
        SamplingParams(
            temperature=0, max_tokens=20 + i, ignore_eos=True, detokenize=False,
            extra_args={"sampling_key": key, "sampling": distribution},
        )
        for i, (key, distribution) in enumerate(zip(keys, distributions, strict=True))
    ]  # fmt: skip
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    margins = []
    for prompt, key, distribution, output in zip(prompts, keys, distributions, outputs, strict=True):
        tokens = list(output.outputs[0].token_ids)
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
        margins.append(sampling.score(logits.numpy(), np.array(tokens), key=key, **distribution).margins)
    np.save(folder / "margins.npy", np.concatenate(margins))
    print(json.dumps({"tokens": sum(map(len, margins)), "exact": float((np.concatenate(margins) == 0).mean())}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
