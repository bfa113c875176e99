"""The trainer's files as a page reads them: while they grow, when they are cut off, and with what no JSON may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benches.page_run import RUN

from protocol.page.document import PageDocument
from trainer.config import Layout, RunSettings
from trainer.page.training import POINTS, TrainingFiles


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    chain = {"rpc": "http://127.0.0.1:1", "contract": "0x" + "0" * 40, "chain_id": 31337, "run": RUN}
    made = Layout(tmp_path / "run.toml", RunSettings.model_validate({"chain": chain, "trainer": {"steps": 1}}))
    made.output.mkdir()
    return made


def write(path: Path, *records: dict[str, Any], tail: str = "") -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
        file.write(tail)


def test_a_line_counts_once_it_is_whole(layout: Layout) -> None:
    files = TrainingFiles(layout)
    write(layout.metrics, {"step": 0, "reward": 0.5}, tail='{"step": 1, "rew')
    assert files.follow()
    assert files.charts()["steps"] == [0]
    write(layout.metrics, tail='ard": 0.75}\n')
    assert files.follow()
    assert files.charts()["reward"] == [0.5, 0.75]
    assert not files.follow(), "nothing was written since"


def test_a_file_that_was_cut_off_by_a_rename_is_read_anew(layout: Layout) -> None:
    files = TrainingFiles(layout)
    write(layout.metrics, *({"step": step, "reward": 0.1} for step in range(5)))
    files.follow()
    rest = layout.metrics.with_suffix(".rest")
    write(
        rest,
        *({"step": step, "reward": 0.2} for step in range(3)),
        *({"step": step, "reward": 0.3} for step in range(3, 9)),
    )
    rest.replace(layout.metrics)
    files.follow()
    assert files.charts()["reward"] == [0.2] * 3 + [0.3] * 6


def test_what_is_no_number_is_a_gap(layout: Layout) -> None:
    files = TrainingFiles(layout)
    nested = {"a": float("nan"), "b": 1.0}
    write(
        layout.metrics, {"step": 0, "reward": float("inf"), "kl": "x", "reward_by_environment": nested, "seconds": None}
    )
    write(layout.metrics, {"step": "x"}, {"held_out_score": 1.0}, {"step": 1, "held_out_score": float("nan")})
    files.follow()
    charts = files.charts()
    assert (charts["reward"], charts["kl"], charts["reward_by_environment"]) == (
        [None],
        [None],
        {"a": [None], "b": [1.0]},
    )
    assert charts["held_out"]["score"] == [None]
    PageDocument.of(charts)
    PageDocument.of(files.record(0))


def test_a_long_run_is_drawn_with_so_many_points_and_its_last_step(layout: Layout) -> None:
    files = TrainingFiles(layout)
    write(layout.metrics, *({"step": step, "reward": 0.1} for step in range(5_000)))
    files.follow()
    steps = files.charts()["steps"]
    assert (len(steps), steps[0], steps[-1]) == (POINTS, 0, 4_999)
    assert steps == sorted(set(steps))


def test_samples_are_those_of_the_last_step_and_their_texts_are_cut(layout: Layout) -> None:
    files = TrainingFiles(layout)
    assert files.samples() == []
    sample = {"prompt": "p", "completion": "x" * 10_000, "tokens": 3, "reward": float("nan"), "advantage": 1.0}
    write(
        layout.samples,
        {"step": 1, **sample},
        {"step": 2, **sample},
        {"step": 2, "prompt": "torn"},
        {"step": 2, **sample},
    )
    shown = files.samples()
    assert [each["step"] for each in shown] == [2, 2]
    assert len(shown[0]["completion"]) < 2_100 and shown[0]["reward"] is None


def test_before_the_trainers_first_word_there_is_nothing(layout: Layout) -> None:
    files = TrainingFiles(layout)
    assert not files.follow()
    assert (files.status(), files.hub_status(), files.charts()["steps"], files.record(0)) == ({}, {}, [], None)
