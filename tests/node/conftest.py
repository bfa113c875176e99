"""A stage per test: a run that is really going on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from swarm.anvil import Anvil
from swarm.tiny_run import TinyRun
from swarm.world import World

from protocol.runspec import RunSpec
from protocol.sandbox import Sandbox
from tests.node.stage import Panel, Stage


@pytest.fixture
def shared_machinery(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody uses the session's one real sandbox and one task set, whose making takes seconds."""

    def shared(spec: RunSpec) -> Any:
        assert spec.environments == tiny_run.spec.environments
        sandbox = Sandbox(spec)
        for name in ("read", "score", "bounds", "warm_up", "require_reader"):  # closing it is left to the session
            setattr(sandbox, name, getattr(tiny_run.context.sandbox, name))
        return sandbox

    tasks = tiny_run.context.tasks
    monkeypatch.setattr(tasks, "require_same_problems", lambda: None)
    monkeypatch.setattr("node.judging.equipment.Sandbox", shared)
    monkeypatch.setattr("node.judging.equipment.TaskSet", lambda *_: tasks)


@pytest.fixture
def stage(
    anvil: Anvil, tiny_run: TinyRun, tmp_path: Path, shared_machinery: None, request: pytest.FixtureRequest
) -> Iterator[Stage]:
    """Parametrized indirectly with changes of the run's policy, and with `noise`, or `history` and its `budget`, of its spec, the latter blind to single tokens; and with
    `recalibration`, the bounds within which its calibration may be replaced."""
    policy = {"max_per_step": 4, **getattr(request, "param", {})}
    recalibration = policy.pop("recalibration", None)
    noise, history, budget = policy.pop("noise", None), policy.pop("history", None), policy.pop("budget", {})
    run = tiny_run if noise is None else tiny_run.with_noise(*noise)
    run = run if history is None else run.with_history(*history, **{"blind": ["sampling"], **budget})
    run = run if recalibration is None else run.with_recalibration(**recalibration)
    made = Stage(World.fresh(anvil, spec_digest=run.spec.digest, **policy), run, tmp_path)
    yield made
    made.close()


@pytest.fixture
def panel(stage: Stage) -> Iterator[Panel]:
    made = Panel(stage)
    yield made
    made.close()
