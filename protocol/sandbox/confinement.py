"""What the child gives up before it reads its first request, by calls of Linux that need no rights. Neither the child nor anything
that it starts can take it back.

    limits         address space, open files, no byte written to a file, no core dump            every system
    lifetime       killed when the thread that started it ends, however that comes about; what   Linux
                   it started is not, and goes on where its parent was killed by force
    capabilities   none but reading whatever may be read, and none to be gained (no_new_privs)   Linux
    seccomp        no socket, no process group and no namespace of its own, no mode, owner or    Linux on x86-64 and ARM64
                   time of a file, no limits and no priority of other processes, no memory,
                   queues and keys that outlive it, no children of its parent, and its lifetime
                   stays what it is
    Landlock       a file system that is read-only but for /dev/null; no environment and memory  Linux 5.13 and later, where it is
                   of processes outside; no signals to them (from ABI 6)                         switched on

Without seccomp the child can undo its lifetime (`prctl`), and gain capabilities in a user namespace where the system lets anybody
make one. What a machine lacks, `Kernel.missing` names, and the parent logs. Does not cover: what may be read, how many processes
there are (Linux counts them by account, so a limit would hit the role itself, and does not count root's), how they use the CPU,
and an exploit of the kernel.

Sources: landlock(7), seccomp(2), capabilities(7), prctl(2), clone(2); the kernel's include/uapi/linux/landlock.h and system call tables.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from protocol.errors import PreflightError
from protocol.sandbox import bpf

ANSWER_CPU_SECONDS = 20.0
"""For one answer, or one conversation: ten times what `murmur env check` lets pass, since libraries may be imported by it. Changing it breaks: nothing that is hashed."""
_LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_GET_SECCOMP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 21, 22, 38


@dataclass(frozen=True)
class Kernel:
    """What this machine's kernel can hold the child with."""

    landlock: int
    """Version of its interface; 0 where there is none."""
    seccomp: bool

    @classmethod
    def here(cls) -> Kernel:
        if not _LINUX:
            return cls(0, False)
        version = _libc.syscall(*map(ctypes.c_long, (_CREATE_RULESET, 0, 0, 1)))
        filters = platform.machine() in bpf.ARCHITECTURES and _libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0
        return cls(max(version, 0), filters)

    @property
    def missing(self) -> list[str]:
        """What the child may do here and may not elsewhere, in words."""
        found = []
        if not self.seccomp:
            found.append("open sockets, leave its process group, change modes, owners and times of files")
            found.append("outlive this process, leave memory behind, slow this account's processes")
        if not self.landlock:
            found.append("delete, rename and overwrite files")
        elif self.landlock < 3:
            found.append("cut files short")
        if self.landlock < _SCOPED:
            found.append("send signals to this account's processes")
        return found


def confine(kernel: Kernel, *, memory: int, files: int, parent: int) -> None:
    """Irrevocable for this process and all that it starts, but that the end of its parent ends this process alone. `memory` in
    bytes of address space, `files` open at once; `parent` is the id of the process that started this one.

    Raises PreflightError, naming the call, where this machine refuses what the kernel said it could do.
    """
    if _LINUX:
        _checked("prctl(PR_SET_PDEATHSIG)", _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        if os.getppid() != parent:  # it ended before that call
            sys.exit(1)
        _checked("prctl(PR_SET_NO_NEW_PRIVS)", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _drop_capabilities()
    if kernel.landlock:
        _landlock(kernel.landlock)
    if kernel.seccomp:
        _seccomp()
    for name, most in {"AS": memory, "CORE": 0, "FSIZE": 0, "NOFILE": files}.items():
        with _named(f"setrlimit(RLIMIT_{name})"):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    with _named("nice"):
        os.nice(1)


def hide() -> None:
    """Closes this process's environment and memory to others of the same account: what Landlock does for the child, for all.

    It costs core dumps, and debuggers and profilers that attach to a running process (gdb, py-spy) need root from now on.
    Raises PreflightError where this machine refuses it.
    """
    if _LINUX:
        _checked("prctl(PR_SET_DUMPABLE)", _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def _checked(call: str, result: int) -> int:
    if result < 0:
        with _named(call):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    return result


@contextmanager
def _named(call: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a hard limit is lower
        why = error.strerror if isinstance(error, OSError) else error
        raise PreflightError(
            f"cannot confine the sandbox: {call} is refused: {why}",
            hint="the kernel would grant it: look for what forbids it, as a container's seccomp profile, or limits of a service",
        ) from error


# ---- capabilities ------------------------------------------------------------------------------------------------------

_CAPABILITIES_VERSION = 0x20080522
_READ_SEARCH = 1 << 2  # CAP_DAC_READ_SEARCH: in a container, root reads folders of its host's accounts by it


def _drop_capabilities() -> None:
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    held = ctypes.create_string_buffer(24)  # (effective, permitted, inheritable) of the lower 32, then of the upper
    _checked("capget", _libc.capget(header, held))
    effective, permitted, *_ = struct.unpack("=6I", held.raw)
    kept = struct.pack("=6I", effective & _READ_SEARCH, permitted & _READ_SEARCH, 0, 0, 0, 0)
    _checked("capset", _libc.capset(header, kept))


# ---- Landlock ----------------------------------------------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_WRITING = (  # what is refused below /, by the version that knows it first: everything but to execute and to read
    (1, sum(1 << bit for bit in (1, *range(4, 13)))),
    (2, 1 << 13),  # to move or link between folders
    (3, _TRUNCATE),
    (5, 1 << 15),  # ioctl of a device
)
_TCP, _NETWORK = 0b11, 4  # to bind and to connect
_SCOPE, _SCOPED = 0b11, 6  # abstract Unix sockets and signals


def _landlock(version: int) -> None:
    files = sum(rights for since, rights in _WRITING if version >= since)
    handled = [files, *[_TCP] * (version >= _NETWORK), *[_SCOPE] * (version >= _SCOPED)]
    attributes = struct.pack(f"={len(handled)}Q", *handled)
    made = _libc.syscall(ctypes.c_long(_CREATE_RULESET), attributes, ctypes.c_size_t(len(attributes)), 0)
    ruleset = _checked("landlock_create_ruleset", made)
    with _named(f"open({os.devnull})"):
        sink = os.open(os.devnull, os.O_PATH | os.O_CLOEXEC)
    rule = struct.pack("=Qi", files & (_WRITE_FILE | _TRUNCATE), sink)
    _checked("landlock_add_rule", _libc.syscall(ctypes.c_long(_ADD_RULE), ruleset, 1, rule, 0))
    _checked("landlock_restrict_self", _libc.syscall(ctypes.c_long(_RESTRICT_SELF), ruleset, 0))
    os.close(sink)
    os.close(ruleset)


# ---- seccomp -----------------------------------------------------------------------------------------------------------

_REFUSED: bpf.Calls = {
    "socket": (41, 198), "io_uring_setup": (425, 425),  # by which sockets could be made as well
    "setpgid": (109, 154), "setsid": (112, 157),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    # what no limit counts and no end of a process takes away, and what others of the account can read
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # a user namespace gives capabilities back, and takes the signal at the parent's end away
    "unshare": (272, 97), "setns": (308, 268),
}  # fmt: skip
"""System calls that are refused, by their numbers on x86-64 and ARM64."""
_ABSENT: bpf.Calls = {"clone3": (435, 435)}
"""Calls that this kernel does not know, as far as the child can tell: their arguments lie in memory, where a filter sees nothing.
C libraries then make their threads and processes by `clone`."""
_NAMESPACES, _PARENT = 0x7E020000, 0x8000  # flags of clone: namespaces of its own, and a child of this process's parent
_ITSELF = (0, bpf.ALL, 0)
_ALLOWED_WITH: bpf.Conditions = {
    "prlimit64": ((302, 261), [_ITSELF]),
    "socketpair": ((53, 199), [(1, 0xF, 1)]),  # streams only, which lead nowhere else: an event loop of asyncio has one
    "clone": ((56, 220), [(0, _NAMESPACES | _PARENT, 0)]),  # children of the parent would fill its process table
    "setpriority": ((141, 140), [(0, bpf.ALL, 0), (1, bpf.ALL, 0)]),  # PRIO_PROCESS, itself
    "ioprio_set": ((251, 30), [(0, bpf.ALL, 1), (1, bpf.ALL, 0)]),  # IOPRIO_WHO_PROCESS, itself
    "sched_setparam": ((142, 118), [_ITSELF]), "sched_setscheduler": ((144, 119), [_ITSELF]),
    "sched_setaffinity": ((203, 122), [_ITSELF]), "sched_setattr": ((314, 274), [_ITSELF]),
}  # fmt: skip
_REFUSED_WITH: bpf.Conditions = {"prctl": ((157, 167), [(0, bpf.ALL, _PR_SET_PDEATHSIG)])}
CHILD = bpf.Rules(refused=_REFUSED, absent=_ABSENT, allowed_with=_ALLOWED_WITH, refused_with=_REFUSED_WITH)


def _seccomp() -> None:
    program = bpf.program(CHILD, platform.machine())
    held = ctypes.create_string_buffer(program)
    pointer = struct.pack("@HP", len(program) // 8, ctypes.addressof(held))
    _checked("prctl(PR_SET_SECCOMP)", _libc.prctl(_PR_SET_SECCOMP, 2, pointer, 0, 0))
