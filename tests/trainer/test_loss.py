"""The losses: against TRL's, committed and afresh, and against the formula written out token by token in plain Python."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from benches import peers
from torch import Tensor

from protocol.errors import ConfigError
from trainer.config import LossSettings
from trainer.learning import loss
from trainer.learning.loss import Tokens, Totals
from trainer.recipes import RECIPES, Clip

VECTORS = Path(__file__).parent.parent / "vectors/losses.json"
CLIP, DELTA = 0.2, 4.0
# ratio: below, within and above the clipping interval, between it and δ, at and above δ
RATIOS = [0.01, 0.5, 0.79, 0.81, 0.9999, 1.0, 1.1, 1.19, 1.21, 3.0, 3.99, 4.01, 50.0]

# ---- against TRL ---------------------------------------------------------------------------------------------------------


NOT_IN_TRL: set[str] = set()
"""Losses that TRL has no counterpart of: each needs another test of its values."""


def ours(case: dict[str, Any]) -> tuple[float, list[float]]:
    """Loss and gradient of a case, whose tokens go through in two parts as in gradient accumulation."""

    def flat(key: str) -> Tensor:
        return torch.tensor(case[key], dtype=torch.float64)

    recipe, lengths = RECIPES[case["name"]], torch.tensor(case["lengths"])
    totals = Totals(int(lengths.sum()), len(lengths))
    logprobs, sample = flat("logprobs").requires_grad_(), torch.arange(len(lengths)).repeat_interleave(lengths)
    value = 0.0
    for part in (sample < 2, sample >= 2):
        first = int(sample[part][0])
        number = sample[part] - first
        tokens = Tokens(logprobs[part], flat("old")[part], flat("advantages")[sample[part]], number, number.bincount())
        weights = loss.token_weights(tokens, recipe.aggregation, totals, case["constant"])
        per_token = loss.OBJECTIVES[recipe.objective](tokens, recipe.clip).loss
        per_token = per_token + case["kl"] * loss.kl(tokens.logprobs, flat("reference")[part])
        total = (per_token * weights).sum()
        total.backward()
        value += total.item()
    assert logprobs.grad is not None
    return value, logprobs.grad.tolist()


def agree(made: dict[str, Any]) -> None:
    for case in made["cases"]:
        value, gradient = ours(case)
        assert value == pytest.approx(case["loss"], rel=1e-12), case["name"]
        assert gradient == pytest.approx(case["gradient"], rel=1e-12, abs=1e-15), case["name"]


def test_losses_and_gradients_are_those_trl_computed() -> None:
    made = json.loads(VECTORS.read_text())
    assert made["made_by"].startswith("trl 1.16.0 ")
    known = RECIPES.keys() - NOT_IN_TRL
    assert {(case["name"], case["kl"]) for case in made["cases"]} == {(n, k) for n in known for k in (0.0, 0.05)}
    agree(made)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_losses_and_gradients_are_those_trl_computes_now() -> None:
    """On inputs of other seeds than the committed ones."""
    python = peers.installed("trl")
    if python is None:
        pytest.skip("TRL's environment is not here; `scripts/bench trainer` makes it")
    for seed in ("0", "1000", "2000"):
        script = peers.ROOT / "scripts/benches/trl_losses.py"
        run = subprocess.run([python, script, seed], check=True, capture_output=True, text=True, timeout=300)
        agree(json.loads(run.stdout))
        if seed == "0":
            assert json.loads(run.stdout)["cases"] == json.loads(VECTORS.read_text())["cases"]


# ---- intellect2, written out -----------------------------------------------------------------------------------------------


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


def tokens_of(log_ratios: list[float], advantages: list[float], dtype: torch.dtype = torch.float64) -> Tokens:
    """Each a sample of one token."""
    old, count = torch.linspace(-3, -1, len(log_ratios), dtype=dtype), len(log_ratios)
    new = (old + torch.tensor(log_ratios, dtype=dtype)).requires_grad_()
    return Tokens(new, old, torch.tensor(advantages, dtype=dtype), torch.arange(count), torch.ones(count).long())


def run(log_ratios: list[float], advantages: list[float]) -> tuple[float, list[float], list[bool]]:
    tokens = tokens_of(log_ratios, advantages)
    made = loss.clipped_ratio(tokens, Clip(CLIP, CLIP, DELTA))
    made.loss.sum().backward()
    assert tokens.logprobs.grad is not None
    return made.loss.sum().item(), tokens.logprobs.grad.tolist(), made.clipped.tolist()


def test_tokens_of_both_signs_follow_each_its_own_rule() -> None:
    pairs = [(ratio, advantage) for ratio in RATIOS for advantage in (-1.5, 0.7, 0.0)]
    total, gradients, clipped = run([math.log(r) for r, _ in pairs], [a for _, a in pairs])
    assert total == pytest.approx(sum(value(*pair) for pair in pairs))
    assert gradients == pytest.approx([slope(*pair) for pair in pairs])
    assert clipped == [slope(ratio, a) == 0 and a != 0 for ratio, a in pairs]


def test_delta_bounds_what_one_token_with_a_negative_advantage_can_do() -> None:
    """The usual clipping does not: its loss there grows with the ratio."""
    at_delta, _, _ = run([math.log(DELTA)], [-1.0])
    for log_ratio in (2.0, 5.0, 19.0):
        assert run([log_ratio], [-1.0])[0] == pytest.approx(at_delta)
    unbounded = loss.clipped_ratio(tokens_of([5.0], [-1.0]), Clip(CLIP, CLIP)).loss.item()
    assert unbounded == pytest.approx(math.exp(5.0))


# ---- what all of them promise ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_ratio", [100.0, -100.0, 1000.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_absurd_log_ratios_give_finite_losses_and_gradients(
    name: str, dtype: torch.dtype, log_ratio: float, advantage: float
) -> None:
    tokens, recipe = tokens_of([log_ratio, 0.0], [advantage] * 2, dtype), RECIPES[name]
    made = loss.OBJECTIVES[recipe.objective](tokens, recipe.clip)
    (made.loss.sum() + loss.kl(tokens.logprobs, tokens.old).sum()).backward()
    assert torch.isfinite(made.loss).all()
    assert tokens.logprobs.grad is not None
    assert torch.isfinite(tokens.logprobs.grad).all()
    assert tokens.logprobs.grad[1].item() == pytest.approx(-advantage)


def test_kl_is_the_estimate_k3_with_its_gradient() -> None:
    new = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    reference = torch.tensor([-1.0, -1.0, -1.5])
    made = loss.kl(new, reference)
    assert made.tolist() == pytest.approx([0.0, math.e - 2, math.exp(-1)])
    made.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([0.0, 1 - math.e, 1 - math.exp(-1)])


def test_importance_weights_are_truncated_or_masked_and_carry_no_gradient() -> None:
    behaviour = torch.tensor([-1.0] * 4)
    old = (behaviour + torch.tensor([0.2, 1.0, 3.0, 90.0]).log()).requires_grad_()
    assert loss.importance(old, behaviour, "none", 0.5, 2.0).tolist() == [1.0] * 4
    assert loss.importance(old, behaviour, "truncate", 0.5, 2.0).tolist() == pytest.approx([0.2, 1.0, 2.0, 2.0])
    masked = loss.importance(old, behaviour, "mask", 0.5, 2.0)
    assert masked.tolist() == pytest.approx([0.0, 1.0, 0.0, 0.0])
    assert not masked.requires_grad


def test_an_absurd_claimed_logprob_weighs_no_more_than_allowed() -> None:
    old, claimed = torch.tensor([-1.0, -1.0]), torch.tensor([-1e30, 1e30])
    assert loss.importance(old, claimed, "truncate", 0.5, 2.0).tolist() == pytest.approx([2.0, 0.0], abs=1e-8)
    assert loss.importance(old, claimed, "mask", 0.5, 2.0).tolist() == [0.0, 0.0]


def test_what_a_name_leaves_open_comes_from_its_recipe_and_can_be_set() -> None:
    assert LossSettings().clip == Clip(0.2, 0.2, 4.0)
    assert LossSettings(name="dapo", clip_low=0.1).clip == Clip(0.1, 0.28)
    assert LossSettings(name="grpo", delta=3.0).clip == Clip(0.2, 0.2, 3.0)
    assert LossSettings(name="grpo").aggregates == "sequence"
    with pytest.raises(ValueError, match="set `constant`"):
        LossSettings(name="dr_grpo")
    with pytest.raises(ValueError, match="must be recomputed"):
        LossSettings(old="claimed", correction="mask")


def test_a_loss_that_wants_logprobs_refuses_a_run_without() -> None:
    for one in (LossSettings(), LossSettings(old="claimed"), LossSettings(correction="mask")):
        one.require_logprobs(True)
    LossSettings().require_logprobs(False)
    for one, named in (
        (LossSettings(old="claimed"), "loss.old"),
        (LossSettings(correction="truncate"), "loss.correction"),
    ):
        with pytest.raises(ConfigError, match=named):
            one.require_logprobs(False)
