"""A contributor at a keyboard: commands run in this process, with what they print and the code they end with."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from eth_utils import keccak
from swarm.anvil import Anvil
from swarm.world import TOKEN, World

from protocol.identity import Key, load_keystore
from protocol.runspec import RunSpec
from protocol.shell import cli
from protocol.shell.home import Home, holder
from protocol.signing import Join
from tests.p2p.network import Network

if TYPE_CHECKING:
    from tests.cli.operator import Operator

PASSWORD = "canary-7f3a9c"
SPEC = RunSpec.model_validate(
    json.loads((Path(__file__).parents[1] / "vectors/spec_digests.json").read_text())[0]["spec"]
)
"""A run's spec with every field at its default that has one: hardware class 0 alone may work."""


def exact(number: str) -> int:
    """A number that every reader of JSON reads right; amounts in wei are text."""
    assert abs(int(number)) < 2**53, f"{number} is more than JavaScript counts exactly"
    return int(number)


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        assert self.out, f"nothing was printed, exit code {self.code}: {self.err}"
        return dict(json.loads(self.out, parse_int=exact))


class Console:
    """Runs command lines of `murmur`, or of `node`; nobody sits at a terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], folder: Path) -> None:
        self._monkeypatch, self._capfd = monkeypatch, capfd
        self.folder = folder
        self.printed: list[str] = []

    def murmur(self, *arguments: object) -> Ended:
        return self._run(cli.app, "murmur", arguments)

    def node(self, *arguments: object) -> Ended:
        from node.contributor.commands import app

        return self._run(app, "node", arguments)

    def _run(self, app: Any, name: str, arguments: tuple[object, ...]) -> Ended:
        self._capfd.readouterr()
        self._monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.run(app, name)
        out, err = self._capfd.readouterr()
        self.printed += [out, err]
        return Ended(int(ended.value.code or 0), out, err)


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Console:
    for name in ("MURMUR_PASSWORD", "MURMUR_HOME"):
        monkeypatch.delenv(name, raising=False)
    return Console(monkeypatch, capfd, tmp_path)


@dataclass
class Contributor:
    """A home that `node init` made, in a world with a run."""

    world: World
    console: Console
    path: Path
    node: str
    operator: str
    _running: ExitStack = field(default_factory=ExitStack)

    @property
    def home(self) -> Home:
        return Home(self.path, "node")

    def key(self, name: str) -> Key:
        return load_keystore(self.home.keystore(name), PASSWORD)

    def run(self, *arguments: object) -> Ended:
        return self.console.node(*arguments, "--home", self.path)

    def status(self) -> dict[str, Any]:
        return self.run("status", "--json").json

    def works(self, **status: object) -> None:
        """From now on this process stands in for a running node, which says this of itself."""
        if holder(self.home.lock_file) is None:
            self._running.enter_context(self.home.lock())
        self.home.write_status(**status)

    def give(self, tokens: int = 200) -> None:
        """Gas money for both keys, tokens for the operator."""
        for address in (self.node, self.operator):
            self.world.anvil.give(address, TOKEN)
        if tokens:
            self.world.owner.send(self.world.chain.transfer_tokens(self.operator, tokens * TOKEN))

    def seat(self) -> None:
        """Seats the node without the command."""
        world = self.world
        world.owner.send(world.chain.deposit(self.operator, world.chain.policy(world.run).node_stake))
        deadline, node = world.chain.block().time + 600, self.key("node")
        consent = Join(world.run, self.operator, node.address, keccak(node.peer), 0, deadline)
        join = world.chain.join(world.run, node.address, node.peer, 0, deadline, consent.sign(node, world.chain.domain))
        world.sender(self.key("operator")).send(join)
        world.sender(node)


def init_options(world: World, **changes: object) -> list[object]:
    bootnode = f"/ip4/127.0.0.1/tcp/1/p2p/{Key.generate().peer_id}"
    options = {"rpc": world.anvil.rpc, "contract": world.chain.runs.address, "run": world.run, "bootnode": bootnode}
    return [text for name, value in (options | changes).items() for text in (f"--{name}", value)]


@pytest.fixture
def contributor(anvil: Anvil, console: Console, monkeypatch: pytest.MonkeyPatch) -> Iterator[Contributor]:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    world = World.fresh(anvil, spec_digest=SPEC.digest)
    path = console.folder / "home"
    made = console.node("init", *init_options(world), "--home", path, "--json").json
    (path / "spec.json").write_bytes(SPEC.canonical())  # as a command that asked the hub for it leaves it
    yield Contributor(world, console, path, made["node"], made["operator"])


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()


@pytest.fixture
def served() -> Iterator[Callable[[dict[str, bytes]], str]]:
    """A way to serve bytes by path over HTTP, anything else with 404; gives the URL."""
    servers = []

    def serve(answers: dict[str, bytes]) -> str:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = answers.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def operator(console: Console, world: World, tmp_path: Path) -> Operator:
    from tests.cli.operator import Operator

    return Operator(console, world, tmp_path)
