"""Benchmarks: estimates that are the textbook's, and two models asked for real, through the same engine and with the same keys."""

from __future__ import annotations

import json
import shutil
from itertools import combinations
from pathlib import Path
from statistics import mean

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from protocol.environments.importing import importer
from protocol.environments.importing.importer import Options
from protocol.errors import ConfigError, HashMismatch, UsageError
from protocol.shell import runfile
from tests.tasks_in_process import task_set
from tests.trainer.conftest import Made
from trainer.commands import app
from trainer.evaluation import suites
from trainer.evaluation.passes import ks, pass_at, table
from trainer.evaluation.suites import Asking, SuiteAnswers, asking


@pytest.mark.parametrize("right", range(7))
@pytest.mark.parametrize("k", range(1, 7))
def test_pass_at_k_is_the_share_of_draws_of_k_answers_with_a_right_one(right: int, k: int) -> None:
    answers = [number < right for number in range(6)]
    assert pass_at(k, 6, right) == pytest.approx(mean(any(some) for some in combinations(answers, k)))


def test_a_table_of_passes_is_the_mean_over_problems_and_rounded_once() -> None:
    rights = [0, 1, 4, 6, 6, 2, 3]
    expected = {str(k): mean(pass_at(k, 6, right) for right in rights) for k in ks(6)}
    assert {k: float(share) for k, share in table(6, rights).items()} == pytest.approx(expected, abs=5e-7)
    assert table(6, rights) == table(6, rights[::-1])
    assert table(4, []) == {}


def test_k_is_every_power_of_two_and_the_number_of_samples() -> None:
    assert [ks(samples) for samples in (1, 2, 4, 6, 32)] == [[1], [1, 2], [1, 2, 4], [1, 2, 4, 6], [1, 2, 4, 8, 16, 32]]


def test_a_suite_is_asked_as_its_name_says_unless_told() -> None:
    assert asking("aime25") == Asking(32)
    assert asking("MATH-500") == Asking(4)
    assert asking("mine") == Asking(4)
    assert asking("gpqa_diamond", samples=2, temperature="1", tokens=None) == Asking(2, temperature="1")


@pytest.fixture(scope="module")
def folder(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Suites of problems that the tiny model has words for, beside a run and a model that knows nothing."""
    folder = tmp_path_factory.mktemp("suites")
    shutil.copy(made.file, folder / "run.toml")
    shutil.copytree(made.folder, folder / "policy")
    shutil.copytree(made.folder, folder / "blank")
    tensors = load_file(made.folder / "model.safetensors")
    save_file({name: torch.zeros_like(t) for name, t in tensors.items()}, folder / "blank/model.safetensors")
    problems = task_set(made.spec.environments).problems(range(40))
    for name, some in (("spirals", problems[:24]), ("others", problems[24:])):
        rows = [json.dumps({"question": problem.prompt, "answer": problem.answer}) for problem in some]
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
        asked = Options(question="question", answer="answer", package="parquet", part_rows=10)
        importer.run([folder / f"{name}.jsonl"], folder / "suites" / name, asked)
    return folder


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MURMUR_TASKS", str(tmp_path / "machine"))


def test_a_checkpoint_is_compared_with_the_base_model_on_each_suite(folder: Path) -> None:
    arguments = ["eval", str(folder / "policy"), "--run", f"@{folder / 'run.toml'}", "--base", str(folder / "blank")]
    asked = [
        *arguments,
        "--suite",
        "spirals,others",
        "--samples",
        "4",
        "--temperature",
        "1",
        "--top-p",
        "1",
        "--budget",
        "6",
    ]
    found = CliRunner().invoke(app, [*asked, "--json"])
    assert found.exit_code == 0, found.output
    first, second = json.loads(found.stdout)["suites"]
    assert (first["name"], second["name"]) == ("spirals", "others")
    report = json.loads((folder / "suites/spirals/import.json").read_text())
    made = report["environments"]["parquet"]
    assert first["problems"] == made["training"]
    assert first["files"] == [part["sha256"] for part in made["files"]]
    assert first["asking"] == {"samples": 4, "temperature": "1.0", "top_p": "1.0", "tokens": 16, "budget": 6}
    assert [one["k"] for one in first["passes"]] == [1, 2, 4]
    rows = [one["row"] for one in first["passes"]]
    means = [row["candidate"]["mean"] for row in rows]
    assert 0 < means[0] < means[1] < means[2] <= 1
    for row in rows:
        assert row["candidate"]["low"] < row["candidate"]["mean"] < row["candidate"]["high"]
        assert row["base"]["mean"] == 0
        assert row["base"]["high"] > 0.05  # Wilson's: nothing right in a few problems is not certain failure
    assert 0 < first["tokens"] <= 16
    assert first["base_unended"] > first["unended"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    assert "spirals pass@4" in shown.stdout


def test_the_same_weights_show_no_difference_and_greedy_answers_are_all_the_same(folder: Path, made: Made) -> None:
    loaded = suites.load(["others"], folder / "suites", samples=3, temperature="0")
    spec = runfile.answers(folder / "run.toml", folder / "policy")
    done: list[int] = []
    [found] = suites.run(spec, loaded, folder / "policy", folder / "policy", folder / "policy", progress=done.append)
    assert done[-1] == 2 * found.problems
    values = {one.row.candidate.mean for one in found.passes}
    assert len(values) == 1
    for one in found.passes:
        assert one.row.difference is not None
        assert (one.row.difference.low, one.row.difference.high, one.row.verdict) == (0, 0, "no difference shown")


def test_estimates_come_from_how_many_answers_of_each_problem_were_right() -> None:
    asked = object.__new__(suites._Asked)
    asked.suite = suites.Suite("x", [], Asking(4))
    asked.problems = [None] * 4  # type: ignore[list-item]
    asked._spec = type("", (), {"sampling": type("", (), {"max_new_tokens": 9})})  # type: ignore[assignment]
    found = asked.result(SuiteAnswers([4, 2, 1, 0], 5.0, 0.0), SuiteAnswers([0, 0, 0, 0], 7.0, 0.5))
    assert [one.row.candidate.mean for one in found.passes] == [
        pytest.approx(7 / 16), pytest.approx((1 + 5 / 6 + 1 / 2) / 4), pytest.approx(3 / 4),
    ]  # fmt: skip


def test_suites_that_are_not_there_or_were_changed_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no suite 'aime' in .*, but others, spirals"):
        suites.load(["aime"], folder / "suites")
    shutil.copytree(folder / "suites/others", tmp_path / "others")
    shutil.copyfile(folder / "suites/spirals/parquet-000.parquet", tmp_path / "others/parquet-000.parquet")
    with pytest.raises(HashMismatch, match="was changed"):
        suites.load(["others"], tmp_path)
    (tmp_path / "others/import.json").write_text("[]")
    with pytest.raises(ConfigError, match="no import's report"):
        suites.load(["others"], tmp_path)


def test_answers_that_the_model_has_no_positions_for_are_refused_before_anything_is_asked(folder: Path) -> None:
    loaded = suites.load(["others"], folder / "suites", tokens=100_000)
    spec = runfile.answers(folder / "run.toml", folder / "policy")
    with pytest.raises(ConfigError, match="a prompt of others and an answer of 100000 tokens"):
        suites.run(spec, loaded, folder / "policy", folder / "policy", folder / "policy")


def test_programs_of_a_benchmark_must_pass_all_their_tests(tmp_path: Path) -> None:
    row = {
        "question": "Print 1.",
        "answer": json.dumps({"test_cases": [{"type": "stdin_stdout", "input": "", "output": "1"}]}),
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    asked = Options(question="question", answer="answer", package="code")
    importer.run([tmp_path / "rows.jsonl"], tmp_path / "contests", asked)
    [suite] = suites.load(["contests"], tmp_path)
    assert suite.environments[0].config == {"tests": 256, "total_seconds": 300}


def test_what_only_benchmarks_have_is_refused_without_one(folder: Path) -> None:
    arguments = ["eval", str(folder / "policy"), "--run", f"@{folder / 'run.toml'}", "--tokens", "5"]
    found = CliRunner().invoke(app, arguments)
    assert isinstance(found.exception, UsageError)
