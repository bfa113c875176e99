"""Length rewards: every party announces the same budget in the same words, and computes the same penalty for missing it."""

from __future__ import annotations

import json
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from swarm.tiny_run import TinyRun

from protocol import length_rewards, seeds
from protocol.environments.assignment import AssignedGroup, assign
from protocol.reward import STEP
from protocol.runspec import RewardSpec
from tests.tasks_in_process import task_set

VECTORS = json.loads((Path(__file__).parent.parent / "vectors/length_rewards.json").read_text())
ALPHAS = st.decimals("0", "2", places=6).map(lambda value: f"{value:f}")
LENGTHS = st.integers(1, 40_000)


def of(length: str, alpha: str = "0.01", budgets: dict[str, list[int]] | None = None) -> RewardSpec:
    return RewardSpec.model_validate({"alpha": alpha, "length": length, "budgets": budgets or {}})


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['length']}-{v['alpha']}-{v['budget']}-{v['tokens']}")
def test_vectors(vector: dict[str, Any]) -> None:
    reward = of(vector["length"], vector["alpha"])
    assert length_rewards.penalty(reward, vector["budget"], vector["tokens"]) == int(vector["steps"]) * STEP
    assert length_rewards.announce("", reward, vector["budget"]) == vector["sentence"]


@given(st.sampled_from(["exact", "maximum", "ratio"]), ALPHAS, LENGTHS, LENGTHS)
@settings(deadline=None)
def test_a_penalty_is_the_exact_one_to_the_nearest_step(length: str, alpha: str, budget: int, tokens: int) -> None:
    """Computed another way: in decimals of more digits than these numbers have."""
    off = max(0, tokens - budget) if length == "maximum" else abs(tokens - budget)
    with localcontext(prec=60):
        lost = Decimal(alpha) * off / (budget if length == "ratio" else 1)
        found = length_rewards.penalty(of(length, alpha), budget, tokens)
        assert abs(Decimal(found) - lost) <= Decimal(STEP) / 2
    assert found % STEP == 0
    if found < 16:
        assert float(np.float32(found)) == found


def test_what_costs_nothing() -> None:
    assert {length_rewards.penalty(of("maximum"), 100, tokens) for tokens in range(1, 101)} == {0}
    assert length_rewards.penalty(of("maximum"), 100, 101) > 0
    for length in ("exact", "ratio"):
        assert length_rewards.penalty(of(length), 100, 100) == 0
        assert length_rewards.penalty(of(length), 100, 99) == length_rewards.penalty(of(length), 100, 101) > 0
    assert length_rewards.penalty(of("ratio"), 10, 5) == length_rewards.penalty(of("ratio"), 1000, 1500)
    assert {length_rewards.penalty(of(length), 0, 7) for length in ("exact", "maximum", "ratio")} == {0}


BUDGETS = {"0": [10, 20], "1": [15, 30]}


def drawn(run: TinyRun, hardware: int | None) -> list[AssignedGroup]:
    tasks = task_set(run.spec.environments)
    found = [assign(run.spec, tasks, seeds.derive(b"\x00" * 32, "i", i), hardware) for i in range(30)]
    return [group for groups in found for group in groups]


def test_an_environment_has_its_own_budgets_or_those_of_the_run_or_none(tiny_run: TinyRun) -> None:
    own = of("maximum", budgets={"0": [40], "1": [50, 60]})
    cases = (((own,), {40}, {10, 20}), ((None, own), {10, 20}, {40}), ((of("exact"), own), {0}, {40}))
    for rewards, first, second in cases:
        found = drawn(tiny_run.with_reward(of("exact", budgets=BUDGETS), *rewards), 0)
        assert {group.budget for group in found if group.problem.environment == 0} == first
        assert {group.budget for group in found if group.problem.environment == 1} == second


def test_where_nobodys_class_matters_budgets_of_all_are_drawn(tiny_run: TinyRun) -> None:
    found = drawn(tiny_run.with_reward(of("exact", budgets=BUDGETS)), None)
    assert {group.budget for group in found} == {10, 20, 15, 30}


def test_a_prompt_says_what_its_environment_asks(tiny_run: TinyRun) -> None:
    run = tiny_run.with_reward(of("exact", budgets=BUDGETS), None, of("maximum", budgets=BUDGETS))
    tasks = task_set(run.spec.environments)
    first, second = tasks.problem(0), tasks.problem(run.spec.environments[0].size)
    for problem, words in ((first, " Think for 20 tokens"), (second, " Think for at most 20 tokens")):
        expected = f"{problem.prompt}{words} before giving a response."
        prompt = run.tokenizer.prompt(run.spec, problem, 20)
        assert prompt == run.tokenizer.encode(run.spec.sampling.prompt_template.replace("{prompt}", expected))
    long = run.tokenizer.longest(run.spec, [first.prompt])
    assert (
        long
        == len(run.tokenizer.encode(f"{first.prompt} Think for at most 30 tokens before giving a response."))
        + run.spec.sampling.longest
    )
