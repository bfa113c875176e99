"""A role as a check-up sees it: where its files lie, what its settings say, and the chain once it was reached.

`RoleSubject` is of a role with a home; the trainer's, which has run.toml and an output folder, says the same in its own places
(trainer/commands/checks.py).
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.clock import SYSTEM, Clock
from protocol.errors import ChainError, Malformed, MurmurationError, Unavailable
from protocol.shell.home import Home, holder, key_lock

if TYPE_CHECKING:
    from protocol.chain import Chain
    from protocol.runspec import RunSpec
    from protocol.shardcast.settings import ServingSettings
    from protocol.shell.role import RoleSettings


@dataclass(frozen=True)
class OwnPort:
    """A port that a role opens when it starts; `setting` says where it is set."""

    setting: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class RoleSubject:
    """`starting`: the role is about to start, so that a lock that another process holds is in its way."""

    def __init__(
        self, place: Home, *, password_file: Path | None = None, starting: bool = False, clock: Clock = SYSTEM
    ) -> None:
        self.place = place
        self.password_file = password_file
        self.starting = starting
        self.clock = clock
        self.found_hub = False
        """Whether the network led to the run's hub."""

    # ---- where things are

    @property
    def role(self) -> str:
        return self.place.role

    @property
    def config(self) -> Path:
        return self.place.config

    @property
    def folder(self) -> Path:
        """What must be there and may be written."""
        return self.place.path

    def require_own_home(self) -> None:
        """Raises UsageError where the folder is another role's home."""
        self.place.require_own()

    @property
    def is_made_by_start(self) -> bool:
        """Whether `folder` is there from the first start on, and not from `init`."""
        return False

    @property
    def private(self) -> list[Path]:
        """Folders and files that hold secrets."""
        keys = self.place.path / "keys"
        return [self.place.path, self.place.config, keys, *sorted(keys.glob("*.json"))]

    @property
    def weights(self) -> Path | None:
        """Where versions of the weights arrive."""
        return self.place.path / "data" / "weights"

    @property
    def disk_low(self) -> float:
        """Free bytes below which the running role warns."""
        return 0.0

    @property
    def keystore(self) -> Path:
        return self.place.keystore(self.role)

    @property
    def init(self) -> str:
        """The command that makes all this."""
        return self.place.made_by

    @property
    def standpoint(self) -> str:
        """As `murmur net` takes it with --home."""
        return str(self.place.path)

    @property
    def needs_hub(self) -> bool:
        return True

    @property
    def locks(self) -> dict[Path, str]:
        """Files that a running role holds, each with what it locks."""
        found: dict[Path, str] = {self.place.lock_file: str(self.place.path)}
        with suppress(MurmurationError):
            found[key_lock(self.address, self.settings.chain.chain_id)] = f"the key {self.address}"
        return found

    def command(self, verb: str) -> str:
        """A command of this role, as it is to be typed for this home."""
        return self.place.command(f"node {verb}" if self.role == "node" else f"murmur {self.role} {verb}")

    # ---- what they say

    @cached_property
    def settings(self) -> RoleSettings:
        """Raises ConfigError."""
        return self._read()

    def _read(self) -> RoleSettings:
        raise NotImplementedError

    @property
    def urls(self) -> Iterable[str]:
        try:
            rpc = self.settings.chain.rpc
        except (MurmurationError, OSError):  # a check says so
            return ()
        return (rpc,) if isinstance(rpc, str) else rpc

    @property
    def address(self) -> str:
        """Of the role's key, as its keystore says without a password. Raises ConfigError."""
        return self.place.address(self.role)

    @property
    def is_running(self) -> bool:
        """As far as this user may know: the check of the lock says where that is not known."""
        with suppress(PermissionError):
            return holder(self.place.lock_file) is not None
        return False

    @cached_property
    def chain(self) -> Chain:
        """Raises ChainError."""
        return self.settings.chain.open(clock=self.clock)

    @property
    def spec(self) -> RunSpec | None:
        """The run's spec, where an earlier command or start kept it here."""
        from protocol.shell import spec_file

        with suppress(MurmurationError, OSError):
            return spec_file.find(self.place, None, None)
        return None

    @cached_property
    def run_spec(self) -> RunSpec | None:
        """The run's spec: as kept here, else its hub's, where the look at the network found that; None where neither is to be had."""
        if self.spec is not None or not self.found_hub:
            return self.spec
        from protocol.identity import Key
        from protocol.shell.connection import connect

        peers = self.settings.peers.model_copy(
            update={"listen": "/ip4/0.0.0.0/tcp/0"}
        )  # a running role has the other port
        with suppress(ChainError, Unavailable), connect(self.settings.chain, peers, Key.generate()) as connection:
            return connection.spec
        return None

    @property
    def plays_environments(self) -> bool:
        """Whether it needs the environments of the run."""
        return True

    @property
    def then(self) -> str:
        """What to do where nothing is wrong."""
        return self.command("status" if self.is_running else "start")

    @property
    def listeners(self) -> list[OwnPort]:
        found = of_peers(self.settings.peers.listen)
        metrics = self.settings.metrics
        if metrics.port:
            found.append(OwnPort("metrics.port", metrics.host, metrics.port))
        serve = getattr(self.settings, "serve", None)
        if serve is not None and getattr(serve, "enabled", True):
            found += of_serving(serve)
        return found


def of_serving(serve: ServingSettings) -> list[OwnPort]:
    return [OwnPort("serve.port", serve.host, serve.port)] if serve.port else []


def of_peers(listen: str, setting: str = "peers.listen") -> list[OwnPort]:
    from protocol.p2p.address import Address

    try:
        place = Address.parse(listen)
    except Malformed:  # its own check says so
        return []
    return [OwnPort(setting, str(place.ip), place.port)] if place.port and place.ip is not None else []


def problem_of(listener: OwnPort) -> OSError | None:
    """Why nothing can listen there now."""
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((listener.host, listener.port))
        except OSError as error:
            return error
    return None
