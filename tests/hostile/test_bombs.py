"""Small files that ask for a lot: refused within a second by a reader that stays alive and small, and the next file is read.

Each is an honest file with one lie in its metadata, or a page that was made to expand.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from swarm.tiny_run import TinyRun

from node.judging.judge import judge
from protocol import parquet_footer
from protocol.errors import Malformed
from protocol.rollout import METADATA_KEY
from protocol.sandbox import Sandbox
from protocol.verdict import Outcome
from tests.hostile import thrift
from tests.hostile.large import memory
from tests.hostile.mutation import chunks_of, footer_of, moved, parquet, with_footer

Bomb = Callable[[pa.Table], bytes]

ROWS, GROUPS, SCHEMA = 3, 4, 2  # fields of FileMetaData
VALUES, UNCOMPRESSED, COMPRESSED, DATA_PAGE, STATISTICS = 5, 6, 7, 9, 16  # of ColumnMetaData
EXPANDED, STORED, HEADER = 2, 3, 5  # of PageHeader


def with_page(
    table: pa.Table, column: str, change: Callable[[thrift.Struct, bytes], tuple[thrift.Struct, bytes]], **options: Any
) -> bytes:
    """An honest file whose first page of a column is another; the footer fits."""
    data = parquet(table, **options)
    meta = next(meta for name, meta in chunks_of(footer_of(data)[0]) if name == column)
    at = thrift.field(meta, DATA_PAGE)[2]
    header, end = thrift.decode(data, at)
    stop = end + thrift.field(header, STORED)[2]
    header, body = change(header, data[end:stop])
    thrift.put(header, (STORED,), len(body))
    return moved(data, at, data[at:stop], thrift.encode(header) + body)


def with_meta(table: pa.Table, column: str, number: int, value: Any, **options: Any) -> bytes:
    """An honest file with one number of a column's metadata changed."""
    fields, body = footer_of(parquet(table, **options))
    thrift.put(next(meta for name, meta in chunks_of(fields) if name == column), (number,), value)
    return with_footer(body, fields)


def a_page_of_two_gigabytes(table: pa.Table) -> bytes:
    def grow(header: thrift.Struct, body: bytes) -> tuple[thrift.Struct, bytes]:
        thrift.put(header, (EXPANDED,), 2**31 - 1)
        return header, body

    return with_page(table, "completion", grow)


def a_page_that_really_expands(table: pa.Table) -> bytes:
    """64 MB of zeros in 64 kB of gzip; the page says so, the column and the footer do not."""

    def grow(header: thrift.Struct, body: bytes) -> tuple[thrift.Struct, bytes]:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        zeros = bytes(1 << 20)
        packed = b"".join([*(packer.compress(zeros) for _ in range(64)), packer.flush()])
        thrift.put(header, (EXPANDED,), 64 << 20)
        return header, packed

    return with_page(table, "completion", grow, compression="gzip")


def a_page_that_expands_to_more_than_it_says(table: pa.Table) -> bytes:
    def grow(header: thrift.Struct, body: bytes) -> tuple[thrift.Struct, bytes]:
        return header, pa.Codec("zstd").compress(bytes(64 << 20), asbytes=True)

    return with_page(table, "completion", grow)


def a_run_of_two_billion_levels(table: pa.Table) -> bytes:
    """A run-length run: ten bytes that say "the same, 2³¹ times"."""

    def grow(header: thrift.Struct, body: bytes) -> tuple[thrift.Struct, bytes]:
        run = thrift._varint((2**31 - 1) << 1) + b"\1"
        levels = len(run).to_bytes(4, "little") + run
        thrift.put(header, (EXPANDED,), 2 * len(levels))
        thrift.put(header, (HEADER, 1), 2**31 - 1)
        return header, levels * 2

    fields, body = footer_of(with_page(table, "completion", grow, compression="none"))
    thrift.put(next(meta for name, meta in chunks_of(fields) if name == "completion"), (VALUES,), 2**31 - 1)
    return with_footer(body, fields)


def a_dictionary_of_one_long_value(table: pa.Table) -> bytes:
    """A proof of 200 kB, once in the file, 160 times in its lists: 32 MB."""
    column = pa.array([[b"x" * 200_000] * 20] * len(table), pa.list_(pa.binary()))
    return parquet(table.set_column(7, "proofs", column), use_dictionary=True)


def prefixes_that_add_up(table: pa.Table) -> bytes:
    """DELTA_BYTE_ARRAY: each value is the one before and a letter, with nothing of it in the file."""
    column = pa.array([[b"y" * 100_000] * 20] * len(table), pa.list_(pa.binary()))
    wide = table.set_column(7, "proofs", column)
    return parquet(wide, column_encoding={"proofs.list.element": "DELTA_BYTE_ARRAY"})


def lists_that_are_too_long(table: pa.Table) -> bytes:
    column = pa.array([[0] * 120_000] * len(table), pa.list_(pa.int32()))
    return parquet(table.set_column(4, "prompt", column))


def a_million_proofs(table: pa.Table) -> bytes:
    """Empty ones: nothing in the file, fifty bytes each as objects."""
    column = pa.array([[b""] * 60_000] * len(table), pa.list_(pa.binary()))
    return parquet(table.set_column(7, "proofs", column))


def a_trillion_rows(table: pa.Table) -> bytes:
    fields, body = footer_of(parquet(table))
    thrift.put(fields, (ROWS,), 2**40)
    return with_footer(body, fields)


def many_row_groups(table: pa.Table) -> bytes:
    """One group of all rows, and thousands of none."""
    fields, body = footer_of(parquet(table))
    groups = thrift.field(fields, GROUPS)[2][1]
    empty = [[number, kind, 0 if number == 3 else value] for number, kind, value in groups[0]]
    groups.extend([empty] * 700)
    return with_footer(body, fields)


def many_columns(table: pa.Table) -> bytes:
    return parquet(table.append_column("c", pa.nulls(len(table))).select([*table.column_names, *["c"] * 3000]))


def a_deep_column(table: pa.Table) -> bytes:
    kind = pa.int32()
    for _ in range(100):
        kind = pa.struct([("a", kind)])
    return parquet(table.append_column("deep", pa.nulls(len(table), kind)))


def many_empty_pages(table: pa.Table) -> bytes:
    data = parquet(table)
    at = next(thrift.field(meta, DATA_PAGE)[2] for name, meta in chunks_of(footer_of(data)[0]) if name == "prompt")
    page, _ = thrift.decode(data, at)
    for path in ((EXPANDED,), (STORED,), (HEADER, 1)):
        thrift.put(page, path, 0)
    return moved(data, at, b"", thrift.encode(page) * 30_000)


def a_long_header(table: pa.Table) -> bytes:
    return parquet(table.replace_schema_metadata({METADATA_KEY: b"[" * 100_000, b"more": b"x" * 100_000}))


def a_level_histogram_that_contradicts_the_schema(table: pa.Table) -> bytes:
    """One of pyarrow's getters ends the process over it."""
    fields, body = footer_of(parquet(table, write_statistics=True))
    for name, meta in chunks_of(fields):
        if name == "completion":
            for entry in meta:
                if entry[0] == STATISTICS:  # size_statistics
                    for field in entry[2]:
                        if field[1] == thrift.LIST:
                            field[2][1].append(7)
    return with_footer(body, fields)


def a_group_with_a_column_less(table: pa.Table) -> bytes:
    fields, body = footer_of(parquet(table))
    del thrift.field(thrift.field(fields, GROUPS)[2][1][0], 1)[2][1][-1]
    return with_footer(body, fields)


def a_column_with_fewer_rows(table: pa.Table) -> bytes:
    """The footer promises eight rows, the only group none."""
    fields, body = footer_of(parquet(table))
    thrift.put(thrift.field(fields, GROUPS)[2][1][0], (3,), 0)
    return with_footer(body, fields)


def a_column_in_another_file(table: pa.Table) -> bytes:
    fields, body = footer_of(parquet(table))
    chunk = thrift.field(thrift.field(fields, GROUPS)[2][1][0], 1)[2][1][0]
    chunk.insert(0, [1, thrift.BINARY, b"/etc/passwd"])
    return with_footer(body, fields)


def columns_at_one_place(table: pa.Table) -> bytes:
    """Sixty row groups that all point at the one page of each column."""
    fields, body = footer_of(parquet(table.slice(0, 1)))
    groups = thrift.field(fields, GROUPS)[2][1]
    groups.extend(groups * 63)
    thrift.put(fields, (ROWS,), 64)
    return with_footer(body, fields)


BOMBS: list[Bomb] = [
    a_page_of_two_gigabytes,
    a_page_that_really_expands,
    a_page_that_expands_to_more_than_it_says,
    a_run_of_two_billion_levels,
    a_dictionary_of_one_long_value,
    prefixes_that_add_up,
    lists_that_are_too_long,
    a_million_proofs,
    a_trillion_rows,
    many_row_groups,
    many_columns,
    a_deep_column,
    many_empty_pages,
    a_long_header,
    a_level_histogram_that_contradicts_the_schema,
    a_group_with_a_column_less,
    a_column_with_fewer_rows,
    a_column_in_another_file,
    columns_at_one_place,
]


@pytest.fixture(scope="module")
def honest(run: TinyRun) -> pa.Table:
    return pq.read_table(run.honest().path)


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.__name__)
def test_a_bomb_is_refused_by_a_reader_that_survives(
    run: TinyRun, honest: pa.Table, tmp_path: Path, bomb: Bomb
) -> None:
    path = tmp_path / "bomb.parquet"
    path.write_bytes(bomb(honest))
    sandbox = run.context.sandbox
    sandbox.warm_up()
    reader = sandbox._process
    assert reader
    assert path.stat().st_size <= run.spec.file_bytes_max
    spent = cpu_seconds(reader.pid)
    with pytest.raises(Malformed):
        sandbox.read(path)
    assert sandbox._process is reader
    assert cpu_seconds(reader.pid) - spent < 2
    assert memory(reader.pid)["VmHWM"] < 320 << 20
    assert sandbox.read(run.honest().path).problem is None


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_bomb_that_nobody_foresaw_costs_two_readers_and_nothing_else(
    run: TinyRun, honest: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the checks of the metadata switched off, what is left is the reader's limit of memory: it holds."""
    made = run.honest()  # before: what reads for it must have its checks
    run.context.sandbox.warm_up()
    path = tmp_path / "bomb.parquet"
    path.write_bytes(a_page_of_two_gigabytes(honest))
    (tmp_path / "sitecustomize.py").write_text(
        "import protocol.parquet_footer as footer\nfooter.require_bounded = lambda *_, **__: None\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}:{os.getcwd()}")
    before = memory()["VmRSS"]
    with Sandbox(run.spec, memory=2 << 30) as sandbox:
        with pytest.raises(Malformed, match="gave up on the file twice"):
            sandbox.read(path)
        assert sandbox.read(made.path).problem is None
    assert memory()["VmRSS"] - before < 64 << 20


def test_a_committed_file_of_rubbish_earns_nothing(run: TinyRun, tmp_path: Path) -> None:
    """The right hash and wrong everything else: soft, by a rule that needs no model."""
    made = run.honest()
    for data in (b"", b"PAR1", random.Random(0).randbytes(100_000), made.path.read_bytes()[:-1]):
        path = tmp_path / "rubbish.parquet"
        path.write_bytes(data)
        root = hashlib.sha256(data).digest()
        finding = judge(run.candidate(made, path, ref=replace(made.ref, root=root)))
        assert finding is not None
        assert (finding.rule, finding.outcome) == ("schema", Outcome.SOFT)
    assert run.context.sandbox.read(made.path).problem is None


def test_the_footer_check_ends_early_on_any_bytes() -> None:
    """Thrift that nests, repeats or counts without end is refused before it costs anything."""
    hostile: Iterator[bytes] = iter(
        [
            b"\x1c" * 10_000,
            b"\x19\xff\xff\xff\xff\x7f",
            b"\x18\xff\xff\xff\xff\x0f",
            b"\x15" + b"\xff" * 40,
            b"\x19\xfc" * 5000,
        ]
    )
    began = time.process_time()
    for data in hostile:
        with pytest.raises(Malformed):
            parquet_footer._Reader(data).struct()
    assert time.process_time() - began < 1
