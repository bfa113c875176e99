"""The parts of a run's page as JSON values, made anew of the tallies after each turn; what came from strangers is text in them and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from protocol.chain.events import Abstained, CoSigned, Voted
from protocol.chain.types import Role, Stage
from protocol.chain.view import CaseEntry, View
from protocol.verdict import Outcome
from trainer.page.rates import Rates
from trainer.page.sources import PageSources
from trainer.page.stakes import StakeLooks
from trainer.page.tallies import MINUTES, OutcomeTally, RunTallies, SeatTally
from trainer.page.training import TrainingFiles, finite

CASES = 50
"""That are listed, open ones and the newest."""
PACE_MINUTES = 10
"""Over which the pace in numbers is a mean."""
QUIET_SECONDS = 3600
"""A seat that has submitted nothing for so long, in block time, counts as quiet."""
_RELAYS = 100


class RunDocuments:
    """For the thread that keeps the tallies."""

    def __init__(
        self, sources: PageSources, view: View, tallies: RunTallies, training: TrainingFiles, stakes: StakeLooks
    ) -> None:
        self._sources = sources
        self._view = view
        self._tallies = tallies
        self._training = training
        self._stakes = stakes
        self._rates = Rates()
        self._cases: dict[tuple[str, int], dict[str, Any]] = {}

    def parts(self, wall: float) -> dict[str, Any]:
        """All of them, by name; `wall` is this machine's time."""
        hub = self._training.hub_status()
        return {
            "run": self._run(), "charts": {**self._training.charts(), "pace": self._pace_series()},
            "nodes": self._nodes(hub), "validators": self._validators(), "relays": self._relays(wall, hub),
            "verdicts": self._verdicts(), "cases": self._case_list(), "money": self._money(),
            "samples": self._training.samples(),
        }  # fmt: skip

    # ---- the run -------------------------------------------------------------------------------------------------------

    def _run(self) -> dict[str, Any]:
        spec, head, t = self._sources.spec, self._view.head, self._tallies
        newest = self._view.newest_publication()
        judged = [sum(getattr(v, name) for v in t.versions.values()) for name in ("accepted", "soft", "hard")]
        return {
            "run": self._sources.run, "name": spec.name, "chain_id": self._view.fact("chain_id"),
            "contract": self._view.fact("contract"), "environments": [e.dataset for e in spec.environments],
            "samples_per_submission": spec.sampling.group_size * spec.sampling.groups_per_submission,
            "max_lag": spec.max_lag, "now": head.time if head else None, "block": head.number if head else None,
            "read": round(t.progress, 3),
            "version": newest.data.step if newest else None,
            "published_at": self._view.block_time(newest.block) if newest else None,
            "paused_from": self._stakes.budget.paused_from,
            "trainer": self._trainer(),
            "counts": {
                "nodes": sum(seat.is_active for seat in t.seats.values()),
                "working": sum(self._is_working(seat) for seat in t.seats.values()), "seats": len(t.seats),
                "validators": len(self._view.validators(head.time if head else 0)), "submissions": t.submissions,
                "judged": t.judged, "accepted": judged[0], "soft": judged[1], "hard": judged[2],
                "open_cases": len(self._view.open_cases()),
            },
            "pace": self._pace(),
        }  # fmt: skip

    def _trainer(self) -> dict[str, Any] | None:
        status = self._training.status()
        if not status:
            return None
        metrics = status.get("metrics") or {}
        names = ("state", "waiting", "step", "steps", "phases", "alarms", "at", "seconds", "trained_tokens")
        shown = {name: status.get(name) for name in names}
        of_step = ("reward", "staleness", "staleness_groups", "nodes", "dropped_groups", "reward_by_environment")
        held_out = [e for e in status.get("evaluations") or [] if isinstance(e, dict)]
        return finite({
            **shown, "metrics": {name: metrics.get(name) for name in of_step},
            "held_out": held_out[-1] if held_out else None, "held_out_first": held_out[0] if held_out else None,
        })  # fmt: skip

    def _is_working(self, seat: SeatTally) -> bool:
        head = self._view.head
        return seat.is_active and head is not None and seat.last > head.time - QUIET_SECONDS

    def _pace(self) -> dict[str, float]:
        """By the clock of the chain, of whole minutes."""
        head = self._view.head
        last = head.time // 60 if head else 0
        sums = [0, 0]
        for minute in range(last - PACE_MINUTES, last):
            for i, count in enumerate(self._tallies.pace.get(minute, (0, 0))):
                sums[i] += count
        sampling = self._sources.spec.sampling
        samples = sampling.group_size * sampling.groups_per_submission
        return {
            "minutes": PACE_MINUTES, "rollouts_per_minute": round(sums[0] * samples / PACE_MINUTES, 2),
            "tokens_per_minute": round(sums[1] / PACE_MINUTES, 1),
        }  # fmt: skip

    def _pace_series(self) -> dict[str, list[int]]:
        """By minute, empty ones included, up to the newest submission."""
        pace = self._tallies.pace
        if not pace:
            return {"minutes": [], "rollouts": [], "tokens": []}
        last = max(pace)
        minutes = list(range(max(min(pace), last - MINUTES), last + 1))
        sampling = self._sources.spec.sampling
        samples = sampling.group_size * sampling.groups_per_submission
        found = [pace.get(minute, [0, 0]) for minute in minutes]
        return {
            "minutes": [minute * 60 for minute in minutes], "rollouts": [n * samples for n, _ in found],
            "tokens": [units for _, units in found],
        }  # fmt: skip

    # ---- people --------------------------------------------------------------------------------------------------------

    def _nodes(self, hub: Mapping[str, Any]) -> list[dict[str, Any]]:
        challenges = hub.get("matrix_challenges") or {}
        return [self._node(name, seat, challenges.get(name)) for name, seat in self._tallies.seats.items()]

    def _node(self, name: str, seat: SeatTally, challenge: Mapping[str, Any] | None) -> dict[str, Any]:
        stake = self._stakes.seats.get(name)
        return {
            "address": name, "class": seat.hardware, "class_name": self._class_name(seat.hardware), "state": self._state(seat),
            "stake": None if stake is None else str(stake), "submissions": seat.submissions, "tokens": seat.units,
            **_outcomes(seat), "pending": max(0, seat.submissions - seat.accepted - seat.soft - seat.hard),
            "step": seat.step, "last": seat.last or None, "paid": str(seat.claimed), "slashed": str(seat.slashed),
            "operations": None if challenge is None else challenge.get("operations_per_second"),
        }  # fmt: skip

    def _state(self, seat: SeatTally) -> str:
        if seat.convictions > 0:
            return "convicted"
        if seat.role != Role.ACTIVE:
            return seat.role.name.lower()
        return "working" if self._is_working(seat) else "quiet"

    def _class_name(self, number: int | None) -> str:
        return next((needs.name for needs in self._sources.spec.hardware if needs.number == number), "")

    def _validators(self) -> list[dict[str, Any]]:
        head = self._view.head
        serving = self._view.validators(head.time if head else 0)
        return [
            {
                "address": name, "serves": name in serving, **_outcomes(v), "last": v.last or None,
                "cases": sum(count > 0 for count in v.cases.values()), "votes": v.votes, "abstentions": v.abstentions,
                "silences": v.silences, "impeachments": v.impeachments,
                "stake": _wei(self._stakes.validators.get(name)), "promised": str(self._sources.promised(name)),
                "redeemed": str(v.redeemed),
            }
            for name, v in sorted(self._tallies.validators.items())
        ]  # fmt: skip

    def _relays(self, wall: float, hub: Mapping[str, Any]) -> dict[str, Any]:
        sent = int(hub.get("bytes_served") or 0)
        relays = list(self._sources.relays().items())[:_RELAYS]
        return {
            "origin": {
                "bytes": sent, "rate": self._rates.of("origin", sent, wall), "step": hub.get("published"),
            },
            "relays": [
                {
                    "address": url, "bytes": tally.bytes_sent, "rate": self._rates.of(url, tally.bytes_sent, wall),
                    "step": tally.step, "of_step": tally.of_step, "last": int(tally.at) or None,
                }
                for url, tally in relays
            ],
        }  # fmt: skip

    # ---- verdicts, cases, money ----------------------------------------------------------------------------------------

    def _verdicts(self) -> dict[str, Any]:
        lines = {"recent": self._tallies.recent, "rejections": self._tallies.rejections}
        return {name: [_verdict(asdict(line)) for line in reversed(of)] for name, of in lines.items()}

    def _case_list(self) -> list[dict[str, Any]]:
        listed = {case.name: case for case in (*self._view.open_cases()[:CASES], *self._view.newest_cases(CASES))}
        for name in self._tallies.changed_cases | (set(self._cases) - set(listed)):
            self._cases.pop(name, None)
        self._tallies.changed_cases.clear()
        for name, case in listed.items():
            if name not in self._cases:
                self._cases[name] = self._case(case)
        newest = sorted(listed.values(), key=lambda case: (case.is_open, case.block), reverse=True)
        return [self._cases[case.name] for case in newest]

    def _case(self, case: CaseEntry) -> dict[str, Any]:
        found = {kind: self._view.events(kind, *case.name) for kind in (Voted, Abstained, CoSigned)}
        return {
            **case_line(case), "opened": self._view.block_time(case.block), "votes": len(found[Voted]),
            "against": sum(bool(event.data.found_false) for event in found[Voted]), "abstentions": len(found[Abstained]),
            "co_signer": found[CoSigned][-1].data.co_signer if found[CoSigned] else None,
        }  # fmt: skip

    def _money(self) -> dict[str, Any]:
        budget, policy, t = self._stakes.budget, self._stakes.policy, self._tallies
        return {
            "funded": str(t.funded), "free": _wei(budget.free), "reserved": _wei(budget.reserved), "paid": str(t.claimed),
            "slashed": str(t.slashed), "pot": _wei(budget.pot), "redeemed": str(t.redeemed),
            "reward": _wei(policy.reward if policy else None), "window": policy.window if policy else None,
        }  # fmt: skip


def case_line(case: CaseEntry) -> dict[str, Any]:
    """What a case says of itself."""
    stage = "voting" if case.stage == Stage.NONE and case.is_appealed else case.stage.name.lower()
    return {
        "seat": case.seat, "number": case.number, "challenger": case.challenger, "hard": case.hard, "open": case.is_open,
        "stage": "open" if stage == "none" else stage, "convicts": case.convicts, "submissions": len(case.refs),
        "upheld": case.upheld.bit_count(), "cleared": case.cleared.bit_count(),
    }  # fmt: skip


def _verdict(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "outcome": Outcome(line["outcome"]).name.lower()}


def _outcomes(tally: OutcomeTally) -> dict[str, int]:
    return {"accepted": tally.accepted, "soft": tally.soft, "hard": tally.hard}


def _wei(amount: int | None) -> str | None:
    """Of more digits than a browser's numbers have."""
    return None if amount is None else str(amount)
