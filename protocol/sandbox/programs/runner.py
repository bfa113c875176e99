"""Runs programs, one sandbox for each, and takes back bytes that it does not look into.

    Runner.run(trial) -> list[TrialRun]

Every wait has a deadline, every answer a cap. What a sandbox leaves behind ends with it: bubblewrap is the parent of the first
process of a namespace, and the kernel ends the others with that one. A sandbox that a test left files in is not used again.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from math import ceil

from protocol.environments.programs import Trial, TrialCase, TrialRun
from protocol.errors import Unavailable
from protocol.sandbox.programs import walls
from protocol.sandbox.programs.idleness import Idleness

_STARTING_S = 30.0
"""For a sandbox to start and to end, which takes milliseconds: only what does not work takes as long."""
_AT_ONCE = 1 << 16
_BROKEN = "no sandbox answers; `murmur env doctor` says what this machine grants"

_THREADS = """
import _thread, time
lock = _thread.allocate_lock()
lock.acquire()
made = 0
try:
    while made < 64:
        _thread.start_new_thread(lock.acquire, ())
        made += 1
except RuntimeError:
    pass
print("ran" if made < 64 else "no limit of threads", flush=True)
"""
TRIAL = Trial(
    program=_THREADS, cases=(TrialCase("", 100),), cpu=10.0, total=10.0, wall=20.0, idle=10.0, memory=1 << 30, stop=True
)  # fmt: skip
"""A program of our own: it runs, and what it may start is counted."""
EXPECTED = b"ran\n"


class Runner:
    """May be shared by threads; runs as many sandboxes at once as this process has processors."""

    def __init__(self) -> None:
        self._workers = len(os.sched_getaffinity(0))

    def run_all(self, trials: Sequence[Trial]) -> list[list[TrialRun]]:
        """In order; a program that comes several times with the same tests is run once. Raises Unavailable where sandboxes do not work."""
        different = list(dict.fromkeys(trials))
        if len(different) < 2 or self._workers < 2:
            found = [self.run(trial) for trial in different]
        else:
            # Each sandbox begins and ends on one thread: Linux ends bubblewrap with the thread that started it.
            with ThreadPoolExecutor(min(self._workers, len(different)), "programs") as pool:
                found = list(pool.map(self.run, different))
        runs = dict(zip(different, found, strict=True))
        return [runs[trial] for trial in trials]

    def run(self, trial: Trial) -> list[TrialRun]:
        """How the tests ended, in order: fewer than were asked for where the trial says to stop. Raises Unavailable."""
        runs: list[TrialRun] = []
        left, idle = trial.total, trial.idle
        until = time.monotonic() + trial.longest
        box: Sandboxed | None = None
        try:
            for case in trial.cases:
                wall = min(trial.wall, until - time.monotonic())
                if min(left, idle, wall) <= 0:
                    break
                functions = bool(case.function)
                if box is not None and (box.is_spent or box.functions != functions):
                    box.close()
                    box = None
                box, run = _tried(box, replace(trial, cpu=min(trial.cpu, left)), case, wall, min(left, idle))
                runs.append(run)
                left -= run.cpu + run.idle
                idle -= run.idle
                if trial.stop and (run.status or run.is_cut or run.cpu > trial.cpu or run.wall > trial.wall):
                    break
        finally:
            if box is not None:
                box.close()
        return runs


def _tried(
    box: Sandboxed | None, trial: Trial, case: TrialCase, wall: float, idle: float
) -> tuple[Sandboxed, TrialRun]:
    """Once more in a fresh sandbox where one breaks; twice broken is the program's doing where another one runs."""
    place = walls.interpreter(trial.interpreter[0]) if trial.interpreter else ""
    if place is None:
        raise Unavailable(f"the interpreter {trial.interpreter[0]} is not installed on this machine")
    began = time.monotonic()
    for _ in range(2):
        box = box or Sandboxed(functions=bool(case.function), language=place)
        try:
            return box, box.run(trial, case, wall=wall, idle=idle)
        except BrokenSandbox:
            box.close()
            box = None
    taken = time.monotonic() - began
    box = Sandboxed(functions=False)
    with suppress(BrokenSandbox):
        if box.run(TRIAL, TRIAL.cases[0]).output == EXPECTED:
            box.is_spent |= bool(place)  # it has Python alone
            return box, TrialRun(status=-9, cpu=0.0, wall=taken)
    box.close()
    raise Unavailable("programs cannot be run on this machine now", hint=_BROKEN)


class BrokenSandbox(Exception):
    """Its first process ended, or answered what it never does."""


class Sandboxed:
    """One sandbox with its interpreter, for the tests of one program. Not for several threads; use as a context manager."""

    def __init__(self, *, functions: bool, language: str = "", uid: int | None = None) -> None:
        """`functions`: whether the tests call functions. `language`: the place of another interpreter than Python. `uid` is the account inside;
        None: as this process needs it."""
        self.functions = functions
        self.is_spent = False
        """Whether no other test may use it."""
        rules, to_rules = os.pipe()
        os.write(to_rules, walls.sandbox_filter(interpreted=bool(language)))  # less than a pipe holds
        os.close(to_rules)
        self._result, to_result = os.pipe()
        self._report, to_report = os.pipe()
        info, to_info = os.pipe()
        ready, to_ready = os.pipe()
        command = walls.command(
            uid=walls.fresh_uid() if uid is None else uid, functions=functions, language=language, seccomp=rules, result=to_result, report=to_report,
            info=to_info, ready=ready,
        )  # fmt: skip
        inherited = (rules, to_result, to_report, to_info, ready)
        try:
            with walls.same_addresses():
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=inherited, bufsize=0
                )  # fmt: skip
        except OSError as error:
            for end in (self._result, self._report, info, to_ready):
                os.close(end)
            raise Unavailable(f"bubblewrap cannot be started: {error.strerror}") from error
        finally:
            for end in inherited:
                os.close(end)
        assert self._process.stdin and self._process.stdout
        self._ask, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        for descriptor in (self._ask, self._out, self._result, self._report):
            os.set_blocking(descriptor, False)
        first = _first_process(info)
        if first is not None:
            walls.give_stack(first[0])
        self._first_pid = None if first is None else first[0]
        self._first = None if first is None else first[1]
        with suppress(BrokenPipeError):
            os.write(to_ready, b".")
        os.close(to_ready)

    def __enter__(self) -> Sandboxed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, trial: Trial, case: TrialCase, *, wall: float | None = None, idle: float | None = None) -> TrialRun:
        """One test, within what is left of the trial's time. Raises BrokenSandbox where its supervisor does not answer as it must."""
        wall, idle = trial.wall if wall is None else wall, trial.idle if idle is None else idle
        outputs, report = {self._out: bytearray(), self._result: bytearray()}, bytearray()
        rest = memoryview(_frame(trial, case, wall))
        until = time.monotonic() + wall + _STARTING_S
        seen: Idleness | None = None
        is_cut = False
        with selectors.DefaultSelector() as selector:
            selector.register(self._ask, selectors.EVENT_WRITE)
            for source in (*outputs, self._report):
                selector.register(source, selectors.EVENT_READ)
            while not report.endswith(b"\n"):
                left = until - time.monotonic()
                if left <= 0 or len(report) > 200:
                    raise BrokenSandbox
                for key, _ in selector.select(min(left, seen.pause) if seen else left):
                    if key.fd == self._ask:
                        rest = self._sent(rest)
                        if not rest:
                            selector.unregister(self._ask)
                    elif self._take(key.fd, outputs.get(key.fd, report)) == _AT_ONCE and seen:
                        seen.skip()  # as much as a pipe holds: it may have waited for this process
                if seen is None and report and not rest:
                    seen = Idleness(self._first_pid)
                is_cut = is_cut or sum(map(len, outputs.values())) > case.output
                if not self.is_spent and (is_cut or (seen and seen.look() > idle)):
                    for source in (*outputs, *([self._ask] if rest else [])):
                        selector.unregister(source)
                    self._stop()
        for source, data in outputs.items():  # what the processes of the test wrote before they ended, all of it by now
            while not self.is_spent and len(data) <= case.output and self._take(source, data, ends=True):
                pass
        return self._told(
            bytes(report), case, bytes(outputs[self._result if case.function else self._out]), seen, is_cut
        )

    def _stop(self) -> None:
        """Has the supervisor end the test now, and say what it took."""
        self.is_spent = True
        assert self._process.stdin
        self._process.stdin.close()
        if self._first is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGCHLD)  # else it looks a tenth of a second later

    def _sent(self, rest: memoryview) -> memoryview:
        try:
            return rest[os.write(self._ask, rest) :]
        except BlockingIOError:
            return rest
        except OSError as error:
            raise BrokenSandbox from error

    def _take(self, source: int, into: bytearray, *, ends: bool = False) -> int:
        """Reads some; how many bytes. Raises BrokenSandbox where there will be no more, unless it may have ended."""
        try:
            data = os.read(source, _AT_ONCE)
        except BlockingIOError:
            return 0
        if not data and not ends:
            raise BrokenSandbox
        into += data
        return len(data)

    def _told(self, report: bytes, case: TrialCase, output: bytes, seen: Idleness | None, is_cut: bool) -> TrialRun:
        if not report.startswith(b"."):
            raise BrokenSandbox
        try:
            status, cpu, wall, left = map(int, report[1:].split())
        except ValueError as error:
            raise BrokenSandbox from error
        self.is_spent = self.is_spent or bool(left)
        is_cut = is_cut or len(output) > case.output
        idle = seen.told(cpu / 1e6, wall / 1e6) if seen else 0.0
        return TrialRun(status, cpu / 1e6, wall / 1e6, b"" if is_cut else output, is_cut, idle)

    def close(self) -> None:
        """Ends all that runs in it, and waits until it has ended."""
        self.is_spent = True
        if self._first is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(
                    self._first, signal.SIGKILL
                )  # the kernel ends all others before it lets go of this one
            os.close(self._first)
        else:
            self._process.kill()
        try:
            self._process.wait(_STARTING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        os.close(self._result)
        os.close(self._report)


def _first_process(info: int) -> tuple[int, int] | None:
    """The number and a descriptor of the first process of a sandbox, from what bubblewrap says of it; None where it did not come that far."""
    with open(info, "rb") as source:
        said = b""
        while select.select([source], [], [], _STARTING_S)[0] and (more := source.read1(_AT_ONCE)):
            said += more
            with suppress(ValueError, KeyError, ProcessLookupError):
                pid = json.loads(said)["child-pid"]
                return pid, os.pidfd_open(pid)
    return None


def _frame(trial: Trial, case: TrialCase, wall: float) -> bytes:
    command = trial.interpreter and (walls.interpreter(trial.interpreter[0]) or "", *trial.interpreter[1:])
    texts = [text.encode("utf-8", "replace") for text in (trial.program, case.function, case.data, "\0".join(command))]
    # The kernel ends by ticks, which on a busy machine run ahead of the time that it measures: room for that, since the measure decides.
    cpu = ceil(1.5 * trial.cpu) + 1
    numbers = [ceil(wall * 1000), trial.memory, cpu, walls.THREADS, case.has_imports, *map(len, texts)]
    return b"".join([*(number.to_bytes(8, "big") for number in numbers), *texts])
