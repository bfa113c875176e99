"""What became of rollouts: sums that the source counts up and metrics take differences of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from protocol import length_rewards
from protocol.rollout import Sample
from protocol.runspec import RewardSpec
from trainer.learning.advantage import Dropped


@dataclass
class Tally:
    """Sums over samples."""

    samples: int = 0
    tokens: int = 0
    """Completion tokens."""
    reward: float = 0.0
    reward_squares: float = 0.0
    """Σ reward², for the deviation."""
    task_reward: float = 0.0
    length_penalty: float = 0.0
    budgeted: int = 0
    """Samples whose prompt announced a length budget."""
    length_error: int = 0
    """Σ tokens off the budget over those, as far as they cost (protocol/length_rewards.py)."""
    truncated: int = 0
    """Samples that were cut off: they do not end with an end token."""
    all_right: int = 0
    """Groups that the online filter dropped because every sample had the full task reward."""
    none_right: int = 0
    """The same, because none had any."""
    equal: int = 0
    """The same, because all were as good as each other in some other way."""

    def add(self, sample: Sample, reward: RewardSpec, *, ended: bool) -> None:
        self.samples += 1
        self.tokens += len(sample.completion)
        self.truncated += not ended
        self.reward += sample.reward
        self.reward_squares += sample.reward**2
        self.task_reward += sample.task_reward
        self.length_penalty += sample.length_penalty
        if sample.budget:
            self.budgeted += 1
            self.length_error += length_rewards.off(reward, sample.budget, len(sample.completion))

    def since(self, earlier: Tally) -> Tally:
        before = asdict(earlier)
        return Tally(**{name: value - before[name] for name, value in asdict(self).items()})

    @property
    def dropped(self) -> dict[str, int]:
        """Groups that the online filter dropped, by reason."""
        return {"all_right": self.all_right, "none_right": self.none_right, "equal": self.equal}

    @property
    def mean_reward(self) -> float | None:
        return self.reward / self.samples if self.samples else None

    @property
    def reward_deviation(self) -> float | None:
        """Standard deviation over the samples."""
        if not self.samples:
            return None
        return math.sqrt(max(0.0, self.reward_squares / self.samples - (self.reward / self.samples) ** 2))

    @property
    def mean_length_error(self) -> float | None:
        return self.length_error / self.budgeted if self.budgeted else None


@dataclass
class DataCounts:
    """Counts since the training began: a resumed one goes on from those of its checkpoint."""

    environments: dict[str, Tally] = field(default_factory=dict)
    """By name of the environment."""
    groups: int = 0
    stale_groups: int = 0
    """Accepted, and dropped because they were older than the run's max_lag, some before they were accepted."""
    duplicate_groups: int = 0
    """Left out because another submission holds the very same samples."""
    bad_groups: int = 0
    """Left out because no finite advantages can be computed from their rewards."""
    bad_receipts: int = 0
    """Malformed, forged, of another run or spec, or of somebody who held no seat when it came; ignored. Since the
    process started, which reads all of them anew."""
    bad_files: int = 0
    """Accepted by validators and yet not there for as long as they were of use, not the committed bytes, or nothing the model
    could be trained on."""
    unjudged_submissions: int = 0
    """Of which no validator had said anything when they were too old to be trained on."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Groups trained on, by staleness, in steps."""
    longest: int = 0
    """Tokens of the longest completion since this was last set back, as it is with each step."""

    counted: dict[str, int] = field(default_factory=dict)
    """Submissions (hex → step) that stand in these counts and could be met again by a process that resumes."""

    def add(self, environment: str, samples: Iterable[Sample], end_tokens: Collection[int], reward: RewardSpec) -> None:
        """`reward`: of this environment's answers."""
        tally = self.environments.setdefault(environment, Tally())
        for sample in samples:
            ended = len(sample.completion) > 0 and int(sample.completion[-1]) in end_tokens
            tally.add(sample, reward, ended=ended)
            self.longest = max(self.longest, len(sample.completion))

    def drop(self, environment: str, reason: Dropped) -> None:
        """A group that the online filter has dropped."""
        tally = self.environments.setdefault(environment, Tally())
        setattr(tally, reason, getattr(tally, reason) + 1)

    @property
    def all(self) -> Tally:
        """Over all environments."""
        parts = [asdict(tally) for tally in self.environments.values()]
        return Tally(**{name: sum(part[name] for part in parts) for name in parts[0]}) if parts else Tally()

    @property
    def zero_advantage_groups(self) -> int:
        """Dropped by the online filter; tallies know why."""
        return sum(self.all.dropped.values())

    @property
    def trained_share(self) -> float | None:
        """Of accepted groups with signal, how many were trained on before they were too old; None before there are any."""
        trained = self.staleness.total()
        return trained / (trained + self.stale_groups) if trained + self.stale_groups else None

    @property
    def samples(self) -> int:
        return self.all.samples

    @property
    def tokens(self) -> int:
        return self.all.tokens

    @property
    def reward(self) -> float:
        """Sum over samples."""
        return self.all.reward

    def as_json(self) -> dict[str, Any]:
        told = {name: value for name, value in self._values().items() if name != "counted"}
        derived = ("samples", "tokens", "zero_advantage_groups", "trained_share")
        return {**{name: getattr(self, name) for name in derived}, **told}

    def for_checkpoint(self) -> dict[str, Any]:
        """What `go_on_from` takes."""
        return {name: value for name, value in self._values().items() if name not in ("bad_receipts", "longest")}

    def go_on_from(self, saved: dict[str, Any]) -> None:
        """Counts on from what an earlier process had counted."""
        values = saved | {
            "environments": {name: Tally(**tally) for name, tally in saved["environments"].items()},
            "staleness": Counter({int(steps): count for steps, count in saved["staleness"].items()}),
        }
        for name, value in values.items():
            setattr(self, name, value)

    def _values(self) -> dict[str, Any]:
        return asdict(self) | {"staleness": dict(self.staleness)}  # asdict spoils a Counter


def names_of(datasets: Iterable[str]) -> list[str]:
    """A name for each environment of a run: its dataset's, numbered from the second of the same."""
    seen: Counter[str] = Counter()
    names = []
    for dataset in datasets:
        seen[dataset] += 1
        names.append(dataset if seen[dataset] == 1 else f"{dataset}-{seen[dataset]}")
    return names
