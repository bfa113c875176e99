"""A tiny policy that has seen little learns to use a calculator in two turns: the way of a real training, from replies to gradients."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.rollout import Sample
from tests.trainer.lesson import ENGINE, begin, write
from trainer.config import LossSettings, OptimizerSettings, TrainSettings
from trainer.learning import advantage
from trainer.learning.learner import Learner
from trainer.rollouts.data import training_sample
from trainer.rollouts.local import LocalGeneration

RISE = 0.3
STEPS = 80


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_tiny_model_learns_to_use_a_calculator_in_two_turns(tmp_path: Path) -> None:
    lesson = begin(tmp_path)
    before = lesson.score(lesson.start)
    assert before < 1 - RISE, "the warm-up went too far to show anything"
    settings = TrainSettings(
        steps=STEPS, optimizer_steps=2, pack_tokens=256, rows_per_forward=16, optimizer=OptimizerSettings(lr=2e-4, warmup_steps=0),
        loss=LossSettings(entropy=0.001),
    )  # fmt: skip
    learner = Learner(lesson.start, settings)
    version = Path(shutil.copytree(lesson.start, tmp_path / "version"))
    make = LocalGeneration(lesson.spec, lesson.tasks, lesson.sandbox, lesson.tokenizer, ENGINE, 0)
    after = before
    for step in range(STEPS):
        make.load(write(learner.model, version))
        samples = make(step, 0)
        groups = [samples[i : i + 8] for i in range(0, len(samples), 8)]
        learner.learn([group_of(group) for group in groups if advantage.teaches(group)], step)
        if step % 10 == 9 and (after := lesson.score(write(learner.model, version))) >= before + RISE:
            break
    asked = [len(sample.turns) for sample in samples if sample.task_reward == 1]
    lesson.sandbox.close()
    print(
        f"held-out reward {before:.3f} before, {after:.3f} after {step + 1} steps; {np.mean(asked):.3f} calls for a right answer"
    )
    assert after >= before + RISE
    assert np.mean(asked) > 0.8, "and it does so by asking"


def group_of(samples: list[Sample]) -> list[Any]:
    advantages = advantage.normalised(np.array([sample.reward for sample in samples], np.float64))
    return [training_sample(sample, float(a)) for sample, a in zip(samples, advantages, strict=True)]
