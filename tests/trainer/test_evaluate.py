"""Evaluation measures the weights: not the dice, the batch or the training problems."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from node.engine import EngineSettings, Prompt
from node.engine.separate_engine import SeparateEngine
from node.engine.torch_engine import TorchEngine
from protocol import seeds
from protocol.environments import TaskSet
from protocol.errors import DeadlineExceeded
from protocol.length_rewards import budgets
from protocol.runspec import RewardSpec
from protocol.sandbox import Sandbox
from protocol.tokenizer import Tokenizer
from tests.tasks_in_process import task_set
from tests.trainer.conftest import Made
from trainer.evaluation import evaluate
from trainer.evaluation.evaluate import Evaluation, Evaluator


@pytest.fixture(scope="module")
def tasks(made: Made) -> TaskSet:
    return task_set(made.spec.environments)


@pytest.fixture(scope="module")
def evaluator(made: Made, tasks: TaskSet) -> Iterator[Evaluator]:
    with Sandbox(made.spec) as sandbox:
        yield Evaluator(made.spec, tasks, sandbox)


@pytest.fixture(scope="module")
def first(made: Made, evaluator: Evaluator) -> Evaluation:
    return evaluator.evaluate(made.folder)


def test_the_same_weights_score_the_same(made: Made, evaluator: Evaluator, first: Evaluation, tmp_path: Path) -> None:
    untrained = tmp_path / "untrained"
    shutil.copytree(made.folder, untrained)
    tensors = load_file(made.folder / "model.safetensors")
    save_file({name: torch.zeros_like(t) for name, t in tensors.items()}, untrained / "model.safetensors")
    assert evaluator.evaluate(untrained).score == 0
    assert evaluator.evaluate(made.folder) == first


def test_an_engine_in_a_process_of_its_own_scores_the_same(
    made: Made, tasks: TaskSet, evaluator: Evaluator, first: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens in batches of another size: problems are scored in the sandbox here as there."""
    monkeypatch.setattr(evaluate, "_BATCH", 20)
    engine = SeparateEngine("float32", EngineSettings(threads=1))
    try:
        separate = Evaluator(made.spec, tasks, evaluator._grader, engine)
        separate.load(made.folder)
        left = iter([2.0, 1.0])
        assert separate.evaluate(made.folder, left=lambda: next(left)) == first
        assert engine.pid is not None
    finally:
        engine.close()


def test_the_batch_it_is_computed_in_does_not_matter(
    made: Made, evaluator: Evaluator, first: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "_BATCH", 5)
    assert evaluator.evaluate(made.folder) == first


def test_the_score_is_the_verifiers_mean_over_the_held_out_problems(
    made: Made, tasks: TaskSet, evaluator: Evaluator, first: Evaluation
) -> None:
    scored = evaluator.scores(made.folder, 1)
    assert (first.problems, len(scored)) == (len(tasks.held_out), len(tasks.held_out))
    assert first.score == pytest.approx(sum(one.score for (one,) in scored) / len(scored))
    assert first.by_environment == {"spiral_matrix": first.score}
    assert first.score > 0  # or this test would say little


def test_prompts_announce_a_budget_as_in_training_and_how_well_it_was_kept_is_told(
    made: Made, tasks: TaskSet, first: Evaluation
) -> None:
    """Named seeds: every party that evaluates these weights draws the same budgets."""
    engine, tokenizer = TorchEngine("float32"), Tokenizer(made.folder)
    engine.load(made.folder)
    seed = hashlib.sha256(b"murmuration/evaluation/1").digest()
    announced = [(6, 12)[seeds.below(seeds.derive(seed, "budget", i), 2)] for i in range(len(tasks.held_out))]
    assert set(announced) == {6, 12}
    lengths = []
    for number, (problem, budget) in enumerate(zip(tasks.held_out, announced, strict=True)):
        key = seeds.sampling_key(seeds.derive(seed, "sample", number))
        prompt = Prompt(tokenizer.prompt(made.spec, problem, budget), (key,))
        done = engine.generate([prompt], temperature=1.0, max_new_tokens=16, end_tokens=tokenizer.end_tokens)[0][0]
        lengths.append(len(done.tokens))
    errors = [abs(budget - length) for budget, length in zip(announced, lengths, strict=True)]
    assert first.tokens == sum(lengths)
    assert first.length_error == pytest.approx(sum(errors) / len(errors))


def test_budgets_of_all_hardware_classes_are_drawn_from() -> None:
    assert budgets(RewardSpec(budgets={"10": [30], "2": [10, 20]})) == [10, 20, 30]
    assert budgets(RewardSpec()) == []


def test_an_evaluation_ends_between_batches_when_its_time_is_over(
    made: Made, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "_BATCH", 5)
    left = iter([2.0, 1.0, 0.0])
    with pytest.raises(DeadlineExceeded, match="after 15 of 32 problems"):
        evaluator.evaluate(made.folder, left=lambda: next(left))


def test_no_training_problem_is_a_held_out_one(tasks: TaskSet) -> None:
    assert all(problem.is_held_out for problem in tasks.held_out)
    assert not tasks.problem(0).is_held_out
