"""The sandbox child: reads rollout files and runs environments within hard limits.

    python -m protocol.sandbox.child MEMORY_BYTES OPEN_FILES PARENT LANDLOCK SECCOMP      (started by protocol/sandbox/process.py only)

Answers one request after another from stdin on stdout. An input that breaks its format becomes an answer of the kind
"malformed", too little memory "exhausted", any other failure "failed": whose fault those two are is for the parent to find
out. So is whatever kills the process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from protocol import parquet_footer, toploc
from protocol.constants import TURNS_MAX
from protocol.errors import Malformed, MurmurationError, PreflightError
from protocol.sandbox import programs_wire, wire
from protocol.sandbox.confinement import ANSWER_CPU_SECONDS, Kernel, confine

if TYPE_CHECKING:
    from protocol.rollout import Column

_EXPANSION = 4  # times the largest file: what a file may decode to
_GROUPS_AT_ONCE = 16
_TEXT_BYTES = 8 << 20  # of problems in one answer
_CALLS_BYTES_MAX = 16 << 20  # of a file: the service parses them
_MOST: dict[str, Callable[[int], int]] = {
    **dict.fromkeys(("prompt", "completion", "logprobs", "given"), lambda tokens: tokens),
    **dict.fromkeys(("turns", "answers", "calls"), lambda _: TURNS_MAX),
    "proofs": lambda tokens: toploc.chunk_count(tokens) + TURNS_MAX,  # the last chunk of every turn may be short
}
"""How many entries a list of each column may have where a sample has at most so many tokens."""


class _AnswersTime:
    """Entered for each answer: one that takes too much CPU time ends this process, whatever it is doing, and not the time of those beside it.

    The kernel ends it, by SIGPROF: an environment may be in the middle of C code, or catch every exception.
    """

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, ANSWER_CPU_SECONDS)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


class Child:
    """One request after another; each answer bounded in time and size where the request may ask for any number of things."""

    def __init__(self, parent: Callable[[dict[str, Any]], tuple[dict[str, Any], wire.Arrays]] | None = None) -> None:
        """`parent` answers what is asked of it in the middle of a request."""
        self.problems: Any = None
        self._parent = parent
        self._watch: Any = None

    def answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], wire.Arrays]:  # noqa: PLR0912  a case for each request
        match request:
            case {"op": "open", "environments": list(tables), **rest}:
                return self._open(tables, reads=rest.get("reads") is True), {}
            case {
                "op": "read",
                "path": str(path),
                "rows": int(rows),
                "tokens": int(tokens),
                "bytes": int(size),
                "logprobs": bool(on),
            }:
                return read_rollouts(path, rows=rows, tokens=tokens, size=size, logprobs=on)
            case {
                "op": "score",
                "items": items,
                "held_out": bool(held_out),
                "claims": claims,
                "tolerance": float(tolerance),
            }:
                claimed = {"claims": claims, "tolerance": tolerance}
                ranges = self.problems.ranges(items, held_out=held_out, run=self._run, **claimed)
                return {"rewards": ranges}, {}
            case {"op": "replies", "asked": list(asked), "held_out": bool(held_out)}:
                return self._replies(asked, held_out), {}
            case {"op": "problems", "indices": list(indices), "seconds": float(seconds)}:
                return self._problems(indices, time.monotonic() + seconds), {}
            case {"op": "held out", "start": int(start), "seconds": float(seconds)}:
                return self._held_out(start, time.monotonic() + seconds), {}
            case {"op": "calls", "texts": list(texts)}:
                return {"turns": self.problems.calls(texts)}, {}
            case {"op": "answers", "programs": list(programs)}:
                return {"answers": self.problems.answers(programs)}, {}
            case {"op": "head", "environment": table, "seconds": float(seconds)}:
                digest = self.problems.head(environment_from(table), time.monotonic() + seconds)
                return {"digest": digest, "looked": self.problems.drawn_of_head}, {}
            case {"op": "describe", "package": str(package)}:
                return _describe(package), {}
            case {"op": "tasks", "path": str(path), "group": int(group)}:
                return {"next": _read_tasks(Path(path), group)}, {}
            case {"op": "watch"}:
                return self._watched(), {}
            case {"op": "rows", "path": str(path)}:
                return _rows(Path(path)), {}
            case {"op": "files", "indices": indices}:
                return {"files": self.problems.files(indices)}, {}
        raise ValueError("unknown request")

    def _open(self, tables: list[Any], *, reads: bool) -> dict[str, Any]:
        from protocol.environments.problems import Problems

        if reads:  # lest the first file wait for it: nobody else needs to
            import pyarrow.parquet  # noqa: F401
        self.problems = Problems([environment_from(table) for table in tables])
        self.problems.around_score = _AnswersTime()
        needed = self.problems.grants
        granted = {"memory": needed.memory, "seconds": needed.seconds, "files": needed.files}
        return {
            **granted,
            "programs": self.problems.runs_programs,
            "interpreters": self.problems.interpreters,
            "converses": self.problems.converses,
            "too slow": self.problems.too_slow,
        }

    def _replies(self, asked: list[Any], held_out: bool) -> dict[str, Any]:
        from protocol.replies import Asked

        found = self.problems.replies([Asked(*one) for one in asked], held_out=held_out, run=self._run)
        calls = [[[[c.turn, c.tool, c.arguments, c.result] for c in reply.calls] for reply in one] for one in found]
        return {"texts": [[reply.text for reply in one] for one in found], "calls": calls}

    def _watched(self) -> dict[str, Any]:
        from protocol.sandbox.watch import Watch

        self.problems.around_score = self._watch = self._watch or Watch()
        strayed, self.problems.strayed = self.problems.strayed, None
        left = self.problems.left = self.problems.left or set()
        imports = self.problems.set_by_imports
        return {**self._watch.told(), "strayed": strayed, "left": sorted(left), "set by imports": sorted(imports)}

    def _run(self, trials: Sequence[Any]) -> list[list[Any]]:
        """Programs are run by the parent, some at a time."""
        assert self._parent is not None
        found: list[list[Any]] = []
        while len(found) < len(trials):
            head, arrays = self._parent(programs_wire.asked(trials[len(found) :]))
            found += programs_wire.told(head, arrays)
        return found

    def _problems(self, indices: list[int], until: float) -> dict[str, Any]:
        """As many of these problems as there is time and room for; none while held-out ones are still to be drawn."""
        found: list[Any] = []
        if self.problems.draw_held_out(until):
            room = _TEXT_BYTES
            for index in indices:
                (problem,) = self.problems.problems([index])
                found.append(_row(problem))
                room -= _size(problem)
                if room <= 0 or time.monotonic() >= until:
                    break
        return {"problems": found, "looked": self.problems.looked}

    def _held_out(self, start: int, until: float) -> dict[str, Any]:
        """Held-out problems from number `start` on, as many as there is time and room for."""
        if not self.problems.draw_held_out(until):
            return {"problems": [], "looked": self.problems.looked, "done": False}
        found: list[Any] = []
        room = _TEXT_BYTES
        every = self.problems.held_out()
        for problem in every[start:]:
            found.append(_row(problem))
            room -= _size(problem)
            if room <= 0:
                break
        return {"problems": found, "looked": self.problems.looked, "done": start + len(found) >= len(every)}


def environment_from(table: dict[str, Any]) -> Any:
    from protocol.runspec import environment_kind

    return environment_kind(table).model_validate(table)


def _row(problem: Any) -> list[Any]:
    return [problem.environment, problem.index, problem.prompt, problem.answer, problem.is_held_out]


def _size(problem: Any) -> int:
    return len(problem.prompt) + len(problem.answer or "")


def _describe(package: str) -> dict[str, Any]:
    from protocol.environments import registry

    kind = registry.find(package).load()
    content = registry.find(package).content
    return {
        "version": registry.version_of(package), "exact": kind.exact, "from_files": kind.Spec.from_files, "content": content,
        "grants": [kind.grants.memory, kind.grants.seconds, kind.grants.files],
    }  # fmt: skip


def _rows(path: Path) -> dict[str, Any]:
    from protocol.environments.taskfile import Groups

    return {"rows": Groups(path).rows}


def _read_tasks(path: Path, group: int) -> int:
    """Reads some row groups of a task file, or a selection; the number of the next one, -1 after the last. Raises Malformed."""
    from protocol.environments import selection
    from protocol.environments.taskfile import Groups
    from protocol.runspec import Selection

    if path.suffix == Selection.suffix:
        selection.read(path)
        return -1
    groups = Groups(path)
    for number in range(group, min(group + _GROUPS_AT_ONCE, len(groups))):
        groups.read(number)
    return group + _GROUPS_AT_ONCE if group + _GROUPS_AT_ONCE < len(groups) else -1


def read_rollouts(
    path: str, *, rows: int, tokens: int, size: int, logprobs: bool
) -> tuple[dict[str, Any], wire.Arrays]:
    """Header and columns of a rollout file of exactly `rows` rows with at most `tokens` tokens per list, with or without logprobs.

    The head's "problem" names the first departure from the exact schema that still left the columns readable.
    Raises UnknownVersion for a file of a later version, Malformed where nothing can be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from protocol.rollout import METADATA_KEY, columns, require_known, schema

    if os.path.getsize(path) > size:
        raise Malformed(f"file has more than {size} bytes")
    parquet_footer.require_bounded(Path(path), rows=rows, most=_EXPANSION * size)
    arrays: wire.Arrays = {}
    try:
        file = pq.ParquetFile(
            path,
            thrift_string_size_limit=parquet_footer.FOOTER_BYTES_MAX,
            thrift_container_size_limit=1 << 16,
            pre_buffer=False,
        )
        found, expected = file.schema_arrow, schema(logprobs=logprobs)
        header = (found.metadata or {}).get(METADATA_KEY)
        if header is None:
            raise Malformed("the header is missing")
        require_known(header)  # first: of a later version's columns nothing is known
        problem = None if found.remove_metadata().equals(expected) else _difference(found, expected)
        missing = [name for name in expected.names if name not in found.names]
        if missing:
            raise Malformed(f"column {missing[0]} is missing")
        layout = columns(logprobs=logprobs)
        for portion in _portions(layout):
            table = file.read(columns=[column.name for column in portion], use_threads=False)
            table.validate(full=True)
            for column in portion:
                array = _cast(table.column(column.name), expected.field(column.name).type)
                arrays |= _flatten(column, array, rows, tokens)
            if sum(array.nbytes for array in arrays.values()) > _EXPANSION * size:
                raise Malformed("holds more data than a file of its size may")
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError, LookupError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system's word, not the decoder's: this disk, or too many open files
        raise Malformed(f"not a readable rollout file: {str(error)[:200]}") from error
    return {"header": header.decode("utf-8", "replace"), "problem": problem or _not_finite(layout, arrays)}, arrays


def _portions(layout: Sequence[Column]) -> list[list[Column]]:
    """Columns that are read at once: the small ones together, each list by itself, so that no two are decoded at a time."""
    return [[column for column in layout if not column.is_list], *([column] for column in layout if column.is_list)]


def _difference(found: Any, expected: Any) -> str:
    extra = [name for name in found.names if name not in expected.names]
    if extra:
        return f"unexpected column {extra[0]!r}"
    for name in expected.names:
        if name in found.names and not found.field(name).equals(expected.field(name)):
            return f"column {name} is {found.field(name)}, not {expected.field(name)}"
    return "columns stand in another order"


def _cast(column: Any, kind: Any) -> Any:
    array = column.combine_chunks()
    if hasattr(array, "chunks"):
        array = array.chunk(0) if array.num_chunks else array
    if array.null_count:
        raise Malformed("a column holds nulls")
    return array if array.type.equals(kind) else array.cast(kind)


def _flatten(column: Column, array: Any, rows: int, tokens: int) -> wire.Arrays:
    import numpy as np

    name = column.name
    if len(array) != rows:
        raise Malformed(f"column {name} has {len(array)} rows instead of {rows}")
    if not column.is_list:
        return {name: array.to_numpy(zero_copy_only=False)}
    lengths = np.diff(array.offsets.to_numpy()).astype(np.int64)
    most = _MOST[name](tokens)
    if lengths.min() < 0 or lengths.max() > most:
        raise Malformed(f"a list of {name} has {lengths.max()} entries, more than {most}")
    values = array.flatten()
    if values.null_count:
        raise Malformed(f"a list of {name} holds nulls")
    offsets = _offsets(lengths)
    if column.kind != "binary":
        return {f"{name}.offsets": offsets, name: values.to_numpy(zero_copy_only=False)}
    _, places, data = values.buffers()
    ends = np.frombuffer(places, np.int32)[values.offset : values.offset + len(values) + 1] if places else np.zeros(1)
    whole = np.frombuffer(data or b"", np.uint8)[int(ends[0]) : int(ends[-1])]
    if name == "calls" and len(whole) > _CALLS_BYTES_MAX:
        raise Malformed(f"tool calls of {len(whole)} bytes, more than {_CALLS_BYTES_MAX}")
    return {f"{name}.offsets": offsets, f"{name}.sizes": _offsets(np.diff(ends)), name: whole}


def _offsets(lengths: Any) -> Any:
    import numpy as np

    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _not_finite(layout: Sequence[Column], arrays: wire.Arrays) -> str | None:
    import numpy as np

    for column in layout:
        if column.kind == "float32" and not np.isfinite(arrays[column.name]).all():
            return f"column {column.name} holds NaN or infinity"
    return None


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    def parent(request: dict[str, Any]) -> tuple[dict[str, Any], wire.Arrays]:
        _send(sink, wire.pieces(request, {}))
        return _request(source, cap=programs_wire.ANSWER_BYTES_MAX)

    child = Child(parent)
    while True:
        try:
            request, _ = _request(source)
        except EOFError:
            return
        try:
            head, arrays = child.answer(request)
            reply = wire.pieces({"ok": True, **head}, arrays)
        except MurmurationError as error:
            reply = wire.pieces(_blame(error), {})
        except MemoryError:
            reply = wire.pieces({"ok": False, "kind": "exhausted", "message": "needs more memory than it may have"}, {})
        except Exception as error:  # noqa: BLE001  one bad input must not end the service; the parent logs the answer
            reply = wire.pieces({"ok": False, "kind": "failed", "message": f"{type(error).__name__}: {error}"}, {})
        _send(sink, reply)
        head, arrays, reply = {}, {}, []  # nothing of this answer is held while the next request is waited for


def _send(sink: BinaryIO, message: list[bytes | memoryview]) -> None:
    for piece in message:
        sink.write(piece)
    sink.flush()


def _request(source: BinaryIO, *, cap: int = 0) -> tuple[dict[str, Any], wire.Arrays]:
    """Raises EOFError where there is none any more."""

    def receive(count: int) -> bytes:
        data = source.read(count)
        if len(data) != count:
            raise EOFError
        return data

    return wire.read(receive, cap=cap)


def _blame(error: MurmurationError) -> dict[str, Any]:
    said = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
    return {"ok": False, "kind": "malformed", **said}


def main() -> None:
    memory, files, parent, landlock, seccomp = map(int, sys.argv[1:])
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not enter the wire
    try:
        confine(Kernel(landlock, bool(seccomp)), memory=memory, files=files, parent=parent)
    except PreflightError as error:
        _request(sys.stdin.buffer)  # not before it was asked, lest asking fail
        sink.write(wire.encode(_blame(error)))
        sink.close()
        return
    serve(sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
