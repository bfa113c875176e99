"""The pay of validators on chain: a run's pot, what vouchers have paid out of it, and the calls that fill and cash it.

Who promises a voucher, and for what: trainer/hub/vouchers.py.
"""

from __future__ import annotations

from eth_typing import ChecksumAddress
from eth_utils import to_checksum_address

from protocol.chain import artifacts
from protocol.chain.calls import Call
from protocol.chain.client import Chain
from protocol.chain.contract import Contract
from protocol.errors import ConfigError, WrongChain
from protocol.signing import Voucher


class Vouchers:
    """The Vouchers contract of a deployment."""

    def __init__(self, chain: Chain, address: str | None) -> None:
        """Raises ConfigError where no address is known, WrongChain unless shipped code that pays for this Runs lies there."""
        if address is None:
            raise ConfigError(
                "the Vouchers contract is not known",
                hint='put `vouchers = "0x…"` under [chain]; `murmur chain deploy` wrote it to the addresses file',
            )
        try:
            self.address: ChecksumAddress = to_checksum_address(address)
        except ValueError as error:
            raise ConfigError(f"chain.vouchers: {address!r} is no contract address") from error
        chain.check_code("Vouchers", self.address)
        runs = chain.runs_of_vouchers(self.address)
        if runs != chain.runs.address:
            raise WrongChain(f"the Vouchers at {self.address} pays for Runs {runs}, not for {chain.runs.address}")
        self._chain = chain
        self._functions = Contract(chain.ethereum, self.address, artifacts.load("Vouchers").abi).functions

    def pot(self, run: int) -> int:
        """Tokens in wei that can pay vouchers of `run`."""
        with self._chain.errors("reading the pot"):
            return int(self._functions.pots(run).call())

    def redeemed(self, run: int, validator: str) -> int:
        """Wei that the vouchers of `validator` have paid so far."""
        with self._chain.errors("reading what was paid"):
            return int(self._functions.redeemed(run, validator).call())

    def left(self, run: int) -> int:
        """Wei that vouchers signed by the trainer may still pay in the present period."""
        with self._chain.errors("reading what vouchers may pay"):
            return int(self._functions.left(run).call())

    def fund(self, run: int, amount: int) -> Call:
        return Call("filling the pot", self._functions.fund(run, amount))

    def redeem(self, voucher: Voucher, signature: bytes) -> Call:
        function = self._functions.redeem(voucher.run, voucher.validator, voucher.total, signature)
        return Call("redeeming a voucher", function, adds=False)
