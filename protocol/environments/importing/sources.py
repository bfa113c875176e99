"""Rows of the files that data sets come in: Parquet, JSONL, JSON (an array of objects) and CSV, told apart by their suffix.

One row, or a few of Parquet, is in memory at a time. A line that is no JSON object is a `LeftOut` among the rows; a file that is not
what its suffix says is a ConfigError, for then nothing of it can be trusted to be whole.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from protocol import canonical
from protocol.environments.importing.task import LeftOut
from protocol.errors import ConfigError, Malformed

ROW_BYTES_MAX = 64 << 20
"""A line of JSONL, or a field of CSV. LiveCodeBench has the longest: tests packed into a text of megabytes."""
ARRAY_BYTES_MAX = 128 << 20
"""A JSON file is read whole; DeepScaleR's has 21 MB."""
_BATCH_BYTES, _BATCH_ROWS = 8 << 20, 1024

Row = dict[str, Any]


def rows(source: Path, wanted: set[str] | None = None) -> Iterator[Row | LeftOut]:
    """Rows in the file's order, of Parquet only these columns. Raises ConfigError for a file that cannot be read."""
    reader = _READERS.get(source.suffix)
    if reader is None:
        raise ConfigError(
            f"{source} is of no kind that can be imported", hint=f"name it by what it is: {', '.join(_READERS)}"
        )
    try:
        yield from reader(source, wanted)
    except FileNotFoundError:
        raise ConfigError(f"there is no file {source}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {str(error)[:200]}") from error


def columns(source: Path) -> list[str]:
    """Names in the first row; none of an empty file. Raises ConfigError as `rows`, and where no row can be read."""
    if source.suffix == ".parquet" and source.is_file():
        return list(_opened(source).schema_arrow.names)
    first: LeftOut | None = None
    for row in rows(source):
        if not isinstance(row, LeftOut):
            return list(row)
        first = first or row
    if first is not None:
        raise ConfigError(f"no row of {source} can be read; the first: {first.reason}, as {first.shown}")
    return []


def items(text: str) -> Iterator[Any]:
    """Items of a JSON array, decoded one at a time. Raises ValueError for what is none, or nested too deep."""
    try:
        canonical.shallow(text.encode("utf-8", "replace"), "the array")
    except Malformed as error:
        raise ValueError(str(error)) from error
    decode = json.JSONDecoder().raw_decode
    at = _past_space(text, 0)
    if text[at : at + 1] != "[":
        raise ValueError("no JSON array")
    at = _past_space(text, at + 1)
    mark = "]" if text[at : at + 1] == "]" else ","
    at += mark == "]"
    while mark == ",":
        item, at = decode(text, at)
        yield item
        at = _past_space(text, at)
        mark = text[at : at + 1]
        at = _past_space(text, at + 1)
    if mark != "]" or text[at:].strip():
        raise ValueError("no JSON array")


def _past_space(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\n", "\r", "\t"):
        at += 1
    return at


def _jsonl(source: Path, _: set[str] | None) -> Iterator[Row | LeftOut]:
    with source.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        for line in iter(lambda: file.readline(ROW_BYTES_MAX + 1), b""):
            if len(line) > ROW_BYTES_MAX:
                yield LeftOut(f"a line of more than {ROW_BYTES_MAX >> 20} MiB", line[:200].decode(errors="replace"))
                rest = line
                while rest and not rest.endswith(b"\n"):
                    rest = file.readline(ROW_BYTES_MAX)
            elif line.strip():
                yield _object(line)


def _object(line: bytes) -> Row | LeftOut:
    try:
        found = canonical.parse(line, "a row")
    except Malformed:
        why = "no JSON" if _is_text(line) else "no JSON, which is in UTF-8"
        return LeftOut(why, line[:400].decode(errors="replace").strip())
    return found if isinstance(found, dict) else LeftOut("no JSON object", found)


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _json(source: Path, _: set[str] | None) -> Iterator[Row | LeftOut]:
    if source.stat().st_size > ARRAY_BYTES_MAX:
        raise ConfigError(f"{source} has more than {ARRAY_BYTES_MAX >> 20} MiB", hint="make it JSONL: an object a line")
    try:
        for item in items(source.read_text(encoding="utf-8-sig")):
            yield item if isinstance(item, dict) else LeftOut("no JSON object", item)
    except ValueError as error:
        raise ConfigError(f"{source} is no JSON array of objects: {str(error)[:100]}") from error


def _csv(source: Path, _: set[str] | None) -> Iterator[Row | LeftOut]:
    csv.field_size_limit(ROW_BYTES_MAX)
    try:
        with source.open(encoding="utf-8-sig", newline="") as file:
            for row in csv.DictReader(file):
                if None in row or None in row.values():
                    yield LeftOut("another number of fields than the first line", next(iter(row.values()), ""))
                else:
                    yield dict(row)
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{source} is no CSV in UTF-8: {str(error)[:100]}") from error


def _parquet(source: Path, wanted: set[str] | None) -> Iterator[Row | LeftOut]:
    import pyarrow as pa

    file = _opened(source)
    names = [name for name in file.schema_arrow.names if wanted is None or name in wanted]
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    # Rows differ in size, but those of a data set by thousands of times only between its kinds: a batch by the largest group's mean.
    mean = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=1)
    size = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, mean)))
    try:
        batches = file.iter_batches(batch_size=size, columns=names, use_threads=False)
        yield from chain.from_iterable(batch.to_pylist() for batch in batches)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"cannot read {source}: {str(error)[:200]}") from error


def _opened(source: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20)
    except (pa.ArrowException, ValueError) as error:
        raise ConfigError(f"{source} is no Parquet: {str(error)[:200]}") from error


_READERS: dict[str, Callable[[Path, set[str] | None], Iterator[Row | LeftOut]]] = {
    ".parquet": _parquet, ".jsonl": _jsonl, ".json": _json, ".csv": _csv,
}  # fmt: skip
