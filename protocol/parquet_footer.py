"""What a Parquet file says of itself, checked before any decoder believes it.

A decoder allocates what a footer or a page's header asks for, and some of pyarrow's getters end the process on a footer that
contradicts itself. So footer and page headers are walked here first, strictly: Thrift's compact protocol with ascending
fields, no dictionaries, PLAIN values only (then what a page expands to is what it declares), few groups, columns and pages,
every byte range inside the file, and no more data in sum than the caller allows.

Covers: sizes. Does not cover: what the pages hold, and what the columns are called; pyarrow reads those, in the same child.
Source: parquet.thrift of the Apache Parquet format, whose field numbers stand in the comments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from protocol.errors import Malformed

FOOTER_BYTES_MAX = 1 << 20
ROW_GROUPS_MAX = 64
COLUMNS_MAX = 64
PAGES_MAX = 1 << 13

_MAGIC = b"PAR1"
_SCHEMA_MAX = 4 * COLUMNS_MAX  # a list column is three elements, and there is the root
_HEADER_BYTES_MAX = 1 << 12  # of a page; ours take thirty
_DEPTH_MAX = 8
_PLAIN = 0
_DATA, _DATA_V2 = 0, 3
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, 6: 4, 7: 1}  # bytes that a value of each physical type takes at least

Struct = dict[int, Any]


def require_bounded(path: Path, *, rows: int, most: int) -> None:
    """Raises Malformed unless the file declares exactly `rows` rows and at most `most` bytes of decoded data."""
    with path.open("rb") as file:
        end, footer = _footer(file)
        if _integer(footer, 3) != rows:  # num_rows
            raise Malformed(f"{footer[3]} rows instead of {rows}")
        groups, elements = _structs(footer, 4), _structs(footer, 2)  # row_groups, schema
        if len(groups) > ROW_GROUPS_MAX or len(elements) > _SCHEMA_MAX:
            raise Malformed("too many row groups or columns")
        leaves = sum(1 for element in elements if 5 not in element)  # num_children
        budget, pages, found = most, PAGES_MAX, 0
        for group in groups:
            columns = _structs(group, 1)  # columns
            if len(columns) != leaves or leaves > COLUMNS_MAX:
                raise Malformed("a row group has another number of columns than the schema")
            found += _integer(group, 3)  # num_rows
            for column in columns:
                data, count = _chunk(file, column, end)
                budget, pages = budget - data, pages - count
                if budget < 0 or pages < 0:
                    raise Malformed("declares more data than a file of its size may hold")
        if found != rows:
            raise Malformed(f"row groups of {found} rows instead of {rows}")


def require_small_groups(path: Path, *, groups: int, most: int) -> list[int]:
    """Rows of each row group. Raises Malformed unless there are at most `groups`, each of at most `most` decoded bytes."""
    found = []
    with path.open("rb") as file:
        end, footer = _footer(file)
        parts, elements = _structs(footer, 4), _structs(footer, 2)  # row_groups, schema
        leaves = sum(1 for element in elements if 5 not in element)  # num_children
        if not 0 < len(parts) <= groups or not 0 < leaves <= COLUMNS_MAX or len(elements) > _SCHEMA_MAX:
            raise Malformed(f"{len(parts)} row groups of {leaves} columns")
        for group in parts:
            columns, rows = _structs(group, 1), _integer(group, 3)  # columns, num_rows
            if len(columns) != leaves:
                raise Malformed("a row group has another number of columns than the schema")
            if not rows or sum(_chunk(file, column, end)[0] for column in columns) > most:
                raise Malformed(f"a row group of {rows} rows decodes to none or more than {most} bytes")
            found.append(rows)
        if sum(found) != _integer(footer, 3):  # num_rows
            raise Malformed(f"row groups of {sum(found)} rows instead of {footer[3]}")
    return found


def _footer(file: BinaryIO) -> tuple[int, Struct]:
    """Where the footer begins, and its fields."""
    size = file.seek(0, 2)
    tail = _at(file, max(size - 8, 0), 8)
    length = int.from_bytes(tail[:4], "little")
    if size < 12 or tail[4:] != _MAGIC or _at(file, 0, 4) != _MAGIC:
        raise Malformed("no Parquet file")
    if length > min(FOOTER_BYTES_MAX, size - 12):
        raise Malformed(f"a footer of {length} bytes")
    begin = size - 8 - length
    return begin, _Reader(_at(file, begin, length)).struct()


def _chunk(file: BinaryIO, column: Struct, end: int) -> tuple[int, int]:
    """Bytes that a column chunk declares to decode to, and its number of pages."""
    meta = column.get(3)  # meta_data
    if not isinstance(meta, dict) or 1 in column:  # file_path
        raise Malformed("a column lies outside the file")
    if 10 in meta or 11 in meta:  # index_page_offset, dictionary_page_offset
        raise Malformed("a column has a dictionary")
    at, length, values = (
        _integer(meta, 9),
        _integer(meta, 7),
        _integer(meta, 5),
    )  # data_page_offset, compressed, num_values
    stop, width = at + length, _WIDTHS.get(_integer(meta, 1), 1)  # type
    if at < len(_MAGIC) or stop > end:
        raise Malformed("a column lies outside the file")
    data = counted = pages = 0
    while at < stop:
        window = _at(file, at, min(_HEADER_BYTES_MAX, stop - at))
        reader = _Reader(window)
        page = reader.struct()
        size, number = _page(page)
        data, counted, pages = data + size, counted + number, pages + 1
        at += reader.at + _integer(page, 3)  # compressed_page_size
        if at > stop or pages > PAGES_MAX:
            raise Malformed("pages do not fit their column")
    if counted != values:
        raise Malformed(f"pages of {counted} values in a column of {values}")
    return max(data, values * width, _integer(meta, 6)), pages  # total_uncompressed_size


def _page(page: Struct) -> tuple[int, int]:
    """Bytes and values of a data page."""
    kind = _integer(page, 1)  # type
    if kind not in (_DATA, _DATA_V2):
        raise Malformed("a page is no data page")
    inner = page.get(5 if kind == _DATA else 8)  # data_page_header, data_page_header_v2
    if not isinstance(inner, dict) or _integer(inner, 2 if kind == _DATA else 4) != _PLAIN:  # encoding
        raise Malformed("a page is not PLAIN")
    return _integer(page, 2), _integer(inner, 1)  # uncompressed_page_size, num_values


def _at(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


def _integer(fields: Struct, number: int) -> int:
    value = fields.get(number)
    if not isinstance(value, int) or not 0 <= value < 1 << 40:
        raise Malformed(f"field {number} of the Parquet metadata is {str(value)[:40]}")
    return value


def _structs(fields: Struct, number: int) -> list[Struct]:
    value = fields.get(number)
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise Malformed(f"field {number} of the Parquet metadata is no list")
    return value


class _Reader:
    """Thrift's compact protocol, of which every byte is a stranger's."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int = 0) -> Struct:
        """Field ids and values. Numbers are int, strings bytes, lists and structs their like."""
        if depth > _DEPTH_MAX:
            raise Malformed("Parquet metadata are nested too deep")
        fields: Struct = {}
        last = 0
        while head := self._byte():
            number = last + (head >> 4) if head >> 4 else self._signed()
            if number <= last:  # twice, or out of order: another reader might take another one of them
                raise Malformed("fields of the Parquet metadata are out of order")
            fields[number] = self._value(head & 15, depth)
            last = number
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._signed()
            case 7:
                return self._take(8)
            case 8:
                return self._take(self._unsigned())
            case 9 | 10:
                return self._list(depth)
            case 12:
                return self.struct(depth + 1)
        raise Malformed(f"Parquet metadata of type {kind}")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == 15:
            count = self._unsigned()
        if count > len(self._data) - self.at:
            raise Malformed("Parquet metadata end early")
        if kind in (1, 2, 3):
            return list(self._take(count))
        if depth > _DEPTH_MAX:
            raise Malformed("Parquet metadata are nested too deep")
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise Malformed("Parquet metadata end early")
        self.at += 1
        return self._data[self.at - 1]

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self.at:
            raise Malformed("Parquet metadata end early")
        self.at += count
        return self._data[self.at - count : self.at]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise Malformed("a number of the Parquet metadata is too long")

    def _signed(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)
