"""One environment, examined: several children of the sandbox draw and score the same under other conditions, one of them under attack.

What is looked at is what the protocol relies on: two machines that disagree on a problem or a reward accuse each other, and an
answer that hangs or enters a verifier holds up whoever scores it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from protocol.environments.problems import Problem
from protocol.errors import MurmurationError
from protocol.runspec import EnvironmentSpec, starts
from protocol.sandbox.inspection import hostile_answers
from protocol.sandbox.inspection.assault import ANSWER_S, Assault, Attack
from protocol.sandbox.inspection.canary import Canary
from protocol.sandbox.inspection.examinee import Answers, Examinee, Replies, Told, conditions
from protocol.sandbox.inspection.execution import Execution
from protocol.sandbox.inspection.observation import Observation, shown, some

_PROBLEMS = 32
_DEADLINE_S = 20.0
_PROBLEM_S, _SCORE_S = 0.25, 0.1  # CPU time that one may take on average
_ATTACKED = 3  # problems whose right answers are tampered with


def examine(
    spec: EnvironmentSpec, *, problems: int = _PROBLEMS, deadline: float = _DEADLINE_S,
    others: Sequence[EnvironmentSpec] = (),
) -> Iterator[Observation]:  # fmt: skip
    """What was found, one thing after the other; `deadline` in seconds for each request to a child, `others` of the same run.

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
            yield Observation("answers", False, str(error))
            return
        after = first.told()
        yield from _of_rewards(asked, answers, rewards)
        yield _speed("an answer's score", after.seconds - before.seconds, len(answers), _SCORE_S)
        yield Observation("range", after.strayed is None, after.strayed or "every score lies in 0 … 1")
        try:
            replies = first.replied(asked[0].index, first.turns(asked))
        except MurmurationError as error:
            yield Observation("replies", False, str(error))
            return
        yield _of_process(first.told())
    yield from _beside(spec, others, deadline, indices, asked, answers, rewards, replies)
    yield from _elsewhere(spec, deadline, indices, asked, held_out, answers, rewards, replies)
    yield from _attacked(spec, deadline, asked, answers, rewards, replies)


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


def _of_process(told: Told) -> Observation:
    if told.set_by_imports:
        return Observation(
            "process", False,
            f"an import sets {', '.join(told.set_by_imports)}, which does not last: a constructor may set it",
        )  # fmt: skip
    left = f"sets {', '.join(told.left)}: put back before each call" if told.left else "nothing of it is set"
    return Observation("process", True, left)


# ---- other children ----------------------------------------------------------------------------------------------------


def _elsewhere(
    spec: EnvironmentSpec, deadline: float, indices: Sequence[int], asked: Sequence[Problem],
    held_out: Sequence[Problem], answers: Answers, rewards: Sequence[float], replies: Replies,
) -> Iterator[Observation]:  # fmt: skip
    others = range(1, len(conditions()))
    drawn: list[str] = []
    scored: list[str] = []
    told: list[str] = []
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
                said = examinee.replied(asked[0].index, [*replies])
            except MurmurationError as error:
                drawn.append(f"{error} under {under}")
                continue
            for (index, text), one, other in zip(answers, rewards, again, strict=True):
                if one != other:
                    scored.append(f"{shown(text)} to problem {index} earns {one:.6g} and {other:.6g} under {under}")
            told += [f"{shown(turn)} under {under}" for turn, reply in replies.items() if reply != said[turn]]
    how = f"in {len(others) + 1} processes, with other hash seeds, locales, time zones and orders"
    yield Observation("draws the same", not drawn, some(drawn) or how)
    yield Observation("scores the same", not scored, some(scored) or f"{len(answers)} answers {how}")
    if replies:
        yield _of_replies(replies, told, how)


def _of_replies(replies: Replies, told: Sequence[str], how: str) -> Observation:
    """`told`: turns that were replied to otherwise in another child."""
    count = sum(reply is not None for reply in replies.values())
    said = f"{count} replies to {len(replies)} turns {how}"
    if told:
        return Observation("replies the same", False, some(told))
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
            said = examinee.replied(begin[-1] + asked[0].index, [*replies])
            differ += [f"a reply to {shown(turn)}" for turn, reply in replies.items() if reply != said[turn]]
        except MurmurationError as error:
            differ.append(str(error))
    whom = f"itself with another seed{f' and {len(others)} more' if others else ''}"
    yield Observation("beside others", not differ, some(differ) or f"the same in a child with {whom}")


# ---- a child under attack ----------------------------------------------------------------------------------------------


def _attacked(
    spec: EnvironmentSpec, deadline: float, asked: Sequence[Problem], answers: Answers, rewards: Sequence[float],
    replies: Replies,
) -> Iterator[Observation]:  # fmt: skip
    with Canary() as canary:
        with Examinee(spec, deadline, 0) as examinee:
            examinee.scored(answers)  # whatever is imported late is here now
            examinee.replied(asked[0].index, [*replies])
            execution = Execution(examinee, asked[0].index, canary)
            assault = Assault(examinee)
            with examinee.hurried():
                assault.launch([*_attacks(examinee, asked), *execution.attacks])
            slow = assault.slow
            changed = changed_replies = 0
            if not slow:
                try:
                    changed = sum(a != b for a, b in zip(rewards, examinee.scored(answers), strict=True))
                    again = examinee.replied(asked[0].index, [*replies])
                    changed_replies = sum(again[turn] != replies[turn] for turn in again)
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
        + (f", and {changed_replies} replies of {len(replies)}" if changed_replies else ""),
    )  # fmt: skip
    most = examinee.memory
    yield Observation("memory", assault.peak < most // 2, f"{assault.peak >> 20} MiB at the most, of {most >> 20}")


def _attacks(examinee: Examinee, asked: Sequence[Problem]) -> Iterator[Attack]:
    of_nobody, index = [*hostile_answers.of_nobody()], asked[0].index
    yield from (Attack(name, index, text) for name, text in of_nobody)
    if not examinee.runs_programs and examinee.converses(0):
        calls = examinee.calls([text for _, text in of_nobody])
        yield from (
            Attack(name, index, call, True)
            for (name, _), call in zip(of_nobody, calls, strict=True)
            if call is not None
        )
    tampered = 1 if examinee.runs_programs else _ATTACKED  # a program that never ends takes seconds
    for problem in [problem for problem in asked if problem.answer][:tampered]:
        yield from (Attack(name, problem.index, text) for name, text in hostile_answers.of_right(str(problem.answer)))
