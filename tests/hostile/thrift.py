"""Thrift's compact protocol, just enough to take Parquet metadata apart, change it and put it together again.

A struct is a list of fields [id, type, value]; a list value is [element type, elements]. Nothing is checked: what comes out
may be as wrong as a mutation wants it. Source: the Apache Thrift compact protocol specification.
"""

from __future__ import annotations

from typing import Any

TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
INTEGERS = (I16, I32, I64)

Struct = list[list[Any]]


def decode(data: bytes, at: int = 0) -> tuple[Struct, int]:
    """The struct that begins at `at`, and where it ends. Of our own files only."""
    fields: Struct = []
    last = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        if head >> 4:
            last += head >> 4
        else:
            last, at = _signed(data, at)
        value, at = _value(data, at, head & 15)
        fields.append([last, head & 15, value])


def encode(fields: Struct) -> bytes:
    out, last = bytearray(), 0
    for number, kind, value in fields:
        if 0 < number - last < 16:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            out += _zigzag(number)
        last = number
        out += _bytes(kind, value)
    return bytes(out) + b"\0"


def field(fields: Struct, number: int) -> list[Any]:
    return next(found for found in fields if found[0] == number)


def put(fields: Struct, path: tuple[int, ...], value: Any) -> None:
    """Sets the value at a path of field ids."""
    for number in path[:-1]:
        fields = field(fields, number)[2]
    field(fields, path[-1])[2] = value


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (TRUE, FALSE):
        return kind == TRUE, at
    if kind == I8:
        return data[at], at + 1
    if kind in INTEGERS:
        return _signed(data, at)
    if kind == DOUBLE:
        return data[at : at + 8], at + 8
    if kind == BINARY:
        size, at = _unsigned(data, at)
        return data[at : at + size], at + size
    if kind in (LIST, SET):
        count, element = data[at] >> 4, data[at] & 15
        at += 1
        if count == 15:
            count, at = _unsigned(data, at)
        elements = []
        for _ in range(count):
            if element in (TRUE, FALSE):
                elements.append(data[at])
                at += 1
            else:
                value, at = _value(data, at, element)
                elements.append(value)
        return [element, elements], at
    if kind == STRUCT:
        return decode(data, at)
    raise ValueError(f"Thrift type {kind} has no place in a Parquet file")


def _bytes(kind: int, value: Any) -> bytes:
    if kind in (TRUE, FALSE):
        return b""
    if kind == I8:
        return bytes([value & 255])
    if kind in INTEGERS:
        return _zigzag(value)
    if kind == DOUBLE:
        return bytes(value)
    if kind == BINARY:
        return _varint(len(value)) + value
    if kind in (LIST, SET):
        element, elements = value
        count = len(elements)
        head = bytes([count << 4 | element]) if count < 15 else bytes([0xF0 | element]) + _varint(count)
        if element in (TRUE, FALSE):
            return head + bytes(elements)
        return head + b"".join(_bytes(element, one) for one in elements)
    return encode(value)


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = _unsigned(data, at)
    return value >> 1 ^ -(value & 1), at


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _zigzag(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)
