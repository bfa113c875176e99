"""Longer answers made of what is known of a problem: right answers among other words, as models write them.

A verifier that collects words, lines or numbers in a set agrees with itself on a bare answer and not on these. Nobody says what they
should earn: their scores are compared between processes, nothing else.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from protocol.environments.problems import Problem

_CHARS_MAX = 1 << 15
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_DIGITS_MAX = 30


def of_problem(problem: Problem, other: Problem, draw: random.Random) -> Iterator[str]:
    """Texts about `problem`; `other` is one whose answer is most likely wrong here. The same for the same generator."""
    right = problem.answer if problem.answer is not None else _words(problem.prompt, draw)
    wrong = other.answer if other.answer is not None else _words(other.prompt, draw)
    for text in _around(problem.prompt, right, wrong, draw):
        if len(text) <= _CHARS_MAX:
            yield text


def _around(prompt: str, right: str, wrong: str, draw: random.Random) -> Iterator[str]:
    yield f"The answer is {right}."
    yield f"{right} {wrong}"
    yield f"{wrong} {right}"
    yield f"First I found {wrong}, but then {right}, and not {wrong}."
    yield f"- {wrong}\n- {right}\n- I do not know"
    yield f"{right},{wrong}, {right}, 0, 1"
    yield _words(f"{prompt} {right} {wrong}", draw)
    yield _words(right, draw)
    yield f"{prompt}\n{right}"
    yield f"{right}\n{wrong}\n" * 3 + right
    yield f"<answer>{wrong}</answer> \\boxed{{{wrong}}} <answer>{right}</answer> \\boxed{{{right}}}"
    if (notations := _notations(right)) is not None:
        draw.shuffle(notations)
        yield " ".join(notations)
        yield f"{' = '.join(notations)}\n{wrong}"
        yield _NUMBER.sub(lambda _: notations[0], right, count=1)


def _words(text: str, draw: random.Random) -> str:
    words = text.split()
    draw.shuffle(words)
    return " ".join(words)


def _notations(text: str) -> list[str] | None:
    """The first number of a text, as different people write it."""
    found = _NUMBER.search(text)
    if found is None or len(found[0]) > _DIGITS_MAX:
        return None
    sign, digits = ("-", found[0][1:]) if found[0].startswith("-") else ("", found[0])
    whole, _, rest = digits.partition(".")
    return [
        found[0], f"{sign}0{digits}", f"{sign}{whole}.{rest}0", f"{sign}{int(whole):,}{'.' if rest else ''}{rest}",
        f"{sign}{digits}e0", f"${sign}{digits}$", f"+{digits}", f"{sign}{whole}{rest}/1{'0' * len(rest)}",
    ]  # fmt: skip
