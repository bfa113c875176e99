"""The commands that set a swarm up: how long one may take, and what is told of one that does not end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from swarm import devnet
from swarm import swarm as swarm_module
from swarm.pace import Patience
from swarm.settings import SwarmSettings, run_file
from swarm.swarm import CommandFailed, Swarm

from protocol.errors import ConfigError


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


def test_a_devnet_takes_environments_and_sampling_of_a_run_file_and_pays_for_as_many_tokens(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        '[spec.sampling]\nturns = 2\nreply_tokens = 8\nmax_new_tokens = 64\n[[spec.environments]]\npackage = "calculator"\nfiles = ["a.parquet"]\n'
    )
    settings = SwarmSettings(**devnet._asked(tmp_path / "run.toml"))
    assert settings.environments == ({"package": "calculator", "files": [str(tmp_path / "a.parquet")]},)
    tables = run_file(
        settings, settings.environments, rpc="", contract="", chain_id=1, run=1, trainer="", bootnode="", first_block=0
    )
    sampling = tables["spec"]["sampling"]
    assert (sampling["turns"], sampling["max_new_tokens"], sampling["group_size"]) == (2, 64, 16), (
        "the rest is the demo's"
    )
    assert tables["policy"]["max_units"] == 64 * 16 * sampling["groups_per_submission"]


def test_every_file_that_a_devnets_environment_names_is_as_seen_from_the_run_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        '[[spec.environments]]\npackage = "retrieval"\nfiles = ["a.parquet"]\ncorpus = ["b.parquet", "/c.parquet"]\nkept = "d.kept"\n'
    )
    (table,) = devnet._asked(tmp_path / "run.toml")["environments"]
    assert table["corpus"] == [str(tmp_path / "b.parquet"), "/c.parquet"]
    assert table["kept"] == str(tmp_path / "d.kept")


def test_a_file_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devnet, "FOLDER", tmp_path / "devnet")
    assert devnet.up(0, tmp_path / "run.toml") == ConfigError.exit_code
    assert capsys.readouterr().err == f"error: cannot read {tmp_path / 'run.toml'}: No such file or directory\n"


@pytest.mark.parametrize(
    "text", ["[spec]", "spec = 1", "[spec]\nsampling = 3\n[[spec.environments]]\npackage = 'calculator'"]
)
def test_a_file_that_says_nothing_of_environments_starts_no_devnet(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError):
        devnet._asked(tmp_path / "run.toml")
