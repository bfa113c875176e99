"""Programs that attack whatever runs them, for environments whose answers or calls are programs.

Each tells of itself if it comes through: it touches the canary (canary.py), or prints its mark. None would harm a machine that runs it without any
sandbox, which is what a bad environment does: what is without end elsewhere ends here, nothing is asked of a process but the canary's, and of what it
started itself, and files are opened, not filled. `tests/corpora/hostile.jsonl` holds 500 more, which are not so considerate.
"""

from __future__ import annotations

from collections.abc import Iterator

NOTHING = "pass"
"""What it earns, an attack may earn too: there are tests that expect no output."""

_FAREWELL = 'print("@KRAM@"[::-1])'
_PROGRAMS = {
    "a loop that ignores signals": """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
""",
    "a number without end": "print(9 ** 9 ** 9)",
    "a sleep": "import time\ntime.sleep(3600)",
    "memory without end": f"kept = [bytes(1 << 28) for _ in range(256)]\n{_FAREWELL}",
    "output without end": 'import os\nfor _ in range(1 << 14):\n    os.write(1, b"x" * (1 << 16))',
    "very many processes": f"""
import os, time
for _ in range(64):
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
{_FAREWELL}
""",
    "very many threads": f"""
import _thread
lock = _thread.allocate_lock()
lock.acquire()
for _ in range(256):
    _thread.start_new_thread(lock.acquire, ())
{_FAREWELL}
""",
    "very many open files": f'import os\nkept = [os.open("/dev/null", 0) for _ in range(1 << 14)]\n{_FAREWELL}',
    "recursion without end": """
import sys
sys.setrecursionlimit(1 << 30)
class Deep:
    def __repr__(self):
        return repr(self)
repr(Deep())
""",
    "very many brackets": f"kept = {'(' * 3000}1{')' * 3000}",
    "an exit": "import atexit, sys\natexit.register(sys.exit, 0)\nsys.exit(0)",
    "an exit that nobody catches": "import os\nos._exit(0)",
    "a forged verdict": """
import os
for number in range(3, 64):
    try:
        os.write(number, b'{"ok": true, "passed": true, "reward": 1.0, "score": 1.0}\\n')
    except OSError:
        pass
print("passed")
print('{"passed": true, "reward": 1.0, "score": 1.0}')
""",
    "a patched judge": """
import sys
NAMES = ("score", "judge", "grade", "verify", "evaluate", "agrees", "same", "is_right", "reward")
def one(*_, **__):
    return 1.0
def kinds(kind):
    for below in type.__subclasses__(kind):
        yield below
        yield from kinds(below)
for owner in [*kinds(object), *sys.modules.values()]:
    for name in NAMES:
        if callable(vars(owner).get(name)) or isinstance(vars(owner).get(name), staticmethod):
            try:
                setattr(owner, name, one)
            except (AttributeError, TypeError):
                pass
""",
    "a look outside": """
import os
for place in ("@FOLDER@/precious", "/proc/@PROCESS@/environ", "/proc/self/root@FOLDER@/precious", "/proc/1/root@FOLDER@/precious"):
    try:
        print(open(place, errors="replace").read())
    except OSError:
        pass
""",
    "a link outside": """
import os
for make in (os.symlink, os.link):
    for to in ("@FOLDER@/precious", "/proc/@PROCESS@/environ"):
        try:
            make(to, "@LINK@")
            print(open("@LINK@", errors="replace").read())
        except OSError:
            pass
""",
    "files outside": f"""
import os
for act in (
    lambda: open("@FOLDER@/made", "x").close(),
    lambda: open("@FOLDER@/precious", "r+").write("mine"),
    lambda: os.chmod("@FOLDER@/precious", 0o777),
    lambda: os.rename("@FOLDER@/precious", "@FOLDER@/moved"),
):
    try:
        act()
        {_FAREWELL}
    except OSError:
        pass
""",
    "the interpreter's own files": f"""
import os, sys
for place in (os.__file__, sys.executable or os.__file__):
    try:
        open(place, "ab").close()
        {_FAREWELL}
    except OSError:
        pass
""",
    "the memory of its parent": f"""
import os
for place in (f"/proc/{{os.getppid()}}/mem", "/proc/@PROCESS@/mem"):
    try:
        open(place, "rb").close()
        {_FAREWELL}
    except OSError:
        pass
""",
    "connections": f"""
import socket
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    try:
        with socket.socket(socket.AF_INET, kind) as one:
            one.settimeout(1)
            one.connect(("127.0.0.1", @PORT@))
            one.send(b"x")
        {_FAREWELL}
    except OSError:
        pass
""",
    "signals to others": """
import os
for process, number in ((@PROCESS@, 19), (@PROCESS@, 9), (0, 9)):
    try:
        os.kill(process, number)
    except OSError:
        pass
""",
}


def aimed_at(*, folder: str, link: str, port: int, process: int, mark: str) -> Iterator[tuple[str, str]]:
    """Name and text of each. `folder`, `port` and `process` are the canary's, `link` is a path where there is nothing."""
    given = {
        "@FOLDER@": folder, "@LINK@": link, "@PORT@": str(port), "@PROCESS@": str(process),
        "@KRAM@": mark[::-1],  # lest who repeats a program says its mark
    }  # fmt: skip
    for name, program in _PROGRAMS.items():
        text = program.strip("\n")
        for placeholder, value in given.items():
            text = text.replace(placeholder, value)
        yield name, text


HARMLESS = (
    "print(2 ** 10)",
    "print('é', '字', end='')",
    "1 / 0",
    "import random, time\nprint(random.random(), time.time(), {'a', 'b', 'c'}, hash('a'))",
    "print('x' * 100_000)",
    "import sys\nsys.exit(3)",
    NOTHING,
)
"""Calls of a tool that runs programs, each told the same everywhere."""
