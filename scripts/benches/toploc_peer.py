"""The published package toploc, answering what benches/toploc.py and tests ask. Runs under the peer's own Python.

Activations come as .npy files of bf16 patterns, [chunks, activations]; proofs as hexadecimal. Seconds are of CPU, over all
threads; the process keeps to one CPU, so that the package starts one thread only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import toploc
import torch

K = 128


def build(chunks: torch.Tensor) -> list[bytes]:
    """Its faster way: chunks as they are, instead of rows that it concatenates."""
    k = min(K, chunks.shape[1])
    return toploc.build_proofs_bytes(list(chunks), decode_batching_size=1, topk=k, skip_prefill=True)


def build_from_rows(rows: list[torch.Tensor]) -> list[bytes]:
    """What it was written for: one tensor per token."""
    return toploc.build_proofs_bytes(rows, decode_batching_size=32, topk=K, skip_prefill=True)


def verify(chunks: torch.Tensor, proofs: list[bytes]) -> list[Any]:
    """In C++; the way through lists of tensors is in Python and slower."""
    k = min(K, chunks.shape[1])
    return toploc.verify_proofs_bytes(chunks, proofs, decode_batching_size=1, topk=k, skip_prefill=True)


def seconds(call: Callable[[], object], repeats: int) -> float:
    started = time.process_time()
    for _ in range(repeats):
        call()
    return time.process_time() - started


def answer(question: dict[str, Any]) -> Any:
    if question["do"] == "version":
        return {"toploc": toploc.__version__, "torch": torch.__version__}
    chunks = torch.from_numpy(np.load(question["chunks"]).view(np.int16)).view(torch.bfloat16)
    proofs = [bytes.fromhex(proof) for proof in question.get("proofs", [])]
    match question["do"]:
        case "build":
            return [proof.hex() for proof in build(chunks)]
        case "verify":
            return [[r.exp_mismatches, r.mant_err_mean, r.mant_err_median] for r in verify(chunks, proofs)]
        case "time build":
            rows = list(chunks.reshape(len(chunks) * 32, -1))
            repeats = question["repeats"]
            return min(seconds(lambda: build(chunks), repeats), seconds(lambda: build_from_rows(rows), repeats))
        case "time verify":
            return seconds(lambda: verify(chunks, proofs), question["repeats"])
    raise ValueError(question["do"])


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
