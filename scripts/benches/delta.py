"""Lossless deltas between ten consecutive versions of real GRPO, and the steps from the first to the last by them alone.

delta_work.py trains a Llama of 10.6 million parameters as a run does: 8 optimizer steps between versions, fp32 master weights, bf16
published, the paper's learning rate from the first step on. Bytes count as they travel: delta files against whole files. Each version
is made out of the one before it by the delta and compared byte for byte.

Speeds are of whole weights, per CPU second on one thread, with the BLAKE3 hashes of the result: encode reads two versions, apply reads
one and writes one. The peer is what anybody would do first: XOR of both versions under Zstandard, at the same level as ours.
Beside it stands Zstandard on the version alone, what a version costs without any base. `--lr` takes another rate.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow

from benches import Bench, Row
from protocol.model_files import WEIGHTS
from protocol.shardcast import delta
from protocol.shardcast.manifest import describe_files

_VERSIONS = 10
_LR = 3e-7
_ROUNDS = 3
_SECONDS_MAX = 3_600


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lr", type=float, default=_LR, help="learning rate of the training that is measured")


def run(lr: float = _LR) -> Bench:
    bench = Bench("delta")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        make_versions(root / "versions", _VERSIONS, lr)
        files = [root / "versions" / str(step) / WEIGHTS for step in range(_VERSIONS + 1)]
        bench.rows += measured(files, root)
    return bench


def make_versions(folder: Path, versions: int, lr: float) -> None:
    """In a process of its own: ours holds no torch."""
    command = [sys.executable, "-m", "benches.delta_work", str(folder), str(versions), str(lr)]
    subprocess.run(command, timeout=_SECONDS_MAX, check=True, stdout=subprocess.DEVNULL)


def measured(files: list[Path], scratch: Path) -> list[Row]:
    pairs = list(pairwise(files))
    whole = sum(after.stat().st_size for _, after in pairs)
    deltas = [scratch / f"delta-{number}" for number in range(len(pairs))]
    encoded = _rate(whole, lambda: [_encode(*pair, delta) for pair, delta in zip(pairs, deltas, strict=True)])
    ours = sum(delta.stat().st_size for delta in deltas)
    made = scratch / "made"
    applied = _rate(
        whole, lambda: [_apply(d, before, made, after) for (before, after), d in zip(pairs, deltas, strict=True)]
    )
    right = _chain(files, deltas, scratch)
    xored = 0
    plain = sum(len(_packed(after.read_bytes())) for _, after in pairs)

    def xor() -> None:
        nonlocal xored
        xored = sum(len(_packed(_words(before) ^ _words(after))) for before, after in pairs)
        for _, after in pairs:
            describe_files([after])

    theirs = _rate(whole, xor)
    return [
        Row("bytes: whole version / delta", "times fewer", whole / ours, whole / xored, xored / ours, None),
        Row("bytes: promised", "times fewer", whole / ours, None, whole / ours, 50),
        Row("bytes: goal", "times fewer", whole / ours, None, whole / ours, 130),
        Row("bytes: against Zstandard alone", "times fewer", whole / ours, whole / plain, plain / ours, None),
        Row("bytes of a delta", "bytes", ours / len(pairs), xored / len(pairs), xored / ours, None),
        Row("versions that came out bit for bit", "of 10", right, None, right / len(pairs), 1),
        Row("encode: against the peer's", "MB/CPU s", encoded, theirs, encoded / theirs, None),
        Row("encode", "MB/CPU s", encoded, None, encoded, 300),
        Row("apply", "MB/CPU s", applied, None, applied, 300),
    ]


def _rate(size: int, work: Callable[[], object]) -> float:
    """Megabytes per CPU second, in the best of some rounds."""
    best = 0.0
    for _ in range(_ROUNDS):
        started = time.process_time()
        work()
        best = max(best, size / (time.process_time() - started) / 1e6)
    return best


def _encode(before: Path, after: Path, into: Path) -> None:
    assert delta.encode(before, after, into, most=after.stat().st_size, threads=1)
    describe_files([after])


def _apply(written: Path, before: Path, made: Path, after: Path) -> None:
    """Into a file that is there, as a store's disk has room that was used before."""
    fd = os.open(made, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        delta.apply(written, before, fd, after.stat().st_size, threads=1)
    finally:
        os.close(fd)
    describe_files([made])


def _chain(files: list[Path], deltas: list[Path], scratch: Path) -> int:
    """How many versions come out right, each out of the one made before it."""
    right, before = 0, files[0]
    for number, (written, after) in enumerate(zip(deltas, files[1:], strict=True)):
        made = scratch / f"chain-{number % 2}"
        _apply(written, before, made, after)
        right += made.read_bytes() == after.read_bytes()
        before = made
    return right


def _words(file: Path) -> np.ndarray:
    return np.fromfile(file, "<u2")


def _packed(content: bytes | np.ndarray) -> bytes:
    return bytes(pyarrow.Codec("zstd", compression_level=delta._LEVEL).compress(content, asbytes=True))
