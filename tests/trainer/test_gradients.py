"""Gradients in as little memory as they take are the plain ones, and what they took is given back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benches.watermark import _read
from torch import nn

from node.engine.weights import save_weights
from tests.trainer import small
from trainer.learning import gradients, heap
from trainer.learning.learner import Learner
from trainer.learning.logprobs import token_logprobs


def untied(folder: Path) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    small.write_model(folder)
    config = AutoConfig.from_pretrained(folder, tie_word_embeddings=False)
    torch.manual_seed(0)
    config.save_pretrained(folder)
    save_weights(AutoModelForCausalLM.from_config(config), folder / "model.safetensors", torch.float32)
    return folder


@pytest.mark.parametrize("write", [small.write_model, untied], ids=["tied", "untied"])
def test_rows_that_nobody_looked_up_change_as_with_a_plain_gradient(
    write: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through several passes each step: gradients are added up where they lie, and those of embeddings row by row."""
    folder, found, forms = write(tmp_path / "model"), [], set()
    for plain in (False, True):
        if plain:
            monkeypatch.setattr(gradients, "look_up_sparsely", lambda model: None)
        learner = Learner(folder, small.settings(optimizer_steps=2, pack_tokens=16, rows_per_forward=1))
        embedding = learner.model.get_input_embeddings().weight
        if plain:
            learner.policy._accumulates = False
        else:
            learner.optimizer.register_step_pre_hook(lambda *_, of=embedding: forms.add(of.grad.is_sparse))
        for step in range(2):
            learner.learn(small.groups(2), step)
        found.append([p.detach() for p in learner.model.parameters()])
        assert all(p.grad is None for p in learner.model.parameters()), "a step ends without gradients"
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert forms == {False} if write is small.write_model else True in forms


def test_rows_are_summed_and_many_become_plain() -> None:
    embedding = nn.Embedding(10, 4, sparse=True)
    for looked_up, sparse in (([1, 1, 3], True), ([3, 4], True), (list(range(8)), False)):
        embedding(torch.tensor(looked_up)).sum().backward()
        gradients.settle([embedding.weight])
        assert embedding.weight.grad is not None
        assert embedding.weight.grad.is_sparse is sparse
    counted = embedding.weight.grad.to_dense()[:, 0]
    assert counted.tolist() == [1, 3, 1, 3, 2, 1, 1, 1, 0, 0]


def test_all_forms_are_clipped_to_one_norm() -> None:
    embedding, plain = nn.Embedding(10, 4, sparse=True), nn.Parameter(torch.zeros(3))
    embedding(torch.tensor([2, 2])).sum().backward()
    plain.grad = torch.full((3,), 4.0)
    parameters = [embedding.weight, plain]
    gradients.settle(parameters)
    assert gradients.clip(parameters, 100.0) == pytest.approx(8)  # √(4·2² + 3·4²)
    assert plain.grad.tolist() == [4.0] * 3
    assert gradients.clip(parameters, 2.0) == pytest.approx(8)
    assert plain.grad.tolist() == pytest.approx([1.0] * 3)
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.to_dense()[2].tolist() == pytest.approx([0.5] * 4)


def test_the_heads_gradient_is_added_to_where_it_lies() -> None:
    torch.manual_seed(0)
    weight, hidden = nn.Parameter(torch.randn(17, 8)), torch.randn(9, 8, requires_grad=True)
    targets, head = torch.randint(0, 17, (9,)), SimpleNamespace(weight=weight, bias=None)
    for _ in range(2):
        token_logprobs(hidden, head, targets, chunk_tokens=4)[0].sum().backward()
    expected, weight.grad = weight.grad, torch.zeros_like(weight)
    lies_at = weight.grad.data_ptr()
    for _ in range(2):
        token_logprobs(hidden, head, targets, chunk_tokens=4, accumulates=True)[0].sum().backward()
    assert weight.grad.data_ptr() == lies_at
    torch.testing.assert_close(weight.grad, expected)


@pytest.mark.skipif(heap._malloc_trim() is None, reason="not glibc")
def test_what_was_freed_between_what_is_kept_is_given_back() -> None:
    blocks = [torch.ones(1 << 14) for _ in range(1 << 10)]  # 64 MiB
    kept = blocks[::16]
    del blocks
    before = _read("VmRSS")
    heap.give_back()
    assert before - _read("VmRSS") > 30 << 20
    assert all(bool(block.all()) for block in kept)
