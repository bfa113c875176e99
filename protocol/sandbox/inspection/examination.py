"""One environment, examined: several children of the sandbox draw and score the same under other conditions, one of them under attack.

What is looked at is what the protocol relies on: two machines that disagree on a problem or a reward accuse each other, and an
answer that hangs or enters a verifier holds up whoever scores it.
"""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from protocol.environments.problems import Problem
from protocol.errors import MurmurationError, Unavailable
from protocol.replies import Asked
from protocol.rollout import ToolResult
from protocol.runspec import EnvironmentSpec, starts
from protocol.sandbox import wire
from protocol.sandbox.environments import EnvironmentSandbox
from protocol.sandbox.inspection import hostile_answers

_PROBLEMS = 32
_DEADLINE_S = 20.0
_ANSWER_S = 2.0  # CPU time that no answer may take
_PROBLEM_S, _SCORE_S = 0.25, 0.1  # CPU time that one may take on average
_ATTACKED = 3  # problems whose right answers are tampered with
_SHOWN = 3  # names in one sentence

Answers = list[tuple[int, str]]
Replies = dict[str, ToolResult | None]
"""What is said to each turn; empty where nobody need say the same."""


@dataclass(frozen=True)
class Observation:
    """One thing that was looked at. `holds` is None where there was nothing to see."""

    name: str
    holds: bool | None
    detail: str


@dataclass(frozen=True)
class _Told:
    """What a child says of itself: CPU seconds so far, peak memory in bytes, what it did that no verifier should, what it set of its process."""

    seconds: float
    peak: int
    acts: list[str]
    strayed: str | None
    left: list[str]
    set_by_imports: list[str]


class _Subject(EnvironmentSandbox):
    """An environment in a child of its own, under conditions of its own."""

    def __init__(
        self, spec: EnvironmentSpec, deadline: float, number: int, neighbours: Sequence[EnvironmentSpec] = ()
    ) -> None:
        """`number` says under which conditions, and in which order it asks. Problems of the neighbours have the lower indices."""
        super().__init__([*neighbours, spec], deadline=deadline)
        self.conditions = _conditions()[number]
        self._order = random.Random(number)

    def _ask(
        self, request: dict[str, Any], *, attempts: int = 1, of_a_stranger: bool = False
    ) -> tuple[dict[str, Any], wire.Arrays]:
        """Once: what fails here is what is looked for."""
        return super()._ask(request, attempts=1, of_a_stranger=of_a_stranger)

    def _variables(self) -> dict[str, str]:
        return {**super()._variables(), **self.conditions}

    def told(self) -> _Told:
        head, _ = self._ask({"op": "watch"})
        return _Told(
            float(head["seconds"]), int(head["peak"]), list(head["acts"]), head["strayed"],
            list(head["left"]), list(head["set by imports"]),
        )  # fmt: skip

    def in_some_order(self, count: int) -> list[int]:
        return self._order.sample(range(count), count)

    def drawn(self, indices: Sequence[int]) -> list[Problem]:
        """Problems in an order of this subject's own, in requests of unequal size."""
        order, at = self.in_some_order(len(indices)), 0
        found: dict[int, Problem] = {}
        while at < len(order):
            places = order[at : (at := at + self._order.randint(1, 8))]
            found |= dict(zip(places, self.problems([indices[place] for place in places]), strict=True))
        return [found[place] for place in range(len(indices))]

    def replied(self, asked: Sequence[Problem]) -> Replies:
        """To the problems' own words, to hostile texts, and to calls of both, where the environment says how a call is written."""
        if not self.converses(0):
            return {}
        texts = [word for problem in asked for word in (problem.prompt, problem.answer or "")]
        texts += [text for _, text in hostile_answers.of_nobody()]
        calls = [turn for turn in self.calls(texts) if turn is not None]
        turns = [*dict.fromkeys([*calls, *texts])]
        order = self.in_some_order(len(turns))
        found = self.replies([Asked(asked[0].index, [turns[place]]) for place in order])
        return {turns[place]: reply[0] if reply else None for place, reply in zip(order, found, strict=True)}

    def scored(self, answers: Answers) -> list[float]:
        """Likewise."""
        order = self.in_some_order(len(answers))
        rewards = dict(zip(order, self.score([answers[place] for place in order]), strict=True))
        return [rewards[place] for place in range(len(answers))]


def examine(
    spec: EnvironmentSpec, *, problems: int = _PROBLEMS, deadline: float = _DEADLINE_S,
    others: Sequence[EnvironmentSpec] = (),
) -> Iterator[Observation]:  # fmt: skip
    """What was found, one thing after the other; `deadline` in seconds for each request to a child, `others` of the same run.

    Raises what opening an environment raises.
    """
    indices = _spread(spec, problems)
    with _Subject(spec, deadline, 0) as first:
        first.warm_up()
        before = first.told()
        try:
            asked = first.drawn(indices)
            held_out = first.held_out()
        except MurmurationError as error:
            yield Observation("problems", False, str(error))
            return
        yield from _of_problems(asked, held_out, first.told().seconds - before.seconds)
        answers = _answers(asked)
        before = first.told()
        try:
            rewards = first.scored(answers)
        except MurmurationError as error:
            yield Observation("answers", False, str(error))
            return
        after = first.told()
        yield from _of_rewards(asked, answers, rewards)
        yield _speed("an answer's score", after.seconds - before.seconds, len(answers), _SCORE_S)
        yield Observation("range", after.strayed is None, after.strayed or "every score lies in 0 … 1")
        try:
            replies = first.replied(asked)
        except MurmurationError as error:
            yield Observation("replies", False, str(error))
            return
        yield _of_process(first.told())
    yield from _beside(spec, others, deadline, indices, asked, answers, rewards, replies)
    yield from _elsewhere(spec, deadline, indices, asked, held_out, answers, rewards, replies)
    yield from _attacked(spec, deadline, asked, answers, rewards)


def _spread(spec: EnvironmentSpec, count: int) -> list[int]:
    """The first problems, and others from all over the set."""
    count = min(count, spec.problems)
    head = range(count // 2)
    step = spec.problems / count
    return sorted(
        {*head, *(min(spec.problems - 1, int(place * step + step / 2)) for place in range(count // 2, count))}
    )


# ---- one child ---------------------------------------------------------------------------------------------------------


def _of_problems(asked: Sequence[Problem], held_out: Sequence[Problem], seconds: float) -> Iterator[Observation]:
    different = len({problem.prompt for problem in asked})
    again = sum(problem.is_held_out for problem in asked)
    yield Observation(
        "problems", different > len(asked) // 2 and again < len(asked) // 2,
        f"{different} different ones of {len(asked)}; {again} are among the {len(held_out)} held out",
    )  # fmt: skip
    yield _speed("a problem's draw", seconds, len(asked) + len(held_out), _PROBLEM_S)


def _speed(name: str, seconds: float, count: int, most: float) -> Observation:
    each = seconds / max(1, count)
    return Observation(
        name, each <= most, f"{each * 1000:.1f} ms of CPU time, {count} times" + _above(each <= most, most)
    )


def _above(holds: bool, most: float) -> str:
    return "" if holds else f"; at most {most * 1000:.0f} ms"


def _answers(asked: Sequence[Problem]) -> Answers:
    """To each problem its own right answer, that of another one, and some that are none."""
    found: Answers = []
    for problem, other in zip(asked, [*asked[1:], *asked[:1]], strict=True):
        found += [
            (problem.index, text) for text in (problem.answer, other.answer, "", "I do not know.") if text is not None
        ]
    return found


def _of_rewards(asked: Sequence[Problem], answers: Answers, rewards: Sequence[float]) -> Iterator[Observation]:
    right = {problem.index: problem.answer for problem in asked}
    of_right = [reward for (index, text), reward in zip(answers, rewards, strict=True) if right[index] == text]
    none = [reward for (_, text), reward in zip(answers, rewards, strict=True) if not text]
    if of_right:
        short = sum(reward < 1 for reward in of_right)
        said = f"{short} of {len(of_right)} earn less than 1" if short else f"all {len(of_right)} earn 1"
        yield Observation("right answers", not short, said)
    else:
        yield Observation("right answers", None, "the environment tells none")
    yield Observation("no answer", max(none) < 1, f"earns {max(none):.3g} at the most")


def _of_process(told: _Told) -> Observation:
    if told.set_by_imports:
        return Observation(
            "process", False,
            f"an import sets {', '.join(told.set_by_imports)}, which does not last: a constructor may set it",
        )  # fmt: skip
    left = f"sets {', '.join(told.left)}: put back before each call" if told.left else "nothing of it is set"
    return Observation("process", True, left)


# ---- other children ----------------------------------------------------------------------------------------------------


@cache
def _conditions() -> list[dict[str, str]]:
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


def _elsewhere(
    spec: EnvironmentSpec, deadline: float, indices: Sequence[int], asked: Sequence[Problem],
    held_out: Sequence[Problem], answers: Answers, rewards: Sequence[float], replies: Replies,
) -> Iterator[Observation]:  # fmt: skip
    others = range(1, len(_conditions()))
    drawn: list[str] = []
    scored: list[str] = []
    told: list[str] = []
    for number in others:
        with _Subject(spec, deadline, number) as subject:
            under = ", ".join(f"{name}={value}" for name, value in subject.conditions.items() if name != "LANG")
            try:
                for one, other in itertools.chain(
                    zip(asked, subject.drawn(indices), strict=True), itertools.zip_longest(held_out, subject.held_out())
                ):
                    if one != other:
                        which = one or other
                        drawn.append(f"{'held-out ' if which in held_out else ''}problem {which.index} under {under}")
                again = subject.scored(answers)
                said = subject.replied(asked)
            except MurmurationError as error:
                drawn.append(f"{error} under {under}")
                continue
            for (index, text), one, other in zip(answers, rewards, again, strict=True):
                if one != other:
                    scored.append(f"{_shown(text)} to problem {index} earns {one:.6g} and {other:.6g} under {under}")
            told += [f"{_shown(turn)} under {under}" for turn, reply in replies.items() if reply != said[turn]]
    how = f"in {len(others) + 1} processes, with other hash seeds, locales, time zones and orders"
    yield Observation("draws the same", not drawn, _some(drawn) or how)
    yield Observation("scores the same", not scored, _some(scored) or f"{len(answers)} answers {how}")
    if replies:
        yield _of_replies(replies, told, how)


def _of_replies(replies: Replies, told: Sequence[str], how: str) -> Observation:
    """`told`: turns that were replied to otherwise in another child."""
    count = sum(reply is not None for reply in replies.values())
    said = f"{count} replies to {len(replies)} turns {how}"
    if told:
        return Observation("replies the same", False, _some(told))
    return Observation("replies the same", True if count else None, said)


def _beside(
    spec: EnvironmentSpec, others: Sequence[EnvironmentSpec], deadline: float, indices: Sequence[int],
    asked: Sequence[Problem], answers: Answers, rewards: Sequence[float], replies: Replies,
) -> Iterator[Observation]:  # fmt: skip
    """In one child with others, another seed of itself among them, which are asked first and in between."""
    swapped = {"seed": spec.held_out_seed, "held_out_seed": spec.seed, "size": spec.held_out_size, "kept": None}
    twin = spec.model_copy(update=swapped) if spec.held_out_size and not spec.from_files else spec
    neighbours = [one.model_copy(update={"held_out_size": 0}) for one in (twin, *others)]
    begin = starts(neighbours)
    differ: list[str] = []
    with _Subject(spec, deadline, 0, neighbours) as subject:
        try:
            for number, (one, index) in enumerate(zip(asked, indices, strict=True)):
                near = [at + number % neighbour.problems for at, neighbour in zip(begin, neighbours, strict=False)]
                own = begin[-1] + index
                first = subject.problems([*near, own])
                subject.score([(problem.index, problem.answer or one.prompt) for problem in first[:-1]])
                again = subject.problems([own])[0]
                if {(one.prompt, one.answer)} != {(other.prompt, other.answer) for other in (first[-1], again)}:
                    differ.append(f"problem {index} is another one")
            moved = [(begin[-1] + index, text) for index, text in answers]
            for (index, text), before, after in zip(answers, rewards, subject.scored(moved), strict=True):
                if before != after:
                    differ.append(f"{_shown(text)} to problem {index} earns {before:.6g} and {after:.6g}")
            said = subject.replied([replace(one, index=begin[-1] + one.index) for one in asked]) if replies else {}
            differ += [f"a reply to {_shown(turn)}" for turn, reply in replies.items() if reply != said[turn]]
        except MurmurationError as error:
            differ.append(str(error))
    whom = f"itself with another seed{f' and {len(others)} more' if others else ''}"
    yield Observation("beside others", not differ, _some(differ) or f"the same in a child with {whom}")


# ---- a child under attack ----------------------------------------------------------------------------------------------


def _attacked(
    spec: EnvironmentSpec, deadline: float, asked: Sequence[Problem], answers: Answers, rewards: Sequence[float]
) -> Iterator[Observation]:
    with _Subject(spec, deadline, 0) as subject:
        subject.scored(answers)  # whatever is imported late is here now
        peak = subject.told().peak
        slow: list[str] = []
        acts: list[str] = []
        strayed: list[str] = []
        count = 0
        for name, index, text in _attacks(asked):
            count += 1
            try:
                before = subject.told()
                subject.score([(index, text)])
            except Unavailable as error:
                slow.append(f"{name}: {error}")
                if len(slow) == _SHOWN:
                    break
                continue
            after = subject.told()
            peak = max(peak, after.peak)
            acts += [f"{name}: {act}" for act in after.acts]
            strayed += [f"{name}: {after.strayed}"] if after.strayed else []
            if after.seconds - before.seconds > _ANSWER_S:
                slow.append(f"{name}: {after.seconds - before.seconds:.1f} s of CPU time")
        changed = 0 if slow else sum(a != b for a, b in zip(rewards, subject.scored(answers), strict=True))
    yield Observation(
        "hostile answers", not slow, _some(slow) or f"{count}, each scored within {_ANSWER_S:g} s of CPU time"
    )
    yield Observation("runs no answer", not acts, _some(acts) or "no text becomes code, no process, no socket, no file")
    if strayed:
        yield Observation("range", False, _some(strayed))
    yield Observation(
        "is not changed", not changed, f"{changed or 'no'} rewards of {len(answers)} are others after them"
    )
    most = subject.memory
    yield Observation("memory", peak < most // 2, f"{peak >> 20} MiB at the most, of {most >> 20}")


def _attacks(asked: Sequence[Problem]) -> Iterator[tuple[str, int, str]]:
    yield from ((name, asked[0].index, text) for name, text in hostile_answers.of_nobody())
    told = [problem for problem in asked if problem.answer][:_ATTACKED]
    for problem in told:
        yield from ((name, problem.index, text) for name, text in hostile_answers.of_right(str(problem.answer)))


# ---- words -------------------------------------------------------------------------------------------------------------


def _some(found: Sequence[str]) -> str:
    shown = list(dict.fromkeys(found))
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return "; ".join(shown[:_SHOWN]) + more


def _shown(text: str) -> str:
    return repr(text if len(text) < 40 else f"{text[:40]}…")
