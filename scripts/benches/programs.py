"""Programs of strangers, run a CPU second: each in a sandbox of its own, with all that it takes to make and end one.

The peer is the least that a grader does who starts an interpreter for each program: `python -I` with limits of CPU time and memory, and
no wall around it. CPU time is of all processes, ours and those that it waited for: bubblewrap, the interpreter, the tests' forks.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain

from benches import Cost, Row
from protocol.environments.programs import Trial, TrialCase
from protocol.errors import MurmurationError
from protocol.sandbox.programs import Runner, survey

RUNS_GOAL, MS_GOAL = 40.0, 25.0
_ROUNDS, _RUNS, _TESTS = 3, 40, 8
_DOUBLE = "print(2 * int(input()))"
_MEMORY = 1 << 30


def rows(runs: int = _RUNS, rounds: int = _ROUNDS) -> list[Row]:
    """Raises PreflightError where this machine cannot confine programs."""
    survey.require()
    runner = Runner()
    one, several = _trial(1), _trial(_TESTS)

    def ours(trial: Trial) -> Callable[[], object]:
        return lambda: _require_right([run.output for run in runner.run(trial)], len(trial.cases))

    def peer(tests: int) -> Callable[[], object]:
        return lambda: _require_right([_started(number) for number in range(tests)], tests)

    trivial = {name: _seconds(call, runs, rounds) for name, call in (("ours", ours(one)), ("peer", peer(1)))}
    tests = {
        name: _seconds(call, runs // 4, rounds) for name, call in (("ours", ours(several)), ("peer", peer(_TESTS)))
    }
    rate, floor = 1 / _best(trivial["ours"]), 1 / _best(trivial["peer"])
    many, many_floor = _TESTS / _best(tests["ours"]), _TESTS / _best(tests["peer"])
    median, median_floor = (1000 * statistics.median(chain(*trivial[name])) for name in ("ours", "peer"))
    return [
        Rate("code, a trivial program", "runs a CPU second", rate, floor, rate / floor, RUNS_GOAL),
        Cost("code, a trivial program, median", "ms of CPU time", median, median_floor, median_floor / median, MS_GOAL),
        Rate(f"code, {_TESTS} tests of a program", "tests a CPU second", many, many_floor, many / many_floor, None),
    ]


class Rate(Row):
    """`goal` is of `ours`, not of the ratio."""

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.ours >= self.goal


def cpu() -> float:
    """Seconds of this process and of all that it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _trial(tests: int) -> Trial:
    cases = tuple(TrialCase(f"{number}\n", 1000) for number in range(tests))
    return Trial(_DOUBLE, cases, cpu=6.0, total=30.0, wall=31.0, idle=1.0, memory=_MEMORY, stop=True)


def _started(number: int) -> bytes:
    command = [sys.executable, "-I", "-c", _DOUBLE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}) as process:
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (7, 7))
        resource.prlimit(process.pid, resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        return process.communicate(f"{number}\n".encode(), timeout=31)[0]


def _require_right(outputs: list[bytes], tests: int) -> None:
    if outputs != [f"{2 * number}\n".encode() for number in range(tests)]:
        raise MurmurationError(f"a program did not print what it does: {outputs}")


def _seconds(call: Callable[[], object], runs: int, rounds: int) -> list[list[float]]:
    """Of each call, by round."""
    call()
    found: list[list[float]] = []
    for _ in range(rounds):
        found.append([])
        for _ in range(runs):
            started = cpu()
            call()
            found[-1].append(cpu() - started)
    return found


def _best(rounds: list[list[float]]) -> float:
    """Mean of the best round."""
    return min(statistics.fmean(of) for of in rounds)
