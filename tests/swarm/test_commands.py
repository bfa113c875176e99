"""The commands that set a swarm up: how long one may take, and what is told of one that does not end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from swarm import demo, devnet, pages
from swarm import swarm as swarm_module
from swarm.pace import Patience
from swarm.processes import ROOT, command_line, wait_until
from swarm.remains import PROCESSES
from swarm.settings import SwarmSettings, run_file
from swarm.swarm import CommandFailed, Member, Swarm, here, how_to_look_around

from protocol.errors import ConfigError
from protocol.settings import write_toml
from protocol.shell.home import write_json
from tests.page.made_node import CONTRACT, MadeNode


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


def test_why_a_policy_could_not_be_made_is_told_at_once(
    swarm: Callable[[str, float], Swarm], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = swarm("echo no environment is called sums here >&2; exit 3", 1.0)
    monkeypatch.setattr(swarm_module, "COMMAND_SECONDS", 60.0)  # which it does not wait for
    with ThreadPoolExecutor(1) as pool, pytest.raises(CommandFailed, match="no environment is called sums here"):
        broken._await_weights(pool.submit(broken._make_policy))


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


FOREGROUND = """
import sys
from pathlib import Path
from types import SimpleNamespace
from swarm import devnet
from swarm.processes import Process

def up(swarm, say):
    swarm.folder.mkdir()
    swarm.anvil = SimpleNamespace(rpc="")
    swarm._keep(Process("role", ["sleep", "600"], swarm.folder / "log", detach=swarm._detach))

devnet.FOLDER = Path(sys.argv[1])
devnet.Swarm.up, devnet._open_to_others = up, lambda swarm: "card.json"
devnet.how_to_look_around = lambda swarm, pages, stop: f"{swarm.processes[0].pid} {stop}"
devnet._how_to_join, devnet.pages.awaited = lambda *_: "", lambda swarm: {}
sys.exit(devnet.up(0, None, foreground=True))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_devnet_in_the_foreground_ends_with_all_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", FOREGROUND, tmp_path / "devnet"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as devnet_up:
        assert devnet_up.stdout
        pid, stop = devnet_up.stdout.readline().split()
        devnet_up.send_signal(number)
        assert devnet_up.wait(20) == (0 if number != signal.SIGKILL else -number)
        assert (stop, devnet_up.stdout.read().strip()) == ("Ctrl-C", "")
    wait_until(lambda: not command_line(int(pid)), deadline=5, what="its process has ended")


def test_a_file_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devnet, "FOLDER", tmp_path / "devnet")
    assert devnet.up(0, tmp_path / "run.toml") == ConfigError.exit_code
    assert capsys.readouterr().err == f"error: cannot read {tmp_path / 'run.toml'}: No such file or directory\n"


def test_the_status_of_a_devnet_says_what_its_trainer_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devnet, "FOLDER", tmp_path)
    nobody = "0x" + "0" * 40
    tables = run_file(
        SwarmSettings(), [{"package": "calculator", "dataset": "any", "seed": 1, "size": 9, "held_out_seed": 2, "held_out_size": 2}],
        rpc="", contract=nobody, chain_id=1, run=1, trainer=nobody, bootnode="", first_block=0,
    )  # fmt: skip
    write_json(tmp_path / PROCESSES, [{"name": "trainer", "pid": os.getpid()}])
    assert devnet.status() == 1
    assert "trainer: cannot read" in capsys.readouterr().out
    write_toml(tmp_path / "run.toml", tables, "A run for tests.")
    assert devnet.status() == 1
    assert "\ntrainer: starting\n" in capsys.readouterr().out
    learnt = {"step": 6, "reward": 0.25, "reward_by_environment": {"any": 0.25}}
    said = {"state": "training", "step": 7, "steps": 9, "metrics": learnt, "evaluations": []}
    (tmp_path / "output").mkdir()
    write_json(tmp_path / "output/status.json", said)
    devnet.status()
    assert "\ntrainer: step 7 of 9: training\n  reward 0.250 at step 6\nchain: " in capsys.readouterr().out


@pytest.mark.parametrize("elsewhere", [True, False])
def test_what_to_type_beside_a_swarm_works_where_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    swarm = Swarm(tmp_path, SwarmSettings())
    swarm.nodes, swarm.validators = [Member("node-0", tmp_path, "")], [Member("validator-0", tmp_path, "")]
    monkeypatch.chdir(tmp_path if elsewhere else ROOT)
    (tmp_path / "output/hub").mkdir(parents=True)
    assert pages.addresses(swarm) == {}
    named = re.findall(r"\S*(?:\.venv/bin|scripts)/\w+", how_to_look_around(swarm, {}, f"{here()}scripts/devnet down"))
    assert len(named) == 7
    write_json(tmp_path / "output/hub/status.json", {"page": "http://127.0.0.1:9/run/1/"})
    write_json(tmp_path / "output/status.json", {"page_url": "http://127.0.0.1:8500/"})
    found = pages.addresses(swarm)
    assert found == {"the run": "http://127.0.0.1:9/run/1/", "the trainer": "http://127.0.0.1:8500/"}
    assert pages.awaited(swarm, seconds=60) == found, "nobody is waited for"
    (tmp_path / "output/status.json").unlink()
    late = threading.Timer(0.1, write_json, (tmp_path / "output/status.json", {"page_url": "http://127.0.0.1:8500/"}))
    late.start()
    assert pages.awaited(swarm, seconds=60) == found
    assert "  the trainer http://127.0.0.1:8500/\n" in how_to_look_around(swarm, found, "Ctrl-C")
    assert [name for name in named if not Path(name).exists()] == []


@pytest.mark.parametrize(
    "text", ["[spec]", "spec = 1", "[spec]\nsampling = 3\n[[spec.environments]]\npackage = 'calculator'"]
)
def test_a_file_that_says_nothing_of_environments_starts_no_devnet(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError):
        devnet._asked(tmp_path / "run.toml")


def test_what_is_kept_shows_the_pages_of_nodes_that_have_ended_until_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    swarm = Swarm(tmp_path, SwarmSettings())
    swarm.anvil = SimpleNamespace(rpc="http://127.0.0.1:1")  # type: ignore[assignment]
    made = MadeNode(tmp_path)
    write_toml(
        made.place.config,
        {"chain": {"rpc": swarm.anvil.rpc, "contract": CONTRACT, "chain_id": 31337, "run": 1}, "page": {"port": 0}},
        "A node.",
    )
    swarm.nodes, swarm.validators = [Member("node-0", made.place.path, "")], [Member("validator-0", tmp_path, "")]
    answers: list[int] = []

    def look() -> None:
        (url,) = re.findall(r"^  node-0 +(http://\S+)$", capsys.readouterr().out, re.MULTILINE)
        answers.append(httpx.get(url, timeout=30).status_code)
        raise KeyboardInterrupt

    monkeypatch.setattr(swarm, "require_running", look)
    try:
        demo._stay(swarm)
    finally:
        swarm.down()
    assert answers == [200] and "stopping everything" in capsys.readouterr().err
