"""Node.js also calls itself `node`: what is not ours is handed on, whatever environments are active."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from node.contributor.commands import app
from node.contributor.main import COMMANDS
from tests.cli.conftest import Console

OURS = Path(sys.executable).parent / "node"
THEIRS = """#!/bin/sh
echo "javascript: $@"
exit 7
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """PATH with our `node`, that of another environment of ours, and then a stand-in for Node.js."""
    other, real = tmp_path / "other-venv", tmp_path / "real"
    other.mkdir()
    real.mkdir()
    (other / "node").write_text(OURS.read_text())
    (real / "node").write_text(THEIRS)
    for folder in (other, real):
        (folder / "node").chmod(0o755)
    return os.pathsep.join([str(OURS.parent), str(other), str(real), "/usr/bin", "/bin"])


def node(path: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": path, "HOME": "/nonexistent"}
    return subprocess.run(
        ["node", *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL, executable=str(OURS), **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["-e", "1+1"], ["script.js", "start"], ["-h"], ["./start"], ["inspect", "x"], ["-"], ["@start"]],
)
def test_what_is_not_ours_goes_to_the_next_node_on_the_path(path: str, arguments: list[str]) -> None:
    done = node(path, *arguments)
    assert (done.returncode, done.stdout) == (7, f"javascript: {' '.join(arguments)}\n")


@pytest.mark.parametrize(("typed", "meant"), [("statsu", "status"), ("starts", "start"), ("wihtdraw", "withdraw")])
def test_a_mistyped_command_is_answered_with_the_nearest(path: str, typed: str, meant: str, tmp_path: Path) -> None:
    done = node(path, typed, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"No such command '{typed}'. Did you mean '{meant}'" in done.stderr
    for there in (f"{typed}.js", typed):
        (tmp_path / there).touch()
        assert node(path, typed, cwd=tmp_path).stdout == f"javascript: {typed}\n", f"{there} is a program of theirs"
        (tmp_path / there).unlink()


def test_a_word_that_is_no_command_and_no_file_is_answered_by_us(path: str, tmp_path: Path) -> None:
    done = node(path, "balance", cwd=tmp_path)
    assert done.returncode == 2
    assert "node --help" in done.stderr


def test_a_script_with_node_in_its_first_line_runs(path: str, tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text("#!/usr/bin/env node\n")
    script.chmod(0o755)
    done = subprocess.run(
        [script, "a", "b"], env={"PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (7, f"javascript: {script} a b\n")


def test_without_arguments_or_with_help_it_is_ours(path: str) -> None:
    for arguments in ([], ["--help"]):
        done = node(path, *arguments)
        assert done.returncode in (0, 2)
        assert "Stake, lend a GPU" in done.stdout + done.stderr
    assert "javascript" not in node(path, "status", "--home", "/nonexistent").stdout


@pytest.mark.parametrize("words", [(), ("node",), ("node", "config"), ("chain",), ("trainer",)])
def test_a_group_without_a_command_prints_its_help_and_no_error(console: Console, words: tuple[str, ...]) -> None:
    done = console.murmur(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(" ".join(["Usage: murmur", *words]))
    assert "error:" not in done.err


def test_a_mistyped_group_is_answered_with_the_nearest(console: Console) -> None:
    done = console.murmur("nod", "status")
    assert (done.code, "No such command 'nod'. Did you mean 'node'" in done.err) == (2, True)


def test_without_node_js_it_says_so(path: str) -> None:
    done = node(os.pathsep.join(path.split(os.pathsep)[:2]), "script.js")
    assert done.returncode == 2
    assert "Node.js is not installed" in done.stderr


def test_a_stranger_on_the_path_that_cannot_be_read_is_no_obstacle(path: str, tmp_path: Path) -> None:
    (tmp_path / "other-venv/node").unlink()
    (tmp_path / "other-venv/node").mkdir()
    assert node(path, "--version").returncode == 7


def test_the_list_of_commands_is_that_of_the_app() -> None:
    group = typer.main.get_command(app)
    assert set(group.commands) == COMMANDS  # type: ignore[attr-defined]


def test_every_command_that_a_text_names_exists() -> None:
    """Hints and next steps: `node …` and `murmur … …` anywhere in the product's texts."""
    from importlib.metadata import entry_points

    known = {f"node {name}" for name in COMMANDS}
    for point in entry_points(group="murmuration.commands"):
        group = typer.main.get_command(point.load())
        known |= {f"murmur {point.name} {name}" for name in group.commands}  # type: ignore[attr-defined]
    named = set()
    root = Path(__file__).resolve().parents[2]
    for file in (root / "node").rglob("*.py"):
        text = file.read_text()
        named |= {f"node {word}" for word in re.findall(r"[`\"]node ([a-z]+)[ `\"]", text)}
        named |= {f"murmur {a} {b}" for a, b in re.findall(r"[`\" ]murmur ([a-z]+) ([a-z]+)", text)}
    assert named - known - {"node key"} == set()  # a label
