"""Length: whether a policy learns to be as long as its prompt says, and what that costs the task.

The task is `spiral_matrix` of reasoning-gym, whose own verifier strips what surrounds an answer: spaces after it are neither
right nor wrong, so that a policy can be of any length. The warm-up ends with right answers followed by any number of spaces,
whatever the prompt announces: lengths vary, and the policy has yet to find out what the announcement means. Prompts and penalties
are those of every run with budgets (protocol/length_rewards.py); the loop is solo.py's.

Measured before and after on held-out problems, every one with every budget; a length counts its end token.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benches import Bench, Cost, Row, curves, solo
from benches.curves import Line, Panel, draw, smooth
from node.engine import Prompt
from node.engine.weights import build_model, save_weights
from protocol import length_rewards, seeds
from protocol.environments import Problem, TaskSet
from protocol.model_files import WEIGHTS
from protocol.runspec import RewardSpec
from protocol.sandbox import EnvironmentSandbox
from protocol.shell import runfile
from protocol.tokenizer import Tokenizer
from trainer.learning.packing import TrainingSample
from trainer.models.tiny import END, _draw, _supervised_step
from trainer.presets import demo

BUDGETS = (10, 14, 18)
_ALPHA = "0.05"
_SPACES_MAX = 14  # after an answer in the warm-up: whole completions are 8 to 22 tokens long
_NEW_TOKENS_MAX = 26
_TARGET = 0.6  # score at which the warm-up begins to vary lengths
_VARIED_STEPS, _VARIED_LR, _VARIED_BATCH = 40, 5e-4, 64
_LR = 2.5e-4  # at 5e-4 a run lost the task from one step to the next, and learned lengths alone from there on
_SHORTER, _SMOOTHED = 3.0, 5
_SEED = hashlib.sha256(b"murmuration/bench/length/1").digest()
_SECONDS_MAX = 3600


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=130, help="training steps of each run at most (default 130)")
    parser.add_argument("--seeds", type=int, default=2, help="runs (default 2)")
    parser.add_argument("--plot", type=Path, default=Path(".bench/length.png"), help="where the curves are drawn")


@dataclass(frozen=True)
class Measured:
    """Over the held-out problems with every budget: mean |budget − length| in tokens, and mean task reward."""

    error: float
    task_reward: float
    answers: int

    @property
    def least(self) -> float:
        """What one answer can change of a mean, by one token or by its reward: a mean of nothing is taken as that in a ratio."""
        return 1 / self.answers


@dataclass(frozen=True)
class Learned:
    """One run; the lists hold one value per training step, of its rollouts."""

    seed: int
    before: Measured
    after: Measured
    errors: list[float]
    task_rewards: list[float]
    lengths: dict[int, list[float]]
    """Mean length by budget; NaN at a step that drew none with it."""


def run(steps: int, seeds: int, plot: Path) -> Bench:
    bench = Bench("length")
    learned = _runs(steps, range(seeds))
    draw(plot, panels(learned))
    print(f"curves: {plot}", file=sys.stderr)
    bench.rows += rows(learned)
    return bench


def _runs(steps: int, seeds: Sequence[int]) -> list[Learned]:
    with (
        tempfile.TemporaryDirectory() as temporary,
        ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool,
    ):
        futures = [pool.submit(learn, Path(temporary) / f"seed-{seed}", seed, steps) for seed in seeds]
        return [future.result(_SECONDS_MAX) for future in futures]


def rows(learned: Sequence[Learned]) -> list[Row]:
    found: list[Row] = []
    for of in learned:
        before, after = of.before, of.after
        shorter = before.error / max(after.error, after.least)
        better = after.task_reward / max(before.task_reward, before.least)
        found += [
            Row(f"length error, seed {of.seed}", "tokens", after.error, before.error, shorter, _SHORTER),
            Row(f"task reward, seed {of.seed}", "reward", after.task_reward, before.task_reward, better, 1.0),
        ]
    mean = statistics.fmean(of.after.error for of in learned)
    least = min(of.after.least for of in learned)
    found.append(
        Cost("length error, and of one length for all", "tokens", mean, blind(), blind() / max(mean, least), None)
    )
    return found


def blind() -> float:
    """Mean |budget − length| of the best that a policy can do which never reads the budget."""
    return statistics.fmean(abs(budget - statistics.median(BUDGETS)) for budget in BUDGETS)


def panels(learned: Sequence[Learned]) -> list[Panel]:
    steps = range(max(len(of.errors) for of in learned))
    errors = smooth(curves.rows(of.errors for of in learned), _SMOOTHED)
    rewards = smooth(curves.rows(of.task_rewards for of in learned), _SMOOTHED)
    lengths = [
        Line(f"budget {budget}", steps, curves.rows(of.lengths[budget] for of in learned), level=float(budget))
        for budget in BUDGETS
    ]
    return [
        Panel(f"distance from the budget, mean of {_SMOOTHED} steps", "tokens", [Line("", steps, errors)]),
        Panel("length by announced budget", "tokens", lengths),
        Panel(f"task reward, mean of {_SMOOTHED} steps", "reward", [Line("", steps, rewards)]),
    ]


# ---- one run -------------------------------------------------------------------------------------------------------------


def tables() -> dict[str, Any]:
    """[spec] and [trainer]: the demo's, but for one task, length budgets and room for them."""
    made = demo()
    spec, trainer = made["spec"], made["trainer"]
    spec["environments"] = [e for e in spec["environments"] if e["dataset"] == "spiral_matrix"]
    spec["sampling"]["max_new_tokens"] = _NEW_TOKENS_MAX
    spec["reward"] = {"alpha": _ALPHA, "budgets": {"0": list(BUDGETS)}}
    trainer |= {"pack_tokens": 512, "rows_per_forward": 16}
    trainer["online_filter"] = "reward"  # a task that is solved leaves nothing but lengths to learn
    trainer["optimizer"]["lr"] = _LR
    return made


def learn(folder: Path, seed: int, steps: int) -> Learned:
    """Makes a policy and trains it. Everything it writes goes to `folder`."""
    made = tables()
    phrases = length_rewards.phrases(RewardSpec.model_validate(made["spec"]["reward"]))
    file = solo.create(folder, made, target=_TARGET, seed=seed, phrases=phrases)
    vary_lengths(file, seed, _VARIED_STEPS)
    with solo.Solo(file, folder / "solo", seed=seed) as run:
        before = measure(run)
        made = list(_steps(run, steps))
        after = measure(run)
    print(f"seed {seed}: {before} → {after} in {len(made)} steps", file=sys.stderr, flush=True)
    return Learned(
        seed, before, after,
        errors=[statistics.fmean(abs(s.budget - len(s.completion)) for s in step.rollouts) for step in made],
        task_rewards=[statistics.fmean(s.task_reward for s in step.rollouts) for step in made],
        lengths={budget: [_length(step, budget) for step in made] for budget in BUDGETS},
    )  # fmt: skip


def _steps(run: solo.Solo, count: int) -> Iterator[solo.Step]:
    """At most so many: a policy that is as long as it was told each time has learned what there is."""
    with contextlib.suppress(solo.NothingToLearn):
        for _ in range(count):
            yield run.step()


def vary_lengths(file: Path, seed: int, steps: int) -> None:
    """Supervised steps on right answers with any number of spaces after them, on the policy beside `file`."""
    folder = runfile.model_folder(file)
    spec, tokenizer, rng = runfile.complete(file, folder), Tokenizer(folder), random.Random(seed)
    model = build_model(folder, torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_VARIED_LR)

    def example(problem: Problem) -> TrainingSample:
        answer = str(problem.answer) + " " * rng.randint(0, _SPACES_MAX)
        prompt = tokenizer.prompt(spec, problem, rng.choice(BUDGETS))
        return TrainingSample(np.array(prompt, np.int32), np.array([*tokenizer.encode(answer), END], np.int32), 0.0)

    with EnvironmentSandbox(spec.environments) as sandbox:
        tasks = TaskSet(spec.environments, sandbox)
        for _ in range(steps):
            _supervised_step(
                model, optimizer, [example(problem) for problem in _draw(tasks, rng, [1.0], _VARIED_BATCH)]
            )
    save_weights(model, folder / WEIGHTS, torch.bfloat16)


def measure(run: solo.Solo) -> Measured:
    """One answer of the newest weights to every held-out problem with every budget, with keys that never change."""
    run.engine.load(run.newest)
    asked = [(i, budget) for i in range(len(run.tasks.held_out)) for budget in BUDGETS]
    prompts = [
        Prompt(run.tokenizer.prompt(run.spec, run.tasks.held_out[i], budget), (_key(i, budget),)) for i, budget in asked
    ]
    generated = run.engine.generate(
        prompts, **run.spec.sampling.distribution, max_new_tokens=run.spec.sampling.max_new_tokens,
        end_tokens=run.tokenizer.end_tokens, prove=False,
    )  # fmt: skip
    completions = [of[0].tokens for of in generated]
    answers = [(i, run.tokenizer.answer(tokens)) for (i, _), tokens in zip(asked, completions, strict=True)]
    return Measured(
        error=statistics.fmean(abs(budget - len(of)) for (_, budget), of in zip(asked, completions, strict=True)),
        task_reward=statistics.fmean(run.sandbox.score(answers, held_out=True)),
        answers=len(asked),
    )


def _key(problem: int, budget: int) -> int:
    return seeds.sampling_key(seeds.derive(_SEED, "sample", problem, budget))


def _length(step: solo.Step, budget: int) -> float:
    found = [len(sample.completion) for sample in step.rollouts if sample.budget == budget]
    return statistics.fmean(found) if found else float("nan")
