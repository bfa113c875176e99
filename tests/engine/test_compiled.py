"""What is compiled once is found again, and nothing that happens to its files stops a start or brings back another version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
START = """
import shutil, sys
from pathlib import Path
from node.engine import compiled
compiled._HERE = Path(sys.argv[1])
sys.path.insert(0, sys.argv[1])
import compiled_answer
print(compiled_answer.answer(1), compiled.folder())
"""
LOOP = """
from node.engine.compiled import compiled

@compiled("i8(i8)")
def answer(given):
    return given + {}
"""


def start(sources: Path) -> tuple[int, Path]:
    """What the function returns in a new process, and where it is kept."""
    ran = subprocess.run(
        [sys.executable, "-c", START, sources], capture_output=True, text=True, timeout=120, check=True, cwd=TREE
    )
    answer, folder = ran.stdout.split()
    return int(answer), Path(folder)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "noise.py").touch()
    (tmp_path / "compiled_answer.py").write_text(LOOP.format(1))
    return tmp_path


def test_a_damaged_file_costs_a_compilation_and_no_start(sources: Path) -> None:
    _, folder = start(sources)
    for damage in (b"", b"\0" * 100):
        kept = [path for path in folder.rglob("*") if path.is_file()]
        assert len(kept) == 2, "an index and the code"
        for path in kept:
            path.write_bytes(damage)
        assert start(sources) == (2, folder)
        assert start(sources) == (2, folder)  # and it is kept again


def test_another_version_is_another_folder(sources: Path) -> None:
    _, before = start(sources)
    # Of another length: Python takes its own bytecode for current where the second and the length of a source are the same.
    (sources / "compiled_answer.py").write_text(LOOP.format(20))
    answer, folder = start(sources)
    assert (answer, folder != before) == (21, True)


def test_a_loop_is_compiled_where_nothing_can_be_kept(sources: Path) -> None:
    (sources / "__pycache__").rmdir()
    (sources / "__pycache__").write_text("in the way")
    assert start(sources)[0] == 2
