"""What this machine's sandbox for programs grants: found out by trying, once per process.

`require` is asked before any work begins; `examine` and `addresses` are `murmur env doctor`.
"""

from __future__ import annotations

import os
import platform
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from protocol.environments import registry
from protocol.environments.programs import Interpreter, TrialRun
from protocol.errors import PreflightError, Unavailable
from protocol.runspec import EnvironmentSpec
from protocol.sandbox import bpf
from protocol.sandbox.confinement import Kernel
from protocol.sandbox.programs import runner, walls

INSTALL = "sudo apt-get install bubblewrap, then give the same command again"
_SECONDS = 30.0
_IDLE_S = 5.0
_NO_ROOM = "memory_mib in the environment's config may be too little for it: Node.js needs 4096"
_CANNOT = "a script that another program interprets cannot be one, nor what needs files outside of /usr/lib and /usr/share; see memory_mib as well"
_UNSHARES = (
    "import ctypes, os, sys; libc = ctypes.CDLL(None, use_errno=True);"
    " sys.exit(os.strerror(ctypes.get_errno()) if libc.unshare(0x10000000) else 0)"  # CLONE_NEWUSER
)
_OFTEN_USED = ("node", "perl", "ruby", "lua", "php", "bash")


@dataclass(frozen=True)
class Grant:
    """One thing that the sandbox uses."""

    name: str
    is_granted: bool
    detail: str
    hint: str = ""
    """How to get what lacks."""
    is_needed: bool = True


@cache
def require() -> None:
    """Raises PreflightError, saying in one sentence what lacks, where programs cannot be run here."""
    for grant in examine():
        if grant.is_needed and not grant.is_granted:
            raise PreflightError(
                f"programs cannot be run on this machine: {grant.name}: {grant.detail}", hint=grant.hint
            )


def require_for(environments: Iterable[EnvironmentSpec]) -> None:
    """Raises PreflightError where one of ours among them has programs run, and this machine cannot; the sandbox itself asks for all."""
    if any(one.package in registry.RUN_PROGRAMS for one in environments):
        require()


@cache
def require_interpreter(needed: Interpreter) -> None:
    """Raises PreflightError where programs of that language cannot be run here: an empty one must end well, within its memory."""
    name = needed.command[0]
    if walls.interpreter(name) is None:
        raise PreflightError(
            f"programs cannot be run on this machine: {name} is not in {', '.join(walls.SYSTEM_FOLDERS)}",
            hint=f"the run's environment `code` has programs run by it: install {name} with the system's packages",
        )
    trial = replace(runner.TRIAL, program="", interpreter=needed.command, memory=needed.memory, idle=_IDLE_S)
    (run,) = runner.Runner().run(trial)
    if run.status:
        raise PreflightError(
            f"programs cannot be run on this machine: {' '.join(needed.command)} runs no empty program within"
            f" {needed.memory >> 20} MiB of address space ({_ended(run)})",
            hint=_NO_ROOM if run.status < 0 else _CANNOT,
        )


def _ended(run: TrialRun) -> str:
    return f"signal {-run.status}" if run.status < 0 else f"exit status {run.status}"


def interpreters() -> Grant:
    """Of other languages, those that tasks are often written for."""
    found = [name for name in _OFTEN_USED if walls.interpreter(name) is not None]
    said = ", ".join(found) or "none of " + ", ".join(_OFTEN_USED)
    return Grant(
        "other languages",
        bool(found),
        said,
        "a run names what it needs; the system's packages have it",
        is_needed=False,
    )


def examine() -> Iterator[Grant]:
    """Each as it is known; the last is a program that was run."""
    version = _version()
    yield Grant("bubblewrap", version is not None, version or "it is not installed", INSTALL)
    kernel = Kernel.here()
    filters = kernel.seccomp and platform.machine() in bpf.ARCHITECTURES
    yield Grant(
        "seccomp", filters, "filters of system calls" if filters else "no filter can be installed",
        "Linux on x86-64 or ARM64 with CONFIG_SECCOMP_FILTER",
    )  # fmt: skip
    yield _user_namespaces()
    yield Grant(
        "Landlock", kernel.landlock > 0, f"version {kernel.landlock}" if kernel.landlock else "switched off",
        "confines environments, not programs: add landlock to the kernel's lsm=", is_needed=False,
    )  # fmt: skip
    yield _cgroup()
    yield _tried() if version and filters else Grant("a program", False, "not tried", INSTALL)


def _version() -> str | None:
    place = walls.bubblewrap()
    if place is None:
        return None
    try:
        said = subprocess.run([place, "--version"], capture_output=True, timeout=_SECONDS, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return f"{said.decode(errors='replace').strip()} ({place})"


def _user_namespaces() -> Grant:
    name = "user namespaces"
    if os.geteuid() == 0:
        return Grant(name, True, "not needed: root's programs run under an account that nobody has")
    switches = {
        "/proc/sys/user/max_user_namespaces": ("0", "sudo sysctl user.max_user_namespaces=15000"),
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": ("1", "an AppArmor profile for bwrap, or sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
    }  # fmt: skip
    for place, (bad, hint) in switches.items():
        if (found := _read(place)) == bad:  # AppArmor may still allow bwrap: the trial says
            return Grant(name, False, f"{place} is {found}", hint, is_needed="apparmor" not in place)
    made = subprocess.run([sys.executable, "-S", "-c", _UNSHARES], capture_output=True, timeout=_SECONDS, check=False)
    if made.returncode:
        why = made.stderr.decode(errors="replace").strip()
        hint = "none is made in a chroot, and not in most containers: run Murmuration outside of it"
        return Grant(name, False, f"none can be made here: {why}", hint, is_needed=False)  # bwrap may: the trial says
    return Grant(name, True, "for every account")


def _cgroup() -> Grant:
    own = next((line[3:] for line in (_read("/proc/self/cgroup") or "").splitlines() if line.startswith("0::")), "")
    folder = Path("/sys/fs/cgroup") / own.lstrip("/")
    controllers = (_read(str(folder / "cgroup.controllers")) or "").split()
    held = {"memory", "pids"} <= set(controllers) and os.access(folder, os.W_OK)
    said = f"{folder} is delegated" if held else "not delegated"
    return Grant("cgroup v2", held, f"{said}; limits hold without it: a program is one process", is_needed=False)


def _tried() -> Grant:
    name = "a program"
    try:
        with runner.Sandboxed(functions=False) as box:
            run = box.run(runner.TRIAL, runner.TRIAL.cases[0])
    except (runner.BrokenSandbox, Unavailable):
        return Grant(name, False, f"bubblewrap does not start one: {_complaint()}", _HINT)
    if run.output != runner.EXPECTED:
        why = run.output.decode(errors="replace").strip() or f"it ended with {run.status}"
        return Grant(name, False, f"the sandbox does not hold or does not run: {why}", _HINT)
    return Grant(name, True, f"ran in {1000 * run.cpu:.0f} ms of CPU time, and its threads were counted")


def addresses() -> Grant:
    """Whether programs have their memory at the same addresses in every run, seen in two of them."""
    name, seen = "addresses", set()
    program = replace(runner.TRIAL, program="print(id(print), id(object()))")
    try:
        for _ in range(2):
            with runner.Sandboxed(functions=False) as box:
                seen.add(box.run(program, program.cases[0]).output)
    except (runner.BrokenSandbox, Unavailable):
        return Grant(name, False, "not tried: no program runs", is_needed=False)
    if len(seen) == 1:
        return Grant(name, True, "the same in every run of a program", is_needed=False)
    why, hint = _scattered()
    costs = "what a program prints of them differs between runs: a run of `code` or `python` may refuse it, softly"
    return Grant(name, False, f"others in each run, since {why}; {costs}", hint, is_needed=False)


def _scattered() -> tuple[str, str]:
    """Why addresses differ, and how to change it."""
    with walls.same_addresses() as is_granted:
        if not is_granted:
            return (
                "personality(2) is refused",
                "containers' default profiles do: give yours one that allows personality(0x0040000)",
            )
    place = walls.bubblewrap()
    if place is not None and os.stat(place).st_mode & stat.S_ISUID:
        return "bubblewrap is setuid", f"sudo chmod u-s {place}, where every account may make user namespaces"
    return "this kernel scatters them whatever it is asked", ""


_HINT = "a container must let bwrap make namespaces: give it CAP_SYS_ADMIN, or run Murmuration outside of it"


def _complaint() -> str:
    """What bubblewrap says by itself."""
    command = [walls.bubblewrap() or "bwrap", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "/bin/true"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.decode(errors="replace").strip()[:200] or "it says nothing"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
