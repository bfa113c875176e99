"""The services in scripts/systemd start what there is, are stopped in time, and leave the sandbox what it needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from protocol import errors

STOP_SECONDS = 5.0
"""In which roles stop that have nothing to finish (tests/cli/test_processes.py)."""
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "/usr/local/bin/murmur"
UNITS = sorted((ROOT / "scripts" / "systemd").glob("*.service"))
ROLES = ["bootnode", "hub", "node", "relay", "trainer", "validator"]
RUN_STRANGERS_PROGRAMS = {"node", "trainer", "validator"}
BREAK_THE_SANDBOX = {
    "RestrictNamespaces", "ProtectProc", "ProcSubset", "ProtectKernelTunables", "ProtectKernelLogs", "ProtectKernelModules",
    "ProtectControlGroups", "LockPersonality", "SystemCallFilter", "MemoryDenyWriteExecute", "PrivateDevices", "PrivateUsers",
    "DynamicUser",
}  # fmt: skip


def role_of(unit: Path) -> str:
    return unit.stem.removeprefix("murmur-")


def settings(unit: Path) -> dict[str, str]:
    """None of ours is given twice."""
    pairs = [line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#")]
    assert len({name for name, _ in pairs}) == len(pairs)
    return {name: value for name, value in pairs}


def test_there_is_one_for_each_role() -> None:
    assert [role_of(unit) for unit in UNITS] == ROLES


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze")
def test_systemd_takes_them(tmp_path: Path) -> None:
    for unit in UNITS:
        text = unit.read_text().replace(PROGRAM, sys.executable)
        (tmp_path / unit.name).write_text(text)
    command = ["systemd-analyze", "verify", "--recursive-errors=no", *sorted(map(str, tmp_path.iterdir()))]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=role_of)
def test_it_starts_a_command_that_there_is_with_options_that_it_has(unit: Path) -> None:
    program, *words = settings(unit)["ExecStart"].split()
    assert program == PROGRAM
    names = [word for word in words if not word.startswith(("-", "/", "@", "%"))]
    reference = (ROOT / "docs" / "reference-cli.md").read_text()
    heading = f"### `murmur {' '.join(names)}`\n"
    assert heading in reference
    options = reference.split(heading)[1].split("\n### ")[0]
    for word in words:
        if word.startswith("--"):
            assert f"- `{word}`" in options
    assert ("- `FILE`" in options) == any(word.startswith("@") for word in words)


@pytest.mark.parametrize("unit", UNITS, ids=role_of)
def test_it_has_time_to_stop_and_files_to_open_and_does_not_start_what_cannot_run(unit: Path) -> None:
    given = settings(unit)
    assert float(given["TimeoutStopSec"]) >= 3 * STOP_SECONDS
    assert given["KillMode"] == "mixed", "or children end under a role that has something to finish"
    assert int(given["LimitNOFILE"]) >= 8192
    assert int(given["StartLimitBurst"]) * float(given["RestartSec"]) >= float(given["StartLimitIntervalSec"]), (
        "or it stays down in the end"
    )
    kept_down = {int(code) for code in given["RestartPreventExitStatus"].split()}
    known = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.MurmurationError)
    }
    assert kept_down == known - {errors.MurmurationError.exit_code, errors.ChainError.exit_code}


@pytest.mark.parametrize("unit", UNITS, ids=role_of)
def test_who_runs_programs_of_strangers_keeps_what_their_sandbox_is_made_of(unit: Path) -> None:
    given = settings(unit)
    broken = BREAK_THE_SANDBOX & given.keys()
    assert bool(broken) == (role_of(unit) not in RUN_STRANGERS_PROGRAMS)
    assert given["NoNewPrivileges"] == "yes"
    assert given["ProtectSystem"] == "strict"
    assert given["CapabilityBoundingSet"] == ""


def test_operators_are_told_of_each() -> None:
    page = (ROOT / "docs" / "network.md").read_text()
    for unit in UNITS:
        assert f"`{unit.name}`" in page


def test_one_link_leads_to_the_program_of_a_release_or_of_a_clone() -> None:
    """systemd takes no variable for a program, and no unit has to be edited."""
    page = (ROOT / "docs" / "network.md").read_text()
    for program in ("/opt/murmuration/bin/murmur", "/opt/murmuration/.venv/bin/murmur"):
        assert f"ln -s {program} {PROGRAM}" in page
    for unit in UNITS:
        assert "/opt/" not in unit.read_text()
