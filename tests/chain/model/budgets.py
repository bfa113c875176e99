"""What runs pay with: a budget that rewards come from, and apart from it a pot for validators' vouchers."""

from __future__ import annotations

from tests.chain.model.books import require
from tests.chain.model.stake import Stake


class Budgets(Stake):
    def fund(self, by: str, run: int, amount: int) -> None:
        require(run in self.runs, "NoSuchRun")
        require(amount > 0, "ZeroAmount")
        self._pay(by, self.treasury, amount)
        self.runs[run].free += amount

    def defund(self, by: str, at: int, run: int, amount: int) -> None:
        r = self.runs[run]
        require(by == r.policy.owner, "Denied")
        r.leaving = amount
        r.defunded_from = at + r.policy.notice if amount else 0

    def collect(self, by: str, at: int, run: int) -> None:
        """What the budget no longer holds stays announced."""
        r = self.runs[run]
        require(by == r.policy.owner, "Denied")
        require(0 < r.defunded_from <= at, "TooEarly")
        amount = min(r.free, r.leaving)
        self._pay(self.treasury, by, amount)
        r.free -= amount
        r.leaving -= amount
        if r.leaving == 0:
            r.defunded_from = 0

    def pause(self, by: str, at: int, run: int, on: bool) -> None:
        r = self.runs[run]
        require(by == r.policy.owner, "Denied")
        require(not on or r.paused_from == 0, "WrongState")
        r.paused_from = at + r.policy.notice if on else 0

    def fund_vouchers(self, by: str, run: int, amount: int) -> None:
        require(run in self.runs, "NoSuchRun")
        require(amount > 0, "ZeroAmount")
        self._pay(by, self.pots, amount)
        self.runs[run].pot += amount

    def redeem(self, by: str, at: int, run: int, validator: str, total: int, signer: str) -> None:
        """`signer`: who signed a voucher of this total for this validator. The owner's has no cap; the trainer's is for holders of
        seats, and all of those in one window are paid `voucher_cap` at most."""
        r = self.runs[run]
        most = r.pot
        if signer != r.policy.owner:
            require(signer == r.trainer(at), "Denied")
            require(r.validator(validator).since != 0, "Denied")
            most = min(most, self.voucher_room(run, at))
        amount = min(total - r.redeemed.get(validator, 0), most)
        require(amount > 0, "ZeroAmount")
        self._pay(self.pots, validator, amount)
        r.pot -= amount
        r.redeemed[validator] = r.redeemed.get(validator, 0) + amount
        if signer != r.policy.owner:
            period = at // r.policy.window
            r.by_period[period] = r.by_period.get(period, 0) + amount

    def voucher_room(self, run: int, now: int) -> int:
        """What vouchers of the trainer's may still be paid in this window."""
        r = self.runs[run]
        return r.policy.voucher_cap - r.by_period.get(now // r.policy.window, 0)

    def _revoke(self, run: int, units: int) -> None:
        """Gives back to the budget what was reserved for them."""
        r = self.runs[run]
        r.reserved -= units * r.policy.reward
        r.free += units * r.policy.reward
