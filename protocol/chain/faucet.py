"""A faucet of development tokens: what it gives, how it is asked, how one is made. The rules are IFaucet's (contracts/src/interfaces)."""

from __future__ import annotations

from dataclasses import dataclass

from eth_typing import ChecksumAddress
from eth_utils import to_checksum_address

from protocol.chain import artifacts
from protocol.chain.calls import Call
from protocol.chain.client import Chain
from protocol.chain.contract import Contract, creation
from protocol.errors import ChainError, ConfigError, InsufficientFunds


@dataclass(frozen=True)
class FaucetState:
    """Amounts in wei, times in seconds of block time."""

    token: ChecksumAddress
    holds: int
    amount: int
    most: int
    period: int
    given: int
    """In the present period."""
    now: int

    @property
    def renewed(self) -> int:
        """When the next period begins."""
        return (self.now // self.period + 1) * self.period


class TokenFaucet:
    """The Faucet at an address."""

    def __init__(self, chain: Chain, address: str | None) -> None:
        """Raises ConfigError where no address is known, WrongChain unless the shipped code lies there."""
        if not address:
            raise ConfigError(
                "no faucet is known",
                hint="give --faucet, or an addresses file that `murmur chain deploy-faucet` wrote one into",
            )
        self.address: ChecksumAddress = to_checksum_address(address)
        chain.check_code("Faucet", self.address)
        self._chain = chain
        self._functions = Contract(chain.ethereum, self.address, artifacts.load("Faucet").abi).functions

    def state(self) -> FaucetState:
        chain, ask = self._chain, self._functions
        with chain.errors("reading the faucet"):
            token = Contract(chain.ethereum, ask.token().call(), artifacts.load("Token").abi)
            return FaucetState(
                token.address, token.functions.balanceOf(self.address).call(), ask.amount().call(), ask.most().call(),
                ask.period().call(), ask.given().call(), chain.block().time,
            )  # fmt: skip

    def next(self, account: str) -> int:
        """Block time from which `account` may be given more; 0: it never was given any."""
        with self._chain.errors("reading the faucet"):
            return int(self._functions["next"](account).call())

    def drip(self, account: str) -> Call:
        return Call("asking the faucet", self._functions.drip(account), adds=False)

    def require_ready(self, account: str) -> None:
        """Raises ChainError where the faucet gives `account` nothing now, InsufficientFunds where it has nothing left."""
        state, since = self.state(), self.next(account)
        if state.now < since:
            raise ChainError(
                f"the faucet gave {account} its tokens already", hint=f"ask again in {since - state.now} seconds"
            )
        if state.given + state.amount > state.most:
            raise ChainError(
                "others had all that the faucet gives in a period",
                hint=f"ask again in {state.renewed - state.now} seconds",
            )
        if state.holds < state.amount:
            raise InsufficientFunds("the faucet is empty", hint=f"send tokens to {self.address}")


def creating(chain: Chain, token: str, *, amount: int, most: int, period: int) -> Call:
    """Deploys a Faucet, which then has to be filled. Amounts in wei, `period` in seconds."""
    artifact = artifacts.load("Faucet")
    made = creation(chain.ethereum, artifact.abi, artifact.bytecode, to_checksum_address(token), amount, most, period)
    return Call("deploying Faucet", made)
