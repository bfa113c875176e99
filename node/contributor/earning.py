"""Whether this node earns, and if not, why: in one word and one sentence, the same for `node status` and the page; and what it earned by day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from node.contributor import submission_log
from node.contributor.submission_log import SubmissionLog
from protocol.chain import ring
from protocol.shell.sentences import when

EARNING, WAITING, NOT_EARNING = "earning", "waiting", "not earning"
RECENT = 20
"""The newest judged submissions, which say how it goes."""
_BETWEEN = (
    "done for this version",
    "the beacon of this version",
    "the trainer wants no more of this version",
    "all that the trainer wants",
    "what the trainer still wants",
)
"""Beginnings of what a node says that waits for its next turn, as all do."""
DAY = 86_400
_LEAST_SECONDS = 3_600  # of work that say how it goes


@dataclass(frozen=True)
class Earning:
    state: str
    why: str


def earning(told: Mapping[str, Any]) -> Earning:
    """Of what else `node status` tells."""
    recent = told["recent"]
    stopper = _stopper(told)
    if stopper:
        return Earning(NOT_EARNING, stopper)
    accepted, judged = recent.get(submission_log.ACCEPTED, 0), sum(recent.values())
    share = f"{accepted} of the newest {judged} judged submissions were accepted"
    if judged and not accepted:
        return Earning(NOT_EARNING, f"the newest {judged} judged submissions were all rejected")
    reason = _reason_to_wait(told)
    if reason and not (accepted and reason.startswith(_BETWEEN)):
        return Earning(WAITING, reason)
    if accepted:
        return Earning(EARNING, f"{share}; now {reason}" if reason else share)
    if told["submissions"].get(submission_log.STORED):
        return Earning(WAITING, "work is handed in, and no validator has judged any of it yet")
    return Earning(WAITING, "it has handed in nothing yet")


def _stopper(told: Mapping[str, Any]) -> str:
    """Why it earns nothing until somebody does something about it, or empty."""
    now = told["now"]
    match told["role"]:
        case "none":
            return "the node holds no seat in this run yet"
        case "left":
            return "the seat was left"
        case "banned":
            return "the seat is banned" + (": " + told["cases"][0]["told"] if told["cases"] else "")
    if told["over"]:
        return "the run is over"
    if told["open_hard"]:
        return "a hard case is open against the seat: nothing that matures is paid until it is settled"
    if told["suspended_until"] is not None:
        return f"suspended until {when(told['suspended_until'], now)}, after {told['strikes']} rejected submissions"
    if not int(told["gas"]):
        return "the node's key has no ETH to send its work with"
    return "" if told["running"] else "the node does not run"


def _reason_to_wait(told: Mapping[str, Any]) -> str:
    if told["paused"]:
        return "the run is paused by its owner"
    if told["head"] is None:
        return "no weights are published yet"
    doing = told["doing"] or {}
    return str(doing.get("reason", "")) if doing.get("state") == "waiting" else ""


@dataclass(frozen=True)
class Forecast:
    """What a day brings at the present rate, where nothing is rejected."""

    units: int
    amount: str
    """In wei."""
    seconds: int
    """The stretch of work, up to now, of which this is the rate."""
    is_capped: bool
    """Whether the seat could make more than it may have waiting."""


def forecast(log: SubmissionLog, told: Mapping[str, Any], window: int) -> Forecast | None:
    """By what was handed in during the last day; `told` is what else `node status` tells. None where the node earns nothing now, or has worked
    for less than an hour."""
    now = told["now"]
    units, first = log.worked(now - DAY, submission_log.COMMITTED, submission_log.STORED, submission_log.ACCEPTED)
    seconds = min(DAY, now - first) if first is not None else 0
    if told["earning"]["state"] == NOT_EARNING or not units or seconds < _LEAST_SECONDS:
        return None
    made, most = units * DAY // seconds, told["units_most"] * DAY // (ring.matures_at(0, window))
    a_day = min(made, most)
    return Forecast(a_day, str(a_day * int(told["reward"])), seconds, made > most)


def by_day(log: SubmissionLog, window: int) -> list[dict[str, Any]]:
    """What was made on each day (UTC), newest first: units by what became of them, and from when on the last of it can be claimed, in block time.
    Days that the log has forgotten are paid or lost."""
    days: dict[int, dict[str, Any]] = {}
    for day, state, submissions, units, newest in log.by_day(DAY):
        row = days.setdefault(
            day,
            {"day": day * DAY, "submissions": 0, "accepted": 0, "unjudged": 0, "rejected": 0, "lost": 0, "unlocks": 0},
        )
        row["submissions"] += submissions
        row[_KINDS[state]] += units
        if _KINDS[state] in ("accepted", "unjudged"):
            row["unlocks"] = max(row["unlocks"], ring.matures_at(newest, window))
    return [days[day] for day in sorted(days, reverse=True)]


_KINDS = {
    submission_log.MADE: "unjudged", submission_log.COMMITTED: "unjudged", submission_log.STORED: "unjudged",
    submission_log.ACCEPTED: "accepted", submission_log.SOFT: "rejected", submission_log.HARD: "rejected",
    submission_log.LOST: "lost",
}  # fmt: skip
