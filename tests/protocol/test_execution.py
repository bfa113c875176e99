"""`murmur env check` and programs: hostile ones are run wherever answers or calls may be programs, and what comes of them is looked at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from protocol.environments import taskfile
from protocol.environments.blocks import PYTHON
from protocol.environments.interpreter import PROGRAM_BYTES_MAX, PythonTool
from protocol.runspec import EnvironmentSpec
from protocol.sandbox.inspection import Observation, examination, hostile_answers, hostile_programs
from protocol.sandbox.inspection import canary as canary_module
from protocol.sandbox.inspection.assault import Assault
from protocol.sandbox.inspection.canary import Canary
from protocol.sandbox.inspection.examinee import Examinee
from protocol.sandbox.readiness import READABLE, is_ready
from protocol.shell import runfile
from tests.protocol.conftest import Install

Choose = Callable[..., None]

RASH = """
import contextlib
import io
import re

from protocol.environments import Environment


class Rash(Environment):
    name = "rash"

    def entry(self, index):
        return self.random(index).randrange(1_000_000)

    def prompt(self, entry):
        return f"Write a program that prints {entry}."

    def score(self, entry, completion):
        found = re.search(r"```python\\n(.*)\\n```", completion, re.DOTALL)
        if found is None:
            return 0.0
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(Exception):
            exec(compile(found[1], __file__, "exec"), {})
        return float(said.getvalue().strip() == str(entry))
"""
RASH_TOOL = (
    RASH.replace("class Rash(Environment):", "class Rash(Environment):\n    def reply(self, entry, turns): return str(self._score(entry, turns[-1]))\n")
    .replace("def score(", "def _score(") + "\n    def score(self, entry, completion): return 0.0\n"
)  # fmt: skip
"""It runs programs in turns alone."""

CREDULOUS = """
import os

from protocol.environments import Environment, programs
from protocol.environments.blocks import PYTHON


class Credulous(programs.ProgramEnvironment):
    name = "credulous"

    def entry(self, index):
        return self.random(index).randrange(1_000_000)

    def prompt(self, entry):
        return f"Write a program that passes test {entry}."

    def trial(self, entry, completion, claimed):
        program = PYTHON.program_of(completion)
        if program is None:
            return None
        PREPARE
        tests = program + "\\nassert False"
        return programs.Trial(tests, (programs.TrialCase("", 100),), cpu=9.0, total=9.0, wall=50.0, idle=1.0, memory=1 << 30, stop=True)

    def judge(self, entry, trial, runs, claimed):
        return programs.Range(*[float(JUDGE)] * 2)
"""


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    """Some of the programs, and no other answers, lest each test wait for all that never end."""
    monkeypatch.setattr(hostile_answers, "of_nobody", lambda: iter(()))
    monkeypatch.setattr(hostile_answers, "of_right", lambda _: iter(()))

    def put(*names: str) -> None:
        chosen = {name: hostile_programs._PROGRAMS[name] for name in names}
        monkeypatch.setattr(hostile_programs, "_PROGRAMS", chosen)

    return put


def attacked(spec: EnvironmentSpec) -> dict[str, Observation]:
    """What is found of an environment in the child under attack."""
    with Examinee(spec, 20.0, 0) as examinee:
        asked = examinee.drawn(range(4))
        answers = examination._answers(asked)
        rewards = examinee.scored(answers)
        replies = examinee.replied([(0, (turn,)) for turn in examinee.turns(asked)[:8]])
        assault = Assault(examinee)
        of = [*examination._attacked(examinee, assault, spec, 5.0, asked, answers, rewards, replies)]
    return {seen.name: seen for seen in of}


@pytest.mark.parametrize(
    ("code", "program", "failed"),
    [
        (RASH, "an exit", "hostile answers"), (RASH, "a patched judge", "is not changed"),
        (RASH_TOOL, "an exit that nobody catches", "hostile answers"),
    ],
    ids=["exit", "judge", "exit of a tool"],
)  # fmt: skip
def test_an_environment_that_runs_programs_itself_fails(
    code: str, program: str, failed: str, install: Install, choose: Choose
) -> None:
    """It claims that what it runs is a file of its own, and catches what programs raise."""
    install(code, name="rash", place="rash:Rash")
    choose(program)
    of = attacked(runfile.environment_alone("rash", "numbers", {}, []))
    assert [name for name, seen in of.items() if seen.holds is False] == [failed]
    assert program in of[failed].detail or failed == "is not changed"


def test_a_program_run_as_text_is_named(install: Install, choose: Choose) -> None:
    """Whatever file it is said to be from."""
    install(RASH.replace("__file__", "'solution.py'"), name="rash", place="rash:Rash")
    choose("a look outside")
    of = attacked(runfile.environment_alone("rash", "numbers", {}, []))
    assert "a look outside: runs text as code" in of["runs no answer"].detail


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
QUICK = ("an exit", "an exit that nobody catches", "a look outside", "a forged verdict")


@pytest.mark.parametrize(
    ("judge", "prepare", "failed"),
    [
        ("runs[0].status == 0 and runs[0].output == b'' and os.environ['TZ'] == 'UTC'", "pass", {
            "programs earn": "an exit earns 1, and a program that does nothing 0", "programs again": "an exit: 1, then 0",
        }),
        ("False", "return None", {"programs run": "0 of 4 hostile programs were run: nothing is known of them"}),
        ("exec('float') or False", "exec('os')", {"runs no answer": "an exit: runs text as code (os); an exit: runs text as code (float)"}),
    ],
    ids=["it believes the exit status, in one time zone", "it runs none", "it runs text itself"],
)  # fmt: skip
def test_what_is_wrong_with_an_environment_of_programs_is_named(
    judge: str, prepare: str, failed: dict[str, str], install: Install, choose: Choose
) -> None:
    install(
        CREDULOUS.replace("JUDGE", judge).replace("PREPARE", prepare), name="credulous", place="credulous:Credulous"
    )
    choose(*QUICK)
    of = attacked(runfile.environment_alone("credulous", "numbers", {}, []))
    assert {name for name, seen in of.items() if seen.holds is False} == {*failed}
    assert all(said in of[name].detail for name, said in failed.items())


def test_a_call_of_the_interpreter_is_a_program_that_it_runs() -> None:
    tool = PythonTool.__new__(PythonTool)
    for program in ("print(1)", "x = '''\n  ```\n'''", ""):
        assert PYTHON.program_of(tool.as_call(program) or "", named=True) == f"{program}\n"
    assert tool.as_call("x" * PROGRAM_BYTES_MAX) is None
    assert tool.as_call("print(1)\n```\n") is None
    assert tool.as_call("\ud800") is None


REACHING = {
    "files outside": "a file was made or changed", "a link outside": "a link was made", "connections": "a port was connected to",
    "signals to others": "a process was ended or stopped",
}  # fmt: skip
COMING_THROUGH = ("a look outside", "a link outside", "files outside", "very many processes", "very many threads")


@pytest.mark.parametrize("name", sorted({*REACHING, *COMING_THROUGH}))
def test_a_program_that_comes_through_is_seen(name: str) -> None:
    """Without any sandbox, which they are considerate enough for."""
    with Canary() as canary:
        assert not [*canary.harmed()]
        program = dict(canary.programs())[name]
        assert canary.mark not in program
        run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
        assert run.stdout
        told = b"" if name == "very many processes" else run.communicate(timeout=60)[0]
        while name == "very many processes" and canary.mark.encode() not in told and (line := run.stdout.readline()):
            told += line
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        run.stdout.close()
        assert (canary.mark.encode() in told) is (name in COMING_THROUGH or name == "connections")
        assert [*canary.harmed()] == ([REACHING[name]] if name in REACHING else [])
        folder, link = canary._folder, canary._link
    assert not folder.exists()
    assert not os.path.lexists(link)


def test_a_bystander_is_asked_by_a_process_with_thousands_of_open_files(many_files: None) -> None:
    with Canary() as canary:
        assert not [*canary.harmed()]


def test_a_bystander_that_was_stopped_is_not_well_by_the_answer_that_it_owes(monkeypatch: pytest.MonkeyPatch) -> None:
    with Canary() as canary:
        with monkeypatch.context() as impatient:
            impatient.setattr(canary_module, "_ANSWER_S", 0.1)
            os.kill(canary._bystander.pid, signal.SIGSTOP)
            assert [*canary.harmed()] == ["a process was ended or stopped"]
            os.kill(canary._bystander.pid, signal.SIGCONT)
            assert canary._bystander.stdout
            assert is_ready(canary._bystander.stdout.fileno(), READABLE, 30)
            os.kill(canary._bystander.pid, signal.SIGSTOP)
            assert [*canary.harmed()] == ["a process was ended or stopped"]
        os.kill(canary._bystander.pid, signal.SIGCONT)
        assert not [*canary.harmed()]


def of_code(folder: Path) -> EnvironmentSpec:
    rows = []
    for more in range(8):
        cases = [
            {"type": "stdin_stdout", "input": f"{one} {one}", "output": f"{2 * one + more}"} for one in range(1, 4)
        ]
        table: dict[str, Any] = {"test_cases": cases, "solution": f"print(sum(map(int, input().split())) + {more})"}
        rows.append((f"Write a program that adds two integers and {more}.", json.dumps(table)))
    taskfile.write(iter(rows), folder / "code.parquet")
    return runfile.environment_alone("code", "sums", {}, [folder / "code.parquet"])


def test_what_comes_through_to_a_tool_or_to_the_machine_is_named(
    tmp_path: Path, choose: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose("an exit")
    honest = hostile_programs.aimed_at
    monkeypatch.setattr(
        hostile_programs, "aimed_at", lambda **of: [*honest(**of), ("a word", f"print('{of['mark']}')")]
    )
    of = attacked(of_code(tmp_path))
    assert of["reaches nothing"].detail == "a program said that it came through"
    assert [name for name, seen in of.items() if seen.holds is False] == ["reaches nothing"]
    assert of["programs run"].detail == "2 of 2 hostile programs were run"
