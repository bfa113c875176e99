"""What a seat takes in gas money and tokens, and how it comes to the keys that need it: all of it by way of the operator's address.

A newcomer sends ETH to that one address. The node key gets its part of it from there, and where the run has a faucet the tokens come from it.
Not here: the seat itself (commands/stake.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from protocol.chain import Chain
from protocol.chain.faucet import TokenFaucet
from protocol.chain.sender import Sender
from protocol.clock import SYSTEM, Clock
from protocol.errors import ChainError, ConfigError, InsufficientFunds
from protocol.shell.gas import DEARER, DEPOSIT_GAS, FAUCET_GAS, WORK_GAS, price_ahead
from protocol.shell.money import ether_about, tokens

ETHER_GAS, JOIN_GAS = 21_000, 120_000
"""Of the operator's transactions (docs/testnet.md, "What it costs"), and some more."""
LOOK_SECONDS = 3.0
"""Between two looks at the balances."""


@dataclass(frozen=True)
class Spending:
    """What is still to be paid before a node has its seat. Amounts in wei."""

    node: str
    operator: str
    stake: int
    """Tokens to be deposited."""
    faucet: TokenFaucet | None
    """Where the missing ones come from; None: the operator has them, or brings them."""
    given: int
    """Tokens that the faucet gives."""
    passed: int
    """ETH that the operator passes to the node key; 0: that has enough."""
    gas: int
    """Gas of the operator's transactions; 0: there are none."""
    fee_max: int
    """Most wei per gas that is ever offered."""

    @classmethod
    def planned(
        cls, chain: Chain, node: str, operator: str, *, stake: int, is_seated: bool, faucet: str, fee_max: int
    ) -> Spending:
        """Raises InsufficientFunds where the faucet gives too little or nothing now, ConfigError where it gives other tokens: before anything is sent."""
        asked = TokenFaucet(chain, faucet) if faucet and chain.token_balance(operator) < stake else None
        given = _promised(chain, asked, operator, stake) if asked else 0
        full = price_ahead(chain, fee_max) * WORK_GAS
        passed = full if _most_shown(chain, node) * DEARER < full else 0
        steps = (FAUCET_GAS, asked), (ETHER_GAS, passed), (DEPOSIT_GAS, stake), (JOIN_GAS, not is_seated)
        return cls(node, operator, stake, asked, given, passed, sum(gas for gas, is_due in steps if is_due), fee_max)

    def consequences(self) -> list[str]:
        """For the question that is asked before any of it is sent."""
        lines = []
        if self.faucet:
            lines.append(f"asks      the faucet {self.faucet.address}, which gives {tokens(self.given)}")
        if self.passed:
            lines.append(f"passes    {ether_about(self.passed)} from the operator to {self.node}, for its gas")
        return lines

    def lacks(self, chain: Chain) -> str:
        """In words, what has to be sent to the operator's address before the seat can be taken; nothing where all is there."""
        has, held = chain.balance(self.operator), chain.token_balance(self.operator)
        needed = self.passed + price_ahead(chain, self.fee_max) * self.gas
        parts = []
        if has < needed:
            parts.append(f"{ether_about(needed - has)} for gas")
        if held < self.stake and not self.faucet:
            parts.append(f"{tokens(self.stake - held)} for the stake, which the run's owner sells or gives")
        return f"send {' and '.join(parts)} to {self.operator}" if parts else ""


def gather(
    sender: Sender, spending: Spending, *, patience: float, say: Callable[[str], None], clock: Clock = SYSTEM
) -> None:
    """Waits until the operator can pay, asks the faucet for what it gives, and passes the node its gas money.

    Raises InsufficientFunds, which says what to send where, when that has not come within `patience` seconds.
    """
    chain, operator, until, told = sender.chain, spending.operator, clock.monotonic() + patience, ""
    while lacks := spending.lacks(chain):
        if clock.monotonic() >= until:
            raise InsufficientFunds(
                f"the seat cannot be paid for yet: {lacks}", hint="then give the same command again"
            )
        if lacks != told:
            say(f"{lacks}\nwaiting for it; after Ctrl-C the same command goes on")
            told = lacks
        clock.sleep(LOOK_SECONDS)
    if spending.faucet and chain.token_balance(operator) < spending.stake:
        _promised(chain, spending.faucet, operator, spending.stake)
        say(f"asking the run's faucet for {tokens(spending.given)}")
        drip = spending.faucet.drip(operator)
        sender.let_go(drip.doing)  # what an earlier command asked for is in the balances by now
        sender.send(drip)
    if spending.passed and _most_shown(chain, spending.node) * DEARER < spending.passed:
        say(f"passing {ether_about(spending.passed)} on to the node key")
        passing = replace(
            chain.transfer_ether(spending.node, spending.passed), doing="passing gas money to the node key"
        )
        sender.let_go(passing.doing)
        sender.send(passing)


def _most_shown(chain: Chain, node: str) -> int:
    """Wei of a node by the endpoint that shows most, so that no other has gas money passed again. Raises RpcUnavailable where none answers."""
    return max(chain.answers("reading a balance", lambda one: one.balance(node)))


def _promised(chain: Chain, faucet: TokenFaucet, operator: str, stake: int) -> int:
    """What the faucet gives now, in wei of the run's token: as much as is missing, or more."""
    missing, state = stake - chain.token_balance(operator), faucet.state()
    if state.token != chain.token.address:
        raise ConfigError(
            f"the faucet {faucet.address} gives tokens of {state.token}, and the run's are of {chain.token.address}",
            hint="ask the run's owner for a card that names the right one",
        )
    try:
        faucet.require_ready(operator)
    except (ChainError, InsufficientFunds) as error:
        raise InsufficientFunds(
            f"{error}, and {operator} lacks {tokens(missing)}", hint=error.hint or f"send tokens to {operator}"
        ) from error
    if state.amount < missing:
        raise InsufficientFunds(
            f"the faucet gives {tokens(state.amount)}, and {operator} lacks {tokens(missing)}",
            hint=f"ask the run's owner for {tokens(missing - state.amount)}",
        )
    return state.amount
