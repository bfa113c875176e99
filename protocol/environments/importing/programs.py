"""Tests of programs as data sets write them, made fit for the environment `code`: valid, in its two forms, and no larger than a row.

Tests are kept in order while they fit: at most 256, within a row's 1 MiB. What does not fit is left out and counted, and so is a test that cannot
be used: it says nothing that a program could do, calls a function that has no name, or expects what no output equals (NaN). A problem of which no test is kept is left out itself.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from protocol import canonical
from protocol.environments.code import cases_of, same
from protocol.environments.importing.private import unpacked
from protocol.environments.importing.sources import ROW_BYTES_MAX, items
from protocol.environments.importing.task import LeftOut
from protocol.environments.taskfile import TEXT_BYTES_MAX
from protocol.errors import Malformed

LITERAL_CHARS_MAX, LITERAL_COMMAS_MAX = 16 << 20, 100_000
"""Of a table that is written as Python writes it: its syntax tree takes 1 kB for each item, 100 MB at either limit."""
TESTS_MAX = 256
"""As many as `tests` of the environment may ask for."""
_ROOM = TEXT_BYTES_MAX - (16 << 10)  # of a row, for tests: their frame and what else there is take the rest
_PYTHON = ("python", "python3", "py")


@dataclass(frozen=True, slots=True)
class Tests:
    """What scores a task of `code`."""

    answer: str
    no_room: int
    """Tests that a row has no room for."""
    unusable: int


def table(value: Any, what: str) -> dict[str, Any]:
    """A table that may be a text: of JSON, or as Python prints a dictionary. Raises LeftOut."""
    if isinstance(value, str):
        value = _parsed(value, what)
    if not isinstance(value, dict):
        raise LeftOut(f"{what} is no table", value)
    return value


def _parsed(text: str, what: str) -> Any:
    if len(text) > ROW_BYTES_MAX:
        raise LeftOut(f"{what} is too large", f"{len(text)} characters")
    try:
        return canonical.parse(text.encode("utf-8", "surrogatepass"), what)
    except Malformed:
        pass
    if len(text) > LITERAL_CHARS_MAX or text.count(",") > LITERAL_COMMAS_MAX:
        raise LeftOut(f"{what} is no JSON, and too large for a Python literal", text)
    try:
        with warnings.catch_warnings():  # of backslashes that mean nothing
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise LeftOut(f"{what} is neither JSON nor a Python literal", text) from None


def of_synthetic(info: dict[str, Any]) -> Tests:
    """Raises LeftOut where there is no test that can be used."""
    language = str(info.get("language", "python")).lower()
    if language not in _PYTHON:
        raise LeftOut("the program is not to be in Python", language)
    cases = info.get("test_cases")
    if isinstance(cases, str):
        cases = _parsed(cases, "test_cases")
    if not isinstance(cases, list) or not cases:
        raise LeftOut("no tests", info)
    kept, no_room, unusable = _fitting(cases, _case, _size)
    return Tests(_answer({"language": "python", "test_cases": kept}), no_room, unusable)


def _case(case: Any) -> dict[str, Any]:
    if not isinstance(case, dict) or not {"type", "input", "output"} <= case.keys():
        raise LeftOut("a test without type, input and output", case)
    kind, given, expected = case["type"], case["input"], case["output"]
    extra = {"tolerance": case["tolerance"]} if case.get("tolerance") else {}
    try:
        float(case.get("tolerance") or 0)
    except (TypeError, ValueError):
        raise LeftOut("a tolerance that is no number", case) from None
    if kind == "stdin_stdout":
        return {"type": kind, "input": _text(given), "output": _text(expected), **extra}
    if kind != "function_call":
        raise LeftOut("a test of another type than stdin_stdout and function_call", kind)
    name = case.get("fn_name")
    if not isinstance(name, str) or not name.isidentifier() or not isinstance(given, list):
        raise LeftOut("a call without a function's name and a list of arguments", case)
    _require_equal(expected)
    return {"type": kind, "fn_name": name, "input": given, "output": expected, **extra}


def _text(value: Any) -> str:
    """What a program reads or writes. Some problems have its lines as a list."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise LeftOut("input or output of a program that is no text", value)
    return str(value)


def of_livecodebench(public: Any, private: Any, metadata: Any) -> Tests:
    """The same, of LiveCodeBench's three columns: texts or lists, and either of the first two may hold none."""
    shown = _listed(public)
    hidden = _hidden(private)
    name = _function(metadata)

    def read(pair: tuple[bool, Any]) -> tuple[bool, Any]:
        return pair[0], _contest_case(pair[1], name)

    try:
        kept, no_room, unusable = _fitting(
            ((number < len(shown), case) for number, case in enumerate(chain(shown, hidden))), read,
            lambda pair: _size(json.dumps(pair[1], ensure_ascii=False)),
        )  # fmt: skip
    except (ValueError, RecursionError):
        raise LeftOut("tests that are no JSON", private) from None
    halves = [
        json.dumps([case for is_shown, case in kept if is_shown is half], ensure_ascii=False) for half in (True, False)
    ]
    meta = json.dumps({"func_name": name} if name else {})
    found = _answer({"public_test_cases": halves[0], "private_test_cases": halves[1], "metadata": meta})
    return Tests(found, no_room, unusable)


def _listed(value: Any) -> list[Any]:
    if value is None or isinstance(value, list):
        return value or []
    if not isinstance(value, str):
        raise LeftOut("tests that are neither a text nor a list", value)
    if not value.strip():
        return []
    try:
        return list(items(value))
    except (ValueError, RecursionError):
        raise LeftOut("tests that are no JSON", value) from None


def _hidden(value: Any) -> Iterable[Any]:
    """Private tests one by one: they may be many."""
    if not isinstance(value, str) or not value.strip():
        return _listed(value)
    return items(value if value.lstrip().startswith("[") else unpacked(value))


def _function(metadata: Any) -> str:
    """What LiveCodeBench's tests of functions call; empty where the metadata names nothing that can be called."""
    if isinstance(metadata, str) and metadata.strip():
        try:
            metadata = _parsed(metadata, "metadata")
        except LeftOut as reason:
            raise LeftOut("tests that cannot be read", metadata) from reason
    name = metadata.get("func_name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) and name.isidentifier() else ""


def _contest_case(case: Any, function: str) -> dict[str, Any]:
    if not isinstance(case, dict) or not all(
        isinstance(case.get(name), str) for name in ("input", "output", "testtype")
    ):
        raise LeftOut("a test without input, output and testtype", case)
    if case["testtype"] == "stdin":
        return case
    if case["testtype"] != "functional":
        raise LeftOut("a test of another type than stdin and functional", case["testtype"])
    given = case["input"].rstrip("\n")
    try:
        for line in given.split("\n"):
            json.loads(line)
        _require_equal(json.loads(case["output"]))
    except (ValueError, RecursionError):
        raise LeftOut("a test that cannot be read", case) from None
    if not function:
        raise LeftOut("a call of a function whose name is not known", case)
    return {**case, "input": given}


def _require_equal(expected: Any) -> None:
    """Raises LeftOut for a value that is not even equal to itself."""
    if not same(expected, expected):
        raise LeftOut("a test that expects what no output equals", expected)


def _fitting(
    cases: Iterable[Any], read: Callable[[Any], Any], size: Callable[[Any], int]
) -> tuple[list[Any], int, int]:
    """The cases that can be used and that a row has room for, in order; how many found no room, and how many cannot be used.

    Raises LeftOut where none is kept: with the reason why the first cannot be used, if one cannot.
    """
    kept: list[Any] = []
    no_room, unusable, room, first = 0, 0, _ROOM, None
    for case in cases:
        try:
            found = read(case)
            needed = size(found)
        except LeftOut as reason:
            unusable, first = unusable + 1, first or reason
            continue
        if needed > room or len(kept) == TESTS_MAX:
            no_room += 1
        else:
            kept.append(found)
            room -= needed
    if not kept:
        if first is None and not no_room:
            raise LeftOut("no tests")
        raise first or LeftOut("every test is larger than a row of a task file", f"{no_room} tests")
    return kept, no_room, unusable


def _size(value: Any) -> int:
    """Bytes within a row, and a comma."""
    try:
        return len(json.dumps(value, ensure_ascii=False).encode()) + 2
    except (TypeError, ValueError):  # what JSON has no word for, or half of a surrogate pair
        raise LeftOut("a test that JSON cannot hold", value) from None


def _answer(found: dict[str, Any]) -> str:
    answer = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    try:
        if cases_of(answer):
            return answer
    except (Malformed, RecursionError) as error:
        raise LeftOut("tests that cannot be read", str(error)) from None
    raise LeftOut("no tests", answer)
