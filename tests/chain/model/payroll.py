"""What a vote moves. Those who were wrong pay into a pool; the jury is paid out of it, and then those who were wronged."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.chain.model.books import BPS, Case, Finding, Run, Seat
from tests.chain.model.work import Work

COMPENSATION_BPS = 5_000
"""Of what the jury leaves of the bonds of those who challenged what was cleared. Were it all, bonds could be traded."""


@dataclass
class Judgement:
    """What is said of the submissions of a case, by their place in it. Those in neither set found no majority, or were not voted on."""

    upheld: set[int] = field(default_factory=set)
    cleared: set[int] = field(default_factory=set)
    hard: set[int] = field(default_factory=set)
    """Of the upheld, those that the jury found hard."""
    convicts: bool = False
    voted: bool = False
    """It is a jury's; else the accused was silent, or nothing is left to dispute."""
    in_vain: bool = False
    """The time was up, and some submissions had found no majority."""

    @property
    def decided(self) -> set[int]:
        return self.upheld | self.cleared


def overcharged(case: Case, j: Judgement) -> bool:
    """Brought as hard, and found merely false. Those who brought it were wrong about the charge, and whoever appealed was not."""
    return bool(case.hard and j.upheld and not j.convicts)


class Payroll(Work):
    def _pay_out(self, r: Run, seat: Seat, case: Case, j: Judgement, lost: int, pool: int) -> None:
        """`lost`: what challenger and co-signer lose each. `pool`: what the seat has paid for a lost appeal."""
        p, members = r.policy, case.members
        whole = min(p.jury_fee * len(members), p.bond)
        pay = whole // case.jurors if case.jurors else 0  # of one juror that was always right
        if overcharged(case, j):
            lost = pay * case.jurors
        if lost:
            pool += sum(self._lose(r, party, lost) for party in (case.challenger, case.co_signer) if party)
        elif j.upheld and case.appellant and not overcharged(case, j):
            pool += self._lose(r, case.appellant, p.bond)
        if j.in_vain:
            pool += self._charge_silent(r, case, pay)
            if not j.decided:
                pool += self._lose(r, case.challenger, max(0, pay * case.jurors - pool))

        def owe(to: str, due: int) -> None:
            nonlocal pool
            due = min(due, pool)
            pool -= due
            self.account(to).active += due

        for finding, jurors in _alike(r, case):
            right = {i for i in members if i not in j.decided or _agrees(finding, j, i)}
            for juror in jurors:
                owe(juror, pay * len(right) // len(members))
        if overcharged(case, j):
            if case.appellant:
                owe(case.appellant, pay)
        elif j.upheld and (not j.cleared or j.hard):
            owe(case.challenger, pool * p.finder_bps // BPS)
        elif j.cleared:
            if case.appellant:
                owe(case.appellant, pay * len(j.cleared) // len(members))
            owe(seat.operator, pool * COMPENSATION_BPS // BPS)
        else:
            owe(seat.operator, pool)
        self.account(self.sink).active += pool

    def _charge_silent(self, r: Run, case: Case, pay: int) -> int:
        """One juror's pay, of each that neither voted nor abstained."""
        silent = r.bench(case.earliest) - case.excused - set(case.votes)
        return sum(self._lose(r, juror, pay) for juror in silent)


def _alike(r: Run, case: Case) -> list[tuple[Finding, list[str]]]:
    """Votes that are alike, in the order in which the first of them was cast; jurors by their place."""
    groups: dict[Finding, list[str]] = {}
    for juror in sorted(case.votes, key=lambda juror: r.validator(juror).place):
        groups.setdefault(case.votes[juror], []).append(juror)
    return [(finding, groups[finding]) for finding in dict.fromkeys(case.votes.values())]


def _agrees(finding: Finding, j: Judgement, i: int) -> bool:
    return (i in finding.false) == (i in j.upheld) and (i in finding.hard) == (i in j.hard)
