"""A run that is really going on, for tests of those who take part: Anvil, contracts, a hub and an origin on real sockets.

Who takes part gets a `Wired` connection, whose look-ups were made beforehand; tests of discovery start real hosts instead.
"""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.responses import Response
from swarm.tiny_run import TinyRun
from swarm.world import World

from node.contributor.generation import Made, Place, make
from node.judging.candidate import RunContext
from node.validator.service import ValidatorService
from node.validator.settings import JudgeSettings
from protocol.calibration_notice import CalibrationNotice
from protocol.chain.settings import ChainSettings
from protocol.chain.sync import Book
from protocol.chain.types import Case, Publication, State
from protocol.hub.client import HubClient
from protocol.identity import Key
from protocol.p2p import Endpoint, Provider
from protocol.shardcast.origin import Origin
from protocol.shardcast.server import ShardServer
from protocol.shardcast.source import Source
from protocol.shardcast.store import VersionStore
from protocol.shell.connection import Connection
from protocol.shell.home import Home
from protocol.shell.peers import PeerSettings
from protocol.submission import SubmissionRef
from protocol.verdict import Receipt
from tests.clock import eventually
from trainer.hub.app import create_app
from trainer.hub.database import Database
from trainer.hub.hub import Hub
from trainer.hub.store import Store

Fault = Callable[[str, str], Response | None]
"""Given method and path of a request, what is answered in the hub's stead."""


class LiveHub:
    """The real hub on a real socket; it can be taken down, put up again, and made to misbehave."""

    def __init__(self, folder: Path, world: World, tiny: TinyRun) -> None:
        folder.mkdir(parents=True)
        self._folder, self._world, self._tiny = folder, world, tiny
        self.fault: Fault = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        self.port = 0
        self._server: uvicorn.Server | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        world, tiny = self._world, self._tiny
        self._database = Database(self._folder / "hub.sqlite")
        self._store, book = Store(self._folder / "store"), Book(world.chain, world.run)
        self.hub = Hub(world.chain, world.run, tiny.spec, book, self._store, self._database, world.trainer.key)
        self._app = create_app(self.hub, self._folder / "status.json", self._folder / "need.json")
        self._listener = listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(self._answer, interface="asgi3", log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join(10)
            self._server = None
            self._listener.close()
            self._database.close()
            self._store.close()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        method, path = scope["method"], scope["path"]
        self.requests.append((method, path))
        if method != "GET" or "/nodes/" in path:
            self.hub.learn()  # block time; the service's own thread keeps it up to date
        fault = self.fault(method, path)
        await (self._app if fault is None else fault)(scope, receive, send)


class _NoHost:
    """Where look-ups were made beforehand, nobody asks peers."""

    def add_bootnodes(self, *_: object) -> None:
        pass


class Wired(Connection):
    """A connection that knows where hub and origin are, and notes what was announced."""

    def __init__(self, stage: Stage, key: Key, *, poll_seconds: float = 0.05, kept_spec: Path | None = None) -> None:
        settings = ChainSettings(
            rpc=stage.world.anvil.rpc, contract=stage.world.chain.runs.address, chain_id=31337, run=stage.world.run,
            poll_seconds=poll_seconds,
        )  # fmt: skip
        super().__init__(
            stage.world.chain, settings, PeerSettings(find_seconds=0.5), key, _NoHost(), kept_spec=kept_spec
        )  # type: ignore[arg-type]
        self._stage = stage
        self.announced: dict[str, str] = {}

    def announce(self, role: str, url: str) -> None:
        self.announced[role] = url

    def sources(self) -> list[Source]:
        return [self.origin()]

    def _trusted(self, role: str, share: float = 1.0) -> Provider:
        url = {"hub": self._stage.hub.url, "origin": self._stage.server.url}[role]
        return Provider("", self._stage.world.trainer.key.address, Endpoint(role=role, run=self.run, http=url))


class Stage:
    def __init__(self, world: World, tiny: TinyRun, folder: Path) -> None:
        self.world, self.tiny, self.folder = world, tiny, folder
        self.operators: dict[str, Key] = {}
        self.hub = LiveHub(folder / "hub", world, tiny)
        self.store = VersionStore(folder / "origin", 5, pinned=tiny.spec.versions_pinned)
        self.origin = Origin(self.store, world.trainer.key, world.chain.domain, world.run, anchor_every=1000)
        self.server = ShardServer(self.store)
        self.server.__enter__()
        self.context = RunContext(tiny.spec, world.chain.domain, world.run, tiny.context.tasks, tiny.context.sandbox)

    def close(self) -> None:
        self.server.close()
        self.store.close()
        self.hub.stop()

    def reopen_origin(self, port: int) -> None:
        """Serves weights again, at the port of the origin that was closed."""
        self.server = ShardServer(self.store, port=port)
        self.server.__enter__()

    def publish(self, model: Path | None = None, notice: CalibrationNotice | None = None) -> Publication:
        """Publishes the next version of the weights, whose manifest says this of the calibration."""
        step = self.world.chain.published(self.world.run)
        manifest = self.origin.publish(model or self.tiny.model, step, notice=notice)
        self.world.publish(step, manifest.digest)
        return self.world.chain.publication(self.world.run, step)

    def seated(self, hardware: int = 0) -> Key:
        """A node with a seat and an operator of its own."""
        node, operator = Key.generate(), Key.generate()
        self.world.seat_node(operator, node, hardware)
        self.operators[node.address] = operator
        return node

    def validator(self) -> Key:
        key = Key.generate()
        self.world.seat_validator(key)
        return key

    def home(self, name: str, role: str = "node") -> Home:
        return Home(self.folder / name, role)

    def connection(self, key: Key, **options: Any) -> Wired:
        return Wired(self, key, **options)

    def client(self, key: Key) -> HubClient:
        """A client of the hub that writes as `key`."""
        world = self.world
        return HubClient(
            self.hub.url, world.run, world.chain.domain, key=key, now=lambda: world.chain.block().time, timeout=60
        )

    # ---- work, as an honest node would do it by hand --------------------------------------------------------------------

    def make(self, node: Key, sequence: int = 0, step: int | None = None, hardware: int = 0) -> Made:
        """An honest submission for the newest version, on disk."""
        chain, run = self.world.chain, self.world.run
        step = chain.published(run) - 1 if step is None else step
        place = Place(node.address, step, sequence, chain.publication(run, step).beacon, hardware)
        return make(self.context, self.tiny.engine, self.tiny.tokenizer, place, self.folder / "made")

    def commit(self, node: Key, ref: SubmissionRef, units: int) -> bytes:
        """Commits on chain; returns the submission id."""
        chain, run = self.world.chain, self.world.run
        beacon = chain.publication(run, ref.step).beacon
        self.world.sender(node).send(chain.submit(run, ref, units, beacon))
        return ref.submission_id(run)

    def upload(self, node: Key, ref: SubmissionRef, path: Path) -> None:
        self.client(node).upload(ref.submission_id(self.world.run), ref.root, path, self.world.trainer.key.address)

    def submit(self, node: Key, made: Made) -> bytes:
        """Commits and uploads; returns the submission id."""
        submission = self.commit(node, made.ref, made.units)
        self.upload(node, made.ref, made.path)
        return submission

    def variant(self, scale: float) -> Path:
        """A model folder with other weights than the run's."""
        from node.engine.weights import build_model, save_weights
        from protocol.model_files import WEIGHTS

        folder = self.folder / f"model-{scale:g}"
        shutil.copytree(self.tiny.model, folder)
        import torch

        model = build_model(folder, torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(scale)
        save_weights(model, folder / WEIGHTS, torch.bfloat16)
        return folder


@contextmanager
def running(service: Any) -> Iterator[Ended]:
    """Runs a worker or service in a thread until the block ends."""
    ended = Ended()

    def run() -> None:
        try:
            service.run()
        except BaseException as error:  # noqa: BLE001  shown to the test
            ended.error = error
        ended.event.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield ended
    finally:
        service.stop()
        thread.join(20)
        service.close()
        assert not thread.is_alive(), "it did not stop"


class Ended:
    """Whether a running service has come to an end, and by what."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.error: BaseException | None = None


class Panel:
    """Validators of a stage that are driven round by round, so that a test decides who speaks when."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._open: dict[str, ValidatorService] = {}

    def seat(self, **settings: float) -> ValidatorService:
        """A new validator with a seat, its service running."""
        return self.start(self.stage.validator(), **settings)

    def start(self, key: Key, *, copy: str = "", adopt: bool = False, **settings: float) -> ValidatorService:
        """The service of a validator; started anew if it runs already. `copy` names a further one with a home of its own."""
        name = self.end(key, copy)
        chosen = JudgeSettings(
            **{"retry_seconds": 0.02, "fallback_seconds": 600, "opinion_seconds": 600, "batch_seconds": 0, **settings}
        )
        service = ValidatorService(
            self.stage.connection(key, poll_seconds=0.01), self.stage.home(name, "validator"), chosen, adopt=adopt
        )
        self._open[name] = service
        return service

    def end(self, key: Key, copy: str = "") -> str:
        """Ends the service of a validator if it runs; returns the name of its home."""
        name = f"validator-{key.address}{copy}"
        if name in self._open:
            self._open.pop(name).close()
        return name

    def close(self) -> None:
        for service in self._open.values():
            service.close()

    # ---- what can be seen from outside -----------------------------------------------------------------------------------

    def receipts(self, submission: bytes | None = None) -> dict[str, Receipt]:
        """Receipts at the hub, of one submission or of all, by validator; the first of each."""
        domain, run = self.stage.world.chain.domain, self.stage.world.run
        client = HubClient(self.stage.hub.url, run, domain)
        found = [Receipt.parse(data, domain, run) for _, data in client.receipts(0)]
        return {r.validator: r for r in reversed(found) if submission in (None, r.submission)}

    def all_receipts(self) -> list[Receipt]:
        domain, run = self.stage.world.chain.domain, self.stage.world.run
        return [Receipt.parse(data, domain, run) for _, data in HubClient(self.stage.hub.url, run, domain).receipts(0)]

    def state(self, ref: SubmissionRef) -> State:
        return self.stage.world.chain.state(self.stage.world.run, ref)

    def case(self, ref: SubmissionRef) -> Case:
        chain, run = self.stage.world.chain, self.stage.world.run
        number = chain.submission(run, ref).number
        assert number, "no case"
        return chain.case(run, chain.seat_name(run, ref.node), number)


def rounds(*services: ValidatorService, count: int = 6) -> None:
    """Several rounds of each, in turn: enough for everything that needs no time to pass."""
    for _ in range(count):
        for service in services:
            service.turn()


def until(
    condition: Callable[[], Any], *services: ValidatorService, within: float = 20.0, what: str = "the condition"
) -> None:
    """Rounds until the condition holds."""

    def look() -> Any:
        rounds(*services, count=1)
        return condition()

    eventually(look, within=within, what=what)
