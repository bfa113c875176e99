"""One step of learning: what it does to the samples, and that it can be repeated, resumed and survived."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import small
from trainer import loss
from trainer.learner import Learner, StepMetrics
from trainer.packing import PackedRows, TrainingSample

NewLearner = Callable[..., Learner]


def test_a_step_makes_better_samples_likelier_and_worse_ones_less_likely(new_learner: NewLearner) -> None:
    learner, batch = new_learner(), small.groups(4)
    better = [one for group in batch for one in group if one.advantage > 0]
    worse = [one for group in batch for one in group if one.advantage < 0]
    before = small.likelihood(learner, better), small.likelihood(learner, worse)
    learner.learn(batch, 0)
    assert small.likelihood(learner, better) > before[0]
    assert small.likelihood(learner, worse) < before[1]


def test_a_step_lowers_the_loss_on_its_own_batch(new_learner: NewLearner) -> None:
    learner, batch = new_learner(small.settings(lr=1e-3)), small.groups(4)
    samples = [one for group in batch for one in group]
    old = [small.logprobs(learner, one) for one in samples]

    def batch_loss() -> float:
        parts = [
            loss.two_sided(
                small.logprobs(learner, one), before, torch.full_like(before, one.advantage), clip=0.2, delta=4
            )
            for one, before in zip(samples, old, strict=True)
        ]
        return sum(part.loss.item() for part in parts)

    before = batch_loss()
    learner.learn(batch, 0)
    assert batch_loss() < before


def test_the_first_step_is_the_plain_policy_gradient(new_learner: NewLearner) -> None:
    """At ratio 1 the gradient is −A·∇logprob per token, over all tokens of the batch; packing adds nothing to it."""
    settings = small.settings(gradient_clip=1e9)
    learner, reference, batch = new_learner(settings), new_learner(settings), small.groups(3)
    samples = [one for group in batch for one in group]
    tokens = sum(len(one.completion) for one in samples)
    for one in samples:
        ids = torch.tensor([[*one.prompt.tolist(), *one.completion.tolist()]])
        logits = reference.model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        rows = logits[len(one.prompt) - 1 : -1]
        chosen = rows.gather(1, torch.tensor(one.completion.tolist())[:, None])
        (-one.advantage * chosen.sum() / tokens).backward()
    metrics = learner.learn(batch, 0)
    norm = torch.cat([p.grad.flatten() for p in reference.model.parameters()]).norm()
    assert metrics.gradient_norm == pytest.approx(norm.item(), rel=1e-4)
    for ours, theirs in zip(learner.model.parameters(), reference.model.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-6)
    assert metrics.tokens == tokens
    assert metrics.loss == pytest.approx(-sum(s.advantage * len(s.completion) for s in samples) / tokens, abs=1e-6)


def test_later_optimizer_steps_measure_their_ratio_against_the_weights_the_step_began_with(
    new_learner: NewLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, seen = new_learner(small.settings(optimizer_steps=3)), []
    first = new_learner()
    original = loss.two_sided

    def spy(new: torch.Tensor, old: torch.Tensor, *rest: Any, **options: Any) -> loss.LossParts:
        seen.append(old.detach().clone())
        return original(new, old, *rest, **options)

    monkeypatch.setattr(loss, "two_sided", spy)
    learner.learn(small.groups(6), 0)
    expected = torch.cat([small.logprobs(first, one) for group in small.groups(6) for one in group])
    assert torch.allclose(torch.cat(seen).sort().values, expected.sort().values, atol=1e-5)


class Broken(Learner):
    """Gives NaN logprobs in the chosen optimizer steps."""

    broken: frozenset[int] = frozenset()
    step = -1

    def _update(self, batch: Sequence[PackedRows], frozen: Any) -> Any:
        self.step += 1
        return super()._update(batch, frozen)

    def _logprobs(self, rows: PackedRows) -> Any:
        logprobs, entropy = super()._logprobs(rows)
        return (logprobs * float("nan") if self.step in self.broken else logprobs), entropy


def test_a_gradient_that_is_not_finite_changes_no_weight_and_no_optimizer_state(model: Path, tmp_path: Path) -> None:
    learner = Broken(model, small.settings())
    learner.broken = frozenset({1})
    learner.learn(small.groups(2), 0)
    before = small.weights(learner)
    (tmp_path / "before").mkdir()
    learner.save(tmp_path / "before")
    metrics = learner.learn(small.groups(2), 1)
    assert (metrics.skipped, metrics.tokens) == (1, 0)
    assert small.equal(small.weights(learner), before)
    (tmp_path / "after").mkdir()
    learner.save(tmp_path / "after")
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "after" / name).read_bytes()
    assert learner.learn(small.groups(2), 2).skipped == 0
    assert not small.equal(small.weights(learner), before)


@pytest.mark.parametrize("broken", [{0}, {1}, {0, 1, 2}])
def test_metrics_are_finite_whatever_was_skipped(model: Path, broken: set[int]) -> None:
    """They go into JSON that others read, and JSON knows no NaN."""
    learner = Broken(model, small.settings(optimizer_steps=3))
    learner.broken = frozenset(broken)
    metrics = learner.learn(small.groups(6), 0)
    assert metrics.skipped == len(broken)
    json.dumps(dataclasses.asdict(metrics), allow_nan=False)


def test_a_restored_learner_goes_on_bit_for_bit(new_learner: NewLearner, tmp_path: Path) -> None:
    settings = small.settings(optimizer_steps=2)
    straight = new_learner(settings)
    for step in range(2):
        straight.learn(small.groups(4), step)
    straight.save(tmp_path)
    resumed = new_learner(settings)
    resumed.restore(tmp_path)
    assert small.equal(small.weights(resumed), small.weights(straight))
    for step in range(2, 5):
        metrics = straight.learn(small.groups(4), step), resumed.learn(small.groups(4), step)
        assert metrics[0] == metrics[1]
    assert small.equal(small.weights(resumed), small.weights(straight))


def test_a_learner_that_never_learnt_is_restored_too(new_learner: NewLearner, tmp_path: Path) -> None:
    new_learner().save(tmp_path)
    resumed, fresh = new_learner(), new_learner()
    resumed.restore(tmp_path)
    for learner in (resumed, fresh):
        learner.learn(small.groups(2), 0)
    assert small.equal(small.weights(resumed), small.weights(fresh))


def test_what_is_saved_has_full_precision_and_a_tied_head_once(new_learner: NewLearner, tmp_path: Path) -> None:
    learner = new_learner()
    learner.learn(small.groups(2), 0)
    learner.save(tmp_path)
    stored = small.stored(tmp_path)
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    assert "lm_head.weight" not in stored


def deal(learner: Learner, batch: Sequence[Sequence[TrainingSample]], step: int, monkeypatch: Any) -> list[set[int]]:
    """Which prompts each optimizer step of `learn` got; a group's prompt names it."""
    seen: list[set[int]] = []

    def spy(rows: Sequence[PackedRows], frozen: Any) -> Any:
        seen.append({int(r.ids[i, j]) for r in rows for i, j in torch.nonzero(r.positions == 0) if r.ids[i, j]})
        return torch.zeros(4, dtype=torch.float64), 0.0

    with monkeypatch.context() as patch:
        patch.setattr(learner, "_update", spy)
        learner.learn(batch, step)
    return seen


def test_the_deal_of_groups_depends_on_seed_and_step_only(
    new_learner: NewLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = [(small.sample([number], [2]), small.sample([number], [3], -1.0)) for number in range(2, 26)]
    learner = new_learner(small.settings(optimizer_steps=4, seed=1))
    first = deal(learner, batch, 7, monkeypatch)
    assert [len(part) for part in first] == [6] * 4
    assert set().union(*first) == set(range(2, 26))
    learner.learn(small.groups(4), 0)
    assert deal(learner, batch, 7, monkeypatch) == first
    assert deal(new_learner(small.settings(optimizer_steps=4, seed=1)), batch, 7, monkeypatch) == first
    assert deal(learner, batch, 8, monkeypatch) != first
    assert deal(new_learner(small.settings(optimizer_steps=4, seed=2)), batch, 7, monkeypatch) != first


def test_fewer_groups_than_optimizer_steps_are_all_learnt_from(new_learner: NewLearner) -> None:
    metrics = new_learner(small.settings(optimizer_steps=8)).learn(small.groups(3), 0)
    assert metrics.tokens == sum(len(one.completion) for group in small.groups(3) for one in group)


def test_the_learning_rate_climbs_over_the_warm_up_and_stays(new_learner: NewLearner) -> None:
    settings = small.settings(lr=1e-3)
    settings = settings.model_copy(update={"optimizer": settings.optimizer.model_copy(update={"warmup_steps": 4})})
    learner, rates = new_learner(settings), []
    for step in range(6):
        learner.learn(small.groups(1), step)
        rates.append(learner.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_the_gradient_is_clipped_to_its_largest_norm(new_learner: NewLearner) -> None:
    learner = new_learner(small.settings(gradient_clip=1e-3))
    metrics = learner.learn(small.groups(2), 0)
    assert metrics.gradient_norm > 1e-3
    norm = torch.cat([p.grad.flatten() for p in learner.model.parameters()]).norm()
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)


def test_the_entropy_bonus_raises_the_entropy(new_learner: NewLearner) -> None:
    """With equal advantages of zero nothing else is left to move the weights."""
    settings = small.settings(lr=1e-3)
    settings = settings.model_copy(update={"loss": settings.loss.model_copy(update={"entropy": 1.0})})
    learner = new_learner(settings)
    batch = [tuple(dataclasses.replace(one, advantage=0.0) for one in group) for group in small.groups(3)]
    metrics: list[StepMetrics] = [learner.learn(batch, step) for step in range(3)]
    assert metrics[2].entropy > metrics[0].entropy
