"""Benchmarks: a model's answers to all problems of imported files (`murmur env import`), as pass@1 and pass@k beside the base model's.

A suite is the folder that an import left, under its name: `suites/aime/import.json` beside the run's file. It is asked through the engine that
the run's evaluation has, with the run's template around each question, and scored by the environment that the import named, in the sandbox.

pass@k is that of passes.py. Intervals are those of comparison.py, over problems: Wilson's where each problem's
estimate is 0 or 1, else a bootstrap; the difference is a bootstrap over the problems' own differences. Samples of one problem are not
independent, and a suite's few problems are what makes a score uncertain. Both models get the same sampling keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from node.engine import EngineSettings
from node.engine.checked_engine import CheckedEngine
from protocol.environments import Problem, TaskSet, taskfile
from protocol.environments.importing.importer import REPORT
from protocol.errors import ConfigError, HashMismatch, UsageError
from protocol.runspec import AnswerSpec, FromFiles, RewardSpec, SamplingSpec
from protocol.sandbox import EnvironmentSandbox
from protocol.tokenizer import Tokenizer
from trainer.evaluation.comparison import Row, compare
from trainer.evaluation.evaluate import Sampler
from trainer.evaluation.passes import ks, pass_at
from trainer.models.export import as_model

_SEED = hashlib.sha256(b"murmuration/suites/1").digest()
_BATCH = 256
_ALL_TESTS = {"tests": 256, "total_seconds": 300}
"""Of `code`: a benchmark's program must pass all its tests, in a time that holds for each of them alone."""


@dataclass(frozen=True)
class Asking:
    """How a suite is asked."""

    samples: int
    """Answers to each problem."""
    temperature: str = "0.6"
    top_p: str = "0.95"
    tokens: int | None = None
    """Most of an answer; None: the run's max_new_tokens."""
    budget: int = 0
    """Length in tokens that each prompt announces; 0: none."""


DEFAULTS = {"aime": Asking(32), "math500": Asking(4), "gpqa": Asking(8), "livecodebench": Asking(8)}
"""By the beginning of a suite's name. Temperature and top-p are DeepSeek-R1's (arXiv 2501.12948, section 3), which takes 4 to 64 samples by
the size of a benchmark. The fewer problems, the more samples."""
_OTHERS = Asking(4)


def asking(name: str, **changes: Any) -> Asking:
    """A suite's own settings, but for those changes that are not None."""
    plain = name.lower().replace("-", "").replace("_", "")
    own = next((found for begins, found in DEFAULTS.items() if plain.startswith(begins)), _OTHERS)
    return replace(own, **{key: value for key, value in changes.items() if value is not None})


@dataclass(frozen=True)
class Suite:
    name: str
    environments: list[FromFiles]
    asking: Asking


@dataclass(frozen=True)
class SuiteAnswers:
    """What one model did on a suite."""

    right: list[int]
    """Answers that were right, of each problem."""
    tokens: float
    """Mean length of an answer."""
    unended: float
    """Share of answers that were cut off at the most tokens."""


@dataclass(frozen=True)
class PassRow:
    """pass@k of a suite; `row` names the suite."""

    k: int
    row: Row


@dataclass(frozen=True)
class SuiteResult:
    name: str
    problems: int
    asking: Asking
    files: list[str]
    """SHA-256 of the task files."""
    passes: list[PassRow]
    tokens: float
    base_tokens: float
    unended: float
    base_unended: float


def load(names: Sequence[str], folder: Path, **changes: Any) -> list[Suite]:
    """The suites of these names in `folder`; takes their files into the machine's task folder. Raises UsageError, ConfigError, HashMismatch."""
    with EnvironmentSandbox() as sandbox:
        return [_suite(name, folder / name, sandbox, asking(name, **changes)) for name in dict.fromkeys(names)]


def _suite(name: str, folder: Path, sandbox: EnvironmentSandbox, how: Asking) -> Suite:
    try:
        report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        listed = [(package, made["files"]) for package, made in report["environments"].items()]
        environments = [_environment(name, package, files, folder, sandbox) for package, files in listed]
    except FileNotFoundError:
        there = sorted(path.parent.name for path in folder.parent.glob(f"*/{REPORT}"))
        raise UsageError(
            f"there is no suite {name!r} in {folder.parent}" + (f", but {', '.join(there)}" if there else ""),
            hint=f"murmur env import {folder} FILE makes one of the benchmark's file",
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{folder / REPORT} is no import's report: {error}", hint="import the suite anew") from error
    return Suite(name, environments, how)


def _environment(name: str, package: str, files: Any, folder: Path, sandbox: EnvironmentSandbox) -> FromFiles:
    taken = [taskfile.add(folder / str(file["file"])) for file in files]
    if [file.sha256 for file in taken] != [file["sha256"] for file in files]:
        raise HashMismatch(f"a task file in {folder} was changed since it was imported", hint="import the suite anew")
    return FromFiles(
        package=package, version=sandbox.describe(package).version, dataset=name, files=taken, head="0" * 64, exact=False,
        size=sum(file.rows for file in taken), held_out_size=0, config=dict(_ALL_TESTS) if package == "code" else {},
    )  # fmt: skip


def run(
    spec: AnswerSpec, suites: Sequence[Suite], candidate: Path, base: Path, model: Path, *,
    engine: EngineSettings | None = None, progress: Callable[[int], object] = lambda _: None,
) -> list[SuiteResult]:  # fmt: skip
    """Asks both models, checkpoints or folders, every suite; `model` is the policy before training, whose tokenizer all share.

    `progress` is told how many problems of both models are done. Raises ConfigError where a prompt and its answer are longer than the model
    can be, before anything is generated; UsageError, IntegrityError, Unavailable.
    """
    for folder in (candidate, base):
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder", hint="name a checkpoint or a model's folder")
    with ExitStack() as stack:
        asked = [_Asked(suite, spec, stack.enter_context(EnvironmentSandbox(suite.environments))) for suite in suites]
        for one in asked:
            one.require_room(model)
        made = CheckedEngine.of_run(engine or EngineSettings(), spec.model)
        done = 0
        found: list[list[SuiteAnswers]] = []
        for folder in (candidate, base):
            with as_model(folder, model) as plain:
                made.load(plain)
                answered = []
                for one in asked:
                    answered.append(one.ask(made, plain, lambda count, done=done: progress(done + count)))  # type: ignore[misc]
                    done += len(one.problems)
                found.append(answered)
    return [one.result(own, other) for one, own, other in zip(asked, *found, strict=True)]


class _Asked:
    """One suite and its problems."""

    def __init__(self, suite: Suite, spec: AnswerSpec, sandbox: EnvironmentSandbox) -> None:
        how = suite.asking
        sampling = SamplingSpec.model_validate(
            spec.sampling.model_dump()
            | {
                "temperature": how.temperature,
                "top_k": 0,
                "top_p": "1" if float(how.temperature) == 0 else how.top_p,
                "max_new_tokens": how.tokens or spec.sampling.max_new_tokens,
            }
        )
        if how.budget > sampling.max_new_tokens:
            raise UsageError(
                f"a budget of {how.budget} tokens, and an answer has at most {sampling.max_new_tokens}",
                hint="--tokens N",
            )
        budgets = RewardSpec(length=spec.reward.length, budgets={"0": [how.budget]}) if how.budget else RewardSpec()
        self.suite = suite
        self._spec = AnswerSpec(model=spec.model, sampling=sampling, reward=budgets)
        self._sandbox = sandbox
        tasks = TaskSet(suite.environments, sandbox)
        self.problems: list[Problem] = tasks.problems(range(tasks.size))

    def require_room(self, model: Path) -> None:
        tokenizer = Tokenizer(model)
        longest = tokenizer.longest(self._spec, [problem.prompt for problem in self.problems])
        if tokenizer.positions is not None and longest > tokenizer.positions:
            raise ConfigError(
                f"a prompt of {self.suite.name} and an answer of {self._spec.sampling.max_new_tokens} tokens are {longest}, and the model has"
                f" {tokenizer.positions} positions",
                hint=f"--tokens {max(1, self._spec.sampling.max_new_tokens - longest + tokenizer.positions)}",
            )

    def ask(self, engine: CheckedEngine, folder: Path, progress: Callable[[int], object]) -> SuiteAnswers:
        samples = self.suite.asking.samples
        sampler = Sampler(self._spec, engine.engine, Tokenizer(folder), self._sandbox)
        size = max(1, _BATCH // samples)
        scored = []
        for start in range(0, len(self.problems), size):
            scored += sampler.try_problems(self.problems[start : start + size], samples, _SEED)
            progress(len(scored))
        every = [one for of in scored for one in of]
        cut = sum(one.tokens >= self._spec.sampling.max_new_tokens for one in every)
        return SuiteAnswers(
            [sum(one.score >= 1 for one in of) for of in scored],
            sum(one.tokens for one in every) / len(every),
            cut / len(every),
        )

    def result(self, own: SuiteAnswers, base: SuiteAnswers) -> SuiteResult:
        samples, name = self.suite.asking.samples, self.suite.name
        passes = []
        for k in ks(samples):
            estimates = [[[pass_at(k, samples, right)] for right in of.right] for of in (own, base)]
            passes.append(PassRow(k, compare([name] * len(self.problems), *estimates)[0]))
        how = replace(self.suite.asking, tokens=self._spec.sampling.max_new_tokens)
        files = [file.sha256 for environment in self.suite.environments for file in environment.files]
        return SuiteResult(
            name, len(self.problems), how, files, passes, own.tokens, base.tokens, own.unended, base.unended
        )  # fmt: skip
