"""Submissions, the units they claim, and what is paid for them."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.chain.types import Role
from protocol.submission import SubmissionRef
from tests.chain.model.bench import Bench
from tests.chain.model.books import Hashes, Place, Run, Seat, Submission, require


@dataclass(frozen=True)
class Turn:
    """Sequence numbers to be used up, and the beacon of the weights that were used."""

    step: int
    sequence: int
    beacon: bytes


class Work(Bench):
    def submit(
        self, by: str, at: int, block: int, run: int, turn: Turn, items: list[tuple[bytes, int]], hashes: Hashes
    ) -> None:
        """`items`: (root, units) of each file, their sequence numbers counted up from the turn's."""
        r = self.runs[run]
        self._use_up(by, at, block, run, turn, len(items), sum(units for _, units in items), hashes)
        require(all(0 < units <= r.policy.max_units for _, units in items), "InvalidUnits")
        for i, (root, units) in enumerate(items):
            ref = SubmissionRef(by, turn.step, turn.sequence + i, root)  # type: ignore[arg-type]
            r.seat(by).submissions.append(Submission(ref, at, units))

    def skip(self, by: str, at: int, block: int, run: int, turn: Turn, hashes: Hashes) -> None:
        r = self.runs[run]
        self._use_up(by, at, block, run, turn, 1, 0, hashes)
        self._strike(r, r.seat(by), at, 1)

    def claim(self, at: int, run: int, node: str) -> None:
        r, seat = self.runs[run], self.runs[run].seat(node)
        require(seat.role != Role.NONE, "WrongState")
        paid = r.payable(seat, at)
        units = sum(submission.units for submission in paid)
        for submission in paid:
            submission.place = Place.PAID
        self._trust(r, seat, units)
        r.reserved -= units * r.policy.reward
        self._pay(self.treasury, seat.operator, units * r.policy.reward)

    # ---- shared ----------------------------------------------------------------------------------------------------

    def _use_up(
        self, by: str, at: int, block: int, run: int, turn: Turn, many: int, units: int, hashes: Hashes
    ) -> None:
        """Takes `many` sequence numbers of the caller's seat, and reserves what the units earn."""
        r = self.runs[run]
        seat, head = r.seat(by), self._head(r, turn.step, at)
        self.draw(block, run, turn.step, hashes)
        require(any(head.beacon) and turn.beacon == head.beacon, "WrongBeacon")
        require(seat.serves(at) and by == seat.key, "Denied")
        require(seat.since < head.block, "SeatTooYoung")
        require(seat.open_hard == 0 or at >= seat.shut_until, "CaseOpen")
        suspended = seat.strikes >= r.policy.strikes and at < seat.strikes_since + r.policy.window
        require(not suspended, "Suspended")
        require(not 0 < r.paused_from <= at, "RunPaused")
        gone = r.leaving if 0 < r.defunded_from <= at else 0
        require(max(0, r.free - gone) >= units * r.policy.reward, "Unfunded")
        require(r.exposed(seat, at) + units <= seat.most, "Overexposed")
        require(turn.step >= seat.step or seat.next == 0, "WrongStep")
        expected = seat.next if turn.step == seat.step else 0
        require(turn.sequence == expected and many > 0, "WrongSequence")
        require(turn.sequence + many <= r.policy.max_per_step, "WrongSequence")
        seat.step, seat.next = turn.step, turn.sequence + many
        r.free -= units * r.policy.reward
        r.reserved += units * r.policy.reward

    def _strike(self, r: Run, seat: Seat, at: int, many: int) -> int:
        """Counts strikes of the present window; returns how many found room before the seat is suspended."""
        if at >= seat.strikes_since + r.policy.window:
            seat.strikes, seat.strikes_since = 0, at
        counted = min(many, r.policy.strikes - seat.strikes)
        seat.strikes += counted
        return counted
