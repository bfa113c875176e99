"""The parts of a trainer's page as JSON values, of what its files say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol import __version__
from trainer.config import AlarmSettings
from trainer.page.training import TrainingFiles, finite

SERIES = (
    "loss", "log_ratio", "clipped", "zero_advantage_share", "learning_rate", "tokens_per_second", "truncated_share", "behaviour_gap",
)  # fmt: skip
"""Curves of this page besides those that the run's page has as well."""
_ALARMS_MAX = 20
_OF_STATUS = ("state", "waiting", "step", "steps", "phases", "seconds", "trained_tokens", "at")
_OF_STEP = (
    "step", "time", "reward", "reward_deviation", "loss", "gradient_norm", "kl", "learning_rate", "staleness", "nodes", "tokens_per_second",
    "mfu", "completion_length", "truncated_share", "dropped_groups", "skipped", "trained_share", "unjudged_submissions",
)  # fmt: skip


def front(status: Mapping[str, Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """What the trainer said last, and `local`: what is known of its process; `said` is None before its first word."""
    held_out = [one for one in status.get("evaluations") or () if isinstance(one, dict)]
    base = next((one for one in held_out if one.get("step") == 0), None)
    metrics = status.get("metrics") or {}
    said = {name: status.get(name) for name in _OF_STATUS} | {"metrics": {name: metrics.get(name) for name in _OF_STEP}}
    return finite({
        "software": __version__, **local, "said": said if status else None,
        "held_out": held_out[-1] if held_out else None, "base": base, "evaluations": len(held_out),
    })  # fmt: skip


def alarms(status: Mapping[str, Any], files: TrainingFiles, limits: AlarmSettings) -> dict[str, Any]:
    """Those of the last step, and steps before it that had some, newest first."""
    now = [one for one in status.get("alarms") or () if isinstance(one, dict)]
    last = max((one.get("step", -1) for one in now), default=None)
    before = [
        _of_record(record, limits) for record in files.newest_with("alarms", _ALARMS_MAX) if record["step"] != last
    ]
    return finite({"now": now, "before": before, "limits": {"log_ratio": limits.log_ratio, "clipped": limits.clipped}})


def _of_record(record: Mapping[str, Any], limits: AlarmSettings) -> dict[str, Any]:
    """A step's record tells how many alarms it had; which, follows from its values."""
    signals = [
        {"signal": signal, "value": record[signal], "limit": limit}
        for signal, limit in (("log_ratio", limits.log_ratio), ("clipped", limits.clipped))
        if isinstance(record.get(signal), int | float) and record[signal] > limit
    ]
    if len(signals) < record["alarms"]:
        signals.append({"signal": "zero_advantage_share", "value": record.get("zero_advantage_share"), "limit": None})
    return {"step": record["step"], "time": record.get("time"), "signals": signals}
