"""What a hostile environment tries from within the sandbox's child, and is refused.

The environment runs any code as an answer: a score of 1 means that it went through, any other is the errno of a refusal over 256.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from swarm.processes import wait_until

from protocol.errors import PreflightError, Unavailable
from protocol.runspec import Generated
from protocol.sandbox import EnvironmentSandbox, bpf, confinement, process
from protocol.sandbox.confinement import Kernel
from protocol.sandbox.programs import walls
from tests.protocol.conftest import installer

KERNEL = Kernel.here()
HOSTILE = """
from protocol.environments import Environment

class Hostile(Environment):
    name = "hostile"
    def entry(self, index): return index
    def prompt(self, entry): return str(entry)
    def score(self, entry, completion):
        try:
            exec(completion, {})
        except OSError as error:
            return error.errno / 256
        return 1.0
"""
SPEC = Generated.model_validate(
    {
        "package": "hostile", "version": "1.0", "dataset": "x", "seed": 1, "size": 100, "head": "0" * 64, "exact": False,
        "held_out_seed": 2, "held_out_size": 4,
    }
)  # fmt: skip
CALL = """
import ctypes, os, platform, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *arguments):
    number = x86 if platform.machine() == "x86_64" else arm
    wide = [each if isinstance(each, bytes) else ctypes.c_long(each) for each in arguments]
    if (result := libc.syscall(ctypes.c_long(number), *wide)) < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
"""
"""For codes of answers: a system call by its numbers on x86-64 and ARM64."""
landlock = pytest.mark.skipif(not KERNEL.landlock, reason="this kernel has no Landlock")
seccomp = pytest.mark.skipif(not KERNEL.seccomp, reason="this machine has no seccomp filters, or another processor")
linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone kills a process with its parent")
Sandboxed = Callable[[], EnvironmentSandbox]


@pytest.fixture(scope="module")
def sandboxed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandboxed]:
    """Makes sandboxes of the hostile environment."""
    with pytest.MonkeyPatch.context() as patch:
        installer(tmp_path_factory.mktemp("hostile") / "site", patch)(HOSTILE, name="hostile", place="hostile:Hostile")
        yield lambda: EnvironmentSandbox([SPEC])


@pytest.fixture(scope="module")
def shared(sandboxed: Sandboxed) -> Iterator[EnvironmentSandbox]:
    with sandboxed() as sandbox:
        yield sandbox


def attempt(sandbox: EnvironmentSandbox, code: str) -> int:
    """errno of the refusal, 0 where nothing was refused."""
    (score,) = sandbox.score([(0, code)])
    return 0 if score == 1 else round(256 * score)


def child(sandbox: EnvironmentSandbox) -> int:
    assert sandbox._process
    return sandbox._process.pid


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except FileNotFoundError:
        return False


def ends(pid: int) -> None:
    wait_until(lambda: not alive(pid), deadline=20, what=f"process {pid} ended")


# ---- the file system ---------------------------------------------------------------------------------------------------

ON_FILES = {
    "delete": "os.unlink(file)",
    "rename": "os.rename(file, file + '2')",
    "cut short": "os.truncate(file, 0)",
    "open to write": "open(file, 'r+b')",
    "open to append": "open(file, 'ab')",
    "make": "open(file + '3', 'wb')",
    "make a folder": "os.mkdir(file + '4')",
    "link": "os.link(file, file + '5')",
    "link by name": "os.symlink(file, file + '6')",
    "delete the folder": "os.rmdir(folder)",
}


@landlock
@pytest.mark.parametrize("code", ON_FILES.values(), ids=ON_FILES)
def test_the_file_system_is_read_only(shared: EnvironmentSandbox, tmp_path: Path, code: str) -> None:
    file, folder = tmp_path / "precious", tmp_path / "empty"
    file.write_bytes(b"mine")
    folder.mkdir()
    if "truncate" in code and KERNEL.landlock < 3:
        pytest.skip("Landlock knows no truncation before its version 3")
    assert attempt(shared, f"import os; file, folder = {str(file)!r}, {str(folder)!r}; {code}") == errno.EACCES
    assert file.read_bytes() == b"mine"
    assert {path.name for path in tmp_path.iterdir()} == {"precious", "empty"}


def test_what_the_reader_needs_is_readable(shared: EnvironmentSandbox, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    code = f"import os, subprocess; open({str(tmp_path / 'file')!r}).read(); os.listdir({str(tmp_path)!r})"
    assert attempt(shared, f"{code}; subprocess.run(['true'], stdout=subprocess.DEVNULL, check=True)") == 0


OF_FILES = {
    "mode": "os.chmod(file, 0o777)",
    "owner": "os.chown(file, os.getuid(), os.getgid())",
    "times": "os.utime(file)",
    "attribute": "os.setxattr(file, 'user.x', b'1')",
}


@seccomp
@pytest.mark.parametrize("code", OF_FILES.values(), ids=OF_FILES)
def test_nothing_of_a_file_is_changed(shared: EnvironmentSandbox, tmp_path: Path, code: str) -> None:
    file = tmp_path / "precious"
    file.touch(mode=0o600)
    assert attempt(shared, f"import os; file = {str(file)!r}; {code}") == errno.EPERM
    assert file.stat().st_mode & 0o777 == 0o600


# ---- other processes ---------------------------------------------------------------------------------------------------


@landlock
@pytest.mark.parametrize("file", ["environ", "mem", "maps", "fd/0"])
def test_what_the_parent_holds_is_closed(shared: EnvironmentSandbox, file: str) -> None:
    opened = f"open('/proc/%d/{file}' % os.getppid(), 'rb').read(0)"
    assert attempt(shared, f"import os; {opened}") in (errno.EACCES, errno.EPERM)


@pytest.mark.skipif(KERNEL.landlock < 6, reason="Landlock knows no signals before its version 6")
def test_the_parent_gets_no_signal(shared: EnvironmentSandbox) -> None:
    assert attempt(shared, "import os; os.kill(os.getppid(), 0)") == errno.EPERM


@seccomp
def test_the_parents_limits_are_its_own(shared: EnvironmentSandbox) -> None:
    asked = "import os, resource; resource.prlimit({}, resource.RLIMIT_NOFILE)"
    assert attempt(shared, asked.format("os.getppid()")) == errno.EPERM
    assert attempt(shared, asked.format("0")) == 0


PRIORITIES = {
    "nice": "os.setpriority(os.PRIO_PROCESS, {pid}, 19)",
    "nice, a group": "os.setpriority(os.PRIO_PGRP, {pid}, 19)",
    "nice, all of the account": "os.setpriority(os.PRIO_USER, 0, 19)",
    "processors": "os.sched_setaffinity({pid}, os.sched_getaffinity(0))",
    "policy": "os.sched_setscheduler({pid}, os.SCHED_IDLE, os.sched_param(0))",
    "its parameters": "os.sched_setparam({pid}, os.sched_param(0))",
    "policy and parameters": "call(314, 274, {pid}, struct.pack('=IIQiIQQQ', 48, 5, 0, 0, 0, 0, 0, 0), 0)",
    "disk": "call(251, 30, 1, {pid}, 3 << 13)",
    "disk, all of the account": "call(251, 30, 3, 0, 3 << 13)",
}


@seccomp
@pytest.mark.parametrize("code", PRIORITIES.values(), ids=PRIORITIES)
def test_no_process_is_slowed_by_its_number(shared: EnvironmentSandbox, code: str) -> None:
    """Of the account's processes not even its own, which Linux would allow root as well."""
    for pid in ("os.getppid()", "os.getpid()"):
        assert attempt(shared, CALL + code.format(pid=pid)) == errno.EPERM


@seccomp
def test_it_may_slow_itself(sandboxed: Sandboxed) -> None:
    names = ["nice", "processors", "policy", "its parameters", "policy and parameters", "disk"]
    with sandboxed() as sandbox:
        assert {name: attempt(sandbox, CALL + PRIORITIES[name].format(pid=0)) for name in names} == dict.fromkeys(
            names, 0
        )


MEMORY_AND_MAIL = {
    "shmget": "(29, 194, 0x5EED, 4096, 0o1600)",
    "shmat": "(30, 196, 0, 0, 0)",
    "shmctl": "(31, 195, 0, 2, 0)",
    "shmdt": "(67, 197, 0)",
    "semget": "(64, 190, 0x5EED, 1, 0o1600)",
    "semop": "(65, 193, 0, 0, 0)",
    "semctl": "(66, 191, 0, 0, 2, 0)",
    "semtimedop": "(220, 192, 0, 0, 0, 0)",
    "msgget": "(68, 186, 0x5EED, 0o1600)",
    "msgsnd": "(69, 189, 0, 0, 0, 0)",
    "msgrcv": "(70, 188, 0, 0, 0, 0, 0)",
    "msgctl": "(71, 187, 0, 2, 0)",
    "mq_open": "(240, 180, b'murmuration', os.O_RDWR | os.O_CREAT, 0o600, 0)",
    "mq_unlink": "(241, 181, b'murmuration')",
    "mq_timedsend": "(242, 182, 0, 0, 0, 0, 0)",
    "mq_timedreceive": "(243, 183, 0, 0, 0, 0, 0)",
    "mq_notify": "(244, 184, 0, 0)",
    "mq_getsetattr": "(245, 185, 0, 0, 0)",
    "add_key": "(248, 217, b'user', b'murmuration', b'x', 1, -4)",
    "request_key": "(249, 218, b'user', b'murmuration', 0, -4)",
    "keyctl": "(250, 219, 0, -4, 0)",
}


@seccomp
@pytest.mark.parametrize("arguments", MEMORY_AND_MAIL.values(), ids=MEMORY_AND_MAIL)
def test_there_is_no_memory_that_outlives_it_and_no_mail_to_others(shared: EnvironmentSandbox, arguments: str) -> None:
    """Memory of System V counts for no limit of a process and stays when that is killed; so do messages, queues and keys."""
    assert attempt(shared, f"{CALL}call{arguments}") == errno.EPERM


@seccomp
@pytest.mark.parametrize(
    "code",
    ["call(272, 97, 1 << 28)", "call(308, 268, 0, 0)", "call(56, 220, 1 << 28 | 17, 0, 0, 0, 0) or os._exit(0)"],
    ids=["unshare", "setns", "clone"],
)
def test_no_namespace_gives_rights_back(shared: EnvironmentSandbox, code: str) -> None:
    """In a user namespace of its own it would have root's, and Linux would not end it with its parent any more."""
    assert attempt(shared, CALL + code) == errno.EPERM


@linux
def test_no_right_is_left_and_none_is_gained(shared: EnvironmentSandbox) -> None:
    """Those of root and those of its programs; to read whatever there is may stay."""
    status = Path(f"/proc/{child_of(shared)}/status").read_text()
    held = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith(("Cap", "NoNew"))}
    assert held["NoNewPrivs"] == "1"
    assert int(held["CapPrm"], 16) | int(held["CapEff"], 16) | int(held["CapInh"], 16) in (0, 1 << 2)
    gained = "import subprocess; said = subprocess.check_output(['cat', '/proc/self/status'], text=True); "
    assert attempt(shared, f"{gained}(held,) = [x for x in said.splitlines() if 'CapEff' in x]; "
                           "assert int(held.split()[1], 16) in (0, 4), held") == 0  # fmt: skip


def child_of(sandbox: EnvironmentSandbox) -> int:
    sandbox.warm_up()
    return child(sandbox)


# ---- the network -------------------------------------------------------------------------------------------------------

SOCKETS = {
    "TCP": "socket.socket()",
    "UDP": "socket.socket(type=socket.SOCK_DGRAM)",
    "Unix": "socket.socket(socket.AF_UNIX)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "a pair that can send elsewhere": "socket.socketpair(type=socket.SOCK_DGRAM)",
}


@seccomp
@pytest.mark.parametrize("code", SOCKETS.values(), ids=SOCKETS)
def test_there_is_no_socket(shared: EnvironmentSandbox, code: str) -> None:
    assert attempt(shared, f"import socket; {code}") == errno.EPERM


def test_an_event_loop_runs(shared: EnvironmentSandbox) -> None:
    assert attempt(shared, "import asyncio; asyncio.run(asyncio.sleep(0))") == 0


# ---- what it leaves behind -----------------------------------------------------------------------------------------------

SLEEPS = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"


def grandchild(sandbox: EnvironmentSandbox) -> int:
    assert attempt(sandbox, SLEEPS) == 0
    (pid,) = Path(f"/proc/{child(sandbox)}/task/{child(sandbox)}/children").read_text().split()
    assert alive(int(pid))
    return int(pid)


def misses_its_deadline(sandbox: EnvironmentSandbox) -> None:
    os.kill(child(sandbox), signal.SIGSTOP)
    sandbox._deadline = 0.5
    with pytest.raises(Unavailable) as caught:
        sandbox._ask({"op": "nothing"}, attempts=1)
    assert "other side" not in caught.value.hint, "nobody else has to mend it"


def ends_by_itself(sandbox: EnvironmentSandbox) -> None:
    os.kill(child(sandbox), signal.SIGKILL)
    ends(child(sandbox))
    sandbox.warm_up()


@pytest.mark.parametrize(
    "end", [misses_its_deadline, ends_by_itself, EnvironmentSandbox.close], ids=lambda f: f.__name__
)
def test_what_it_started_ends_with_it(sandboxed: Sandboxed, end: Callable[[EnvironmentSandbox], None]) -> None:
    with sandboxed() as sandbox:
        pid = grandchild(sandbox)
        end(sandbox)
        ends(pid)


SIBLING = "(p := call(56, 220, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)) or os._exit(0)"


@seccomp
def test_it_makes_no_children_of_its_parent(shared: EnvironmentSandbox) -> None:
    assert attempt(shared, f"{CALL}import signal; {SIBLING}") == errno.EPERM


@seccomp
def test_clone3_is_unknown_so_that_libraries_take_what_can_be_looked_into(shared: EnvironmentSandbox) -> None:
    """Its flags lie in memory, where a filter sees nothing."""
    assert attempt(shared, f"{CALL}call(435, 435, 0, 0)") == errno.ENOSYS


def children() -> set[int]:
    """Of this process, those that have ended among them."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


@linux
def test_children_that_it_made_of_its_parent_elsewhere_end_with_it(
    sandboxed: Sandboxed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the filter it can. They would stay zombies until the process table is full."""
    monkeypatch.setattr(process.Kernel, "here", lambda: Kernel(KERNEL.landlock, False))
    with subprocess.Popen(["true"]) as other, sandboxed() as sandbox:
        ends(other.pid)
        before = children()
        more = "p or os._exit(0); (q := call(56, 220, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)) or signal.pause()"
        assert attempt(sandbox, f"{CALL}import signal\nfor _ in range(20): {SIBLING}; {more}") == 0
        assert len(children() - before) == 41
        sandbox.close()
        assert children() == before
        assert other.wait(timeout=60) == 0, "what others have started is theirs to wait for"


@seccomp
def test_nothing_takes_back_that_it_ends_with_its_parent(shared: EnvironmentSandbox) -> None:
    assert attempt(shared, f"{CALL}call(157, 167, 1, 0, 0, 0, 0)") == errno.EPERM
    assert attempt(shared, f"{CALL}call(157, 167, 15, b'name', 0, 0, 0)") == 0, "other calls of it are free"


ORDINARY = {
    "threads": "import threading; t = threading.Thread(target=print); t.start(); t.join()",
    "a pool": "from concurrent.futures import ThreadPoolExecutor as P; list(P(8).map(abs, range(100)))",
    "asyncio with threads": "import asyncio; asyncio.run(asyncio.to_thread(print))",
    "asyncio with a program": "import asyncio\n"
    "async def f(): p = await asyncio.create_subprocess_exec('true'); assert await p.wait() == 0\nasyncio.run(f())",
    "numpy": "import numpy as np; a = np.ones((300, 300)); assert (a @ a).sum() == 300**3; np.linalg.svd(a)",
    "pyarrow": "import pyarrow as pa, pyarrow.compute as pc; assert pc.sum(pa.array(range(9))).as_py() == 36; "
    "pa.set_cpu_count(4); pa.table({'a': range(99)}).group_by('a').aggregate([('a', 'sum')])",
    "a program": "import subprocess; subprocess.run(['true'], check=True)",
    "a program of a shell": "import os; assert os.system('true') == 0",
    "a program by posix_spawn": "import os; p = os.posix_spawnp('true', ['true'], {}); assert os.waitpid(p, 0)[1] == 0",
    "fork": "import os; p = os.fork() or os._exit(0); assert os.waitpid(p, 0)[1] == 0",
    "nice": "import os; os.nice(1)",
    "BLAS with threads": "import subprocess, sys, os; subprocess.run([sys.executable, '-c', "
    "'import numpy as np; a = np.ones((900, 900)); assert (a @ a).sum() == 900**3'], "
    "env={**os.environ, 'OPENBLAS_NUM_THREADS': '4'}, check=True)",
}


@pytest.mark.parametrize("code", ORDINARY.values(), ids=ORDINARY)
def test_what_an_ordinary_environment_does_goes_on(shared: EnvironmentSandbox, code: str) -> None:
    assert attempt(shared, code) == 0


@seccomp
def test_what_it_starts_stays_in_its_group(shared: EnvironmentSandbox) -> None:
    for leaving in ("start_new_session=True", "process_group=0"):
        assert attempt(shared, f"import subprocess; subprocess.run(['true'], {leaving})") == errno.EPERM


@linux
def test_it_ends_with_its_parent_in_the_middle_of_a_request(sandboxed: Sandboxed) -> None:
    code = """
import os, pathlib, signal, sys, threading, time
from protocol.runspec import Generated
from protocol.sandbox import EnvironmentSandbox
ENDLESS = "import signal; signal.setitimer(signal.ITIMER_PROF, 0)\\nwhile True: pass"  # whatever an answer is granted
sandbox = EnvironmentSandbox([Generated.model_validate_json(sys.argv[1])], deadline=60.0)
sandbox.warm_up()
pid = sandbox._process.pid
def ticks():
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])
before = ticks()
threading.Thread(target=sandbox.score, args=([(0, ENDLESS)],), daemon=True).start()
while ticks() < before + 20:  # more than it takes to refuse a request
    time.sleep(0.01)
print(pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, SPEC.model_dump_json()], capture_output=True, env=dict(os.environ), timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    ends(int(done.stdout))


def test_it_outlives_the_thread_that_first_asked(sandboxed: Sandboxed) -> None:
    """Linux ends it with the thread that started it, not with the process."""
    with sandboxed() as sandbox:
        first = threading.Thread(target=sandbox.warm_up)
        first.start()
        first.join(timeout=60)
        pid = child(sandbox)
        assert attempt(sandbox, "") == 0
        assert (child(sandbox), sandbox.restarts) == (pid, 0)


# ---- kernels that hold less ----------------------------------------------------------------------------------------------


@pytest.fixture
def visible() -> Iterator[None]:
    """This process may be looked at again afterwards."""
    yield
    process._prepare.cache_clear()
    if sys.platform == "linux":
        confinement._libc.prctl(confinement._PR_SET_DUMPABLE, 1, 0, 0, 0)


@linux
def test_without_landlock_the_parent_hides_itself_and_says_what_is_not_held(
    sandboxed: Sandboxed, visible: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:  # fmt: skip
    monkeypatch.setattr(process.Kernel, "here", lambda: Kernel(0, KERNEL.seccomp))
    process._prepare.cache_clear()
    (tmp_path / "file").touch()
    with sandboxed() as sandbox:
        assert attempt(sandbox, f"import os; os.unlink({str(tmp_path / 'file')!r})") == 0  # Landlock it was
        assert attempt(sandbox, "import os; open('/proc/%d/environ' % os.getppid()).read()") == errno.EACCES
        sandbox.close()
        sandbox.warm_up()
    assert confinement._libc.prctl(3, 0, 0, 0, 0) == 0  # PR_GET_DUMPABLE
    (said,) = [record.message for record in caplog.records if "may here:" in record.message]
    assert "delete, rename and overwrite files" in said


@linux
def test_a_kernel_that_refuses_what_it_promised_ends_the_child_with_a_reason(
    sandboxed: Sandboxed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process.Kernel, "here", lambda: Kernel(-1, KERNEL.seccomp))
    with sandboxed() as sandbox, pytest.raises(PreflightError, match="landlock_create_ruleset is refused"):
        sandbox.warm_up()


REFUSALS = {
    "prctl(PR_SET_PDEATHSIG)": "_where(157 if x86 else 167, (0, _ALL, 1), met=0)",
    "prctl(PR_SET_NO_NEW_PRIVS)": "_where(157 if x86 else 167, (0, _ALL, 38), met=0)",
    "capset": "[(_EQUAL, 0, 1, 126 if x86 else 91), (_RETURN, 0, 0, _REFUSE)]",
    "prctl(PR_SET_DUMPABLE)": "_where(157 if x86 else 167, (0, _ALL, 4), met=0)",
    "setrlimit(RLIMIT_AS)": "[]; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))",
}


@seccomp
@pytest.mark.parametrize("call", REFUSALS)
def test_a_call_that_this_machine_refuses_is_named(sandboxed: Sandboxed, call: str) -> None:
    """A container's profile, or a service's limits, may refuse what the kernel would grant: that is for its operator to mend."""
    code = f"""
import platform, resource, sys
from protocol.errors import MurmurationError
from protocol.runspec import Generated
from protocol.sandbox import EnvironmentSandbox, bpf, confinement, process
from protocol.sandbox.bpf import ALL as _ALL, _ALLOW, _EQUAL, _LOAD, _REFUSE, _RETURN, _where
x86 = platform.machine() == "x86_64"
refused = {REFUSALS[call]}
bpf._instructions = lambda *_: [(_LOAD, 0, 0, 0), *refused, (_RETURN, 0, 0, _ALLOW)]
confinement._libc.prctl(38, 1, 0, 0, 0)
confinement._seccomp()
if {"DUMPABLE" in call}:
    process.Kernel.here = lambda: confinement.Kernel(0, True)
try:
    with EnvironmentSandbox([Generated.model_validate_json(sys.argv[1])]) as sandbox:
        sandbox.warm_up()
except MurmurationError as error:
    print(type(error).__name__, error, error.hint)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, SPEC.model_dump_json()], capture_output=True, env=dict(os.environ), timeout=120
    )
    assert done.stdout.decode().startswith(f"PreflightError cannot confine the sandbox: {call} is refused: "), done
    assert b"profile" in done.stdout


@pytest.mark.parametrize(
    ("kernel", "missing"),
    [
        (Kernel(6, True), []),
        (Kernel(4, True), ["send signals to this account's processes"]),
        (Kernel(1, True), ["cut files short", "send signals to this account's processes"]),
    ],
)
def test_what_a_kernel_lacks_is_named(kernel: Kernel, missing: list[str]) -> None:
    assert kernel.missing == missing


def test_a_kernel_without_anything_names_everything() -> None:
    assert len(Kernel(0, False).missing) == 4


@pytest.mark.parametrize("machine", bpf.ARCHITECTURES)
@pytest.mark.parametrize("rules", [confinement.CHILD, walls.SANDBOX, walls.PROGRAM])
def test_every_step_of_a_filter_stays_within_it(rules: bpf.Rules, machine: str) -> None:
    program = bpf._instructions(rules, machine)
    for at, (code, when_true, when_false, _) in enumerate(program):
        if code in (bpf._EQUAL, bpf._AT_LEAST):
            assert at + 1 + max(when_true, when_false) < len(program)
    assert program[-1] == (bpf._RETURN, 0, 0, bpf._ALLOW)
