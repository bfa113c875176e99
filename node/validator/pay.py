"""What a run owes a validator: the hub's voucher against what Wages has paid, and cashing the difference."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.chain import Chain, Sender
from protocol.errors import ConfigError, InsufficientFunds
from protocol.hub import Refused
from protocol.role import ChainSettings, Connection


@dataclass(frozen=True)
class Pay:
    """All in wei. `earned` is the voucher's total, `pot` what the run has put aside for all its validators."""

    earned: int
    redeemed: int
    pot: int
    signature: bytes

    @property
    def due(self) -> int:
        return max(0, self.earned - self.redeemed)


def wages_of(chain: Chain, settings: ChainSettings) -> str:
    """Address of the run's Wages. Raises ConfigError where none is configured, WrongChain where another contract lies there."""
    if settings.wages is None:
        raise ConfigError(
            "no Wages contract is configured", hint='put `wages = "0x…"` under [chain]; the run\'s owner knows it'
        )
    chain.require_wages(settings.wages)
    return settings.wages


def look(connection: Connection) -> Pay:
    """Asks hub and chain. A run that pays nothing has earned nobody anything."""
    chain, run, address = connection.chain, connection.run, connection.key.address
    wages = wages_of(chain, connection.settings)
    try:
        earned, signature = connection.hub.voucher(address, connection.policy.trainer)
    except Refused:
        earned, signature = 0, b""
    return Pay(earned, chain.redeemed(wages, run, address), chain.pot(wages, run), signature)


def redeem(sender: Sender, settings: ChainSettings, pay: Pay) -> int:
    """Cashes the voucher as far as the pot reaches; returns what was paid, in wei."""
    wages, address = wages_of(sender.chain, settings), sender.key.address
    if not pay.pot:
        raise InsufficientFunds(
            "the run's pot is empty", hint="its owner fills it: murmur run fund-wages; the voucher stays good"
        )
    call = sender.chain.redeem(wages, settings.run, address, pay.earned, pay.signature)
    name = f"redeem/{settings.run}/{address}/{pay.earned}/{pay.redeemed}"
    sender.send(call, name=name)
    return sender.chain.redeemed(wages, settings.run, address) - pay.redeemed
