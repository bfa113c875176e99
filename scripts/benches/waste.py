"""Waste: how much accepted work a swarm trains on when nodes know what is wanted, and how long the trainer waits for it.

A simulation of events: nodes of given speeds, validators that judge one submission after the other, a trainer. What decides is the
product's own: node/contributor/wanted.py, and trainer/rollouts/outlook.py. The peer is the same swarm without advice, whose trainer takes
the newest weights first, as it was before; seconds are the simulation's, and nothing is measured of this machine.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event

from benches import Bench, Cost, Row
from node.contributor.wanted import Commitments, prospect
from protocol.signing import Need
from trainer.rollouts.outlook import Outlook

_STEPS = 80
_GROUPS = 4  # of a submission
_MAX_LAG, _MAX_PER_STEP, _LATELY = 2, 3, 16
_LOOK = 0.2  # seconds between two looks of a node
_JITTER = 0.2  # of what takes time: σ of its logarithm
_GOAL = 0.9


@dataclass(frozen=True)
class Swarm:
    """Times in seconds; `nodes`: for one submission, of each."""

    nodes: list[float]
    needed: int = 4
    """Submissions of a batch."""
    training: float = 1.0
    validators: int = 2
    judging: float = 0.25
    commit: float = 0.3
    publishing: float = 0.4
    greedy: frozenset[int] = frozenset()
    """Nodes that ask nobody."""
    silent: frozenset[int] = frozenset()
    """Nodes that commit and upload nothing."""
    false: frozenset[int] = frozenset()
    """Nodes whose work is rejected."""


SWARMS = {
    "three nodes, a quick way": Swarm([0.7] * 3, training=0.8),
    "three nodes, a slow way": Swarm([0.5] * 3, training=0.5, validators=1, judging=0.4, commit=0.4, publishing=0.7),
    "one fast, two slow": Swarm([0.3, 1.2, 1.2], training=0.8),
    "twelve nodes for four turns": Swarm([0.7] * 12, validators=3, judging=0.15),
    "24 nodes, a training as the paper's": Swarm([8.0] * 24, 24, 22.0, 3, 0.3, 1.0, 14.0),
    "forty nodes of all speeds": Swarm([1 + 0.1 * i for i in range(40)], 16, 3.0, 3, 0.15),
    "forty slow nodes": Swarm([6 + 0.3 * i for i in range(40)], 16, 6.0, 4, 0.2),
    "too few nodes": Swarm([1.5] * 2, training=0.5),
    "one of four is greedy": Swarm([0.7] * 4, greedy=frozenset({0})),
    "three of six cheat": Swarm([0.7] * 6, false=frozenset({3, 4, 5})),
    "two of five upload nothing": Swarm([0.7] * 5, silent=frozenset({3, 4})),
}


@dataclass
class _Work:
    node: int
    step: int
    id: bytes


@dataclass
class Simulation:
    swarm: Swarm
    heeds: bool
    """Whether nodes ask what is wanted; without it the trainer takes the newest first."""
    ahead: int = 200
    seed: int = 0

    now: float = 0.0
    step: int = 0
    head: int = 0
    training: bool = False
    waited: float = 0.0
    trained: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    """By node."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._number = 0
        self._committed: list[_Work] = []
        self._pool: list[_Work] = []
        self._free = [0.0] * self.swarm.validators
        self._outlook = Outlook(self)
        self._since = 0.0
        self._seen: dict[int, tuple[object, float]] = {}
        self._took: dict[int, float] = {}
        self._told = self._need()

    # ---- a clock for Outlook -------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    def wait(self, event: Event, seconds: float) -> bool:
        raise NotImplementedError

    # ---- what happens --------------------------------------------------------------------------------------------------

    def run(self) -> Simulation:
        for node in range(len(self.swarm.nodes)):
            self._after(self._random.random() * _LOOK, self._look, node)
        self._after(1.0, self._tick)
        while self._events and self.step < _STEPS:
            self.now, _, happens, arguments = heapq.heappop(self._events)
            happens(*arguments)
        return self

    @property
    def share(self) -> float:
        """Of accepted work, how much was trained on."""
        return self.trained.total() / max(1, self.accepted.total())

    @property
    def unevenness(self) -> float:
        """The most that an equal, honest node made over the least."""
        honest = [self.accepted[i] for i in range(len(self.swarm.nodes)) if not self._is_odd(i)]
        return max(honest) / max(1, min(honest))

    def _is_odd(self, node: int) -> bool:
        return node in self.swarm.greedy | self.swarm.silent | self.swarm.false

    def _after(self, seconds: float, happens: Callable[..., None], *arguments: object) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, happens, arguments))

    def _about(self, seconds: float) -> float:
        return seconds * math.exp(self._random.gauss(0, _JITTER))

    def _look(self, node: int) -> None:
        made = sum(of.node == node and of.step == self.head for of in self._committed)
        if made >= _MAX_PER_STEP or (self.heeds and node not in self.swarm.greedy and not self._is_wanted(node)):
            self._after(_LOOK, self._look, node)
            return
        seconds = self._about(self.swarm.nodes[node])
        self._took[node] = seconds + self.swarm.commit
        self._after(seconds, self._commit, node, self.head)

    def _is_wanted(self, node: int) -> bool:
        oldest = self._told.step - _MAX_LAG
        window = Counter(str(of.node) for of in self._committed if of.step >= oldest)
        lately = Counter(str(of.node) for of in self._committed if of.step >= oldest - _LATELY)
        seen, since = self._seen.get(node, (None, self.now))
        if seen != (self.head, window, lately):
            self._seen[node] = (self.head, window, lately), self.now
            since = self.now
        patient = node in self._took and self.now < since + self._took[node]
        found = prospect(
            str(node),
            self._told,
            self.head,
            Commitments(window, lately),
            max_lag=_MAX_LAG,
            groups=_GROUPS,
            patient=patient,
        )
        return not found.reason

    def _commit(self, node: int, step: int) -> None:
        work = _Work(node, step, len(self._committed).to_bytes(4, "big"))
        self._committed.append(work)
        self._outlook.committed(work.id, step)
        if node not in self.swarm.silent:
            validator = min(range(len(self._free)), key=self._free.__getitem__)
            begins = max(self._free[validator], self.now + self.swarm.commit)
            self._free[validator] = begins + self._about(self.swarm.judging)
            self._after(self._free[validator] - self.now, self._judge, work)
        self._after(self.swarm.commit, self._look, node)

    def _judge(self, work: _Work) -> None:
        good = work.node not in self.swarm.false
        self._outlook.settle(work.id, float(good))
        if good:
            self.accepted[work.node] += 1
            self._pool.append(work)
        self._poll()

    def _tick(self) -> None:
        self._poll()
        self._after(1.0, self._tick)

    def _poll(self) -> None:
        if self.training:
            return
        self._pool = [of for of in self._pool if self.step - of.step <= _MAX_LAG]
        self._told = self._need()
        if len(self._pool) < self.swarm.needed:
            return
        self._pool.sort(key=lambda of: of.step if self.heeds else -of.step)
        for of in self._pool[: self.swarm.needed]:
            self.trained[of.node] += 1
        del self._pool[: self.swarm.needed]
        self.waited += self.now - self._since
        self.training, self.step = True, self.step + 1
        self._told = self._need()
        self._after(self._about(self.swarm.training), self._stepped)

    def _stepped(self) -> None:
        self.training, self._since = False, self.now
        self._after(self.swarm.publishing, self._publish, self.step)
        self._poll()

    def _publish(self, step: int) -> None:
        self.head = step

    def _need(self) -> Need:
        ready = sum(self.step - of.step <= _MAX_LAG for of in self._pool)
        return Need(
            run=1, step=self.step, last=_STEPS, groups=self.swarm.needed * _GROUPS, ahead=self.ahead, ready=ready * _GROUPS,
            settled=self._outlook.settled(self.step - _MAX_LAG), usable=round(1000 * self._outlook.usable), until=0,
        )  # fmt: skip


def run() -> Bench:
    bench = Bench("waste")
    for name, swarm in SWARMS.items():
        with_advice, without = Simulation(swarm, heeds=True).run(), Simulation(swarm, heeds=False).run()
        goal = _GOAL if name.startswith(("three", "one fast", "24")) else None
        share = with_advice.share
        bench.rows += [
            Row(f"{name}: trained", "of accepted", share, without.share, share, goal),
            Cost(f"{name}: waiting", "s a step", with_advice.waited / _STEPS, without.waited / _STEPS, None, None),
            Cost(f"{name}: step", "s", with_advice.now / _STEPS, without.now / _STEPS, None, None),
            Cost(f"{name}: shares", "most / least", with_advice.unevenness, without.unevenness, None, None),
        ]
        for node in sorted(swarm.greedy):
            honest = [i for i in range(len(swarm.nodes)) if not with_advice._is_odd(i)]
            gains = [
                s.accepted[node] / (sum(s.accepted[i] for i in honest) / len(honest)) for s in (with_advice, without)
            ]
            bench.rows.append(Cost(f"{name}: its pay", "of an honest one's", *gains, None, None))
    return bench
