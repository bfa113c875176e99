"""The environment `python`: what the model is told of its programs, here and as somebody else may have been told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.environments import taskfile
from protocol.environments.interpreter import PythonTool
from protocol.environments.programs import TrialRun
from protocol.folders import TASKS_VARIABLE
from protocol.replies import Asked
from protocol.runspec import FromFiles
from protocol.sandbox import EnvironmentSandbox

Spec = Callable[..., FromFiles]


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    monkeypatch.setenv(TASKS_VARIABLE, str(tmp_path / "tasks"))

    def made(**config: Any) -> FromFiles:
        taskfile.write(iter([("What is 2 ** 10?", "1024"), ("And 3 ** 3?", "27")]), tmp_path / "rows.parquet")
        file = taskfile.add(tmp_path / "rows.parquet")
        return FromFiles.model_validate({
            "package": "python", "version": PythonTool.version, "dataset": "x", "config": config, "files": [file.model_dump()],
            "size": 1, "held_out_size": 1, "head": "0" * 64, "exact": False,
        })  # fmt: skip

    return made


def block(program: str) -> str:
    return f"Let me see.\n```python\n{program}\n```\n"


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
def test_a_program_is_told_what_it_printed_and_nothing_is_kept(spec: Spec) -> None:
    turns = [block(p) for p in ("print(2 ** 10); kept = 1", "print(kept)", "x = 1", "print('y' * 99)")]
    with EnvironmentSandbox([spec(output_letters=64)]) as sandbox:
        assert sandbox.converses(0)
        (replies,) = sandbox.replies([Asked(0, [*turns, "So it is 1024"])])
        assert [reply.text for reply in replies] == [
            "1024", "NameError: name 'kept' is not defined", "(nothing was printed)", "y" * 64 + " (cut)",
        ]  # fmt: skip
        assert replies[0].calls[0].arguments.strip() == "print(2 ** 10); kept = 1"
        assert sandbox.replies([Asked(0, [turns[0] + "and so on"])]) == [[]], "a turn goes on after its block: no call"
        unnamed = "It would print\n```\n1024\n```"
        assert sandbox.replies([Asked(0, [unnamed])]) == [[]], "a block that names no language is no call"
        assert sandbox.replies([Asked(0, turns[:1])], held_out=True)[0][0].text == "1024"
        assert sandbox.score([(0, "So it is\n1024"), (0, turns[0])]) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("<map object at 0x7f9219b56230>", "<map object at 0x0>"),
        ("[<__main__.P object at 0x55d0a>, <P at 0x1234567>]", "[<__main__.P object at 0x55d0a>, <P at 0x0>]"),
        ("0x7f9219b56230 look at 0xff", "0x7f9219b56230 look at 0xff"),
    ],
)
def test_an_address_is_told_as_one_text(spec: Spec, printed: str, told: str) -> None:
    tool = PythonTool(spec(), held_out=False)
    run = TrialRun(0, 0.1, 0.1, printed.encode())
    for claimed in (None, told):
        assert tool.told({}, [block("print(7)")], run, claimed).text == told


def test_what_is_cut_does_not_depend_on_how_long_an_address_is(spec: Spec) -> None:
    tool = PythonTool(spec(output_letters=64), held_out=False)
    runs = [
        TrialRun(0, 0.1, 0.1, b"<map object at 0x%s>" % digits + b"y" * 99) for digits in (b"7f9219b56230", b"1b56230")
    ]
    assert len({tool.told({}, [block("print(7)")], run, None).text for run in runs}) == 1


SLOW = "It took longer than 2 s."


@pytest.mark.parametrize(
    ("status", "cpu", "claimed", "told"),
    [
        (0, 1.0, None, "7"), (-9, 2.0, None, SLOW), (-9, 1.95, None, SLOW), (-11, 0.1, None, "7\n(it was ended)"),
        (0, 0.4, SLOW, "7"), (0, 0.6, SLOW, SLOW), (0, 7.0, SLOW, SLOW), (0, 7.0, "7", "7"), (0, 7.0, "8", "7"), (-9, 8.1, "7", SLOW),
    ],
)  # fmt: skip
def test_a_result_that_another_machine_may_honestly_get_stands_and_no_other(
    spec: Spec, status: int, cpu: float, claimed: str | None, told: str
) -> None:
    tool = PythonTool(spec(cpu_seconds=2), held_out=False)
    turns = [block("print(7)")]
    trial = tool.call({}, turns, claimed)
    assert trial is not None
    assert trial.cpu == {None: 2, SLOW: 0.5}.get(claimed, 8)
    reply = tool.told({}, turns, TrialRun(status, cpu, cpu, b"7\n"), claimed)
    assert reply.text == reply.calls[0].result == told


@pytest.mark.parametrize(
    ("cpu", "idle", "claimed", "told"),
    [
        (1.7, 0.0, None, " (cut)"), (2.1, 0.0, None, SLOW), (2.1, 0.0, " (cut)", " (cut)"), (0.6, 0.0, SLOW, SLOW), (0.4, 0.0, SLOW, " (cut)"),
        (0.1, 0.9, None, " (cut)"), (0.1, 1.1, None, SLOW), (0.1, 0.3, SLOW, SLOW), (0.1, 0.2, SLOW, " (cut)"), (0.1, 4.1, " (cut)", SLOW),
    ],
)  # fmt: skip
def test_what_was_cut_late_or_after_idling_may_have_been_too_slow_elsewhere(
    spec: Spec, cpu: float, idle: float, claimed: str | None, told: str
) -> None:
    tool = PythonTool(spec(cpu_seconds=2), held_out=False)
    run = TrialRun(-9, cpu, cpu + idle, b"", is_cut=True, idle=idle)
    assert tool.told({}, [block("print(7)")], run, claimed).text == told


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
def test_calls_that_sleep_are_too_slow_for_who_makes_and_for_who_checks(spec: Spec) -> None:
    turns = [block(f"import time; time.sleep({900 + n})") for n in range(3)]
    slow = "It took longer than 60 s."
    with EnvironmentSandbox([spec(cpu_seconds=60)]) as sandbox:
        for claims in ((), (slow,) * 3, ("(nothing was printed)",) * 3):
            (replies,) = sandbox.replies([Asked(0, turns, 0, claims)])
            assert [reply.text for reply in replies] == [slow] * 3


def test_a_program_that_no_rollout_file_could_hold_is_none(spec: Spec) -> None:
    tool = PythonTool(spec(), held_out=False)
    assert tool.call({}, [block("#" * 9000)], None) is None
    widest = block("\x01" * 8000)
    reply = tool.told({}, [widest], TrialRun(0, 0.1, 0.1, b"\x01" * 4000), None)
    assert len(reply.calls[0].encode()) < 1 << 16
