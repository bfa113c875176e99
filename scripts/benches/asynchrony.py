"""Asynchrony: what rollouts of older weights cost in learning, and what not waiting for new ones saves in time.

After the paper's comparison of asynchrony levels (arXiv 2505.07291, section 3): the demo's policy learns the demo's tasks from
rollouts that are 0, 1, 2 and 4 versions old, from several seeds, each run in one process (solo.py). All runs of a seed start from
the same weights and are asked the same problems with the same sampling keys.

The time of a step is *computed*, not timed: generating and training are measured one after the other, as CPU time; one after the
other they take the sum, side by side on machines of their own the longer of the two. How a trainer in a swarm spends its time
is measured there: in a demo that this bench runs, or in the folder of another one (`--swarm`).
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benches import Bench, Cost, Row, solo, waiting
from benches.curves import Line, Panel, draw, smooth
from trainer.evaluation.evaluate import Evaluator
from trainer.presets import demo

_STALENESS = (0, 1, 2, 4)
_TARGET = 0.15  # score at which the warm-up ends, as the demo's
_EVALUATE_EVERY, _FINAL_SAMPLES = 10, 4
_SMOOTHED = 5  # steps that the plotted reward is a running mean over
_SWARM_STEPS = 20
_ERRORS_MAX, _WAITING_MAX = 2.0, 0.02
_SECONDS_MAX = 3600


def options(parser: argparse.ArgumentParser) -> None:
    # After 50 steps all curves still rise by 0.01 a step, and staleness, which delays them, looks like a loss.
    parser.add_argument("--steps", type=int, default=100, help="training steps of each run (default 100)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each staleness (default 3)")
    parser.add_argument("--plot", type=Path, default=Path(".bench/asynchrony.png"), help="where the curves are drawn")
    parser.add_argument("--swarm", type=Path, metavar="FOLDER", help="a demo's folder; none: a demo is run")


@dataclass(frozen=True)
class Curve:
    """One run. Accuracies are shares of held-out problems solved; times CPU seconds, means over steps."""

    staleness: int
    seed: int
    rewards: list[float]
    """Mean task reward of each step's rollouts."""
    accuracies: dict[int, float]
    """By step, one answer per problem."""
    final: float
    """After the last step, over `answers` answers."""
    answers: int
    gap: float
    """Mean |logprob at the step's start − logprob sampled with|: what the staleness changes."""
    generating: float
    training: float


@dataclass(frozen=True)
class Difference(Cost):
    """`ours` is |accuracy at the staleness − accuracy without| in standard errors; `difference` its signed value, in accuracy."""

    difference: float = 0.0
    standard_error: float = 0.0


def run(steps: int, seeds: int, plot: Path, swarm: Path | None) -> Bench:
    bench = Bench("asynchrony")
    curves = _curves(steps, range(seeds))
    draw(plot, panels(curves))
    print(f"curves: {plot}", file=sys.stderr)
    bench.rows += [*learning(curves), *times(curves)]
    bench.rows += _waits(swarm)
    return bench


# ---- runs ----------------------------------------------------------------------------------------------------------------


def _curves(steps: int, seeds: Sequence[int]) -> list[Curve]:
    """All runs, as many at a time as there are cores, in processes of their own."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool,
    ):
        folder = Path(temporary)
        made = [pool.submit(_policy, folder / f"seed-{seed}", seed) for seed in seeds]
        files = [future.result(_SECONDS_MAX) for future in made]
        futures = [
            pool.submit(curve, file, folder / f"seed-{seed}/staleness-{staleness}", staleness, seed, steps)
            for seed, file in zip(seeds, files, strict=True)
            for staleness in _STALENESS
        ]
        return [future.result(_SECONDS_MAX) for future in futures]


def _policy(folder: Path, seed: int) -> Path:
    return solo.create(folder, demo(), target=_TARGET, seed=seed)


def curve(file: Path, folder: Path, staleness: int, seed: int, steps: int) -> Curve:
    """Trains one run from the policy beside `file`."""
    with solo.Solo(file, folder, staleness=staleness, seed=seed) as run:
        evaluator = Evaluator(run.spec, run.tasks, run.sandbox)
        accuracies = {0: evaluator.evaluate(run.newest).score}
        made = []
        for step in range(1, steps + 1):
            made.append(run.step())
            if step % _EVALUATE_EVERY == 0 or step == steps:
                accuracies[step] = evaluator.evaluate(run.newest).score
        scores = [one.score for of in evaluator.scores(run.newest, _FINAL_SAMPLES) for one in of]
    final = statistics.fmean(scores)
    print(
        f"staleness {staleness}, seed {seed}: accuracy {accuracies[0]:.3f} → {final:.3f}", file=sys.stderr, flush=True
    )
    return Curve(
        staleness, seed, [statistics.fmean(s.task_reward for s in step.rollouts) for step in made], accuracies, final, len(scores),
        gap=statistics.fmean(step.metrics.behaviour_gap for step in made),
        generating=statistics.fmean(step.generating for step in made),
        training=statistics.fmean(step.training for step in made),
    )  # fmt: skip


# ---- what they show ------------------------------------------------------------------------------------------------------


def learning(curves: Sequence[Curve]) -> list[Row]:
    """Accuracies by staleness, each against none, and whether staleness 2 is within noise."""
    synchronous = _of(curves, 0)
    before = statistics.fmean(curve.accuracies[0] for curve in synchronous)
    rows = [Row("held-out accuracy before training", "share right", before, None, None, None)]
    baseline = statistics.fmean(curve.final for curve in synchronous)
    for staleness in sorted({curve.staleness for curve in curves}):
        final = statistics.fmean(curve.final for curve in _of(curves, staleness))
        peer = baseline if staleness else None
        ratio = final / baseline if staleness and baseline else None
        rows.append(Row(f"held-out accuracy, staleness {staleness}", "share right", final, peer, ratio, None))
    for staleness in sorted({curve.staleness for curve in curves} - {0}):
        rows.append(_difference(staleness, _of(curves, staleness), synchronous))
    for staleness in sorted({curve.staleness for curve in curves}):
        gap = statistics.fmean(curve.gap for curve in _of(curves, staleness))
        rows.append(Row(f"change of a token's logprob, staleness {staleness}", "nats", gap, None, None, None))
    return rows


def _difference(staleness: int, stale: Sequence[Curve], synchronous: Sequence[Curve]) -> Difference:
    """Seed by seed, which takes the difficulty of a seed's start out of the noise.

    The spread over seeds holds the noise of training and that of the answers drawn in evaluating. A few seeds can lie close
    together by chance: the error is never less than that of the answers alone, which is binomial.
    """
    pairs = list(zip(stale, synchronous, strict=True))
    differences = [a.final - b.final for a, b in pairs]
    seeds = statistics.stdev(differences) / math.sqrt(len(pairs)) if len(pairs) > 1 else 0.0
    drawn = math.sqrt(sum(c.final * (1 - c.final) / c.answers for pair in pairs for c in pair)) / len(pairs)
    difference, error = statistics.fmean(differences), max(seeds, drawn)
    distance = abs(difference) / error if error else math.inf if difference else 0.0
    goal = _ERRORS_MAX if staleness == 2 else None
    return Difference(
        f"accuracy lost or won by staleness {staleness}", "standard errors", distance, None, None, goal,
        difference=difference, standard_error=error,
    )  # fmt: skip


def times(curves: Sequence[Curve]) -> list[Row]:
    """CPU times of the two halves of a step, and what it takes with one beside the other."""
    generating = 1000 * statistics.fmean(curve.generating for curve in curves)
    training = 1000 * statistics.fmean(curve.training for curve in curves)
    alone, overlapped = generating + training, max(generating, training)
    return [
        Row("generating, a step", "CPU ms", generating, None, None, None),
        Row("training, a step", "CPU ms", training, None, None, None),
        Cost("a step, overlapped (computed)", "ms", overlapped, alone, alone / overlapped, None),
    ]


def _waits(swarm: Path | None) -> list[Row]:
    if swarm is not None:
        return waits(waiting.shares(swarm / "output/metrics.jsonl"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "swarm"
        print(f"a demo of {_SWARM_STEPS} steps", file=sys.stderr, flush=True)
        waiting.run_demo(folder, _SWARM_STEPS)
        return waits(waiting.shares(folder / "output/metrics.jsonl"))


def waits(shares: dict[str, float]) -> list[Row]:
    """What the trainer of a swarm waits for. Handing over weights is a copy in memory and the wait for the version before."""
    reasons = {name for name in shares if name.startswith("waiting for")} - {"waiting for publishing"}
    rows = [
        Cost(f"swarm: {name}", "share of time", shares[name], None, None, None)
        for name in ("training", *sorted(reasons))
    ]
    handing_over = shares.get("snapshot", 0.0) + shares.get("waiting for publishing", 0.0)
    return [*rows, Cost("swarm: handing over weights", "share of time", handing_over, None, None, _WAITING_MAX)]


def panels(curves: Sequence[Curve]) -> list[Panel]:
    rewards, accuracies = [], []
    for staleness in sorted({curve.staleness for curve in curves}):
        of = _of(curves, staleness)
        reward = smooth(np.array([curve.rewards for curve in of]), _SMOOTHED)
        rewards.append(Line(f"staleness {staleness}", range(reward.shape[1]), reward))
        values = np.array([list(curve.accuracies.values()) for curve in of])
        accuracies.append(Line(f"staleness {staleness}", list(of[0].accuracies), values))
    return [
        Panel(f"task reward of rollouts, mean of {_SMOOTHED} steps", "reward", rewards),
        Panel("held-out accuracy", "share right", accuracies),
    ]


def _of(curves: Sequence[Curve], staleness: int) -> list[Curve]:
    return sorted((curve for curve in curves if curve.staleness == staleness), key=lambda curve: curve.seed)
