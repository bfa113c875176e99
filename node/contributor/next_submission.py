"""Whether there is a submission to make now: what the chain says of the seat, the newest version and the run's money."""

from __future__ import annotations

from collections.abc import Callable

from protocol import metrics
from protocol.chain.reverts import banned
from protocol.chain.types import Publication, Role, Seat
from protocol.errors import PreflightError
from protocol.shell.connection import Connection
from protocol.shell.money import duration

_AT_RISK = metrics.gauge("murmur_node_unvested_units", "Units that wait for the window or for a case.")
_CLAIMABLE = metrics.gauge("murmur_node_claimable_units", "Units that `node claim` would turn into tokens now.")
_CASES = metrics.gauge("murmur_node_open_cases", "Open cases against this seat.")
_STRIKES = metrics.gauge("murmur_node_strikes", "Rejected submissions that count towards a suspension of this seat.")
_SHUT = metrics.gauge(
    "murmur_node_suspended_seconds",
    "Time for which this seat may not submit any more, suspended or for an open hard case; 0 where it may.",
)


class NextSubmission:
    def __init__(
        self, connection: Connection, say: Callable[..., None], claimable: Callable[[int], None] = lambda units: None
    ) -> None:
        """`say` tells the node's status; `claimable` hears how many units can be claimed."""
        self._c = connection
        self._address = connection.key.address
        self._say = say
        self._claimable = claimable

    def seat(self) -> Seat:
        """The node's seat. Raises PreflightError where it holds none (any more)."""
        seat = self._c.chain.seat(self._c.run, self._address)
        now = self._c.block_time()
        if seat.role == Role.BANNED and not seat.serves(now):
            raise banned(self._address)
        if seat.role == Role.LEFT and not seat.serves(now):
            raise PreflightError(
                f"the seat of {self._address} in run {self._c.run} was left",
                hint="`node status` says when its stake is free; `node stake` takes a seat again",
            )
        if not seat.serves(now):
            raise PreflightError(
                f"{self._address} holds no seat in run {self._c.run}", hint="take one with `node stake`"
            )
        self._measure(seat, now)
        return seat

    def _measure(self, seat: Seat, now: int) -> None:
        _CASES.set(seat.open_cases)
        _STRIKES.set(seat.strikes)
        ends = (seat.suspended_until(self._c.policy, now) or 0, seat.shut_until if seat.is_shut(now) else 0)
        _SHUT.set(max(0, *(end - now for end in ends)))

    def sequence(self, seat: Seat, head: Publication | None, beacon: bytes | None, made: int, units: int) -> int | None:
        """The next sequence for the head, or None (said to the status) when there is nothing to do for it. `made`: submissions that are not
        committed yet, with so many `units`."""
        if head is None:
            self._say("waiting", reason="no weights are published yet")
            return None
        sequence = seat.next_sequence(head.step)
        sequence = None if sequence is None else sequence + made
        reason = self._reason_to_wait(seat, head, beacon, sequence, units + self._most_units)
        if reason:
            self._say("waiting", reason=reason, step=head.step)
            return None
        return sequence

    def can_be_paid(self, units: int) -> bool:
        return self._c.chain.available(self._c.run) >= units * self._c.policy.reward

    def _reason_to_wait(
        self, seat: Seat, head: Publication, beacon: bytes | None, sequence: int | None, units: int
    ) -> str:
        now = self._c.block_time()
        suspended = seat.suspended_until(self._c.policy, now)
        if seat.is_shut(now):
            return f"a hard case is open against this seat; it works again in {duration(seat.shut_until - now)}"
        if suspended is not None:
            return f"suspended for {duration(suspended - now)} more, after {seat.strikes} rejected submissions"
        if self._c.chain.paused(self._c.run):
            return "the run is paused by its owner"
        if seat.since >= head.block:
            return "the seat works from the next version on"
        if sequence is None or sequence >= self._c.policy.max_per_step:
            return "done for this version; waiting for the next one"
        if beacon is None:
            return "the beacon of this version is made of a block that is still to come"
        if self._at_risk + units > seat.most(self._c.policy.leverage):
            return "unclaimed rewards are all that the stake answers for; `node claim`, or wait until they mature"
        if not self.can_be_paid(units):
            return "the run's budget cannot pay another submission; its owner can add to it"
        return ""

    @property
    def _most_units(self) -> int:
        """What one submission may claim at most."""
        spec = self._c.spec
        return min(self._c.policy.max_units, spec.samples * spec.sampling.max_new_tokens)

    @property
    def _at_risk(self) -> int:
        """Units that wait for the window or for a case."""
        ready, units = self._c.chain.claimable(self._c.run, self._address)
        self._claimable(ready)
        _CLAIMABLE.set(ready)
        _AT_RISK.set(units)
        return units
