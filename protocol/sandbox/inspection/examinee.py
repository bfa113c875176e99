"""An environment that is examined: in a child of the sandbox of its own, under conditions of its own, and told from what its parent saw."""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from protocol.environments.problems import Problem
from protocol.environments.programs import Trial, TrialRun
from protocol.replies import Asked
from protocol.rollout import ToolResult
from protocol.runspec import EnvironmentSpec
from protocol.sandbox import wire
from protocol.sandbox.environments import EnvironmentSandbox
from protocol.sandbox.inspection import hostile_answers, hostile_programs
from protocol.sandbox.programs import Runner

_HOSTILE_PROGRAM_S = 0.5
"""CPU time of a hostile program, where its environment would give it more: what has no end shall not be waited for."""

Answers = list[tuple[int, str]]
Talk = tuple[int, tuple[str, ...]]
"""A conversation: the index of its problem and the text of each turn."""
Replies = dict[Talk, list[ToolResult]]
"""What is said to each turn of a conversation, until nothing is."""

_AT_ONCE = 32
"""Answers in one request: each may take a while, and a request has a deadline."""


@dataclass(frozen=True)
class Told:
    """What a child says of itself: CPU seconds so far, peak memory in bytes, what it did that no verifier should, what it set of its process."""

    seconds: float
    peak: int
    acts: list[str]
    strayed: str | None
    left: list[str]
    set_by_imports: list[str]


class RecordingRunner(Runner):
    """Keeps how programs ended: what was run is the parent's word, not the environment's."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[TrialRun] = []
        self.is_hurried = False

    def run_all(self, trials: Sequence[Trial]) -> list[list[TrialRun]]:
        found = super().run_all([_hurried(trial) for trial in trials] if self.is_hurried else trials)
        self.runs += [run for runs in found for run in runs]
        return found


def _hurried(trial: Trial) -> Trial:
    """Less CPU time alone: it is the same on a busy machine."""
    return replace(trial, cpu=min(trial.cpu, _HOSTILE_PROGRAM_S), total=min(trial.total, _HOSTILE_PROGRAM_S))


class Examinee(EnvironmentSandbox):
    """Use as a context manager."""

    def __init__(
        self, spec: EnvironmentSpec, deadline: float, number: int, neighbours: Sequence[EnvironmentSpec] = ()
    ) -> None:
        """`number` says under which conditions, and in which order it asks; odd ones ask for a conversation turn by turn. Problems of the neighbours have the lower indices."""
        super().__init__([*neighbours, spec], deadline=deadline)
        self.conditions = conditions()[number]
        self._order = random.Random(number)
        self._by_turns = number % 2 == 1
        self._recorder = RecordingRunner()
        self._answer_seconds = 0.0  # nobody is blamed here for a busy machine

    def _ask(
        self, request: dict[str, Any], *, attempts: int = 1, of_a_stranger: bool = False
    ) -> tuple[dict[str, Any], wire.Arrays]:
        """Once: what fails here is what is looked for."""
        return super()._ask(request, attempts=1, of_a_stranger=of_a_stranger)

    def _variables(self) -> dict[str, str]:
        return {**super()._variables(), **self.conditions}

    def _programs(self, head: dict[str, Any]) -> Runner:
        super()._programs(head)
        return self._recorder

    @property
    def runs_programs(self) -> bool:
        """Whether an environment has strangers' programs run by the sandbox; known once it is open."""
        return self._runner is not None

    def ran(self) -> list[TrialRun]:
        """How the programs ended that were run since this was asked last."""
        runs, self._recorder.runs = self._recorder.runs, []
        return runs

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Meanwhile programs have half a second."""
        self._recorder.is_hurried = True
        try:
            yield
        finally:
            self._recorder.is_hurried = False

    def told(self) -> Told:
        head, _ = self._ask({"op": "watch"})
        return Told(
            float(head["seconds"]), int(head["peak"]), list(head["acts"]), head["strayed"],
            list(head["left"]), list(head["set by imports"]),
        )  # fmt: skip

    def in_some_order(self, count: int) -> list[int]:
        return self._order.sample(range(count), count)

    def drawn(self, indices: Sequence[int]) -> list[Problem]:
        """Problems in an order of this examinee's own, in requests of unequal size."""
        order, at = self.in_some_order(len(indices)), 0
        found: dict[int, Problem] = {}
        while at < len(order):
            places = order[at : (at := at + self._order.randint(1, 8))]
            found |= dict(zip(places, self.problems([indices[place] for place in places]), strict=True))
        return [found[place] for place in range(len(indices))]

    def turns(self, asked: Sequence[Problem]) -> list[str]:
        """The problems' own words, hostile texts, and calls of both, where the environment says how a call is written; of programs harmless ones."""
        if not self.converses(0):
            return []
        texts = [word for problem in asked for word in (problem.prompt, problem.answer or "")]
        texts += [text for _, text in hostile_answers.of_nobody()]
        calls = self.calls(hostile_programs.HARMLESS if self.runs_programs else texts)
        return [*dict.fromkeys([*itertools.chain.from_iterable(calls), *texts])]

    def replied(self, talks: Sequence[Talk], moved: int = 0) -> Replies:
        """Conversations, each by itself, in an order of this examinee's own; `moved` is added to the indices of their problems."""
        order = self.in_some_order(len(talks))
        asked = [Asked(talks[place][0] + moved, talks[place][1]) for place in order]
        found = self._turn_by_turn(asked) if self._by_turns else self.replies(asked)
        return {talks[place]: replies for place, replies in zip(order, found, strict=True)}

    def _turn_by_turn(self, asked: Sequence[Asked]) -> list[list[ToolResult]]:
        """As a worker asks: for one reply of every conversation that goes on."""
        found: list[list[ToolResult]] = [[] for _ in asked]
        going = [*range(len(asked))]
        for turn in itertools.count():
            going = [n for n in going if len(found[n]) == turn < len(asked[n].turns)]
            if not going:
                return found
            one_more = [Asked(asked[n].problem, asked[n].turns[: turn + 1], turn) for n in going]
            for n, replies in zip(going, self.replies(one_more), strict=True):
                found[n] += replies
        raise AssertionError

    def scored(self, answers: Answers) -> list[float]:
        """Likewise, some answers at a time."""
        order = self.in_some_order(len(answers))
        rewards: dict[int, float] = {}
        for start in range(0, len(order), _AT_ONCE):
            places = order[start : start + _AT_ONCE]
            rewards |= dict(zip(places, self.score([answers[place] for place in places]), strict=True))
        return [rewards[place] for place in range(len(answers))]


@cache
def conditions() -> list[dict[str, str]]:
    """Hash seeds, locales and time zones; of the locales those that this machine has."""
    zones = ("UTC", "Asia/Kathmandu", "America/St_Johns", "Pacific/Apia")
    places = itertools.cycle(_locales())
    return [
        {"PYTHONHASHSEED": seed, "LC_ALL": place, "LANG": place, "TZ": zone}
        for seed, place, zone in zip(("0", "1", "4294967295", "random"), places, zones, strict=False)
    ]


def _locales() -> list[str]:
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(["locale", "-a"], capture_output=True, text=True, timeout=10, check=True)
        found = [name for name in told.stdout.split() if name not in ("C", "POSIX")]
        turkish = [name for name in found if name.startswith("tr_")]  # where I is no capital i
        return ["C", *turkish[:1], *[name for name in found if name not in turkish][:2]]
    return ["C"]
