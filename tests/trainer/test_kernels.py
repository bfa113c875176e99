"""Kernels change the time a step takes, not what it computes. Liger's: tests/gpu/test_training.py."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import torch

from protocol.errors import PreflightError
from tests.trainer import small
from trainer.learning.learner import Learner

NewLearner = Callable[..., Learner]
compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and there is no g++"
)
groups = [small.group(number) for number in range(4)]


@compiler
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_layers_compute_the_same(new_learner: NewLearner, checkpointing: bool) -> None:
    plain, compiled = (
        new_learner(small.settings(compile_layers=on, activation_checkpointing=checkpointing, lr=1e-3))
        for on in (False, True)
    )
    for step in range(3):
        expected, found = plain.learn(groups, step), compiled.learn(groups, step)
        assert found.loss == pytest.approx(expected.loss, rel=1e-3, abs=1e-5)
        assert found.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-3)
    assert {name for name, _ in compiled.model.named_parameters()} == {
        name for name, _ in plain.model.named_parameters()
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an NVIDIA GPU here")
def test_ligers_kernels_without_a_gpu_are_refused_before_anything_is_trained(new_learner: NewLearner) -> None:
    with pytest.raises(PreflightError, match="needs an NVIDIA GPU") as refused:
        new_learner(small.settings(kernels="liger"))
    assert 'trainer.kernels = "torch"' in (refused.value.hint or "")
