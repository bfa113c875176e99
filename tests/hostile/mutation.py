"""Hostile rollout files: an honest one written in many ways, then broken in its bytes or in its structure.

Every case follows from (honest file, seed) alone. `Bases` are what an honest table may look like in Parquet and what it must
not: other codecs, encodings, types, columns, nulls, headers. `mutate` breaks the bytes of one of them: bits, lengths, splices,
and, with the metadata taken apart, any field of the footer or of a page's header.
"""

from __future__ import annotations

import copy
import io
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from protocol.rollout import METADATA_KEY
from tests.hostile import thrift

MAGIC = b"PAR1"
_NUMBERS = [
    0,
    1,
    2,
    7,
    8,
    31,
    255,
    2**15,
    2**16,
    2**31 - 1,
    2**31,
    2**32,
    2**40,
    2**62,
    2**63 - 1,
    -1,
    -2,
    -(2**31),
    -(2**63),
]


@dataclass(frozen=True)
class Case:
    name: str
    data: bytes


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(
        table, sink, **{"compression": "zstd", "use_dictionary": False, "write_statistics": False, **options}
    )
    return sink.getvalue()


# ---- structure: what pyarrow itself can write --------------------------------------------------------------------------


def equal_forms(table: pa.Table) -> Iterator[Case]:
    """Other bytes for the very same contents."""
    for codec in ("none", "snappy", "gzip", "brotli", "lz4", "zstd"):
        for page in ("1.0", "2.0"):
            for dictionary in (False, True):
                options = {"compression": codec, "data_page_version": page, "use_dictionary": dictionary}
                yield Case(f"{codec}, pages {page}, dictionary {dictionary}", parquet(table, **options))
    yield Case("row groups of one", parquet(table, row_group_size=1))
    yield Case("statistics", parquet(table, write_statistics=True, write_page_index=True))
    yield Case("small pages", parquet(table, data_page_size=16))
    yield Case("no Arrow schema", parquet(table, store_schema=False))
    yield Case("checksums", parquet(table, write_page_checksum=True))
    yield Case("old format", parquet(table, version="1.0"))
    split = {name: "BYTE_STREAM_SPLIT" for name in ("task_reward", "length_penalty", "reward", "logprobs.list.element")}
    deltas = {name: "DELTA_BINARY_PACKED" for name in ("group", "sample", "problem", "prompt.list.element")}
    yield Case("delta encodings", parquet(table, column_encoding={**split, **deltas}))


def other_forms(table: pa.Table) -> Iterator[Case]:
    """Tables that are no rollout file."""
    rows = len(table)
    for i, name in enumerate(table.column_names):
        for what, column in _columns(table.column(name), rows):
            yield Case(f"{name}: {what}", parquet(table.set_column(i, name, column)))
        yield Case(f"{name} is missing", parquet(table.remove_column(i)))
        yield Case(f"{name} twice", parquet(table.append_column(name, table.column(name))))
    yield Case("100 columns more", parquet(_wider(table, 100)))
    yield Case("no rows", parquet(table.slice(0, 0)))
    yield Case("a row less", parquet(table.slice(1)))
    yield Case("another order", parquet(table.select(table.column_names[::-1])))
    header = (table.schema.metadata or {})[METADATA_KEY]
    for what, text in _headers(header):
        yield Case(f"header: {what}", parquet(table.replace_schema_metadata({METADATA_KEY: text})))
    yield Case("no header", parquet(table.replace_schema_metadata({})))
    yield Case("1000 headers", parquet(table.replace_schema_metadata({f"k{i}": "v" for i in range(1000)})))


def _columns(column: Any, rows: int) -> Iterator[tuple[str, Any]]:
    values = column.to_pylist()
    yield "nulls", pa.array([None, *values[1:]], column.type)
    yield "all null", pa.nulls(rows)
    yield "null structs", pa.array([None] * rows, pa.struct([("a", pa.int32())]))
    yield "structs", pa.array([{"a": 1, "b": [{"c": 1.0}]}] * rows)
    yield "maps", pa.array([[("k", 1)]] * rows, pa.map_(pa.string(), pa.int32()))
    yield "deep lists", pa.array([[[[[[1]]]]]] * rows)
    yield "text", pa.array(["\N{SNOWMAN}"] * rows)
    yield "booleans", pa.array([True] * rows)
    yield "doubles", pa.array([1e300] * rows)
    yield "decimals", pa.array([1] * rows).cast(pa.decimal128(38, 2))
    yield "fixed binary", pa.array([b"x" * 16] * rows, pa.binary(16))
    yield "empty lists", pa.array([[]] * rows, pa.list_(pa.int32()))
    yield "fixed lists", pa.array([[1, 2]] * rows, pa.list_(pa.int32(), 2))
    yield "large lists", pa.array([[1, 2]] * rows, pa.large_list(pa.int64()))
    yield "lists of text", pa.array([["a", "\x00"]] * rows)
    yield "lists of NaN", pa.array([[float("nan")]] * rows)
    yield "dictionaries", pa.array(["a"] * rows).dictionary_encode()
    yield "times", pa.array([1] * rows).cast(pa.timestamp("ns"))


def _headers(header: bytes) -> Iterator[tuple[str, bytes]]:
    yield "deep", b"[" * 2000 + b"]" * 2000
    yield "deeper", b'{"a":' * 700 + b"1" + b"}" * 700
    yield "no UTF-8", header[:-2] + b"\xff\xfe}"
    yield "lone surrogate", header.replace(b"0x", b"\\ud800", 1)
    yield "UTF-16", header.decode().encode("utf-16")
    yield "a float", header.replace(b'"run":1', b'"run":1.0')
    yield "a long number", header.replace(b'"run":1', b'"run":' + b"9" * 4000)
    yield "a huge number", header.replace(b'"run":1', b'"run":' + b"9" * 3000)
    yield "a boolean", header.replace(b'"run":1', b'"run":true')
    yield "a key twice", header.replace(b'"run":1', b'"run":1,"run":1')
    yield "a space", header.replace(b",", b", ", 1)
    yield "empty", b""
    yield "null", b"null"
    yield "zero bytes", header + bytes(10)


def _wider(table: pa.Table, columns: int) -> pa.Table:
    for i in range(columns):
        table = table.append_column(f"c{i}", pa.array([i] * len(table)))
    return table


# ---- bytes and metadata -------------------------------------------------------------------------------------------------


class Mutator:
    """Cases of one seed over the forms of one honest table."""

    def __init__(self, table: pa.Table, seed: int) -> None:
        self._rng = random.Random(seed)
        self.equal, self.other = list(equal_forms(table)), list(other_forms(table))
        self._metadata: dict[str, tuple[thrift.Struct, int]] = {}

    def cases(self, count: int) -> Iterator[Case]:
        for _ in range(count):
            yield self._case()

    def _case(self) -> Case:
        rng = self._rng
        base = rng.choice(self.equal if rng.random() < 0.8 else self.other)
        change = rng.choice([*_RAW, self._footer, self._footer, self._footer, self._page, self._page, self._page])
        return Case(f"{base.name}; {change.__name__.strip('_')}", change(rng, base.data))

    def _footer(self, rng: random.Random, data: bytes) -> bytes:
        """One to three fields of the footer are others."""
        fields, body = footer_of(data)
        for _ in range(rng.randint(1, 3)):
            _disturb(rng, fields)
        return with_footer(body, fields)

    def _page(self, rng: random.Random, data: bytes) -> bytes:
        """A field of a page's header is another, at its old place or with what follows moved; or the page's body is."""
        pages = pages_of(data)
        if not pages:
            return data[:-1]
        at = rng.choice(pages)
        header, end = thrift.decode(data, at)
        if rng.random() < 0.25:
            body = data[end : end + thrift.field(header, 3)[2]]
            return (
                data[:end] + rng.choice(_RAW)(rng, body).ljust(len(body), b"\0")[: len(body)] + data[end + len(body) :]
            )
        _disturb(rng, header)
        changed = thrift.encode(header)
        match rng.randrange(3):
            case 0:  # the page keeps its place: header bytes run into, or away from, the body's
                return data[:at] + changed + data[at + len(changed) :]
            case 1:
                return data[:at] + changed + data[end:]
        return moved(data, at, data[at:end], changed)


def moved(data: bytes, at: int, old: bytes, new: bytes) -> bytes:
    """`new` in the place of `old`, with a footer that knows where everything is now."""
    fields, body = footer_of(data)
    by = len(new) - len(old)
    for _, meta in chunks_of(fields):
        for value in meta:
            if value[0] in (9, 11) and value[2] > at:
                value[2] += by
            if value[0] == 7 and thrift.field(meta, 9)[2] <= at < thrift.field(meta, 9)[2] + value[2]:
                value[2] += by
    return with_footer(body[:at] + new + body[at + len(old) :], fields)


def chunks_of(fields: thrift.Struct) -> Iterator[tuple[str, thrift.Struct]]:
    """Each column chunk's outermost name and its metadata."""
    for group in thrift.field(fields, 4)[2][1]:
        for chunk in thrift.field(group, 1)[2][1]:
            meta = thrift.field(chunk, 3)[2]
            yield thrift.field(meta, 3)[2][1][0].decode(), meta


def with_footer(body: bytes, fields: thrift.Struct) -> bytes:
    footer = thrift.encode(fields)
    return body + footer + struct.pack("<I", len(footer)) + MAGIC


def footer_of(data: bytes) -> tuple[thrift.Struct, bytes]:
    """The footer's fields, and all bytes before it."""
    (size,) = struct.unpack("<I", data[-8:-4])
    begin = len(data) - 8 - size
    return thrift.decode(data, begin)[0], data[:begin]


def pages_of(data: bytes) -> list[int]:
    """Where the first page of each column chunk begins, dictionary pages included, and the data page after a dictionary."""
    starts = set()
    for _, meta in chunks_of(footer_of(data)[0]):
        starts |= {value for number, _, value in meta if number in (9, 11)}
    return sorted(start for start in starts if 4 <= start < len(data))


def _disturb(rng: random.Random, fields: thrift.Struct) -> None:
    """Changes one value somewhere below."""
    owner, index = rng.choice(list(_places(fields)))
    if isinstance(owner, tuple):  # an element of a list
        kind, elements = owner
        one = elements[index]
        match rng.randrange(4):
            case 0:
                del elements[index]
            case 1:
                elements.insert(index, copy.deepcopy(one))
            case 2:
                elements.extend(copy.deepcopy(one) for _ in range(rng.choice([1, 20, 300])))
            case _:
                elements[index] = _another(rng, kind, one)
        return
    match rng.randrange(6):
        case 0:
            del owner[index]
        case 1:
            owner.insert(index, copy.deepcopy(owner[index]))
        case 2:
            owner[index][0] = rng.choice([1, 2, 3, 4, 5, 9, 14, 100, 32767])
        case _:
            owner[index][2] = _another(rng, owner[index][1], owner[index][2])


def _places(fields: thrift.Struct) -> Iterator[tuple[Any, int]]:
    for i, (_, kind, value) in enumerate(fields):
        yield fields, i
        if kind == thrift.STRUCT:
            yield from _places(value)
        elif kind == thrift.LIST:
            for j, one in enumerate(value[1]):
                yield (value[0], value[1]), j
                if value[0] == thrift.STRUCT:
                    yield from _places(one)


def _another(rng: random.Random, kind: int, value: Any) -> Any:
    if kind in thrift.INTEGERS:
        return rng.choice(
            [*_NUMBERS, value + 1, value - 1, value * 2, value ^ 1 << rng.randrange(31), rng.randrange(12)]
        )
    if kind == thrift.I8:
        return rng.randrange(256)
    if kind == thrift.BINARY:
        return rng.choice(
            [b"", b"\xff\xfe", b"\0" * 8, value * 2, value[::-1], rng.randbytes(40), b"a" * 70_000, b"group"]
        )
    if kind == thrift.DOUBLE:
        return rng.randbytes(8)
    if kind == thrift.LIST:
        return (
            [rng.choice([value[0], thrift.I32]), value[1]] if value[0] in thrift.INTEGERS else [value[0], value[1] * 2]
        )
    return value


def bits(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 8) if out else 0):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def rubbish(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    size = min(rng.choice([1, 4, 64, 512]), len(data) - at)
    return data[:at] + rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size)]) + data[at + size :]


def truncated(rng: random.Random, data: bytes) -> bytes:
    kept = rng.randrange(len(data) + 1)
    return data[:kept] if rng.random() < 0.5 else data[:kept] + data[-8:]


def spliced(rng: random.Random, data: bytes) -> bytes:
    a, b = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    at = rng.randrange(len(data) + 1)
    piece = data[a:b]
    return rng.choice([data[:at] + piece + data[at:], data[:a] + data[b:], data[:at] + piece + data[at + len(piece) :]])


def footer_length(rng: random.Random, data: bytes) -> bytes:
    (size,) = struct.unpack("<I", data[-8:-4]) if len(data) >= 8 else (0,)
    size = rng.choice([0, 1, size - 1, size + 1, size // 2, size * 2, len(data), len(data) - 8, 2**31 - 1, 2**32 - 1])
    return data[:-8] + struct.pack("<I", size % 2**32) + rng.choice([MAGIC, MAGIC, b"PARE", b"\0\0\0\0"])


_RAW: list[Callable[[random.Random, bytes], bytes]] = [bits, rubbish, truncated, spliced, footer_length]
