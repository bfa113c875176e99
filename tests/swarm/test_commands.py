"""The commands that set a swarm up: how long one may take, and what is told of one that does not end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from swarm import swarm as swarm_module
from swarm.pace import Patience
from swarm.settings import SwarmSettings
from swarm.swarm import CommandFailed, Swarm


@pytest.fixture
def swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], Swarm]:
    """A swarm whose every command is this line of shell, on a machine so many times as slow as a free one."""

    def made(command: str, slowness: float) -> Swarm:
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\n{command}\n")
        program.chmod(0o755)
        monkeypatch.setattr(swarm_module, "sys", SimpleNamespace(executable=str(program)))
        monkeypatch.setattr(swarm_module, "COMMAND_SECONDS", 0.1)
        monkeypatch.setattr(swarm_module, "Patience", lambda seconds: Patience(seconds, measure=lambda: slowness))
        return Swarm(tmp_path, SwarmSettings())

    return made


def test_a_command_may_take_longer_on_a_slow_machine(swarm: Callable[[str, float], Swarm]) -> None:
    assert swarm("sleep 2; echo done", 1000.0).murmur("node", "stake") == "done\n"


@pytest.mark.parametrize(
    ("slowness", "hint"),
    [(1.0, "see below what the programs were doing"), (4.0, "end other work on this machine and run it again")],
)
def test_what_a_command_that_hangs_had_printed_is_told(
    swarm: Callable[[str, float], Swarm], slowness: float, hint: str
) -> None:
    with pytest.raises(
        CommandFailed, match=r"(?s)`murmur node stake` had not ended within .*asking the chain"
    ) as failed:
        swarm("echo asking the chain >&2; exec sleep 60", slowness).murmur("node", "stake")
    assert failed.value.hint == hint
