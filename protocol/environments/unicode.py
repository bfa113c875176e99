"""What an exact environment sees of a stranger's text: only characters that every Python a machine may run knows.

`int`, `\\d`, `\\w`, `isalpha`, `lower`, `casefold` and `unicodedata` look characters up in tables that grow with each minor version of
Python: `int("\\U0001e4f3")` fails on 3.11 and is 3 on 3.12. All that grows is characters. One that was there keeps its numeric value,
decomposition, case folding and place among letters and spaces (Unicode's stability policies); a new capital of an old letter is a new
character. So characters which Unicode 14.0 (Python 3.11, the oldest we run on) has not assigned become U+FFFD, unless the problem
itself holds them: then its right answer has to be scored as it is.

Does not cover: `isnumeric`, `unicodedata.numeric` and `islower`, which changed for two dozen old characters.
Source: unicode.org/policies/stability_policy.html; the table is made by `python3.11 -m protocol.environments.unicode`.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from functools import cache
from itertools import accumulate
from pathlib import Path

from protocol.environments.environment import Environment

VERSION = "14.0.0"
"""Changing it breaks: scores of exact environments, where an answer holds a character that is new in between."""
REPLACEMENT = "\ufffd"
_TABLE = Path(__file__).with_name("unicode_14.txt")


def known(text: str, environment: Environment, entry: object) -> str:
    """A stranger's text, as an exact environment sees it."""
    if text.isascii():
        return text
    new = {letter for letter in set(text) if not is_assigned(letter)}
    if new:
        new -= set(environment.prompt(entry)) | set(environment.answer(entry) or "")
    return text.translate(dict.fromkeys(map(ord, new), REPLACEMENT)) if new else text


def is_assigned(letter: str) -> bool:
    """In Unicode 14.0."""
    return bisect_right(_borders(), ord(letter)) % 2 == 1


@cache
def _borders() -> list[int]:
    """Where, from 0 on, runs of assigned and of unassigned characters begin, in turn."""
    return list(accumulate(int(length, 16) for length in _TABLE.read_text().split()))


def _write() -> None:
    assert unicodedata.unidata_version == VERSION, unicodedata.unidata_version
    borders, is_on = [0], True
    for number in range(0x110000):
        if (unicodedata.category(chr(number)) != "Cn") != is_on:
            borders.append(number)
            is_on = not is_on
    lengths = [f"{after - before:x}" for before, after in zip([0, *borders], borders, strict=False)]
    _TABLE.write_text("\n".join(" ".join(lengths[at : at + 32]) for at in range(0, len(lengths), 32)) + "\n")


if __name__ == "__main__":
    _write()
