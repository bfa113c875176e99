"""Honest work between devices: made by one, checked by another, in bfloat16 and in float32. How far is it from a limit?

The GPU and this machine's CPU with the engine on torch, and vLLM on the GPU where it is installed. Each makes completions of the same prompts
and keys; each checks what every one has made, by the rules' own quantities (node/judging/calibration/measure.py). Beside them the soft
floors, below which no calibration puts a limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from benches import Row

from gpu import Place, Record
from gpu.model import prompts
from node.engine import Engine, EngineSettings, Prompt, make_engine
from node.judging.calibration.fit import FLOORS
from node.judging.calibration.measure import PER_CHUNK, PER_SEQUENCE, KeyedCompletion, check
from protocol.errors import MurmurationError
from protocol.runspec import SamplingSpec

_PROMPTS, _SAMPLES, _WIDTH = 4, 4, 48


def run(at: Place, report: Record) -> None:
    report.fact(floors=FLOORS)
    new = 8 if at.dry else 96
    spec = SamplingSpec(group_size=_SAMPLES, groups_per_submission=_PROMPTS, temperature="1", max_new_tokens=new)
    asked = [
        Prompt(ids, tuple(1000 * i + k for k in range(_SAMPLES)))
        for i, ids in enumerate(prompts(_PROMPTS, 500, _WIDTH))
    ]
    pairs: list[dict[str, Any]] = []
    for dtype in ("bfloat16", "float32"):
        engines = dict(_engines(at, report, dtype))
        made = {name: _make(engine, asked, new, report, f"{name} in {dtype}") for name, engine in engines.items()}
        for maker, work in made.items():
            for checker, engine in engines.items():
                pairs.append({"made_by": maker, "checked_by": checker, "dtype": dtype, **_stray(engine, spec, work)})
                report.fact(pairs=pairs)
        first, *others = made
        for other in others:
            differ = _differing(made[first], made[other])
            report.row(
                Row(
                    f"{dtype}: tokens until {other} parts from {first}, mean of {new}",
                    "tokens",
                    differ,
                    None,
                    None,
                    None,
                )
            )
        for engine in engines.values():
            getattr(engine, "close", lambda: None)()


def _engines(at: Place, report: Record, dtype: str) -> Iterator[tuple[str, Engine]]:
    """Each with the model loaded; the first is the device's."""
    asked = {"cpu": EngineSettings(device="cpu")} if at.dry else {
        "cuda": EngineSettings(device="cuda"), "cpu": EngineSettings(device="cpu"),
        "vllm": EngineSettings(name="vllm", device="cuda", memory="40%"),
    }  # fmt: skip
    if at.dry:  # a second one, that there are pairs
        asked["cpu again"] = EngineSettings(device="cpu")
    for name, settings in asked.items():
        try:
            engine = make_engine(settings, dtype)
        except MurmurationError as error:
            report.fact(**{f"without_{name}": str(error)})
            continue
        engine.load(at.model)
        yield name, engine


def _make(engine: Engine, asked: list[Prompt], new: int, report: Record, name: str) -> list[KeyedCompletion]:
    began = time.perf_counter()
    made = engine.generate(asked, temperature=1.0, max_new_tokens=new, end_tokens=frozenset())
    report.fact(**{f"seconds_to_make_by_{name.replace(' ', '_')}": round(time.perf_counter() - began, 2)})
    return [
        KeyedCompletion(prompt.tokens, key, completion)
        for prompt, group in zip(asked, made, strict=True)
        for key, completion in zip(prompt.keys, group, strict=True)
    ]


def _stray(engine: Engine, spec: SamplingSpec, work: list[KeyedCompletion]) -> dict[str, Any]:
    """Mean and largest value of each quantity."""
    checked = check(engine, spec, work)
    values = {name: [v for one in checked for v in one.values[name]] for name in (*PER_CHUNK, *PER_SEQUENCE)}
    return {name: {"mean": float(np.mean(of)), "max": float(np.max(of))} for name, of in values.items()}


def _differing(one: list[KeyedCompletion], other: list[KeyedCompletion]) -> float:
    """Tokens that both have alike from the first on, mean over completions."""
    alike = []
    for a, b in zip(one, other, strict=True):
        same = [x == y for x, y in zip(a.completion.tokens, b.completion.tokens, strict=True)]
        alike.append(same.index(False) if False in same else len(same))
    return float(np.mean(alike))
