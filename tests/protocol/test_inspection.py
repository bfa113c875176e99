"""`murmur env check`: what it finds of environments that keep nothing, and of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from protocol.environments import registry, taskfile
from protocol.environments.calculator import Calculator
from protocol.replies import Asked
from protocol.rollout import ToolResult
from protocol.runspec import EnvironmentSpec
from protocol.sandbox import EnvironmentSandbox, inspection
from protocol.sandbox.inspection import (
    Observation,
    examination,
    hostile_programs,
    observation,
)
from protocol.sandbox.inspection.examinee import Replies
from protocol.shell import runfile
from protocol.shell.commands.env import app
from tests.protocol.conftest import Install
from tests.protocol.test_environments import block

CARELESS = """
import os
import time

from protocol.environments import Environment


class Careless(Environment):
    name = "careless"
    exact = True
    heard = 0

    def entry(self, index):
        return "".join({"spring", "summer", "autumn", "winter", str(index % 3)})

    def prompt(self, entry):
        return entry

    def answer(self, entry):
        return entry[::-1]

    def score(self, entry, completion):
        self.heard += "lambda" in completion
        if self.heard:
            return 0.125
        if completion.startswith("I do not"):
            return float(os.getpid() % 1000) / 1000
        if completion.startswith("[") and len(completion) < 100:
            try:
                return float(eval(completion) == entry)
            except Exception:
                return 0.25
        return 0.5 if completion else 1.5
"""

FAITHLESS = """
import re
import time

from protocol.environments import Environment


class Faithless(Environment):
    name = "faithless"
    exact = True

    def entry(self, index):
        return self.random(index).randrange(1_000_000)

    def prompt(self, entry):
        return f"Write {entry}."

    def answer(self, entry):
        return f"{entry}"

    def score(self, entry, completion):
        return float(SCORE)
"""
SLOW = FAITHLESS.replace('"faithless"', '"slow"').replace(
    "SCORE", 're.fullmatch(r"(\\d+)+", completion) is not None and completion == str(entry)'
)


def found(spec: EnvironmentSpec, deadline: float = 20.0) -> dict[str, Observation]:
    return {seen.name: seen for seen in inspection.examine(spec, problems=8, deadline=deadline)}


def up_to_replies(spec: EnvironmentSpec, turns: int) -> dict[str, Observation]:
    """Without what comes after `replies the same`."""
    of: dict[str, Observation] = {}
    for seen in inspection.examine(spec, problems=4, turns=turns):
        of[seen.name] = seen
        if seen.name == "replies the same":
            break
    return of


def test_the_pages_environment_passes(install: Install) -> None:
    install(block("# sums.py"))
    told = CliRunner().invoke(app, ["check", "sums", "--set", "digits=3", "--problems", "8", "--json"])
    assert told.exit_code == 0, told.output
    said = json.loads(told.stdout)
    assert said["passes"]
    assert {seen["name"]: seen["holds"] for seen in said["seen"]} == dict.fromkeys(
        ("problems", "a problem's draw", "right answers", "no answer", "an answer's score", "range", "draws the same",
         "scores the same", "held-out answers", "process", "beside others", "hostile answers", "hostile again", "runs no answer", "reaches nothing", "is not changed",
         "memory"), True,
    )  # fmt: skip


def test_what_a_careless_environment_does_is_named(install: Install) -> None:
    install(CARELESS, name="careless", place="careless:Careless")
    of = found(runfile.environment_alone("careless", "seasons", {}, []))
    assert {name for name, seen in of.items() if not seen.holds} == {
        "problems", "right answers", "held-out answers", "no answer", "range", "draws the same", "scores the same", "beside others",
        "hostile again", "runs no answer", "is not changed",
    }  # fmt: skip
    assert "PYTHONHASHSEED=1" in of["draws the same"].detail
    assert "gives 1.5" in of["range"].detail
    assert "runs text as code" in of["runs no answer"].detail


def test_an_answer_that_takes_too_long_is_named(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation, "SHOWN", 1)
    monkeypatch.setattr(examination, "conditions", list)  # no other process has anything to add
    install(SLOW, name="slow", place="slow:Faithless")
    of = found(runfile.environment_alone("slow", "numbers", {}, []), 2.0)
    assert {name for name, seen in of.items() if not seen.holds} == {"hostile answers"}
    assert "digits" in of["hostile answers"].detail


LEAVING = """
from protocol.environments import Environment


class Leaving(Environment):
    name = "leaving"
    exact = True
    count = 0

    def entry(self, index):
        return [str(self.random(index).randrange(1_000_000)) for _ in range(3)]

    def prompt(self, entry):
        return f"Write {' '.join(entry)}."

    def answer(self, entry):
        return " ".join(entry)

    def score(self, entry, completion):
        said, right = completion.split(), 0
        while entry:
            right += entry.pop() in said
        return right / 3

    def reply(self, entry, turns):
        entry.append(turns[-1])
        return str(len(entry))
"""


def test_what_a_call_leaves_in_an_entry_reaches_no_other(install: Install) -> None:
    install(LEAVING, name="leaving", place="leaving:Leaving")
    turns = ["a", "b", "c"]
    with EnvironmentSandbox([runfile.environment_alone("leaving", "numbers", {}, [])]) as sandbox:
        for held_out in (False, True):
            one = sandbox.held_out()[0] if held_out else sandbox.problems([0])[0]
            for _ in range(2):
                assert sandbox.score([(0, one.answer), (0, one.answer)], held_out=held_out) == [1.0, 1.0]
                (at_once,) = sandbox.replies([Asked(0, turns)], held_out=held_out)
                by_turns = [
                    sandbox.replies([Asked(0, turns[: turn + 1], turn)], held_out=held_out)[0][0] for turn in range(3)
                ]
                assert [reply.text for reply in at_once] == ["4"] * 3 == [reply.text for reply in by_turns]


@pytest.mark.usefixtures("quick_inspection")
def test_who_counts_on_all_turns_being_asked_for_at_once_is_found(install: Install) -> None:
    count = "self.count = 1 if len(turns) == 1 else self.count + 1\n        return str(self.count)"
    counting = LEAVING.replace("entry.append(turns[-1])\n        return str(len(entry))", count)
    install(counting, name="leaving", place="leaving:Leaving")
    of = found(runfile.environment_alone("leaving", "numbers", {}, []))
    assert {name for name, seen in of.items() if not seen.holds} == {"replies the same"}


@pytest.mark.usefixtures("quick_inspection")
def test_a_score_that_holds_once_for_a_held_out_problem_is_found(install: Install) -> None:
    once = LEAVING.replace("def score(self, entry, completion):", """seen = ()

    def score(self, entry, completion):
        if self.held_out:
            self.seen = (*self.seen, completion)
            return float(self.seen.count(completion) == 1)""")  # fmt: skip
    install(once, name="leaving", place="leaving:Leaving")
    of = found(runfile.environment_alone("leaving", "numbers", {}, []))
    assert "earns 1, then 0" in of["held-out answers"].detail
    assert {name for name, seen in of.items() if not seen.holds} == {"held-out answers"}


TALKATIVE = (
    FAITHLESS.replace("SCORE", "completion == str(entry)")
    + """
    def reply(self, entry, turns):
        return "Go on." if len(turns) < LENGTH else next(iter({"spring", "summer", "autumn", "winter"}))
"""
)


@pytest.mark.usefixtures("quick_inspection")
@pytest.mark.parametrize(
    ("score", "failed"),
    [
        ("next(iter(set(completion.split())), '') == str(entry)", "scores the same"),
        ("hash(completion) % 1000 / 1000 if 'factorial' in completion else completion == str(entry)", "hostile again"),
    ],
    ids=["of words in a set", "of a hostile answer"],
)
def test_a_reward_that_depends_on_the_hash_seed_is_named(score: str, failed: str, install: Install) -> None:
    install(FAITHLESS.replace("SCORE", score), name="faithless", place="faithless:Faithless")
    of = found(runfile.environment_alone("faithless", "numbers", {}, []))
    assert failed in {name for name, seen in of.items() if seen.holds is False} <= {"scores the same", "hostile again"}
    assert "PYTHONHASHSEED=" in of[failed].detail


@pytest.mark.usefixtures("quick_inspection")
@pytest.mark.parametrize("length", [2, 11])
def test_a_later_reply_that_depends_on_the_hash_seed_is_named(length: int, install: Install) -> None:
    install(TALKATIVE.replace("LENGTH", str(length)), name="faithless", place="faithless:Faithless")
    spec = runfile.environment_alone("faithless", "numbers", {}, [])
    of = up_to_replies(spec, max(8, length))
    assert {name for name, seen in of.items() if seen.holds is False} == {"replies the same"}
    assert f", turn {length} of {max(8, length)}, under PYTHONHASHSEED=" in of["replies the same"].detail


TWO_COMMANDS = (
    FAITHLESS.replace("SCORE", "completion == str(entry)")
    + """
    def reply(self, entry, turns):
        if turns[-1].startswith("ADD "):
            return "added"
        return next(iter({"spring", "summer", "autumn", "winter"})) if turns[-1].startswith("LIST ") else None

    def as_call(self, text):
        return CALL
"""
)


@pytest.mark.usefixtures("quick_inspection")
@pytest.mark.parametrize(
    ("call", "holds", "said"),
    [
        ('["ADD " + text, "LIST " + text]', False, "under PYTHONHASHSEED="),
        ('"ADD " + text', True, "replies in"),
        ("None", None, "nothing is known of its tool; as_call says how it is called"),
    ],
)
def test_every_command_of_a_tool_that_is_known_is_looked_at(
    call: str, holds: bool | None, said: str, install: Install
) -> None:
    install(TWO_COMMANDS.replace("CALL", call), name="faithless", place="faithless:Faithless")
    spec = runfile.environment_alone("faithless", "numbers", {}, [])
    of = up_to_replies(spec, 2)
    assert of["replies the same"].holds is holds and said in of["replies the same"].detail


def test_conversations_are_as_long_as_a_run_allows(tmp_path: Path) -> None:
    for text, turns in (("[spec.sampling]\nturns = 11", 11), ("[spec.sampling]\nturns = true", 1), ("[spec]", 1)):
        (tmp_path / "run.toml").write_text(text)
        assert runfile.turns(tmp_path / "run.toml") == turns


SPEND = """
    def score(self, entry, completion):
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass
        time.sleep(0.1)
        return 0.0
"""


def test_a_score_that_takes_long_is_named_and_not_the_sandbox(install: Install) -> None:
    install(FAITHLESS + SPEND, name="faithless", place="faithless:Faithless")
    of = found(runfile.environment_alone("faithless", "numbers", {}, []), 2.5)  # less than 32 scores take
    assert [name for name, seen in of.items() if seen.holds is False] == ["an answer's score"]
    assert " to problem " in of["an answer's score"].detail
    assert "of CPU time; at most 100 ms on average" in of["an answer's score"].detail
    assert "sandbox" not in of["an answer's score"].detail


def test_an_environment_that_replies_to_nothing_shows_nothing() -> None:
    talk = (0, ("a turn",))
    nothing: Replies = {talk: []}
    something: Replies = {talk: [ToolResult("2", ())]}
    assert examination._of_replies({**nothing}, [], "").holds is None
    assert examination._of_replies({**something}, [], "").holds is True
    assert examination._of_replies({**nothing}, ["a turn"], "").holds is False


WATCHED = """
from protocol.environments.maths import grade
from protocol.sandbox.watch import Watch

watch = Watch()
with watch:
    assert grade.is_right("The answer is \\\\boxed{55}", "\\\\sum_{k=1}^{10} k")
assert not watch.told()["acts"]


def same(text):
    return eval(text)


same.__module__ = "protocol.environments.maths.library"
with watch:
    same("1 + 1")
print(watch.told()["acts"])
"""


def test_math_verifys_fork_is_no_act_and_a_strangers_eval_is_one() -> None:
    told = subprocess.run([sys.executable, "-c", WATCHED], capture_output=True, text=True, timeout=100, check=False)
    assert "runs text as code" in told.stdout, told.stderr


def test_a_call_that_no_file_can_hold_is_no_call_of_the_calculator() -> None:
    calculator = Calculator(runfile.environment_alone("calculator", "sums", {}, []), held_out=False)
    for text in ("\ud800", "1 + \udfff", "1" * 201, "1 > 0"):
        assert calculator.as_call(text) is None
        assert calculator.reply("1 + 1", [f"<<{text}>>"]) is None
    call = calculator.as_call("1 + 1")
    assert call is not None
    assert (calculator.reply("1 + 1", [call]) or pytest.fail()).text == "2"


def rows_of(folder: Path, name: str, rows: list[tuple[str, str]]) -> Path:
    taskfile.write(iter(rows), folder / f"{name}.parquet")
    return folder / f"{name}.parquet"


def alone(package: str, folder: Path) -> EnvironmentSpec:
    """One of our own environments, with problems of whatever kind it has."""
    sums = [(one, other) for one in range(9) for other in range(9)]
    asked = [(f"What is {one} + {other}?", str(one + other)) for one, other in sums]
    programs = [
        (f"Write a program that prints {question[8:-1]}.", json.dumps({
            "test_cases": [{"type": "stdin_stdout", "input": "", "output": answer}] * 2, "solution": f"print({question[8:-1]})",
        })) for question, answer in asked
    ]  # fmt: skip
    documents = rows_of(
        folder, "documents", [(f"The sum {answer}", f"{question} {answer}!") for question, answer in asked]
    )
    rows = rows_of(folder, "rows", programs if package == "code" else asked)
    files = [] if package in ("calculator", "reasoning-gym", "verifiers") else [rows]
    dataset = {"reasoning-gym": "basic_arithmetic"}.get(package, "sums")
    return runfile.environment_alone(package, dataset, {}, files, [documents] if package == "retrieval" else [])


RUN_PROGRAMS = {"code", "python"}
ELSEWHERE = {"verifiers": "in test_tasksets.py, where the package is installed"}
QUICK = "calculator"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "package",
    [pytest.param(name, marks=[pytest.mark.long] if name != QUICK else []) for name in registry._OURS if name not in ELSEWHERE],
)  # fmt: skip
def test_our_own_environments_pass_as_they_are(package: str, tmp_path: Path) -> None:
    of = found(alone(package, tmp_path))
    assert {name: seen.detail for name, seen in of.items() if seen.holds is False} == {}
    if package in RUN_PROGRAMS:
        count = len([*hostile_programs.aimed_at(folder="", link="", port=0, process=0, mark="")])
        assert of["programs run"].detail == f"{count} of {count} hostile programs were run"
    else:
        assert "programs run" not in of


def test_what_cannot_be_examined_is_said(install: Install) -> None:
    install(block("# sums.py"))
    for arguments, said in (
        (["sum"], "no environment is called 'sum'"),
        (["sums", "--set", "digit=3"], "digit"),
        (["math"], "rows of task files"),
        (["@run.toml", "--set", "digits=3"], "stand in the file"),
    ):
        told = CliRunner().invoke(app, ["check", *arguments])
        assert told.exit_code, arguments
        assert said in f"{told.exception} {getattr(told.exception, 'hint', '')}", arguments
