"""The calibration of this device: `murmur validator calibrate` on the report's model, over the engines that are here.

Its limits are for that random model: they say how this device strays, and a run calibrates its own model. The file lies beside the report.
"""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import numpy as np
from benches import Row

from gpu import Place, Record
from gpu.model import prompts
from node.engine import EngineSettings
from node.engine.vllm_build import require
from node.judging.calibration import Matrix, calibration, every_variant, measure
from node.judging.calibration.fit import limits
from node.judging.calibration.measure import Measurements, Variant
from protocol.calibration import Calibration
from protocol.errors import MurmurationError
from protocol.runspec import SamplingSpec

_DTYPE = "bfloat16"


class _Problem:
    def __init__(self, ids: list[int]) -> None:
        self.prompt = " ".join(map(str, ids))


class _Prompts:
    """Problems of random tokens, for the tokenizer that the section `model` writes."""

    def __init__(self, width: int) -> None:
        self._problems = [_Problem(ids) for ids in prompts(64, 500, width)]
        self.size = len(self._problems)

    def problems(self, indices: list[int]) -> list[_Problem]:
        return [self._problems[i] for i in indices]


def run(at: Place, report: Record) -> None:
    engines = _engines(at, report)
    variants: tuple[Variant, ...] = every_variant(engines)
    if at.dry:
        variants = variants[:2]
    spec = SamplingSpec(group_size=4, groups_per_submission=16, temperature="1", max_new_tokens=6 if at.dry else 64)
    matrix = Matrix([at.model], _DTYPE, spec, 1 if at.dry else 8, 2 if at.dry else 4, [], engines, variants, Random(0))
    tasks: Any = _Prompts(8 if at.dry else 48)
    measured = measure(matrix, tasks, lambda text: print(text, flush=True))
    content = calibration(matrix, measured, [0])
    name = re.sub(r"[^a-z0-9]+", "-", f"qwen3-0.6b-random-{_DTYPE}-{content['devices'][0]}".lower()).strip("-")
    (at.out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    report.fact(
        file=f"{name}.json", digest=Calibration(content).digest, engines=content["engines"], work=content["work"]
    )
    report.fact(limits=content["limits"], largest={name: of.largest for name, of in limits(matrix, measured).items()})
    report.fact(found=_found(matrix, measured))
    report.row(Row("proofs checked", "proofs", content["work"]["proofs"], None, None, None))


def _engines(at: Place, report: Record) -> list[EngineSettings]:
    engines = [EngineSettings(device=at.device)]
    vllm = EngineSettings(name="vllm", device=at.device, memory="40%")
    try:
        require(vllm)
    except MurmurationError as error:
        report.fact(without_vllm=str(error))
        return engines
    return engines if at.dry else [*engines, vllm]


def _found(matrix: Matrix, measured: Measurements) -> dict[str, dict[str, float]]:
    """Share of each cheat's completions beyond a soft limit, and beyond a hard one."""
    of = limits(matrix, measured)

    def beyond(checked: Any, which: str) -> bool:
        return any(max(checked.values[name]) > getattr(limit, which) for name, limit in of.items())

    return {
        cheat: {which: float(np.mean([beyond(one, which) for one in work])) for which in ("soft", "hard")}
        for cheat, work in measured.cheats.items()
    }
