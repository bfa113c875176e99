"""What of a node's life its operator is told of (protocol/shell/notify.py), and when: each thing once, also over restarts."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from protocol.chain.types import Policy, Seat
from protocol.errors import Banned, DiskFull, MurmurationError
from protocol.shell.home import read_json, write_json
from protocol.shell.money import DECIMALS, tokens
from protocol.shell.notify import Notifier

log = logging.getLogger("node")

FILE = "told.json"
"""In the node's data folder: what its operator was told of last."""


class Alerts:
    """For the thread that works."""

    def __init__(self, notifier: Notifier | None, file: Path, rewards_from: float = 1.0) -> None:
        self._notifier, self._file = notifier, file
        self._least = int(rewards_from * 10**DECIMALS)
        self._told: dict[str, Any] = read_json(file) or {}

    def saw(self, seat: Seat, policy: Policy, now: int) -> None:
        """The seat as it is now, in block time."""
        before = self._told
        cases = seat.cases if seat.open_cases else 0
        suspended = seat.suspended_until(policy, now) or 0
        if seat.since == before.get("since") and seat.worth < before["worth"]:
            self._tell(
                "slashed",
                f"the stake behind the seat was slashed: it answers for {seat.worth} units, {before['worth']} before",
                "node submissions",
            )
        if cases > before.get("cases", 0):
            hard = "; nothing that matures is paid until it is settled" if seat.open_hard else ""
            self._tell("case_opened", f"a case is open against the seat{hard}", "node submissions")
        if suspended > before.get("suspended", 0):
            self._tell("suspended", f"the seat is suspended after {seat.strikes} rejected submissions", "node status")
        self._note(
            since=seat.since,
            worth=seat.worth,
            cases=max(cases, before.get("cases", 0)),
            suspended=max(suspended, before.get("suspended", 0)),
        )

    def claimable(self, units: int, policy: Policy) -> None:
        """So many units can be claimed now."""
        enough = units * policy.reward >= self._least
        if enough and not self._told.get("claimable"):
            self._tell("rewards_claimable", f"{tokens(units * policy.reward)} can be claimed", "node claim")
        self._note(claimable=enough)

    def disk(self, reason: str) -> None:
        """Why the node waits for room on the disk; empty once it has made something again."""
        if reason and not self._told.get("disk"):
            self._tell("disk_low", reason, "free space; the node goes on by itself")
        self._note(disk=bool(reason))

    def ended(self, error: MurmurationError) -> None:
        """What the node ends with."""
        self._tell("slashed" if isinstance(error, Banned) else "ended", f"the node ended: {error}", error.hint)

    def _tell(self, kind: Any, text: str, next_: str) -> None:
        if self._notifier is not None:
            self._notifier.tell(kind, text, next_)

    def _note(self, **values: Any) -> None:
        told = self._told | values
        if told != self._told:
            self._told = told
            with suppress(DiskFull):  # it may be told once more after a restart
                write_json(self._file, told)
