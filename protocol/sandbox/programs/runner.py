"""Runs programs, one sandbox for each, and takes back bytes that it does not look into.

    Runner.run(trial) -> list[TrialRun]

Every wait has a deadline, every answer a cap. What a sandbox leaves behind ends with it: bubblewrap is the parent of the first
process of a namespace, and the kernel ends the others with that one. A sandbox that a test left files in is not used again.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from math import ceil

from protocol.environments.programs import Trial, TrialCase, TrialRun
from protocol.errors import Unavailable
from protocol.sandbox.programs import walls
from protocol.sandbox.programs.idleness import Idleness
from protocol.sandbox.readiness import READABLE, is_ready

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
    """One sandbox with its interpreter, for the tests of one program. Not for several threads; use as a context manager.

    Whatever goes wrong while it is begun or runs a test ends it.
    """

    def __init__(self, *, functions: bool, language: str = "", uid: int | None = None) -> None:
        """`functions`: whether the tests call functions. `language`: the place of another interpreter than Python. `uid` is the account inside;
        None: as this process needs it. Raises Unavailable."""
        self.functions = functions
        self.is_spent = False
        """Whether no other test may use it."""
        self._process: subprocess.Popen[bytes] | None = None
        self._first_pid: int | None = None
        self._first: int | None = None
        self._ends = ExitStack()  # of pipes, and what else is to be closed when it has ended
        try:
            self._begin(language, walls.fresh_uid() if uid is None else uid)
        except OSError as error:
            self.close()
            raise Unavailable(f"bubblewrap cannot be started: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def _begin(self, language: str, uid: int) -> None:
        with ExitStack() as passing:
            with ExitStack() as inherited:
                rules, to_rules = os.pipe()
                inherited.callback(os.close, rules)
                with open(to_rules, "wb", 0) as sink:
                    sink.write(walls.sandbox_filter(interpreted=bool(language)))  # less than a pipe holds
                self._result, to_result = _pipe(self._ends, inherited)
                self._report, to_report = _pipe(self._ends, inherited)
                info, to_info = _pipe(passing, inherited)
                ready, to_ready = _pipe(inherited, passing)
                # Made here: where one of its own cannot be had, Popen of Python 3.11.2 leaves the other open.
                asked, self._ask = os.pipe()
                inherited.callback(os.close, asked)
                self._asking = self._ends.enter_context(open(self._ask, "wb", 0))
                self._out, to_out = _pipe(self._ends, inherited)
                command = walls.command(
                    uid=uid, functions=self.functions, language=language, seccomp=rules, result=to_result, report=to_report, info=to_info, ready=ready
                )  # fmt: skip
                with walls.same_addresses():
                    self._process = subprocess.Popen(
                        command, stdin=asked, stdout=to_out, stderr=subprocess.DEVNULL,
                        pass_fds=(rules, to_result, to_report, to_info, ready),
                    )  # fmt: skip
            for descriptor in (self._ask, self._out, self._result, self._report):
                os.set_blocking(descriptor, False)
            first = _first_process(info)
            if first is not None:
                self._first_pid, self._first = first
                self._ends.callback(os.close, self._first)
                walls.give_stack(self._first_pid)
            with suppress(BrokenPipeError):
                os.write(to_ready, b".")

    def __enter__(self) -> Sandboxed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, trial: Trial, case: TrialCase, *, wall: float | None = None, idle: float | None = None) -> TrialRun:
        """One test, within what is left of the trial's time. Raises BrokenSandbox where its supervisor does not answer as it must."""
        try:
            return self._run(trial, case, wall, idle)
        except BaseException:  # what it answers yet would be taken for the answer to the next test
            self.close()
            raise

    def _run(self, trial: Trial, case: TrialCase, wall: float | None, idle: float | None) -> TrialRun:
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
                if not self.is_spent and (is_cut or (seen and (seen.look() > idle or seen.cpu > trial.cpu))):
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
        self._asking.close()
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
        """Ends all that runs in it, and waits until it has ended. Once it has, this does nothing."""
        self.is_spent = True
        process, self._process = self._process, None
        if process is not None:
            if self._first is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(
                        self._first, signal.SIGKILL
                    )  # the kernel ends all others before it lets go of this one
            else:
                process.kill()
            try:
                process.wait(_STARTING_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._ends.close()


def _first_process(info: int) -> tuple[int, int] | None:
    """The number and a descriptor of the first process of a sandbox, from what bubblewrap says of it; None where it did not come that far."""
    said = b""
    while is_ready(info, READABLE, _STARTING_S) and (more := os.read(info, _AT_ONCE)):
        said += more
        with suppress(ValueError, KeyError, ProcessLookupError):
            pid = json.loads(said)["child-pid"]
            return pid, os.pidfd_open(pid)
    return None


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """Its two ends, each to be closed with whom it belongs to."""
    source, sink = os.pipe()
    reader.callback(os.close, source)
    writer.callback(os.close, sink)
    return source, sink


def _frame(trial: Trial, case: TrialCase, wall: float) -> bytes:
    command = trial.interpreter and (walls.interpreter(trial.interpreter[0]) or "", *trial.interpreter[1:])
    texts = [text.encode("utf-8", "replace") for text in (trial.program, case.function, case.data, "\0".join(command))]
    # The kernel ends by ticks, which on a busy machine run ahead of the time that it measures: room for that, since the measure decides.
    cpu = ceil(1.5 * trial.cpu) + 1
    numbers = [ceil(wall * 1000), trial.memory, cpu, walls.THREADS, case.has_imports, *map(len, texts)]
    return b"".join([*(number.to_bytes(8, "big") for number in numbers), *texts])
