"""Stake of operators and validators. Only what is locked in a seat can be slashed; a slash moves stake and never tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.chain.model.books import BPS, Account, Run, require


@dataclass
class Stake:
    bonds: str
    """Address of the contract that holds all stake."""
    treasury: str
    """Of the one that holds all budgets."""
    pots: str
    """Of the one that holds what vouchers are paid from."""
    sink: str
    delay: int
    tokens: dict[str, int] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)

    def account(self, address: str) -> Account:
        return self.accounts.setdefault(address, Account())

    def deposit(self, by: str, account: str, amount: int) -> None:
        require(amount > 0, "ZeroAmount")
        self._pay(by, self.bonds, amount)
        self.account(account).active += amount

    def unbond(self, by: str, at: int, amount: int) -> None:
        require(amount > 0, "ZeroAmount")
        account = self.account(by)
        require(account.active - account.locked >= amount, "InsufficientStake")
        account.active -= amount
        account.leaving += amount
        account.ready_at = at + self.delay

    def rebond(self, by: str, amount: int) -> None:
        require(amount > 0, "ZeroAmount")
        account = self.account(by)
        require(account.leaving >= amount, "InsufficientStake")
        account.leaving -= amount
        account.active += amount

    def withdraw(self, by: str, at: int) -> None:
        account = self.account(by)
        require(account.leaving > 0, "ZeroAmount")
        require(at >= account.ready_at, "TooEarly")
        self._pay(self.bonds, by, account.leaving)
        account.leaving = 0

    # ---- shared ----------------------------------------------------------------------------------------------------

    def _pay(self, sender: str, receiver: str, amount: int) -> None:
        """Moves tokens."""
        require(self.tokens.get(sender, 0) >= amount, "ERC20InsufficientBalance")
        self.tokens[sender] = self.tokens.get(sender, 0) - amount
        self.tokens[receiver] = self.tokens.get(receiver, 0) + amount

    def _lock(self, address: str, amount: int) -> None:
        account = self.account(address)
        require(account.active - account.locked >= amount, "InsufficientStake")
        account.locked += amount

    def _take(self, address: str, amount: int) -> None:
        """Out of what is locked; whoever calls says who gets it."""
        account = self.account(address)
        account.active -= amount
        account.locked -= amount

    def _share_out(self, amount: int, finder: str, finder_bps: int) -> None:
        """Of what was taken: the finder gets its share as stake, the sink the rest."""
        share = amount * finder_bps // BPS
        self.account(finder).active += share
        self.account(self.sink).active += amount - share
