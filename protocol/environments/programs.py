"""What an environment that runs strangers' programs asks for, and what it is told.

An environment never runs a program itself: it hands a `Trial` to whoever runs it (protocol/sandbox/programs) and judges the
`TrialRun`s that come back. Expected outputs stay with the environment. CPU time differs between machines, so a judgement is a
`Range`: what an honest party may have measured.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from protocol.environments.environment import Environment
from protocol.reward import FORGIVEN, agree
from protocol.rollout import ToolResult

WALL = 5
"""Seconds on the clock that a busy machine may take for one of CPU time; one more is granted for each program."""
IDLE_SECONDS = 1.0
"""How long a program may be idle, in all its tests together."""

_WORDS_MAX, _WORD_MAX = 16, 256
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,31}")
_FILE = re.compile(r"\{file\}(\.[A-Za-z0-9]{1,8})?")


@dataclass(frozen=True)
class TrialCase:
    """One test of a program, without what is expected of it."""

    data: str
    """Its stdin; of a function test its arguments, a JSON array."""
    output: int
    """Bytes that it may write; one more ends it."""
    function: str = ""
    """What is called; empty: the program reads stdin and writes stdout."""
    has_imports: bool = False
    """Whether names that contests import for a program are there without an import (driver.py lists them)."""


@dataclass(frozen=True)
class Trial:
    """One program and its tests, each in a process of its own."""

    program: str
    cases: tuple[TrialCase, ...]
    cpu: float
    """Seconds of CPU time for one test."""
    total: float
    """Seconds for all of them, in which it computes or is idle: beyond them no further test is begun."""
    wall: float
    """Seconds on the clock for one test, only to end what waits."""
    idle: float
    """Seconds for all tests in which it neither computes nor waits for a processor or a disk: no slow or busy machine explains them."""
    memory: int
    """Bytes of address space."""
    stop: bool
    """Whether a test that crashes, or takes too long, is the last one."""
    interpreter: tuple[str, ...] = ()
    """Of another language, its command line (`command_line`). Empty: Python."""

    @property
    def longest(self) -> float:
        """Seconds on the clock for all tests."""
        return WALL * self.total + self.wall


def command_line(words: Sequence[str]) -> tuple[str, ...]:
    """What runs programs of another language: the name of a program of the system, then what it is given, with "{file}" where it gets the
    program's file, behind which an ending may stand.

    Raises ValueError for anything else.
    """
    if len(words) > _WORDS_MAX or not all(
        isinstance(word, str) and len(word) <= _WORD_MAX and word.isprintable() for word in words
    ):
        raise ValueError(f"at most {_WORDS_MAX} words of {_WORD_MAX} characters")
    files = [word for word in words if "{file}" in word]
    if not (words and _NAME.fullmatch(words[0]) and len(files) == 1 and _FILE.fullmatch(files[0])):
        raise ValueError('a name without folder, then "{file}" once, as in ["node", "{file}.js"]')
    return tuple(words)


@dataclass(frozen=True)
class TrialRun:
    """How one test ended. All of it is a stranger's word, but the times."""

    status: int
    """Exit status; of what a signal ended, its number below zero."""
    cpu: float
    wall: float
    output: bytes = b""
    """Its stdout; of a function test the result as JSON."""
    is_cut: bool = False
    """Whether it wrote more than it might."""
    idle: float = 0.0
    """Seconds of `wall` in which it neither computed nor waited for a processor or a disk, as far as they were seen."""


class Range(NamedTuple):
    """The lowest and the highest reward that an honest party may claim."""

    low: float
    high: float


class Claim(NamedTuple):
    """The reward that somebody says they measured. Whoever judges it forgives a tolerance, so no exact comparison says what it needs."""

    reward: float
    tolerance: float = FORGIVEN

    def is_met(self, reward: float) -> bool:
        """Whether an honest party that may have measured `reward` may claim this."""
        return agree(reward, self.reward, self.tolerance)


class Interpreter(NamedTuple):
    """Of another language than Python, which every machine of a run must have."""

    command: tuple[str, ...]
    """As `command_line` returns it."""
    memory: int
    """Bytes of address space that it is given."""


class ProgramEnvironment(Environment):
    """An environment whose answers are programs. Needs bubblewrap where it scores, and nowhere else."""

    @property
    def interpreter(self) -> Interpreter | None:
        """What its programs need besides, where they are not in Python: each machine tries it before any work begins."""
        return None

    @abstractmethod
    def trial(self, entry: Any, completion: str, claimed: Claim | None) -> Trial | None:
        """What must be run to judge an answer; None: nothing, it scores 0.

        `claimed` is what somebody else measured: then as much is run as that claim needs, within wider limits. None:
        the reward is to be measured here. Raises Malformed for a problem that cannot be scored: every answer to it earns 0.
        """

    @abstractmethod
    def judge(self, entry: Any, trial: Trial, runs: Sequence[TrialRun], claimed: Claim | None) -> Range:
        """One number where it was measured (`claimed` is None). `runs` are of the first cases: fewer where the trial stopped."""

    def wider(self, trial: Trial, claimed: Claim, found: Range) -> Trial | None:
        """The same once more with more time, where it was run with too little to allow what is claimed; None where `found` stands."""
        return None

    def score(self, entry: Any, completion: str) -> float:
        raise NotImplementedError("programs are scored through Problems")


class ProgramTool(Environment):
    """An environment whose replies are what the model's programs say. Needs bubblewrap where it replies, and nowhere else."""

    @abstractmethod
    def call(self, entry: Any, turns: Sequence[str], claimed: str | None) -> Trial | None:
        """The program of the newest turn, with one test, whose stdin is all that it is given; None: there is none, and the turn is the last.

        `claimed` is the result that somebody else got: then it may take as long as their machine may have been slower. It is empty where all
        that is known of it is that it was not `too_slow`.
        """

    @abstractmethod
    def told(self, entry: Any, turns: Sequence[str], run: TrialRun, claimed: str | None) -> ToolResult:
        """What the model is told of how it ended. Where an honest party may have got either of two results, the one that is claimed."""

    @property
    def too_slow(self) -> str | None:
        """What is told of every program that took too long. A sample ends with a call whose result has no room, and does not say which result
        that was: on a machine of another speed it may have been this one, or not. None: no result depends on time."""
        return None

    def reply(self, entry: Any, turns: Sequence[str]) -> ToolResult | None:
        raise NotImplementedError("programs are replied to through Problems")
