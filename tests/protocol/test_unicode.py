"""What an exact environment sees of an answer is the same on every Python: tables of characters grow with its versions."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from protocol.environments import unicode
from protocol.replies import Asked
from protocol.runspec import Generated
from protocol.sandbox import EnvironmentSandbox
from tests.protocol.conftest import Install

THREE = "\U0001e4f3"
"""A digit since Unicode 15.0: on Python 3.11 `int` refuses it, on 3.12 it is 3."""
FACE = "\U0001fae8"
"""An emoji since 15.0."""

ECHO = """
from protocol.environments import Environment


class Echo(Environment):
    name = "echo"
    exact = True

    def entry(self, index):
        return index

    def prompt(self, entry):
        return f"What is {entry} in other digits?"

    def answer(self, entry):
        return "%s" if entry else None

    def reply(self, entry, turns):
        return ascii(turns[-1])

    def score(self, entry, completion):
        return sum(map(ord, completion)) / (1 << 20)
"""


def environment(*, exact: bool = True) -> Generated:
    return Generated(
        package="echo",
        version="1.0",
        dataset="check",
        seed=1,
        size=2,
        head="0" * 64,
        exact=exact,
        held_out_seed=9,
        held_out_size=1,
    )


def value(text: str) -> float:
    return sum(map(ord, text)) / (1 << 20)


def test_an_exact_scorer_sees_no_character_that_a_python_may_not_know(install: Install) -> None:
    install(ECHO % FACE, name="echo", place="echo:Echo")
    texts = ["42", "é 京 🙂 ٣", f"1{THREE}", FACE, f"{FACE}{THREE}", "\ud800", chr(0x10FFFF)]
    with EnvironmentSandbox([environment()]) as exact, EnvironmentSandbox([environment(exact=False)]) as other:
        seen = exact.score([(1, text) for text in texts])
        (replies,) = exact.replies([Asked(0, ["known", f"é{THREE}"])])
        held_out = exact.score([(0, THREE)], held_out=True)
        as_it_is = other.score([(1, text) for text in texts])
    assert seen == [value(text.replace(THREE, "\ufffd").replace(chr(0x10FFFF), "\ufffd")) for text in texts]
    assert [reply.text for reply in replies] == ["'known'", r"'\xe9\ufffd'"]
    assert held_out == [value("\ufffd")]
    assert as_it_is == [min(1, value(text)) for text in texts]


def test_the_table_is_that_of_the_oldest_python() -> None:
    """On a newer one: what it does not know, the table does not either."""
    same = unicodedata.unidata_version == unicode.VERSION
    assert same == (sys.version_info[:2] == (3, 11))
    for number in range(sys.maxunicode + 1):
        here = unicodedata.category(chr(number)) != "Cn"
        assert unicode.is_assigned(chr(number)) <= here if not same else unicode.is_assigned(chr(number)) == here


@pytest.mark.parametrize("letter", [chr(0x4EAC), "ɤ", "٣", "é", "\u200b", "🙂"])
def test_known_characters_stay(letter: str) -> None:
    assert unicode.is_assigned(letter)
