"""The help of our scripts: it is there before anything is installed, and says what the programs behind it say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from swarm import demo, devnet
from swarm.interruption import Interruption

ROOT = Path(__file__).resolve().parents[2]
MAINS = {"demo": lambda: demo.main(Interruption()), "devnet": devnet.main}


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A clone on a machine that nothing was set up on; a set-up would fail."""
    (tmp_path / "scripts").mkdir()
    for name in (*MAINS, "test", "test-vllm", "setup-vllm", "test-verifiers", "gpu-report", "release", "install"):
        (tmp_path / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
    return tmp_path


def shown(clone: Path, *command: str) -> str:
    """What it prints; it must end well without a set-up."""
    line = ["/bin/bash", f"scripts/{command[0]}", *command[1:]]
    done = subprocess.run(line, cwd=clone, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=30, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("arguments", [["demo", "--help"], ["demo", "--steps", "6", "-h"], ["devnet", "--help"], ["devnet", "up", "-h"]])  # fmt: skip
def test_help_needs_no_set_up_and_is_the_programs_own(
    bare: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [arguments[0], "--help"])
    monkeypatch.setenv("COLUMNS", "200")  # no line breaks within words
    with pytest.raises(SystemExit):
        MAINS[arguments[0]]()
    assert shown(bare, *arguments).split() == capsys.readouterr().out.split()


def test_what_needs_vllm_says_how_it_is_run(bare: Path) -> None:
    assert "scripts/test-vllm PATH" in shown(bare, "test-vllm", "-h")
    assert "MURMUR_VLLM=/path/to/env" in shown(bare, "setup-vllm", "--help")


def test_the_gpu_report_says_how_it_is_run(bare: Path) -> None:
    told = shown(bare, "gpu-report", "--help")
    for way in (
        "scripts/gpu-report --dry-run",
        "scripts/gpu-report --pack",
        "scripts/gpu-report --wheels",
        "--seconds",
    ):
        assert way in told


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_the_tests_say_how_they_are_run(bare: Path, option: str) -> None:
    told = shown(bare, "test", option)
    for way in ("scripts/test quick", "scripts/test gpu", "scripts/test PATH", "scripts/test --long"):
        assert way in told


def test_a_flag_that_the_tests_do_not_know_is_refused_before_any_set_up(bare: Path) -> None:
    command = ["/bin/bash", "scripts/test", "--lnog"]
    done = subprocess.run(command, cwd=bare, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=30, check=False)  # fmt: skip
    assert done.returncode == 2
    assert "--long" in done.stderr


def test_a_release_says_how_it_is_made(bare: Path) -> None:
    assert "--output FOLDER" in shown(bare, "release", "--help")
