"""The offline filter: which training problems a model solves sometimes, but neither never nor always.

    murmur trainer filter @run.toml tasks.json --model small/ --samples 8 --low 0.125 --high 0.5

Problems that are always or never solved teach nothing. INTELLECT-2 kept those that a 7B model solved in 12.5 to 50 % of 8
tries, and without that reward hardly rose (arXiv 2505.07291, section 3.3). The result is two files. The selection pins what it was made
from: the environments, the model's digests, how was sampled, pass@k, and every kept problem with its rate; a run whose environments
name it as `kept` trains on nothing else (protocol/environments/selection.py). Beside it, FILE-tried.jsonl has every problem that was tried with
its question, reference and pass@k, in or out of the band: `murmur env import` makes task files of those.

It can be resumed at any point: what is done lies in FILE.partial (journal.py). What environments name as kept already is no matter here: all
their problems are tried.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.engine import EngineSettings
from node.engine.checked_engine import CheckedEngine
from protocol import length_rewards, model_files
from protocol.environments import TaskSet
from protocol.environments.selection import Kept, SelectionFile
from protocol.environments.taskfile import Rows
from protocol.errors import ConfigError, PreflightError, UsageError
from protocol.runspec import AnswerSpec, EnvironmentSpec, FromFiles, SamplingSpec, starts
from protocol.sandbox import EnvironmentSandbox
from protocol.tokenizer import Tokenizer
from trainer.evaluation import passes
from trainer.evaluation.evaluate import Sampler, Scored, length_error
from trainer.evaluation.journal import Journal, Tried
from trainer.evaluation.passes import decimal
from trainer.rollouts.counts import names_of

_BATCH = 256  # samples that are generated at once
_SEED = hashlib.sha256(b"murmuration/filter/1").digest()


@dataclass(frozen=True)
class Band:
    """Solve rates that are kept, ends included."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise UsageError(f"{self.low:g} to {self.high:g} is no band of solve rates", hint="0 <= low <= high <= 1")

    def holds(self, rate: float) -> bool:
        return self.low <= rate <= self.high


@dataclass(frozen=True)
class Filtered:
    file: str
    tried: int
    kept: dict[str, int]
    """Problems by environment."""
    pass_at: dict[str, dict[str, str]]
    """pass@k of all that were tried, by environment and k; decimals."""
    rows: str
    """The file with all problems that were tried."""
    digest: str
    """SHA-256 of the file."""
    length_error: float | None = None
    """Mean tokens off the budget, of all tries; None where no budget was announced."""


def require_place(file: Path) -> tuple[Path, Path]:
    """Where the problems that were tried and the journal stand, beside a selection. Raises UsageError where it cannot be written there."""
    rows, partial = file.with_name(f"{file.stem}-tried.jsonl"), file.with_name(file.name + ".partial")
    if not file.parent.is_dir():
        raise UsageError(f"{file.parent} is no folder", hint="make it, or name a file in one that is there")
    for there in (file, *([] if partial.exists() else [rows])):
        if there.exists():
            raise UsageError(f"{there} exists already", hint="name a file that does not, or remove it")
    return rows, partial


class OfflineFilter:
    def __init__(
        self, spec: AnswerSpec, model: Path, *, samples: int, problems: int, engine: EngineSettings | None = None
    ) -> None:
        """`problems`: how many of each environment are tried, from its first on; `spec` must be of `model`."""
        if samples < 1 or problems < 1:
            raise UsageError("samples and problems must be at least 1")
        self._environments = [_whole(environment) for environment in spec.environments]
        self._starts = starts(self._environments)
        self._spec = spec.model_copy(update={"environments": self._environments})
        self._model = model
        self._samples = samples
        self._settings = engine or EngineSettings()
        self._numbers = [
            start + i
            for start, environment in zip(self._starts, self._environments, strict=False)
            for i in range(min(problems, environment.size))
        ]

    @property
    def total(self) -> int:
        return len(self._numbers)

    def run(self, file: Path, band: Band, progress: Callable[[int], object]) -> Filtered:
        """Tries what has not been tried yet and writes `file`; `progress` is told how many problems are done.

        Raises UsageError where what is done was done otherwise, LockHeld, IntegrityError, PreflightError, Unavailable when verifiers fail.
        """
        rows, partial = require_place(file)
        with Journal(partial, self._header()) as journal, EnvironmentSandbox(self._environments) as sandbox:
            tried, tasks = journal.tried, TaskSet(self._environments, sandbox)
            progress(len(tried))
            for batch in self._try([number for number in self._numbers if number not in tried], tasks, sandbox):
                for one in batch:
                    journal.add(one)
                    progress(len(tried))
                journal.sync()
            _write(rows, self._rows(tried, tasks))
            made = self._write_selection(file, tried, band)
            journal.remove()
        names = names_of(environment.dataset for environment in self._environments)
        listed = dict(zip(names, made.environments, strict=True))
        errors = [one.off for one in tried.values() if one.off is not None]
        return Filtered(
            str(file), sum(one.tried for one in made.environments), {name: len(one.indices) for name, one in listed.items()},
            {name: one.pass_at for name, one in listed.items()}, str(rows), hashlib.sha256(made.encode()).hexdigest(),
            sum(errors) / len(errors) if errors else None,
        )  # fmt: skip

    def _write_selection(self, file: Path, tried: dict[int, Tried], band: Band) -> SelectionFile:
        header = self._header()
        made = SelectionFile(
            model=header["model"],
            sampling=header["sampling"],
            band={"low": decimal(band.low), "high": decimal(band.high)},
            environments=[self._kept(number, tried, band) for number in range(len(self._environments))],
        )
        _write(file, [made.encode()])
        return made

    def _of(self, environment: int, tried: dict[int, Tried]) -> dict[int, Tried]:
        """What was tried of an environment, by number within it; without what evaluation asks."""
        start, end = self._starts[environment : environment + 2]
        found = sorted((number, one) for number, one in tried.items() if start <= number < end)
        return {number - start: one for number, one in found if one.rate is not None}

    def _kept(self, environment: int, tried: dict[int, Tried], band: Band) -> Kept:
        found = self._of(environment, tried)
        kept = {number: one for number, one in found.items() if one.rate is not None and band.holds(one.rate)}
        return Kept(
            environment=self._environments[environment],  # type: ignore[arg-type]
            tried=len(found),
            pass_at=passes.table(self._samples, [one.solved for one in found.values()]),
            indices=list(kept),
            rates=[decimal(one.rate or 0.0) for one in kept.values()],
            solved=[one.solved for one in kept.values()],
        )

    def _rows(self, tried: dict[int, Tried], tasks: TaskSet) -> Iterator[bytes]:
        """A line for each problem that was tried."""
        for environment, spec in enumerate(self._environments):
            found = self._of(environment, tried)
            asked = _questions(spec, self._starts[environment], list(found), tasks)
            for (number, one), (question, answer) in zip(found.items(), asked, strict=True):
                said = {
                    "package": spec.package, "dataset": spec.dataset, "problem": number, "question": question, "answer": answer,
                    "samples": self._samples, "solved": one.solved, "solve_rate": decimal(one.rate or 0.0),
                    "pass_at": passes.table(self._samples, [one.solved]),
                }  # fmt: skip
                yield json.dumps(said, ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    def _header(self) -> dict[str, Any]:
        """What the rates depend on."""
        s, budgets = self._spec.sampling, length_rewards.budgets(self._spec.reward)
        announced = {"budgets": ",".join(map(str, budgets)), "length": self._spec.reward.length} if budgets else {}
        return {
            "environments": [environment.model_dump(mode="json") for environment in self._environments],
            "model": {name: _digest_of(self._model / name) for name in model_files.files(self._model)},
            "sampling": {
                "samples": self._samples, "temperature": s.temperature, "max_new_tokens": s.max_new_tokens,
                "top_k": s.top_k, "top_p": s.top_p, "prompt_template": s.prompt_template, **_of_turns(s), **announced,
            },
        }  # fmt: skip

    def _try(self, numbers: list[int], tasks: TaskSet, sandbox: EnvironmentSandbox) -> Iterator[list[Tried]]:
        """These problems, batch by batch."""
        if not numbers:
            return
        made = CheckedEngine.of_run(self._settings, self._spec.model)
        made.load(self._model)
        sampler = Sampler(self._spec, made.engine, Tokenizer(self._model), sandbox)
        size = max(1, _BATCH // self._samples)
        for start in range(0, len(numbers), size):
            problems = tasks.problems(numbers[start : start + size])
            asked = [problem for problem in problems if not problem.is_held_out]
            # A problem's samples depend on its own number only, not on what was tried before.
            scored = sampler.try_problems(asked, self._samples, _SEED)
            yield [
                *(Tried(problem.index, None) for problem in problems if problem.is_held_out),
                *(_tried(problem.index, own) for problem, own in zip(asked, scored, strict=True)),
            ]


def _tried(number: int, own: Sequence[Scored]) -> Tried:
    scores = [one.score for one in own]
    return Tried(number, sum(scores) / len(own), sum(score >= 1 for score in scores), length_error(own))


def _questions(
    spec: EnvironmentSpec, start: int, numbers: list[int], tasks: TaskSet
) -> Iterator[tuple[str, str | None]]:
    """Question and reference of an environment's problems: of task files as they stand there, else a right answer where one is known."""
    if isinstance(spec, FromFiles):
        rows = Rows(spec.files)
        for number in numbers:
            entry = rows[number]
            yield entry["question"], entry["answer"]
        return
    for first in range(0, len(numbers), _BATCH):
        for problem in tasks.problems([start + number for number in numbers[first : first + _BATCH]]):
            yield problem.prompt, problem.answer


def _write(path: Path, lines: Iterable[bytes]) -> None:
    """The file appears whole, or what was there stays."""
    making = path.with_name(f".writing-{path.name}")
    try:
        with making.open("wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(making, path)
    except OSError as error:
        raise PreflightError(f"cannot write {path}: {error.strerror}") from error
    finally:
        making.unlink(missing_ok=True)


def _of_turns(sampling: SamplingSpec) -> dict[str, Any]:
    if sampling.turns == 1:
        return {}
    return {"turns": sampling.turns, "reply_tokens": sampling.reply_tokens, "reply_template": sampling.reply_template}


def _whole(environment: EnvironmentSpec) -> EnvironmentSpec:
    """The environment without what another filter kept of it."""
    if environment.kept is None:
        return environment
    every = environment.model_copy(update={"kept": None})
    with EnvironmentSandbox() as sandbox:
        return every.model_copy(update={"head": sandbox.head(every)})


def _digest_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", hint="--model names a folder as `murmur trainer import` makes it"
        ) from error
