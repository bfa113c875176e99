"""What a seat takes in gas money and tokens, and how it comes to the keys that need it: all of it by way of the operator's address.

A newcomer sends ETH to that one address. The node key gets its part of it from there, and where the run has a faucet the tokens come from it.
Not here: the seat itself (commands/stake.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.chain import Chain
from protocol.chain.faucet import TokenFaucet
from protocol.chain.sender import Sender
from protocol.clock import SYSTEM, Clock
from protocol.errors import ChainError, InsufficientFunds
from protocol.shell.gas import SUBMISSION_GAS, SUBMISSIONS_LOW
from protocol.shell.money import ether, tokens

OPERATOR_GAS = 450_000
"""The faucet 123 k, ETH for the node 21 k, approving 46 k, depositing 109 k, joining 107 k (docs/testnet.md, "What it costs"), and some more."""
NODE_GAS = SUBMISSION_GAS * SUBMISSIONS_LOW
_DEARER = 3
"""Times the price of the moment: gas becomes dearer while somebody looks for ETH."""
LOOK_SECONDS = 3.0
"""Between two looks at the balances."""


@dataclass(frozen=True)
class GasMoney:
    """In wei."""

    operator: int
    """What the operator has to hold before it begins, the node's part included."""
    node: int
    """Of it, what the node key gets; 0: that has enough."""

    @classmethod
    def needed(cls, chain: Chain, node: str) -> GasMoney:
        price = _DEARER * chain.gas_price()
        has = chain.balance(node)
        passed = price * NODE_GAS if has * _DEARER < price * NODE_GAS else 0
        return cls(price * OPERATOR_GAS + passed, passed)


def needs(chain: Chain, node: str, operator: str, stake: int, faucet: str) -> str:
    """In words, what has to be sent to the operator's address before the seat can be taken; nothing where all is there."""
    gas, has, held = GasMoney.needed(chain, node), chain.balance(operator), chain.token_balance(operator)
    lacks = []
    if has < gas.operator:
        lacks.append(f"{_rounded(gas.operator - has)} for gas")
    if held < stake and not faucet:
        lacks.append(f"{tokens(stake - held)} for the stake, which the run's owner sells or gives")
    return f"send {' and '.join(lacks)} to {operator}" if lacks else ""


def gather(
    sender: Sender, node: str, stake: int, faucet: str, *, patience: float, say: Callable[[str], None], clock: Clock = SYSTEM
) -> None:  # fmt: skip
    """Waits until the operator can pay gas and `stake` wei of tokens, asks the faucet for what it gives, and passes the node its gas money.

    Raises InsufficientFunds, which says what to send where, when that has not come within `patience` seconds.
    """
    chain, operator, until, told = sender.chain, sender.key.address, clock.monotonic() + patience, ""
    while lacks := needs(chain, node, operator, stake, faucet):
        if clock.monotonic() >= until:
            raise InsufficientFunds(
                f"the seat cannot be paid for yet: {lacks}", hint="then give the same command again"
            )
        if lacks != told:
            say(f"{lacks}\nwaiting for it; after Ctrl-C the same command goes on")
            told = lacks
        clock.sleep(LOOK_SECONDS)
    if gas := GasMoney.needed(chain, node).node:
        say(f"passing {_rounded(gas)} on to the node key")
        sender.send(chain.transfer_ether(node, gas))
    if faucet and chain.token_balance(operator) < stake:
        _ask_faucet(sender, TokenFaucet(chain, faucet), stake, say)


def _ask_faucet(sender: Sender, faucet: TokenFaucet, stake: int, say: Callable[[str], None]) -> None:
    operator = sender.key.address
    missing = stake - sender.chain.token_balance(operator)
    try:
        faucet.require_ready(operator)
    except (ChainError, InsufficientFunds) as error:
        raise InsufficientFunds(
            f"{error}, and {operator} lacks {tokens(missing)}", hint=error.hint or f"send tokens to {operator}"
        ) from error
    given = faucet.state().amount
    if given < missing:
        raise InsufficientFunds(
            f"the faucet gives {tokens(given)}, and {operator} lacks {tokens(missing)}",
            hint=f"ask the run's owner for {tokens(missing - given)}",
        )
    say(f"asking the run's faucet for {tokens(given)}")
    sender.send(faucet.drip(operator))


def _rounded(wei: int) -> str:
    """Two digits of an amount that is an estimate, rounded up."""
    unit = 10 ** max(0, len(str(wei)) - 2)
    return ether(-(-wei // unit) * unit)
