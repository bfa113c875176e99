"""What votes amount to, and what a judgement does to the submissions, the seat and the case."""

from __future__ import annotations

from protocol.chain.types import Role, Stage
from tests.chain.model.books import Case, Place, Run, Seat, Submission
from tests.chain.model.payroll import Judgement, Payroll, overcharged


def majority(jurors: int) -> int:
    return jurors // 2 + 1


def count(case: Case) -> tuple[Judgement, set[int]]:
    """What has been decided by the votes so far, and of which submissions no further vote can change what is said.

    A majority of all jurors finds false, or hard. What so many find good that no majority can find it false is cleared; so an even
    jury that ties clears.
    """
    j, final = Judgement(voted=True), set()
    needed = majority(case.jurors)
    against = max(1, case.jurors + 1 - needed)
    for i in case.members:
        false = sum(i in finding.false for finding in case.votes.values())
        hard = sum(i in finding.hard for finding in case.votes.values())
        if false >= needed:
            j.upheld.add(i)
        if hard >= needed:
            j.hard.add(i)
        if len(case.votes) - false >= against:
            j.cleared.add(i)
        never_hard = len(case.votes) - hard >= against
        if i in j.cleared or i in j.hard or (i in j.upheld and never_hard):
            final.add(i)
    j.convicts = bool(j.hard)
    return j, final


class Verdicts(Payroll):
    def _close(self, run: int, seat: Seat, case: Case, at: int, j: Judgement) -> None:
        """Ends a stage of a case: for good, or until it is challenged again."""
        r, p, rest = self.runs[run], self.runs[run].policy, case.members - j.decided
        again_until = case.deadline + p.appeal
        over = not j.voted or not rest or j.convicts or case.again or at >= again_until
        lost = paid = 0
        if j.cleared and not j.convicts:
            lost = min(case.bond, p.bond_for(case.units(j.cleared)))
        elif j.voted and j.upheld and case.appellant is None and not overcharged(case, j):
            paid = self._lose_appeal(r, seat, case)
        if seat.swept:
            pass  # a conviction has taken everything, and the penalty
        elif j.convicts:
            self._convict(run, seat, case, at)
        else:
            self._carry_out(run, seat, case, at, j, j.cleared | rest if over else j.cleared)
        if j.voted:
            self._pay_out(r, seat, case, j, lost, paid)
        self._enter(case, j, rest, None if over else again_until)

    def _enter(self, case: Case, j: Judgement, rest: set[int], again_until: int | None) -> None:
        case.upheld |= j.upheld
        case.cleared |= j.cleared
        case.hard = j.convicts
        if again_until is not None:
            case.stage, case.deadline = Stage.UNDECIDED, again_until
            case.gone |= j.decided
        elif not case.upheld:
            case.stage = Stage.CLEARED if case.cleared else Stage.RETURNED
        else:
            case.stage = Stage.SPLIT if case.cleared or rest else Stage.UPHELD

    def _lose_appeal(self, r: Run, seat: Seat, case: Case) -> int:
        """Nothing was cleared, or the seat was convicted: it pays a bond. A key can lose no more than the penalty by itself."""
        due = min(r.policy.bond, r.policy.penalty - seat.spent) if case.keyed else r.policy.bond
        paid = self._take_of_seat(r, seat, due)
        if case.keyed:
            seat.spent += paid
        return paid

    def _carry_out(self, run: int, seat: Seat, case: Case, at: int, j: Judgement, back: set[int]) -> None:
        """Units that return have the maturity they had. Each false submission is a strike, and strikes cost no more than leaves the
        penalty covered."""
        r, p = self.runs[run], self.runs[run].policy
        if not case.bare:
            for i in back:
                case.listed[i].place = Place.SEAT
            for i in j.upheld:
                case.listed[i].place = Place.REVOKED
        self._revoke(run, case.units(j.upheld))
        if j.upheld and not case.bare:  # else another case has revoked it, or will
            fees = self._strike(r, seat, at, len(j.upheld)) * p.fee
            taken = self._take_of_seat(r, seat, fees, spared=p.penalty - seat.spent)
            self._share_out(taken, case.challenger, 0 if overcharged(case, j) else p.finder_bps)

    def _convict(self, run: int, seat: Seat, case: Case, at: int) -> None:
        """Takes all that had not matured before the seat was accused, its service, and what is left of the penalty."""
        r, p = self.runs[run], self.runs[run].policy
        taken = [submission for submission in seat.submissions if self._at_stake(r, seat, submission, at)]
        for submission in taken:
            submission.place = Place.REVOKED
        self._revoke(run, sum(submission.units for submission in taken))
        if seat.serves(at):
            seat.until = at
        due, seat.spent = p.penalty - seat.spent, p.penalty
        seat.role, seat.swept = Role.BANNED, True
        self._share_out(self._take_of_seat(r, seat, due), case.challenger, p.finder_bps)

    def _at_stake(self, r: Run, seat: Seat, submission: Submission, at: int) -> bool:
        """Whether a conviction takes it."""
        if submission.place == Place.SEAT:
            return not (submission.safe if seat.open_hard else r.matured(submission, at))
        return submission.place == Place.CASE
