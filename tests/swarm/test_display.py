"""What a watcher of the demo sees at moments at which little is known."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from swarm import display


@pytest.mark.parametrize("metrics", [None, {}, {"reward": None}, {"reward": 0.5}])
def test_a_step_that_learnt_from_nothing_has_no_reward(metrics: dict[str, Any] | None) -> None:
    seen = SimpleNamespace(head=None, counts=lambda _: Counter())
    watch: Any = SimpleNamespace(
        trainer={"metrics": metrics},
        seen=seen,
        members=list,
        relays={},
        served={"origin": 0},
        kinds={"sums": "math"},
        rewards={},
    )
    assert ("reward" in display._plain(watch)) == bool(metrics and metrics["reward"])
    Console(file=open("/dev/null", "w")).print(display._training(watch))  # noqa: SIM115


def test_each_kind_is_shown_with_its_last_reward_and_its_held_out_scores() -> None:
    evaluations = [
        {"score": 0.5, "problems": 4, "by_environment": {"sums": score, "programs": 0.25}} for score in (0.5, 0.75)
    ]
    watch: Any = SimpleNamespace(
        trainer={"metrics": {"reward": 0.5}, "evaluations": evaluations}, seen=SimpleNamespace(head=None, counts=lambda _: Counter()),
        members=list, relays={}, served={"origin": 0}, kinds={"sums": "math", "programs": "code"}, rewards={"sums": 0.5},
    )  # fmt: skip
    assert "reward 0.500 (sums 0.50, programs –)" in display._plain(watch)
    console = Console(record=True, width=120, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(display._training(watch))
    shown = [line.strip("│ ").split() for line in console.export_text().splitlines()]
    assert ["sums", "0.50", "0.75", "reward", "0.50", "math"] in shown
    assert ["programs", "0.25", "0.25", "reward", "–", "code"] in shown
