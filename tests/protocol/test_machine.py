"""Real refusals of a real machine are recognised; anything else is left to be found."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from protocol.shell.machine import trouble

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.is_char_device(), reason="no /dev/full here")


@needs_full
def test_a_full_disk_is_recognised_in_plain_writes() -> None:
    with pytest.raises(OSError) as raised, FULL.open("w") as sink:
        sink.write("x")
    assert "full" in str(trouble(raised.value))


@needs_full
def test_a_full_disk_is_recognised_through_arrow(tmp_path: Path) -> None:
    target = tmp_path / "full"
    target.symlink_to(FULL)  # Arrow removes what it could not write
    with pytest.raises(OSError) as raised:
        pq.write_table(pa.table({"a": np.arange(1 << 20)}), target)
    assert "full" in str(trouble(raised.value))


def test_a_full_database_is_recognised(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "x.sqlite")
    database.execute("PRAGMA max_page_count = 4")
    database.execute("CREATE TABLE t (data BLOB)")
    with pytest.raises(sqlite3.OperationalError) as raised:
        database.execute("INSERT INTO t VALUES (?)", (bytes(1 << 20),))
    assert "full" in str(trouble(raised.value))


def test_a_damaged_database_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"no database at all" * 1000)
    with pytest.raises(sqlite3.DatabaseError) as raised:
        sqlite3.connect(path).execute("SELECT * FROM sqlite_master")
    refused = trouble(raised.value)
    assert refused is not None
    assert "damaged" in str(refused)
    assert ".sqlite" in refused.hint


def test_a_file_of_somebody_else_is_named(tmp_path: Path) -> None:
    error = PermissionError(13, "Permission denied", str(tmp_path / "node.key"))  # root, who may run this, may all
    assert "node.key" in str(trouble(error))


def test_our_own_faults_are_not_excused(tmp_path: Path) -> None:
    for fault in (ValueError("x"), KeyError("full"), ConnectionResetError(104, "reset"), sqlite3.ProgrammingError("x")):
        assert trouble(fault) is None
    with pytest.raises(OSError) as raised:
        (tmp_path / "nothing").open()
    assert trouble(raised.value) is None
    with pytest.raises(Exception) as raised_by_library:
        save_file({"a": np.zeros(1)}, str(tmp_path / "no folder" / "a.safetensors"))
    assert trouble(raised_by_library.value) is None


@needs_full
def test_a_command_on_a_full_disk_ends_with_one_sentence() -> None:
    program = (
        "import typer; from protocol.shell import cli\n"
        "app = cli.group('x')\n"
        "@app.command()\n"
        "def write() -> None:\n    with open('/dev/full', 'w') as sink:\n        sink.write('x')\n"
        "@app.command()\n"
        "def other() -> None: ...\n"
        "cli.run(app, 'x')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "write"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1  # a service starts it again, when there may be room
    assert done.stderr.startswith("error: the disk is full\n  try: ")
