"""The passes over all rows of some data sets, and the folder of task files that they leave.

    folder/math-000.parquet …   training problems of the environment `math`, in parts of a few thousand
    folder/math-held-out.parquet  its held-out ones: in a run spec's `files` they come last, where held-out rows must be
    folder/code-000.parquet …   the same of `code`
    folder/environments.toml    what to write into run.toml
    folder/import.json          the report: sources with their SHA-256, counts, reasons, parts with theirs

The folder appears whole or not at all. Held-out problems are those whose questions have the smallest keys (overlap.py): as good as
drawn, and the same whatever the order of rows. Choosing them takes a first pass over all rows; then what overlaps with them is left out.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

from protocol.environments import taskfile
from protocol.environments.importing import schemas, sources
from protocol.environments.importing.overlap import HeldOut
from protocol.environments.importing.reference import References
from protocol.environments.importing.schemas import PACKAGES, Schema
from protocol.environments.importing.sieve import RateBand, Reason, Sieve
from protocol.environments.importing.task import LeftOut, Task
from protocol.errors import ConfigError, UsageError
from protocol.settings import write_toml
from protocol.whole_folder import whole

REPORT, TABLES = "import.json", "environments.toml"
PARTS_MAX = 255
"""Of one environment: a run spec names up to 256 files, and one holds what is held out."""
PART_BYTES_MAX = 64 << 20
"""Of questions and answers; what a node fetches at a time."""
HELD_OUT_BYTES_MAX = 64 << 20
"""Of questions that are held out, which stay in memory."""
_EXACT = {"math": False, "code": False, "parquet": True}


@dataclass(frozen=True)
class Options:
    schema: str | None = None
    """None: by the columns of each file."""
    question: str | None = None
    answer: str | None = None
    """Columns of files of no known schema, of which `package` is the environment."""
    package: str = "math"
    against: tuple[Path, ...] = ()
    """Files, of any schema, whose questions no training question may ask."""
    held_out: int = 0
    """Problems of each environment that are held out."""
    band: RateBand | None = None
    part_rows: int = 4096


@dataclass(frozen=True)
class ImportedFile:
    file: str
    schema: str
    sha256: str
    rows: int


@dataclass(frozen=True)
class AgainstFile:
    """A file whose questions are not to be asked."""

    file: str
    schema: str
    sha256: str
    questions: int
    without: int
    """Its rows that hold no question."""


@dataclass(frozen=True)
class PartFile:
    file: str
    sha256: str
    rows: int
    size: int


@dataclass
class ImportedTasks:
    """What one environment got."""

    training: int = 0
    held_out: int = 0
    tests_left_out: int = 0
    """Tests of programs that a row has no room for, of all kept problems."""
    tests_unusable: int = 0
    """Tests that no program could pass, or that say nothing of one, of all kept problems."""
    problems_with_fewer_tests: int = 0
    """For either reason."""
    files: list[PartFile] = field(default_factory=list)


@dataclass
class ImportReport:
    sources: list[ImportedFile]
    rows: int
    environments: dict[str, ImportedTasks]
    left_out: dict[str, Reason]
    against: int = 0
    """Questions of other files that no training question may ask."""
    against_files: list[AgainstFile] = field(default_factory=list)


def run(
    files: list[Path], folder: Path, options: Options, progress: Callable[[str], object] = lambda _: None
) -> ImportReport:
    """Imports `files` into `folder`, which must not be there. Raises UsageError, ConfigError, PreflightError; then no folder is left."""
    if folder.exists():
        raise UsageError(f"{folder} exists already", hint="name a folder that does not, or remove it")
    if options.package not in PACKAGES:
        raise UsageError(f"no environment of task files is called {options.package!r}", hint=", ".join(PACKAGES))
    reading = [(file, _schema(file, options)) for file in files]
    against = [(file, _asking(file, options)) for file in options.against]
    with whole(folder.absolute(), f"the folder {folder}") as partial:
        held_out = HeldOut()
        compared = [_compare_with(file, schema, held_out, progress) for file, schema in against]
        others = len(held_out)
        chosen = _choose(reading, options, held_out, progress)
        for found in chosen.values():
            for question in found.values():
                held_out.add(question)
        report = _import(
            reading, options, held_out, {key for found in chosen.values() for key in found}, partial, progress
        )
        report.against, report.against_files = others, compared
        _write_tables(report, folder, partial)
        (partial / REPORT).write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return report


def _schema(file: Path, options: Options) -> Schema:
    if options.schema is not None:
        return schemas.named(options.schema)
    found = sources.columns(file)
    if options.question and options.answer:
        if missing := [name for name in (options.question, options.answer) if name not in found]:
            raise ConfigError(f"{file} has no column {missing[0]!r}, but {', '.join(found[:20])}")
        return schemas.rows(options.question, options.answer, options.package)
    schema = schemas.of_columns(found)
    if schema is not None:
        return schema
    if set(found) == set(taskfile.COLUMNS):
        return schemas.rows(*taskfile.COLUMNS, options.package)
    raise ConfigError(
        f"{file} is of no schema that is known by its columns: {', '.join(found[:20]) or 'it has none'}",
        hint=f"name one with --schema ({', '.join(schemas.SCHEMAS)}), or the columns with --question and --answer",
    )


def _asking(file: Path, options: Options) -> Schema:
    """How questions of a file that is only compared with are read: it may have other columns than what is imported."""
    found = sources.columns(file)
    if options.question in found:
        return schemas.questions(str(options.question))
    if (schema := schemas.of_columns(found)) is not None:
        return schema
    column = next((name for name in schemas.QUESTIONS if name in found), None)
    return _schema(file, options) if column is None else schemas.questions(column)


def _compare_with(file: Path, schema: Schema, held_out: HeldOut, progress: Callable[[str], object]) -> AgainstFile:
    """Takes every question of a file, also where no task can be made of its row: what is held out stays out, whatever its answer is."""
    progress(f"reading {file} ({schema.name}), which is not to be asked")
    questions = without = 0
    for row in sources.rows(file, set(schema.columns)):
        try:
            if isinstance(row, LeftOut):
                raise row
            held_out.add(schema.asked(row))
        except LeftOut:
            without += 1
        else:
            questions += 1
    if not questions:
        raise ConfigError(
            f"{file} holds no question: nothing would be compared with its {without} rows",
            hint="name its column with --question" if without else "name another file, or none",
        )
    progress(f"  {questions} questions to compare with" + (f"; {without} rows hold none" if without else ""))
    return AgainstFile(str(file), schema.name, taskfile.digest_of(file), questions, without)


def _tasks(
    file: Path, schema: Schema, options: Options, sieve: Sieve, held_out: HeldOut, chosen: set[int]
) -> Iterator[tuple[Task, int] | None]:
    """The tasks of a file that are kept, each with its key; None for a row that is not."""
    wanted = set(schema.columns)
    if options.band is not None:
        wanted |= {name for name in sources.columns(file) if options.band.is_rate(name)}
    references = References()
    for number, row in enumerate(sources.rows(file, wanted), 1):
        try:
            if isinstance(row, LeftOut):
                raise row
            if options.band is not None:
                options.band.require(row)
            task = schema.read(row)
            references.require(task)
            key = sieve.require_new(task)
            if key not in chosen and held_out.holds(task.problem):
                raise LeftOut("a question that is held out", task.problem)
            if key not in chosen and held_out.holds_short(task.problem):
                raise LeftOut("a short question that is held out, within a longer one", task.problem)
        except LeftOut as reason:
            sieve.drop(reason, f"{file.name}, row {number}")
            yield None
        else:
            yield task, key


def _choose(
    reading: list[tuple[Path, Schema]], options: Options, held_out: HeldOut, progress: Callable[[str], object]
) -> dict[str, dict[int, str]]:
    """Keys and questions of what is held out, by environment."""
    smallest: dict[str, list[tuple[int, str]]] = {}
    size, sieve = 0, Sieve()
    for file, schema in reading if options.held_out else ():
        progress(f"reading {file} ({schema.name}), to choose what is held out")
        for found in _tasks(file, schema, options, sieve, held_out, set()):
            if found is None:
                continue
            task, key = found
            heap = smallest.setdefault(task.package, [])
            if len(heap) < options.held_out or -key > heap[0][0]:
                heapq.heappush(heap, (-key, task.problem))
                size += len(task.problem)
            if len(heap) > options.held_out:
                size -= len(heapq.heappop(heap)[1])
            if size > HELD_OUT_BYTES_MAX:
                raise ConfigError(
                    f"held-out questions of more than {HELD_OUT_BYTES_MAX >> 20} MiB", hint="hold out fewer"
                )
    return {package: {-key: question for key, question in heap} for package, heap in smallest.items()}


def _import(
    reading: list[tuple[Path, Schema]], options: Options, held_out: HeldOut, chosen: set[int], folder: Path,
    progress: Callable[[str], object],
) -> ImportReport:  # fmt: skip
    sieve, parts = Sieve(), Parts(folder, options.part_rows)
    read: list[ImportedFile] = []
    try:
        for file, schema in reading:
            progress(f"importing {file} ({schema.name})")
            rows = 0
            for found in _tasks(file, schema, options, sieve, held_out, chosen):
                rows += 1
                if found is not None:
                    task, key = found
                    parts.add(task, is_held_out=key in chosen)
            read.append(ImportedFile(str(file), schema.name, taskfile.digest_of(file), rows))
    finally:
        made = parts.close()
    report = ImportReport(read, sum(one.rows for one in read), made, sieve.left_out)
    if not all(one.training for one in made.values()):
        raise ConfigError("everything would be held out", hint="--held-out asks for fewer problems")
    if not made:
        reasons = ", ".join(f"{why}: {reason.rows}" for why, reason in sieve.left_out.items())
        raise ConfigError(
            f"of {report.rows} rows none can be trained on" + (f" ({reasons})" if reasons else ""),
            hint="--schema, --question, --answer and --package say how rows are read, --low and --high which are kept",
        )
    return report


class Parts:
    """The task files that are being written, of each environment one part at a time."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder = folder
        self._rows = rows
        self._numbers: dict[str, Iterator[int]] = {}
        self._open: dict[tuple[str, bool], tuple[Path, taskfile.TaskFileWriter]] = {}
        self._made: dict[str, ImportedTasks] = {}

    def add(self, task: Task, *, is_held_out: bool) -> None:
        made = self._made.setdefault(task.package, ImportedTasks())
        _, writer = self._open.get((task.package, is_held_out)) or self._begin(task.package, is_held_out)
        writer.add(task.question, task.answer)
        made.training += not is_held_out
        made.held_out += is_held_out
        made.tests_left_out += task.tests_left_out
        made.tests_unusable += task.tests_unusable
        made.problems_with_fewer_tests += task.tests_left_out + task.tests_unusable > 0
        if not is_held_out and (writer.rows == self._rows or writer.bytes >= PART_BYTES_MAX):
            self._end(task.package, is_held_out)

    def close(self) -> dict[str, ImportedTasks]:
        """Ends all parts; of each environment the training parts come first."""
        for package, is_held_out in sorted(self._open):
            self._end(package, is_held_out)
        return self._made

    def _begin(self, package: str, is_held_out: bool) -> tuple[Path, taskfile.TaskFileWriter]:
        number = 0 if is_held_out else next(self._numbers.setdefault(package, count()))
        if number == PARTS_MAX:
            raise ConfigError(f"more than {PARTS_MAX} parts of {package}", hint="--part-rows makes larger ones")
        path = self._folder / f"{package}-{'held-out' if is_held_out else f'{number:03}'}.parquet"
        self._open[package, is_held_out] = path, taskfile.TaskFileWriter(path)
        return self._open[package, is_held_out]

    def _end(self, package: str, is_held_out: bool) -> None:
        path, writer = self._open.pop((package, is_held_out))
        writer.close()
        self._made[package].files.append(
            PartFile(path.name, taskfile.digest_of(path), writer.rows, path.stat().st_size)
        )


def _write_tables(report: ImportReport, folder: Path, partial: Path) -> None:
    tables = [
        {
            "package": package,
            "dataset": f"{folder.name}-{package}",
            "files": [(folder / part.file).as_posix() for part in made.files],
            "exact": _EXACT[package],
            "size": made.training,
            "held_out_size": made.held_out,
        }
        for package, made in report.environments.items()
    ]
    note = "Copy into run.toml. Paths count from that file; change sizes, never the order of files."
    write_toml(partial / TABLES, {"spec": {"environments": tables}}, note)
