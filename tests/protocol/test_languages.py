"""Programs in other languages than Python, in the environment `code`: what they are worth, what holds them, and what is refused before any work."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.environments import taskfile
from protocol.environments.blocks import Blocks
from protocol.environments.code import JudgedCode, cases_of
from protocol.environments.programs import Interpreter, Trial, TrialCase, TrialRun, command_line
from protocol.environments.registry import open_environment
from protocol.errors import ConfigError, Malformed, MurmurationError, PreflightError
from protocol.folders import TASKS_VARIABLE
from protocol.runspec import FromFiles
from protocol.sandbox import EnvironmentSandbox, programs_wire, wire
from protocol.sandbox.inspection import examination
from protocol.sandbox.programs import Runner, survey, walls
from protocol.sandbox.programs.runner import BrokenSandbox, Sandboxed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
GIB = 1 << 30
PERL = ("perl", "{file}")
NODE = ("node", "--random-seed=1", "{file}.js")
COMMANDS = {
    "perl": PERL, "bash": ("bash", "{file}"), "javascript": NODE, "ruby": ("ruby", "{file}.rb"), "lua": ("lua5.4", "{file}.lua"),
    "php": ("php", "-d", "memory_limit=-1", "-d", "display_errors=0", "{file}.php"),
}  # fmt: skip
"""Debian installs the first two always; this project needs the third."""
DOUBLE = {
    "perl": "print 2 * <STDIN>",
    "bash": "read n < /dev/stdin; echo $((2 * n))",
    "javascript": "console.log(2 * Number(require('fs').readFileSync('/dev/stdin', 'utf8')))",
    "ruby": "puts 2 * gets.to_i",
    "lua": "print(2 * io.read('n'))",
    "php": "<?php echo 2 * intval(fgets(STDIN));",
}
TESTS = [{"type": "stdin_stdout", "input": f"{n}\n", "output": f"{2 * n}\n"} for n in (1, 4)]
Described = Callable[..., FromFiles]


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Described:
    """`code` with one task, its solution beside its tests, in a language."""
    monkeypatch.setenv(TASKS_VARIABLE, str(tmp_path / "tasks"))

    def spec(language: str, /, table: dict[str, Any] | None = None, size: int = 1, **config: Any) -> FromFiles:
        answer = json.dumps(table or {"language": language, "test_cases": TESTS, "solution": DOUBLE.get(language)})
        taskfile.write(((f"double it {number}", answer) for number in range(size + 1)), tmp_path / "code.parquet")
        file = taskfile.add(tmp_path / "code.parquet")
        command = list(COMMANDS.get(language, ()))
        config = {"language": language, "interpreter": command, "memory_mib": 4096} | config
        entry = {
            "package": "code", "version": JudgedCode.version, "dataset": "x", "config": config, "files": [file.model_dump()],
            "size": size, "held_out_size": 1, "head": "0" * 64, "exact": False,
        }  # fmt: skip
        return FromFiles.model_validate(entry)

    return spec


def tried(
    program: str, *data: str, command: tuple[str, ...] = PERL, memory: int = GIB, **limits: Any
) -> list[TrialRun]:
    given: dict[str, Any] = {"cpu": 5.0, "total": 60.0, "wall": 60.0, "idle": 20.0, "stop": False} | limits
    cases = tuple(TrialCase(text, 1 << 16) for text in data or ("",))
    return Runner().run(Trial(program, cases, memory=memory, interpreter=command, **given))


def require(language: str) -> None:
    if walls.interpreter(COMMANDS[language][0]) is None:
        if language in ("perl", "bash"):
            pytest.fail(f"every Debian has {language}")
        pytest.skip(f"{COMMANDS[language][0]} is not installed in the system's folders")


@pytest.mark.parametrize("language", COMMANDS)
def test_a_program_is_worth_what_its_tests_say(described: Described, language: str) -> None:
    require(language)
    blocks = Blocks((language, "other"))
    right, wrong = blocks.written(DOUBLE[language]), blocks.written(DOUBLE[language].replace("2", "3"))
    named = right.replace(language, "other", 1)
    with EnvironmentSandbox([described(language, fences=["other"])]) as sandbox:
        python = "```python\nprint(2 * int(input()))\n```"
        assert sandbox.score([(0, right), (0, wrong), (0, named), (0, python)]) == [1.0, 0.0, 1.0, 0.0]
        assert sandbox.bounds([(0, right), (0, wrong)], [1.0, 1.0]) == [(1.0, 1.0), (0.0, 0.0)]
        (problem,) = sandbox.problems([0])
        assert problem.answer == right


def test_each_test_begins_without_what_another_left() -> None:
    program = 'my @seen = glob("/tmp/* /tmp/.[a-z]*"); print "@seen|", <STDIN>; open(F, ">kept"); close(F);'
    first, second = (run.output for run in tried(program, "one", "two"))
    assert (first, second) == (b"/tmp/solution /tmp/stdin|one", b"/tmp/solution /tmp/stdin|two")
    with Sandboxed(functions=False, language=walls.interpreter("perl") or "") as box:
        trial = Trial("print <STDIN>", (TrialCase("", 9),), 5.0, 5.0, 60.0, 20.0, GIB, stop=False, interpreter=PERL)
        assert [box.run(trial, TrialCase(text, 9)).output for text in ("one", "two")] == [b"one", b"two"]
        assert not box.is_spent
    folder = 'unlink "/tmp/solution"; mkdir "/tmp/solution"; print <STDIN>'
    assert [run.output for run in tried(folder, "one", "two")] == [b"one", b"two"]


HOSTILE = {
    "a process": 'print defined(fork()) ? "came through" : "held"',
    "a shell": 'print `echo came through`; print "held"',
    "another program": 'exec("/usr/bin/env", "echo", "came through"); print "held"',
    "a socket": 'use Socket; print socket(my $s, PF_INET, SOCK_STREAM, 6) ? "came through" : "held"',
    "a file of the system": 'print open(my $f, ">", "/usr/share/x") ? "came through" : "held"',
    "the account's files": 'print -e "/home" || -e "/root" || -e "/etc/passwd" || -e "/proc/1" ? "came through" : "held"',
    "every process": 'kill 9, -1; print "held"',
    "who waits": 'print kill(9, 1) && kill(9, getppid()) && kill(0, 1) ? "held" : "came through"',
    "memory": 'my $kept = "x" x (2 << 30); print "came through"',
    "the disk": 'open(my $f, ">", "kept"); print $f "x" x (1 << 20) for 1 .. 64; print close($f) ? "came through" : "held"',
    "descriptors": 'my @kept; for (1 .. 4096) { open(my $f, "<", "/dev/null") or last; push @kept, $f } print @kept > 4000 ? "came through" : "held"',
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_program_may_not_do_it_cannot(name: str) -> None:
    (run,) = tried(HOSTILE[name])
    assert b"came through" not in run.output
    (honest,) = tried(DOUBLE["perl"], "21")
    assert honest.output == b"42"


def test_perl_has_its_hashes_in_one_order_in_every_run() -> None:
    program = 'my %h = map { $_ => 1 } "a" .. "z"; print join(",", keys %h)'
    assert len({run.output for _ in range(3) for run in tried(program)}) == 1


def test_a_test_after_a_broken_sandbox_has_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    run, broken = Sandboxed.run, [1, 1]

    def breaks(self: Sandboxed, trial: Trial, case: TrialCase, **limits: Any) -> TrialRun:
        if trial.interpreter and broken:
            broken.pop()
            raise BrokenSandbox
        return run(self, trial, case, **limits)

    monkeypatch.setattr(Sandboxed, "run", breaks)
    first, second = tried(DOUBLE["perl"], "1", "4")
    assert (first.status, second.output) == (-9, b"8")


def test_what_never_ends_is_ended() -> None:
    (loop,) = tried("1 while 1", cpu=0.25, total=0.25)
    assert loop.status == -9
    (asleep,) = tried("sleep 3600", idle=0.5)
    assert asleep.status == -9 and asleep.idle >= 0.5
    (flood,) = tried('print "x" x 1000 while 1')
    assert flood.is_cut


def test_javascript_starts_threads_and_nothing_else() -> None:
    require("javascript")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program = f"""
const {{ spawnSync }} = require('child_process')
const made = spawnSync('/bin/sh', ['-c', 'echo came through'])
console.log(made.error ? 'no process' : 'came through')
require('net').connect({listener.getsockname()[1]}, '127.0.0.1')
  .on('error', () => console.log('no network')).on('connect', () => console.log('came through'))
"""
        (run,) = tried(program, command=NODE, memory=4 * GIB)
    assert run.output.split(b"\n")[:-1] == [b"no process", b"no network"]


# ---- what is refused before any work ---------------------------------------------------------------------------------------


def test_an_interpreter_that_is_not_there_is_named(described: Described) -> None:
    spec = described("cobol", interpreter=["cobol-1968", "{file}"])
    with EnvironmentSandbox([spec]) as sandbox, pytest.raises(PreflightError, match="cobol-1968 is not in") as raised:
        sandbox.warm_up()
    assert "install cobol-1968" in raised.value.hint


def test_an_interpreter_that_runs_no_empty_program_is_refused() -> None:
    with pytest.raises(
        PreflightError, match=r"false \{file\} runs no empty program within 64 MiB.*exit status 1"
    ) as raised:
        survey.require_interpreter(Interpreter(("false", "{file}"), 64 << 20))
    assert "a script" in raised.value.hint
    with pytest.raises(PreflightError, match="signal") as raised:
        survey.require_interpreter(Interpreter(("bash", "-c", "kill -9 $$", "{file}"), 64 << 20))
    assert "memory_mib may be" in raised.value.hint or "memory_mib in" in raised.value.hint


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"language": "perl", "interpreter": []}, "needs an interpreter"),
        ({"language": "python", "interpreter": list(PERL)}, "needs an interpreter"),
        ({"language": "perl", "interpreter": ["/opt/perl", "{file}"]}, "name without folder"),
        ({"language": "perl", "interpreter": ["../perl", "{file}"]}, "name without folder"),
        ({"language": "perl", "interpreter": ["perl"]}, "name without folder"),
        ({"language": "perl", "interpreter": ["perl", "{file}", "{file}"]}, "name without folder"),
        ({"language": "perl", "interpreter": ["perl", "{file}", "{file}:x"]}, "name without folder"),
        ({"language": "perl", "interpreter": ["perl", "{file}", "x" * 300]}, "characters"),
        ({"language": "perl", "interpreter": list(PERL), "fences": ["Perl 5"]}, "no name of a language"),
        ({"language": "C++\n", "interpreter": list(PERL)}, "language"),
    ],
)
def test_a_language_that_cannot_be_is_refused(described: Described, config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_environment(described("perl", **config), held_out=False)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"test_cases": [{"type": "function_call", "fn_name": "f", "input": [1], "output": 2}]}, "only programs in Python"),
        ({"language": "python", "test_cases": TESTS}, "the language 'python', and not 'perl'"),
    ],
)  # fmt: skip
def test_tasks_that_are_none_of_the_language_are_refused_where_the_run_is_created(
    described: Described, table: dict[str, Any], said: str
) -> None:
    spec = described("perl", table)
    with EnvironmentSandbox([spec]) as sandbox, pytest.raises(MurmurationError, match=said):
        sandbox.head(spec)
    with pytest.raises(Malformed, match="language"):
        cases_of(json.dumps({"language": "perl", "test_cases": TESTS}))


def test_a_child_is_not_believed() -> None:
    with pytest.raises(ValueError, match="name without folder"):
        command_line(["bin/sh", "{file}"])
    for named in ([[["/bin/sh", "{file}"], GIB]], [[["sh", "{file}"], 1 << 40]], [["sh"]], 3):
        with pytest.raises(wire.WireError):
            programs_wire.interpreters({"interpreters": named})
    trial = Trial("", (TrialCase("", 1),), 1.0, 1.0, 1.0, 1.0, GIB, stop=True, interpreter=("sh", "-c", "echo {file}"))
    with pytest.raises(wire.WireError):
        programs_wire.parsed(json.loads(json.dumps(programs_wire.asked([trial]))))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_env_check_says_that_no_hostile_program_is_of_this_language(described: Described) -> None:
    of = {seen.name: seen for seen in examination.examine(described("perl", size=8))}
    assert {name: seen.detail for name, seen in of.items() if seen.holds is False} == {}
    assert of["programs run"].holds is None and "another language" in of["programs run"].detail
