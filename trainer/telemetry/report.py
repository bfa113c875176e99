"""What the trainer tells: status.json for whoever asks, metrics for whoever watches, alarms for whoever sleeps."""

from __future__ import annotations

import copy
import json
import logging
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from protocol import metrics as of_process
from protocol.clock import SYSTEM, Clock
from protocol.shell.home import read_json, write_json
from protocol.tokenizer import Tokenizer
from trainer.config import Outputs, TrainSettings
from trainer.evaluation.evaluate import Evaluation
from trainer.learning.learner import StepMetrics
from trainer.rollouts.counts import DataCounts
from trainer.rollouts.data import RolloutSource
from trainer.rollouts.pool import TrainingGroup
from trainer.telemetry.alarms import Alarms
from trainer.telemetry.metrics import Metrics
from trainer.telemetry.phases import Phase, Phases
from trainer.telemetry.samples import Shown, choose
from trainer.telemetry.status import dropped_groups

log = logging.getLogger("trainer")


_LEFT = of_process.gauge(
    "murmur_trainer_steps_left", "Steps that are still to be trained; 0 when the training has ended."
)


class Report:
    """Used from the training thread, but for `overrun`, which is the watchdog's last word."""

    def __init__(
        self,
        settings: TrainSettings,
        layout: Outputs,
        phases: Phases,
        metrics_url: str | None = None,
        clock: Clock = SYSTEM,
        *,
        page_url: str | None = None,
    ) -> None:
        """`metrics_url`, `page_url`: where the trainer serves its metrics and its page; part of the status."""
        self._settings = settings
        self._layout = layout
        self._phases = phases
        self._status: dict[str, Any] = {
            "state": "starting",
            "evaluations": [],
            "alarms": [],
            "metrics_url": metrics_url,
            "page_url": page_url,
            "pid": os.getpid(),
        }
        self._clock = clock
        self._alarms = Alarms(settings.alarms)
        self._metrics: Metrics | None = None
        self._tokenizer: Tokenizer | None = None
        self.shown: list[Shown] = []
        """Some samples of the last step."""
        self._counts = DataCounts()  # as they stood at the last step
        self._seconds: dict[str, float] = {}
        self.trained_tokens = 0
        self.operations = 0
        """Of the model, forwards and backwards, per token; for MFU."""

    def open(self, step: int, tokenizer: Tokenizer | None = None) -> None:
        """From here on metrics are written, and what was written of `step` and later ones is removed; without `tokenizer` no texts of samples."""
        self._tokenizer = tokenizer
        self._metrics = Metrics(self._settings.metrics, self._layout, step=step)

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        return list(self._status["evaluations"])

    @property
    def counts(self) -> DataCounts:
        """As they stood at the last step."""
        return self._counts

    def restore(self, evaluations: list[dict[str, Any]], trained_tokens: int, counts: DataCounts) -> None:
        self._status["evaluations"] = list(evaluations)
        self.trained_tokens = trained_tokens
        self._counts = copy.deepcopy(counts)

    def say(self, state: str, step: int, source: RolloutSource | None = None, **waiting: Any) -> None:
        _LEFT.set(self._settings.steps - step)
        self._status |= {
            "state": state, "waiting": waiting or None, "step": step, "steps": self._settings.steps,
            "phases": self._phases.as_json(), "seconds": self._phases.seconds, "trained_tokens": self.trained_tokens,
            "bytes_broadcast": self._bytes_broadcast(), "at": self._clock.wall(),
        }  # fmt: skip
        if source is not None:
            self._status["data"] = source.counts.as_json() | {"trained_nodes": dict(source.trained_nodes)}
        write_json(self._layout.status, self._status)
        self._write_phases()

    def step(self, step: int, batch: list[TrainingGroup], metrics: StepMetrics, counts: DataCounts) -> None:
        """The record of one step: data since the last one, losses, times, alarms."""
        self.trained_tokens += metrics.tokens
        record = {
            "time": self._clock.wall(), **asdict(metrics), **self._data(counts), **self._batch(step, batch),
            **self._pace(batch, metrics), "bytes_broadcast": self._bytes_broadcast(),
        }  # fmt: skip
        alarms = self._alarms.check(record)
        for alarm in alarms:
            log.warning("step %d: %s", step, alarm)
        record["alarms"] = len(alarms)
        self._status["alarms"] = [{"step": step, **asdict(alarm)} for alarm in alarms]
        self._status["metrics"] = {"step": step, **record}
        counts.longest = 0
        self._counts = copy.deepcopy(counts)
        self.shown = self._samples(batch)
        if self._metrics is not None:
            self._metrics.write(step, record)
            self._metrics.show(step, self.shown)
        if metrics.skipped:
            log.warning("step %d: %d optimizer steps had no finite gradient and were left out", step, metrics.skipped)
        log.info("step %d: %s", step, _in_short(record))

    def evaluated(self, step: int, result: Evaluation) -> None:
        self._status["evaluations"].append({"step": step, **asdict(result)})
        log.info("step %d: held-out score %.3f on %d problems", step, result.score, result.problems)
        if self._metrics is not None:
            record = {"held_out_score": result.score, "held_out_by_environment": result.by_environment}
            self._metrics.write(step, record | {"held_out_length_error": result.length_error})

    def overrun(self, phase: Phase) -> None:
        self._status |= {
            "state": f"ended: {phase.name} took longer than its {phase.deadline:g} s",
            "at": self._clock.wall(),
        }
        write_json(self._layout.status, self._status)

    def _write_phases(self) -> None:
        """Those that have ended since, one line each: what the trainer did when, over all its lives."""
        ended = self._phases.take_ended()
        if not ended:
            return
        try:
            with self._layout.phases.open("a") as file:
                file.writelines(json.dumps(span) + "\n" for span in ended)
        except OSError as error:
            log.warning("the phases up to step %s could not be written: %s", self._status["step"], error.strerror)

    def _samples(self, batch: list[TrainingGroup]) -> list[Shown]:
        most = self._settings.metrics.samples
        return choose(batch, self._tokenizer.text, most) if self._tokenizer is not None and most else []

    # ---- parts of a record ---------------------------------------------------------------------------------------------

    def _data(self, counts: DataCounts) -> dict[str, Any]:
        """What came in since the last step; where nothing did, the mean rewards are unknown."""
        fresh = counts.all.since(self._counts.all)
        groups = counts.groups - self._counts.groups
        equal = counts.zero_advantage_groups - self._counts.zero_advantage_groups
        by_environment = {
            name: tally.since(self._counts.environments[name]) if name in self._counts.environments else tally
            for name, tally in counts.environments.items()
        }
        dropped = fresh.dropped | {
            name: getattr(counts, f"{name}_groups") - getattr(self._counts, f"{name}_groups")
            for name in ("stale", "duplicate", "bad")
        }
        return {
            "reward": fresh.mean_reward, "reward_deviation": fresh.reward_deviation,
            "task_reward": fresh.task_reward / fresh.samples if fresh.samples else None,
            "length_penalty": fresh.length_penalty / fresh.samples if fresh.samples else None,
            "length_error": fresh.mean_length_error,
            "completion_length": fresh.tokens / fresh.samples if fresh.samples else None,
            "completion_length_max": counts.longest if fresh.samples else None,
            "truncated_share": fresh.truncated / fresh.samples if fresh.samples else None,
            "reward_by_environment": {name: tally.mean_reward for name, tally in by_environment.items()},
            "task_reward_by_environment": {
                name: tally.task_reward / tally.samples if tally.samples else None for name, tally in by_environment.items()
            },
            "length_error_by_environment": {
                name: tally.mean_length_error for name, tally in by_environment.items() if tally.budgeted
            },
            "zero_advantage_share": equal / groups if groups else None,
            "dropped_groups": dropped,
            "zero_advantage_by_environment": {name: sum(of.dropped.values()) for name, of in by_environment.items()},
            "samples": counts.samples, "generated_tokens": counts.tokens, "groups": counts.groups,
            "zero_advantage_groups": counts.zero_advantage_groups, "stale_groups": counts.stale_groups,
            "duplicate_groups": counts.duplicate_groups, "bad_groups": counts.bad_groups, "bad_files": counts.bad_files,
            "trained_share": counts.trained_share, "unjudged_submissions": counts.unjudged_submissions,
        }  # fmt: skip

    def _batch(self, step: int, batch: list[TrainingGroup]) -> dict[str, Any]:
        staleness = Counter(group.staleness(step) for group in batch)
        return {
            "staleness": sum(steps * count for steps, count in staleness.items()) / len(batch),
            "staleness_groups": {str(steps): count for steps, count in sorted(staleness.items())},
            "nodes": len({group.node for group in batch}),
        }

    def _pace(self, batch: list[TrainingGroup], metrics: StepMetrics) -> dict[str, Any]:
        """Seconds by phase since the last step; tokens through the model, prompts included, per second of training."""
        now = self._phases.seconds
        spent = {name: value - self._seconds.get(name, 0.0) for name, value in now.items()}
        self._seconds = now
        training = spent.get("training", 0.0)
        tokens = sum(len(sample) for group in batch for sample in group.samples)
        peak = self._settings.metrics.peak_tflops * 1e12
        return {
            "seconds": {name: round(value, 4) for name, value in spent.items()},
            "tokens_per_second": tokens / training if training else None,
            "mfu": self.operations * tokens / (training * peak) if training and peak else None,
        }

    def _bytes_broadcast(self) -> int | None:
        hub = self._layout.hub_status
        return None if hub is None else (read_json(hub) or {}).get("bytes_served")


def _in_short(record: Mapping[str, Any]) -> str:
    """What of a step's record fits a line."""
    reward, length = "reward -", ""
    if record["reward"] is not None:
        reward = f"reward {record['reward']:.3f} ± {record['reward_deviation']:.3f}"
        cut = f", {record['truncated_share']:.0%} cut off" if record["truncated_share"] else ""
        length = f", {record['completion_length']:.0f} tokens (at most {record['completion_length_max']}{cut})"
    return (
        f"{reward}{length}{dropped_groups(record['dropped_groups'])}, entropy {record['entropy']:.3f}, gradient {record['gradient_norm']:.3f}, "
        f"learning rate {record['learning_rate']:.2g}"
    )
