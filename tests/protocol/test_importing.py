"""Importing data sets: each schema becomes problems that its environment scores, bad rows are counted, and bad files lose nothing."""

from __future__ import annotations

import base64
import csv
import json
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from protocol.environments import taskfile
from protocol.environments.code import CodeConfig, cases_of
from protocol.environments.importing import importer, private, programs, schemas, sources
from protocol.environments.importing.importer import ImportReport, Options
from protocol.environments.importing.overlap import HeldOut
from protocol.environments.importing.sieve import RateBand
from protocol.environments.importing.task import LeftOut, excerpt
from protocol.environments.problems import Problems
from protocol.environments.registry import version_of
from protocol.errors import ConfigError, UsageError
from protocol.runspec import FromFiles
from protocol.shell import runfile
from protocol.shell.commands.env import app

STDIN = {"type": "stdin_stdout", "input": "1 2\n", "output": "3\n", "fn_name": None}
CALL = {"type": "function_call", "fn_name": "add", "input": [1, 2], "output": [3]}
CONTEST = [{"input": "1", "output": "1", "testtype": "stdin"}, {"input": "2", "output": "2", "testtype": "stdin"}]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MURMUR_TASKS", str(tmp_path / "machine"))


def packed(text: object, protocol: int = 4) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(text, protocol))).decode()


def intellect(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "problem_id": f"p{number}", "task_type": "verifiable_math", "solve_rate_qwen_r1_distill_7b": 0.5,
        "prompt": f"What do you get when {number} is added to the number of days in a week?",
        "verification_info": json.dumps({"ground_truth": str(number + 7)}), **changes,
    }  # fmt: skip


def code(info: Any, **changes: Any) -> dict[str, Any]:
    return intellect(task_type="verifiable_code", prompt="Add two numbers.", verification_info=info, **changes)


def contest(private_tests: str = json.dumps(CONTEST[1:]), **changes: Any) -> dict[str, Any]:
    return {
        "question_title": "Echo", "question_content": "Print what you read.", "platform": "atcoder", "starter_code": "",
        "public_test_cases": json.dumps(CONTEST[:1]), "private_test_cases": private_tests, "metadata": "{}", **changes,
    }  # fmt: skip


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def imported(
    folder: Path, rows: Sequence[Mapping[str, Any]], **options: Any
) -> tuple[ImportReport, list[tuple[str, str]]]:
    """The report, and all rows of all task files, the held-out ones last."""
    folder.mkdir(exist_ok=True)
    report = importer.run([lines(folder / "rows.jsonl", rows)], folder / "out", Options(**options))
    return report, written(folder / "out", report)


def written(out: Path, report: ImportReport) -> list[tuple[str, str]]:
    files = [out / part.file for made in report.environments.values() for part in made.files]
    return [(row["question"], row["answer"]) for file in files for row in pq.read_table(file).to_pylist()]


def reasons(report: ImportReport) -> dict[str, int]:
    return {why: reason.rows for why, reason in report.left_out.items()}


# ---- schemas -----------------------------------------------------------------------------------------------------------

GPQA = {
    "Record ID": "r", "Subdomain": "s", "Question": "Which is a noble gas?", "Correct Answer": "neon", "Explanation": "…",
    "Incorrect Answer 1": "iron", "Incorrect Answer 2": "tin", "Incorrect Answer 3": "lead",
}  # fmt: skip
NUMINA = {
    "problem": "Half of 14?", "solution": r"So $\boxed{\frac{14}{2}}$ is right: $\boxed{7}$.", "answer": "7", "problem_type": "Algebra",
    "question_type": "math-word-problem", "problem_is_valid": "Yes", "solution_is_valid": "Yes", "source": "x", "synthetic": False,
}  # fmt: skip
SUBSET = {"source": "x", "problem": "Half of 14?", "solution": r"It is $\boxed{\frac{14}{2}}$.", "messages": []}
MATH_500 = {
    "problem": "Half of 14?", "solution": "…", "answer": "7", "subject": "Algebra", "level": 1, "unique_id": "test/1.json",
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "row", "package", "answer"),
    [
        ("synthetic-1", intellect(1), "math", "8"),
        ("synthetic-1", intellect(1, verification_info="{'ground_truth': '\\\\frac{1}{2}'}"), "math", r"\frac{1}{2}"),
        ("synthetic-1", intellect(1, verification_info={"ground_truth": 8}), "math", "8"),
        ("synthetic-1", intellect(1, verification_info={"ground_truth": ["8"]}), "math", "8"),
        ("numina-math", NUMINA, "math", "7"),
        ("numina-math", SUBSET, "math", r"\frac{14}{2}"),
        ("deepscaler", {"problem": "Half of 14?", "answer": "7", "solution": ""}, "math", "7"),
        ("math-500", MATH_500, "math", "7"),
        ("aime", {"id": 60, "problem": "Half of 66?", "solution": "", "answer": "033", "url": "…", "year": "2024"}, "math", "33"),
        ("aime", {"ID": "2024-I-1", "Problem": "Half of 66?", "Solution": "", "Answer": 33}, "math", "33"),
        ("aime", {"problem_idx": 1, "problem": "Half of 66?", "answer": 33}, "math", "33"),
        ("aime", {"problem": "Half of 66?", "answer": 33.0, "url": "…"}, "math", "33"),
        ("aime", {"ID": "1983-1", "Year": "1983", "Question": "Half of 66?", "Answer": "33"}, "math", "33"),
        ("deepscaler", {"problem": "Half of 66?", "answer": "33", "id": "0"}, "math", "33"),
        ("numina-math", {**SUBSET, "solution": r"It is $\boxed 7$."}, "math", "7"),
        ("numina-math", {**SUBSET, "solution": r"It is $\fbox{7}$."}, "math", "7"),
        ("gpqa", GPQA, "math", None),
        ("livecodebench", contest(private_test_cases=None), "code", None),
        ("livecodebench", contest(private_test_cases=[], public_test_cases=CONTEST, metadata={}), "code", None),
        ("livecodebench", contest(), "code", None),
    ],
)  # fmt: skip
def test_a_row_of_each_schema_becomes_a_task(
    tmp_path: Path, schema: str, row: dict[str, Any], package: str, answer: str | None
) -> None:
    report, tasks = imported(tmp_path, [row])
    assert (report.sources[0].schema, list(report.environments), reasons(report)) == (schema, [package], {})
    assert len(tasks) == 1
    if answer is not None:
        assert tasks[0][1] == answer


def test_parquet_json_csv_and_jsonl_are_read_alike(tmp_path: Path) -> None:
    rows = [GPQA, {**GPQA, "Question": "Which is a metal, say,\nat room temperature?"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.json").write_text(json.dumps(rows, indent=1))
    with (tmp_path / "rows.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(GPQA))
        writer.writeheader()
        writer.writerows(rows)
    lines(tmp_path / "rows.jsonl", rows)
    found = []
    for kind in ("parquet", "json", "csv", "jsonl"):
        report = importer.run([tmp_path / f"rows.{kind}"], tmp_path / kind, Options())
        found.append(written(tmp_path / kind, report))
    assert len(found[0]) == 2
    assert found == [found[0]] * 4


def test_the_letter_of_a_choice_is_where_the_right_one_stands(tmp_path: Path) -> None:
    rows = [{**GPQA, "Question": f"Which is a noble gas, asked for the time {i}?"} for i in range(30)]
    _, tasks = imported(tmp_path, rows)
    assert all(f"\n{letter}) neon\n" in question for question, letter in tasks)
    assert {letter for _, letter in tasks} == set("ABCD")


def test_what_is_imported_is_asked_and_scored(tmp_path: Path) -> None:
    report, _ = imported(tmp_path, [intellect(i) for i in range(4)] + [MATH_500, GPQA], schema=None, held_out=1)
    assert reasons(report) == {"no prompt": 2}  # one file, one schema
    made = report.environments["math"]
    files = [taskfile.add(tmp_path / "out" / part.file) for part in made.files]
    assert [file.sha256 for file in files] == [part.sha256 for part in made.files]
    spec = FromFiles(
        package="math", version=version_of("math"), dataset="x", files=files, head="0" * 64, exact=False,
        size=made.training, held_out_size=made.held_out,
    )  # fmt: skip
    problems = Problems([spec])
    asked = problems.problems(range(made.training)) + problems.held_out()
    assert len({problem.prompt for problem in asked}) == 4
    assert not any(problem.is_held_out for problem in asked[:3])
    answers = [f"It is \\boxed{{{int(problem.prompt.split()[5]) + 7}}}." for problem in asked]
    assert problems.score([(i, answers[i]) for i in range(3)]) == [1.0] * 3
    assert problems.score([(0, answers[3])], held_out=True) == [1.0]
    assert problems.score([(0, "\\boxed{-1}")]) == [0.0]


def test_run_toml_takes_the_tables_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines(
        tmp_path / "rows.jsonl",
        [*(intellect(i) for i in range(6)), code({"language": "python", "test_cases": [STDIN]})],
    )
    monkeypatch.chdir(tmp_path)
    importer.run([Path("rows.jsonl")], Path("tasks"), Options(part_rows=2))
    (tmp_path / "run.toml").write_text((tmp_path / "tasks/environments.toml").read_text())
    specs = runfile.environments(tmp_path / "run.toml")
    assert [(spec.package, spec.size, len(spec.files)) for spec in specs if isinstance(spec, FromFiles)] == [
        ("math", 6, 3), ("code", 1, 1),
    ]  # fmt: skip


# ---- programs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("info", [json.dumps, repr, lambda table: table], ids=["JSON", "Python's literal", "a table"])
def test_tests_of_synthetic_1_are_read_however_they_are_written(tmp_path: Path, info: Callable[[Any], Any]) -> None:
    given = {"language": "python", "test_cases": [STDIN, CALL, {**STDIN, "input": ["4 5", "6"], "output": 9}]}
    _, [(question, answer)] = imported(tmp_path, [code(info(given))])
    assert question == "Add two numbers."
    tests = cases_of(answer)
    assert [(test.data, test.function, test.output) for test in tests] == [
        ("1 2\n", "", "3\n"), ("[1, 2]", "add", [3]), ("4 5\n6", "", "9"),
    ]  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("length", [3, 300, 70_000])
def test_private_tests_are_unpacked_from_every_pickle_of_a_text(protocol: int, length: int) -> None:
    text = "é" + "x" * length
    assert private.unpacked(packed(text, protocol)) == text


def test_a_test_that_cannot_be_used_is_left_out_and_counted_and_the_problem_stays(tmp_path: Path) -> None:
    info = {
        "language": "python",
        "test_cases": json.dumps([{**STDIN, "input": None}, STDIN, {**CALL, "output": float("nan")}]),
    }
    bad = {"input": "{", "output": "1", "testtype": "functional"}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder, row in (("a", code(info)), ("b", contest(json.dumps([bad, CONTEST[1], {**bad, "input": 7}])))):
        report, [(_, answer)] = imported(tmp_path / folder, [row])
        made = report.environments["code"]
        assert (made.problems_with_fewer_tests, made.tests_left_out, made.tests_unusable) == (1, 0, 2)
        assert len(cases_of(answer)) == (1 if folder == "a" else 2)


@pytest.mark.parametrize("metadata", ["{}", "", None, '{"func_name": ""}', '{"func_name": "two words"}', "null", "7"])
def test_a_call_of_a_function_that_has_no_name_is_left_out_and_counted(tmp_path: Path, metadata: Any) -> None:
    call = {"input": "1", "output": "1", "testtype": "functional"}
    unknown = {**CONTEST[1], "testtype": "interactive"}
    rows = [
        contest(json.dumps([call, CONTEST[1], unknown]), metadata=metadata),
        contest(json.dumps([call]), question_content="Double it.", public_test_cases="[]", metadata=metadata),
    ]
    report, [(_, answer)] = imported(tmp_path, rows)
    assert [test.data for test in cases_of(answer)] == ["1", "2"]
    assert report.environments["code"].tests_unusable == 2
    assert reasons(report) == {"a call of a function whose name is not known": 1}


def test_arguments_of_a_contest_may_end_in_a_line_feed(tmp_path: Path) -> None:
    call = [{"input": "1\n2\n", "output": "3", "testtype": "functional"}]
    _, [(_, answer)] = imported(
        tmp_path, [contest("", public_test_cases=json.dumps(call), metadata='{"func_name": "add"}')]
    )
    assert [test.data for test in cases_of(answer)] == ["[1, 2]"]


def test_private_tests_mean_the_same_packed_and_plain(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    _, plain = imported(tmp_path / "a", [contest()])
    _, of_pickle = imported(tmp_path / "b", [contest(packed(json.dumps(CONTEST[1:])))])
    assert plain == of_pickle
    assert [test.data for test in cases_of(plain[0][1])] == ["1", "2"]


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickle_that_would_run_something_is_left_out_and_runs_nothing(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    hostile = [Evil(canary), ["[]", Evil(canary)], {"a": Evil(canary)}, 7, ["[]"], b"[]", None, ("[]", "[]")]
    rows = [contest(packed(one, protocol)) for one in hostile for protocol in (0, 2, 4)]
    rows += [contest(base64.b64encode(zlib.compress(pickle.dumps("[]") + b"cos\nsystem\n.")).decode())]
    report, tasks = imported(tmp_path, [contest(question_content="An honest one."), *rows])
    assert len(tasks) == 1
    assert reasons(report) == {"private tests that are not packed as LiveCodeBench's": len(rows)}
    assert not canary.exists()
    pickle.loads(pickle.dumps(hostile[0]))
    assert canary.exists()  # or nothing above would say much


def test_what_unpacks_to_too_much_is_never_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "INFLATED_MAX", 1000)
    bomb = base64.b64encode(zlib.compress(b"\x80\x04X" + bytes(1 << 22))).decode()
    with pytest.raises(LeftOut, match="too large"):
        private.unpacked(bomb)
    monkeypatch.setattr(private, "ROW_BYTES_MAX", 100)
    with pytest.raises(LeftOut, match="too large"):
        private.unpacked(bomb)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_packed_tests_that_end_early_are_left_out(cut: int) -> None:
    data = zlib.compress(pickle.dumps("x" * 50))
    for broken in (base64.b64encode(data[:-cut]).decode(), packed("x" * 50)[:-cut]):
        with pytest.raises(LeftOut):
            private.unpacked(broken)
    with pytest.raises(LeftOut):
        private.text_of(pickle.dumps("x" * 50)[:-cut])


def test_only_one_text_is_taken_from_a_pickle() -> None:
    assert private.text_of(b"\x80\x04\x8c\x01a.") == "a"
    for two in (b"\x80\x04\x8c\x01a\x8c\x01b.", b"\x80\x04\x8c\x01a.\x8c\x01b.", b"\x80\x04."):
        with pytest.raises(LeftOut):
            private.text_of(two)


def test_tests_that_a_row_has_no_room_for_are_left_out_and_counted(tmp_path: Path) -> None:
    large = {**STDIN, "input": "7" * (900 << 10)}
    found = [STDIN, large, {**large, "output": "4"}, *([STDIN] * 300)]
    report, [(_, answer)] = imported(tmp_path, [code({"language": "python", "test_cases": found})])
    made = report.environments["code"]
    assert len(cases_of(answer)) == programs.TESTS_MAX
    assert (made.problems_with_fewer_tests, made.tests_left_out) == (1, len(found) - programs.TESTS_MAX)
    assert len(answer.encode()) <= taskfile.TEXT_BYTES_MAX
    CodeConfig(tests=programs.TESTS_MAX)
    with pytest.raises(ValueError, match="less than or equal"):
        CodeConfig(tests=programs.TESTS_MAX + 1)


# ---- rows and files that are bad ---------------------------------------------------------------------------------------

BAD: list[tuple[str, Any]] = [
    ("no JSON", b"{nonsense"),
    ("no JSON, which is in UTF-8", b"\xff\xfe"),
    ("no JSON", b"[" * 200_000),
    ("verification_info is neither JSON nor a Python literal", intellect(verification_info="[" * 200_000)),
    ("no JSON object", 7),
    ("no prompt", intellect(prompt="  ")),
    ("no prompt", {"task_type": "verifiable_math"}),
    ("a task that needs a judge, or another verifier", intellect(task_type="llm_judgeable_groundtruth_similarity")),
    ("a task that needs a judge, or another verifier", intellect(task_type=["verifiable_math"])),
    ("verification_info is neither JSON nor a Python literal", intellect(verification_info="__import__('os')")),
    ("verification_info is neither JSON nor a Python literal", intellect(verification_info="-" * 100_000 + "1")),
    ("verification_info is neither JSON nor a Python literal", intellect(verification_info="(" * 100_000)),
    ("verification_info is no JSON, and too large for a Python literal", intellect(verification_info="(" + "1," * 100_001 + ")")),
    ("verification_info is no table", intellect(verification_info="[1]")),
    ("verification_info is no table", intellect(verification_info=None)),
    ("no answer", intellect(verification_info={})),
    ("no answer", intellect(verification_info={"ground_truth": " "})),
    ("no answer", intellect(verification_info={"ground_truth": float("nan")})),
    ("an answer that is neither text nor number", intellect(verification_info={"ground_truth": ["1", "2"]})),
    ("an answer that is neither text nor number", intellect(verification_info={"ground_truth": True})),
    ("an answer of more than 10000 characters", intellect(verification_info={"ground_truth": "7" * 10_001})),
    ("a text that UTF-8 cannot hold", intellect(prompt="What is \ud800?")),
    ("a question or answer of more than 1 MiB", intellect(prompt="7" * (1 << 21))),
    ("the program is not to be in Python", code({"language": "cpp", "test_cases": [STDIN]})),
    ("no tests", code({"language": "python", "test_cases": []})),
    ("a test without type, input and output", code({"language": "python", "test_cases": [{"input": "1"}]})),
    ("a test without type, input and output", code({"language": "python", "test_cases": ["1"]})),
    ("a test of another type than stdin_stdout and function_call", code({"test_cases": [{**STDIN, "type": "assert"}]})),
    ("input or output of a program that is no text", code({"test_cases": [{**STDIN, "input": {"a": 1}}]})),
    ("a call without a function's name and a list of arguments", code({"test_cases": [{**CALL, "fn_name": "a b"}]})),
    ("a call without a function's name and a list of arguments", code({"test_cases": [{**CALL, "input": "1"}]})),
    ("a test that JSON cannot hold", code("{'test_cases': [" + repr({**CALL, "input": [b"x"]}) + "]}")),
    ("a test that JSON cannot hold", code({"test_cases": [{**STDIN, "input": "\udc00"}]})),
    ("a tolerance that is no number", code({"test_cases": [{**STDIN, "tolerance": "much"}]})),
    ("every test is larger than a row of a task file", code({"test_cases": [{**STDIN, "input": "7" * (1 << 20)}]})),
]  # fmt: skip


@pytest.mark.usefixtures("deep")
def test_bad_rows_are_counted_by_reason_with_one_example_of_each_and_the_others_are_imported(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    good = [intellect(1), intellect(2)]
    texts = [
        row if isinstance(row, bytes) else json.dumps(row).encode()
        for row in (good[0], *(row for _, row in BAD), good[1])
    ]
    source.write_bytes(b"\n".join(texts) + b"\n")
    report = importer.run([source], tmp_path / "out", Options(schema="synthetic-1"))
    assert report.environments["math"].training == 2
    assert report.rows == len(texts)
    wanted: dict[str, int] = {}
    for why, _ in BAD:
        wanted[why] = wanted.get(why, 0) + 1
    assert reasons(report) == wanted
    places = {why: number for number, (why, _) in reversed(list(enumerate(BAD, 2)))}
    for why, reason in report.left_out.items():
        assert reason.example.startswith(f"rows.jsonl, row {places[why]}")
        assert len(reason.example) < 200
        assert reason.example.isprintable()


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({**NUMINA, "answer": "proof"}, "a proof, which no answer decides"),
        ({**NUMINA, "question_type": "proof"}, "a proof, which no answer decides"),
        ({**NUMINA, "answer": "notfound"}, "no answer"),
        ({**NUMINA, "problem_is_valid": "Incomplete"}, "problem_is_valid is not yes"),
        ({**NUMINA, "solution_is_valid": "No"}, "solution_is_valid is not yes"),
        ({**SUBSET, "solution": "It is 7."}, "a solution that boxes no answer"),
        ({**SUBSET, "solution": r"It is $\boxed{7$."}, "a solution that boxes no answer"),
        ({"id": 1, "problem": "?", "answer": "7.5", "url": ""}, "an answer of AIME that is no integer from 0 to 999"),
        ({"id": 1, "problem": "?", "answer": 1000, "url": ""}, "an answer of AIME that is no integer from 0 to 999"),
        ({**GPQA, "Incorrect Answer 3": "neon"}, "two choices that are the same"),
        ({**GPQA, "Incorrect Answer 3": None}, "no incorrect answer 3"),
        (contest("[1, 2"), "tests that are no JSON"),
        (contest(public_test_cases="{}"), "tests that are no JSON"),
        (contest(private_test_cases=7), "tests that are neither a text nor a list"),
        (contest("[]", public_test_cases=None), "no tests"),
        (contest("", public_test_cases=json.dumps([{**CONTEST[0], "testtype": "functional", "input": "{"}])), "a test that cannot be read"),
        (contest("", public_test_cases=json.dumps([{**CONTEST[0], "testtype": "functional", "output": "NaN"}])), "a test that expects what no output equals"),
        (code({"test_cases": [{**CALL, "output": [float("nan")]}]}), "a test that expects what no output equals"),
        ({**SUBSET, "solution": r"It is $\boxed 72$."}, "a solution that boxes no answer"),
        ({**MATH_500, "answer": "7}"}, "an answer that is not right itself"),
        ({**MATH_500, "answer": "We halve fourteen apples by counting them again.\nThen seven apples are left over for each child."}, "a worked solution in place of an answer"),
        (contest(metadata="{"), "tests that cannot be read"),
    ],
)  # fmt: skip
def test_a_row_that_makes_no_task_says_why(tmp_path: Path, row: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=f"of 1 rows none can be trained on .{why}: 1") as refused:
        imported(tmp_path, [row])
    assert "--question" in refused.value.hint
    assert not (tmp_path / "out").exists()


def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ROW_BYTES_MAX", 1000)
    report, tasks = imported(tmp_path, [intellect(1), intellect(2, extra="x" * 5000), intellect(3)])
    assert (len(tasks), sum(reasons(report).values())) == (2, 1)
    assert report.rows == 3


@pytest.mark.parametrize(
    "name", ["rows.parquet", "rows.json", "rows.csv", "rows.txt", "absent.jsonl", "absent.parquet"]
)
def test_a_file_that_cannot_be_read_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    good = lines(tmp_path / "good.jsonl", [intellect(1)])
    if not name.startswith("absent"):
        pq.write_table(pa.Table.from_pylist([intellect(i) for i in range(100)]), tmp_path / "whole.parquet")
        (tmp_path / name).write_bytes((tmp_path / "whole.parquet").read_bytes()[:-100])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=name.split(".")[0]):
        importer.run([good, tmp_path / name], tmp_path / "out", Options(schema="synthetic-1"))
    assert sorted(tmp_path.iterdir()) == before


def test_a_damaged_row_group_ends_the_import_and_loses_no_earlier_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    importer.run([lines(tmp_path / "rows.jsonl", [intellect(1)])], out, Options())
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(UsageError, match="exists already"):
        importer.run([tmp_path / "rows.jsonl"], out, Options())
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([intellect(i) for i in range(5000)]), path, row_group_size=500)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 3 : len(damaged) // 3 + 4000] = bytes(4000)
    path.write_bytes(damaged)
    with pytest.raises(ConfigError, match="cannot read"):
        importer.run([path], tmp_path / "other", Options())
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out", "rows.jsonl", "rows.parquet"]


def test_a_file_of_which_no_row_can_be_read_says_so(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes('{"problem": "Où est-ce?", "answer": "1"}\n'.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"no row of .* can be read; the first: no JSON, which is in UTF-8"):
        importer.run([file], tmp_path / "out", Options())


def test_columns_that_no_schema_has_must_be_named(tmp_path: Path) -> None:
    file = lines(tmp_path / "rows.jsonl", [{"q": "1 + 1?", "a": 2}])
    with pytest.raises(ConfigError, match="no schema that is known by its columns: q, a"):
        importer.run([file], tmp_path / "out", Options())
    with pytest.raises(ConfigError, match="has no column 'b'"):
        importer.run([file], tmp_path / "out", Options(question="q", answer="b"))
    with pytest.raises(UsageError, match="no schema is called 'aimee'"):
        importer.run([file], tmp_path / "out", Options(schema="aimee"))
    with pytest.raises(UsageError, match="'reasoning-gym'"):
        importer.run([file], tmp_path / "out", Options(question="q", answer="a", package="reasoning-gym"))
    report = importer.run([file], tmp_path / "out", Options(question="q", answer="a", package="parquet"))
    assert written(tmp_path / "out", report) == [("1 + 1?", "2")]


def test_an_example_shows_no_control_characters() -> None:
    assert excerpt("a\x1b[31m\u202eb\n\ud800") == "a\\x1b[31m\\u202eb\\n\\ud800"
    assert len(excerpt("x" * 1000)) == 100


# ---- duplicates, held-out questions, solve rates -----------------------------------------------------------------------


def test_a_question_is_imported_once_however_it_is_spaced(tmp_path: Path) -> None:
    first = intellect(1)
    again = [
        {**first, "prompt": f"  {first['prompt'].upper()}\n".replace(" ", "  ")},
        {**first, "verification_info": {"ground_truth": "9"}},
    ]
    near = [intellect(2), {**first, "prompt": "What is 1 + 2?"}, {**first, "prompt": "What is 1 - 2?"}]
    report, tasks = imported(tmp_path, [first, *again, *near])
    assert len(tasks) == 4
    assert reasons(report) == {
        "a question that was there before": 1, "a question that was there before, with another answer": 1,
    }  # fmt: skip


HELD = (
    "Find the number of positive integers n such that n squared plus nineteen n plus ninety-two is a perfect square and n is"
    " not larger than one thousand."
)


@pytest.mark.parametrize(
    ("asked", "is_held_out"),
    [
        (HELD, True),
        (f"Solve this carefully.\n\n$$ {HELD.upper()} $$ Answer in a box.", True),
        (HELD.replace("nineteen", "twenty"), True),
        ("Find the number of positive integers n such that n divides its own number of digits.", False),
        ("What is the sum?", True),
        ("what is the sum", False),  # of fewer than eight words: whole or not at all, but for case, spaces and a period
        ("What is the sum? ", True),
    ],
)
def test_a_question_is_held_out_where_half_of_a_held_out_one_stands_in_it(asked: str, is_held_out: bool) -> None:
    held = HeldOut()
    for question in (
        HELD,
        "What is the sum?",
        "In how many ways can three red and four blue balls be drawn from a box?",
    ):
        held.add(question)
    assert held.holds(asked) is is_held_out


def test_what_all_held_out_prompts_say_is_no_question() -> None:
    wording = "Solve the following problem of mathematics step by step and put the answer into a box:"
    held = HeldOut()
    for number in range(10):
        held.add(f"{wording} how many {number} apples?")
    assert not held.holds(f"{wording} how far does the train go?")
    assert held.holds(f"{wording} how many 3 apples?")


def test_questions_of_other_files_are_not_trained_on(tmp_path: Path) -> None:
    benchmark = lines(tmp_path / "math500.jsonl", [{**MATH_500, "problem": HELD}])
    own = tmp_path / "own.parquet"
    taskfile.write([(intellect(2)["prompt"], "9")], own)
    report, tasks = imported(
        tmp_path, [intellect(1), intellect(1, prompt=f"Solve. {HELD}"), intellect(2)], against=(benchmark, own)
    )
    assert [answer for _, answer in tasks] == ["8"]
    assert reasons(report) == {"a question that is held out": 2}
    assert report.against == 2


def test_a_question_is_not_trained_on_whatever_becomes_of_its_answer(tmp_path: Path) -> None:
    rows = [
        {**MATH_500, "problem": HELD, "answer": None}, {**MATH_500, "problem": ""},
        {**MATH_500, "problem": "How many edges do seven cubes have that share one face in a row?", "answer": "x" * 10_001},
    ]  # fmt: skip
    benchmark, told = lines(tmp_path / "math500.jsonl", rows), list[str]()
    own = lines(tmp_path / "own.jsonl", [{"Question": intellect(2)["prompt"]}])
    training = [
        intellect(1),
        intellect(2),
        *(intellect(3, prompt=f"Solve. {row['problem']}") for row in (rows[0], rows[2])),
    ]
    report = importer.run(
        [lines(tmp_path / "rows.jsonl", training)], tmp_path / "out", Options(against=(benchmark, own)), told.append
    )
    assert [answer for _, answer in written(tmp_path / "out", report)] == ["8"]
    assert reasons(report) == {"a question that is held out": 3}
    assert [(one.questions, one.without) for one in report.against_files] == [(2, 1), (1, 0)]
    assert "  2 questions to compare with; 1 rows hold none" in told


def test_a_file_to_compare_with_that_holds_no_question_is_refused(tmp_path: Path) -> None:
    benchmark = lines(tmp_path / "math500.jsonl", [{**MATH_500, "problem": ""}])
    with pytest.raises(ConfigError, match="holds no question: nothing would be compared"):
        imported(tmp_path, [intellect(1)], against=(benchmark,))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("short", "asked", "is_held_out"),
    [
        ("What is $2 + 3$?", "Solve this with care.\n\nWhat is 2+3 ? Put the answer in a box.", True),
        ("What is $2 + 3$?", "Solve this with care.\n\n> What is \\(2 + 3\\)? - Explain.", True),
        ("What is $2 + 3$?", "Solve: what is 2 - 3?", False),
        ("What is $2 + 3$?", "Solve: what is 2 + 31?", False),
        ("What is $2 + 3$?", "Solve: what is 2 + 3 * 4?", False),
        ("Compute $\\dbinom{8}{4}$.", "Be brief. **Compute $\\binom{8}{4}$.**", True),
        ("Compute $\\dfrac{8}{4}$.", "Be brief. **Compute $\\frac{8}{4}$.**", True),
        ("Factor $x^2-1$.", "Be brief. Factor $x^{2} - 1$. Thanks!", True),
        ("Factor $x^2-1$.", "Be brief. Factor $-x^2-1$. Thanks!", False),
        ("Find the value of $x$.", "If 7x - 3 = 18, find the value of x.", False),
        ("Solve for $x$: $x+1=2$", "Solve for x: x+1=2y", False),
        ("Solve for $x$: $x+1=2$", "Now solve for x: x+1=2. Then rest.", True),
        ("Is every prime odd?", "A short one: is every prime odd? Why?", False),
        ("Who painted the Night Watch?", "Say it: who painted the night watch?", True),
        ("Find $x$.", "The area is 7. Find $x$.", False),
    ],
)
def test_a_short_held_out_question_is_found_within_a_longer_one(short: str, asked: str, is_held_out: bool) -> None:
    held = HeldOut()
    held.add(short)
    assert held.holds(short)
    assert held.holds_short(asked) is is_held_out


def test_a_short_question_is_left_out_of_a_wrapper(tmp_path: Path) -> None:
    benchmark = lines(tmp_path / "math500.jsonl", [{**MATH_500, "problem": "What is $2 + 3$?"}])
    rows = [
        intellect(1),
        intellect(2, prompt="Solve this problem and think well.\n\nWhat is $2+3$?\n\nBox the answer."),
    ]
    report, tasks = imported(tmp_path, rows, against=(benchmark,))
    assert [answer for _, answer in tasks] == ["8"]
    assert reasons(report) == {"a short question that is held out, within a longer one": 1}


def test_the_answer_after_four_hashes_is_the_reference(tmp_path: Path) -> None:
    rows = [
        {"question": "How many clips?", "answer": "She sold 48/2 = <<48/2=24>>24 clips in May.\n48+24 = <<48+24=72>>72 clips.\n#### 72"},
        {"question": "How much?", "answer": "#### 1,080 "}, {"question": "Which?", "answer": "# 7"},
    ]  # fmt: skip
    _, tasks = imported(tmp_path, rows)
    assert [answer for _, answer in tasks] == ["72", "1,080", "# 7"]


def test_white_space_after_four_hashes_does_not_hold_an_import(tmp_path: Path) -> None:
    rows = [intellect(1), {"prompt": "How many?", "answer": "#### 7" + " " * 200_000 + "#"}]
    file = lines(tmp_path / "rows.jsonl", [{"prompt": row["prompt"], "answer": row.get("answer", "8")} for row in rows])
    report = importer.run([file], tmp_path / "out", Options(question="prompt", answer="answer"))
    assert reasons(report) == {"an answer of more than 10000 characters": 1}


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    text = json.dumps(MATH_500).encode()
    for name, data in (("rows.jsonl", text + b"\r\n"), ("rows.json", b"[" + text + b"]")):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + data)
        assert importer.run([tmp_path / name], tmp_path / f"{name}.out", Options()).rows == 1


def test_held_out_problems_are_the_same_in_any_order_come_last_and_are_not_trained_on(tmp_path: Path) -> None:
    shapes = ["triangle", "circle", "square", "cube", "sphere", "cone", "prism", "torus"]
    rows = [
        intellect(
            i, prompt=f"A {shapes[i % 8]} of size {i} is painted {i * 7} times with {shapes[i * 3 % 8]}s; what remains?"
        )
        for i in range(40)
    ]
    copies = [{**row, "prompt": f"Listen well. {row['prompt']} Say it."} for row in rows]
    first, tasks = imported(tmp_path / "a", rows + copies, held_out=5)
    second, others = imported(tmp_path / "b", (rows + copies)[::-1], held_out=5)
    made = first.environments["math"]
    assert (made.held_out, made.files[-1].file) == (5, "math-held-out.parquet")
    assert sorted(tasks[-5:]) == sorted(others[-5:])
    assert second.environments["math"].training == made.training
    kept, held = [question for question, _ in tasks[:-5]], HeldOut()
    for question, _ in tasks[-5:]:
        held.add(question)
    assert not any(held.holds(question) for question in kept)
    assert reasons(first)["a question that is held out"] > 0
    with pytest.raises(ConfigError, match="everything would be held out"):
        imported(tmp_path / "c", rows[:3], held_out=3)


def test_only_solve_rates_in_the_band_are_kept(tmp_path: Path) -> None:
    rates: list[Any] = [0.0, 0.125, 0.5, 0.875, 1.0, None, "0.5", "much", float("nan"), True, 7]
    rows = [intellect(i, solve_rate_qwen_r1_distill_7b=rate) for i, rate in enumerate(rates)]
    report, tasks = imported(tmp_path, rows, band=RateBand(0.125, 0.875))
    assert [answer for _, answer in tasks] == [str(i + 7) for i in (1, 2, 3, 6)]
    assert reasons(report) == {"a solve rate outside the band": 2, "no solve rate": 5}
    with pytest.raises(ConfigError, match="no solve rate: 11"):
        imported(tmp_path / "other", rows, band=RateBand(0, 1, "average"))


def test_the_same_rows_make_the_same_bytes_and_parts_have_the_asked_size(tmp_path: Path) -> None:
    rows = [intellect(i) for i in range(10)]
    digests = []
    for name in ("a", "b"):
        report, tasks = imported(tmp_path / name, rows, part_rows=4)
        assert len(tasks) == 10
        assert [part.rows for part in report.environments["math"].files] == [4, 4, 2]
        digests.append([part.sha256 for part in report.environments["math"].files])
    assert digests[0] == digests[1]


def test_more_parts_than_a_run_spec_names_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "PARTS_MAX", 2)
    with pytest.raises(ConfigError, match="more than 2 parts"):
        imported(tmp_path, [intellect(i) for i in range(3)], part_rows=1)
    assert not (tmp_path / "out").exists()


# ---- the command -------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_report(tmp_path: Path) -> None:
    source = lines(tmp_path / "rows.jsonl", [intellect(1), intellect(1), intellect(2)])
    benchmark = lines(tmp_path / "math500.jsonl", [MATH_500, {**MATH_500, "problem": ""}])
    arguments = ["import", str(tmp_path / "out"), str(source), "--low", "0.1", "--against", str(benchmark)]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "3 rows read, 1 left out" in shown.stdout
    assert f"compared with 1 questions of {benchmark}; 1 of its rows hold no question" in shown.stdout
    assert "2 problems to train on or to ask as a benchmark" in shown.stdout
    assert f"to train on them: {tmp_path}/out/environments.toml" in shown.stderr
    assert f"murmur trainer eval MODEL --suite out --suites {tmp_path}; then train on none of them" in shown.stderr
    assert "1 a question that was there before, as rows.jsonl, row 2: What do you get when 1" in shown.stdout
    asked = CliRunner().invoke(app, [*arguments[:1], str(tmp_path / "again"), *arguments[2:], "--json"])
    assert json.loads(asked.stdout) == json.loads((tmp_path / "again/import.json").read_text())


def test_every_schema_is_told_apart_by_columns_that_the_others_lack() -> None:
    for name, schema in schemas.SCHEMAS.items():
        for known in schema.known_by:
            found = schemas.of_columns(list(known))
            assert found is not None
            assert found.name == name
