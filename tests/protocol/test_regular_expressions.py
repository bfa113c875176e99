"""No answer of a stranger makes a regular expression run away: every one that scoring puts to it ends soon on texts that repeat themselves.

A search of quadratic time takes minutes on the long texts here, one of exponential time longer than the universe has. And every one finds
the same on each Python: what the oldest gets wrong is in none.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from re import _compiler as compiler  # type: ignore[attr-defined]
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

import pytest

import node
import protocol
import trainer
from protocol.environments.maths import deadline, final, grade

_WHOLE, _ANSWER = 1 << 17, 4000
"""Characters of what a module reads: a completion, or an answer that was found in one (`grade.ANSWER_MAX`)."""
_MODULES = {
    "answer": _WHOLE, "blocks": _WHOLE, "bm25": _WHOLE, "calculator": _WHOLE, "code": _WHOLE, "interpreter": _WHOLE, "reasoning": _WHOLE,
    "retrieval": _WHOLE, "maths.final": _WHOLE, "maths.grade": _ANSWER, "maths.library": _ANSWER, "maths.meaning": _ANSWER,
    "maths.notation": _ANSWER, "maths.sentence": _ANSWER, "maths.tokens": _ANSWER, "maths.units": _ANSWER, "maths.words": _ANSWER,
    "maths.atoms": _ANSWER, "maths.compare": _ANSWER, "maths.regions": _ANSWER, "maths.syntax": _ANSWER, "maths.values": _ANSWER,
}  # fmt: skip
_SECONDS = 2.0  # of CPU time for one search, which takes some milliseconds
_MANY = 160  # texts for one expression
_POSSESSIVE = re.compile(r"[*+?}]\+|\(\?>")
"""None of a group: until 3.11.5 (CPython's issues 100061 and 106052) that keeps what an iteration that failed had read. Debian 12 has 3.11.2."""
_CALLED = {"compile", "match", "fullmatch", "search", "sub", "split", "findall", "finditer"}
_LETTERS = {
    codes.CATEGORY_SPACE: " \n", codes.CATEGORY_DIGIT: "1", codes.CATEGORY_WORD: "a1", codes.CATEGORY_NOT_SPACE: "a",
    codes.CATEGORY_NOT_DIGIT: "a ", codes.CATEGORY_NOT_WORD: " ",
}  # fmt: skip


def _patterns(module: ModuleType) -> Iterator[tuple[re.Pattern[Any], set[str]]]:
    """Every regular expression of a module, also those within its functions, and how it is used there; what is put into one at run
    time is a letter."""
    source = inspect.getsource(module)
    names = {}
    for found in ast.walk(ast.parse(source)):
        match found:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Call() as call):
                names[call] = name
            case ast.Call(func=ast.Attribute(value=ast.Name("re"), attr=how), args=[first, *_]) if how in _CALLED:
                called = {how}
                if how == "compile":
                    # by its name, or as what was compiled just here; of others it is not known
                    name = names.get(found, "")
                    called = set(re.findall(rf"(?<![A-Za-z_.]){name}\.(\w+)\(", source)) if name else set()
                    if len(re.findall(rf"(?<![A-Za-z_.]){name}\b", source)) == 1:
                        called = set()
                yield _compiled(module, first, ast.unparse(found)), (called & _CALLED) or {"fullmatch", "finditer"}


def _compiled(module: ModuleType, first: ast.expr, call: str) -> re.Pattern[Any]:
    try:
        pattern = eval(compile(ast.Expression(first), "pattern", "eval"), vars(module))
    except NameError:
        filled = ast.fix_missing_locations(_Filled().visit(first))
        pattern = eval(compile(ast.Expression(filled), "pattern", "eval"), vars(module))
    flags = [getattr(re, flag) for flag in re.findall(r"re\.([A-Z]+)\b", call)]
    return re.compile(pattern, sum({*flags}))


class _Filled(ast.NodeTransformer):
    """A letter in place of what is known at run time alone."""

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.expr:
        return node if isinstance(node.value, ast.Name) and node.value.id.isupper() else ast.Constant("a")


def _pieces(tree: Any) -> Iterator[str]:
    """Pieces that a parsed pattern looks for: letters, and the words that they stand in."""
    word = ""
    for code, of in tree:
        if code is codes.LITERAL:
            word += chr(of)
            yield chr(of)
            continue
        if len(word) > 1:
            yield word
        word = ""
        match code:
            case codes.IN:
                for kind, value in of:
                    if kind is codes.LITERAL:
                        yield chr(value)
                    elif kind is codes.RANGE:
                        yield chr(value[0])
                    elif kind is codes.CATEGORY:
                        yield from _LETTERS.get(value, "")
            case codes.ANY | codes.NOT_LITERAL:
                yield "a"
            case codes.SUBPATTERN:
                yield from _pieces(of[3])
            case codes.BRANCH:
                for branch in of[1]:
                    yield from _pieces(branch)
            case codes.MAX_REPEAT | codes.MIN_REPEAT | codes.POSSESSIVE_REPEAT:
                yield from _pieces(of[2])
            case codes.ATOMIC_GROUP:
                yield from _pieces(of)
            case codes.ASSERT | codes.ASSERT_NOT:
                yield from _pieces(of[1])
    if len(word) > 1:
        yield word


def _texts(pattern: re.Pattern[Any], length: int) -> Iterator[Any]:
    """What such a pattern may stumble over: one piece again and again, perhaps after another, then something that never fits."""
    words = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    pieces = list(dict.fromkeys([*_pieces(parser.parse(words, pattern.flags)), " ", "\n"]))
    pumps = [*pieces, *(one + other for one in pieces for other in pieces if length == _ANSWER and one != other)]
    firsts = ["", *pieces]
    if len(pumps) * len(firsts) > _MANY:
        pumps = pieces
    if len(pumps) * len(firsts) > _MANY:
        firsts = [""]
    for pump in pumps:
        for first in firsts:
            text = first + pump * (length // len(pump)) + "\0"
            yield text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")


def _use(pattern: re.Pattern[Any], called: set[str], text: Any) -> bool:
    if "fullmatch" in called:
        pattern.fullmatch(text)
    if "match" in called:
        pattern.match(text)
    if called - {"fullmatch", "match"}:
        for _ in pattern.finditer(text):
            pass
    return True


_FOUND = [
    pytest.param(pattern, called, length, id=f"{name}-{number}")
    for name, length in _MODULES.items()
    for number, (pattern, called) in enumerate(_patterns(importlib.import_module(f"protocol.environments.{name}")))
]


@pytest.mark.parametrize(("pattern", "called", "length"), _FOUND)
def test_a_regular_expression_ends_soon_on_texts_that_repeat_themselves(
    pattern: re.Pattern[Any], called: set[str], length: int
) -> None:
    for text in _texts(pattern, length):
        ended = deadline.within(_SECONDS, partial(_use, pattern, called, text), False)
        assert ended, f"{pattern.pattern!r} on {text[:20]!r}… of {len(text)} characters"


def _whole(parsed: Any) -> Iterator[Any]:
    """What gives nothing back and is more than one character: atomic groups, possessive repetitions of groups."""
    match parsed:
        case (codes.ATOMIC_GROUP, _):
            yield parsed
        case (codes.POSSESSIVE_REPEAT, (_, _, repeated)) if not compiler._simple(repeated):
            yield parsed
    if isinstance(parsed, list | tuple | parser.SubPattern):
        for part in parsed:
            yield from _whole(part)


@pytest.mark.parametrize(
    ("pattern", "many"),
    [
        (r"(?:ab?c)*+", 1), (r"(?>ab)", 1), (r"(?:x|(?=(a(?:b\s++)?+)))*", 1), (r"((?:a\s*+){2,3}+)|(?:[ab]++)?", 1), (r"(a)*+", 1),
        (r"(x)(?(1)(?>ab)|c)", 1), (r"(?:(?:a++b)?+c)++", 2), (r"\s*+[^a]++b?+.*+(?:[ab])++(?:\d++[.)])*", 0),
    ],
)  # fmt: skip
def test_what_gives_nothing_back_is_found_wherever_it_stands(pattern: str, many: int) -> None:
    assert len(list(_whole(parser.parse(pattern)))) == many


def _strings(source: str) -> Iterator[str]:
    for found in ast.walk(ast.parse(source)):
        match found:
            case ast.Constant(str(text)):
                yield text
            case ast.Constant(bytes(octets)):
                yield octets.decode("latin-1")
            case ast.JoinedStr(values):
                yield "".join(str(one.value) if isinstance(one, ast.Constant) else "a" for one in values)


@pytest.mark.parametrize("package", [protocol, node, trainer], ids=lambda package: package.__name__)
def test_no_regular_expression_has_a_possessive_group(package: ModuleType) -> None:
    for file in Path(package.__path__[0]).rglob("*.py"):
        source = file.read_text()
        for text in _strings(source) if _POSSESSIVE.search(source) else ():
            with suppress(re.error):
                assert not list(_whole(parser.parse(text))), f"{file}: {text}"


_REPEATED = {
    "commas between boxes": r"\boxed{1}" + "," * 40 + r"x\boxed{2}",
    "words between boxes": r"\boxed{1}" + "and " * 40 + r"x\boxed{2}",
    "spaces after a box": r"\boxed{7}" + " " * _WHOLE + "x",
    "lines after a box": r"\boxed{7}" + "\n" * _WHOLE + "x",
    "lines in a sentence": "The answer is 7" + "\n" * _WHOLE + "x",
    "spaces in a list": "- 7" + " " * _WHOLE + "x\n- 8",
    "lines in a list": "- 7\n" + "\n" * _WHOLE + "- 8",
    "spaces in a heading": "step" + " " * 3000 + "!",
    "stars": "answer" + "*" * _WHOLE + " 7",
    "cues": "answer to " * (_WHOLE // 10) + "7",
    "digits of bullets": "1" * _WHOLE + "\n" + "1" * _WHOLE,
}


@pytest.mark.parametrize("name", _REPEATED)
def test_what_a_model_repeats_without_end_is_scored(name: str) -> None:
    done = deadline.within(_SECONDS, lambda: [final.said(_REPEATED[name])], None)
    assert done is not None


def test_a_right_answer_may_have_any_number_of_spaces_after_it() -> None:
    for space in (" ", "\n", "\t ", "$"):
        assert grade.is_right(r"\boxed{7}" + space * (_WHOLE // len(space)), "7")
    assert grade.is_right("7" + " " * _WHOLE, "7")


def test_reading_an_answer_is_within_the_deadline_as_well_as_comparing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_end(_: str) -> None:
        while True:
            pass

    monkeypatch.setattr(final, "said", without_end)
    monkeypatch.setattr(grade, "SECONDS", 0.2)
    assert not grade.is_right(r"\boxed{7}", "7")
