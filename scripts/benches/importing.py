"""What `murmur env import` costs for as many rows as INTELLECT-2 was trained on: CPU time and memory of one process.

Rows are made on the spot in the schema of that data set: nine in ten of mathematics, some 60 words each, the others of code with 24 kB of
tests each; five in a hundred ask a question again. 530 questions are not to be asked, as many as AIME 2024 and MATH-500 have, one in ten of
them short, and 500 of each kind are held out, so all rows are read twice. The same without held-out ones reads them once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benches import Bench, Cost

ROWS = 285_000
_ROOT = Path(__file__).resolve().parents[2]
_AGAINST, _HELD_OUT = 530, 500
_TESTS, _TEST_BYTES = 16, 1500
_WORDS = [
    "a",
    "the",
    "of",
    "is",
    "let",
    "be",
    "and",
    "that",
    "find",
    "number",
    "integer",
    "positive",
    "real",
    "triangle",
    "circle",
    "point",
    "line",
    "angle",
    "sum",
    "product",
    "value",
    "function",
    "sequence",
    "prime",
    "divisor",
    "digit",
    "square",
    "root",
    "side",
    "area",
    "perimeter",
    "radius",
    "distance",
    "speed",
    "train",
    "apples",
    "students",
    "probability",
    "red",
    "blue",
    "balls",
    "drawn",
    "without",
    "replacement",
    "such",
    "smallest",
    "largest",
    "possible",
    "how",
    "many",
    "ways",
    "can",
    "exactly",
    "one",
]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of both kinds ({ROWS})")


def run(rows: int = ROWS) -> Bench:
    bench = Bench("importing")
    with tempfile.TemporaryDirectory(prefix="murmur-bench-") as made:
        folder = Path(made)
        _write(_rows(rows), folder / "rows.parquet")
        _write(_shortened(_rows(_AGAINST, start=1 << 40)), folder / "against.parquet")
        for name, held_out in (("read once", 0), (f"{_HELD_OUT} of a kind held out", min(_HELD_OUT, rows // 40))):
            seconds, peak = _import(folder, held_out)
            bench.rows.append(Cost(f"{rows:,} rows, {name}", "CPU s", seconds, None, None, 300.0))
            bench.rows.append(Cost("  its memory at most", "MB", peak, None, None, 500.0))
    return bench


def _import(folder: Path, held_out: int) -> tuple[float, float]:
    """CPU seconds and MB of resident memory at most, of a process that does nothing else."""
    arguments = [sys.executable, "-m", "benches.importing", str(folder), str(held_out)]
    found = os.environ | {"PYTHONPATH": f"{_ROOT}:{_ROOT / 'scripts'}"}
    ended = subprocess.run(arguments, env=found, capture_output=True, text=True, timeout=3600, check=True)
    seconds, peak = json.loads(ended.stdout)
    return seconds, peak


def _measured(folder: Path, held_out: int) -> None:
    import resource

    from protocol.environments.importing import importer

    asked = importer.Options(against=(folder / "against.parquet",), held_out=held_out)
    importer.run([folder / "rows.parquet"], folder / f"out-{held_out}", asked)
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Its own ru_maxrss begins with what the process had that started it.
    most = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    print(json.dumps([used.ru_utime + used.ru_stime, int(most[1]) * 1.024 / 1000 if most else used.ru_maxrss / 1000]))


def _rows(count: int, start: int = 0) -> Iterator[dict[str, Any]]:
    for number in range(start, start + count):
        draw = random.Random(number - number % 20 if number % 20 == 1 else number)  # one in twenty: the row before it
        is_code = number % 20 in (10, 11)
        words = draw.choices(_WORDS, k=60)
        for at in range(0, 60, 9):
            words[at] = f"${draw.randrange(1000)}x^2 + {draw.randrange(1000)}$"
        if is_code:
            cases = [
                {
                    "type": "stdin_stdout",
                    "input": draw.randbytes(_TEST_BYTES // 2).hex(),
                    "output": "1\n",
                    "fn_name": None,
                }
                for _ in range(_TESTS)
            ]
            info: dict[str, Any] = {"language": "python", "test_cases": cases}
        else:
            info = {"ground_truth": str(draw.randrange(10_000))}
        yield {
            "problem_id": f"made_{number}",
            "task_type": "verifiable_code" if is_code else "verifiable_math",
            "prompt": f"Solve this problem. {' '.join(words)}?",
            "verification_info": json.dumps(info) if number % 3 else repr(info),
            "solve_rate_qwen_r1_distill_7b": draw.randrange(9) / 8,
        }


def _shortened(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows):
        yield row if number % 10 else {**row, "prompt": " ".join(row["prompt"].split()[:7])}


def _write(rows: Iterator[dict[str, Any]], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer, batch = None, []
    for row in rows:
        batch.append(row)
        if len(batch) == 1000:
            table, batch = pa.Table.from_pylist(batch), []
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table)
    if batch:
        table = pa.Table.from_pylist(batch)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    assert writer is not None
    writer.close()


if __name__ == "__main__":
    _measured(Path(sys.argv[1]), int(sys.argv[2]))
