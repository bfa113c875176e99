"""A role's home folder: its config file, its keystores, its data, and the lock that keeps a second process out. One role has one home.

<home>/<role>.toml        settings (protocol/settings.py)      <home>/keys/<name>.json   keystores, 0600
<home>/data/              databases, weights, rollouts          <home>/<role>.lock        held while the role runs
<home>/data/peers.json    peers for the next start            <home>/data/network.json  what the running host says of itself
<home>/status.json        what the running role does, for `status`    <home>/matrix-challenges.json   what became of matrix challenges
<home>/spec.json              the run's spec, once a hub had it (protocol/shell/spec_file.py)
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.errors import ConfigError, DiskFull, LockHeld, PreflightError, UsageError

if TYPE_CHECKING:
    from protocol.identity import Key

PASSWORD_VARIABLE = "MURMUR_PASSWORD"  # noqa: S105  the name of a variable, not a password


PEERS, REPORT = "peers.json", "network.json"
"""In the data folder of a home, or in the hub's: peers for the next start, and what the running host says of itself."""
ROLES = ("node", "validator", "relay", "bootnode")
"""Those that have a home of this kind, one each."""
_MARKS = {role: f"{role}.toml" for role in ROLES} | {role: f"{role}.lock" for role in ("trainer", "hub")}
OVER, LAST_STEP = "over", "last_step"
"""In a status, also of a role that has stopped: that the run is over, and the last step that the trainer wants to make."""


def default_home(role: str) -> Path:
    from platformdirs import user_data_path

    return user_data_path("murmuration") / role


class Home:
    def __init__(self, path: Path, role: str) -> None:
        self.path = path
        self.role = role
        self.metrics_url: str | None = None
        """Where this process serves its metrics; part of every status."""
        self.page_url: str | None = None
        """Likewise its page."""
        self.password: str | None = None
        """Of all its keystores, where a command has asked for it once."""

    @property
    def config(self) -> Path:
        return self.path / f"{self.role}.toml"

    def command(self, text: str) -> str:
        """A command of this role as it is to be typed for this home."""
        return text if self.path == default_home(self.role) else f"{text} --home {shlex.quote(str(self.path))}"

    @property
    def made_by(self) -> str:
        """The command that makes all this."""
        words = {"node": "node join CARD", "bootnode": "murmur bootnode init"}
        return self.command(words.get(self.role, f"murmur {self.role} init CARD"))

    @property
    def data(self) -> Path:
        self._make()
        folder = self.path / "data"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def challenges(self) -> Path:
        """What became of matrix challenges: a validator's by seat, or how many a node has answered and the last of them."""
        return self.path / "matrix-challenges.json"

    def keystore(self, name: str) -> Path:
        return self.path / "keys" / f"{name}.json"

    def require_config(self) -> Path:
        if not self.config.exists():
            raise ConfigError(f"{self.config} does not exist", hint=f"create it with `{self.made_by}`")
        return self.config

    def require_own(self) -> None:
        """Raises UsageError where the folder is another role's home: both would write the same status and data."""
        other = next((role for role, mark in _MARKS.items() if role != self.role and (self.path / mark).exists()), None)
        if other is None:
            return
        mark, hint = _MARKS[other], "give another --home"
        if self.config.exists() and other in ROLES:
            hint = f"copy the whole folder; take {mark} out of one and {self.config.name} out of the other: each is one role's --home from then on"
        raise UsageError(
            f"{self.path} is the home of a {other} ({mark} lies there), and a home is for one role", hint=hint
        )

    def require_new(self) -> None:
        """Raises ConfigError when this home was initialised before, and as `require_own`."""
        self.require_own()
        if self.config.exists():
            raise ConfigError(f"{self.config} exists; nothing was changed", hint="use it, or give another --home")

    def write_config(self, tables: Mapping[str, Any], comment: str) -> None:
        """Writes the settings, which may hold the key of an RPC provider: only this user may read them."""
        from protocol.settings import write_toml

        self._make()
        write_toml(self.config, tables, comment, mode=0o600)

    def _make(self) -> None:
        """A new home is for this user alone; the rights of one that is there already are left as they are."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise PreflightError(
                f"cannot make the folder {self.path}: {error.strerror}", hint="give another --home"
            ) from error

    def new_key(self, name: str, *, chain_id: int, password_file: Path | None) -> Key:
        """A new key; one that an interrupted `init` left behind, before it wrote the settings, is taken up again."""
        if self.keystore(name).exists():
            return self.open_key(name, password_file)
        return self.create_key(name, chain_id=chain_id, password_file=password_file)

    def create_key(self, name: str, *, chain_id: int, password_file: Path | None) -> Key:
        """A new key in a new keystore; an existing one is never touched."""
        from protocol.identity import Key, save_keystore

        path = self.keystore(name)
        if path.exists():
            raise ConfigError(f"{path} exists; a key is never overwritten", hint="use it, or give another --home")
        password = self._password(f"the new {name} key", password_file, confirm=True)
        if not password:
            raise UsageError(
                "an empty password protects no key", hint="choose one, and keep it: without it the key is lost"
            )
        key = Key.generate()
        self._make()
        save_keystore(key, path, password, chain_id=chain_id)
        return key

    def open_key(self, name: str, password_file: Path | None, path: Path | None = None) -> Key:
        """Opens a keystore; `path` overrides where it lies."""
        from protocol.identity import load_keystore

        path = path or self.keystore(name)
        if not path.exists():
            raise ConfigError(f"there is no {name} key at {path}", hint=f"create it with `{self.made_by}`")
        return load_keystore(path, self._password(f"the {name} key", password_file))

    def ask_once(self, password_file: Path | None) -> None:
        """Asks for one password now, for all keystores that this object opens or makes; twice where there is none yet."""
        is_new = not any(self.path.glob("keys/*.json"))
        self.password = self._password(f"the {self.role}'s keys", password_file, confirm=is_new)

    def _password(self, what: str, file: Path | None, *, confirm: bool = False) -> str:
        from protocol.identity import read_password

        if self.password is not None:
            return self.password
        return read_password(file=file, variable=PASSWORD_VARIABLE, what=what, confirm=confirm)

    def address(self, name: str) -> str:
        """The address of a keystore, without its password."""
        hint = f"create it with `{self.made_by}`"
        return address_in(self.keystore(name), f"the {name} key", hint)

    @property
    def lock_file(self) -> Path:
        return self.path / f"{self.role}.lock"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held while the role runs. Raises LockHeld when another process holds it."""
        with locked(self.lock_file, self.path):
            yield

    def write_status(self, **values: Any) -> None:
        """Says what the role does; readers see the old or the new status, never half of one."""
        served = {"metrics_url": self.metrics_url, "page_url": self.page_url}
        fixed = {name: url for name, url in served.items() if url is not None}
        write_json(self.path / "status.json", {"pid": os.getpid(), "at": time.time(), **fixed, **values})

    def read_status(self) -> dict[str, Any] | None:
        return read_json(self.path / "status.json")

    def doing(self) -> dict[str, Any] | None:
        """What the role says that it does; None unless it runs: unless the process that wrote this holds the role's own lock."""
        by = None
        with suppress(PermissionError):
            by = holder(self.lock_file)
        said = self.read_status()
        if by is None or said is None or said.get("state") == "stopped":
            return None
        return said if by in ("", str(said.get("pid"))) else None


def address_in(keystore: Path, what: str, hint: str) -> str:
    """The address of a keystore, without its password. Raises ConfigError."""
    from eth_utils import to_checksum_address

    try:
        return to_checksum_address(json.loads(keystore.read_text())["address"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"cannot read {what}'s address: {error}", hint=hint) from error


@contextmanager
def only_here(address: str, chain_id: int) -> Iterator[None]:
    """Held while a role works with a key, from whatever home. Raises LockHeld when another process of this user does.

    The lock lies outside all homes, for a copy of a home has a lock of its own. Of other machines it knows nothing.
    """
    with locked(key_lock(address, chain_id), f"the key {address}"):
        yield


def key_lock(address: str, chain_id: int) -> Path:
    """The file that `only_here` holds."""
    from platformdirs import user_state_path

    return user_state_path("murmuration") / "keys" / f"{chain_id}-{address}.lock"


def is_alive(pid: object) -> bool:
    """Whether a process of this id runs; what is no id is none."""
    try:
        number = int(pid)  # type: ignore[call-overload]
        os.kill(number, 0)
    except (OSError, TypeError, ValueError):
        return False
    return bool(number > 0)  # 0 and less name groups of processes


def holder(file: Path) -> str | None:
    """The id of the process that holds this lock, as it said, "" where it said none; None where nobody holds it."""
    try:
        with file.open() as held:
            try:
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)  # two that look do not see each other
            except OSError:
                return held.read().strip()
    except FileNotFoundError:
        pass
    return None


def in_use(what: Path | str, by: str, hint: str | None = None) -> LockHeld:
    return LockHeld(f"{what} is in use by process {by or '?'}", hint=hint)


@contextmanager
def locked(file: Path, what: Path | str, hint: str | None = None) -> Iterator[None]:
    """Holds `file` as the lock of `what`. Raises LockHeld, which names the process that holds it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            held.seek(0)
            raise in_use(what, held.read().strip(), hint) from None
        with suppress(OSError):  # the lock is held on a full disk too; only who asks for it does not hear by whom
            held.truncate(0)
            held.write(str(os.getpid()))
            held.flush()
        yield


def write_json(path: Path, value: Any) -> None:
    """Replaces a JSON file atomically."""
    temporary = path.with_suffix(".tmp")
    try:
        temporary.write_text(json.dumps(value))
        os.replace(temporary, path)
    except OSError as error:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else PreflightError
        raise kind(
            f"cannot write {path}: {error.strerror}", hint="free some space or check the folder's rights"
        ) from error


def read_json(path: Path) -> Any:
    """The file's value; None when it is not there or not whole."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
