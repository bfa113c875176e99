"""One step of learning: what it does to the samples, and that it can be repeated, resumed and survived."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from protocol.errors import IntegrityError
from protocol.model_files import WEIGHTS
from tests.trainer import small
from trainer.config import KlSettings, LossSettings
from trainer.learning import loss, tensors
from trainer.learning.learner import Batch, Learner, StepMetrics, _Sums
from trainer.learning.packing import PackedRows, TrainingSample, pack
from trainer.recipes import RECIPES, Clip

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
        total = 0.0
        for one, before in zip(samples, old, strict=True):
            advantages = torch.full_like(before, one.advantage)
            alone = torch.zeros(len(before), dtype=torch.long)
            tokens = loss.Tokens(small.logprobs(learner, one), before, advantages, alone, alone.bincount())
            total += loss.clipped_ratio(tokens, Clip(0.2, 0.2, 4.0)).loss.sum().item()
        return total

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
    with small.gradients(learner) as found:
        metrics = learner.learn(batch, 0)
    expected = [p.grad.to_dense() for p in reference.model.parameters()]
    assert metrics.gradient_norm == pytest.approx(torch.cat([g.flatten() for g in expected]).norm().item(), rel=1e-4)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    assert metrics.tokens == tokens
    assert metrics.loss == pytest.approx(-sum(s.advantage * len(s.completion) for s in samples) / tokens, abs=1e-6)


def test_later_optimizer_steps_measure_their_ratio_against_the_weights_the_step_began_with(
    new_learner: NewLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, seen = new_learner(small.settings(optimizer_steps=3)), []
    first = new_learner()
    original = learner._objective

    def spy(tokens: loss.Tokens, clip: Clip) -> loss.Objective:
        seen.append(tokens.old.detach().clone())
        return original(tokens, clip)

    monkeypatch.setattr(learner, "_objective", spy)
    learner.learn(small.groups(6), 0)
    expected = torch.cat([small.logprobs(first, one) for group in small.groups(6) for one in group])
    assert torch.allclose(torch.cat(seen).sort().values, expected.sort().values, atol=1e-5)


def test_old_logprobs_are_computed_for_later_optimizer_steps_only(
    new_learner: NewLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, computed = new_learner(small.settings(optimizer_steps=3)), []
    original = learner._frozen

    def spy(rows: PackedRows, model: Any) -> torch.Tensor:
        computed.extend(rows.samples)
        return original(rows, model)

    monkeypatch.setattr(learner, "_frozen", spy)
    learner.learn(small.groups(6), 0)
    assert len(computed) == 2 / 3 * sum(len(group) for group in small.groups(6))


class Broken(Learner):
    """Gives NaN logprobs in the chosen optimizer steps: of all tokens, or of `victim` alone."""

    broken: frozenset[int] = frozenset()
    victim = ""
    step = -1

    def _update(self, batch: Batch) -> Any:
        self.step += 1
        return super()._update(batch)

    def _logprobs(self, rows: PackedRows, model: Any) -> Any:
        logprobs, entropy = super()._logprobs(rows, model)
        factors = torch.tensor([math.nan if self.victim in ("", sample.name) else 1.0 for sample in rows.samples])
        return (logprobs * factors[rows.sample] if self.step in self.broken else logprobs), entropy


def named(batch: list[tuple[TrainingSample, ...]]) -> list[tuple[TrainingSample, ...]]:
    return [
        tuple(dataclasses.replace(one, name=f"{g}.{i}") for i, one in enumerate(group)) for g, group in enumerate(batch)
    ]


@pytest.mark.parametrize("optimizer_steps", [1, 3])
def test_the_rollout_without_a_finite_gradient_is_named(
    model: Path, optimizer_steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    learner = Broken(model, small.settings(optimizer_steps=optimizer_steps))
    learner.broken, learner.victim = frozenset(range(optimizer_steps)), "2.3"
    metrics = learner.learn(named(small.groups(6)), 0)
    assert (metrics.skipped, metrics.blamed) == (1, ("2.3",))
    assert "2.3" in caplog.text


def test_a_gradient_that_is_not_finite_though_the_loss_is_skips_the_step_too(model: Path) -> None:
    """As from a backward pass that overflows."""

    class Overflowing(Learner):
        def _logprobs(self, rows: PackedRows, model: Any) -> Any:
            logprobs, entropy = super()._logprobs(rows, model)
            logprobs.register_hook(lambda gradient: gradient * float("inf"))
            return logprobs, entropy

    learner = Overflowing(model, small.settings())
    before = small.weights(learner)
    metrics = learner.learn(named(small.groups(2)), 0)
    assert (metrics.skipped, metrics.tokens, len(metrics.blamed)) == (1, 0, 8)
    assert small.equal(small.weights(learner), before)


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
    assert small.equal(tensors.read(tmp_path / "before", ""), tensors.read(tmp_path / "after", ""))
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
    (file,) = tmp_path.iterdir()
    stored = load_file(file)
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    assert "model/lm_head.weight" not in stored


def deal(learner: Learner, batch: Sequence[Sequence[TrainingSample]], step: int, monkeypatch: Any) -> list[set[int]]:
    """Which prompts each optimizer step of `learn` got; a group's prompt names it."""
    seen: list[set[int]] = []

    def spy(batch: Batch) -> Any:
        seen.append({int(sample.prompt[0]) for share in batch.shares for sample in share.rows.samples})
        return _Sums(), 0.0

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


def warming() -> Any:
    settings = small.settings(lr=1e-3, optimizer_steps=2)
    return settings.model_copy(update={"optimizer": settings.optimizer.model_copy(update={"warmup_steps": 5})})


def test_the_learning_rate_climbs_with_every_optimizer_step_and_stays(new_learner: NewLearner, tmp_path: Path) -> None:
    """A resumed learner goes on where it was, whatever its step is called: weights may be published a second time under a later one."""
    learner = new_learner(warming())
    rates = [learner.learn(small.groups(2), step).learning_rate for step in range(2)]
    learner.save(tmp_path)
    resumed = new_learner(warming())
    resumed.restore(tmp_path)
    rates += [resumed.learn(small.groups(2), step).learning_rate for step in (7, 8)]
    assert rates == pytest.approx([0.4e-3, 0.8e-3, 1e-3, 1e-3])


def test_an_optimizer_step_that_is_left_out_takes_nothing_of_the_warm_up(model: Path) -> None:
    learner = Broken(model, warming())
    learner.broken = frozenset({0, 1})
    rates = [learner.learn(small.groups(2), step).learning_rate for step in range(2)]
    assert rates == pytest.approx([0.2e-3, 0.4e-3])


def test_the_gradient_is_clipped_to_its_largest_norm(new_learner: NewLearner) -> None:
    learner = new_learner(small.settings(gradient_clip=1e-3))
    with small.gradients(learner) as found:
        metrics = learner.learn(small.groups(2), 0)
    assert metrics.gradient_norm > 1e-3
    norm = torch.cat([gradient.flatten() for gradient in found]).norm()
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)


def test_the_entropy_bonus_raises_the_entropy(new_learner: NewLearner) -> None:
    """With equal advantages of zero nothing else is left to move the weights."""
    settings = small.settings(lr=1e-3)
    settings = settings.model_copy(update={"loss": settings.loss.model_copy(update={"entropy": 1.0})})
    learner = new_learner(settings)
    batch = [tuple(dataclasses.replace(one, advantage=0.0) for one in group) for group in small.groups(3)]
    metrics: list[StepMetrics] = [learner.learn(batch, step) for step in range(3)]
    assert metrics[2].entropy > metrics[0].entropy


# ---- losses by name, KL, corrections ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_every_loss_learns_and_reports_finite_metrics(new_learner: NewLearner, name: str) -> None:
    settings = small.settings(loss=LossSettings(name=name, constant=8), optimizer_steps=2)  # type: ignore[arg-type]
    learner, batch = new_learner(settings), small.groups(4)
    better = [one for group in batch for one in group if one.advantage > 0]
    before = small.likelihood(learner, better)
    metrics = learner.learn(batch, 0)
    assert small.likelihood(learner, better) > before
    json.dumps(dataclasses.asdict(metrics), allow_nan=False)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_how_a_batch_is_cut_into_rows_changes_no_gradient(new_learner: NewLearner, aggregation: Any) -> None:
    found = []
    for cut in ({"pack_tokens": 8, "rows_per_forward": 1}, {"pack_tokens": 200, "rows_per_forward": 9}):
        learner = new_learner(small.settings(loss=LossSettings(aggregation=aggregation, constant=8), **cut))
        with small.gradients(learner) as gradients:
            metrics = learner.learn(small.groups(5), 0)
        found.append([torch.tensor(metrics.loss), *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def with_kl(weight: float, keep: bool = True, **more: Any) -> Any:
    return small.settings(kl=KlSettings(weight=weight, reference="device" if keep else "disk"), **more)


@pytest.mark.parametrize("keep", [True, False])
def test_kl_pulls_the_policy_back_to_the_one_before_training(new_learner: NewLearner, keep: bool) -> None:
    """With advantages of zero nothing else moves the weights."""
    moved = new_learner(with_kl(1.0, keep))
    with torch.no_grad():
        for parameter in moved.model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    batch = [tuple(dataclasses.replace(one, advantage=0.0) for one in group) for group in small.groups(3)]
    found = [moved.learn(batch, step).kl for step in range(6)]
    assert 0 < found[-1] < 0.5 * found[0]
    assert (moved._reference is None) is not keep


def test_a_reference_that_somebody_wrote_to_is_not_measured_against(model: Path, tmp_path: Path) -> None:
    """It is read anew at each step, so what replaces it would be another reference from there on."""
    policy = Path(shutil.copytree(model, tmp_path / "policy"))
    learner = Learner(policy, with_kl(1.0, keep=False))
    learner.learn(small.groups(2), 0)
    shutil.copyfile(model / WEIGHTS, policy / "other")
    (policy / "other").replace(policy / WEIGHTS)
    with pytest.raises(IntegrityError, match="were written while"):
        learner.learn(small.groups(2), 1)


def test_kl_is_zero_and_without_gradient_where_policy_and_reference_are_one(new_learner: NewLearner) -> None:
    batch = [tuple(dataclasses.replace(one, advantage=0.0) for one in group) for group in small.groups(3)]
    metrics = new_learner(with_kl(1.0)).learn(batch, 0)
    assert metrics.kl == pytest.approx(0, abs=1e-9)
    assert metrics.gradient_norm < 1e-6


def test_a_weight_of_zero_never_loads_a_reference(new_learner: NewLearner, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = new_learner(with_kl(0.0))
    monkeypatch.setattr(learner, "_load_reference", lambda: pytest.fail("loaded"))
    assert learner.learn(small.groups(2), 0).kl == 0


def claimed(
    learner: Learner, batch: list[tuple[TrainingSample, ...]], shift: float
) -> list[tuple[TrainingSample, ...]]:
    """With the learner's own logprobs as the claimed ones, but for `shift`."""
    return [
        tuple(dataclasses.replace(one, logprobs=small.logprobs(learner, one).numpy() + shift) for one in group)
        for group in batch
    ]


@pytest.mark.parametrize(("correction", "factor"), [("none", 1.0), ("truncate", 2.0), ("mask", 0.0)])
def test_a_correction_weighs_what_older_weights_sampled(
    new_learner: NewLearner, correction: Any, factor: float
) -> None:
    """All tokens three times as likely now as when they were sampled; the bounds are 0.5 and 2."""
    plain, corrected = (
        new_learner(small.settings(loss=LossSettings(entropy=0.0, correction=c), gradient_clip=1e9))
        for c in ("none", correction)
    )
    batch = claimed(plain, small.groups(3), -math.log(3))
    with small.gradients(plain) as expected, small.gradients(corrected) as found:
        plain.learn(small.groups(3), 0)
        metrics = corrected.learn(batch, 0)
    assert metrics.behaviour_gap == pytest.approx(math.log(3), rel=1e-4)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, factor * theirs, atol=1e-6, rtol=1e-4)


def test_claimed_logprobs_may_serve_as_the_old_ones_and_then_nothing_is_recomputed(
    new_learner: NewLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = new_learner(small.settings(loss=LossSettings(old="claimed"), optimizer_steps=2))
    batch = claimed(learner, small.groups(4), -0.25)
    monkeypatch.setattr(learner, "_frozen", lambda *_: pytest.fail("recomputed"))
    assert learner.learn(batch[:1], 0).log_ratio == pytest.approx(0.25, rel=1e-4)


def test_absurd_claims_leave_weights_and_metrics_finite(new_learner: NewLearner) -> None:
    for settings in (LossSettings(correction="truncate"), LossSettings(old="claimed")):
        learner = new_learner(small.settings(loss=settings))
        batch = claimed(learner, small.groups(3), 0.0)
        batch[0] = tuple(
            dataclasses.replace(one, logprobs=np.full(len(one.completion), v, np.float32))
            for one, v in zip(batch[0], (1e30, -1e30, 3e38, 0.0), strict=True)
        )
        metrics = learner.learn(batch, 0)
        assert metrics.skipped == 0  # nobody's claims may stop the others' samples
        json.dumps(dataclasses.asdict(metrics), allow_nan=False)
        assert all(torch.isfinite(tensor).all() for tensor in small.weights(learner).values())


# ---- precision and memory --------------------------------------------------------------------------------------------------


def test_activation_checkpointing_changes_no_gradient(new_learner: NewLearner) -> None:
    plain, checkpointed = (new_learner(small.settings(activation_checkpointing=on)) for on in (False, True))
    calls, found = {id(plain): 0, id(checkpointed): 0}, []
    for learner in (plain, checkpointed):
        layer = learner.model.base_model.layers[0].self_attn
        layer.register_forward_hook(lambda *_, key=id(learner): calls.update({key: calls[key] + 1}))
        with small.gradients(learner) as gradients:
            learner.learn(small.groups(2), 0)
        found.append(gradients)
    assert calls[id(checkpointed)] == 2 * calls[id(plain)] > 0
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_bfloat16_computes_in_it_and_keeps_float32_weights_and_logprobs(new_learner: NewLearner) -> None:
    exact, rounded = new_learner(), new_learner(small.settings(compute_dtype="bfloat16"))
    seen = []
    rounded.model.base_model.layers[0].mlp.register_forward_hook(lambda *given: seen.append(given[2].dtype))
    (rows,) = pack([one for group in small.groups(3) for one in group], 500, 9)
    logprobs = [learner._frozen(rows, learner.policy) for learner in (exact, rounded)]
    assert logprobs[1].dtype == torch.float32
    assert seen == [torch.bfloat16]
    assert not torch.equal(*logprobs)
    torch.testing.assert_close(*logprobs, atol=0.05, rtol=0.05)
    rounded.learn(small.groups(2), 0)
    assert {p.dtype for p in rounded.model.parameters()} == {torch.float32}
