"""What is measured: honest work in every variant this machine offers, and cheats beside it.

Honest: completions decoded with a cache, by several engines, batch sizes, numbers of threads and attention implementations, against
prefills by several others. Cheats: what a worker may save or gain by computing something else than the run's model, seed and
temperature; they show what the limits find and enter no limit. Covers the engines and devices of this machine, nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Protocol, cast

import numpy as np
import torch

from node.engine import Adjustable, Completion, Engine, EngineSettings, Prompt, device, make_engine
from node.engine.degrade import DEGRADATIONS
from node.engine.proofs import bits
from node.judging.alternatives import sides
from node.judging.calibration.noise import NoiseMeasurements
from protocol import sampling, toploc
from protocol.environments import TaskSet
from protocol.eprocess import Sums
from protocol.errors import ConfigError
from protocol.runspec import SamplingSpec
from protocol.sampling import Floats, TokenScores
from protocol.tokenizer import Tokenizer

MISMATCH_ABOVE, MARGIN_CLIP = 0.01, 0.5

PER_CHUNK = ("exponents", "signs", "mantissa_mean", "mantissa_median")
"""Quantities of the rule `computation`, one value for each proof."""
PER_SEQUENCE = (
    "token_margin", "chunk_mismatches", "sequence_mismatches", "chunk_mean_margin", "mean_margin", "logprob_error", "mean_logprob_error",
)  # fmt: skip
"""Quantities of the rule `sampling`, one value for each completion."""

_CHEAT_BATCH = 4


@dataclass(frozen=True)
class Variant:
    """One honest way to compute the same."""

    attention: str
    """Empty where the engine has its own."""
    threads: int
    batch: int
    engine: str = "torch"

    @property
    def kind(self) -> str:
        """The engine and its attention: what decides how far it strays, as threads and batches hardly do."""
        return f"{self.engine} {self.attention}".strip()

    def __str__(self) -> str:
        attention = f" {self.attention}" * bool(self.attention)
        return f"{self.engine}{attention}, {self.threads} thread{'s' * (self.threads > 1)}, batch {self.batch}"


_BATCHES = (1, 4, 16)


def every_variant(engines: Sequence[EngineSettings]) -> tuple[Variant, ...]:
    """Each of them generates, and each of them checks what every one has generated. Of engines but "torch", those that differ in the
    batch alone: they have their own attention, and another number of threads is another process. Threads are a CPU's. Raises
    PreflightError where a device is not there."""
    found: list[Variant] = []
    for of in engines:
        threads = (1, 2) if device.named(of.device).type == "cpu" else (1,)
        ways = itertools.product(("sdpa", "eager"), threads) if of.name == "torch" else [("", of.thread_count)]
        found += [Variant(*way, batch, of.name) for way, batch in itertools.product(ways, _BATCHES)]
    return tuple(found)


@dataclass(frozen=True)
class Matrix:
    """What to measure. `problems` per generating variant and per cheat, `samples` of each; `others`: models that are not the
    run's, to be found out."""

    models: Sequence[Path]
    dtype: str
    sampling: SamplingSpec
    problems: int
    samples: int
    others: Sequence[Path] = ()
    engines: Sequence[EngineSettings] = (EngineSettings(),)
    """What computes, and where: limits hold between any two of them on this device. The first one makes the cheats' work."""
    variants: Sequence[Variant] = every_variant((EngineSettings(device="cpu"),))
    """Of these engines; by default those of torch on a CPU."""
    draws: Random = field(default_factory=SystemRandom)
    """What draws problems and sampling keys: a seeded one makes the same work again."""

    @property
    def plain(self) -> Variant:
        """What cheats compute with, and what finds them."""
        return next(variant for variant in every_variant(self.engines[:1]) if variant.batch == _CHEAT_BATCH)

    def load_all(self, model: Path) -> dict[str, _Measured]:
        """The engines by name. Raises as `load`."""
        used = {variant.engine for variant in self.variants} | {self.engines[0].name}
        return {settings.name: self.load(model, settings) for settings in self.engines if settings.name in used}

    def load(self, model: Path, settings: EngineSettings, dtype: str | None = None) -> _Measured:
        """The engine with a model loaded, in the run's type or another. Raises ConfigError for settings that mean another type than
        the run's, and for an engine that computes in one way only."""
        if dtype is not None:
            settings = settings.model_copy(update={"dtype": "auto"})
        engine = make_engine(settings, dtype or self.dtype)
        if not isinstance(engine, Adjustable):
            raise ConfigError(f"the engine {settings.name!r} computes in one way only, and cannot be calibrated")
        engine.load(model)
        return cast(_Measured, engine)


@dataclass(frozen=True)
class CheckedCompletion:
    """One completion as the checker saw it: all values of each quantity, and its length in tokens."""

    values: dict[str, list[float]]
    tokens: int
    engines: tuple[str, str] = ("", "")
    """That made it, and that checked it, of honest work."""
    number: int | None = None
    """Of the completion among the distinct ones, of honest work."""
    scores: TokenScores | None = field(default=None, repr=False)
    """Of its tokens, by the checker; of honest work they are taken into `Measurements.noise` and not kept."""
    claimed: Floats | None = field(default=None, repr=False)
    """Logprobs of its tokens by what made it, likewise."""


@dataclass(frozen=True)
class Sides:
    """Where an alternative draws another token than the run's model: how often work has the alternative's (protocol/statistics.py)."""

    honest: Sums = field(default_factory=Sums)
    honest_tokens: int = 0
    cheated: Sums = field(default_factory=Sums)
    cheated_tokens: int = 0


@dataclass
class Measurements:
    """Honest work pooled over all pairs of variants; each cheat apart."""

    honest: list[CheckedCompletion] = field(default_factory=list)
    cheats: dict[str, list[CheckedCompletion]] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)
    noise: NoiseMeasurements = field(default_factory=NoiseMeasurements)
    """Of honest work, by pairs of kinds of variants."""
    sides: dict[str, Sides] = field(default_factory=dict)
    """By the cheats that are named alternatives: other weights that a validator can compute with as well."""

    def take(
        self, checked: CheckedCompletion, made_by: Variant, checked_by: Variant, number: int, model: str = ""
    ) -> None:
        """One check of an honest completion of this model, which has this number among the distinct ones."""
        if checked.scores is not None and checked.claimed is not None:
            self.noise.add((made_by.kind, checked_by.kind, model), number, checked.scores, checked.claimed)
        engines = made_by.engine, checked_by.engine
        self.honest.append(replace(checked, engines=engines, number=number, scores=None, claimed=None))

    @property
    def distinct(self) -> int:
        """Honest completions: the independent units, however often each was checked."""
        return len({self._number(i) for i in range(len(self.honest))})

    def worst(self, name: str) -> list[float]:
        """The largest value of each distinct honest completion, over its chunks and all who checked it."""
        found: dict[int, float] = {}
        for i, checked in enumerate(self.honest):
            number = self._number(i)
            found[number] = max(found.get(number, 0.0), *checked.values[name])
        return list(found.values())

    def _number(self, check: int) -> int:
        """Of the completion that the check is about; a check that has none is of one of its own."""
        number = self.honest[check].number
        return check if number is None else number

    def values(self, name: str) -> list[float]:
        """Of every check."""
        return [value for checked in self.honest for value in checked.values[name]]


@dataclass(frozen=True)
class KeyedCompletion:
    """A completion, and what it was asked of: the prompt's token ids and the sampling key that was assigned."""

    prompt: list[int]
    key: int
    completion: Completion


def measure(matrix: Matrix, tasks: TaskSet, progress: Callable[[str], None] = lambda _: None) -> Measurements:
    """Generates and checks the whole matrix; `progress` is told what comes next."""
    found, done = Measurements(), 0
    for model in matrix.models:
        tokenizer = Tokenizer(model)
        engines = matrix.load_all(model)
        found.devices |= {engine.device for engine in engines.values()}
        honest: list[tuple[KeyedCompletion, CheckedCompletion]] = []  # of the variant that is least like the plain one
        for variant in matrix.variants:
            progress(f"honest work of {model.name}: {variant}")
            completions = list(_generate(_as(variant, engines), matrix, tasks, tokenizer, variant.batch))
            for checker in matrix.variants:
                checks = _checked(matrix, engines, checker, completions)
                for number, checked in enumerate(checks, done):
                    found.take(checked, variant, checker, number, model.resolve().name)
                if variant == matrix.variants[-1] and checker.kind == matrix.plain.kind:
                    honest = list(zip(completions, checks, strict=True))
            done += len(completions)
        for name, completions, alternative in _cheats(matrix, model, tasks, tokenizer):
            progress(f"cheat on {model.name}: {name}")
            checks = _checked(matrix, engines, matrix.plain, completions)
            found.cheats.setdefault(name, []).extend(checks)
            if alternative is not None:
                cheated = list(zip(completions, checks, strict=True))
                before = found.sides.get(name, Sides())
                found.sides[name] = Sides(
                    before.honest + _sides(matrix, alternative, honest), before.honest_tokens + _tokens(honest),
                    before.cheated + _sides(matrix, alternative, cheated), before.cheated_tokens + _tokens(cheated),
                )  # fmt: skip
    torch.set_num_threads(matrix.engines[0].thread_count)
    return found


def _as(variant: Variant, engines: dict[str, _Measured]) -> _Measured:
    """The engine of a variant, set up as it says."""
    engine = engines[variant.engine]
    engine.adjust(attention=variant.attention, threads=variant.threads)
    return engine


def _checked(
    matrix: Matrix, engines: dict[str, _Measured], checker: Variant, completions: Sequence[KeyedCompletion]
) -> list[CheckedCompletion]:
    engine = _as(checker, engines)
    return [c for part in _parts(completions, checker.batch) for c in check(engine, matrix.sampling, part)]


def check(engine: Engine, spec: SamplingSpec, completions: Sequence[KeyedCompletion]) -> list[CheckedCompletion]:
    """Prefills completions together and measures each."""
    found_at = {}
    for batch in engine.prefill_in_batches([(one.prompt, one.completion.tokens) for one in completions]):
        found_at.update(batch)
    hidden = [found_at[i] for i in range(len(completions))]
    scores = toploc.score([bits(h) for h in hidden], [one.completion.proofs for one in completions])
    found = []
    for one, states, of_row in zip(completions, hidden, scores, strict=True):
        completion = one.completion
        scores_T = engine.score(states, completion.tokens, key=one.key, **spec.distribution)
        claimed = np.array(completion.logprobs, np.float64)
        drawn = sampling.measure(scores_T, claimed, mismatch_above=MISMATCH_ABOVE, margin_clip=MARGIN_CLIP)
        values = {
            **{name: [score.measured[name] for score in of_row] for name in PER_CHUNK},
            **{name: [drawn[name].value] for name in PER_SEQUENCE},
        }
        found.append(CheckedCompletion(values, len(completion.tokens), scores=scores_T, claimed=claimed))
    return found


def _sides(matrix: Matrix, alternative: Engine, work: Sequence[tuple[KeyedCompletion, CheckedCompletion]]) -> Sums:
    """How often work has the alternative's token, by its checks and the alternative's own prefill."""
    total = Sums()
    for part in (work[start : start + _CHEAT_BATCH] for start in range(0, len(work), _CHEAT_BATCH)):
        for batch in alternative.prefill_in_batches([(one.prompt, one.completion.tokens) for one, _ in part]):
            for i, hidden in batch.items():
                one, checked = part[i]
                tokens = np.array(one.completion.tokens)
                drawn = alternative.score(hidden, tokens, key=one.key, **matrix.sampling.distribution).drawn
                if checked.scores is not None:
                    total += sides(checked.scores, tokens, drawn)
    return total


def _tokens(work: Sequence[tuple[KeyedCompletion, CheckedCompletion]]) -> int:
    return sum(checked.tokens for _, checked in work)


def _cheats(
    matrix: Matrix, model: Path, tasks: TaskSet, tokenizer: Tokenizer
) -> Iterator[tuple[str, list[KeyedCompletion], Engine | None]]:
    """Each cheat's name and work, made by an engine of its own; and that engine, where it is an alternative that a validator can name."""

    def cheated(engine: _Measured, **options: Any) -> list[KeyedCompletion]:
        engine.adjust(attention=matrix.plain.attention, threads=matrix.plain.threads)
        return list(_generate(engine, matrix, tasks, tokenizer, _CHEAT_BATCH, **options))

    settings = matrix.engines[0]
    engine = matrix.load(model, settings)
    yield "another seed", cheated(engine, key_offset=1), None
    for factor in (0.9, 1.1):
        yield f"temperature × {factor:g}", cheated(engine, temperature_factor=factor), None
    for name, degrade in DEGRADATIONS.items():
        engine.load(model)
        engine.degrade(degrade)
        yield name, cheated(engine), engine
    dtype = "bfloat16" if matrix.dtype == "float32" else "float32"
    engine = matrix.load(model, settings, dtype)
    yield f"computed in {dtype}", cheated(engine), engine
    for other in matrix.others:
        engine = matrix.load(other, settings)
        yield f"model {other.name}", cheated(engine), None


def _generate(
    engine: Engine, matrix: Matrix, tasks: TaskSet, tokenizer: Tokenizer, batch: int, *,
    temperature_factor: float = 1.0, key_offset: int = 0,
) -> Iterator[KeyedCompletion]:  # fmt: skip
    """Completions of random problems; their keys are those that were assigned, whatever was used."""
    spec, drawn = matrix.sampling, matrix.sampling.distribution
    for start in range(0, matrix.problems, batch):
        picks = tasks.problems([matrix.draws.randrange(tasks.size) for _ in range(min(batch, matrix.problems - start))])
        prompts = [tokenizer.encode(problem.prompt) for problem in picks]
        keys = [[matrix.draws.getrandbits(63) for _ in range(matrix.samples)] for _ in picks]
        made = engine.generate(
            [Prompt(p, tuple(key + key_offset for key in of)) for p, of in zip(prompts, keys, strict=True)],
            temperature=drawn["temperature"] * temperature_factor,
            top_k=drawn["top_k"],
            top_p=drawn["top_p"],
            max_new_tokens=spec.max_new_tokens,
            end_tokens=tokenizer.end_tokens,
        )
        for prompt, of, group in zip(prompts, keys, made, strict=True):
            yield from (KeyedCompletion(prompt, key, completion) for key, completion in zip(of, group, strict=True))


class _Measured(Engine, Adjustable, Protocol):
    """An engine of which all of this can be measured."""


def _parts(completions: Sequence[KeyedCompletion], size: int) -> Iterator[Sequence[KeyedCompletion]]:
    return (completions[start : start + size] for start in range(0, len(completions), size))
