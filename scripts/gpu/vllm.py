"""The engine on vLLM, with proofs and seeded draw, against bare vLLM on the same work: the same prompts, lengths, rows and memory.

In turns, the best round of each; bare vLLM draws with its own sampler and proves nothing (scripts/benches/engine_vllm.py, a process of
its own). Then against the engine on torch.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

import benches
from benches import Cost, Row, peers

from gpu import NotRun, Place, Record, clock
from gpu.decoding import check, make, work
from node.engine import EngineSettings
from node.engine.torch_engine import TorchEngine
from node.engine.vllm_engine import VllmEngine
from protocol.errors import MurmurationError

_WITHIN = 0.98
"""An overhead of at most 2 %, as a ratio of speeds."""
_SHARE = 40  # per cent of the device's memory, for each of the two


def run(at: Place, report: Record) -> None:
    if importlib.util.find_spec("vllm") is None:
        raise NotRun(
            "vllm is not installed: .venv/bin/pip install -e '.[vllm]', or MURMUR_VLLM=ENVIRONMENT scripts/gpu-report vllm"
        )
    try:
        engine = VllmEngine("bfloat16", EngineSettings(name="vllm", device=at.device, memory=f"{_SHARE}%", threads=1))
    except MurmurationError as error:
        raise NotRun(str(error)) from error
    engine.load(at.model)
    width, new = (8, 6) if at.dry else (64, 128)
    began = time.perf_counter()
    first = work(4, engine.vocabulary, width)
    report.fact(honest=check(engine, first, make(engine, first, new)))
    report.fact(seconds_to_start=round(time.perf_counter() - began, 1))
    sizes = (4,) if at.dry else (1, 32, 256)
    try:
        with peers.Conversation(
            Path(sys.executable), Path(benches.__file__).with_name("engine_vllm.py"), at.model
        ) as bare:
            for rows in sizes:
                _against_bare(report, engine, bare, rows, width, new, rounds=1 if at.dry else 3)
        _against_torch(report, at, engine, max(sizes), width, new)
    finally:
        engine.close()


def _against_bare(
    report: Record, engine: VllmEngine, bare: peers.Conversation, rows: int, width: int, new: int, rounds: int
) -> None:
    asked = work(rows, engine.vocabulary, width)
    samples = len(asked[0].keys)
    best = [float("inf")] * 3
    for turn in range(rounds + 1):
        told = bare.ask(
            prompts=[prompt.tokens for prompt in asked], samples=samples, lengths=[new] * rows, rows=256, dtype="bfloat16", share=_SHARE / 100
        )  # fmt: skip
        ours = [_seconds(engine, asked, new, prove=prove) for prove in (True, False)]
        if turn:  # the first one warms up
            best = [min(*of) for of in zip(best, [*ours, told["elapsed"]], strict=True)]
    whole, drawn, none = (rows * new / took for took in best)
    name = f"vLLM engine, {rows} rows"
    report.row(
        Row(f"{name}: proofs and seeded draw, against bare vLLM", "tokens/s", whole, none, whole / none, _WITHIN)
    )
    report.row(Row(f"{name}: seeded draw alone, against bare vLLM", "tokens/s", drawn, none, drawn / none, None))
    report.row(Cost(f"{name}: a step", "ms", 1e3 * best[0] / new, 1e3 * best[2] / new, best[2] / best[0], None))


def _seconds(engine: VllmEngine, asked: list, new: int, *, prove: bool) -> float:
    began = time.perf_counter()
    make(engine, asked, new, prove=prove)
    return time.perf_counter() - began


def _against_torch(report: Record, at: Place, engine: VllmEngine, rows: int, width: int, new: int) -> None:
    torch_engine = TorchEngine("bfloat16", EngineSettings(device=at.device))
    torch_engine.load(at.model)
    asked = work(rows, engine.vocabulary, width)
    best = clock.in_turns(
        [lambda: make(engine, asked, new), lambda: make(torch_engine, asked, new)], at.device, rounds=1
    )
    speeds = [rows * new / took for took in best]
    report.row(
        Row(f"vLLM engine, {rows} rows: against the torch engine", "tokens/s", *speeds, speeds[0] / speeds[1], None)
    )
