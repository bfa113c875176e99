"""Programs in Python, judged by tests: the environment `code`.

A task file's `question` is the problem, its `answer` JSON with the tests, in one of two forms:

    SYNTHETIC-1      {"language": "python", "test_cases": [{"type": "stdin_stdout" | "function_call", "input", "output", "fn_name"}]}
    LiveCodeBench    {"public_test_cases", "private_test_cases": texts of JSON lists; "metadata": text of JSON with "func_name"}

Either may have a "solution", a right program: tiny policies are warmed up on it (trainer/models/tiny.py), and `murmur env check` runs it.

The program is the last closed block of ```python, ```python3 or ```py after the last </think>, in any case and at any indent; where there is none, the last
that names no language. It runs elsewhere (programs.py); what it said is compared
here: lines without the white space at their ends, values of functions as JSON, numbers exactly unless the test has a `tolerance`.

Wrong output decides. CPU time differs between machines: a test that took between a quarter and four times its limit may honestly
have passed or been too slow.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

from pydantic import Field

from protocol.environments.environment import Config
from protocol.environments.programs import (
    IDLE_SECONDS,
    WALL,
    Claim,
    ProgramEnvironment,
    Range,
    Trial,
    TrialCase,
    TrialRun,
)
from protocol.environments.taskfile import TaskFiles
from protocol.errors import Malformed
from protocol.reward import canonical

DOUBT = 4
"""How many times slower than another an honest machine may be."""
_FENCE = re.compile(r"^([ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)*+)```([^\n`]*+)\n", re.MULTILINE)
_PROGRAM = re.compile(
    _FENCE.pattern.replace(r"([^\n`]*+)", r"[ \t]*+(?:python|python3|py)[ \t]*+"), re.MULTILINE | re.IGNORECASE
)
_CLOSED = re.compile(r"^[ \t]*+```[ \t]*+$", re.MULTILINE)
_INDENT_MAX = 64
_PYTHON = ("python", "python3", "py")
_HALF = re.compile("[\ud800-\udfff]")
"""Half of a pair, which no file of source text can hold."""
_OUTPUT_SLACK = 1 << 12


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


class PythonCode(TaskFiles, ProgramEnvironment):
    """Rows of task files whose answers are tests."""

    name = "code"
    version = f"2 on Python {sys.version_info[0]}.{sys.version_info[1]}"
    exact = False
    Config = CodeConfig

    def answer(self, entry: dict[str, Any]) -> str | None:  # type: ignore[override]
        """The `solution` that stands beside the tests, if any, as a completion says it."""
        solution = solution_of(entry["answer"])
        return None if solution is None else f"```python\n{solution}\n```"

    def fingerprint(self, entry: dict[str, Any]) -> list[str]:
        return [entry["question"], entry["answer"]]

    score = ProgramEnvironment.score

    def trial(self, entry: dict[str, Any], completion: str, claimed: Claim | None) -> Trial | None:
        program = program_of(completion)
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
            memory=self.config.memory_mib << 20,
            stop=self.config.reward == "all",
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

    def _tests(self, entry: dict[str, Any]) -> list[ExpectedOutput]:
        return cases_of(entry["answer"])[: self.config.tests]


def program_of(completion: str, *, named: bool = False) -> str | None:
    """The last closed block of Python after the thoughts; None where there is none.

    A block that names no language counts where none names Python, for it may as well be an example's output; with `named` it never does.
    """
    text = completion.rpartition("</think>")[2]
    if "<think>" in text:
        return None
    text = text.replace("\r\n", "\n")
    found = plain = None
    position = 0
    while opening := _FENCE.search(text, position):
        language, indent = opening[2].strip().lower(), re.sub(r"\S", " ", opening[1])
        closing = _end(text, opening.end(), language, min(len(indent), _INDENT_MAX))
        if closing is None:
            break
        block = text[opening.end() : closing.start()]
        position = closing.end()
        if closing.re is _PROGRAM:  # it was never closed
            position = closing.start()
        elif language in _PYTHON:
            found = _outdented(block, indent)
        elif not language and not named:
            plain = _outdented(block, indent)
    found = plain if found is None else found
    return None if found is None or _HALF.search(found) else found


def _end(text: str, begin: int, language: str, deepest: int) -> re.Match[str] | None:
    """What ends a block. One of Python, or of no language, may hold fences that stand deeper than its own; one that is none of Python
    ends where one of Python begins."""
    closing = (
        _CLOSED
        if language and language not in _PYTHON
        else re.compile(rf"^[ \t]{{0,{deepest}}}+```[ \t]*+$", re.MULTILINE)
    )
    closed = closing.search(text, begin)
    begins = None if language in _PYTHON else _PROGRAM.search(text, begin, closed.start() if closed else len(text))
    return begins or closed


def _outdented(block: str, indent: str) -> str:
    """A block of a list's item, without the white space that its fence stands behind."""
    return "".join(line.removeprefix(indent) for line in block.splitlines(keepends=True)) if indent else block


def solution_of(answer: str) -> str | None:
    """A right program, where the task's author wrote one down that a completion can say; never shown to a model that is trained."""
    if '"solution"' not in answer:  # tests may be a megabyte
        return None
    try:
        found = json.loads(answer)["solution"]
    except (ValueError, KeyError, TypeError):
        return None
    said = isinstance(found, str) and program_of(f"```python\n{found}\n```") == f"{found}\n"
    return found if said else None


def cases_of(answer: str) -> list[ExpectedOutput]:
    """Raises Malformed for what is no list of tests."""
    try:
        table = json.loads(answer)
        return _synthetic(table) if "test_cases" in table else _livecodebench(table)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Malformed(f"a task of code has no tests that can be read: {str(error)[:200]}") from error


def _synthetic(table: dict[str, Any]) -> list[ExpectedOutput]:
    if table.get("language", "python") != "python":
        raise ValueError(f"the language {table['language']!r}")
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
                    json.dumps(case["input"]), str(case["fn_name"]), case["output"], tolerance, True, wrapped
                )
            )
        else:
            raise ValueError(f"a test of type {case['type']!r}")
    return found


def _livecodebench(table: dict[str, Any]) -> list[ExpectedOutput]:
    name = json.loads(table["metadata"] or "{}").get("func_name", "")
    found = []
    for case in json.loads(table["public_test_cases"]) + json.loads(table["private_test_cases"]):
        if case["testtype"] == "stdin":
            found.append(ExpectedOutput(case["input"], "", case["output"], has_imports=True))
        else:
            arguments = [json.loads(line) for line in case["input"].split("\n")]
            found.append(ExpectedOutput(json.dumps(arguments), name, json.loads(case["output"]), has_imports=True))
    return found


def agrees(test: ExpectedOutput, output: bytes) -> bool:
    """Whether a program's bytes say what is expected. They are a stranger's."""
    try:
        text = output.decode()
        if test.function:
            value = json.loads(text)
            outputs = [test.output, *(test.output if test.may_be_wrapped else [])]
            return any(same(value, one, test.tolerance) for one in outputs)
    except (ValueError, RecursionError):
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
        return given == wanted or (tolerance > 0 and abs(given - wanted) <= tolerance * max(1.0, abs(wanted)))
    if isinstance(given, list) and isinstance(wanted, list):
        return len(given) == len(wanted) and all(same(a, b, tolerance) for a, b in zip(given, wanted, strict=True))
    if isinstance(given, dict) and isinstance(wanted, dict):
        return given.keys() == wanted.keys() and all(same(given[key], wanted[key], tolerance) for key in wanted)
    return type(given) is type(wanted) and given == wanted


def _close(given: str, wanted: str, tolerance: float) -> bool:
    if given == wanted:
        return True
    try:
        return abs(float(given) - float(wanted)) <= tolerance * max(1.0, abs(float(wanted)))
    except (ValueError, OverflowError):
        return False


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    first = next((at for at, line in enumerate(lines) if line), 0)
    return lines[first:]


def _text(output: Any) -> str:
    return output if isinstance(output, str) else json.dumps(output)
