"""Canonical JSON: what is hashed has one form, and nothing else is read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from protocol import canonical
from protocol.errors import Malformed, Oversized


@pytest.mark.parametrize("value", [0.5, {"a": [1.0]}, [float("nan")]])
def test_floats_are_never_hashed(value: object) -> None:
    with pytest.raises(ValueError, match="floats"):
        canonical.encode(value)


@pytest.mark.parametrize(
    "data",
    [b'{"a":1.0}', b'{"a":1e3}', b'{"a":NaN}', b'{"a":1,"a":2}', b'{"b":1,"a":2}', b'{"a": 1}', b"{", b"", b"\xff", b"[" * 5000],
    ids=["decimal", "exponent", "nan", "twice", "unsorted", "space", "open", "empty", "bytes", "deep"],
)  # fmt: skip
def test_only_the_canonical_form_is_read(data: bytes) -> None:
    with pytest.raises(Malformed):
        canonical.decode(data, cap=10_000, what="x")


def test_size_is_capped_before_parsing() -> None:
    with pytest.raises(Oversized):
        canonical.decode(b"[" * 11, cap=10, what="x")


def test_what_is_written_is_read_back() -> None:
    value = {"b": [1, -5, 2**53 - 1], "a": {"x": None, "y": "é"}}
    assert canonical.decode(canonical.encode(value), cap=1000, what="x") == value


@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000, b'{"a":' * 50_000, b'["]]]]",' * 90_000, b'["\\\\",' * 90_000, b'["\\"]]",' * 90_000],
    ids=["lists", "objects", "closing brackets in strings", "escaped backslashes", "escaped quotes"],
)
@pytest.mark.usefixtures("deep")
def test_deep_nesting_is_refused_without_parsing(data: bytes) -> None:
    """json's C scanner would overflow the stack here."""
    for read in (lambda: canonical.decode(data, cap=len(data), what="x"), lambda: canonical.parse(data, "x")):
        with pytest.raises(Malformed, match="nested deeper"):
            read()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-8-sig"])
@pytest.mark.parametrize("text", ['{"a":1}', '["\u2200","x"]'], ids=["object", "byte 0x22 in a string"])
def test_other_encodings_than_utf_8_are_refused(encoding: str, text: str) -> None:
    data = text.encode(encoding)
    for read in (lambda: canonical.decode(data, cap=len(data), what="x"), lambda: canonical.parse(data, "x")):
        with pytest.raises(Malformed):
            read()


def test_deep_nesting_in_another_encoding_does_not_end_the_process() -> None:
    """In UTF-16 the byte 0x22 of U+2200 looked like the quote that begins a string, and all brackets as if within it."""
    program = (
        "import py_ecc\n"
        "from protocol import canonical\n"
        "from protocol.errors import Malformed\n"
        "data = ('[\"\\u2200\",' + '[' * 90_000).encode('utf-16-le')\n"
        "for read in (lambda: canonical.decode(data, cap=len(data), what='x'), lambda: canonical.parse(data, 'x')):\n"
        "    try:\n"
        "        read()\n"
        "    except Malformed:\n"
        "        print('refused')\n"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (child.returncode, child.stdout) == (0, "refused\n" * 2), child.stderr


def test_brackets_in_strings_are_not_nesting() -> None:
    value = {"a": "[" * 500 + '"' + "\\" * 3 + "{" * 500, "b": [[["x"]]]}
    assert canonical.decode(canonical.encode(value), cap=10_000, what="x") == value
