"""Bare vLLM's side of the engine bench, and of the GPU report's. Runs in vLLM's environment; imports nothing of ours. Arguments: the folder
of the model."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # all in this process, whose CPU time is measured
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def main(folder: str) -> None:
    from vllm import LLM, SamplingParams, TokensPrompt

    engines: dict[int, Any] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        rows = asked["rows"]
        memory = {"gpu_memory_utilization": asked["share"]} if "share" in asked else {}
        if rows not in engines:
            engines.clear()
            engines[rows] = LLM(
                folder, dtype=asked.get("dtype", "float32"), max_num_seqs=rows, max_model_len=512, skip_tokenizer_init=True,
                enable_prefix_caching=True, disable_log_stats=True, **memory,
            )  # fmt: skip
        prompts = [TokensPrompt(prompt_token_ids=p) for p in asked["prompts"] for _ in range(asked["samples"])]
        how = [
            SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True, detokenize=False)
            for length in asked["lengths"]
        ]
        engines[rows].reset_prefix_cache()
        started, began = time.process_time(), time.perf_counter()
        made = engines[rows].generate(prompts, how, use_tqdm=False)
        seconds, elapsed = time.process_time() - started, time.perf_counter() - began
        tokens = sum(len(one.outputs[0].token_ids) for one in made)
        print(json.dumps({"tokens": tokens, "seconds": seconds, "elapsed": elapsed}), file=answers, flush=True)


answers = sys.stdout

if __name__ == "__main__":
    sys.stdout = sys.stderr  # whatever libraries print is no answer
    main(sys.argv[1])
