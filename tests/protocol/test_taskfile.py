"""Task files: any row at once and in bounded memory, the same for everybody, and nothing believed that a file says of itself."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from swarm.tiny_run import TinyRun, run_tables
from typer.testing import CliRunner

from protocol import runspec
from protocol.environments import answer, assignment, taskfile
from protocol.environments.problems import Problems
from protocol.environments.taskfile import Groups
from protocol.errors import ConfigError, HashMismatch, Malformed, PreflightError, UsageError
from protocol.runspec import FromFiles, RunSpec, TaskFile
from protocol.sandbox import Sandbox
from protocol.settings import write_toml
from protocol.shell import runfile
from tests.tasks_in_process import task_set
from trainer.commands import app

HOSTILE = Path(__file__).parent.parent / "vectors/rollouts"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine's task files."""
    made = tmp_path / "machine"
    monkeypatch.setenv("MURMUR_TASKS", str(made))
    return made


@pytest.fixture(scope="module")
def reader(tiny_run: TinyRun) -> Iterator[Sandbox]:
    with Sandbox(tiny_run.spec) as sandbox:
        yield sandbox


def rows(count: int, start: int = 0) -> Iterator[tuple[str, str]]:
    return ((f"What is {i} + 1?", str(i + 1)) for i in range(start, start + count))


def made(path: Path, count: int, start: int = 0) -> TaskFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    taskfile.write(rows(count, start), path)
    return taskfile.add(path)


def environment(files: list[TaskFile], **changes: Any) -> FromFiles:
    total = sum(file.rows for file in files)
    values = {
        "package": "parquet", "version": "1", "dataset": "sums", "files": [file.model_dump() for file in files],
        "seed": 0, "held_out_seed": 0, "head": "0" * 64, "exact": True, "size": total, "held_out_size": 0, **changes,
    }  # fmt: skip
    return FromFiles.model_validate(values)


def groups_of(path: Path, sizes: list[int]) -> None:
    """A valid file of exactly these row groups."""
    with pq.ParquetWriter(path, taskfile._schema(), use_dictionary=False, write_statistics=False) as writer:
        for number, size in enumerate(sizes):
            table = pa.table([[f"{number}.{i}" for i in range(size)], ["x"] * size], schema=taskfile._schema())
            writer.write_table(table, row_group_size=size)


# ---- problems by index -----------------------------------------------------------------------------------------------------


def test_any_problem_of_several_files_is_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taskfile, "_GROUP_ROWS", 7)
    files = [made(tmp_path / "a", 100), made(tmp_path / "b", 1, 100), made(tmp_path / "c", 50, 101)]
    tasks = task_set([environment(files, size=140, held_out_size=11)])
    order = list(range(140))
    random.Random(1).shuffle(order)
    for index in order:
        problem = tasks.problem(index)
        assert (problem.prompt, problem.answer) == (f"What is {index} + 1?", str(index + 1))
    assert Problems(tasks.specs).score([(7, "8"), (7, "no"), (139, "140")]) == [1.0, 0.0, 1.0]
    assert [p.prompt for p in tasks.held_out] == [f"What is {i} + 1?" for i in range(140, 151)]
    with pytest.raises(IndexError):
        tasks.problem(140)


def test_a_training_problem_that_is_held_out_elsewhere_is_never_assigned(tmp_path: Path, tiny_run: TinyRun) -> None:
    path = tmp_path / "tasks.parquet"
    taskfile.write([*rows(3), ("What is 1 + 1?", "2")], path)
    spec = environment([taskfile.add(path)], size=3, held_out_size=1)
    tasks = task_set([spec])
    assert [problem.is_held_out for problem in tasks.problems(range(3))] == [False, True, False]
    run = tiny_run.spec.model_copy(update={"environments": [spec]})
    drawn = [g.problem.index for seed in range(20) for g in assignment.assign(run, tasks, bytes([seed]) * 32, 0)]
    assert set(drawn) == {0, 2}


def test_the_sandbox_scores_problems_of_files(tmp_path: Path, tiny_run: TinyRun) -> None:
    spec = environment([made(tmp_path / "a", 20)], size=15, held_out_size=5)
    with Sandbox(tiny_run.spec.model_copy(update={"environments": [spec]})) as sandbox:
        assert sandbox.score([(3, "\\boxed{4}"), (3, "5"), (14, "so\n15."), (0, None)]) == [1.0, 0.0, 1.0, 0.0]
        assert sandbox.score([(0, "16"), (4, "16")], held_out=True) == [1.0, 0.0]


def test_only_the_row_groups_that_are_asked_for_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups_of(tmp_path / "a", [10] * 100)
    spec = environment([taskfile.add(tmp_path / "a")])
    read: list[int] = []
    original = Groups.read

    def noted(self: Groups, group: int) -> Any:
        read.append(group)
        return original(self, group)

    monkeypatch.setattr(Groups, "read", noted)
    tasks = task_set([spec])
    assert read == []
    for index in (995, 996, 5, 997, 990):
        assert tasks.problem(index).prompt == f"{index // 10}.{index % 10}"
    assert read == [99, 0]
    for group in range(10):
        tasks.problem(group * 10)
    tasks.problem(0)
    assert read == [99, 0, *range(1, 10), 0]  # what was not asked for lately is not kept


GROWTH = """
import random, resource, sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet
from protocol.environments.problems import Problems
from protocol.runspec import FromFiles
import json

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

spec = FromFiles.model_validate(json.loads(sys.argv[1]))
tasks = Problems([spec])
tasks.problems([0])
before, most = resident(), 0
for index in random.Random(0).sample(range(spec.size), 300):
    tasks.problems([index])
    most = max(most, resident())
print(most - before)
"""


def test_a_large_set_takes_bounded_memory(tmp_path: Path) -> None:
    """200,000 problems, 200 MB of text; a reader that held them all would grow by as much."""
    path = tmp_path / "large.parquet"
    taskfile.write(((f"{i} " + "word " * 200, str(i)) for i in range(200_000)), path)
    metadata = pq.ParquetFile(path).metadata
    assert sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)) > 190 << 20
    spec = environment([taskfile.add(path)])
    environment_ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", GROWTH, spec.model_dump_json()]
    done = subprocess.run(command, capture_output=True, text=True, env=environment_, timeout=100, check=True)
    assert int(done.stdout) < 64 << 20


# ---- answers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("42", "42"), ("  42 \n", "42"), ("42.", "42"), ("42.0", "42"), ("+42", "42"), ("1,000", "1000"), ("0.5", "1/2"), (".5", "1/2"),
        ("1e3 is wrong\n\n1000", "1000"), ("first\nthen\nred  car", "red car"), ("\\boxed{7} \\boxed{42}\nthat is it", "42"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"), ("<think>\\boxed{41}</think>\n42", "42"), ("$42$", "42"), ("10/4", "2.5"),
    ],
)  # fmt: skip
def test_a_right_answer_is_right(completion: str, expected: str) -> None:
    assert answer.is_right(completion, expected)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("", "42"), ("42\nor 43", "42"), ("\\boxed{42", "42}"), ("\\boxed{41} 42", "42"), ("<think>42</think>", "42"), ("<think>So \\boxed{42}", "42"), ("a</think> <think>\n42", "42"),
        ("4 2 1", "42"), ("1/0", "1"), ("\\boxed{42}</think>\n7", "42"), ("nan", "0"), ("1e3", "1000"), ("1,00", "100"), ("9" * 100_000, "9"), ("٤٢", "42"),
        ("42", "42 apples"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_wrong(completion: str, expected: str) -> None:
    assert not answer.is_right(completion, expected)


@pytest.mark.parametrize(
    "bomb", ["\\boxed{" * 200_000, "," * 1_000_000, "1" * 1_000_000 + "/", "}" * 1_000_000, "9,999" * 200_000]
)
def test_no_answer_takes_long(bomb: str) -> None:
    began = time.process_time()
    answer.is_right(bomb, "9")
    answer.is_right("9", bomb)
    assert time.process_time() - began < 3


# ---- files that are made ---------------------------------------------------------------------------------------------------


def test_a_task_file_is_made_of_parquet_and_jsonl(tmp_path: Path) -> None:
    table = pa.table({"problem": ["a", "b"], "other": [1, 2], "solution": [1, 2]})
    pq.write_table(table, tmp_path / "one.parquet")
    lines = [{"problem": "c", "solution": "x"}, {"problem": "d", "solution": 4, "more": []}]
    (tmp_path / "two.jsonl").write_text("\n".join(map(json.dumps, lines)))
    out = tmp_path / "tasks.parquet"
    arguments = ["tasks", str(out), str(tmp_path / "one.parquet"), str(tmp_path / "two.jsonl")]
    done = CliRunner().invoke(app, [*arguments, "--question", "problem", "--answer", "solution", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"file": str(out), "rows": 4}
    found = task_set([environment([taskfile.add(out)])])
    assert [(p.prompt, p.answer) for p in map(found.problem, range(4))] == [
        ("a", "1"), ("b", "2"), ("c", "x"), ("d", "4"),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="exists already"):
        taskfile.convert([], out, "question", "answer")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"question": "q"}', "has no 'answer'"), ('{"question": "q", "answer": null}', "something else than text"),
        ("[]", "has no"), ("nonsense", "no JSON"), ('{"question": "", "answer": "a"}', "row 0"), ("", "there are no rows"),
        ('{"question": "' + "q" * (1 << 20) + 'q", "answer": "a"}', "row 0"), ('{"question": "q", "answer": true}', "else than text"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_named_and_leave_no_file(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "in.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        taskfile.convert([tmp_path / "in.jsonl"], tmp_path / "out.parquet", "question", "answer")
    assert not (tmp_path / "out.parquet").exists()


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    pq.write_table(pa.table({"problem": ["a"], "answer": ["b"]}), tmp_path / "in.parquet")
    with pytest.raises(ConfigError, match="no column 'question', but problem, answer"):
        taskfile.convert([tmp_path / "in.parquet"], tmp_path / "out.parquet", "question", "answer")


def test_the_folder_of_a_task_file_is_made(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"question": "q", "answer": "a"}')
    out = tmp_path / "tasks/math/all.parquet"
    done = CliRunner().invoke(app, ["tasks", str(out), str(tmp_path / "in.jsonl"), "--json"])
    assert done.exit_code == 0, done.output
    assert taskfile.add(out).rows == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError, match="cannot make the folder"):
        taskfile.write([("q", "a")], tmp_path / "file/x.parquet")


@pytest.mark.parametrize("name", ["no.jsonl", "no.parquet"])
def test_a_source_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot read .*{name}"):
        taskfile.convert([tmp_path / name], tmp_path / "out.parquet", "question", "answer")


# ---- files that are not to be believed ---------------------------------------------------------------------------------------


def table(**changes: Any) -> pa.Table:
    columns = {"question": pa.array(["q"] * 10), "answer": pa.array(["a"] * 10), **changes}
    return pa.table({name: column for name, column in columns.items() if column is not None})


def plain(path: Path, content: pa.Table, **how: Any) -> None:
    pq.write_table(content, path, **{"use_dictionary": False, "write_statistics": False, **how})


def flipped(path: Path) -> None:
    groups_of(path, [1000])
    data = bytearray(path.read_bytes())
    data[100:140] = bytes(40)
    path.write_bytes(data)


def cut(path: Path) -> None:
    groups_of(path, [1000])
    path.write_bytes(path.read_bytes()[:-100])


WRONG: dict[str, Callable[[Path], object]] = {
    "nullable": lambda path: plain(path, table()),
    "one column more": lambda path: plain(path, table(more=pa.array([1] * 10))),
    "one column less": lambda path: plain(path, table(answer=None)),
    "another type": lambda path: plain(path, table(answer=pa.array([1] * 10))),
    "dictionaries": lambda path: plain(path, table().cast(taskfile._schema()), use_dictionary=True),
    "a bomb": lambda path: plain(
        path, pa.table([["q" * (1 << 20)] * 17, ["a"] * 17], schema=taskfile._schema()), compression="zstd"
    ),
    "too many groups": lambda path: groups_of(path, [1] * (taskfile.GROUPS_MAX + 1)),
    "no rows": lambda path: plain(path, pa.table([[], []], schema=taskfile._schema())),
    "flipped bytes": flipped,
    "cut off": cut,
    "empty": lambda path: path.write_bytes(b""),
    "no Parquet": lambda path: path.write_bytes(b"PAR1" + os.urandom(1000) + b"PAR1"),
    "a pickle": lambda path: path.write_bytes(b"cos\nsystem\n(S'true'\ntR."),
}


@pytest.mark.parametrize("write", WRONG.values(), ids=WRONG.keys())
def test_what_is_no_task_file_is_refused_by_researcher_and_sandbox(
    tmp_path: Path, reader: Sandbox, folder: Path, write: Callable[[Path], object]
) -> None:
    write(tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match="cannot be used"):
        taskfile.add(tmp_path / "x.parquet")
    assert list(folder.iterdir()) == []
    with pytest.raises(Malformed):
        reader.require_task_file(tmp_path / "x.parquet")
    assert reader.restarts == 0


@pytest.mark.parametrize("path", sorted(HOSTILE.iterdir()), ids=lambda path: path.stem)
def test_files_that_end_other_readers_are_refused(path: Path) -> None:
    with pytest.raises(Malformed):
        Groups(path)


def test_the_sandbox_reads_all_of_a_large_file(tmp_path: Path, reader: Sandbox) -> None:
    """A fault in the last row group, far behind what one request reads."""
    groups_of(tmp_path / "x", [1000] * 40)
    reader.require_task_file(tmp_path / "x")
    place = pq.ParquetFile(tmp_path / "x").metadata.row_group(39).column(0).data_page_offset
    data = bytearray((tmp_path / "x").read_bytes())
    data[place + 60 : place + 100] = b"\xff" * 40
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(Malformed):
        reader.require_task_file(tmp_path / "x")


# ---- the run spec ------------------------------------------------------------------------------------------------------------


def spec_of(tmp_path: Path, tiny_run: TinyRun, **changes: Any) -> RunSpec:
    tables = run_tables()
    tables["spec"]["environments"] = [
        {"package": "parquet", "dataset": "sums", "files": ["a.parquet", "b.parquet"], "size": 100, "held_out_size": 20, **changes}
    ]  # fmt: skip
    write_toml(tmp_path / "run.toml", tables, "x")
    return runfile.complete(tmp_path / "run.toml", tiny_run.model)


def test_a_run_names_its_files_by_path_and_pins_them_by_digest(tmp_path: Path, tiny_run: TinyRun, folder: Path) -> None:
    for name, start in (("a", 0), ("b", 60)):
        taskfile.write(rows(60, start), tmp_path / f"{name}.parquet")
    spec = spec_of(tmp_path, tiny_run)
    assert runspec.from_bytes(spec.canonical(), spec.digest) == spec
    assert [file.rows for file in spec.task_files] == [60, 60]
    assert sorted(path.stem for path in folder.iterdir()) == sorted(file.sha256 for file in spec.task_files)
    tasks = task_set(spec.environments)
    tasks.require_same_problems()
    assert tasks.problem(99).prompt == "What is 99 + 1?"
    taskfile.write(rows(60, 61), tmp_path / "b.parquet")
    assert spec_of(tmp_path, tiny_run).digest != spec.digest


def test_a_file_that_is_here_is_not_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = made(tmp_path / "a", 10)
    monkeypatch.setattr(taskfile.shutil, "copyfile", lambda *_: pytest.fail("copied again"))
    assert taskfile.add(tmp_path / "a") == file


def test_a_file_that_is_not_here_or_was_changed_is_noticed(tmp_path: Path, tiny_run: TinyRun) -> None:
    file = made(tmp_path / "a", 300)
    tasks = task_set([environment([file], head="0" * 64)])
    path = taskfile.path_of(file)
    path.rename(tmp_path / "away")
    with pytest.raises(ConfigError, match="there is no task file"):
        tasks.require_same_problems()
    taskfile.write(rows(300, 1), path)
    with pytest.raises(HashMismatch, match="was changed"):
        tasks.require_same_problems()
    taskfile.write(rows(299), path)
    with pytest.raises(Malformed, match="299 rows"):
        tasks.require_same_problems()


def test_specs_without_files_keep_their_digest(tiny_run: TinyRun) -> None:
    assert b"files" not in tiny_run.spec.canonical()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"size": 101}, "101 \\+ 20 problems in files of 120 rows"), ({"files": []}, "files: must have at least 1"), ({"seed": 1}, "seed: must be 0"),
        ({"config": {"a": 1}}, "unknown setting 'config.a'"), ({"files": "a.parquet"}, "files"),
        ({"files": ["nothing"]}, "nothing cannot be used"),
    ],
)  # fmt: skip
def test_a_wrong_environment_of_files_is_named(
    tmp_path: Path, tiny_run: TinyRun, changes: dict[str, Any], complaint: str
) -> None:
    for name in "ab":
        taskfile.write(rows(60), tmp_path / f"{name}.parquet")
    with pytest.raises(ConfigError, match=complaint):
        spec_of(tmp_path, tiny_run, **changes)


def test_files_belong_to_no_environment_that_draws_from_seeds() -> None:
    spec = environment([TaskFile(sha256="0" * 64, rows=1, size=1)], package="reasoning-gym", version="0.1.25")
    with pytest.raises(ConfigError, match="takes no `files`"):
        task_set([spec])


def test_a_file_without_a_column_is_told_which(tmp_path: Path) -> None:
    pq.write_table(pa.table({"problem": ["a"], "answer": ["b"]}), tmp_path / "x.parquet", use_dictionary=False)
    with pytest.raises(ConfigError, match="no column 'question', but problem, answer"):
        taskfile.add(tmp_path / "x.parquet")


def test_a_place_where_no_file_can_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "questions.parquet").mkdir()
    with pytest.raises(PreflightError, match=r"cannot write .*questions.parquet: Is a directory"):
        taskfile.write([("What is 1 + 1?", "2")], tmp_path / "questions.parquet")
