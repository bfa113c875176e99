"""A researcher's own rows: every column for the reward function, and nothing that evaluation asks is trained on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protocol.errors import ConfigError
from tests.trainer import speaking
from trainer.rollouts.own_tasks import OwnRewards, OwnTasks, column
from trainer.rollouts.reward_function import RewardFunction


def jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_last_rows_are_held_out_and_their_questions_never_trained_on(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "rows.jsonl", *({"question": text} for text in ("a", "b", "c", "a")))
    tasks = OwnTasks(file, "question", 1)
    assert (tasks.size, [problem.prompt for problem in tasks.held_out]) == (3, ["a"])
    assert [problem.is_held_out for problem in tasks.problems([0, 1, 2])] == [True, False, False]
    assert tasks.datasets == ["rows"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_every_column_reaches_the_function(tmp_path: Path, kind: str) -> None:
    rows = [{"question": "x", "letter": "a"}, {"question": "y", "letter": "b"}, {"question": "z", "letter": "c"}]
    file = tmp_path / f"rows.{kind}"
    jsonl(file, *rows) if kind == "jsonl" else pq.write_table(pa.Table.from_pylist(rows), file)
    tasks = OwnTasks(file, "question", 1)
    rewards = OwnRewards(tasks, RewardFunction(f"{speaking.write_rewards(tmp_path / 'r.py')}:reward", tasks.columns))
    assert rewards.score([(0, "ab"), (1, "bb")]) == [1 / 8, 2 / 8]
    assert rewards.score([(0, "cab")], held_out=True) == [1 / 8]


def test_a_reward_that_is_no_number_counts_nothing_in_an_evaluation(tmp_path: Path) -> None:
    tasks = OwnTasks(speaking.write_rows(tmp_path / "rows.jsonl", 4), "question", 1)
    rewards = OwnRewards(tasks, RewardFunction(f"{speaking.write_rewards(tmp_path / 'r.py')}:nothing", tasks.columns))
    assert rewards.score([(0, "a")], held_out=True) == [0.0]
    assert math.isnan(rewards.score([(0, "a")])[0])


def test_the_question_is_found_by_its_usual_names(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "rows.jsonl", {"prompt": "a", "text": "b"})
    assert column(file, None, ("question", "prompt")) == "prompt"
    assert column(file, "text", ("question", "prompt")) == "text"
    with pytest.raises(ConfigError, match=r"no column 'question', but prompt, text") as caught:
        column(file, "question", ())
    assert "--question" in caught.value.hint


def test_a_conversation_of_one_message_is_that_message(tmp_path: Path) -> None:
    message = {"role": "user", "content": "2 + 2?"}
    file = jsonl(tmp_path / "rows.jsonl", {"prompt": [message]}, {"prompt": [message, message]})
    with pytest.raises(ConfigError, match=r"row 1 .* instead of a text") as caught:
        OwnTasks(file, "prompt", 0)
    assert "one message" in caught.value.hint
    (only,) = OwnTasks(jsonl(file, {"prompt": [message]}), "prompt", 0).problems([0])
    assert only.prompt == "2 + 2?"


def test_rows_that_cannot_be_asked_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"row 1 of .* has no 'question'"):
        OwnTasks(jsonl(tmp_path / "rows.jsonl", {"question": "a"}, {"answer": "b"}), "question", 0)
    with pytest.raises(ConfigError, match=r"row 0 of .* is no JSON object"):
        OwnTasks(jsonl(tmp_path / "rows.jsonl", ["a"]), "question", 0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"2 of 2 rows .* cannot be held out"):
        OwnTasks(jsonl(tmp_path / "rows.jsonl", {"question": "a"}, {"question": "b"}), "question", 2)
    with pytest.raises(ConfigError, match="has no rows"):
        OwnTasks(jsonl(tmp_path / "rows.jsonl"), "question", 0)
    with pytest.raises(ConfigError, match="cannot read"):
        OwnTasks(tmp_path / "nothing.jsonl", "question", 0)
