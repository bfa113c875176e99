"""Whether a completion gives a task's answer. What counts as equal is in docs/environments.md, and measured on tests/corpora/math.jsonl."""

from __future__ import annotations

import re
from functools import partial

from protocol.environments import answer as plain_answer
from protocol.environments.maths import deadline, final, library, sentence, words
from protocol.environments.maths.compare import equal, readings_of
from protocol.environments.maths.final import FinalAnswer
from protocol.environments.maths.notation import canonical
from protocol.environments.maths.syntax import NotMaths, Tree, parse

ANSWER_MAX = 4000
"""Characters of an answer, and of a reference, that are read as more than text."""
SECONDS = 2.0
"""Of CPU time for one answer, and again for math-verify where it is asked."""
_COMMAND = re.compile(r"\\[A-Za-z]|[\d<>=]")
_PROSE = re.compile(r'"(?!and")[A-Za-z]{3,}')
_WRONG: bool | tuple[str, str] = False
_NUMBER = re.compile(r"[+-]?(?:\d{1,64}(?:\.\d{1,64})?|\.\d{1,64}|\d{1,64}/[1-9]\d{0,63})", re.ASCII)
_EXCEPT = re.compile(
    r"\b(?:except|excluding|but|other than|apart from|without)\b(?:\s+for)?(?P<rest>.*)", re.IGNORECASE | re.DOTALL
)
_INFINITY = re.compile(r"(?i)(?<![A-Za-z\\])(?:(negative|minus)\s+|positive\s+)?infinity(?![A-Za-z])")
_QUOTED = re.compile(r'"(?!(?:and|or|if)")[A-Za-z]')


def is_right(completion: str, reference: str) -> bool:
    """False for an answer that takes longer than the deadline, and for one beyond the bounds."""
    verdict = deadline.within(SECONDS, partial(_found, completion, reference), _WRONG)
    return verdict if isinstance(verdict, bool) else library.same(*verdict, SECONDS)


def _found(completion: str, reference: str) -> bool | tuple[str, str]:
    """The verdict, or both texts where only math-verify can give one."""
    found = final.said(completion)
    if found is None or not found.text.strip():
        return False
    wanted = final.of_reference(reference)
    if same_text(found, wanted):
        return True
    if max(len(found.text), len(wanted)) > ANSWER_MAX:
        return False
    return _read(found, wanted)


def same_text(found: FinalAnswer, wanted: str) -> bool:
    """The fast path: one text, or one decimal number or fraction. Of `3 1/3` and `1,000` it knows only the text."""
    left, right = (text.strip().removesuffix(".").strip("$ ") for text in (found.text, wanted))
    if left == right:
        return bool(left)
    if _NUMBER.fullmatch(left) and _NUMBER.fullmatch(right):
        return plain_answer.same(left, right)
    return False


def _read(found: FinalAnswer, wanted: str) -> bool | tuple[str, str]:
    if any(not char.isascii() and char.isnumeric() for char in canonical(found.text)):
        return False  # digits of another script, which Python takes for the plain ones
    letters = words.choice(canonical(wanted))
    if letters is not None:
        given = words.choice(canonical(found.text)) if found.boxed else words.chosen(found.text)
        return given == letters
    if moments := words.moments(wanted, whole=True):
        others = words.moments(found.text, whole=found.boxed)
        if others and others[-1] == moments[-1]:
            return True
        if moments[-1].date is not None or others:
            return False
    text = words.with_digits(wanted)
    if words.is_wordy(text) and not _is_formula(text):
        return words.same_words(wanted, found.text, boxed=found.boxed)
    return _same_maths(text, found)


def _is_formula(text: str) -> bool:
    """Whether words are mathematics after all: no solution, infinity, all real numbers, xy."""
    plain = canonical(text)
    return bool(words.EMPTY.search(text) or words.ALL_REAL.search(text)) or "\\" in plain or '"' not in plain


def _same_maths(wanted: str, found: FinalAnswer) -> bool | tuple[str, str]:
    given = _INFINITY.sub(lambda m: "-∞" if m[1] else "∞", words.with_digits(found.text))
    if not found.boxed and words.NO_ANSWER.search(given) and not words.EMPTY.search(given):
        return False
    try:
        special = _in_words(given)
    except NotMaths:
        return False
    if special is None and not found.boxed:
        stated = _stated(given)
        if stated is None:
            return False
        given = stated
    left, right = canonical(wanted), canonical(given)
    try:
        reference, answer = (
            readings_of(tree or parse(text)) for tree, text in ((_in_words(wanted), left), (special, right))
        )
    except NotMaths:
        worth = all(_COMMAND.search(text) and not _QUOTED.search(text) for text in (left, right))
        return (left, right) if worth else False
    return equal(reference, answer)


def _in_words(text: str) -> Tree | None:
    if words.EMPTY.search(text):
        return ("empty",)
    match = words.ALL_REAL.search(text)
    if match is None:
        return None
    rest = text[match.end() :]
    excluded = _EXCEPT.search(rest)
    if excluded is None:
        return None if re.search(r"[<>≤≥≠=\\]", rest) else ("real",)
    return ("without", ("real",), ("set", (parse(canonical(excluded["rest"])),)))


def _stated(given: str) -> str | None:
    """The formula of a sentence: all of it where it is no prose."""
    whole = given.strip().lstrip("= ").rstrip(".")
    try:
        if not _PROSE.search(canonical(whole)):
            parse(canonical(whole))
            return whole
    except NotMaths:
        pass
    return sentence.formula(given)
