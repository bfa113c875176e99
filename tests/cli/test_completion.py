"""Completion in a real bash, by the installed console scripts, also where another `node` is Node.js."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from swarm.pace import Patience

from protocol.shell.completion import candidates
from tests.cli.conftest import Console

OURS = Path(sys.executable).parent
NODE_JS = "#!/bin/sh\ntouch started\n"


class Terminal:
    """Somebody at a bash who types, and presses TAB."""

    def __init__(self, folder: Path) -> None:
        path = f"{OURS}:/usr/bin:/bin"
        environment = os.environ | {"PATH": path, "PS1": "> ", "TERM": "dumb", "HOME": str(folder)}
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], environment)

    def type(self, text: str, until: str) -> str:
        """Types, and reads until that is shown."""
        os.write(self._fd, text.encode())
        patience, shown = Patience(20.0), ""
        while not re.search(until, shown):
            assert not patience.ended(), f"{until} was not shown, but {shown!r}"
            if select.select([self._fd], [], [], 0.1)[0]:
                shown += os.read(self._fd, 65536).decode("utf-8", "replace")
        return shown

    def clear(self) -> None:
        os.write(self._fd, b"\x15")

    def close(self) -> None:
        os.close(self._fd)
        os.waitpid(self._pid, 0)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    made.type('eval "$(murmur completion bash)"; echo rea""dy\n', "ready")
    yield made
    made.close()


def test_a_tab_completes_commands_options_and_files(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "program.js").touch()
    (tmp_path / "run.toml").touch()
    for typed, becomes in (
        ("murmur bootn", "murmur bootnode "),
        ("node rewa", "node rewards "),
        ("node status --home=/nowhere --w", "--watch "),
        ("murmur trainer status @run", "@run.toml "),
        ("node prog", "node program.js "),
    ):
        terminal.type(f"{typed}\t", re.escape(becomes))
        terminal.clear()


def test_node_js_is_not_started_by_a_tab(terminal: Terminal, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "node").write_text(NODE_JS)
    (other / "node").chmod(0o755)
    (tmp_path / "statistics.js").touch()
    terminal.type(f'PATH={other}:$PATH; echo mo""ved\n', "moved")
    terminal.type("node stat\t", r"node statistics\.js ")
    assert not (tmp_path / "started").exists()
    terminal.clear()
    terminal.type("murmur node rewa\t", "murmur node rewards ")


@pytest.mark.parametrize(
    "words, found",
    [
        (["node", "sta"], ["stake", "start", "status"]),
        (["bootn"], ["bootnode"]),
        (["trainer", "hub", ""], ["start", "rebuild"]),
        (["node", "status", "--home", "x", "--j"], ["--json"]),
        (["node", "status", "--home", ""], []),
        (["node", "status", "--watch", "--js"], ["--json"]),
        (["chain", "deploy", "--network", "base"], ["base-sepolia", "base"]),
        (["chain", "deploy", "--network", "=", "base-"], ["base-sepolia"]),
        (["completion", ""], ["bash", "zsh"]),
        (["nodes", "sta"], []),
        (["compl"], ["completion"]),
    ],
)
def test_what_a_word_may_become(console: Console, words: list[str], found: list[str]) -> None:
    done = console.murmur("complete", "--", *words)
    assert [line.partition("\t")[0] for line in done.out.splitlines()] == found, done.err


def test_nothing_typed_yet_may_become_any_group() -> None:
    import typer

    from protocol.shell.cli import app

    found = dict(candidates(typer.main.get_command(app), []))
    assert {"node", "relay", "completion"} <= set(found)
    assert "complete" not in found
    assert "\n" not in "".join(found.values())


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_what_a_shell_is_given_is_a_script_of_it(console: Console, shell: str) -> None:
    done = console.murmur("completion", shell)
    assert (done.code, "murmur complete --" in done.out) == (0, True)
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.out, text=True, check=True, timeout=20)
    assert console.murmur("completion", "tcsh").code == 2
