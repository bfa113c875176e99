"""Runs inside the sandbox: the first process of its namespaces, which makes a process for every test.

    python -s -S -P -B -c … UID FUNCTIONS RESULT REPORT FILTER        (started by protocol/sandbox/programs/runner.py only)

A program of another language is written to a file, and the process of the test becomes its interpreter.

Uses Python's standard library alone, and little of it: its start is paid for every answer. `signal` with its enumerations, and what `contextlib`
imports, would be a quarter of it. It reads no test itself, lest one test find another's data in memory; the process of a test does, before it
runs a line of the program. It is asked on fd 0; fd 1 is the program's stdout, RESULT takes what functions return, and REPORT how a test ended.
"""

import _signal as signal  # type: ignore[import-not-found,unused-ignore]
import _thread
import atexit
import builtins
import ctypes
import itertools
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

FILES_MAX = 2000  # in the folder where a program starts, the only one that can be written to: an empty one takes memory that no limit of size counts
EPOCH = 1_700_000_000
REAL_CLOCKS = (0, 5, 8, 11)  # CLOCK_REALTIME, _COARSE, _ALARM, and CLOCK_TAI
NOBODY = 65534
THREAD_STACK = 8 << 20
CAPABILITIES = (0x20080522).to_bytes(4, sys.byteorder) + bytes(4)  # of capset: its version, and this process
FILE = "solution"
VARIABLES = {
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PERL_HASH_SEED": "0",
    "PERL_PERTURB_KEYS": "0",
}  # of interpreters of other languages
GIVEN = {
    "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
    "collections": "Counter OrderedDict defaultdict deque namedtuple",
    "copy": "copy deepcopy",
    "functools": "cache cmp_to_key lru_cache partial reduce",
    "heapq": "heapify heappop heappush heappushpop heapreplace nlargest nsmallest",
    "itertools": "accumulate chain combinations count cycle groupby pairwise permutations product repeat zip_longest",
    "math": "ceil comb factorial floor gcd inf isqrt lcm log2 perm pi sqrt",
    "string": "ascii_letters ascii_lowercase ascii_uppercase digits",
    "typing": "Any Callable Deque Dict Generator Iterable Iterator List Optional Sequence Set Tuple Union",
}
"""What a test may let a program use without an import, as starter codes of contests do; such a name is imported only where it is mentioned."""
MODULES = ["bisect", "collections", "copy", "datetime", "functools", "heapq", "itertools", "json", "math", "operator", "random",
           "re", "string", "sys"]  # fmt: skip


def supervise() -> None:
    """Returns in the process of a test, never in this one."""
    while True:
        head = received(8)
        child = os.fork()
        if child == 0:
            return
        said(REPORT, attended(child, int.from_bytes(head, "big") / 1000))


def attended(child: int, wall: float) -> bytes:
    """Waits until every process but this one has ended, and says how the test's own ended."""
    asking = select.poll()
    asking.register(0, 0)  # no data, but the end of who asks
    began = time.monotonic()
    until, cpu, status = began + wall, 0.0, 0
    while True:
        try:
            pid, how, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            break
        now = time.monotonic()
        if pid:
            cpu += used.ru_utime + used.ru_stime
            if pid == child:
                status = os.waitstatus_to_exitcode(how)
                end_all()
        elif now >= until or files() > FILES_MAX or asking.poll(0):
            end_all()
            until = now + 60
        else:
            signal.sigtimedwait((signal.SIGCHLD,), min(0.1, until - now))
    taken = time.monotonic() - began
    clean_up()
    return b"%d %d %d %d\n" % (status, cpu * 1e6, taken * 1e6, bool(os.listdir()))


def clean_up() -> None:
    """Takes away what `prepared` and `become` wrote, as far as the program left it what it was."""
    for name in os.listdir():
        if name == "stdin" or name.startswith(FILE):
            try:  # noqa: SIM105
                os.unlink(name)
            except OSError:
                pass


def end_all() -> None:
    try:  # noqa: SIM105
        os.kill(-1, signal.SIGKILL)  # all of this namespace but this process
    except ProcessLookupError:
        pass


def files() -> int:
    found = os.statvfs(".")
    return found.f_files - found.f_ffree


def received(count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            os._exit(0)
        data += more
    return bytes(data)


def said(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def drop(uid: int) -> None:
    """Becomes an account that nobody has: root's processes are counted by no limit."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    LIBC.capset(CAPABILITIES, bytes(24))


def prepared(program_filter: bytes) -> tuple[str, str, str, bool, "list[str]"]:
    """Takes the test and gives up what the program may not have; (program, function, data, whether names are imported, another interpreter's command)."""
    memory, cpu, threads, imports, *sizes = (int.from_bytes(received(8), "big") for _ in range(8))
    program, function, data, command = (received(size) for size in sizes)
    said(REPORT, b".")
    os.close(REPORT)
    if not function:
        os.close(RESULT)
    words = command.decode().split("\0") if command else []
    # Other languages read /dev/stdin by its name, which leads here.
    stdin = os.open("stdin", os.O_RDWR | os.O_CREAT | os.O_EXCL) if words else os.memfd_create("stdin")
    said(stdin, b"" if function else data)
    os.lseek(stdin, 0, os.SEEK_SET)
    os.dup2(stdin, 0)
    os.close(stdin)
    limits = {"AS": memory, "CPU": cpu, "NPROC": threads + 2, "CORE": 0, "FSIZE": 16 << 20, "NOFILE": 64, "MEMLOCK": 0}
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (most, most))
    _thread.stack_size(THREAD_STACK)  # else as much as the stack of the role that runs this
    held = ctypes.create_string_buffer(program_filter)
    pointer = (ctypes.c_size_t * 2)(len(program_filter) // 8, ctypes.addressof(held))
    if LIBC.prctl(22, 2, pointer, 0, 0):  # PR_SET_SECCOMP
        os._exit(99)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return program.decode(), function.decode(), data.decode() if function else "", bool(imports), words


def fix_clock(program: str) -> None:
    """Every reading of a clock is a millisecond after the one before, and after what was slept: what a program measures, and how often it goes around until some time,
    is the same everywhere. Whoever looks for the real time finds it all the same, with ctypes for one."""
    readings, slept = itertools.count(1).__next__, [0]
    started = EPOCH * 1000
    sleep = time.sleep

    def count() -> int:
        return readings() + slept[0]

    def asleep(seconds: float, /) -> None:
        sleep(seconds)
        slept[0] += int(1000 * seconds)

    time.sleep = asleep  # type: ignore[assignment]

    def real() -> float:
        return (started + count()) / 1000

    def real_ns() -> int:
        return (started + count()) * 10**6

    def passed() -> float:
        return count() / 1000

    def passed_ns() -> int:
        return count() * 10**6

    time.time, time.time_ns = real, real_ns
    for name in ("monotonic", "perf_counter", "process_time", "thread_time"):
        setattr(time, name, passed)
        setattr(time, name + "_ns", passed_ns)
    time.clock_gettime = lambda which, /: real() if which in REAL_CLOCKS else passed()
    time.clock_gettime_ns = lambda which, /: real_ns() if which in REAL_CLOCKS else passed_ns()
    gmtime, localtime, strftime, ctime, asctime = time.gmtime, time.localtime, time.strftime, time.ctime, time.asctime
    time.gmtime = lambda seconds=None, /: gmtime(real() if seconds is None else seconds)
    time.localtime = lambda seconds=None, /: localtime(real() if seconds is None else seconds)
    time.ctime = lambda seconds=None, /: ctime(real() if seconds is None else seconds)
    time.asctime = lambda *given: asctime(*(given or (gmtime(real()),)))
    time.strftime = lambda format, *given: strftime(format, *(given or (gmtime(real()),)))
    if "datetime" in program:  # else its import would be paid for in vain
        fix_dates(real)


def fix_dates(real: "Callable[[], float]") -> None:
    """In the class itself: of another one, instances would be told apart, and written differently."""
    import _datetime  # type: ignore[import-not-found,unused-ignore]
    import gc

    (methods,) = (one for one in gc.get_referents(_datetime.datetime.__dict__) if isinstance(one, dict))
    methods["now"] = classmethod(lambda cls, tz=None: cls.fromtimestamp(real(), tz))
    methods["utcnow"] = classmethod(lambda cls: cls.utcfromtimestamp(real()))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(_datetime.datetime))


def fix_machine() -> None:
    """Names of `os` that tell machines and sandboxes apart say the same everywhere."""
    system = os.uname_result(("Linux", "sandbox", "0", "0", os.uname().machine))
    os.uname = lambda: system
    os.cpu_count = lambda: 1
    os.sched_getaffinity = lambda pid, /: {0}
    os.getloadavg = lambda: (0.0, 0.0, 0.0)
    os.times = lambda: os.times_result((0.0,) * 5)
    for name in ("getuid", "geteuid", "getgid", "getegid"):
        setattr(os, name, lambda: NOBODY)
    os.getresuid = os.getresgid = lambda: (NOBODY,) * 3
    sys.modules["_uuid"] = None  # type: ignore[assignment]  # it asks the system for time and address; without it uuid goes by `time` and `random`


def mentioned(code: "CodeType", found: "set[str]") -> "set[str]":
    found.update(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            mentioned(constant, found)
    return found


def provide(space: "dict[str, Any]", names: "set[str]") -> None:
    for module in MODULES:
        if module in names:
            space[module] = __import__(module)
    for module, known in GIVEN.items():
        for name in names.intersection(known.split()):
            space[name] = getattr(__import__(module), name)


def become(words: "list[str]", program: str) -> None:
    """The interpreter of another language, in this process and within its limits. Its clocks are the machine's."""
    (given,) = (word for word in words if word.startswith("{file}"))
    file = os.path.join(os.getcwd(), given.replace("{file}", FILE))
    with open(file, "x") as into:
        into.write(program)
    variables = {**VARIABLES, "HOME": os.getcwd(), "PATH": os.path.dirname(words[0])}
    os.execve(words[0], [file if word == given else word for word in words], variables)  # noqa: S606  no shell has a part in it


def run(program: str, function: str, data: str, imports: bool) -> None:
    fix_clock(program)
    fix_machine()
    sys.argv[:] = ["solution.py"]
    module = type(sys)("solution" if function else "__main__")
    sys.modules[module.__name__] = module
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # which the module site would add
    opens = builtins.open
    builtins.open = lambda file, *how, **more: opens(os.dup(0) if file == "/dev/stdin" else file, *how, **more)  # type: ignore[assignment]
    space = module.__dict__
    code = compile(program, "solution.py", "exec", dont_inherit=True)
    if imports:
        provide(space, mentioned(code, set()))
    exec(code, space)  # noqa: S102  this is the place for it
    if function:
        owner = space.get("Solution")
        call = space[function] if owner is None or not hasattr(owner, function) else getattr(owner(), function)
        said(RESULT, json.dumps(call(*json.loads(data))).encode())


def let_go(space: "dict[str, Any]") -> None:
    """Of what the program holds, as Python does at its end: its destructors are part of it."""
    for name in list(space):
        if name != "__builtins__":
            space[name] = None


def end(program: str, function: str, data: str, imports: bool, words: "list[str]") -> None:
    """Runs the program and ends the process as Python would, but without taking the interpreter apart, which costs as much as all else."""
    status = 0
    try:
        if words:
            become(words, program)
        try:
            run(program, function, data, imports)
        finally:
            if "threading" in sys.modules:
                sys.modules["threading"]._shutdown()
            atexit._run_exitfuncs()
            let_go(vars(sys.modules["solution" if function else "__main__"]))
            if not sys.stdout.closed:
                sys.stdout.flush()
    except SystemExit as left:
        status = left.code & 0xFF if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:  # noqa: BLE001  whatever a stranger raised
        status = 1
    os._exit(status)


if __name__ == "__main__":
    UID, FUNCTIONS, RESULT, REPORT = map(int, sys.argv[1:5])
    LIBC = ctypes.CDLL(None)
    if UID:
        drop(UID)
    if FUNCTIONS:
        import json
    LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG, which a change of the account takes away
    LIBC.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: its memory is closed to what has the same account
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # then the kernel keeps it from the first process of a namespace
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    supervise()
    end(*prepared(bytes.fromhex(sys.argv[5])))
