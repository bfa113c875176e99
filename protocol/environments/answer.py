"""Whether a completion gives a task file's answer: a text comparison that any party repeats exactly and that always ends.

The answer is what stands in the last \\boxed{…}, else the last line that is not empty; of a reasoning model, after </think>,
and a thought that never ends gives none. It is right when it is the expected one but for spaces and a final period, or when both are the
same decimal number or fraction. Covers no algebra, units or sets: `x + 1` is not `1 + x`.
"""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(r"[+-]?(\d{1,64}(\.\d{0,64})?|\.\d{1,64})(/[1-9]\d{0,63})?", re.ASCII)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))", re.ASCII)
_BRACE = re.compile("[{}]")
_BOXED = "\\boxed{"


def is_right(completion: str, expected: str) -> bool:
    return same(said(completion), expected)


def same(given: str, expected: str) -> bool:
    """Whether two answers are one text, or one decimal number or fraction."""
    given, wanted = _plain(given), _plain(expected)
    if given == wanted:
        return True
    number = _number(wanted)
    return number is not None and _number(given) == number


def said(completion: str) -> str:
    """What a completion gives as its answer."""
    text = completion.rpartition("</think>")[2]
    if "<think>" in text:
        return ""
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _last_boxed(text: str) -> str | None:
    begin = text.rfind(_BOXED)
    if begin < 0:
        return None
    depth = 1
    for brace in _BRACE.finditer(text, begin + len(_BOXED)):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return text[begin + len(_BOXED) : brace.start()]
    return None


def _plain(text: str) -> str:
    return " ".join(text.split()).removesuffix(".").strip("$ ")


def _number(text: str) -> Fraction | None:
    text = _THOUSANDS.sub("", text.replace(" ", ""))
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    top, _, bottom = text.partition("/")
    return Fraction(top.rstrip(".") if top.endswith(".") else top) / int(bottom or 1)
