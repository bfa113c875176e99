"""The real commands as real processes, which find each other through real libp2p hosts: start, lock, stop, kill, Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse
from swarm.anvil import Anvil
from swarm.pace import Patience
from swarm.processes import Process
from swarm.tiny_run import TinyRun
from swarm.world import World

from node.contributor import submission_log as states
from node.contributor.submission_log import SubmissionLog
from protocol.identity import Key, load_keystore, save_keystore
from protocol.p2p import Directory, Endpoint, Host, Service
from protocol.settings import write_toml
from protocol.shell import reachability, standpoint
from protocol.shell.home import Home
from tests.cli.conftest import PASSWORD, Contributor
from tests.clock import eventually
from tests.node.stage import Stage

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 5.0


class Live:
    """A stage whose hub and origin are found through a bootnode, and homes for whoever takes part."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.bootnode = Host(Key.generate())
        self.bootnode.start()
        trainer = stage.world.trainer.key
        self._host = Host(trainer, bootnodes=self.bootnode.addresses)
        self._host.start()
        directory = Directory(self._host)
        for role, url in (("hub", stage.hub.url), ("origin", stage.server.url)):
            service = Service(31337, stage.world.chain.runs.address, stage.world.run, role)
            directory.announce(service, Endpoint(role=role, run=stage.world.run, http=url), deadline=20)
        self._processes: list[Process] = []
        self._homes = 0

    def close(self) -> None:
        for process in self._processes:
            process.signal(signal.SIGKILL)
            process.wait(5)
        self._host.close()
        self.bootnode.close()
        self.stage.close()

    def home(self, role: str, key: Key, name: str = "", **serve: object) -> Home:
        self._homes += 1  # a test that is run once more begins with new ones
        home = Home(self.stage.folder / f"{name or role}-{self._homes}", role)
        save_keystore(key, home.keystore(role), PASSWORD, chain_id=31337)
        chain = {
            "rpc": self.stage.world.anvil.rpc, "contract": self.stage.world.chain.runs.address, "chain_id": 31337,
            "run": self.stage.world.run, "poll_seconds": 0.1,
        }  # fmt: skip
        peers = {"listen": "/ip4/127.0.0.1/tcp/0", "bootnodes": list(self.bootnode.addresses)}
        tables = {"chain": chain, "peers": peers, "metrics": {"port": 0}, "logging": {"format": "json"}, **serve}
        write_toml(home.config, tables, "For a test.")
        return home

    def start(self, *arguments: object) -> Process:
        environment = {
            "MURMUR_PASSWORD": PASSWORD,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "protocol", *map(str, arguments)]
        number = len(self._processes)
        process = Process(str(arguments[0]), command, self.stage.folder / f"{number}.log", env=environment)
        self._processes.append(process)
        return process


@pytest.fixture(scope="module")
def live(anvil: Anvil, tiny_run: TinyRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    world = World.fresh(anvil, spec_digest=tiny_run.spec.digest, max_per_step=3)
    made = Live(Stage(world, tiny_run, tmp_path_factory.mktemp("live")))
    yield made
    made.close()


def in_state(home: Home, state: str) -> int:
    kept = SubmissionLog(home.data / "submissions.sqlite")
    count = len(kept.all(state))
    kept.close()
    return count


def stopped(process: Process, number: int = signal.SIGTERM) -> int:
    """The exit code of a process that was asked to stop; it must obey promptly."""
    patience = Patience(STOP_SECONDS)
    os.kill(process.pid, number)
    code = process.wait(30)
    assert code is not None, process.tail()
    assert not patience.ended()
    return code


def test_node_validator_and_relay_find_each_other_work_and_stop_promptly(live: Live) -> None:
    stage = live.stage
    node, validator = stage.seated(), stage.validator()
    homes = {
        "node": live.home("node", node),
        "validator": live.home("validator", validator),
        "relay": live.home("relay", Key.generate(), serve={"host": "127.0.0.1", "port": 0}),
    }
    stage.publish()
    processes = {role: live.start(role, "start", "--home", home.path) for role, home in homes.items()}
    eventually(lambda: in_state(homes["node"], states.ACCEPTED) >= 3, within=90, what="three submissions are accepted")
    assert (homes["relay"].read_status() or {}).get("versions") == [0]
    _require_page(homes["node"])
    for role, home in homes.items():
        _require_metrics(role, home)
        _require_seen(role, home, processes[role])
    second = live.start("node", "start", "--home", homes["node"].path)
    assert second.wait(60) == 7, second.tail()
    assert f"process {processes['node'].pid}" in second.tail()
    for role, number in (("node", signal.SIGTERM), ("validator", signal.SIGINT), ("relay", signal.SIGTERM)):
        assert stopped(processes[role], number) == 0, processes[role].tail()
        assert (homes[role].read_status() or {})["state"] == "stopped"
        assert not standpoint.find(str(homes[role].path)).running
    _require_no_secrets(live, homes)


SHOWN = {
    "node": 'murmur_node_submissions_total{state="accepted"} 3.0',
    "validator": 'murmur_validator_judgements_total{outcome="accept",rule="none"} 3.0',
    "relay": "murmur_relay_newest_step 0.0",
}


def _require_metrics(role: str, home: Home) -> None:
    """A running role shows what it has done, that it is healthy, whom it knows, and no secret."""
    url = (home.read_status() or {})["metrics_url"]
    text = httpx.get(f"{url}/metrics", timeout=10).text
    assert SHOWN[role] in text
    assert 'murmur_rpc_calls_total{endpoint="127.0.0.1:' in text
    assert "murmur_p2p_peers" in text
    assert "\nmurmur_disk_free_bytes " in text
    assert ("\nmurmur_gas_eth " in text) == (role != "relay"), "a relay sends no transactions"
    assert PASSWORD not in text
    health = httpx.get(f"{url}/healthz", timeout=10)
    assert (health.status_code, health.json()["healthy"]) == (200, True)


def _require_page(home: Home) -> None:
    """A running node shows that it earns, by the same counts as its log, and no secret."""
    url = (home.read_status() or {})["page_url"]
    eventually(lambda: httpx.get(f"{url}api/v1/log", timeout=10).status_code == 200, what="the page is made")
    found = {part: httpx.get(f"{url}api/v1/{part}", timeout=10) for part in ("node", "machine", "log", "earnings")}
    told = found["node"].json()["told"]
    assert told["earning"]["state"] == "earning" and told["submissions"]["accepted"] >= 3
    assert found["machine"].json()["tokens"] > 0 and found["machine"].json()["weights"]["loaded"] == 0
    assert any("found at" in line for line in found["log"].json()["lines"])
    assert not [name for name, answer in found.items() if PASSWORD in answer.text]


def _require_seen(role: str, home: Home, process: Process) -> None:
    """`murmur net status` finds a running role in order, the hub and the relay."""
    here = standpoint.find(str(home.path))
    assert (here.role, here.running, here.said["pid"]) == (role, True, process.pid)
    found = reachability.look(here, seconds=60)
    assert found.problems == []
    assert found.hub is not None
    assert len(found.relays) == 1
    fetched = found.fetched or {}
    assert sum(fetched.values()) > 0


def _require_no_secrets(live: Live, homes: dict[str, Home]) -> None:
    """In logs, status files, databases: nothing of passwords and keys."""
    secrets = [PASSWORD.encode()]
    for role, home in homes.items():
        key = load_keystore(home.keystore(role), PASSWORD).secret
        secrets += [key, key.hex().encode()]
    files = [path for path in live.stage.folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    leaks = [str(path) for path in files if any(secret in path.read_bytes() for secret in secrets)]
    assert not leaks


@pytest.mark.long
def test_a_node_that_was_killed_between_commit_and_upload_loses_nothing(live: Live) -> None:
    stage = live.stage
    node = stage.seated()
    home = live.home("node", node, name="killed")
    stage.publish()
    stage.hub.fault = lambda method, path: PlainTextResponse("later", 503) if method == "PUT" else None
    process = live.start("node", "start", "--home", home.path)
    eventually(lambda: (home.read_status() or {}).get("state") == "waiting" and in_state(home, states.COMMITTED),
               within=60, what="a commitment waits for its upload")  # fmt: skip
    process.signal(signal.SIGKILL)
    process.wait(10)
    stage.hub.fault = lambda method, path: None
    process = live.start("node", "start", "--home", home.path)
    eventually(lambda: in_state(home, states.STORED) >= 3, within=60, what="all of this version is stored")
    assert in_state(home, states.LOST) == 0
    assert stopped(process) == 0


@pytest.mark.long
def test_a_node_that_is_stopped_between_commit_and_upload_uploads_first(live: Live) -> None:
    stage = live.stage
    node = stage.seated()
    home = live.home("node", node, name="asked")
    stage.publish()
    arrived = threading.Event()

    def slow(method: str, path: str) -> None:
        if method == "PUT":
            arrived.set()
            time.sleep(1)

    stage.hub.fault = slow
    process = live.start("node", "start", "--home", home.path)
    assert arrived.wait(60), process.tail()
    assert stopped(process) == 0
    stage.hub.fault = lambda method, path: None
    assert in_state(home, states.STORED) >= 1
    assert in_state(home, states.COMMITTED) == 0


def test_it_stops_promptly_while_it_still_looks_for_the_hub(live: Live) -> None:
    home = live.home("node", live.stage.seated(), name="lost")
    config = home.config
    config.write_text(
        config.read_text().replace(live.bootnode.addresses[0], f"/ip4/127.0.0.1/tcp/9/p2p/{live.bootnode.peer_id}")
    )
    process = live.start("node", "start", "--home", home.path)
    eventually(lambda: "p2p" in process.tail(), within=60, what="it looks for peers")
    assert stopped(process) == 0, process.tail()


# ---- Ctrl-C at a prompt --------------------------------------------------------------------------------------------------


def at_a_terminal(
    folder: Path, environment: dict[str, str], arguments: list[str], answer: Callable[[str], bytes | None]
) -> tuple[int, str]:
    """Runs `node …` at a terminal of its own; `answer` gets what was shown so far and may type, also after ten seconds of silence. Exit
    code and screen."""
    ours, theirs = os.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-c", "from node.contributor.main import main; main()", *arguments], stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True, preexec_fn=take_terminal, cwd=ROOT, env={**os.environ, **environment},
    )  # fmt: skip
    os.close(theirs)
    shown, screen = "", selectors.DefaultSelector()
    screen.register(ours, selectors.EVENT_READ)
    try:
        while True:
            if screen.select(10):
                try:
                    part = os.read(ours, 4096)
                except OSError:  # the terminal was closed
                    break
                if not part:
                    break
                shown += part.decode(errors="replace")
            typed = answer(shown)
            if typed:
                os.write(ours, typed)
        return process.wait(30), shown
    finally:
        process.kill()
        screen.close()
        os.close(ours)


def once(prompt: str, typed: bytes) -> Callable[[str], bytes | None]:
    """Types once, when the prompt has appeared."""
    pending = [typed]
    return lambda shown: pending.pop() if prompt in shown and pending else None


def pressing_ctrl_c(prompt: str) -> Callable[[str], bytes | None]:
    """Presses Ctrl-C at the prompt, and again when ten seconds pass without a word, as a person does: between showing a prompt and reading,
    Python's `input` does not hear a signal (about one press in fifty, when it comes at once)."""
    seen = [""]

    def press(shown: str) -> bytes | None:
        pressed, silent = prompt in seen[0], shown == seen[0]
        seen[0] = shown
        return b"\x03" if prompt in shown and (silent or not pressed) else None

    return press


def test_ctrl_c_at_the_password_prompt_ends_with_130(contributor: Contributor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MURMUR_PASSWORD")
    arguments = ["withdraw", "--home", str(contributor.path)]
    code, shown = at_a_terminal(contributor.path, {}, arguments, pressing_ctrl_c("Password for the operator key"))
    assert code == 130, shown
    assert "Traceback" not in shown


def test_ctrl_c_at_a_confirmation_ends_with_130_and_sends_nothing(contributor: Contributor) -> None:
    contributor.give()
    before = contributor.world.chain.block_number()
    arguments = ["stake", "--home", str(contributor.path)]
    code, shown = at_a_terminal(contributor.path, {"MURMUR_PASSWORD": PASSWORD}, arguments, pressing_ctrl_c("[y/N]"))
    assert code == 130, shown
    assert "at risk" in shown, "what follows is shown before it asks"
    assert contributor.world.chain.block_number() == before


def test_no_is_an_answer_and_yes_another(contributor: Contributor) -> None:
    contributor.give()
    environment, arguments = {"MURMUR_PASSWORD": PASSWORD}, ["stake", "--home", str(contributor.path)]
    code, shown = at_a_terminal(contributor.path, environment, arguments, once("[y/N]", b"n\n"))
    assert (code, contributor.world.chain.account(contributor.operator).active) == (2, 0)
    assert shown.endswith("nothing was sent\r\n")
    code, shown = at_a_terminal(contributor.path, environment, arguments, once("[y/N]", b"y\n"))
    assert code == 0, shown
    assert contributor.world.chain.account(contributor.operator).active > 0
