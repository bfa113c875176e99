"""Whether one set of scores is better than another, with 95 % confidence intervals.

Scores of the same problems are compared pairwise, which takes the problems' difficulty out of the noise. A mean of zeros and
ones gets Wilson's interval (J. Am. Stat. Assoc. 22, 1927); every other mean, and every difference, a percentile bootstrap over
problems with a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from node.engine import EngineSettings
from protocol.errors import IntegrityError, UsageError
from trainer.evaluation.evaluate import Evaluator, Scored, length_error
from trainer.learning.checkpoint import verify
from trainer.models.export import as_model, is_checkpoint
from trainer.rollouts.questions import Questions

_Z = 1.959964
_RESAMPLES, _DRAWN_AT_ONCE = 10_000, 1 << 20


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One environment, or all; `difference` is candidate − base, None where there is no base."""

    name: str
    problems: int
    candidate: Interval
    base: Interval | None = None
    difference: Interval | None = None
    length_error: float | None = None
    """Of the candidate: mean tokens off the budget; None where no budget was announced."""
    base_length_error: float | None = None

    @property
    def verdict(self) -> str:
        if self.difference is None or self.difference.low <= 0 <= self.difference.high:
            return "" if self.difference is None else "no difference shown"
        return "better" if self.difference.low > 0 else "worse"


def wilson(successes: int, trials: int) -> Interval:
    """Of a share of `trials` > 0 independent trials."""
    share, z2 = successes / trials, _Z**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def bootstrap(values: Sequence[float]) -> Interval:
    """Of the mean of independent values, at least one."""
    data: NDArray[np.float64] = np.asarray(values, np.float64)
    rng = np.random.default_rng(0)
    rows = max(1, _DRAWN_AT_ONCE // len(data))
    means = [
        data[rng.integers(0, len(data), (min(rows, _RESAMPLES - start), len(data)))].mean(axis=1)
        for start in range(0, _RESAMPLES, rows)
    ]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return Interval(float(data.mean()), float(low), float(high))


def interval(scores: Sequence[Sequence[float]]) -> Interval:
    """Of the mean score; one sequence of samples per problem."""
    if all(len(samples) == 1 and samples[0] in (0.0, 1.0) for samples in scores):
        return wilson(int(sum(samples[0] for samples in scores)), len(scores))
    return bootstrap(_means(scores))  # samples of one problem are not independent, problems are


def compare(
    names: Sequence[str], candidate: Sequence[Sequence[float]], base: Sequence[Sequence[float]] | None
) -> list[Row]:
    """A row per environment, then one of all. `names`: each problem's environment; scores: samples per problem."""
    rows = []
    for title in (*dict.fromkeys(names), "all"):
        chosen = [i for i, name in enumerate(names) if title in (name, "all")]
        own = [candidate[i] for i in chosen]
        if base is None:
            rows.append(Row(title, len(chosen), interval(own)))
            continue
        other = [base[i] for i in chosen]
        paired = [a - b for a, b in zip(_means(own), _means(other), strict=True)]
        rows.append(Row(title, len(chosen), interval(own), interval(other), bootstrap(paired)))
    return rows


def _means(scores: Sequence[Sequence[float]]) -> list[float]:
    return [sum(samples) / len(samples) for samples in scores]


# ---- of models ---------------------------------------------------------------------------------------------------------


def against(
    base: Path | None, candidate: Path, questions: Questions, model: Path, *, samples: int,
    engine: EngineSettings | None = None, progress: Callable[[int], object] = lambda _: None,
) -> list[Row]:  # fmt: skip
    """Rows on the held-out problems for two checkpoints or model folders; `model` is the policy before training.

    `progress` is told how many problems of how many models are done. Raises IntegrityError, UsageError, Unavailable.
    """
    held_out = questions.tasks.held_out
    if not held_out:
        raise UsageError(
            "no problem is held out, so there is nothing to compare with", hint="see held_out_size in run.toml"
        )
    folders = [candidate] if base is None else [candidate, base]
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder", hint="name a checkpoint or a model's folder")
        if is_checkpoint(folder) and verify(folder)["spec"] != questions.spec.digest.hex():
            raise IntegrityError(f"{folder} belongs to a run with another spec or other tasks")
    found: list[list[list[Scored]]] = []
    evaluator = Evaluator(questions.spec, questions.tasks, questions.grader, engine)
    for folder in folders:
        done = len(found) * len(held_out)
        with as_model(folder, model) as plain:
            found.append(evaluator.scores(plain, samples, lambda count, done=done: progress(done + count)))  # type: ignore[misc]
    scores = [[[one.score for one in answers] for answers in of] for of in found]
    rows = compare(evaluator.names, scores[0], scores[1] if base is not None else None)
    return [_with_lengths(row, evaluator.names, *found) for row in rows]


def _with_lengths(
    row: Row, names: Sequence[str], candidate: Sequence[Sequence[Scored]], base: Sequence[Sequence[Scored]] = ()
) -> Row:
    def error(of: Sequence[Sequence[Scored]]) -> float | None:
        chosen = zip(names, of, strict=False)
        return length_error(one for name, samples in chosen if row.name in (name, "all") for one in samples)

    return replace(row, length_error=error(candidate), base_length_error=error(base))


def run_file_of(checkpoint: Path) -> Path:
    """The run.toml that a checkpoint lies under. Raises UsageError where there is none."""
    for folder in checkpoint.resolve().parents:
        if (folder / "run.toml").is_file():
            return folder / "run.toml"
    raise UsageError(f"no run.toml lies above {checkpoint}", hint="give --run @run.toml")
