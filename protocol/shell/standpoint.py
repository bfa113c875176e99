"""From where an operator looks at the network: a role's home, its settings, and what the role said of itself last.

Any role's: a home of node, validator, relay or bootnode, or a run's file (`@run.toml`) for the trainer's hub. Reads files only, needs
no password, and writes nothing.
"""

from __future__ import annotations

import os
import pwd
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from protocol.chain.settings import ChainSettings
from protocol.errors import ConfigError, Malformed, UsageError
from protocol.identity import address_of_peer
from protocol.p2p import peers as saved_peers
from protocol.p2p import report
from protocol.p2p.address import Address, PeerAddress, peer_bytes
from protocol.settings import Settings, load, read_toml
from protocol.shell.cli import strip_at
from protocol.shell.home import PEERS, REPORT, ROLES, Home, default_home
from protocol.shell.peers import BootnodeSettings, PeerSettings

TRAINER = "trainer"
_FRESH_SECONDS = 60.0  # a running host speaks every ten
_SAVED_MAX = 64


class _Any(Settings):
    """What every role of a run has in its file."""

    chain: ChainSettings
    peers: PeerSettings = PeerSettings()


@dataclass(frozen=True)
class Standpoint:
    """`role` is "" for a stranger without a home. `data` is the folder of the saved peers and of what the host says."""

    role: str
    home: Path | None
    data: Path | None
    peers: PeerSettings
    chain: ChainSettings | None
    keystore: str | None = None
    """Chain address of the role's key, where its keystore can be read here."""
    instead: bool = False
    """`peers` names other bootnodes than the role's."""
    file: Path | None = None
    """The run's file, of the trainer."""

    @cached_property
    def said(self) -> dict[str, Any]:
        """What the role's host said of itself last (protocol/p2p/report.py); empty before its first start."""
        return (report.read(self.data / REPORT) if self.data else None) or {}

    @cached_property
    def doing(self) -> dict[str, Any]:
        """The role's status.json."""
        if self.home is None or self.role == "":
            return {}
        folder = self.data if self.role == TRAINER else self.home
        return Home(folder or self.home, self.role).read_status() or {}

    @property
    def age(self) -> float | None:
        """Seconds since the host last said something."""
        at = self.said.get("at")
        return max(0.0, time.time() - at) if isinstance(at, int | float) else None

    @property
    def running(self) -> bool:
        age = self.age
        return age is not None and age < _FRESH_SECONDS and self.said.get("state") == report.RUNNING and self._is_alive

    @property
    def _is_alive(self) -> bool:
        try:
            os.kill(int(self.said.get("pid", 0)) or -1, 0)
        except PermissionError:
            return True
        except (OSError, TypeError, ValueError):
            return False
        return True

    @property
    def peer(self) -> str | None:
        """The role's PeerID, which it has said at its first start."""
        return text if isinstance(text := self.said.get("peer"), str) else None

    @property
    def key(self) -> str | None:
        """Chain address of the role's key: of its keystore, else as the PeerID has it."""
        if self.keystore or self.peer is None:
            return self.keystore
        try:
            return address_of_peer(peer_bytes(self.peer))
        except (Malformed, ValueError):
            return None

    def require_readable(self) -> None:
        """Raises PermissionError where this user may not read what the role says of itself."""
        if self.data:
            _require_readable(self.data / REPORT, self.data / PEERS)

    @property
    def bootnodes(self) -> list[PeerAddress]:
        """Raises ConfigError."""
        return [parse_peer(text) for text in self.peers.bootnodes]

    @cached_property
    def learned(self) -> list[PeerAddress]:
        """Bootnodes that the settings do not name and the role went to when it last ran: those of the run spec, which says them
        once the hub is found, and of the chain."""
        found = []
        for entry in () if self.instead else self.said.get("bootnodes") or ():
            try:
                found.append(PeerAddress.parse(entry["address"]))
            except (Malformed, KeyError, TypeError):
                continue
        return [known for known in dict.fromkeys(found) if known not in self.bootnodes]

    @cached_property
    def memory(self) -> saved_peers.Memory:
        """Peers, and notices of providers, that the role saved for its next start."""
        return saved_peers.load(self.data / PEERS, most=_SAVED_MAX) if self.data else saved_peers.Memory()

    @property
    def saved(self) -> list[PeerAddress]:
        return list(self.memory.peers)

    @property
    def own(self) -> PeerAddress | None:
        """Where the running role listens, as this machine reaches it: a way into the network, and all that a first bootnode has."""
        listen = self.said.get("listen")
        if not self.running or self.peer is None or not isinstance(listen, str):
            return None
        try:
            place = Address.parse(listen)
            here = place.seen_from("::1" if place.kind == "ip6" else "127.0.0.1")
            return PeerAddress.parse(f"{here}/p2p/{self.peer}")
        except Malformed:
            return None

    @property
    def announced(self) -> list[Address]:
        """Where the running role tells others that it is."""
        found = []
        for text in self.said.get("announced") or ():
            try:
                found.append(Address.parse(text))
            except (Malformed, TypeError, AttributeError):
                continue
        return found

    def setting(self, name: str) -> str:
        """The name of a setting of libp2p in the role's file."""
        return name if self.role == "bootnode" else f"peers.{name}"

    @property
    def has_way_in(self) -> bool:
        """Whether anybody is known to begin with. Raises ConfigError."""
        return bool(self.bootnodes or self.learned or self.saved or self.own)

    @property
    def start(self) -> str:
        """What starts the role."""
        if self.role == TRAINER:
            return f"murmur trainer run {self._file}"
        return self.command("node start" if self.role == "node" else f"murmur {self.role} start")

    def command(self, text: str) -> str:
        """A command for this role as it is to be typed from anywhere."""
        if self.role == TRAINER:
            return f"{text} --home {self._file}"
        return Home(self.home, self.role).command(text) if self.home else text

    @property
    def _file(self) -> str:
        return shlex.quote(f"@{self.file}")

    @property
    def is_local(self) -> bool:
        """Whether addresses of this machine's interior may be dialled on the word of peers: where the role would."""
        named = [text for text in (self.peers.listen, *self.peers.announce) if not _stands_for_any(text)]
        return any(_address(text).is_loopback for text in named) or any(
            known.address.is_loopback for known in self.bootnodes
        )


def find(
    home: str | None, bootnodes: Sequence[str] | None = None, *, needed: bool = True, which: bool = True
) -> Standpoint:
    """The standpoint of a home, a run's file, or the one role that has its home in the usual place. `bootnodes` go before those of the
    settings; `needed` False allows to have none, `which` False to take none where there are several. Raises ConfigError, also for another user's home, or UsageError."""
    try:
        found = _of(home, needed=needed, which=which)
        found.require_readable()
    except PermissionError as error:
        raise _not_ours(Path(error.filename), home) from error
    if not bootnodes:
        return found
    peers = found.peers.model_copy(update={"bootnodes": tuple(bootnodes)})
    return replace(found, peers=peers, instead=True)


def _not_ours(file: Path, home: str | None) -> ConfigError:
    """For a home of which this user may not read a file."""
    owner = next(uid for uid in map(_owner, (file, *file.parents)) if uid is not None)
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"#{owner}"
    where = home or next((str(default_home(role)) for role in ROLES if default_home(role) in (file, *file.parents)), "")
    if owner == os.geteuid():
        return ConfigError(f"this user may not read {file}", hint=f"see that {name} may read it")
    return ConfigError(
        f"this home belongs to user {name}",
        hint=f"sudo -u {shlex.quote(name)} murmur net status --home {shlex.quote(where)}",
    )


def _require_readable(*files: Path) -> None:
    """Raises PermissionError for a file that is there and not for this user; what is wrong besides, its reader says."""
    for file in files:
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            file.open("rb").close()


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:  # what leads there is not to be read either
        return None


def parse_peer(text: str) -> PeerAddress:
    """Raises ConfigError for what is no multiaddr with a PeerID."""
    try:
        return PeerAddress.parse(text)
    except Malformed as error:
        raise ConfigError(f"p2p: {error}", hint="write it as /dns4/boot.example.org/tcp/4001/p2p/16Uiu2…") from error


def _of(home: str | None, *, needed: bool, which: bool) -> Standpoint:
    if home is None:
        there = {role: default_home(role) for role in ROLES if (default_home(role) / f"{role}.toml").exists()}
        if len(there) > 1 and which:
            raise UsageError(
                f"several roles have their home on this machine: {', '.join(there)}",
                hint="say which: " + " or ".join(f"--home {path}" for path in there.values()),
            )
        if len(there) != 1:
            if not needed:
                return Standpoint("", None, None, PeerSettings(), None)
            raise ConfigError("no role has its home in the usual place", hint="give --home FOLDER, or --home @run.toml")
        ((role, path),) = there.items()
        return _of_role(role, path)
    path = strip_at(home)
    if home.startswith("@") or path.suffix == ".toml":
        return _of_run(path)
    roles = [role for role in ROLES if (path / f"{role}.toml").exists()]
    if len(roles) != 1:
        what = f"{path} holds the settings of {' and '.join(roles)}" if roles else f"{path} is no role's home"
        raise ConfigError(what, hint="give --home FOLDER, one with node.toml, relay.toml …, or --home @run.toml")
    return _of_role(roles[0], path)


def _of_role(role: str, path: Path) -> Standpoint:
    place = Home(path, role)
    _require_readable(place.config)
    try:
        key = place.address(role)
    except ConfigError:  # not there, or for others than its owner not to be read
        key = None
    if role == "bootnode":
        own = load(BootnodeSettings, place.config).value
        peers = PeerSettings(listen=own.listen, bootnodes=own.bootnodes, announce=own.announce)
        return Standpoint(role, path, path / "data", peers, None, key)
    found = _settings(place.config)
    return Standpoint(role, path, path / "data", found.peers, found.chain, key)


def _of_run(file: Path) -> Standpoint:
    _require_readable(file)
    found = _settings(file)
    table = read_toml(file).get("trainer")
    output = table.get("output", "output") if isinstance(table, dict) else "output"
    folder = file.resolve().parent
    return Standpoint(TRAINER, folder, folder / str(output) / "hub", found.peers, found.chain, file=file)


def _settings(file: Path) -> _Any:
    others = tuple(set(read_toml(file)) - set(_Any.model_fields))
    return load(_Any, file, tables=others).value


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except Malformed as error:
        raise ConfigError(f"p2p: {error}") from error


def _stands_for_any(text: str) -> bool:
    ip = _address(text).ip
    return bool(ip and ip.is_unspecified)
