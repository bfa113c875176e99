"""Rollout files are read in a child that nothing gets out of: wrong files are Malformed, and the service goes on."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from swarm.pace import Patience
from swarm.tiny_run import TinyRun

from protocol import canonical, rollout
from protocol.errors import Interrupted, Malformed, Unavailable, UnknownVersion
from protocol.rollout import Header, ToolCall
from protocol.sandbox import EnvironmentSandbox, Sandbox, child, wire
from protocol.sandbox.process import ChildDied

METADATA = rollout.METADATA_KEY


@pytest.fixture(scope="module")
def honest(tiny_run: TinyRun) -> pa.Table:
    return pq.read_table(tiny_run.honest().path)


def written(tmp_path: Path, table: pa.Table, **options: Any) -> Path:
    pq.write_table(table, tmp_path / "x.parquet", **{"use_dictionary": False, **options})
    return tmp_path / "x.parquet"


def test_what_was_written_is_read(tiny_run: TinyRun) -> None:
    made = tiny_run.honest(step=3, sequence=1)
    reading = tiny_run.context.sandbox.read(made.path)
    assert reading.problem is None
    assert (reading.file.header.step, reading.file.header.sequence) == (3, 1)
    assert reading.file.units == made.units
    assert reading.file.samples[0].completion.dtype == np.int32
    assert [len(p) for p in reading.file.samples[0].proofs][:1] == [258]


def test_a_file_is_read_for_a_process_with_thousands_of_open_files(tiny_run: TinyRun, many_files: None) -> None:
    made = tiny_run.honest()
    with Sandbox(tiny_run.spec) as sandbox:
        assert sandbox.read(made.path).file.units == made.units


def test_an_answer_that_was_not_waited_for_is_no_answer_to_the_next_request(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tiny_run.honest(step=3, sequence=1), tiny_run.honest(step=4, sequence=2)
    sandbox = tiny_run.context.sandbox

    def give_up(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as impatient:
        impatient.setattr(sandbox, "_receive", give_up)
        with pytest.raises(KeyboardInterrupt):
            sandbox.read(first.path)
    assert sandbox.read(second.path).file.header.sequence == 2


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 100, os.urandom(5000), b"PAR1" + b"\xff" * 64 + b"PAR1"])
def test_junk_is_malformed(tiny_run: TinyRun, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "junk"
    path.write_bytes(content)
    with pytest.raises(Malformed):
        tiny_run.context.sandbox.read(path)


def test_a_truncated_or_mutated_file_never_hurts(tiny_run: TinyRun, tmp_path: Path) -> None:
    """200 mutations of an honest file: each is Malformed or reads as something of the right shape."""
    original = tiny_run.honest().path.read_bytes()
    rng, path = random.Random(0), tmp_path / "mutated"
    refused = 0
    for _ in range(200):
        data = bytearray(original)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.2:
            data = data[: rng.randrange(len(data))]
        path.write_bytes(data)
        try:
            assert len(tiny_run.context.sandbox.read(path).file.samples) == tiny_run.spec.samples
        except Malformed:
            refused += 1
    assert refused > 100
    assert tiny_run.context.sandbox.read(tiny_run.honest().path).problem is None


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.slice(1),
        lambda t: pa.concat_tables([t, t]),
        lambda t: t.drop_columns(["proofs"]),
        lambda t: t.replace_schema_metadata({}),
        lambda t: t.replace_schema_metadata({METADATA: b"{}"}),
        lambda t: t.replace_schema_metadata({METADATA: b"x" * 10_000}),
        lambda t: t.set_column(6, "logprobs", pa.array([["a"]] * len(t))),
        lambda t: t.set_column(5, "completion", pa.array([[None]] * len(t), pa.list_(pa.int32()))),
        lambda t: t.set_column(0, "group", pa.array([None] * len(t), pa.int32())),
        lambda t: t.set_column(4, "prompt", pa.array([[1] * 70_000] * len(t), pa.list_(pa.int32()))),
        lambda t: t.set_column(0, "group", pa.array([2**40] * len(t), pa.int64())),
    ],
    ids=["too few rows", "too many rows", "missing column", "no header", "empty header", "huge header", "strings", "nulls in lists",
         "nulls", "long lists", "out of range"],
)  # fmt: skip
def test_files_of_the_wrong_shape_are_malformed(
    tiny_run: TinyRun, honest: pa.Table, tmp_path: Path, change: object
) -> None:
    with pytest.raises(Malformed):
        tiny_run.context.sandbox.read(written(tmp_path, change(honest)))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("changes", "named"), [({"version": 7}, "version 7"), ({"proof": "echo/1"}, "'echo/1'")], ids=str
)
def test_a_file_of_a_later_version_is_refused_by_name_whatever_its_columns_are(
    tiny_run: TinyRun, honest: pa.Table, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    """By a reader that goes on; and it is nobody's fault."""
    header = json.loads(honest.schema.metadata[METADATA]) | changes
    table = honest.select(["group"]).replace_schema_metadata({METADATA: canonical.encode(header)})
    reader = tiny_run.context.sandbox._process
    with pytest.raises(UnknownVersion, match=named) as caught:
        tiny_run.context.sandbox.read(written(tmp_path, table))
    assert caught.value.exit_code == 10
    assert tiny_run.context.sandbox._process is reader


TURNS = 1024


@pytest.mark.parametrize(
    "columns",
    [
        {"turns": [1], "answers": []},
        {"answers": [1], "given": [5]},
        {"given": [5]},
        {"turns": [0], "answers": [1], "given": [5]},
        {"turns": [2, -1], "answers": [1, 1], "given": [5, 5]},
        {"turns": [2**31 - 1], "answers": [1], "given": [5]},
        {"turns": [1], "answers": [2**31 - 1], "given": [5]},
        {"turns": [1] * TURNS, "answers": [1] * TURNS, "given": [5] * TURNS},
        {"turns": [1] * 60_000, "answers": [1] * 60_000, "given": [5] * 60_000},
        {"given": [5] * 70_000},
        {"calls": [b"{}"]},
        {"calls": [b""] * 2000},
        {"turns": [1], "answers": [1], "given": [5], "calls": [b'{"turn":0}']},
        {"turns": [1], "answers": [1], "given": [5], "calls": [ToolCall(1, "", "", "").encode()]},
        {"turns": [1], "answers": [1], "given": [5], "calls": [b"[" * 5000]},
        {"turns": [1], "answers": [1], "given": [5], "calls": [b"x" * 300_000]},
    ],
    ids=["no answer", "no turn", "given without a turn", "empty turn", "decreasing", "a huge turn", "a huge answer", "a turn too many", "many turns",
         "many given tokens", "calls without an answer", "many calls", "half a call", "a call of the last turn", "deep call", "long calls"],
)  # fmt: skip
def test_turns_that_cannot_be_are_malformed(
    tiny_run: TinyRun, honest: pa.Table, tmp_path: Path, columns: dict[str, list[Any]]
) -> None:
    """Every row says so: huge counts are refused before anything of their size is made."""
    for name, value in columns.items():
        place = honest.column_names.index(name)
        column = pa.array([value] * len(honest), honest.schema.field(name).type)
        honest = honest.set_column(place, honest.schema.field(name), column)
    reader = tiny_run.context.sandbox._process
    with pytest.raises(Malformed):
        tiny_run.context.sandbox.read(written(tmp_path, honest, compression="zstd"))
    assert tiny_run.context.sandbox._process is reader


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.append_column("extra", pa.array([0] * len(t))),
        lambda t: t.set_column(0, "group", t.column("group").cast(pa.int64())),
        lambda t: t.select(t.column_names[::-1]),
    ],
    ids=["extra column", "wider integers", "another order"],
)
def test_departures_that_can_still_be_read_are_reported(
    tiny_run: TinyRun, honest: pa.Table, tmp_path: Path, change: object
) -> None:
    assert tiny_run.context.sandbox.read(written(tmp_path, change(honest))).problem  # type: ignore[operator]


def test_a_decompression_bomb_is_refused_by_what_it_declares(
    tiny_run: TinyRun, honest: pa.Table, tmp_path: Path
) -> None:
    bomb = pa.array([b"\0" * 4_000_000] * len(honest), pa.binary())
    path = written(tmp_path, honest.append_column("bomb", bomb), compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 100_000
    with pytest.raises(Malformed, match="declares more data"):
        tiny_run.context.sandbox.read(path)


def test_a_file_over_the_cap_is_not_even_opened(tiny_run: TinyRun, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(tiny_run.spec.file_bytes_max + 1)
    with pytest.raises(Malformed, match="more than"):
        tiny_run.context.sandbox.read(path)


def test_a_killed_child_is_replaced(tiny_run: TinyRun) -> None:
    with Sandbox(tiny_run.spec) as sandbox:
        sandbox.warm_up()
        assert sandbox._process
        os.kill(sandbox._process.pid, signal.SIGKILL)
        assert sandbox.read(tiny_run.honest().path).problem is None
        assert sandbox.restarts == 1


def test_a_silent_child_is_killed_at_its_deadline(tiny_run: TinyRun) -> None:
    with Sandbox(tiny_run.spec) as sandbox:
        sandbox.warm_up()
        assert sandbox._process
        os.kill(sandbox._process.pid, signal.SIGSTOP)
        sandbox._deadline = 0.5
        with pytest.raises(Unavailable, match="no answer within"):
            sandbox._ask({"op": "nothing"}, attempts=1)


def test_a_child_that_takes_no_request_is_killed_at_its_deadline(tiny_run: TinyRun) -> None:
    """A pipe holds 64 KiB: writing more to a child that hangs would block for ever, and with it all who wait their turn."""
    with Sandbox(tiny_run.spec) as sandbox:
        sandbox.warm_up()
        assert sandbox._process
        os.kill(sandbox._process.pid, signal.SIGSTOP)
        sandbox._deadline = 0.5
        patience = Patience(5)
        with pytest.raises(Unavailable, match="took no request"):
            sandbox._ask({"op": "nothing", "padding": "x" * (1 << 20)}, attempts=1)
        assert not patience.ended()


def test_environments_may_take_longer_to_open_than_to_answer(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their packages are imported then, from a busy disk perhaps."""
    popen = Sandbox._popen

    def stopped(sandbox: Sandbox) -> Any:
        process = popen(sandbox)
        os.kill(process.pid, signal.SIGSTOP)
        Timer(1.5, os.kill, (process.pid, signal.SIGCONT)).start()
        return process

    monkeypatch.setattr(Sandbox, "_popen", stopped)
    with Sandbox(tiny_run.spec, deadline=0.5) as sandbox:
        assert sandbox._running().poll() is None


def test_a_long_request_arrives_whole(tiny_run: TinyRun) -> None:
    answers = [(5, "x" * 100_000)] * 20
    assert tiny_run.context.sandbox.score(answers) == [0.0] * 20


@pytest.mark.parametrize(
    ("number", "is_of_others"), [(signal.SIGKILL, True), (signal.SIGTERM, True), (signal.SIGSEGV, False)]
)
def test_what_ends_a_child_from_outside_is_told_from_what_an_answer_does(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch, number: int, is_of_others: bool
) -> None:
    with Sandbox(tiny_run.spec) as sandbox:
        sandbox.warm_up()
        write, receive = sandbox._write, sandbox._receive

        def stops(process: Any, message: bytes) -> None:
            os.kill(process.pid, signal.SIGSTOP)  # or it may have answered before it is ended
            write(process, message)

        def ends(process: Any, deadline: float) -> Any:
            for each in (number, signal.SIGCONT):
                os.kill(process.pid, each)
            return receive(process, deadline)

        monkeypatch.setattr(sandbox, "_write", stops)
        monkeypatch.setattr(sandbox, "_receive", ends)
        with pytest.raises(Unavailable) as found:
            sandbox.bounds([(0, "x")], [0.0])
        assert isinstance(found.value, Interrupted) == is_of_others


def test_a_machine_that_cannot_run_programs_blames_no_answer(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Sandbox(tiny_run.spec) as sandbox:
        sandbox.warm_up()

        def fails(*_: object) -> Any:
            raise Unavailable("programs cannot be run on this machine now")

        with monkeypatch.context() as patch, pytest.raises(Interrupted, match="cannot be run"):
            patch.setattr(sandbox, "_receive", fails)
            sandbox.bounds([(0, "x")], [0.0])
        assert sandbox.bounds([(0, "x")], [0.0]) == [(0.0, 0.0)]


# ---- whose fault it is ---------------------------------------------------------------------------------------------------


def dies(process: Any) -> Any:
    process.kill()
    process.wait()
    raise ChildDied("it ended")


def stalls(process: Any) -> Any:
    raise ChildDied("no answer within 30 s")


def fails(process: Any) -> Any:
    return {"ok": False, "kind": "failed", "message": "ImportError: no pyarrow"}, {}


def exhausts(process: Any) -> Any:
    return {"ok": False, "kind": "exhausted", "message": "needs more memory than it may have"}, {}


def talks_nonsense(process: Any) -> Any:
    return {"ok": True, "header": 7, "problem": None}, {}


ONE_OF_EACH = [stalls, fails, talks_nonsense]
"""The child is ended, it says so itself, it is not believed."""


def faulty(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Any], Any], *, only: Path | None = None,
    times: int | None = None,
) -> list[str]:  # fmt: skip
    """From now on the reader has this fault, with all files or `only` one, for good or so many `times`. What it was asked."""
    send, asked = sandbox._send, []

    def sends(process: Any, request: dict[str, Any]) -> Any:
        if request["op"] == "read" and only in (None, Path(request["path"])):
            asked.append(request["path"])
            if times is None or len(asked) <= times:
                return fault(process)
        return send(process, request)

    monkeypatch.setattr(sandbox, "_send", sends)
    return asked


@pytest.mark.parametrize("fault", [*ONE_OF_EACH, exhausts], ids=lambda fault: fault.__name__)
def test_a_reader_that_fails_on_every_file_is_this_machines_trouble(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Any], Any]
) -> None:
    with Sandbox(tiny_run.spec) as sandbox:
        faulty(sandbox, monkeypatch, fault)
        with pytest.raises(Unavailable):
            sandbox.read(tiny_run.honest().path)


@pytest.mark.parametrize("fault", [*ONE_OF_EACH, dies], ids=lambda fault: fault.__name__)
def test_a_file_that_breaks_the_reader_every_time_is_malformed(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Any], Any]
) -> None:
    path = tiny_run.honest().path.resolve()
    with Sandbox(tiny_run.spec) as sandbox:
        asked = faulty(sandbox, monkeypatch, fault, only=path)
        with pytest.raises(Malformed, match="gave up"):
            sandbox.read(path)
        assert len(asked) == 2


@pytest.mark.parametrize("fault", ONE_OF_EACH, ids=lambda fault: fault.__name__)
def test_a_reader_that_fails_once_reads_the_file_after_all(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Any], Any]
) -> None:
    path = tiny_run.honest().path.resolve()
    with Sandbox(tiny_run.spec) as sandbox:
        faulty(sandbox, monkeypatch, fault, only=path, times=1)
        assert sandbox.read(path).problem is None


def test_a_file_that_this_disk_does_not_give_is_no_fault_of_its_maker(tiny_run: TinyRun, tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        tiny_run.context.sandbox.read(tmp_path / "missing")


def test_the_specimen_can_be_read_whatever_the_spec_allows(tiny_run: TinyRun) -> None:
    with Sandbox(tiny_run.spec.model_copy(update={"file_bytes_max": 1 << 10})) as sandbox:
        sandbox.require_reader()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Malformed("no rollout file"), "malformed"),
        (MemoryError(), "exhausted"),
        (pa.ArrowMemoryError("malloc failed"), "exhausted"),
        (OSError(5, "Input/output error"), "failed"),
        (OSError("Couldn't deserialize thrift"), "malformed"),
        (ImportError("no pyarrow"), "failed"),
    ],
    ids=str,
)
def test_the_child_blames_the_input_only_for_what_the_input_says(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str
) -> None:
    def breaking(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(pq, "ParquetFile", breaking)
    request = {
        "op": "read",
        "path": str(tiny_run.honest().path),
        "rows": 8,
        "tokens": 100,
        "bytes": 1 << 20,
        "logprobs": True,
    }
    sink = io.BytesIO()
    child.serve(io.BytesIO(wire.encode(request)), sink)
    sink.seek(0)
    head, _ = wire.read(sink.read, cap=0)
    assert head["kind"] == kind


def test_the_child_cannot_write_files_and_has_no_secrets(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", "canary-password")
    with Sandbox(tiny_run.spec) as sandbox:
        sandbox.warm_up()
        assert sandbox._process
        pid = sandbox._process.pid
        assert b"canary" not in Path(f"/proc/{pid}/environ").read_bytes()
        limits = Path(f"/proc/{pid}/limits").read_text()
    assert "Max file size             0                    0" in limits


def test_arrow_is_loaded_where_files_are_read_and_before_the_first(tiny_run: TinyRun) -> None:
    for sandbox, reads in ((EnvironmentSandbox(tiny_run.spec.environments), False), (Sandbox(tiny_run.spec), True)):
        with sandbox:
            sandbox.warm_up()
            assert sandbox._process
            assert ("libparquet" in Path(f"/proc/{sandbox._process.pid}/maps").read_text()) is reads


def test_arrow_has_one_thread_of_each_kind_there(tiny_run: TinyRun) -> None:
    asks = [sys.executable, "-c", "import pyarrow; print(pyarrow.cpu_count(), pyarrow.io_thread_count())"]
    told = subprocess.run(
        asks, env=tiny_run.context.sandbox._variables(), capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout.split() == ["1", "1"]


def test_memory_is_capped(tiny_run: TinyRun) -> None:
    with Sandbox(tiny_run.spec, memory=1 << 31) as sandbox:
        sandbox.warm_up()
        assert sandbox._process
        limits = Path(f"/proc/{sandbox._process.pid}/limits").read_text()
    line = next(line for line in limits.splitlines() if line.startswith("Max address space"))
    assert str(1 << 31) in line


def test_scores_are_the_verifiers(tiny_run: TinyRun) -> None:
    problem = tiny_run.context.tasks.problem(5)
    answers = [(5, str(problem.answer)), (5, "nonsense"), (5, None)]
    assert tiny_run.context.sandbox.score(answers) == [1.0, 0.0, 0.0]
    held_out = tiny_run.context.tasks.held_out[3]
    assert tiny_run.context.sandbox.score([(3, str(held_out.answer))], held_out=True) == [1.0]


def test_an_impossible_request_is_no_verdict(tiny_run: TinyRun) -> None:
    with pytest.raises(Unavailable):
        tiny_run.context.sandbox.score([(10**9, "x")])


@pytest.mark.parametrize(
    "field",
    ["version", "proof", "protocol", "node", "beacon"],
)
def test_a_header_of_wrong_types_is_malformed(tiny_run: TinyRun, field: str) -> None:
    header = tiny_run.read(tiny_run.honest()).header
    assert Header.parse(header.encode()) == header
    value = json.loads(header.encode()) | {field: [1]}
    with pytest.raises(Malformed, match=field):
        Header.parse(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())
    with pytest.raises(Malformed):
        Header.parse(replace(header, step=True).encode())


def test_messages_between_parent_and_child_are_bounded() -> None:
    data = wire.encode({"a": 1}, {"x": np.arange(3, dtype=np.int32)})
    source = iter([data[:4], data[4 : 4 + int.from_bytes(data[:4], "big")], data[-12:]])
    head, arrays = wire.read(lambda _: next(source), cap=12)
    assert head == {"a": 1}
    assert arrays["x"].tolist() == [0, 1, 2]
    for broken in (b"\xff\xff\xff\xff", (2).to_bytes(4, "big") + b"{}", (4).to_bytes(4, "big") + b"null"):
        rest = [broken]

        def receive(count: int, rest: list[bytes] = rest) -> bytes:
            part, rest[0] = rest[0][:count], rest[0][count:]
            return part

        with pytest.raises(wire.WireError):
            wire.read(receive, cap=10)
    with pytest.raises(wire.WireError):
        wire.split(np.arange(3), np.array([0, 5, 3]), 2)
