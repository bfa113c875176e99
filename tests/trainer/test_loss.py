"""The loss, against the formula written out token by token in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from trainer.loss import two_sided

CLIP, DELTA = 0.2, 4.0
# ratio: below, within and above the clipping interval, between it and δ, at and above δ
RATIOS = [0.01, 0.5, 0.79, 0.81, 0.9999, 1.0, 1.1, 1.19, 1.21, 3.0, 3.99, 4.01, 50.0]


def value(ratio: float, advantage: float) -> float:
    clamped = min(max(ratio, 1 - CLIP), 1 + CLIP)
    return -min(min(ratio, DELTA) * advantage, clamped * advantage)


def slope(ratio: float, advantage: float) -> float:
    """d loss / d logprob: −A·ratio where the ratio itself is what counts, else 0."""
    if advantage > 0:
        return -advantage * ratio if ratio < 1 + CLIP else 0.0
    if advantage < 0:
        return -advantage * ratio if 1 - CLIP < ratio < DELTA else 0.0
    return 0.0


def run(log_ratios: list[float], advantages: list[float]) -> tuple[float, list[float], int]:
    old = torch.linspace(-3, -1, len(log_ratios), dtype=torch.float64)
    new = (old + torch.tensor(log_ratios, dtype=torch.float64)).requires_grad_()
    parts = two_sided(new, old, torch.tensor(advantages, dtype=torch.float64), clip=CLIP, delta=DELTA)
    parts.loss.backward()
    assert new.grad is not None
    return parts.loss.item(), new.grad.tolist(), int(parts.clipped)


@pytest.mark.parametrize("advantage", [2.0, 0.5, 0.0, -0.5, -2.0])
def test_value_and_gradient_are_those_of_the_formula(advantage: float) -> None:
    logs = [math.log(ratio) for ratio in RATIOS]
    total, gradients, _ = run(logs, [advantage] * len(logs))
    assert total == pytest.approx(sum(value(ratio, advantage) for ratio in RATIOS))
    assert gradients == pytest.approx([slope(ratio, advantage) for ratio in RATIOS])


def test_tokens_of_both_signs_are_summed_each_by_its_own_rule() -> None:
    pairs = [(ratio, advantage) for ratio in RATIOS for advantage in (-1.5, 0.7)]
    total, gradients, clipped = run([math.log(r) for r, _ in pairs], [a for _, a in pairs])
    assert total == pytest.approx(sum(value(*pair) for pair in pairs))
    assert gradients == pytest.approx([slope(*pair) for pair in pairs])
    assert clipped == sum(abs(ratio - 1) > CLIP for ratio, _ in pairs)


def test_delta_bounds_what_one_token_with_a_negative_advantage_can_do() -> None:
    """The usual clipping does not: its loss there grows with the ratio."""
    at_delta, _, _ = run([math.log(DELTA)], [-1.0])
    for log_ratio in (2.0, 5.0, 19.0):
        assert run([log_ratio], [-1.0])[0] == pytest.approx(at_delta)


@pytest.mark.parametrize("log_ratio", [100.0, -100.0, 1000.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_absurd_log_ratios_give_finite_losses_and_gradients(log_ratio: float, advantage: float) -> None:
    total, gradients, _ = run([log_ratio, 0.0], [advantage, advantage])
    assert math.isfinite(total)
    assert all(math.isfinite(gradient) for gradient in gradients)
    assert gradients[0] == pytest.approx(0, abs=1e-6)
    assert gradients[1] == pytest.approx(-advantage)


def test_absurd_log_ratios_are_finite_in_single_precision_too() -> None:
    new = torch.tensor([0.0, -200.0], requires_grad=True)
    parts = two_sided(new, torch.tensor([-100.0, 0.0]), torch.tensor([1.0, -1.0]), clip=CLIP, delta=DELTA)
    parts.loss.backward()
    assert new.grad is not None
    assert torch.isfinite(new.grad).all()
    assert torch.isfinite(parts.loss)
