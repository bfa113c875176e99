"""The demo as a program: what ends it, what it leaves behind, and that it depends on what it says it depends on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from swarm import promises, summary
from swarm.accident import Interrupted
from swarm.demo import Demo
from swarm.display import Display
from swarm.ending import Payout
from swarm.memory import Watermark
from swarm.processes import ROOT
from swarm.remains import PROCESSES, remembered, stop_remembered
from swarm.settings import SwarmSettings
from swarm.swarm import Member, Swarm
from swarm.watch import Seen

from node.judging.rules import available
from protocol.chain.types import Stage
from protocol.errors import MurmurationError
from protocol.identity import Key
from protocol.shell.home import write_json
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome
from tests.clock import eventually

pytestmark = pytest.mark.swarm


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
    command = [sys.executable, "-m", "swarm", "--folder", str(folder), *arguments]
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
        if str(folder) in line and "-m swarm " not in line:
            found.append(line)
    return found


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [1, 8, 20, 40])
def test_ctrl_c_at_any_moment_stops_every_process(tmp_path: Path, seconds: int, number: int) -> None:
    folder = tmp_path / "swarm"
    with demo(folder, "--steps", "6", "--no-gain") as process:
        time.sleep(seconds)
        if seconds > 5:
            eventually(lambda: processes_of(folder), within=120, what="something that it started")
        process.send_signal(number)
        # Python may not have got as far as to hear of it; then nothing was started either.
        assert process.wait(30) in ({130, -number} if seconds == 1 else {130})
    eventually(lambda: not processes_of(folder), within=5, what="the end of every process")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks into /proc")
def test_a_killed_demo_takes_its_swarm_with_it_and_the_next_one_starts_clean(tmp_path: Path) -> None:
    folder = tmp_path / "swarm"
    with demo(folder, "--steps", "6", "--no-gain") as process:
        eventually(lambda: len(processes_of(folder)) > 3, within=240, what="a swarm")
        process.send_signal(signal.SIGKILL)
        process.wait()
    eventually(lambda: not processes_of(folder), within=5, what="the end of every process")
    (folder / "logs/trainer.log").unlink(missing_ok=True)  # how far the first had come is chance
    with demo(folder, "--steps", "2", "--no-gain") as process:
        # Set up in 30 s; 60 and 90 were too few on two cores with much other work.
        eventually((folder / "logs/trainer.log").exists, within=240, what="a swarm that was set up anew")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


@pytest.mark.long
@pytest.mark.chain
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


NODE, VALIDATOR = Key.generate().address, Key.generate().address
HONEST = Member("node-0", Path(), NODE)
KILLED = Interrupted(Member("validator-0", Path(), VALIDATOR), b"\x01" * 32)


@pytest.fixture
def watch() -> Any:
    return SimpleNamespace(
        seen=Seen(), name=lambda address: "validator-0", submission_name=lambda submission: "step 0.0 of node-0"
    )


def receipt(outcome: Outcome, rule: str = "", measured: str = "") -> Any:
    details = SimpleNamespace(node=NODE, rule=rule, measured=measured, detail="why")
    return SimpleNamespace(validator=VALIDATOR, outcome=outcome, details=details)


def late() -> Any:
    return receipt(Outcome.SOFT, "available", available.missing(120).measured)


def case(watch: Any, verdict: Stage, *submissions: int, hard: bool = False) -> None:
    """Settles a case against the honest node about its submissions of these numbers."""
    number = len(watch.seen.settled)
    for sequence in submissions:
        event: Any = SimpleNamespace(
            node=NODE, step=0, sequence=sequence, root=bytes(32), run=1, seat=NODE, number=number
        )
        watch.seen.challenged.append((None, event))
    is_upheld = verdict == Stage.UPHELD
    upheld = (1 << len(submissions)) - 1 if is_upheld else 0
    watch.seen.settled.append(SimpleNamespace(seat=NODE, number=number, upheld=upheld, convicted=is_upheld and hard))


def submission(sequence: int) -> bytes:
    return SubmissionRef(NODE, 0, sequence, bytes(32)).submission_id(1)


def test_a_second_verdict_and_a_lost_one_are_broken_promises(watch: Any) -> None:
    accepted = receipt(Outcome.ACCEPT)
    watch.seen.receipts[KILLED.submission] = [accepted]
    assert list(promises.verdicts(watch, KILLED)) == []
    assert list(promises.verdicts(watch, None)) == ["no validator could be killed while it judged"]
    watch.seen.receipts[KILLED.submission] = [accepted, accepted]
    assert list(promises.verdicts(watch, KILLED)) == ["validator-0 gave 2 verdicts on step 0.0 of node-0"]
    watch.seen.receipts.clear()
    lost = "validator-0, killed while it judged step 0.0 of node-0, never gave its verdict"
    assert list(promises.verdicts(watch, KILLED)) == [lost]


@pytest.mark.parametrize("outcome", [Outcome.SOFT, Outcome.HARD])
def test_an_interrupted_judgement_that_does_not_accept_is_a_broken_promise(watch: Any, outcome: Outcome) -> None:
    watch.seen.receipts[KILLED.submission] = [receipt(outcome, "computation")]
    (told,) = promises.verdicts(watch, KILLED)
    assert told.endswith(f"step 0.0 of node-0, found it {outcome.name.lower()}: computation (why)")
    watch.seen.receipts[KILLED.submission] = [late()]
    assert list(promises.verdicts(watch, KILLED)), "its file was there when the judgement began"


@pytest.mark.parametrize("outcome", [Outcome.SOFT, Outcome.HARD])
def test_a_verdict_against_an_honest_node_is_a_broken_promise(watch: Any, outcome: Outcome) -> None:
    watch.seen.receipts[submission(0)] = [receipt(Outcome.ACCEPT)]
    assert list(promises.punished(watch, HONEST)) == []
    watch.seen.receipts[submission(0)].append(receipt(outcome, "sampling", "0.2"))
    (told,) = promises.punished(watch, HONEST)
    assert told.startswith(f"node-0 is honest and got a {outcome.name.lower()} verdict by sampling")
    watch.seen.receipts[submission(0)] = [receipt(outcome, "available", "70000 bytes")]
    assert list(promises.punished(watch, HONEST)), "slowness makes no file too large"


def test_a_file_that_came_too_late_is_no_broken_promise(watch: Any) -> None:
    watch.seen.receipts[submission(0)] = [late()]
    case(watch, Stage.UPHELD, 0)
    assert list(promises.punished(watch, HONEST)) == []
    case(watch, Stage.UPHELD, 0, 1)
    assert list(promises.punished(watch, HONEST)) == ["node-0 is honest, and the soft case 1 against it was upheld"]


def test_an_upheld_case_against_an_honest_node_is_a_broken_promise(watch: Any) -> None:
    case(watch, Stage.CLEARED, 0)
    case(watch, Stage.UNDECIDED, 0, hard=True)
    assert list(promises.punished(watch, HONEST)) == []
    case(watch, Stage.UPHELD, 0, hard=True)
    assert list(promises.punished(watch, HONEST)) == ["node-0 is honest, and the hard case 2 against it was upheld"]


def learned(watch: Any, scores: list[float], **counted: tuple[int, float]) -> list[str]:
    """Promises of learning that are broken with these held-out scores of the first kind; `counted`: samples and their rewards."""
    watch.kinds = {"matrices": "reasoning-gym", "programs": "code"}
    watch.trainer = {
        "evaluations": [{"by_environment": {"matrices": score, "programs": 0.0}} for score in scores],
        "data": {"environments": {name: {"samples": n, "task_reward": sum_} for name, (n, sum_) in counted.items()}},
    }
    return list(promises._learning(watch))


def test_the_first_kind_must_be_learned_and_no_other_may_be_missing(watch: Any) -> None:
    came = {"matrices": (16, 8.0), "programs": (16, 1.0)}
    assert learned(watch, [0.3, 0.5, 0.7], **came) == [], "code need not be learned"
    assert learned(watch, [0.3, 0.4, 0.5], **came) == [
        "held-out accuracy of reasoning-gym rose by 0.150, less than 0.3"
    ]
    assert learned(watch, [0.3, 0.7], **came | {"programs": (16, 0.0)}) == [
        "no answer of programs (code) earned anything"
    ]
    del came["programs"]
    assert learned(watch, [0.3, 0.7], **came) == ["no accepted answer of programs (code) came in"]


@pytest.mark.parametrize(
    ("peak", "broken"), [(None, []), (8 << 30, []), (9 << 30, ["the swarm took 9.0 GiB of memory, more than 8.0 GiB"])]
)
def test_more_than_eight_gibibytes_are_a_broken_promise(watch: Any, peak: int | None, broken: list[str]) -> None:
    watch.trainer, watch.served = {"step": 1}, {"origin": 2, "relay-0": 3}
    watch.seen.receipts[KILLED.submission] = [receipt(Outcome.ACCEPT)]
    swarm: Any = SimpleNamespace(settings=SwarmSettings(steps=1), nodes=[], relays=("relay-0",))
    paid = Payout(HONEST, early=0, pending=1, claimed=1, expected=1)
    assert list(promises.broken(swarm, watch, [paid], KILLED, peak, require_gain=False)) == broken


@pytest.mark.parametrize(
    ("served", "broken"),
    [
        ({"origin": 4, "relay-0": 6, "relay-1": 0}, []),
        ({"origin": 5, "relay-0": 3, "relay-1": 2}, ["the origin sent 50% of all bytes of weights, more than 40%"]),
        ({"origin": 0, "relay-0": 0}, ["the origin sent 100% of all bytes of weights, more than 40%"]),
    ],
)
def test_weights_that_the_origin_sends_itself_are_a_broken_promise(
    watch: Any, served: dict[str, int], broken: list[str]
) -> None:
    watch.trainer, watch.served = {"step": 1}, served
    watch.seen.receipts[KILLED.submission] = [receipt(Outcome.ACCEPT)]
    swarm: Any = SimpleNamespace(settings=SwarmSettings(steps=1), nodes=[], relays=("relay-0", "relay-1"))
    paid = Payout(HONEST, early=0, pending=1, claimed=1, expected=1)
    assert list(promises.broken(swarm, watch, [paid], KILLED, None, require_gain=False)) == broken


def test_a_swarm_slower_than_six_minutes_is_shown_a_warning_and_its_memory() -> None:
    watch: Any = SimpleNamespace(trainer={})
    console = Console(record=True, width=200)
    most = promises.seconds_most(SwarmSettings())
    console.print(
        summary._times(watch, {"set-up": 60.0, "training": 301.0}, 3 << 30),
        *summary._slow(361.0, most),
        *summary._slow(360.0, most),
    )
    shown = console.export_text()
    assert "altogether   361 s" in shown
    assert "3.0 GiB, all processes together" in shown
    assert shown.count("Warning: 361 s") == 1
    assert promises.seconds_most(SwarmSettings(vllm=Path("python"))) == 480


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="looks into /proc")
def test_memory_is_that_of_all_descendants_at_its_highest() -> None:
    hold = "import sys; held = bytearray(b'x' * (150 << 20)); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"]
    with Watermark() as memory:
        before = memory.peak
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"held\n"
        memory.look()
        child.stdin.close()
        assert child.wait(30) == 0
        memory.look()
    assert before is not None
    assert memory.peak is not None
    assert 150 << 20 <= memory.peak - before < 400 << 20


@pytest.mark.long
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
