"""Who works and who checks give one reward to one answer, in all environments at once: under other hash seeds, locales, time zones,
orders, and on a machine that is busy."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from protocol.environments import reasoning, taskfile
from protocol.environments.code import JudgedCode
from protocol.environments.registry import version_of
from protocol.folders import TASKS_VARIABLE
from protocol.reward import STEP
from protocol.runspec import EnvironmentSpec, FromFiles, Generated, starts
from protocol.sandbox import EnvironmentSandbox
from protocol.sandbox.inspection import hostile_answers
from tests.corpora import programs
from tests.corpora.programs import answer_of
from tests.protocol.test_math_answers import corpus

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")

_SIZE = 50  # problems of each data set
_SHORT = 4096  # characters: longer answers are looked at one by one elsewhere
_CODE, _MATHS = 0.02, 0.3  # shares of the answers; a program costs what a thousand others do
_WORKER = {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "UTC"}
_VALIDATOR = {"PYTHONHASHSEED": "2", "LC_ALL": "C.UTF-8", "TZ": "Asia/Kathmandu"}

T = TypeVar("T")
Answer = tuple[int, str]


class Party(EnvironmentSandbox):
    """One side's sandbox, on a machine of its own kind."""

    def __init__(self, specs: list[EnvironmentSpec], variables: dict[str, str]) -> None:
        super().__init__(specs, deadline=300)
        self._own = variables

    def _variables(self) -> dict[str, str]:
        return {**super()._variables(), **self._own}


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[EnvironmentSpec]:
    """Mathematics, code, and every data set of reasoning-gym that may be used, in this order."""
    monkeypatch.setenv(TASKS_VARIABLE, str(tmp_path / "tasks"))
    maths = [(f"Question {number}?", pair["reference"]) for number, pair in enumerate(corpus())]
    code = [(problem["prompt"], tests) for problem, tests in _programs()]
    found: list[EnvironmentSpec] = []
    for package, version, rows in (("math", version_of("math"), maths), ("code", JudgedCode.version, code)):
        taskfile.write(iter(rows), tmp_path / f"{package}.parquet")
        file = taskfile.add(tmp_path / f"{package}.parquet").model_dump()
        table = {
            "package": package, "version": version, "dataset": package, "files": [file], "size": len(rows), "held_out_size": 0,
            "head": "0" * 64, "exact": False,
        }  # fmt: skip
        found.append(FromFiles.model_validate(table))
    sets = (name for name, one in sorted(reasoning.SETS.items()) if not one.refused)
    return found + [
        Generated(
            package="reasoning-gym", version=reasoning.EXAMINED_VERSION, dataset=name, seed=3, size=_SIZE, head="0" * 64,
            exact=True, held_out_seed=1 << 30, held_out_size=0,
        )
        for name in sets
    ]  # fmt: skip


def _programs() -> list[tuple[dict[str, Any], str]]:
    """Problems of code, and their tests, where those are no megabytes."""
    found = [(problem, answer_of(problem)) for problem in programs.problems()]
    return [(problem, tests) for problem, tests in found if len(tests) < 1 << 16]


def _answers(specs: list[EnvironmentSpec], worker: Party, count: int) -> list[Answer]:
    """So many, to problems that the worker draws: right ones, those of other problems, tampered and hostile ones; programs that are right, wrong and crash."""
    chance = random.Random(11)
    first = starts(specs)
    generated = range(first[2], first[-1])
    chosen = chance.sample(generated, min(len(generated), count // 4))
    known = [(problem.index, problem.answer) for problem in worker.problems(chosen) if problem.answer]
    pairs, tests = corpus(), list(enumerate(_programs()))
    hostile = [text for _, text in hostile_answers.of_nobody() if len(text) <= _SHORT and text.isprintable()]

    def maths() -> Answer:
        number = chance.randrange(len(pairs))
        own, other = pairs[number]["completion"], chance.choice(pairs)["completion"]
        return number, own if chance.random() < 0.5 else other

    def code() -> Answer:
        number, (problem, _) = chance.choice(tests)
        tried = [one["completion"] for one in problem["solutions"] if one["kind"] != "slow"]
        return first[1] + number, chance.choice(tried)

    def other() -> Iterator[Answer]:
        index, answer = chance.choice(known)
        yield index, answer
        yield index, chance.choice(known)[1]
        yield index, chance.choice(hostile)
        yield index, chance.choice([text for _, text in hostile_answers.of_right(answer) if len(text) <= _SHORT])

    found: list[Answer] = [code() for _ in range(int(count * _CODE))]
    found += [maths() for _ in range(int(count * _MATHS))]
    found += itertools.islice(itertools.chain.from_iterable(other() for _ in itertools.count()), count - len(found))
    chance.shuffle(found)
    return found


@pytest.mark.parametrize(
    "count", [1_000, pytest.param(20_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])], ids=["1,000", "20,000"]
)
def test_worker_and_validator_agree(specs: list[EnvironmentSpec], count: int) -> None:
    with Party(specs, _WORKER) as worker:
        answers = _answers(specs, worker, count)
        claims = [reward for part in _parts(answers) for reward in worker.score(part)]
        assert worker.restarts == 0
    with Party(specs, _VALIDATOR) as validator:
        ranges = []
        for number, part in enumerate(_parts(list(zip(answers, claims, strict=True))[::-1])):
            with _busy(2 if count > 1000 and number % 4 == 0 else 0):  # not all the time: other tests run beside it
                ranges += validator.bounds([answer for answer, _ in part], [claim for _, claim in part])
        assert validator.restarts == 0
    disputed = [
        (index, text[:200], claim, found)
        for (index, text), claim, found in zip(answers, claims, ranges[::-1], strict=True)
        if not found[0] - STEP <= claim <= found[1] + STEP
    ]
    assert not disputed
    assert min(claims) == 0 and max(claims) == 1
    assert 0.1 < sum(claim == 1 for claim in claims) / count < 0.8, "an answer that nobody can get wrong shows nothing"


def _parts(of: list[T]) -> Iterator[list[T]]:
    return (of[start : start + 500] for start in range(0, len(of), 500))


def _busy(processes: int) -> ExitStack:
    """So many that take whatever this machine has left."""
    stack = ExitStack()
    for _ in range(processes):
        process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        stack.callback(process.wait)
        stack.callback(process.kill)
    return stack
