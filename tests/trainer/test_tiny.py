"""The policy made on the spot: its tokenizer loses nothing, and it can do a little of what it will be trained on."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from node.engine.torch_engine import TorchEngine
from protocol.environments import Problem, TaskSet, taskfile
from protocol.folders import TASKS_VARIABLE
from protocol.length_rewards import announce
from protocol.model_files import CONFIG, TOKENIZER, WEIGHTS
from protocol.shell import runfile
from protocol.tokenizer import Tokenizer
from tests.tasks_in_process import task_set
from tests.trainer.conftest import Made
from trainer.models.tiny import END, UNKNOWN, _write_tokenizer


@pytest.fixture(scope="module")
def tasks(made: Made) -> TaskSet:
    return task_set(made.spec.environments)


@pytest.fixture(scope="module")
def problems(tasks: TaskSet) -> list[Problem]:
    """Ones the tokenizer was not made from among them."""
    rng = random.Random(5)
    return [tasks.problem(rng.randrange(tasks.size)) for _ in range(200)] + tasks.held_out


def test_answers_survive_the_tokenizer(made: Made, problems: list[Problem]) -> None:
    tokenizer = Tokenizer(made.folder)
    for problem in problems:
        answer = str(problem.answer)
        assert tokenizer.answer([*tokenizer.encode(answer), END]) == answer


def test_prompts_are_short_and_lose_nothing(made: Made, problems: list[Problem]) -> None:
    tokenizer = Tokenizer(made.folder)
    for problem in problems:
        encoded = tokenizer.encode(problem.prompt)
        assert UNKNOWN not in encoded
        assert tokenizer.answer([*encoded, END]) == problem.prompt
        assert len(encoded) < len(problem.prompt) / 10


def test_what_answers_have_in_common_is_one_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TASKS_VARIABLE, str(tmp_path / "tasks"))
    answers = [f"{{\\frac{{{a}}}{{{b}}}}} apples" for a in range(1, 9) for b in range(1, 9)]
    taskfile.write(((f"Row {n}?", answer) for n, answer in enumerate(answers)), tmp_path / "tasks.parquet")
    spec = runfile.environment_alone("parquet", "apples", {}, [tmp_path / "tasks.parquet"])
    _write_tokenizer(task_set([spec]), tmp_path / TOKENIZER, ())
    (tmp_path / CONFIG).write_text(json.dumps({"vocab_size": 96, "eos_token_id": END}))
    tokenizer = Tokenizer(tmp_path)
    for answer in answers:
        assert len(tokenizer.encode(answer)) <= 6
        assert tokenizer.answer([*tokenizer.encode(answer), END]) == answer


def test_the_sentence_of_a_budget_can_be_written(made: Made) -> None:
    assert UNKNOWN not in Tokenizer(made.folder).encode(announce("", made.spec.reward, 4000))


def test_the_warm_up_reaches_its_target(made: Made) -> None:
    assert set(made.policy.scores) == {"spiral_matrix"}
    assert made.policy.scores["spiral_matrix"] >= 0.1
    assert 20 <= made.policy.steps < 600
    assert made.policy.parameters < 1_000_000


def test_it_is_a_model_folder_that_nodes_load(made: Made) -> None:
    assert all((made.folder / name).exists() for name in (CONFIG, TOKENIZER, WEIGHTS))
    engine = TorchEngine("float32")
    engine.load(made.folder)
    assert engine.vocabulary == made.policy.vocabulary == Tokenizer(made.folder).vocabulary
