"""Ends a node that works and has nothing accepted, so that somebody learns of it: it would go on for days, and earn nothing.

What counts is the time of its own work since a validator last accepted some: loading, probing, generating, checking, submitting, and pauses after troubles
of its own. Waiting for anybody else never counts: for the chain, the hub, weights, a beacon, a run that is paused, over or not begun, money, or a suspension's end.

| after the expected time | what follows |
|---|---|
| nothing was handed in | the end |
| all that was judged was rejected | the end |
| nothing was judged of what was handed in, or hardly anything | a warning, each time anew: validators are silent, which no node can mend |

A node whose work does not come back from one piece of it (a device that hangs) ends too: a thread looks after that.
Whether an end is a fresh start is the caller's to say (`fresh_start`): it mends what only a new process does.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from operator import itemgetter
from threading import Event, Lock

from node.contributor import submission_log
from node.contributor.submission_log import SubmissionLog
from protocol.clock import SYSTEM, Clock
from protocol.errors import PreflightError
from protocol.shell.money import duration

log = logging.getLogger("node")

OWN_WORK = frozenset({"loading", "probing", "generating", "checking", "submitting"})
_LONG = 10  # times what a submission takes: the least that is expected, however long that is
_ENOUGH = 3  # rejected ones that say something of this machine, while others are not judged yet
_GRACE_SECONDS = 60.0  # between looks from outside; and how much later one piece of work is taken for hanging
_PENDING = (submission_log.COMMITTED, submission_log.STORED)
_REJECTED = (submission_log.SOFT, submission_log.HARD)
_HANDED_IN = (*_PENDING, *_REJECTED)  # what moves on among these is no new one
_FRESH = "MURMUR_FRESH_START"


class NoProgress(PreflightError):
    """A node has worked for as long as is expected, and nothing of it was accepted."""

    default_hint = "look at `node submissions` and at this machine's log; `murmur node hardware` tries the device"


class ProgressWatch:
    """`seconds` of work may pass without an accepted submission, or ten times what one takes; 0: any number. `says` may be called by the thread
    that works alone."""

    def __init__(self, submissions: SubmissionLog, seconds: float, clock: Clock = SYSTEM) -> None:
        self._submissions, self._seconds, self._clock = submissions, seconds, clock
        self._mutex = Lock()
        self._before = submissions.counts()
        self._spent: dict[str, float] = defaultdict(float)  # seconds of own work since something was accepted, by phase
        self._phase, self._since = "", clock.monotonic()
        self._usual = 0.0
        self._trouble = ""

    def says(self, state: str, *, trouble: str = "") -> None:
        """What the node does from now on. `trouble`: it waits, because of this trouble of its own."""
        with self._mutex:
            self._count()
            self._phase = f"waiting after {trouble}" if trouble else state if state in OWN_WORK else ""
            self._trouble = trouble or self._trouble

    def took(self, seconds: float) -> None:
        """How long making one submission takes."""
        self._usual = seconds

    def look(self) -> None:
        """Raises NoProgress where it is time."""
        with self._mutex:
            self._count()
            spent = sum(self._spent.values())
        counts = self._submissions.counts()
        since = Counter(counts)
        since.subtract(self._before)
        if since[submission_log.ACCEPTED] > 0:
            os.environ.pop(_FRESH, None)
            self._begin_anew()
        elif self._seconds and spent >= self._expected:
            self._tell(spent, since, sum(counts[state] for state in _PENDING))

    def watch(self, stop: Event, end: Callable[[NoProgress], None]) -> None:
        """Calls `end` where one piece of work lasts for longer than what is expected, until `stop` is set. For a thread of its own."""
        looked = self._clock.monotonic()
        while self._seconds and not self._clock.wait(stop, _GRACE_SECONDS):
            before, looked = looked, self._clock.monotonic()
            with self._mutex:
                if looked > before + 3 * _GRACE_SECONDS:  # the process was stopped (Ctrl-Z), and worked on nothing
                    self._since = looked
                phase, lasts = self._phase, self._clock.monotonic() - self._since
            if phase in OWN_WORK and lasts >= self._expected + _GRACE_SECONDS:
                end(NoProgress(f"{phase} has lasted for {duration(int(lasts))} and does not come to an end"))

    # ---- inside

    @property
    def _expected(self) -> float:
        return max(self._seconds, _LONG * self._usual)

    def _count(self) -> None:
        now = self._clock.monotonic()
        if self._phase:
            self._spent[self._phase] += now - self._since
        self._since = now

    def _begin_anew(self) -> None:
        with self._mutex:
            self._spent.clear()
        self._before = self._submissions.counts()
        self._trouble = ""

    def _tell(self, spent: float, since: Counter[str], pending: int) -> None:
        """`pending`: submissions that were handed in, whenever, and not judged."""
        rejected, handed_in = (sum(since[state] for state in states) for states in (_REJECTED, _HANDED_IN))
        worked = f"nothing was accepted in {duration(int(spent))} of work"
        if rejected >= _ENOUGH or (rejected > 0 and not pending):
            raise NoProgress(f"{worked}: all {rejected} submissions that were judged were rejected")
        if handed_in > 0:
            log.warning(
                "%s: of %d submissions that were handed in validators have judged %d",
                worked,
                handed_in,
                rejected,
            )
            self._begin_anew()
            return
        longest, seconds = max(self._spent.items(), key=itemgetter(1))
        trouble = f"; the last trouble: {self._trouble}" if self._trouble and self._trouble not in longest else ""
        raise NoProgress(f"{worked}: nothing was handed in, {longest} took {duration(int(seconds))}{trouble}")


def may_start_fresh(asks_nobody: bool) -> bool:
    """Whether this process may start once more: where nobody need type a password, and once until something is accepted."""
    return asks_nobody and _FRESH not in os.environ


def fresh_start(why: NoProgress) -> None:
    """Never returns: the same command in a new process, which has this one's number. Threads, devices and locks are given up."""
    log.warning("%s; starting afresh, once", why)
    os.environ[_FRESH] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  the command that runs


def end_of_hanging(asks_nobody: bool) -> Callable[[NoProgress], None]:
    """Ends this process from a thread, with the stacks of all."""

    def end(why: NoProgress) -> None:
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        if may_start_fresh(asks_nobody):
            fresh_start(why)
        log.critical("%s", why)
        sys.stderr.flush()
        os._exit(why.exit_code)

    return end
