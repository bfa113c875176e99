"""The parts of a node's page as JSON values. What the terminal shows as well comes from where `node status` has it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from node.contributor import earning, rule_words, submission_log
from node.contributor.submission_log import LoggedSubmission, SubmissionLog
from protocol import __version__
from protocol.chain import ring
from protocol.chain.types import Policy
from protocol.verdict import HISTORY, Outcome, compares

ROWS = 25
"""Submissions on one page of the list."""
ROWS_MAX = 100
_LETTERS_MAX = 2_000  # of a text that a stranger wrote
_STATES = (
    submission_log.MADE, submission_log.COMMITTED, submission_log.STORED, submission_log.ACCEPTED, submission_log.SOFT,
    submission_log.HARD, submission_log.LOST,
)  # fmt: skip


def front(told: Mapping[str, Any] | None, local: Mapping[str, Any]) -> dict[str, Any]:
    """`told` is what `node status` told last, None while the chain has never answered; `local` is what needs no chain, and is newer."""
    if told is None:
        return {"software": __version__, "told": None, **local}
    now = {**told, **{name: local[name] for name in ("running", "doing", "submissions", "recent")}}
    return {"software": __version__, "told": now | {"earning": asdict(earning.earning(now))}, **local}


def days(log: SubmissionLog, policy: Policy) -> dict[str, Any]:
    return {"days": earning.by_day(log, policy.window), "reward": str(policy.reward), "window": policy.window}


def money(told: Mapping[str, Any], by_day: Mapping[str, Any]) -> dict[str, Any]:
    return {**by_day, "held": str(told["held_units"] * int(told["reward"])), "maturing": told["maturing"]}


def listing(
    log: SubmissionLog, policy: Policy | None, kept: Counter[str], state: str = "", offset: int = 0, limit: int = ROWS
) -> dict[str, Any]:
    """One page of the submissions, newest first; `kept`: how many the log has, by state."""
    counts = log.counts()
    rows = log.slice(state or None, offset, limit)
    return {
        "counts": {name: counts.get(name, 0) for name in _STATES}, "total": kept[state] if state else kept.total(), "offset": offset,
        "rows": [line(one, policy) for one in rows],
    }  # fmt: skip


def line(one: LoggedSubmission, policy: Policy | None) -> dict[str, Any]:
    """A submission in the list."""
    details = (json.loads(one.receipt) if one.receipt else {}).get("details", {})
    return {
        "submission": one.id.hex(), "step": one.ref.step, "sequence": one.ref.sequence, "units": one.units, "state": one.state,
        "made_at": one.made_at, "rule": details.get("rule", ""), "amount": None if policy is None else _wei(one.units, policy),
        "unlocks": None if policy is None else ring.matures_at(one.made_at, policy.window),
    }  # fmt: skip


def in_full(row: dict[str, Any]) -> dict[str, Any]:
    """A submission by itself: `row` is what `node submissions ID --json` gives, and this adds its verdict in words."""
    return {**row, "verdict": _verdict(row["receipt"]) if row["receipt"] else None}


def _verdict(receipt: Mapping[str, Any]) -> dict[str, Any]:
    details = receipt["details"]
    outcome, rule = Outcome(details["outcome"]), details["rule"]
    whole = "the seat’s work up to this submission, taken together"
    return {
        "outcome": outcome.name.lower(), "means": rule_words.OUTCOMES[outcome], "validator": receipt["validator"], "time": details["time"],
        "rule": rule, "rule_means": rule_words.RULES.get(rule, ""), "samples": whole if rule == HISTORY else rule_words.ranges(int(details["samples"], 16)),
        **{name: str(details[name])[:_LETTERS_MAX] for name in ("measured", "threshold", "detail")},
        "compares": compares(rule),
        **{name: details[name] for name in ("sequences_checked", "proofs_checked", "tokens_checked")},
    }  # fmt: skip


def _wei(units: int, policy: Policy) -> str:
    return str(units * policy.reward)
