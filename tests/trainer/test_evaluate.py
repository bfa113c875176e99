"""Evaluation measures the weights: not the dice, the batch or the training problems."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from node.engine import Prompt
from node.engine.torch_engine import TorchEngine
from protocol import seeds
from protocol.environments import TaskSet
from protocol.sandbox import Sandbox
from protocol.tokenizer import Tokenizer
from tests.trainer.conftest import Made
from trainer.evaluation import evaluate
from trainer.evaluation.evaluate import Evaluation, Evaluator


@pytest.fixture(scope="module")
def tasks(made: Made) -> TaskSet:
    return TaskSet(made.spec.environments)


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


def test_the_batch_it_is_computed_in_does_not_matter(
    made: Made, evaluator: Evaluator, first: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "_BATCH", 5)
    assert evaluator.evaluate(made.folder) == first


def test_the_score_is_the_verifiers_mean_over_the_held_out_problems(
    made: Made, tasks: TaskSet, first: Evaluation
) -> None:
    engine, tokenizer = TorchEngine("float32"), Tokenizer(made.folder)
    engine.load(made.folder)
    seed = hashlib.sha256(b"murmuration/evaluation/1").digest()
    total = length = 0.0
    for number, problem in enumerate(tasks.held_out):
        prompt = Prompt(tokenizer.encode(problem.prompt), (seeds.sampling_key(seeds.derive(seed, "sample", number)),))
        done = engine.generate([prompt], temperature=1.0, max_new_tokens=16, end_tokens=tokenizer.end_tokens)[0][0]
        total += tasks.score(problem, tokenizer.answer(done.tokens))
        length += len(done.tokens)
    assert (first.problems, first.tokens) == (len(tasks.held_out), length)
    assert first.score == pytest.approx(total / len(tasks.held_out))
    assert first.by_environment == {"spiral_matrix": first.score}
    assert first.score > 0  # or this test would say little


def test_no_training_problem_is_a_held_out_one(tasks: TaskSet) -> None:
    assert all(tasks.is_held_out(problem) for problem in tasks.held_out)
    assert not tasks.is_held_out(tasks.problem(0))
