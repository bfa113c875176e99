"""Seats of nodes: who works for whom, with which key and which stake. What can be held against a seat stays with it, whoever has it."""

from __future__ import annotations

from protocol.chain.types import Role
from tests.chain.model.books import Run, Seat, require
from tests.chain.model.weights import Weights


class Seats(Weights):
    def join(
        self, by: str, at: int, block: int, run: int, node: str, hardware: int, deadline: int, consents: bool
    ) -> None:
        """`consents`: whether the node signed exactly this."""
        require(run in self.runs, "NoSuchRun")
        r, seat = self.runs[run], self.runs[run].seat(node)
        require(seat.role != Role.BANNED, "WrongState")
        require(seat.role == Role.NONE or seat.operator == by, "Denied")
        require(seat.rotated_to in (None, node), "Denied")
        require(at <= deadline, "TooLate")
        require(consents, "Denied")
        missing = max(0, r.policy.node_stake - seat.locked)
        self._lock(by, missing)
        seat.operator, seat.role, seat.hardware, seat.since, seat.until = by, Role.ACTIVE, hardware, block, 0
        if missing:
            seat.locked += missing
            self._trust(r, seat)

    def rotate(
        self, by: str, at: int, block: int, run: int, node: str, new: str, deadline: int, consents: bool
    ) -> None:
        r, seat = self.runs[run], self.runs[run].seat(node)
        require(by == seat.operator, "Denied")
        require(new not in r.names and r.seat(new).role == Role.NONE, "WrongState")
        require(at <= deadline, "TooLate")
        require(consents, "Denied")
        del r.seats[new]
        r.names[new] = seat.node
        seat.rotated_to, seat.since = new, block

    def offer(self, by: str, run: int, node: str, to: str, deadline: int) -> None:
        seat = self.runs[run].seat(node)
        require(by == seat.operator, "Denied")
        seat.offered, seat.offer_ends = to, deadline

    def accept(self, by: str, at: int, block: int, run: int, node: str) -> None:
        """The stake behind the seat moves along, and so do its rewards and what can still be held against it."""
        seat = self.runs[run].seat(node)
        require(by == seat.offered, "Denied")
        require(at <= seat.offer_ends, "TooLate")
        for address, amount in ((seat.operator, -seat.locked), (by, seat.locked)):
            self.account(address).active += amount
            self.account(address).locked += amount
        seat.operator, seat.offered, seat.since = by, None, block

    def leave(self, by: str, at: int, run: int, node: str) -> None:
        r, seat = self.runs[run], self.runs[run].seat(node)
        require(seat.serves(at), "WrongState")
        require(by == seat.operator or seat.locked < r.policy.penalty + r.policy.bond, "Denied")
        seat.role = Role.LEFT if seat.role == Role.ACTIVE else seat.role
        seat.until = at

    def ban(self, by: str, at: int, run: int, node: str) -> None:
        r, seat = self.runs[run], self.runs[run].seat(node)
        require(by == r.policy.owner, "Denied")
        require(seat.role in (Role.ACTIVE, Role.LEFT), "WrongState")
        if seat.role == Role.ACTIVE:
            seat.until = at + r.policy.notice
        seat.role = Role.BANNED

    def release(self, at: int, run: int, node: str) -> None:
        """Ends all that others think of the seat: what it earned its trust with, and its offer."""
        r, seat = self.runs[run], self.runs[run].seat(node)
        require(seat.until != 0 and seat.locked > 0, "WrongState")
        require(seat.open_cases == 0, "CaseOpen")
        require(at >= seat.until + r.policy.span, "TooEarly")
        self.account(seat.operator).locked -= seat.locked
        seat.locked, seat.proven, seat.most, seat.offered = 0, 0, 0, None

    # ---- shared ----------------------------------------------------------------------------------------------------

    def _trust(self, r: Run, seat: Seat, paid: int = 0) -> None:
        """A seat may have as many units at risk as its stake is worth, and one more for each it was ever paid for, up to
        `leverage` times its stake. `paid`: for how many it is paid now."""
        seat.proven += paid
        worth = seat.locked // r.policy.reward
        seat.most = min(worth + seat.proven, worth * r.policy.leverage, 2**32 - 1)

    def _take_of_seat(self, r: Run, seat: Seat, amount: int, spared: int = 0) -> int:
        """Takes out of what a seat has locked beyond what must be spared; whoever calls says who gets it."""
        taken = min(amount, max(0, seat.locked - spared))
        self._take(seat.operator, taken)
        if taken:
            seat.locked -= taken
            self._trust(r, seat)
        return taken
