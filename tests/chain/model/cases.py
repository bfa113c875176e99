"""Who may bring a case, appeal it, judge it and end it; and who answers for an accept receipt that a case found false."""

from __future__ import annotations

from protocol.chain.types import Policy, Stage
from protocol.submission import SubmissionRef
from tests.chain.model.books import Case, Finding, Place, Refused, Run, Seat, Submission, require
from tests.chain.model.payroll import Judgement
from tests.chain.model.verdicts import Verdicts, count

LONGEST_REASON = 128


class Cases(Verdicts):
    # ---- bringing them ---------------------------------------------------------------------------------------------

    def challenge(self, by: str, at: int, run: int, refs: list[SubmissionRef]) -> None:
        """Those past their window, or in a case before, are left out of the list; and those that another bench judges than the first that
        remains."""
        r = self.runs[run]
        require(len(refs) > 0, "ZeroAmount")
        seat = r.seat(refs[0].node)
        require(not seat.swept, "WrongState")
        require(all(r.seat(ref.node) is seat for ref in refs), "Denied")
        found = [seat.find(ref) for ref in dict.fromkeys(refs)]
        taken = [w for w in found if w is not None and w.case == 0 and r.in_window(w, at)]
        require(len(taken) > 0, "WrongState")
        taken = [w for w in taken if r.term(w.time) == r.term(taken[0].time)]
        earliest = min(submission.time for submission in taken)
        self._open(run, seat, at, Case(by, earliest, at + r.policy.appeal, taken, _bond(r.policy, taken)))

    def challenge_again(self, by: str, at: int, run: int, node: str, number: int) -> None:
        """Takes a case up as it stands, without those who were a party to it before. It is a soft one now."""
        r, _, case = self._case(run, node, number)
        require(case.stage == Stage.UNDECIDED, "WrongState")
        require(at < case.deadline, "TooLate")
        require(by not in (case.challenger, case.co_signer), "Denied")
        bond = r.policy.bond_for(case.units(case.members))
        self._require_party(r, by, case.earliest, bond)
        case.excused = r.bench(case.earliest) & {case.challenger, str(case.co_signer), str(case.appellant)}
        case.challenger, case.co_signer, case.appellant, case.keyed = by, None, None, False
        case.bond, case.again, case.votes = bond, True, {}
        case.stage, case.deadline = Stage.OPEN, at + r.policy.appeal

    def accuse(
        self, by: str, at: int, run: int, ref: SubmissionRef, samples: int, second: tuple[str, int] | None
    ) -> None:
        """`second`: who signed another hard verdict on this submission, and the samples it names; None: it is forged."""
        r, seat = self.runs[run], self.runs[run].seat(ref.node)
        submission = seat.find(ref)
        if submission is None:
            raise Refused("WrongState")
        require(r.in_window(submission, at), "TooLate")
        self._stop_pay(r, seat, at)
        bare = submission.place == Place.REVOKED
        if submission.place == Place.CASE:
            self._leave(run, seat, submission, at)
        co_signer = None
        if r.policy.co_signers:
            if second is None or second[0] == by:
                raise Refused("Denied")
            co_signer, both = second[0], samples & second[1]
            require(both != 0 or samples == second[1] == 0, "NoCommonSample")
            samples = both
        require((ref, co_signer or by) not in r.charges, "Denied")
        r.charges[ref, co_signer or by] = len(seat.cases) + 1
        case = Case(by, submission.time, at + r.policy.appeal, [submission], _bond(r.policy, [submission]))
        case.hard, case.samples, case.co_signer, case.bare = True, samples, co_signer, bare
        self._open(run, seat, at, case)

    def _stop_pay(self, r: Run, seat: Seat, at: int) -> None:
        """Nothing that matures while the seat stands accused is paid; and it is shut out for a while, but not all the time."""
        if seat.open_hard == 0:
            for submission in seat.submissions:
                submission.safe = submission.place == Place.SEAT and r.matured(submission, at)
        if at >= seat.shut_until + r.policy.span:
            seat.shut_until = at + r.policy.appeal + r.policy.vote

    def _leave(self, run: int, seat: Seat, submission: Submission, at: int) -> None:
        """No case shields a submission: it moves over to a new one. A hard case stands without it, a soft one ends where it was the
        last."""
        before = seat.cases[submission.case - 1]
        if before.hard:
            before.bare = True
            return
        before.gone.add(submission.index)
        if not before.members:
            self._close(run, seat, before, at, Judgement())

    def _open(self, run: int, seat: Seat, at: int, case: Case) -> None:
        r = self.runs[run]
        for party in (case.challenger, case.co_signer):
            if party is not None:
                self._require_party(r, party, case.earliest, case.bond)
        seat.cases.append(case)
        for i, submission in enumerate([] if case.bare else case.listed):
            submission.place, submission.case, submission.index = Place.CASE, len(seat.cases), i
        if r.policy.appeal == 0:
            self._close(run, seat, case, at, Judgement(upheld=case.members, convicts=case.hard))

    # ---- appeal and vote -------------------------------------------------------------------------------------------

    def appeal(self, by: str, at: int, run: int, node: str, number: int) -> None:
        r, seat, case = self._case(run, node, number)
        require(case.stage == Stage.OPEN, "WrongState")
        require(at < case.deadline, "TooLate")
        if by in (seat.operator, seat.key):
            case.keyed = by != seat.operator
            require(seat.locked > 0 and not (case.keyed and seat.spent >= r.policy.penalty), "InsufficientStake")
        else:
            require(by not in (case.challenger, case.co_signer), "Denied")
            self._require_party(r, by, case.earliest, r.policy.bond)
            case.appellant = by
        bench = r.bench(case.earliest)
        parties = {case.challenger, str(case.co_signer), str(case.appellant), seat.operator, seat.key}
        case.excused |= parties & bench
        case.jurors = len(bench - case.excused)
        require(case.jurors > 0 or case.appellant is None, "TooFewValidators")
        case.stage, case.deadline = Stage.APPEALED, at + r.policy.vote

    def vote(self, by: str, at: int, run: int, node: str, number: int, finding: Finding) -> None:
        """Decides at once what no further vote can change."""
        r, seat, case = self._case(run, node, number)
        self._require_juror(r, case, by, at)
        require(finding.false <= set(range(len(case.listed))) and finding.hard <= finding.false, "InvalidBallot")
        require(by not in case.votes, "Denied")
        case.votes[by] = finding
        judgement, final = count(case)
        if final == case.members:
            self._close(run, seat, case, at, judgement)

    def abstain(self, by: str, at: int, run: int, node: str, number: int, reason: str) -> None:
        r, _, case = self._case(run, node, number)
        self._require_juror(r, case, by, at)
        require(len(reason.encode()) <= LONGEST_REASON, "TooLong")
        require(by not in case.votes, "Denied")
        case.excused.add(by)

    def settle(self, at: int, run: int, node: str, number: int) -> None:
        """Silence of the accused convicts; silence of the jury is charged, and gives back what nobody challenges again."""
        _, seat, case = self._case(run, node, number)
        require(case.open, "WrongState")
        require(at >= case.deadline, "TooEarly")
        if case.stage == Stage.OPEN:
            judgement = Judgement(upheld=case.members, convicts=case.hard)
        elif case.stage == Stage.APPEALED:
            judgement, final = count(case)
            judgement.in_vain = final != case.members
        else:
            judgement = Judgement()
        self._close(run, seat, case, at, judgement)

    def _require_juror(self, r: Run, case: Case, who: str, at: int) -> None:
        require(case.stage == Stage.APPEALED, "WrongState")
        require(at < case.deadline, "TooLate")
        require(who in r.bench(case.earliest), "NotOnBench")
        require(who not in case.excused, "Denied")

    # ---- false accepts ---------------------------------------------------------------------------------------------

    def impeach(
        self, by: str, run: int, ref: SubmissionRef, number: int, validator: str, samples: int, accepted: bool
    ) -> None:
        """`samples`: those that the validator's receipt vouches for; `accepted`: it has signed exactly that."""
        r, _, case = self._case(run, ref.node, number)
        require(case.stage == Stage.UPHELD and case.hard and (ref, validator) not in r.impeached, "WrongState")
        require(r.charges.get((ref, case.co_signer or case.challenger)) == number, "WrongState")
        require(case.samples & samples != 0, "NoCommonSample")
        require(accepted, "Denied")
        r.impeached.add((ref, validator))
        self._share_out(self._lose(r, validator, r.policy.bond), by, r.policy.finder_bps)

    def _case(self, run: int, node: str, number: int) -> tuple[Run, Seat, Case]:
        seat = self.runs[run].seat(node)
        require(0 < number <= len(seat.cases), "WrongState")
        return self.runs[run], seat, seat.cases[number - 1]


def _bond(policy: Policy, taken: list[Submission]) -> int:
    """Grows with what a case withholds; nothing is at risk where verdicts are instant."""
    return policy.bond_for(sum(submission.units for submission in taken)) if policy.appeal else 0
