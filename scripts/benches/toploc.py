"""The proof codec against the published package toploc 0.1.6: proofs per CPU second, one thread, from tensors to results.

Both start from the same bf16 tensors of normal numbers, and each must read the other's proofs before anything is timed. The
peer is built from its sources against the same torch and takes the faster of its public ways: `build_proofs_bytes` on rows or
on whole chunks, `verify_proofs_bytes` in C++.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benches import Bench, Row, peers
from node.engine.proofs import bits
from protocol import toploc

HIDDEN = (1024, 4096, 5120)
BATCHES = (1, 32, 64)
_ROUNDS = 7
_UNIT = "proofs/CPU s"
_TIES = 0.2  # share of points that may differ: among equal magnitudes the peer's choice is not ours


def run() -> Bench:
    torch.set_num_threads(1)
    bench = Bench("toploc")
    verified = []
    script = Path(__file__).with_name("toploc_peer.py")
    with tempfile.TemporaryDirectory() as folder, peers.Conversation(peers.python("toploc"), script) as peer:
        for hidden in HIDDEN:
            for batch in BATCHES:
                build, verify = _measure(peer, Path(folder) / "chunks.npy", hidden, batch)
                name = f"batch {batch}, hidden {hidden}"
                bench.rows.append(_row(f"build, {name}", *build, goal=1.0 if batch == 1 else 3.0))
                if batch in (1, 64):
                    bench.rows.append(_row(f"verify, {name}", *verify, goal=0.5 if batch == 1 else 1.7))
                if batch == 64:
                    verified.append(verify)
    ours, theirs = (math.exp(sum(map(math.log, rates)) / len(rates)) for rates in zip(*verified, strict=True))
    bench.rows.append(_row("verify, batch 64, geometric mean", ours, theirs, goal=2.2))
    return bench


def _row(name: str, ours: float, theirs: float, goal: float) -> Row:
    return Row(name, _UNIT, ours, theirs, ours / theirs, goal)


def _measure(
    peer: peers.Conversation, file: Path, hidden: int, batch: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(ours, theirs) in building and in verifying; the best of some rounds, in turns."""
    torch.manual_seed(hidden + batch)
    sequences = list(torch.randn(batch, 32, hidden).to(torch.bfloat16))
    chunks = np.stack([bits(sequence).reshape(-1) for sequence in sequences])
    np.save(file, chunks)
    repeats = max(1, 32 // batch)  # single chunks take a fraction of a millisecond
    given: dict[str, Any] = {"chunks": str(file), "repeats": repeats}

    def build() -> list[list[bytes]]:
        return toploc.prove([bits(sequence) for sequence in sequences])

    proofs = build()
    theirs = [bytes.fromhex(proof) for proof in peer.ask(do="build", **given)]
    given["proofs"] = [proof.hex() for [proof] in proofs]
    read = [score.exponents for [score] in toploc.score([bits(s) for s in sequences], [[p] for p in theirs])]
    if max(*read, *(result[0] for result in peer.ask(do="verify", **given)), 0) > _TIES * 128:
        raise RuntimeError("the two do not read each other's proofs")

    best = [math.inf] * 4
    for _ in range(_ROUNDS):
        spent = [
            _seconds(build, repeats),
            peer.ask(do="time build", **given),
            _seconds(lambda: toploc.score([bits(sequence) for sequence in sequences], proofs), repeats),
            peer.ask(do="time verify", **given),
        ]
        best = [min(pair) for pair in zip(best, spent, strict=True)]
    rates = [batch * repeats / spent for spent in best]
    return (rates[0], rates[1]), (rates[2], rates[3])


def _seconds(call: Callable[[], object], repeats: int) -> float:
    started = time.process_time()
    for _ in range(repeats):
        call()
    return time.process_time() - started
