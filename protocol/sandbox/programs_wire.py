"""What the child asks its parent for while it scores programs, and what it is told: messages of wire.py.

child → parent   {"op": "run", "trials": [...]}     the first of those it has, as many as fit
parent → child   {"runs": [[[status, cpu, wall, is_cut, idle, bytes of output], ...], ...]}, and all outputs one behind the other
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from protocol.environments.programs import Interpreter, Trial, TrialCase, TrialRun, command_line
from protocol.sandbox import wire

ANSWER_BYTES_MAX = 64 << 20
"""Of outputs in one answer."""
SECONDS_MAX = 600.0
"""Of CPU time that one trial may ask for, and on the clock for one test."""
_ASKED_BYTES = 16 << 20
_TRIALS_MAX, _CASES_MAX, _MEMORY_MAX = 64, 256, 8 << 30


def asked(trials: Sequence[Trial]) -> dict[str, Any]:
    """A request with the first of these trials, at least one."""
    some: list[dict[str, Any]] = []
    room, output = _ASKED_BYTES, ANSWER_BYTES_MAX
    for trial in trials[:_TRIALS_MAX]:
        room -= len(trial.program) + sum(len(case.data) for case in trial.cases)
        output -= sum(case.output for case in trial.cases)
        if some and min(room, output) < 0:
            break
        some.append(asdict(trial))
    return {"op": "run", "trials": some}


def parsed(head: dict[str, Any]) -> list[Trial]:
    """The parent's side: the child is not believed. Raises WireError."""
    try:
        found = [_trial(table) for table in head["trials"]]
    except (KeyError, TypeError, ValueError) as error:
        raise wire.WireError(f"no trial: {error}") from error
    output = sum(case.output for trial in found for case in trial.cases)
    if not 0 < len(found) <= _TRIALS_MAX or output > ANSWER_BYTES_MAX:
        raise wire.WireError("trials that nobody may ask for")
    return found


def _trial(table: dict[str, Any]) -> Trial:
    cases = tuple(
        TrialCase(str(one["data"]), int(one["output"]), str(one["function"]), bool(one["has_imports"]))
        for one in table["cases"]
    )
    trial = Trial(
        str(table["program"]), cases, cpu=float(table["cpu"]), total=float(table["total"]), wall=float(table["wall"]),
        idle=float(table["idle"]), memory=int(table["memory"]), stop=bool(table["stop"]),
        interpreter=command_line(table["interpreter"]) if table["interpreter"] else (),
    )  # fmt: skip
    fits = all(0 < seconds <= 4 * SECONDS_MAX for seconds in (trial.cpu, trial.total, trial.wall, trial.idle))
    if not (
        fits and len(cases) <= _CASES_MAX and 0 < trial.memory <= _MEMORY_MAX and all(one.output > 0 for one in cases)
    ):
        raise ValueError("a limit out of bounds")
    return trial


def interpreters(head: dict[str, Any]) -> list[Interpreter]:
    """What the environments need, from the child's answer when it opens them. Raises WireError."""
    try:
        found = [Interpreter(command_line(words), int(memory)) for words, memory in head["interpreters"]]
    except (KeyError, TypeError, ValueError) as error:
        raise wire.WireError(f"no interpreter: {error}") from error
    if not all(0 < one.memory <= _MEMORY_MAX for one in found):
        raise wire.WireError("memory out of bounds")
    return found


def answer(runs: Sequence[Sequence[TrialRun]]) -> bytes:
    head = [[[run.status, run.cpu, run.wall, run.is_cut, run.idle, len(run.output)] for run in one] for one in runs]
    outputs = b"".join(run.output for one in runs for run in one)
    return wire.encode({"runs": head}, {"outputs": np.frombuffer(outputs, np.uint8)})


def told(head: dict[str, Any], arrays: wire.Arrays) -> list[list[TrialRun]]:
    outputs, place = arrays["outputs"].tobytes(), 0
    found: list[list[TrialRun]] = []
    for one in head["runs"]:
        found.append([])
        for status, cpu, wall, is_cut, idle, size in one:
            found[-1].append(TrialRun(status, cpu, wall, outputs[place : place + size], is_cut, idle))
            place += size
    return found
