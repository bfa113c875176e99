"""A hub on a real socket over a real chain, with the keys of everybody who might write to it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from swarm.anvil import Anvil
from swarm.tiny_run import run_tables
from swarm.world import World

from protocol import calibration, runspec
from protocol.chain.sync import Book
from protocol.clock import SYSTEM, Clock
from protocol.constants import PROTOCOL_VERSION
from protocol.environments.reasoning import EXAMINED_VERSION
from protocol.hub.client import HubClient
from protocol.hub.wire import sign_write
from protocol.identity import Key
from protocol.runspec import RunSpec
from protocol.submission import SubmissionRef
from protocol.verdict import Details, Outcome, Receipt
from trainer.config import Layout, RunSettings
from trainer.hub.app import create_app
from trainer.hub.database import Database
from trainer.hub.hub import Hub, Quota
from trainer.hub.load import Load
from trainer.hub.server import HubServer
from trainer.hub.store import Store

GRACE = 60
FILE_BYTES_MAX = 64 << 10


def small_spec(**changes: Any) -> RunSpec:
    """A spec that no model and no task set stands behind: the hub looks at neither."""
    table = run_tables()["spec"]
    limits = calibration.load(table["verification"]["calibration"], Path())
    table["verification"] |= {
        "calibration": limits.digest, "computation": limits.computation, "sampling": limits.sampling,
    }  # fmt: skip
    table["model"] |= {"config": "0" * 64, "tokenizer": "0" * 64}
    absent = {"package": "reasoning-gym", "version": EXAMINED_VERSION, "head": "0" * 64}
    table["environments"] = [{**absent, **environment} for environment in table["environments"]]
    return runspec.from_table({**table, "upload_grace_seconds": GRACE, "file_bytes_max": FILE_BYTES_MAX, **changes})


@dataclass
class Desk:
    """The hub's side of the counter (`hub`, `database`, `store`) and everybody else's (`client`, `put`, `commit`)."""

    world: World
    spec: RunSpec
    folder: Path
    hub: Hub
    database: Database
    store: Store
    url: str
    key: Key
    status: Path
    clock: Clock
    load: Load
    clients: list[HubClient] = field(default_factory=list)
    step: int = -1
    """The newest version that is out."""
    old_files: frozenset[str] = frozenset()

    # ---- people --------------------------------------------------------------------------------------------------------

    def node(self) -> Key:
        """A seated node, and a new version for it to work on."""
        return self.nodes(1)[0]

    def nodes(self, count: int) -> list[Key]:
        keys = [Key.generate() for _ in range(count)]
        for key in keys:
            self.world.seat_node(Key.generate(), key)
        self.step += 1
        self.world.publish(self.step)
        return keys

    def validator(self) -> Key:
        key = Key.generate()
        self.world.seat_validator(key)
        return key

    def client(self, key: Key | None = None, timeout: float = 60) -> HubClient:
        made = HubClient(
            self.url, self.world.run, self.world.chain.domain, key=key, now=self.now, timeout=timeout, clock=self.clock
        )
        self.clients.append(made)
        return made

    def now(self) -> int:
        return self.world.chain.block().time

    def leave(self, validator: Key) -> None:
        """It gives its seat up, and serves on until `pass_span`."""
        self.world.sender(validator).send(self.world.chain.enlist(self.world.run, False))

    def dismiss(self, validator: Key) -> None:
        """The owner withdraws its approval, and it serves on until `pass_span`."""
        self.world.owner.send(self.world.chain.approve_validator(self.world.run, validator.address, False))

    def pass_span(self) -> None:
        """Lets the time pass after which nobody who left or was dismissed until now is a validator any more."""
        self.world.anvil.advance(self.world.chain.policy(self.world.run).span)
        self.hub.learn()

    # ---- submissions ---------------------------------------------------------------------------------------------------

    def commit(self, node: Key, data: bytes, *, sequence: int = 0) -> SubmissionRef:
        return self.world.submit(node, self.step, sequence, hashlib.sha256(data).digest())

    def submission(self, ref: SubmissionRef) -> bytes:
        return ref.submission_id(self.world.run)

    def upload(self, key: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
        """An honest upload's request, whoever sends whatever."""
        return self.put(
            f"submissions/{self.submission(ref).hex()}",
            data,
            self.headers(key, "PUT", self.submission(ref).hex(), ref.root),
        )

    def headers(self, key: Key, method: str, submission: str, body: bytes, **changes: Any) -> dict[str, str]:
        signed = {
            "path": f"/v1/runs/{self.world.run}/submissions/{submission}",
            "now": self.now(),
            "run": self.world.run,
            **changes,
        }
        return sign_write(key, self.world.chain.domain, method=method, body=body, **signed)

    def put(self, path: str, data: bytes | Iterator[bytes], headers: dict[str, str]) -> httpx.Response:
        return httpx.put(f"{self.url}/v1/runs/{self.world.run}/{path}", content=data, headers=headers, timeout=60)

    def get(self, path: str, **query: Any) -> httpx.Response:
        return httpx.get(f"{self.url}/v1/runs/{self.world.run}/{path}", params=query, timeout=30)

    # ---- receipts ------------------------------------------------------------------------------------------------------

    def details(self, ref: SubmissionRef, outcome: Outcome = Outcome.ACCEPT, **changes: Any) -> Details:
        domain = self.world.chain.domain
        values = {
            "protocol": PROTOCOL_VERSION, "chain_id": domain.chain_id, "contract": domain.contract, "run": self.world.run,
            "submission": ref.submission_id(changes.get("run", self.world.run)).hex(), "node": ref.node, "step": ref.step,
            "sequence": ref.sequence, "root": ref.root.hex(), "units": 10, "spec": self.spec.digest.hex(),
            "outcome": int(outcome), "rule": "" if outcome == Outcome.ACCEPT else "reward", "measured": "", "threshold": "",
            "detail": "", "samples": "0" * 62 + "ff", "sequences_checked": 8, "proofs_checked": 8, "tokens_checked": 10,
            "time": self.now(),
        }  # fmt: skip
        return Details(**{**values, **changes})

    def receipt(self, validator: Key, ref: SubmissionRef, outcome: Outcome = Outcome.ACCEPT, **changes: Any) -> bytes:
        return Receipt.issue(self.details(ref, outcome, **changes), validator, self.world.chain.domain).encode()

    # ---- what is there ---------------------------------------------------------------------------------------------------

    def mark(self) -> None:
        """A test begins here: what was refused and stored before is not its business."""
        self.hub.refused.clear()
        self.old_files = frozenset(self._files())

    def new_files(self) -> list[str]:
        """Everything on the hub's disk since `mark`, but the database."""
        return sorted(self._files() - self.old_files)

    def _files(self) -> set[str]:
        return {str(path.relative_to(self.store.root)) for path in self.store.root.rglob("*") if path.is_file()}

    def is_alive(self) -> bool:
        return self.get("status").status_code == 200

    def close(self) -> None:
        for client in self.clients:
            client.close()


@contextmanager
def open_desk(
    anvil: Anvil, folder: Path, *, spec: RunSpec | None = None, quota: Quota | None = None, store: Store | None = None,
    wrap: Callable[[Any], Any] = lambda app: app, looks_per_minute: int = 10**6, clock: Clock = SYSTEM,
    policy: dict[str, Any] | None = None, **server: Any,
) -> Iterator[Desk]:  # fmt: skip
    """A fresh deployment and run, nothing published yet, and its hub. `wrap` may stand between server and app.

    No thread of the hub's follows the chain here: what it has not read, requests make it read.
    """
    spec = spec or small_spec()
    world = World.fresh(anvil, spec.digest, **(policy or {}))
    key = world.trainer.key
    database, store = Database(folder / "hub.sqlite"), store or Store(folder / "store")
    hub = Hub(
        world.chain, world.run, spec, Book(world.chain, world.run), store, database, key, quota,
        looks_per_minute=looks_per_minute, clock=clock,
    )  # fmt: skip
    hub.learn()
    status = folder / "status.json"
    with HubServer(wrap(create_app(hub, status, folder / "need.json")), "127.0.0.1", 0, **server) as listening:
        desk = Desk(
            world,
            spec,
            folder,
            hub,
            database,
            store,
            f"http://127.0.0.1:{listening.port}",
            key,
            status,
            clock,
            listening.load,
        )
        yield desk
        desk.close()
    database.close()


def run_settings(world: World, file: Path) -> tuple[RunSettings, Layout]:
    """What run.toml would say; nothing is read from `file`, but its place says where everything lies."""
    chain = {
        "rpc": world.anvil.rpc, "contract": world.chain.runs.address, "chain_id": 31337, "run": world.run, "poll_seconds": 0.05,
    }  # fmt: skip
    peers = {"listen": "/ip4/127.0.0.1/tcp/0"}
    hub = {"host": "127.0.0.1", "port": 0, "origin_port": 0}
    settings = RunSettings.model_validate({"chain": chain, "peers": peers, "trainer": {"steps": 1}, "hub": hub})
    return settings, Layout(file, settings)


def some_file(size: int = 1000) -> bytes:
    return secrets.token_bytes(size)


def damaged(data: bytes) -> bytes:
    """As long, and other bytes for certain."""
    return data[:-1] + bytes([data[-1] ^ 1])
