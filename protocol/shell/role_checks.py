"""The checks that all roles share, in the order in which one needs the other: this machine, the chain, the network.

`LOCAL`, `CHAIN` and `NETWORK` are what a role's list is put together from; what is a role's own stands beside its list. To add a check for
all roles, write a function from the subject to what is well, or to a warning and the next step, and name it in one of these.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import pwd
import shutil
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from protocol import __version__
from protocol.errors import (
    ConfigError,
    LockHeld,
    MurmurationError,
    PreflightError,
    RpcUnavailable,
    StaleHead,
    Unavailable,
    WrongChain,
)
from protocol.resources import size
from protocol.shell.checkup import Answer, Check, NotChecked
from protocol.shell.home import PASSWORD_VARIABLE, holder, in_use
from protocol.shell.money import duration
from protocol.shell.role_subject import RoleSubject, problem_of

if TYPE_CHECKING:
    from protocol.shell.doctor import Subject

SECRET = 0o077
"""Rights of others, of which a file with secrets has none."""
_ENDPOINT_SECONDS = 5.0
_AHEAD_SECONDS = 30.0  # that blocks may be in the future by this machine's clock, before it is worth a word
_PORTS_OF_ROOT = 1024
LOOK_SECONDS = 12.0
"""To ask around in the network."""
_SET_CLOCK = "set the clock: sudo timedatectl set-ntp true"


# ---- this machine ----------------------------------------------------------------------------------------------------------------


def look_at_settings(s: RoleSubject) -> Answer:
    require_readable(s.config)
    try:
        chain = s.settings.chain
    except ConfigError as error:
        hint = f"change it in {s.config}: docs/reference-config.md has every setting" if s.config.exists() else s.init
        raise ConfigError(str(error), hint=error.hint or hint) from error
    return f"{s.config}: run {chain.run} on chain {chain.chain_id}"


def require_readable(config: Path) -> None:
    """Raises PreflightError where the settings are not this user's to read."""
    with suppress(FileNotFoundError):
        try:
            config.open("rb").close()
        except PermissionError as error:
            raise PreflightError(f"this user may not read {config}", hint=_mend_rights(config)) from error


def look_at_home(s: RoleSubject) -> Answer:
    """That this user may write there, and nobody else may read what is secret."""
    try:
        is_there = s.folder.exists()
    except PermissionError as error:
        raise PreflightError(f"this user may not look at {s.folder}", hint=_mend_rights(s.folder)) from error
    if not is_there:
        if s.is_made_by_start:
            return f"{s.folder} is made at the first start"
        raise ConfigError(f"{s.config} does not exist", hint=s.init)
    if not os.access(s.folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        if os.statvfs(s.folder).f_flag & os.ST_RDONLY:
            raise PreflightError(f"{s.folder} is on a read-only disk", hint="mount it writable, or use another folder")
        raise PreflightError(f"this user may not write to {s.folder}", hint=_mend_rights(s.folder))
    s.require_own_home()
    if readable := _readable(s):
        return f"others may read {_names(readable)}", s.command("doctor") + " --fix"
    return f"{s.folder}, of this user alone"


def _mend_rights(path: Path) -> str:
    """What to do about a file or folder that this user may not use: it, or one that leads there, is another's or has no rights."""
    place = next((each for each in (path, *path.absolute().parents) if _can_be_seen(each)), path)
    closed = next(
        (
            each
            for each in reversed((place, *place.absolute().parents))
            if not os.access(each, os.X_OK, effective_ids=True)
        ),
        place,
    )
    owner = closed.stat().st_uid
    if owner == os.geteuid():
        return f"chmod u+rw{'x' if closed.is_dir() else ''} {closed}"
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = f"#{owner}"
    if closed != path:
        return f"{closed} is user {name}'s: run this as that user (sudo -u {name} …), or use another --home"
    return f"it is user {name}'s: run this as that user (sudo -u {name} …), or give it to this one: sudo chown -R $(id -un) {path}"


def _can_be_seen(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return False


def mend_home(s: RoleSubject) -> str:
    """Takes the rights of others from what this user owns."""
    done = []
    for path in _readable(s):
        if path.stat().st_uid == os.geteuid():
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~SECRET)
            done.append(path)
    return f"only this user may read {_names(done)} now" if done else ""


def _readable(s: RoleSubject) -> list[Path]:
    found = []
    for path in s.private:
        with suppress(OSError):
            if stat.S_IMODE(path.stat().st_mode) & SECRET:
                found.append(path)
    return found


def _names(paths: list[Path]) -> str:
    most = 3
    said = ", ".join(str(path) for path in paths[:most])
    return said + (f" and {len(paths) - most} more" if len(paths) > most else "")


def look_at_keys(s: RoleSubject) -> Answer:
    """As a start would find the keystore, which takes none that others may read."""
    file = s.keystore
    try:
        mode, text = file.stat().st_mode, file.read_text(errors="replace")
    except FileNotFoundError:
        raise ConfigError(f"there is no key at {file}", hint=s.init) from None
    except OSError as error:
        raise PreflightError(f"cannot read the keystore {file}: {error.strerror}", hint=_mend_rights(file)) from error
    if stat.S_IMODE(mode) & SECRET:
        raise PreflightError(f"others may read the keystore {file}", hint=f"chmod 600 {file}")
    try:
        json.loads(text)["address"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{file} is not a keystore file", hint="bring it back from a copy") from None
    return f"{s.address}"


def look_at_password(s: RoleSubject) -> Answer:
    from protocol.identity import load_keystore, read_password

    if s.password_file is None and PASSWORD_VARIABLE not in os.environ:
        return NotChecked(f"give --password-file, or set {PASSWORD_VARIABLE}")
    load_keystore(s.keystore, read_password(file=s.password_file, variable=PASSWORD_VARIABLE, what="the key"))
    return "opens the keystore"


def look_at_lock(s: RoleSubject) -> Answer:
    """The kernel lets go of the lock of a process that has ended: one that is held is in use, by a child of it at least."""
    held = {file: by for file in s.locks if (by := _holder(file)) is not None}
    for file, by in held.items():
        if not _is_alive(by):
            raise LockHeld(
                f"{s.locks[file]} is in use, and process {by or '?'}, which said so, is not here: a child of it, or another container",
                hint=f"fuser -v {file}",
            )
        if s.starting:
            raise in_use(s.locks[file], by)
    if held and not s.is_running:
        raise LockHeld(
            f"{s.locks[next(iter(held))]} is in use by process {next(iter(held.values()))}, from another home",
            hint="stop that process: two with one key would take each other's sequence numbers",
        )
    return f"process {next(iter(held.values()))} runs this {s.role}" if held else "free: it does not run"


def _holder(lock: Path) -> str | None:
    try:
        return holder(lock)
    except PermissionError as error:
        raise PreflightError(
            f"whether it runs cannot be told: the lock {lock} may not be opened", hint=_mend_rights(lock)
        ) from error


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return True
    except (ValueError, OSError):
        return False
    return True


def look_at_disk(s: RoleSubject) -> Answer:
    """Room for what arrives. A role that starts goes on with what it has, so that it is warned and no more."""
    from protocol.shardcast.store import RESERVE_BYTES

    folder = next(path for path in (s.folder, *s.folder.absolute().parents) if _can_be_seen(path))
    usage, inodes = shutil.disk_usage(folder), os.statvfs(folder)
    said = f"{size(usage.free)} of {size(usage.total)} free in {folder}"
    hint = f"free some space: du -xh {folder} | sort -h | tail"
    if inodes.f_files and not inodes.f_favail:
        return _short(s, f"{said}, and no inode for another file", hint)
    if usage.free < RESERVE_BYTES:
        return _short(s, f"{said}; weights are fetched only where {size(RESERVE_BYTES)} stay free", hint)
    if usage.free < (wanted := RESERVE_BYTES + _versions_to_come(s)):
        return f"{said}; the versions of the weights that are kept need {size(wanted)}", hint
    if usage.free < s.disk_low:
        return f"{said}, less than the {size(s.disk_low)} below which the {s.role} warns", hint
    return said


def _short(s: RoleSubject, what: str, hint: str) -> Answer:
    if s.starting:
        return what, hint
    raise PreflightError(what, hint=hint)


def _versions_to_come(s: RoleSubject) -> int:
    """Bytes of the versions that the run makes this role keep and that are not here yet, as large as the newest one here."""
    if s.weights is None or (spec := s.spec) is None:
        return 0
    present = sorted(
        (path for path in s.weights.glob("complete/*") if path.name.isdecimal()), key=lambda p: int(p.name)
    )
    if not present:
        return 0
    each = sum(path.stat().st_size for path in present[-1].rglob("*") if path.is_file())
    return each * max(0, spec.versions_kept + len(spec.versions_pinned) - len(present))


def look_at_downloads(s: RoleSubject) -> Answer:
    if s.is_running:
        return "the running role removes what it does not need"
    if left := _unneeded(s):
        taken = sum(file.stat().st_size for path in left for file in (path, *path.rglob("*")) if file.is_file())
        return f"{len(left)} unfinished, which nobody goes on with: {size(taken)}", s.command("doctor") + " --fix"
    return "none is left that nobody goes on with"


def mend_downloads(s: RoleSubject) -> str:
    left = _unneeded(s)
    for path in left:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    gone = sum(not path.exists() for path in left)
    return f"removed {gone} unfinished download{'s' * (gone != 1)}" if gone else ""


def _unneeded(s: RoleSubject) -> list[Path]:
    from protocol.environments import taskfile
    from protocol.shardcast import store

    weights = s.weights
    held = weights is not None and holder(weights / ".lock") is not None
    return [*(store.unneeded(weights) if weights is not None and not held else ()), *taskfile.abandoned()]


def look_at_versions(s: RoleSubject) -> Answer:
    """That the installed packages are those that this version was made for, and the run's environments are here as its spec has them."""
    from importlib import metadata

    from packaging.requirements import Requirement

    wrong = []
    for text in metadata.requires("murmuration") or ():
        needed = Requirement(text)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{needed.name} is missing")
            continue
        if not needed.specifier.contains(found, prereleases=True):
            wrong.append(f"{needed.name} is {found}, not {needed.specifier}")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise PreflightError("; ".join(wrong[:3]) + more, hint="install murmuration again, or run scripts/setup")
    system = f"Linux {platform.release()}" if platform.system() == "Linux" else platform.platform()
    environments = _environments(s)
    return ", ".join([f"murmuration {__version__}", f"Python {platform.python_version()}", system, *environments])


def _environments(s: RoleSubject) -> list[str]:
    """Of the run, as far as its spec is here. Raises ConfigError or VersionMismatch."""
    from protocol.environments import registry

    spec = None
    if s.plays_environments:
        with suppress(MurmurationError, OSError):  # of run.toml, which another check looks at
            spec = s.spec
    found = [registry.require_installed(each) for each in spec.environments] if spec is not None else []
    return list(dict.fromkeys(found))  # a run may have several of one package


def look_at_ports(s: RoleSubject) -> Answer:
    if s.is_running:
        return "those of the running role"
    for listener in s.listeners:
        if problem := problem_of(listener):
            if problem.errno == errno.EACCES and listener.port < _PORTS_OF_ROOT:
                raise PreflightError(
                    f"this user may not listen on {listener} ({listener.setting}): ports below {_PORTS_OF_ROOT} are root's",
                    hint=f"set {listener.setting} to a port from {_PORTS_OF_ROOT} on, and forward {listener.port} to it in router or proxy; "
                    "or give a service AmbientCapabilities=CAP_NET_BIND_SERVICE (systemctl edit)",
                )
            raise PreflightError(
                f"cannot listen on {listener} ({listener.setting}): {problem.strerror}",
                hint=f"ss -ltnp 'sport = :{listener.port}' names who does; or set {listener.setting}",
            )
    return "free: " + ", ".join(map(str, s.listeners)) if s.listeners else "none is set: free ones are taken"


def look_at_sandbox(s: RoleSubject) -> Answer:
    from protocol.shell import doctor

    return doctor.look_at_sandbox()


def look_at_programs(s: RoleSubject) -> Answer:
    """Whether programs can be run here, where the run's environments ask for it."""
    from protocol.environments import registry
    from protocol.sandbox.programs import survey

    spec = s.run_spec
    if spec is None:
        return NotChecked("the run's spec is not known here")
    survey.require_for(spec.environments)
    return (
        "run here"
        if any(one.package in registry.RUN_PROGRAMS for one in spec.environments)
        else "none are run in this run"
    )


# ---- the chain -------------------------------------------------------------------------------------------------------------------


def look_at_endpoints(s: RoleSubject) -> Answer:
    """Each by itself: one that is away is a warning while another answers."""
    from protocol.chain import Chain
    from protocol.http_url import without_secrets
    from protocol.shell import doctor

    subject, said, wrong = chain_subject(s), [], []
    for url in s.urls:
        chain = Chain(url, None, timeout=min(_ENDPOINT_SECONDS, s.settings.chain.timeout_seconds))
        try:
            said.append(f"{without_secrets(url)} {doctor.look_at_endpoint(chain, subject)}")
        except MurmurationError as error:
            wrong.append((_of_endpoint(without_secrets(url), str(error)), error))
    if not said:
        raise Unavailable("; ".join(text for text, _ in wrong), hint=_mend_rpc(s, wrong[0][1]))
    if wrong:
        return "; ".join([*said, *(text for text, _ in wrong)]), _mend_rpc(s, wrong[0][1])
    return "; ".join(said)


def _of_endpoint(url: str, error: str) -> str:
    """What is wrong with it, with its name once."""
    return f"{url}: {error.rpartition(f'{url}: ')[2]}"


def _mend_rpc(s: RoleSubject, error: MurmurationError) -> str:
    if isinstance(error, RpcUnavailable):
        return f"see that it runs and can be reached from here, or put another one into chain.rpc of {s.config}"
    return f"put an endpoint of chain {s.settings.chain.chain_id} into chain.rpc of {s.config}"


def chain_subject(s: RoleSubject) -> Subject:
    from protocol.constants import ANVIL_CHAIN_ID
    from protocol.shell.doctor import Subject

    chain = s.settings.chain
    return Subject(
        tuple(s.urls), chain.chain_id, chain.chain_id != ANVIL_CHAIN_ID, contract=chain.contract, run=chain.run
    )


def look_at_clock(s: RoleSubject) -> Answer:
    """This machine's against the newest block: a role goes by the chain's, and by no block that is too old or of the future."""
    from protocol.chain import Chain
    from protocol.constants import ANVIL_CHAIN_ID

    settings = s.settings.chain
    block = Chain(list(s.urls), None, timeout=_ENDPOINT_SECONDS, clock=s.clock).block()
    age = s.clock.wall() - block.time
    if settings.chain_id == ANVIL_CHAIN_ID or not settings.head_age_seconds:
        return f"block {block.number}; it is not compared with this machine's clock here"
    if age < -_AHEAD_SECONDS:
        what = f"this machine's clock is {duration(int(-age))} behind the chain's newest block"
        if age < -settings.head_age_seconds:
            raise StaleHead(what, hint=_SET_CLOCK)
        return what, _SET_CLOCK
    if age > settings.head_age_seconds:
        raise StaleHead(
            f"the newest block is {duration(int(age))} old by this machine's clock: the clock is fast, or the chain stands still",
            hint=f"compare `date -u` with another clock; {_SET_CLOCK}; else put another endpoint into chain.rpc",
        )
    return f"block {block.number} is {max(0, int(age))} s old by this machine's clock"


def look_at_contracts(s: RoleSubject) -> Answer:
    try:
        _ = s.chain
    except RpcUnavailable as error:
        raise Unavailable(str(error), hint=_mend_rpc(s, error)) from error
    except WrongChain as error:
        raise WrongChain(str(error), hint=f"see chain.rpc and chain.contract of {s.config}") from error
    return "all of them as this version ships them"


def look_at_run(s: RoleSubject) -> Answer:
    from protocol.shell import doctor

    answer = doctor.look_at_run(s.chain, chain_subject(s))
    return answer.partition(", owner")[0] if isinstance(answer, str) else answer


def look_at_gas(s: RoleSubject) -> Answer:
    from protocol.shell import doctor

    return doctor.look_at_gas_money(s.chain, s.address)


# ---- the network -----------------------------------------------------------------------------------------------------------------


def look_at_network(s: RoleSubject) -> Answer:
    """As `murmur net status` does: bootnodes, and through them the hub; the bootnodes alone where the chain cannot be asked, or the hub is this
    machine's and does not run yet."""
    from protocol.shell import diagnosis, reachability, standpoint

    here = standpoint.find(s.standpoint)
    has_chain = _has_chain(s)
    asks_hub = has_chain and (s.needs_hub or s.is_running)
    found = reachability.look(here if asks_hub else replace(here, chain=None), seconds=LOOK_SECONDS)
    diagnosis.judge_network(found)
    s.found_hub = bool(found.goes_to and found.hub_check and not found.hub_check.problem)
    answering = [way for way in found.ways if not way.problem]
    said = f"{len(answering)} of {len(found.ways)} ways in answer"
    if answering:
        said += f", the first in {1000 * min(way.seconds for way in answering):.0f} ms"
    if found.goes_to:
        said += f"; the hub is at {found.goes_to}"
    elif not has_chain:
        said += "; the chain was not asked for the hub"
    wrong = [*found.problems, *found.notes]
    if not wrong:
        return said
    what, hint = wrong[0]
    if not answering or (asks_hub and s.needs_hub and not s.found_hub):
        raise Unavailable(what, hint=hint)
    return f"{said}; {what}", hint


def _has_chain(s: RoleSubject) -> bool:
    try:
        return s.chain is not None
    except MurmurationError:
        return False


LOCAL: tuple[Check[RoleSubject], ...] = (
    Check("home", look_at_home, starts=True, mend=mend_home),
    Check("settings", look_at_settings, ("home",), starts=True),
    Check("keys", look_at_keys, ("settings",), starts=True),
    Check("password", look_at_password, ("keys",), seconds=30),
    Check("lock", look_at_lock, ("settings",), starts=True),
    Check("disk", look_at_disk, starts=True),
    Check("downloads", look_at_downloads, ("lock",), mend=mend_downloads),
    Check("ports", look_at_ports, ("lock",), starts=True),
    Check("versions", look_at_versions),
)
SANDBOX: tuple[Check[RoleSubject], ...] = (Check("sandbox", look_at_sandbox),)
CHAIN: tuple[Check[RoleSubject], ...] = (
    Check("endpoints", look_at_endpoints, ("settings",), seconds=30),
    Check("clock", look_at_clock, ("endpoints",), seconds=15),
    Check("contracts", look_at_contracts, ("endpoints",), seconds=60),
    Check("run", look_at_run, ("contracts", "clock"), seconds=30),
)
GAS: tuple[Check[RoleSubject], ...] = (Check("gas", look_at_gas, ("contracts", "keys"), seconds=30),)
NETWORK: tuple[Check[RoleSubject], ...] = (Check("network", look_at_network, ("settings",), seconds=60),)
