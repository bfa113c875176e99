"""The corpus of hostile programs through the environment `code`: each earns what it is worth, reaches nothing outside, and the next is scored as ever."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from protocol.environments import taskfile
from protocol.environments.code import JudgedCode
from protocol.folders import TASKS_VARIABLE
from protocol.runspec import FromFiles
from protocol.sandbox import EnvironmentSandbox
from tests.corpora import hostile
from tests.corpora.hostile import HostileEntry

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
HONEST = "```python\nprint(sum(map(int, input().split())))\n```"
ENTRIES = [entry for entry in hostile.entries() if entry.environment == "code"]
QUICK = [entry for entry in ENTRIES if "within deadline" not in entry.needs]
DISAGREED = ("files-between-tests",)
"""Labelled 0, and worth 1: it takes the working folder, /tmp and home for three, and meets its own file again within one test. That a test
finds nothing of another is seen in test_programs.py."""
ONCE_WRONG = ("time-destructor", "time-sleep-each", "unicode-source-surrogate")
ONE_OF_EACH = [
    next(entry for entry in QUICK if entry.attacks == kind) for kind in dict.fromkeys(e.attacks for e in QUICK)
] + [entry for entry in ENTRIES if entry.id in ONCE_WRONG]


@dataclass
class Outside:
    """What a program must not reach: files, listeners and a process of this account."""

    folder: Path
    secret: str = field(default_factory=lambda: f"SECRET-{secrets.token_hex(16)}")
    heard: list[bytes] = field(default_factory=list)
    port: int = 0

    def __enter__(self) -> Outside:
        self._open = ExitStack()
        precious = self.folder / "precious"
        precious.write_text(self.secret)
        precious.chmod(0o600)
        environment = {**os.environ, "SECRET": self.secret}
        self.bystander = self._open.enter_context(
            subprocess.Popen([sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE)
        )
        for family, kind, address in (
            (socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1"), (socket.AF_INET6, socket.SOCK_STREAM, "::1"),
            (socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"), (socket.AF_UNIX, socket.SOCK_STREAM, ""),
        ):  # fmt: skip
            self._listen(family, kind, address)
        return self

    def _listen(self, family: int, kind: int, address: str) -> None:
        listener = self._open.enter_context(socket.socket(family, kind))
        where: Any = f"\0murmur-{self.port}" if family == socket.AF_UNIX else (address, self.port)
        listener.bind(where)
        if family == socket.AF_INET and kind == socket.SOCK_STREAM:
            self.port = listener.getsockname()[1]
        if kind == socket.SOCK_STREAM:
            listener.listen()
        threading.Thread(target=self._hear, args=(listener,), daemon=True).start()

    def _hear(self, listener: socket.socket) -> None:
        try:
            while True:
                if listener.type == socket.SOCK_STREAM:
                    listener.accept()
                    self.heard.append(b"a connection")
                else:
                    self.heard.append(listener.recv(1 << 16))
        except OSError:  # closed
            return

    def __exit__(self, *_: object) -> None:
        self.bystander.kill()
        self._open.close()

    def require_untouched(self, after: str) -> None:
        precious = self.folder / "precious"
        assert [path.name for path in self.folder.iterdir()] == ["precious"], after
        assert (precious.read_text(), precious.stat().st_mode & 0o777) == (self.secret, 0o600), after
        assert not self.heard, after
        state = Path(f"/proc/{self.bystander.pid}/stat").read_text().rpartition(")")[2].split()
        assert (state[0], state[16]) == ("S", str(os.getpriority(os.PRIO_PROCESS, 0))), after


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    folder = tmp_path / "canary"
    folder.mkdir()
    with Outside(folder) as made:
        yield made


def _row(problem: dict[str, Any], secret: str) -> tuple[str, str]:
    cases = [
        {"type": "function_call", "fn_name": problem["function"], "input": test["arguments"], "output": test["returns"]}
        if problem["function"]
        else {"type": "stdin_stdout", "input": test["stdin"], "output": test["stdout"]}
        for test in problem["tests"]
    ]
    return problem["question"], json.dumps({"test_cases": cases}).replace("@SECRET@", secret)


def _opened(folder: Path, rows: list[tuple[str, str]]) -> EnvironmentSandbox:
    taskfile.write(iter([*rows, rows[0]]), folder / "code.parquet")
    file = taskfile.add(folder / "code.parquet")
    config = {"cpu_seconds": 1, "total_seconds": 4, "memory_mib": 256}
    table = {
        "package": "code", "version": JudgedCode.version, "dataset": "x", "config": config, "files": [file.model_dump()], "size": len(rows),
        "held_out_size": 1, "head": "0" * 64, "exact": False,
    }  # fmt: skip
    return EnvironmentSandbox([FromFiles.model_validate(table)])


@pytest.mark.parametrize(
    "chosen",
    [ONE_OF_EACH, pytest.param(ENTRIES, marks=[pytest.mark.long, pytest.mark.timeout(3000)])],
    ids=["one-of-each", "all"],
)
def test_hostile_programs_earn_what_they_are_worth_and_reach_nothing(
    chosen: list[HostileEntry], outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TASKS_VARIABLE, str(tmp_path / "tasks"))
    problems = {name: problem for name, problem in hostile.problems().items() if problem["environment"] == "code"}
    numbers = {name: number for number, name in enumerate(problems)}
    wrong: dict[str, tuple[float, str]] = {}
    with _opened(tmp_path, [_row(problem, outside.secret) for problem in problems.values()]) as sandbox:
        for entry in chosen:
            text = entry.completion(canary=outside.folder, port=outside.port, bystander=outside.bystander.pid)
            reward, honest = sandbox.score([(numbers[entry.problem], text), (numbers["sum"], HONEST)])
            by_chance = entry.expected == "honest" and entry.honest is None
            if honest != 1.0 or not (by_chance or reward == float(entry.expected == "honest" and entry.honest == 1.0)):
                wrong[entry.id] = (reward, entry.why)
            outside.require_untouched(entry.id)
    assert set(wrong) <= set(DISAGREED), sorted(wrong)
