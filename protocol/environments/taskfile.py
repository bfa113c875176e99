"""Task files: problems as rows of Parquet files, read by row group, so that a task set may be larger than memory.

Two columns, `question` and `answer`, both strings without nulls; PLAIN pages, row groups of at most 16 MiB (`write` makes such
files of anything). What a file says of its sizes is checked before Arrow believes it. A run spec pins each file by SHA-256 and
rows; files lie under that name in a folder that all roles of a machine share (MURMUR_TASKS, or the user's data folder).

Rows count through the files in the spec's order: the first `size` are the training problems, the last `held_out_size` the
held-out ones. An answer is right when the end of the completion says it: `answer.py`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from protocol import parquet_footer
from protocol.environments import answer
from protocol.environments.environment import Environment
from protocol.errors import ConfigError, Malformed, MurmurationError, PreflightError, UsageError
from protocol.folders import TASKS_VARIABLE, tasks_folder
from protocol.runspec import FromFiles, PinnedFile, TaskFile

COLUMNS = ("question", "answer")
GROUP_BYTES_MAX = 16 << 20
"""Bytes that one row group may decode to; `write` stays well below."""
GROUPS_MAX = 4096
TEXT_BYTES_MAX = 1 << 20
"""UTF-8 bytes of one question or answer."""
_GROUP_ROWS, _GROUP_BYTES = 8192, 4 << 20  # at which `write` begins the next group
_GROUPS_KEPT = 4  # decoded, per environment
_LEFT_SECONDS = 86_400.0
_FILES_KEPT = 4  # open, per environment

K = TypeVar("K")
V = TypeVar("V")
F = TypeVar("F", bound=PinnedFile)


def path_of(file: PinnedFile) -> Path:
    """Where a role of this machine looks for the file."""
    return tasks_folder() / f"{file.sha256}{file.suffix}"


class TaskFiles(Environment):
    """The training or held-out rows of task files. Nothing is opened before it is asked for."""

    name = "parquet"
    version = "1"
    Spec = FromFiles
    exact = True
    searches: ClassVar[bool] = False
    """Whether it needs a corpus beside its rows."""
    spec: FromFiles

    def __init__(self, spec: FromFiles, *, held_out: bool) -> None:
        super().__init__(spec, held_out=held_out)
        if bool(spec.corpus) != self.searches:
            wants = "needs a corpus" if self.searches else "takes no corpus"
            hint = 'name its files: corpus = ["documents.parquet"]' if self.searches else "leave `corpus` out"
            raise ConfigError(f"the environment {spec.package!r} {wants}", hint=hint)
        self._rows = Rows(spec.files)
        self._first = len(self._rows) - spec.held_out_size if held_out else 0
        self.size = spec.held_out_size if held_out else spec.size

    def entry(self, index: int) -> dict[str, Any]:
        """Raises IndexError beyond `size`, ConfigError where a file is not here, Malformed where it is none."""
        return self._rows[self._row(index)]

    def file(self, index: int) -> TaskFile:
        """The file that this problem is in."""
        return self.spec.files[self._rows.place(self._row(index))[0]]

    def _row(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise IndexError(f"problem {index} of {self.size}")
        return self._first + index

    def prompt(self, entry: dict[str, Any]) -> str:
        return entry["question"]

    def answer(self, entry: dict[str, Any]) -> str:
        return entry["answer"]

    def score(self, entry: dict[str, Any], completion: str) -> float:
        return float(answer.is_right(completion, entry["answer"]))


class Rows:
    """Rows of several files, counted through all of them. Nothing is opened before it is asked for; what is not here, or no task file,
    raises ConfigError or Malformed."""

    def __init__(self, files: Sequence[TaskFile]) -> None:
        self._starts = [0, *accumulate(file.rows for file in files)]
        self._open = Recent[int, Groups](_FILES_KEPT, lambda number: Groups(path_of(files[number])))
        self._decoded = Recent[tuple[int, int], Any](_GROUPS_KEPT, lambda at: self._open[at[0]].read(at[1]))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, row: int) -> dict[str, Any]:
        number, row = self.place(row)
        group, within = self._open[number].place(row)
        table = self._decoded[number, group]
        return {name: table.column(name)[within].as_py() for name in COLUMNS}

    def place(self, row: int) -> tuple[int, int]:
        """(file, row within it)."""
        number = bisect_right(self._starts, row) - 1
        return number, row - self._starts[number]


class Recent(Generic[K, V]):
    """What `make` made last, at most `most` of it."""

    def __init__(self, most: int, make: Callable[[K], V]) -> None:
        self._most = most
        self._make = make
        self._kept: OrderedDict[K, V] = OrderedDict()

    def __getitem__(self, key: K) -> V:
        if key not in self._kept:
            while len(self._kept) >= self._most:
                self._kept.popitem(last=False)
            self._kept[key] = self._make(key)
        self._kept.move_to_end(key)
        return self._kept[key]


class Groups:
    """One file, by row group. Raises ConfigError where it is not here, Malformed where it is no task file."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            rows = parquet_footer.require_small_groups(path, groups=GROUPS_MAX, most=GROUP_BYTES_MAX)
            self._file = pq.ParquetFile(path, memory_map=False, pre_buffer=False)
        except FileNotFoundError:
            raise ConfigError(
                f"there is no task file {path}",
                hint="nodes and validators fetch it when they start; else copy it there",
            ) from None
        except (pa.ArrowException, ValueError) as error:
            raise Malformed(f"{path.name} is no task file: {str(error)[:200]}") from error
        self._starts = [0, *accumulate(rows)]
        self._require_columns(path.name)

    def _require_columns(self, name: str) -> None:
        found = self._file.schema_arrow
        for column in COLUMNS:
            if column not in found.names:
                here = ", ".join(islice(found.names, 20))
                raise Malformed(
                    f"{name} is no task file: it has no column {column!r}, but {here}",
                    hint="murmur trainer tasks makes task files, of whatever columns",
                )
        if not found.remove_metadata().equals(_schema()):
            raise Malformed(
                f"{name} is no task file: its columns are not just `question` and `answer`, strings not null"
            )

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def rows(self) -> int:
        return self._starts[-1]

    def place(self, row: int) -> tuple[int, int]:
        """(row group, row within it)."""
        group = bisect_right(self._starts, row) - 1
        if not 0 <= group < len(self):
            raise Malformed(f"a task file has {self.rows} rows, and row {row} is asked for")
        return group, row - self._starts[group]

    def read(self, group: int) -> Any:
        """A table of both columns."""
        import pyarrow as pa

        try:
            table = self._file.read_row_group(group, use_threads=False)
            table.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Malformed(f"row group {group} of a task file cannot be read: {str(error)[:200]}") from error
        if table.num_rows != self._starts[group + 1] - self._starts[group] or any(c.null_count for c in table.columns):
            raise Malformed(f"row group {group} of a task file is not what the file says of it")
        return table


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([pa.field(name, pa.string(), nullable=False) for name in COLUMNS])


# ---- files that are here ---------------------------------------------------------------------------------------------------


def add(source: Path) -> TaskFile:
    """Takes a copy of a task file into the folder, under its digest. Raises ConfigError for what is none."""
    partial = partial_of(source.name)
    try:
        kept = tasks_folder() / f"{digest_of(source)}.parquet"
        if kept.exists():
            return TaskFile(sha256=kept.stem, rows=Groups(kept).rows, size=kept.stat().st_size)
        shutil.copyfile(source, partial)  # first: what is checked is what is kept
        groups = Groups(partial)
        for group in range(len(groups)):
            groups.read(group)
        found = TaskFile(sha256=digest_of(partial), rows=groups.rows, size=partial.stat().st_size)
        os.replace(partial, path_of(found))
    except (Malformed, OSError) as error:
        if isinstance(error, OSError) and _is_of(tasks_folder(), error):
            raise _no_folder(error) from error
        hint = "murmur trainer tasks makes task files of Parquet and JSONL"
        raise ConfigError(f"{source} cannot be used: {error}", hint=hint) from error
    finally:
        with suppress(OSError):  # a folder that cannot be written to holds nothing of ours
            partial.unlink(missing_ok=True)
    return found


def keep(data: bytes, kind: type[F], **facts: int) -> F:
    """Takes bytes that were checked into the folder, under their digest. `facts` are what the kind says besides."""
    found = kind.model_validate({"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), **facts})
    partial = partial_of(f"{found.sha256}{found.suffix}")
    try:
        partial.write_bytes(data)
        os.replace(partial, path_of(found))
    except OSError as error:
        raise _no_folder(error) from error
    finally:
        with suppress(OSError):  # a folder that cannot be written to holds nothing of ours
            partial.unlink(missing_ok=True)
    return found


def abandoned() -> list[Path]:
    """What processes that were killed left half-written in the folder of tasks, a day ago or longer: another machine may share that folder."""
    left = []
    for path in tasks_folder().glob(".*"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _LEFT_SECONDS:
                left.append(path)
    return left


def partial_of(name: str) -> Path:
    """Where this process prepares a file before it appears. What killed ones left there is removed after a day."""
    try:
        tasks_folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_folder(error) from error
    for left in abandoned():
        with suppress(OSError):
            left.unlink()
    return tasks_folder() / f".{os.getpid()}-{name}"


def _is_of(folder: Path, error: OSError) -> bool:
    """Whether it was a file in `folder` that was refused, or the room for it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or Path(str(error.filename)).is_relative_to(folder)


def _no_folder(error: OSError) -> PreflightError:
    return PreflightError(
        f"cannot keep task files in {tasks_folder()}: {error.strerror}", hint=f"{TASKS_VARIABLE} names another folder"
    )


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- files that are made ---------------------------------------------------------------------------------------------------


def convert(sources: list[Path], target: Path, question: str, answer_: str) -> int:
    """Makes a task file of Parquet or JSONL files; returns its rows. Raises ConfigError naming the row that does not fit."""
    if target.exists():
        raise UsageError(f"{target} exists already", hint="name a file that does not, or remove it")
    return write((row for source in sources for row in read_rows(source, question, answer_)), target)


def write(rows: Iterable[tuple[str, str]], target: Path) -> int:
    """Writes (question, answer) rows as a task file, with one row group in memory at a time; returns the number of rows."""
    writer = TaskFileWriter(target)
    try:
        for question, answer_ in rows:
            writer.add(question, answer_)
        if not writer.rows:
            raise ConfigError("there are no rows")
    except MurmurationError:
        writer.close()
        target.unlink(missing_ok=True)
        raise
    writer.close()
    return writer.rows


class TaskFileWriter:
    """A task file that is being written, row by row. It is whole when `close` was called."""

    def __init__(self, target: Path) -> None:
        """Raises PreflightError where the file cannot be made."""
        import pyarrow.parquet as pq

        _make_folder(target.parent)
        try:
            self._file = pq.ParquetWriter(
                target, _schema(), compression="zstd", use_dictionary=False, write_statistics=False
            )
        except OSError as error:
            raise PreflightError(f"cannot write {target}: {os.strerror(error.errno or errno.EIO)}") from error
        self._group: list[tuple[str, str]] = []
        self._group_bytes = self._groups = 0
        self.rows = self.bytes = 0
        """So far; `bytes` of questions and answers in UTF-8."""

    def add(self, question: str, answer_: str) -> None:
        """Raises ConfigError for a row that is too large, or has no text, or does not fit."""
        sizes = [len(text.encode()) for text in (question, answer_)]
        if not all(0 < one <= TEXT_BYTES_MAX for one in sizes):
            raise ConfigError(
                f"row {self.rows} has a question of {sizes[0]} bytes and an answer of {sizes[1]}",
                hint=f"1 to {TEXT_BYTES_MAX} bytes each",
            )
        if len(self._group) == _GROUP_ROWS or (self._group and self._group_bytes + sum(sizes) > _GROUP_BYTES):
            self._flush()
        self._group.append((question, answer_))
        self._group_bytes += sum(sizes)
        self.rows, self.bytes = self.rows + 1, self.bytes + sum(sizes)

    def close(self) -> None:
        try:
            if self._group:
                self._flush()
        finally:
            self._file.close()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._groups == GROUPS_MAX:
            self._group = []
            raise ConfigError(f"more than {self.rows} rows do not fit one file", hint="make several files")
        columns = [pa.array(column, pa.string()) for column in zip(*self._group, strict=True)]
        self._file.write_table(pa.table(columns, schema=_schema()), row_group_size=len(self._group))
        self._group, self._group_bytes, self._groups = [], 0, self._groups + 1


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreflightError(f"cannot make the folder {folder}: {error.strerror}") from error


def read_rows(source: Path, question: str, answer_: str) -> Iterator[tuple[str, str]]:
    """(question, answer) of the researcher's own Parquet or JSONL file, batch by batch."""
    for number, row in enumerate(read_table(source, [question, answer_])):
        try:
            pair = row[question], row[answer_]
        except (KeyError, TypeError) as error:
            raise ConfigError(f"row {number} of {source} has no {error}", hint="see --question and --answer") from None
        if not all(isinstance(text, str | int) and not isinstance(text, bool) for text in pair):
            raise ConfigError(f"row {number} of {source} holds something else than text")
        yield str(pair[0]), str(pair[1])


def read_table(source: Path, names: list[str] | None = None) -> Iterator[Any]:
    """Rows of the researcher's own Parquet or JSONL file, with these columns at least; None: all. Of JSONL, whatever a line holds.

    Raises ConfigError for a file that cannot be read, or a Parquet file without one of `names`.
    """
    return _jsonl(source) if source.suffix == ".jsonl" else _parquet(source, names)


def _jsonl(source: Path) -> Iterator[Any]:
    try:
        with source.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(4 * TEXT_BYTES_MAX), b"")):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ConfigError(f"line {number + 1} of {source} is no JSON: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from error


def _parquet(source: Path, names: list[str] | None) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(source)
        missing = [name for name in names or () if name not in file.schema_arrow.names]
        if missing:
            raise ConfigError(
                f"{source} has no column {missing[0]!r}, but {', '.join(islice(file.schema_arrow.names, 20))}",
                hint="see --question and --answer",
            )
        for batch in file.iter_batches(batch_size=1024, columns=names, use_threads=False):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"cannot read {source}: {str(error)[:200]}") from error
