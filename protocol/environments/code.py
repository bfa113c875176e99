"""Programs, judged by tests: the environment `code`. They are in Python, unless `config` declares an interpreter of another language.

A task file's `question` is the problem, its `answer` JSON with the tests, in one of two forms:

    SYNTHETIC-1      {"language", "test_cases": [{"type": "stdin_stdout" | "function_call", "input", "output", "fn_name"}]}
    LiveCodeBench    {"public_test_cases", "private_test_cases": texts of JSON lists; "metadata": text of JSON with "func_name"}

Either may have a "solution", a right program: tiny policies are warmed up on it (trainer/models/tiny.py), and `murmur env check` runs it.

The program (blocks.py) runs elsewhere (programs.py); what it said is compared here: lines without the white space at their ends, values of
functions as JSON, numbers exactly unless the test has a `tolerance`. Only programs in Python can be functions.

Wrong output decides. CPU time differs between machines: a test that took between a quarter and four times its limit may honestly
have passed or been too slow.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from protocol.canonical import shallow
from protocol.environments.blocks import PYTHON, Blocks
from protocol.environments.environment import Config
from protocol.environments.programs import (
    IDLE_SECONDS,
    WALL,
    Claim,
    Interpreter,
    ProgramEnvironment,
    Range,
    Trial,
    TrialCase,
    TrialRun,
    command_line,
)
from protocol.environments.taskfile import TaskFiles
from protocol.errors import Malformed
from protocol.reward import canonical

DOUBT = 4
"""How many times slower than another an honest machine may be."""
_OUTPUT_SLACK = 1 << 12
_DEPTH_MAX = 400  # of a test's values, which problems about nested lists make use of
_PYTHON = "python"
_FENCE_NAME = re.compile(r"[a-z0-9][a-z0-9+#._-]{0,31}")


class CodeConfig(Config):
    reward: Literal["all", "share"] = "all"
    """1 where all tests pass, or the share of those that do."""
    cpu_seconds: int = Field(default=6, ge=1, le=60)
    """For one test."""
    total_seconds: int = Field(default=30, ge=1, le=300)
    """For all tests of a program, in CPU time; what it sleeps counts as well."""
    memory_mib: int = Field(default=1024, ge=64, le=8192)
    tests: int = Field(default=32, ge=1, le=256)
    """The first so many are run."""
    language: str = Field(default=_PYTHON, pattern=r"^[a-z0-9][a-z0-9+#._-]{0,31}$")
    """What tasks and blocks of code call it."""
    fences: list[str] = Field(default=[], max_length=8)
    """Other names for it in blocks of code."""
    interpreter: list[str] = Field(default=[])
    """Of another language than Python, what runs a program: ["node", "{file}.js"], of the system's programs."""

    @field_validator("fences")
    @classmethod
    def _names(cls, fences: list[str]) -> list[str]:
        for name in fences:
            if not _FENCE_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a language in lower case")
        return fences

    @field_validator("interpreter")
    @classmethod
    def _command(cls, words: list[str]) -> list[str]:
        return words and list(command_line(words))

    @model_validator(mode="after")
    def _declared(self) -> Self:
        if (self.language == _PYTHON) != (not self.interpreter):
            raise ValueError("another language than python needs an interpreter, and only that")
        return self

    @property
    def blocks(self) -> Blocks:
        names = PYTHON.names if self.language == _PYTHON else (self.language,)
        return _blocks(*names, *self.fences)


@dataclass(frozen=True)
class ExpectedOutput:
    """One test, and what is expected of it: text, or a value."""

    data: str
    function: str
    output: Any
    tolerance: float = 0.0
    has_imports: bool = False
    may_be_wrapped: bool = False
    """Whether the value may be the only item of `output` as well: SYNTHETIC-1 writes either."""


class JudgedCode(TaskFiles, ProgramEnvironment):
    """Rows of task files whose answers are tests."""

    name = "code"
    version = f"3 on Python {sys.version_info[0]}.{sys.version_info[1]}"
    exact = False
    Config = CodeConfig

    def answer(self, entry: dict[str, Any]) -> str | None:  # type: ignore[override]
        """The `solution` that stands beside the tests, if any, as a completion says it."""
        return solution_of(entry["answer"], self.config.blocks)

    def as_answer(self, program: str) -> str | None:
        return super().as_answer(program) if self.config.language == _PYTHON else None

    def fingerprint(self, entry: dict[str, Any]) -> list[str]:
        self._tests(entry)  # of the first problems a run's creator hears what cannot be used
        return [entry["question"], entry["answer"]]

    @property
    def interpreter(self) -> Interpreter | None:
        words = tuple(self.config.interpreter)
        return Interpreter(words, self._memory) if words else None

    score = ProgramEnvironment.score

    def trial(self, entry: dict[str, Any], completion: str, claimed: Claim | None) -> Trial | None:
        program = self.config.blocks.program_of(completion)
        tests = self._tests(entry)
        if program is None or not tests:
            return None
        # Who claims no more than what passes in a quarter of the limits is right, however long the rest would run; and a claim of
        # what no answer can earn is false.
        factor = 1.0
        if claimed is not None:
            is_all = self.config.reward == "all" and claimed.is_met(1.0) and not claimed.is_met(0.0)
            factor = float(DOUBT) if is_all else 1 / DOUBT
        return Trial(
            program,
            tuple(
                TrialCase(one.data, _OUTPUT_SLACK + 4 * len(_text(one.output)), one.function, one.has_imports)
                for one in tests
            ),
            cpu=factor * self.config.cpu_seconds,
            total=factor * self.config.total_seconds,
            wall=factor * self._wall,
            idle=factor * IDLE_SECONDS,
            memory=self._memory,
            stop=self.config.reward == "all",
            interpreter=tuple(self.config.interpreter),
        )

    def wider(self, trial: Trial, claimed: Claim, found: Range) -> Trial | None:
        high = canonical(found.high)
        if trial.cpu >= self.config.cpu_seconds or claimed.reward <= high or claimed.is_met(high):
            return None
        if not claimed.is_met(self._earned(claimed.reward, len(trial.cases))):
            return None
        more = DOUBT * DOUBT
        return replace(
            trial, cpu=more * trial.cpu, total=more * trial.total, wall=more * trial.wall, idle=more * trial.idle
        )

    def judge(self, entry: dict[str, Any], trial: Trial, runs: Sequence[TrialRun], claimed: Claim | None) -> Range:
        tests = self._tests(entry)
        doubt = 1 if claimed is None else DOUBT
        low = high = 0
        total = self.config.total_seconds
        spent = accumulate(run.cpu + run.idle for run in runs)
        idle = accumulate(run.idle for run in runs)
        walls = accumulate(run.wall for run in runs)
        for test, run, *so_far in zip(tests, runs, spent, idle, walls, strict=False):
            used = max(
                run.cpu / self.config.cpu_seconds, run.wall / self._wall,
                so_far[0] / total, so_far[1] / IDLE_SECONDS, so_far[2] / (WALL * total + self._wall),
            )  # fmt: skip
            passed = run.status == 0 and not run.is_cut and agrees(test, run.output)
            low += passed and used <= 1 / doubt
            high += passed and used <= doubt
        if self.config.reward == "all":
            return Range(float(low == len(tests)), float(high == len(tests)))
        return Range(low / len(tests), high / len(tests))

    def _earned(self, reward: float, tests: int) -> float:
        """What an answer can earn that is nearest to this."""
        parts = 1 if self.config.reward == "all" else tests
        return canonical(round(min(max(reward, 0.0), 1.0) * parts) / parts)

    @property
    def _wall(self) -> float:
        return float(WALL * self.config.cpu_seconds + 1)

    @property
    def _memory(self) -> int:
        return self.config.memory_mib << 20

    def _tests(self, entry: dict[str, Any]) -> list[ExpectedOutput]:
        return cases_of(entry["answer"], self.config.language)[: self.config.tests]


def _parsed(text: str) -> Any:
    """Raises Malformed for deep nesting, of which Python's own parser may end the process (canonical.shallow), ValueError for what is no JSON."""
    return json.loads(shallow(text.encode(), "JSON", most=_DEPTH_MAX))


@cache
def _blocks(*names: str) -> Blocks:
    return Blocks(names)


def solution_of(answer: str, blocks: Blocks) -> str | None:
    """A completion that is right, where the task's author wrote down a program that one can say; never shown to a model that is trained."""
    if '"solution"' not in answer:  # tests may be a megabyte
        return None
    try:
        found = _parsed(answer)["solution"]
    except (ValueError, KeyError, TypeError, Malformed):
        return None
    said = isinstance(found, str) and blocks.program_of(blocks.written(found)) == f"{found}\n"
    return blocks.written(found) if said else None


def cases_of(answer: str, language: str = _PYTHON) -> list[ExpectedOutput]:
    """Raises Malformed for what is no list of tests of programs in that language. Whatever a program prints, `agrees` can compare the ones it returns."""
    try:
        table = _parsed(answer)
        if table.get("language", language) != language:
            raise ValueError(f"the language {table['language']!r}, and not {language!r}")
        found = _synthetic(table) if "test_cases" in table else _livecodebench(table)
        if language != _PYTHON and any(test.function for test in found):
            raise ValueError("a function is called, and only programs in Python can be functions")
        return found
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, Malformed) as error:
        raise Malformed(f"a task of code has no tests that can be read: {str(error)[:200]}") from error


def _synthetic(table: dict[str, Any]) -> list[ExpectedOutput]:
    cases = table["test_cases"]
    found = []
    for case in cases:
        tolerance = float(case.get("tolerance", 0))
        if case["type"] == "stdin_stdout":
            found.append(ExpectedOutput(str(case["input"]), "", str(case["output"]), tolerance))
        elif case["type"] == "function_call":
            wrapped = isinstance(case["output"], list) and len(case["output"]) == 1
            found.append(
                ExpectedOutput(
                    json.dumps(case["input"]), _named(case["fn_name"]), case["output"], tolerance, True, wrapped
                )
            )
        else:
            raise ValueError(f"a test of type {case['type']!r}")
    return found


def _livecodebench(table: dict[str, Any]) -> list[ExpectedOutput]:
    metadata = _parsed(table["metadata"] or "{}")
    found = []
    for case in _parsed(table["public_test_cases"]) + _parsed(table["private_test_cases"]):
        if case["testtype"] == "stdin":
            if not isinstance(case["input"], str) or not isinstance(case["output"], str):
                raise ValueError("input or output of a program that is no text")
            found.append(ExpectedOutput(case["input"], "", case["output"], has_imports=True))
        elif case["testtype"] == "functional":
            name = _named(metadata.get("func_name") if isinstance(metadata, dict) else None)
            arguments = [_parsed(line) for line in case["input"].split("\n")]
            found.append(ExpectedOutput(json.dumps(arguments), name, _parsed(case["output"]), has_imports=True))
        else:
            raise ValueError(f"a test of type {case['testtype']!r}")
    return found


def _named(function: Any) -> str:
    """A test without a name of what is called would be taken for one of standard output, which a value is no text of."""
    if not isinstance(function, str) or not function:
        raise ValueError(f"a call of a function that has no name: {function!r}")
    return function


def agrees(test: ExpectedOutput, output: bytes) -> bool:
    """Whether a program's bytes say what is expected. They are a stranger's."""
    try:
        text = output.decode()
        if test.function:
            value = _parsed(text)
            outputs = [test.output, *(test.output if test.may_be_wrapped else [])]
            return any(same(value, one, test.tolerance) for one in outputs)
    except (ValueError, RecursionError, Malformed):
        return False
    given, wanted = _lines(text), _lines(test.output)
    if given == wanted or not test.tolerance or len(given) != len(wanted):
        return given == wanted
    return all(
        len(a.split()) == len(b.split()) and all(_close(x, y, test.tolerance) for x, y in zip(a.split(), b.split(), strict=True))
        for a, b in zip(given, wanted, strict=True)
    )  # fmt: skip


def same(given: Any, wanted: Any, tolerance: float = 0.0) -> bool:
    """Whether two values are one in JSON: true is not 1, and 5 is 5.0."""
    if isinstance(given, bool) or isinstance(wanted, bool) or given is None or wanted is None:
        return given is wanted
    if isinstance(given, int | float) and isinstance(wanted, int | float):
        return given == wanted or (tolerance > 0 and _near(given, wanted, tolerance))
    if isinstance(given, list) and isinstance(wanted, list):
        return len(given) == len(wanted) and all(same(a, b, tolerance) for a, b in zip(given, wanted, strict=True))
    if isinstance(given, dict) and isinstance(wanted, dict):
        return given.keys() == wanted.keys() and all(same(given[key], wanted[key], tolerance) for key in wanted)
    return type(given) is type(wanted) and given == wanted


def _close(given: str, wanted: str, tolerance: float) -> bool:
    if given == wanted:
        return True
    try:
        return _near(float(given), float(wanted), tolerance)
    except ValueError:
        return False


def _near(given: float, wanted: float, tolerance: float) -> bool:
    try:
        return abs(given - wanted) <= tolerance * max(1.0, abs(wanted))
    except OverflowError:  # a whole number of hundreds of digits
        return False


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    first = next((at for at, line in enumerate(lines) if line), 0)
    return lines[first:]


def _text(output: Any) -> str:
    return output if isinstance(output, str) else json.dumps(output)
