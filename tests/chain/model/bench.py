"""Validators of a run: how they take seats, what they risk, and who judges what. A bench is fixed by the time of the work."""

from __future__ import annotations

from tests.chain.model.books import Run, Validator, require
from tests.chain.model.seats import Seats


class Bench(Seats):
    def approve(self, by: str, at: int, run: int, validator: str, on: bool) -> None:
        r, v = self.runs[run], self.runs[run].validator(validator)
        require(by == r.policy.owner, "Denied")
        v.approved = on
        if not on and v.permanent:
            self._retire(r, v, at)

    def enlist(self, by: str, at: int, run: int, on: bool) -> None:
        r, v = self.runs[run], self.runs[run].validator(by)
        if on:
            require(v.approved, "Denied")
            require(v.since == 0 or 0 < v.until <= at, "WrongState")
            missing = max(0, r.policy.validator_stake - v.locked)
            self._lock(by, missing)
            if v.since == 0:
                v.place = sum(other.since != 0 for other in r.validators.values())
            v.since, v.until = at, 0
            r.changed.add(at)
            v.locked += missing
        else:
            require(v.permanent, "WrongState")
            self._retire(r, v, at)

    def reinforce(self, by: str, run: int, amount: int) -> None:
        v = self.runs[run].validator(by)
        require(amount > 0, "ZeroAmount")
        require(v.permanent, "WrongState")
        self._lock(by, amount)
        v.locked += amount

    def unseat(self, at: int, run: int, validator: str) -> None:
        r, v = self.runs[run], self.runs[run].validator(validator)
        require(v.permanent and v.locked < r.policy.bond, "WrongState")
        self._retire(r, v, at)

    def release_validator(self, at: int, run: int, validator: str) -> None:
        r, v = self.runs[run], self.runs[run].validator(validator)
        require(v.until != 0 and v.locked > 0 and r.at_risk(validator) == 0, "WrongState")
        require(at >= v.until + 2 * r.policy.span, "TooEarly")
        self.account(validator).locked -= v.locked
        v.locked = 0

    # ---- shared ----------------------------------------------------------------------------------------------------

    def _retire(self, r: Run, v: Validator, at: int) -> None:
        v.until = at + r.policy.span
        r.changed.add(at)

    def _require_party(self, r: Run, who: str, earliest: int, bond: int) -> None:
        """A party is of the bench, and its lock answers for a bond in each of its open cases and in this one."""
        require(who in r.bench(earliest), "NotOnBench")
        if r.policy.appeal:
            require(r.validator(who).locked >= r.at_risk(who) + bond, "InsufficientStake")

    def _lose(self, r: Run, validator: str, amount: int) -> int:
        """Takes so much of a validator's lock, or what is left of it; whoever calls says who gets it."""
        v = r.validator(validator)
        taken = min(amount, v.locked)
        self._take(validator, taken)
        v.locked -= taken
        return taken
