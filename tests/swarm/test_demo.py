"""The demo as a program: what ends it, what it leaves behind, and that it depends on what it says it depends on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from swarm import promises
from swarm.accident import Interrupted
from swarm.demo import Demo
from swarm.display import Display
from swarm.processes import ROOT
from swarm.settings import SwarmSettings
from swarm.swarm import PROCESSES, Member, Swarm, remembered, stop_remembered
from swarm.watch import Seen

from protocol.errors import MurmurationError
from protocol.home import write_json
from protocol.identity import Key

pytestmark = pytest.mark.swarm


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
    command = [sys.executable, "-m", "swarm.demo", "--folder", str(folder), *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def processes_of(folder: Path) -> list[str]:
    """Command lines that name the folder, and whatever else was started from there."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line and "swarm.demo" not in line:
            found.append(line)
    return found


def eventually(condition: Callable[[], bool], within: float) -> bool:
    until = time.monotonic() + within
    while not condition() and time.monotonic() < until:
        time.sleep(0.1)
    return condition()


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [1, 8, 20, 40])
def test_ctrl_c_at_any_moment_stops_every_process(tmp_path: Path, seconds: int, number: int) -> None:
    folder = tmp_path / "swarm"
    with demo(folder, "--steps", "6", "--no-gain") as process:
        time.sleep(seconds)
        if seconds > 5:
            assert processes_of(folder), "it started something"
        process.send_signal(number)
        # Python may not have got as far as to hear of it; then nothing was started either.
        assert process.wait(30) in ({130, -number} if seconds == 1 else {130})
    assert eventually(lambda: not processes_of(folder), within=5), processes_of(folder)


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks into /proc")
def test_a_killed_demo_takes_its_swarm_with_it_and_the_next_one_starts_clean(tmp_path: Path) -> None:
    folder = tmp_path / "swarm"
    with demo(folder, "--steps", "6", "--no-gain") as process:
        assert eventually(lambda: len(processes_of(folder)) > 3, within=60)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert eventually(lambda: not processes_of(folder), within=5), processes_of(folder)
    with demo(folder, "--steps", "2", "--no-gain") as process:
        assert eventually((folder / "logs/trainer.log").exists, within=90), "everything was set up anew"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


@pytest.mark.long
@pytest.mark.timeout(500)
def test_without_the_bootnode_the_demo_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told where hub and relay are: they are found through the bootnode or not at all."""
    nobody = f"/ip4/127.0.0.1/tcp/9/p2p/{Key.generate().peer_id}"
    monkeypatch.setattr(Swarm, "_start_bootnode", lambda self: nobody)
    environment = {**SwarmSettings().environment, "MURMUR_PEERS__FIND_SECONDS": "20"}
    story = Demo(SwarmSettings(steps=2, environment=environment), Display("without"), tmp_path / "swarm")
    try:
        with pytest.raises(MurmurationError, match="no bootnode is reachable"):
            story.run(require_gain=False)
    finally:
        story.swarm.down()


def test_a_second_verdict_and_a_lost_one_are_broken_promises() -> None:
    validator, work = Member("validator-0", Path(), Key.generate().address), b"\x01" * 32
    receipt = SimpleNamespace(validator=validator.address)
    watch: Any = SimpleNamespace(
        seen=Seen(), name=lambda address: "validator-0", work_name=lambda work: "step 0.0 of node-0"
    )
    killed = Interrupted(validator, work)
    watch.seen.receipts[work] = [receipt]
    assert list(promises.verdicts(watch, killed)) == []
    assert list(promises.verdicts(watch, None)) == ["no validator could be killed while it judged"]
    watch.seen.receipts[work] = [receipt, receipt]
    assert list(promises.verdicts(watch, killed)) == ["validator-0 gave 2 verdicts on step 0.0 of node-0"]
    watch.seen.receipts.clear()
    lost = "validator-0, killed while it judged step 0.0 of node-0, never gave its verdict"
    assert list(promises.verdicts(watch, killed)) == [lost]


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "swarm"
    with demo(folder, "--steps", "2", "--no-gain") as first:
        assert eventually((folder / "processes.json").exists, within=60)
        with demo(folder) as second:
            shown, _ = second.communicate(timeout=60)
            assert second.returncode == 7
            assert f"is in use by process {first.pid}" in shown
        assert first.poll() is None, "and the first one goes on"
        first.send_signal(signal.SIGINT)
        assert first.wait(30) == 130


def test_a_number_that_another_process_has_now_is_left_alone(tmp_path: Path) -> None:
    """Process numbers come round again; what a swarm noted down may be anybody's by now."""
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        write_json(tmp_path / PROCESSES, [{"name": "anvil", "pid": stranger.pid}])
        assert remembered(tmp_path) == []
        assert stop_remembered(tmp_path) == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with demo(tmp_path) as process:
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "would be lost" in shown
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
