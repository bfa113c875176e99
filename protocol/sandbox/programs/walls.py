"""What confines a program: bubblewrap's command line, and filters of system calls.

    namespaces     user (of root: an account of its own instead), mount, pid, network, ipc, uts, cgroup
    file system    read-only: the interpreter, its standard library and the system's libraries; no /proc, /sys, /etc, /home;
                   /dev has null, and zeroes for random numbers; /tmp is 16 MiB of memory; for an interpreter of another
                   language also the system's modules, and random numbers
    system calls   no file system is mounted, no namespace made, no other process looked at, no socket opened (both filters);
                   the program makes no process and executes nothing, threads alone (`PROGRAM`); of another language it may
                   execute, in its one process, what it sees (`INTERPRETED`)
    limits         CPU time, address space, threads, open files, sizes of files (driver.py sets them), stack

Root gets no user namespace: in one, its processes would be root's for the kernel, which counts none of them. driver.py becomes an
account that nobody has before it takes a test. Does not cover an exploit of the kernel.

Sources: bwrap(1), seccomp(2), namespaces(7); the kernel's system call tables.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import platform
import resource
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from protocol.sandbox import bpf, confinement

PYTHON = "/python"
"""Where the interpreter is, inside."""
THREADS = 16
TMP = "/tmp"  # noqa: S108  inside, of one sandbox alone
TMP_BYTES = 16 << 20
STACK = 256 << 20
"""Bytes of the stack of a program: deep recursion of contests, whatever the role that runs it was given."""
_LIBC = ctypes.CDLL(None)
_UIDS = 0x6D000000
"""Accounts that nobody has begin here."""

SANDBOX = bpf.Rules(
    refused={
        **confinement.CHILD.refused,
        "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
        "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
        "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
        "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
        "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "mount_setattr": (442, 442),
        "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
        "fsmount": (432, 432), "fspick": (433, 433), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
        "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224), "swapoff": (168, 225),
        "fanotify_init": (300, 262), "inotify_init": (253, None), "inotify_init1": (294, 26),
        "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
        "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "acct": (163, 89), "syslog": (103, 116),
        "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171), "settimeofday": (164, 170),
        "sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58), "personality": (135, 92),
        "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "memfd_secret": (447, 447),
        "mbind": (237, 235), "migrate_pages": (256, 238), "move_pages": (279, 239), "set_mempolicy": (238, 237),
    },
    absent={**confinement.CHILD.absent, "getrandom": (318, 278)},  # then Python reads /dev/urandom, where only zeroes come
    allowed_with=confinement.CHILD.allowed_with,
)  # fmt: skip
"""Of all that runs inside, from bubblewrap's end on."""
_THREAD = 0x10000  # CLONE_THREAD
PROGRAM = bpf.Rules(
    refused={
        "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
        "memfd_create": (319, 279),  # memory that no limit counts
        "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143),
        "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159),
    },
    refused_with=confinement.CHILD.refused_with,
    allowed_with={"clone": ((56, 220), [(0, _THREAD, _THREAD)])},
)  # fmt: skip
"""Of the process of one test, besides."""
INTERPRETED_SANDBOX = replace(
    SANDBOX, absent={name: numbers for name, numbers in SANDBOX.absent.items() if name != "getrandom"}
)
"""The same where another interpreter than Python runs: OpenSSL, which some start, ends a process that has no random numbers."""
INTERPRETED = replace(PROGRAM, refused={name: numbers for name, numbers in PROGRAM.refused.items() if name != "execve"})
"""The same where the test's process becomes another interpreter: it may execute, and still makes no process."""
_MODULES = ("/usr/lib", "/usr/share", "/usr/local/lib", "/usr/local/share")
"""Where the packages of other interpreters put their modules."""
SYSTEM_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin")
"""Where interpreters of other languages are looked for: nothing that an account installed for itself."""


def bubblewrap() -> str | None:
    """Where the program is; None where it is not."""
    return shutil.which("bwrap")


def interpreter(name: str) -> str | None:
    """The place of an interpreter among the system's programs; None where there is none."""
    return shutil.which(name, path=os.pathsep.join(SYSTEM_FOLDERS))


def command(
    *, uid: int, functions: bool, language: str = "", seccomp: int, result: int, report: int, info: int, ready: int
) -> list[str]:
    """The command of one sandbox. `uid` is the account it becomes, 0: that of a user namespace; `language` the place of another interpreter
    than Python, if any; the others are descriptors.

    It goes on once something can be read from `ready`: by then its first process has what no process can give itself.

    Raises KeyError on another processor than the filters know.
    """
    given = {
        "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C", "TZ": "UTC", "HOME": TMP,
        "LD_LIBRARY_PATH": f"{PYTHON}/lib",
    }  # fmt: skip
    # Root keeps its rights until driver.py gives them up: where an executed program gains rights, the kernel scatters its addresses again.
    account = [] if uid else ["--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"]
    return [
        bubblewrap() or "bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        "--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox", *account,
        "--clearenv", *(word for name, value in given.items() for word in ("--setenv", name, value)),
        *_files(language), "--seccomp", str(seccomp), "--info-fd", str(info), "--block-fd", str(ready), "--chdir", TMP,
        f"{PYTHON}/bin/python", "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _driver(),
        str(uid), str(int(functions)), str(result), str(report), program_filter(interpreted=bool(language)).hex(),
    ]  # fmt: skip


@cache
def sandbox_filter(*, interpreted: bool = False) -> bytes:
    return bpf.program(INTERPRETED_SANDBOX if interpreted else SANDBOX, platform.machine())


@cache
def program_filter(*, interpreted: bool = False) -> bytes:
    return bpf.program(INTERPRETED if interpreted else PROGRAM, platform.machine())


def fresh_uid() -> int:
    """An account for one sandbox of a process that is root, so that what it starts is counted; 0 for any other process."""
    return _UIDS + int.from_bytes(os.urandom(3), "big") if os.geteuid() == 0 else 0


@contextmanager
def same_addresses() -> Iterator[bool]:
    """Programs that this thread starts meanwhile have their memory at the same addresses each time, where the machine grants that: whether it may be asked for.

    The setting is the thread's (personality(2)) and counts from the next program that is executed: this process stays as it is.
    """
    before = _LIBC.personality(0xFFFFFFFF)
    is_granted = before >= 0 and _LIBC.personality(before | 0x0040000) >= 0  # ADDR_NO_RANDOMIZE
    try:
        yield is_granted
    finally:
        if before >= 0:
            _LIBC.personality(before)


def give_stack(pid: int) -> None:
    """To a process that has yet to be executed: the layout of its memory follows from it as well. No more than this account may give."""
    with suppress(OSError, ValueError):
        _, most = resource.prlimit(pid, resource.RLIMIT_STACK)
        size = STACK if most == resource.RLIM_INFINITY else min(STACK, most)
        resource.prlimit(pid, resource.RLIMIT_STACK, (size, size))


@cache
def _driver() -> str:
    """Python that runs driver.py, compiled once: the interpreter inside is the one that this process runs on."""
    code = compile(Path(__file__).with_name("driver.py").read_text(), "driver.py", "exec")
    return f"import marshal; exec(marshal.loads(bytes.fromhex({marshal.dumps(code).hex()!r})))"


@cache
def _files(language: str = "") -> list[str]:
    prefix = Path(sys.base_prefix)
    found: list[str] = []
    own = ("/usr/local", *_MODULES, os.path.dirname(language)) if language else ()
    for folder in (PYTHON, f"{PYTHON}/bin", f"{PYTHON}/lib", "/usr", "/usr/lib", "/lib", "/dev", *own):
        if not os.path.islink(folder):
            found += ["--perms", "0755", "--dir", folder]  # else only their maker may read them
    for name in ("stdlib", "platstdlib"):
        place = Path(sysconfig.get_path(name, vars={"platbase": str(prefix)}))
        target = f"{PYTHON}/{place.relative_to(prefix)}"
        if target not in found:
            found += ["--ro-bind", str(place), target]
            if (place / "site-packages").is_dir():
                found += [
                    "--size",
                    "4096",
                    "--tmpfs",
                    f"{target}/site-packages",
                    "--remount-ro",
                    f"{target}/site-packages",
                ]
    found += ["--ro-bind", os.path.realpath(sys._base_executable), f"{PYTHON}/bin/python"]  # type: ignore[attr-defined]
    shared = sysconfig.get_config_var("INSTSONAME") if sysconfig.get_config_var("Py_ENABLE_SHARED") else None
    library = Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent") / (shared or "none")
    if shared and library.is_file():
        found += ["--ro-bind", str(library), f"{PYTHON}/lib/{shared}"]
    for folder in _libraries():
        found += ["--symlink", os.readlink(folder), folder] if os.path.islink(folder) else ["--ro-bind", folder, folder]
    if language:
        found += ["--ro-bind", os.path.realpath(language), language]
        for folder in _MODULES:
            found += ["--ro-bind-try", folder, folder]
        found += ["--symlink", f"{TMP}/stdin", "/dev/stdin"]  # without /proc it leads nowhere else
    random = "urandom" if language else "zero"  # see INTERPRETED_SANDBOX
    for device, source in (("null", "null"), ("urandom", random), ("random", random)):
        found += ["--dev-bind", f"/dev/{source}", f"/dev/{device}"]
    return [*found, "--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", TMP, "--remount-ro", "/"]


def _libraries() -> list[str]:
    """The folders of the system's libraries, and the links that lead to them."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or f"{platform.machine()}-linux-gnu"
    own = f"/usr/lib/{multiarch}"
    folders = [own if os.path.isdir(own) else "/usr/lib", "/usr/lib64"]
    for link in ("/lib", "/lib64"):
        folders += [link] if os.path.islink(link) else [f"{link}/{multiarch}", "/lib64"]
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]
