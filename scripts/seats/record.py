"""Makes a recording (recorded.py): tiny policies, completions of each backend that decodes, and what each backend that checks finds of them.

Completions of the shortest length end as the policy likes; longer ones go on after its end token, for these policies answer briefly. Nobody
attests to this work and no proofs are made: sums are about tokens alone.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from node.engine import Engine, Prompt
from node.engine.vllm_engine import VllmEngine
from node.judging import sums
from node.judging.calibration import noise
from node.judging.calibration.noise import NoiseMeasurements
from protocol import calibration, logit_noise
from protocol.runspec import Limit
from protocol.sampling import TokenScores
from seats import backends, policies
from seats.backends import Backend
from seats.policies import Policy
from seats.recorded import TIGHT, TIGHTER, Recording, row_of

CALIBRATION = "tiny-qwen3-bfloat16-cpu"
SHORT = 8
WORK: Mapping[int, tuple[int, ...]] = {
    SHORT: (1_580, 1_580, 1_580, 240),
    100: (140, 140, 140, 60),
    1_000: (0, 24, 0, 0),
}
"""Completions of each backend that decodes, by the most tokens that each has, of each policy."""
NOISY_WORK: Mapping[int, tuple[int, ...]] = {SHORT: (128, 128, 128, 0), 100: (64, 64, 64, 0)}
TEMPERATURE = 1.0
TIMES = 3
"""The noisy backend's noise, in that of the worst pair of the calibration."""
_AT_ONCE = 32_768  # tokens of completions that are in memory at a time

Says = Callable[[str], None]


@dataclass(frozen=True)
class Unit:
    """A completion and what it was asked of."""

    prompt: Prompt
    tokens: list[int]
    logprobs: list[float]
    """Of the drawn tokens."""

    @property
    def nats(self) -> float:
        """Of entropy a token, as these tell it."""
        return -float(np.mean(self.logprobs))

    def digest(self, made_by: int, policy: int) -> bytes:
        """Of what makes it distinct in all pairs of one maker: two completions that say the same of one prompt have one."""
        said = repr((made_by, policy, self.prompt.tokens, self.tokens))
        return hashlib.sha256(said.encode()).digest()[:8]


@dataclass
class _Columns:
    """As they grow: of units, and of checks."""

    units: dict[str, list[Any]] = field(default_factory=lambda: {n: [] for n in ("made_by", "policies", "lengths", "tokens", "nats")})  # fmt: skip
    checks: dict[str, list[Any]] = field(default_factory=lambda: {n: [] for n in ("unit", "checked_by", "sums")})
    seen: set[bytes] = field(default_factory=set)

    def arrays(self) -> dict[str, np.ndarray]:
        kinds = {"made_by": np.uint8, "policies": np.uint8, "lengths": np.uint16, "tokens": np.uint16, "nats": np.float16, "unit": np.uint32, "checked_by": np.uint8, "sums": np.int64}  # fmt: skip
        found = {name: np.array(of, kinds[name]) for name, of in (self.units | self.checks).items()}
        return found | {"sums": np.ascontiguousarray(found["sums"].transpose(1, 2, 0))}


def limits() -> Limit:
    """What the sums are compared with: the shipped calibration's noise."""
    shipped = calibration.load(CALIBRATION, Path()).noise
    assert shipped is not None
    return Limit.model_validate(shipped)


def sums_row(scores: TokenScores, limit: Limit) -> list[list[int]]:
    """[STATISTICS, 3] of one completion."""
    tight = logit_noise.excess_margins(scores, float(limit.soft) / TIGHTER)
    return row_of(sums.of_completion(scores, limit, TEMPERATURE) | {TIGHT: tight})


def record(
    folder: Path,
    seed: int,
    share: float,
    minutes: float,
    numbers: Sequence[int],
    says: Says = print,
    *,
    vllm: bool = False,
) -> Recording:
    """Of the policies of these numbers, with everything drawn from `seed`, and this share of the completions; what is not begun after so many
    minutes is left out."""
    began, limit, draws = time.monotonic(), limits(), Random(seed)
    noisy = backends.noisy(TIMES * float(limit.soft) / noise.SOFT)
    pairs = (backends.WITH_VLLM if vllm else backends.PAIRS) | {noisy: (backends.EAGER,)}
    used = list(dict.fromkeys(backend for made_by, by in pairs.items() for backend in (made_by, *by)))
    names = [backend.name for backend in used]
    columns, measured = _Columns(), NoiseMeasurements()
    for number in numbers:
        with policies.made(folder / str(number), number) as policy, _loaded(used, policy.folder) as engines:
            says(f"{time.monotonic() - began:.0f} s: policy {number}")
            for maker, checkers in pairs.items():
                for length, counts in (NOISY_WORK if maker is noisy else WORK).items():
                    count = round(share * counts[number])
                    for units in made(engines[maker], policy, length, count, draws):
                        if time.monotonic() - began > 60 * minutes:
                            break
                        first = _keep(columns, used.index(maker), number, length, units)
                        for checker in checkers:
                            found = checked(checker, engines[checker], list(first.values()))
                            for at, scores in zip(first, found, strict=True):
                                columns.checks["unit"].append(at)
                                columns.checks["checked_by"].append(used.index(checker))
                                columns.checks["sums"].append(sums_row(scores, limit))
                                measured.add((maker.name, checker.name), at, scores, np.array(first[at].logprobs))
                    says(f"{time.monotonic() - began:.0f} s: {count} of at most {length} tokens by {maker.name}")
    said = f"--seed {seed} --policies {' '.join(map(str, numbers))}" + f" --share {share:g}" * (share != 1)
    said += " --also vllm" * vllm
    about = _about(columns, names, limit, measured, said, time.monotonic() - began)
    return Recording(about, columns.arrays())


@contextmanager
def _loaded(used: Sequence[Backend], model: Path) -> Iterator[dict[Backend, Engine]]:
    with ExitStack() as ends:
        engines = {backend: backend.engine(model) for backend in used}
        for engine in engines.values():
            if isinstance(engine, VllmEngine):
                ends.callback(engine.close)
        yield engines


def made(engine: Engine, policy: Policy, length: int, count: int, draws: Random) -> Iterator[list[Unit]]:
    """So many units, as many at a time as memory is good for."""
    ends = policy.tokenizer.end_tokens if length == SHORT else frozenset[int]()
    at_once = max(1, _AT_ONCE // length)
    for start in range(0, count, at_once):
        prompts = policy.prompts(min(at_once, count - start), draws)
        groups = engine.generate(prompts, temperature=TEMPERATURE, max_new_tokens=length, end_tokens=ends, prove=False)
        yield [Unit(prompt, of.tokens, of.logprobs) for prompt, (of,) in zip(prompts, groups, strict=True)]


def _keep(columns: _Columns, made_by: int, policy: int, length: int, units: Sequence[Unit]) -> dict[int, Unit]:
    """Notes those that nobody has made before; by their numbers."""
    found = {}
    for unit in units:
        digest = unit.digest(made_by, policy)
        if digest in columns.seen:
            continue
        columns.seen.add(digest)
        found[len(columns.units["tokens"])] = unit
        for name, value in (
            ("made_by", made_by), ("policies", policy), ("lengths", length), ("tokens", len(unit.tokens)), ("nats", unit.nats),
        ):  # fmt: skip
            columns.units[name].append(value)
    return found


def checked(backend: Backend, engine: Engine, units: Sequence[Unit]) -> list[TokenScores]:
    """What this backend makes of completions: their tokens' scores."""
    hidden = backend.prefill(engine, [(unit.prompt.tokens, unit.tokens) for unit in units])
    return [
        engine.score(of, unit.tokens, key=unit.prompt.keys[0], temperature=TEMPERATURE)
        for unit, of in zip(units, hidden, strict=True)
    ]


def _about(
    columns: _Columns, names: list[str], limit: Limit, measured: NoiseMeasurements, said: str, seconds: float
) -> dict[str, Any]:  # fmt: skip
    units = {name: np.array(of) for name, of in columns.units.items()}
    return {
        "command": f"scripts/record-sums OUT {said}",
        "machine": f"{platform.machine()} {platform.system()}, {_processor()}",
        "software": {"python": platform.python_version()} | {n: version(n) for n in ("numpy", "torch", "transformers")},
        "seconds": round(seconds),
        "calibration": CALIBRATION,
        "noise": {"soft": limit.soft, "hard": limit.hard, "tight": f"soft / {TIGHTER}"},
        "backends": names,
        "units": len(units["tokens"]),
        "tokens": int(units["tokens"].sum()),
        "nats": [
            {"policy": policy, "length": length, "units": int(of.sum()), "nats": round(float(np.average(units["nats"][of], weights=units["tokens"][of])), 3)}
            for policy in range(len(policies.NATS))
            for length in WORK
            if (of := (units["policies"] == policy) & (units["lengths"] == length)).any()
        ],
        "pairs": [
            {
                "made_by": maker, "checked_by": checker, "units": of.units, "tokens": of.tokens, "mismatches": int(of.mismatches),
                "noise": round(of.estimate, 6), "noise_at_most": round(of.upper, 6),
                "by_length": {length: int(((units["made_by"] == names.index(maker)) & (units["lengths"] == length)).sum()) for length in WORK},
            }
            for (maker, checker), of in measured.bounds().items()
        ],
    }  # fmt: skip


def _processor() -> str:
    return f"torch's kernels for {torch.backends.cpu.get_cpu_capability()}"
