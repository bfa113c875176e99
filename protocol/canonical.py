"""Canonical JSON (RFC 8785) and its digests: the bytes that are hashed and signed.

A float never enters: decimals travel as strings, so that no two machines can round them apart. Reading is strict: an
object with a key twice, a float, a depth or a size beyond the cap is refused before anything looks at its content.

Depth is checked before parsing, because any package may raise the interpreter's recursion limit (py_ecc sets it to 100,000),
and json's C scanner then overflows the stack on deep input: a few kilobytes would end the process. json must never
see bytes either: it would take UTF-16 or UTF-32 for what they are, in which the quotes that were counted are none. All JSON
of a stranger goes through `parse` or `decode`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import rfc8785

from protocol.errors import Malformed, Oversized

_DEPTH_MAX = 64
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def encode(value: Any) -> bytes:
    """Canonical bytes of `value` (None, bool, int, str, list, dict with str keys).

    Raises ValueError for floats and anything else JSON must not hold here: that is a fault of the caller.
    """
    _refuse_floats(value)
    return rfc8785.dumps(value)


def decode(data: bytes, *, cap: int, what: str) -> Any:
    """Parses canonical JSON of a peer. Raises Oversized over `cap` bytes, Malformed when it is not the canonical form."""
    if len(data) > cap:
        raise Oversized(f"{what} has {len(data)} bytes, more than {cap}")
    text = shallow(data, what)
    try:
        value = json.loads(text, parse_float=_no_float, parse_constant=_no_float, object_pairs_hook=_unique)
        if encode(value) != data:
            raise Malformed(f"{what} is not in canonical form")
    except ValueError as error:
        raise Malformed(f"{what} is not valid JSON: {error}") from error
    return value


def parse(data: bytes, what: str) -> Any:
    """Parses any UTF-8 JSON of a peer, canonical or not. Raises Malformed. The caller has capped its size."""
    text = shallow(data, what)
    try:
        return json.loads(text)
    except ValueError as error:
        raise Malformed(f"{what} is not valid JSON: {error}") from error


def shallow(data: bytes, what: str, *, most: int = _DEPTH_MAX) -> str:
    """The text of UTF-8 bytes. Raises Malformed for others and for nesting of more than `most` levels; linear, without parsing.

    Python's own parser is no bound: packages that came in for the chain raise the limit of recursion, and then it ends the process.
    """
    try:
        text = data.decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        raise Malformed(f"{what} is not UTF-8") from error
    outside_strings = b"".join(data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    depth = 0
    for bracket in outside_strings.translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > most:
            raise Malformed(f"{what} is nested deeper than {most} levels")
    return text


def digest(value: Any) -> bytes:
    """SHA-256 of the canonical bytes, 32 bytes."""
    return hashlib.sha256(encode(value)).digest()


def _refuse_floats(value: Any) -> None:
    if isinstance(value, float):
        raise ValueError("floats are never hashed; write decimals as strings")
    if isinstance(value, dict):
        for item in value.values():
            _refuse_floats(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_floats(item)


def _no_float(text: str) -> Any:
    raise ValueError(f"number {text} is not an integer")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return made
