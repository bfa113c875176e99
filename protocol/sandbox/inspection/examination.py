"""One environment, examined: several children of the sandbox draw and score the same under other conditions, one of them under attack.

What is looked at is what the protocol relies on: two machines that disagree on a problem or a reward accuse each other, and an
answer that hangs or enters a verifier holds up whoever scores it.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence

from protocol.environments.problems import Problem
from protocol.errors import MurmurationError
from protocol.rollout import ToolResult
from protocol.runspec import EnvironmentSpec, starts
from protocol.sandbox.inspection import hostile_answers, known_answers
from protocol.sandbox.inspection.assault import ANSWER_S, Assault, Attack, brief, verdicts
from protocol.sandbox.inspection.canary import Canary
from protocol.sandbox.inspection.examinee import Answers, Examinee, Replies, Talk, Told, conditions
from protocol.sandbox.inspection.execution import Execution
from protocol.sandbox.inspection.observation import Observation, shown, some

_PROBLEMS = 32
_DEADLINE_S = 20.0
_PROBLEM_S, _SCORE_S = 0.25, 0.1  # CPU time that one may take on average
_HELD_OUT = 8  # whose answers are scored twice
_ATTACKED = 3  # problems whose right answers are tampered with
_LONGER_S = 2.0  # CPU time for the longer answers, in each child
_PROGRAMS = 6  # longer answers where each may be a program that is run
_AGAIN = (1, 2)  # conditions under which hostile answers are scored once more, after honest ones
_TURNS = 8  # of a conversation, where no run says how many it allows
_TALKS, _TALKS_TURNS = 16, 256  # conversations, and turns of all of them together


def examine(
    spec: EnvironmentSpec, *, problems: int = _PROBLEMS, deadline: float = _DEADLINE_S,
    others: Sequence[EnvironmentSpec] = (), turns: int = _TURNS,
) -> Iterator[Observation]:  # fmt: skip
    """What was found, one thing after the other; `deadline` in seconds for each request to a child, `others` of the same run, whose
    samples have so many `turns` at most.

    Raises what opening an environment raises.
    """
    indices = _spread(spec, problems)
    with Examinee(spec, deadline, 0) as first:
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
            yield _of_failed(first, answers, error, deadline)
            return
        after = first.told()
        yield from _of_rewards(asked, answers, rewards)
        seconds = after.seconds - before.seconds
        yield _speed("an answer's score", seconds, len(answers), _SCORE_S)
        room = _PROGRAMS if first.runs_programs else int(_LONGER_S * len(answers) / max(seconds, 1e-9))
        longer = _longer_answers(asked)[:room]
        try:
            rewards += first.scored(longer)
        except MurmurationError as error:
            yield _of_failed(first, longer, error, deadline)
            return
        answers += longer
        try:
            yield from _of_held_out(first, held_out)
        except MurmurationError as error:
            yield Observation("held-out answers", False, str(error))
            return
        strayed = after.strayed or first.told().strayed
        yield Observation("range", strayed is None, strayed or "every score lies in 0 … 1")
        try:
            replies = first.replied([(asked[0].index, (turn,)) for turn in first.turns(asked)])
            replies |= first.replied(_talks(asked, replies, turns, is_costly=first.runs_programs))
        except MurmurationError as error:
            yield Observation("replies", False, str(error))
            return
        yield _of_process(first.told())
        assault = Assault(first)  # whatever is imported late is here now
        yield from _attacked(first, assault, spec, deadline, asked, answers, rewards, replies)
    yield from _elsewhere(spec, deadline, indices, asked, held_out, answers, rewards, replies, assault)
    yield from _beside(spec, others, deadline, indices, asked, answers, rewards, replies)


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


def _longer_answers(asked: Sequence[Problem]) -> Answers:
    """Right answers among other words, in a random order, so that the first ones are of many problems and kinds."""
    draw = random.Random(0)
    found = [
        (problem.index, text)
        for problem, other in zip(asked, [*asked[1:], *asked[:1]], strict=True)
        for text in known_answers.of_problem(problem, other, draw)
    ]
    draw.shuffle(found)
    return found


def _talks(asked: Sequence[Problem], replies: Replies, turns: int, *, is_costly: bool) -> list[Talk]:
    """Conversations of as many turns as there may be, of turns that were replied to, about several problems."""
    heard = [turns_of[0] for (_, turns_of), said in replies.items() if said]
    if turns < 2 or not heard:
        return []
    draw = random.Random(1)
    count = 1 if is_costly else max(1, min(_TALKS, _TALKS_TURNS // turns))
    return [(asked[number % len(asked)].index, tuple(draw.choices(heard, k=turns))) for number in range(count)]


def _of_failed(examinee: Examinee, answers: Answers, error: MurmurationError, deadline: float) -> Observation:
    """Which answer it was that has no score, or took long, where many at once failed: each by itself, as long as a request may take."""
    until = time.monotonic() + deadline
    slowest, told = 0.0, str(error)
    for index, text in answers:
        which = f"{shown(text)} to problem {index}"
        try:
            before, begun = examinee.told().seconds, time.monotonic()
            examinee.score([(index, text)])
            took, cpu = time.monotonic() - begun, examinee.told().seconds - before
        except MurmurationError as failed:
            return Observation("an answer's score", False, f"{which} has none: {failed}")
        if took > max(slowest, _SCORE_S):
            slowest = took
            told = f"{which} took {took:.1f} s, {cpu:.1f} s of CPU time{_above(False, _SCORE_S)} on average"
        if time.monotonic() > until:
            break
    return Observation("an answer's score", False, told)


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


def _of_held_out(examinee: Examinee, held_out: Sequence[Problem]) -> Iterator[Observation]:
    """Twice in one child, as evaluation scores a checkpoint and then another model."""
    asked = held_out[: 1 if examinee.runs_programs else _HELD_OUT]
    answers = [(one.index, one.prompt if one.answer is None else one.answer) for one in asked]
    if not answers:
        return
    first, again = (examinee.score(answers, held_out=True) for _ in range(2))
    short = [
        index
        for (index, _), reward in zip(answers, first, strict=True)
        if asked[index].answer is not None and reward < 1
    ]
    differ = [
        f"{shown(text)} to held-out problem {index} earns {one:.6g}, then {other:.6g}"
        for (index, text), one, other in zip(answers, first, again, strict=True) if one != other
    ]  # fmt: skip
    differ += [f"the right answer to held-out problem {index} earns less than 1" for index in short]
    yield Observation("held-out answers", not differ, some(differ) or f"{len(answers)} earn the same twice")


def _of_process(told: Told) -> Observation:
    if told.set_by_imports:
        return Observation(
            "process", False,
            f"an import sets {', '.join(told.set_by_imports)}, which does not last: a constructor may set it",
        )  # fmt: skip
    left = f"sets {', '.join(told.left)}: put back before each call" if told.left else "nothing of it is set"
    return Observation("process", True, left)


# ---- the same child under attack -----------------------------------------------------------------------------------------


def _attacked(
    examinee: Examinee, assault: Assault, spec: EnvironmentSpec, deadline: float, asked: Sequence[Problem], answers: Answers,
    rewards: Sequence[float], replies: Replies,
) -> Iterator[Observation]:  # fmt: skip
    with Canary() as canary:
        execution = Execution(examinee, asked[0].index, canary)
        with examinee.hurried():
            assault.launch([*_attacks(examinee, asked), *execution.attacks])
        slow = assault.slow
        changed = changed_replies = 0
        if not slow:
            try:
                changed = sum(a != b for a, b in zip(rewards, examinee.scored(answers), strict=True))
                again = examinee.replied([*replies])
                changed_replies = sum(again[talk] != replies[talk] for talk in again)
            except MurmurationError as error:
                slow.append(f"an honest answer after them: {error}")
        yield Observation(
            "hostile answers", not slow, some(slow) or f"{assault.count}, each scored within {ANSWER_S:g} s of CPU time"
        )
        acts = assault.acts
        yield Observation(
            "runs no answer", not acts, some(acts) or "no text becomes code, no process, no socket, no file"
        )
        if examinee.runs_programs:
            yield from execution.observed(spec, deadline, assault)
        yield execution.of_machine(assault)
    if assault.strayed:
        yield Observation("range", False, some(assault.strayed))
    yield Observation(
        "is not changed", not (changed or changed_replies),
        f"{changed or 'no'} rewards of {len(answers)} are others after them"
        + (f", and replies in {changed_replies} conversations of {len(replies)}" if changed_replies else ""),
    )  # fmt: skip
    most = examinee.memory
    yield Observation("memory", assault.peak < most // 2, f"{assault.peak >> 20} MiB at the most, of {most >> 20}")


def _attacks(examinee: Examinee, asked: Sequence[Problem]) -> Iterator[Attack]:
    of_nobody, index = [*hostile_answers.of_nobody()], asked[0].index
    yield from (Attack(name, index, text) for name, text in of_nobody)
    if not examinee.runs_programs and examinee.converses(0):
        calls = examinee.calls([text for _, text in of_nobody])
        yield from (
            Attack(name, index, call, True) for (name, _), forms in zip(of_nobody, calls, strict=True) for call in forms
        )
    tampered = 1 if examinee.runs_programs else _ATTACKED  # a program that never ends takes seconds
    for problem in [problem for problem in asked if problem.answer][:tampered]:
        yield from (Attack(name, problem.index, text) for name, text in hostile_answers.of_right(str(problem.answer)))


# ---- other children ----------------------------------------------------------------------------------------------------


def _elsewhere(
    spec: EnvironmentSpec, deadline: float, indices: Sequence[int], asked: Sequence[Problem],
    held_out: Sequence[Problem], answers: Answers, rewards: Sequence[float], replies: Replies, assault: Assault,
) -> Iterator[Observation]:  # fmt: skip
    others = range(1, len(conditions()))
    drawn: list[str] = []
    scored: list[str] = []
    told: list[str] = []
    hostile: list[str] = []
    for number in others:
        with Examinee(spec, deadline, number) as examinee:
            under = ", ".join(f"{name}={value}" for name, value in examinee.conditions.items() if name != "LANG")
            try:
                for one, other in itertools.chain(
                    zip(asked, examinee.drawn(indices), strict=True),
                    itertools.zip_longest(held_out, examinee.held_out()),
                ):
                    if one != other:
                        which = one or other
                        drawn.append(f"{'held-out ' if which in held_out else ''}problem {which.index} under {under}")
                again = examinee.scored(answers)
                said = examinee.replied([*replies])
            except MurmurationError as error:
                drawn.append(f"{error} under {under}")
                continue
            for (index, text), one, other in zip(answers, rewards, again, strict=True):
                if one != other:
                    scored.append(f"{shown(text)} to problem {index} earns {one:.6g} and {other:.6g} under {under}")
            told += [f"{_difference(talk, reply, said[talk])} under {under}" for talk, reply in replies.items() if reply != said[talk]]  # fmt: skip
            if number in _AGAIN and not assault.slow:
                hostile += _hostile_again(examinee, assault)
    how = f"in {len(others) + 1} processes, with other hash seeds, locales, time zones and orders"
    yield Observation("draws the same", not drawn, some(drawn) or how)
    yield Observation("scores the same", not scored, some(scored) or f"{len(answers)} answers {how}")
    if replies:
        yield _of_replies(replies, told, how)
    if not assault.slow:
        how = f"{len(assault.without_programs)} earn, or are told, the same in {len(_AGAIN) + 1} processes"
        yield Observation("hostile again", not hostile, some(hostile) or how)


def _of_replies(replies: Replies, told: Sequence[str], how: str) -> Observation:
    """`told`: turns that were replied to otherwise in another child."""
    count = sum(map(len, replies.values()))
    longest = max(len(turns) for _, turns in replies)
    said = f"{count} replies in {len(replies)} conversations of up to {longest} turns {how}"
    if not count:
        said += ": nothing is known of its tool; as_call says how it is called"
    if told:
        return Observation("replies the same", False, some(told))
    return Observation("replies the same", True if count else None, said)


def _difference(talk: Talk, one: Sequence[ToolResult], other: Sequence[ToolResult]) -> str:
    """The first turn to which something else was said, one of the two perhaps nothing."""
    pairs = enumerate(itertools.zip_longest(one, other))
    number = next((at for at, (first, second) in pairs if first != second), 0)
    return f"{shown(talk[1][number])}, turn {number + 1} of {len(talk[1])},"


def _hostile_again(examinee: Examinee, assault: Assault) -> list[str]:
    """What is otherwise in this process, in its order. Programs are left out: they ran with little time, and `programs again` looks at them."""
    attacks = assault.without_programs
    under = f"under PYTHONHASHSEED={examinee.conditions['PYTHONHASHSEED']}"
    differ: list[str] = []
    with examinee.hurried():
        for place in examinee.in_some_order(len(attacks)):
            one = attacks[place]
            try:
                now = verdicts(examinee, [one])[one]
            except MurmurationError as error:
                return [*differ, f"{one.name}: {error} {under}"]
            if now != assault.verdicts[one]:
                differ.append(f"{one.name}: {brief(assault.verdicts[one])}, then {brief(now)} {under}")
    return differ


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
    with Examinee(spec, deadline, 0, neighbours) as examinee:
        try:
            for number, (one, index) in enumerate(zip(asked, indices, strict=True)):
                near = [at + number % neighbour.problems for at, neighbour in zip(begin, neighbours, strict=False)]
                own = begin[-1] + index
                first = examinee.problems([*near, own])
                examinee.score([(problem.index, problem.answer or one.prompt) for problem in first[:-1]])
                again = examinee.problems([own])[0]
                if {(one.prompt, one.answer)} != {(other.prompt, other.answer) for other in (first[-1], again)}:
                    differ.append(f"problem {index} is another one")
            moved = [(begin[-1] + index, text) for index, text in answers]
            for (index, text), before, after in zip(answers, rewards, examinee.scored(moved), strict=True):
                if before != after:
                    differ.append(f"{shown(text)} to problem {index} earns {before:.6g} and {after:.6g}")
            said = examinee.replied([*replies], begin[-1])
            differ += [f"a reply to {_difference(talk, reply, said[talk])[:-1]}" for talk, reply in replies.items() if reply != said[talk]]  # fmt: skip
        except MurmurationError as error:
            differ.append(str(error))
    whom = f"itself with another seed{f' and {len(others)} more' if others else ''}"
    yield Observation("beside others", not differ, some(differ) or f"the same in a child with {whom}")
