"""Signs the transactions of one key, with the gas they need and at a fee that blocks take, within what its owner allows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from eth_utils import keccak

from protocol.chain import gas
from protocol.chain.client import Chain
from protocol.chain.transaction_log import Attempt, Transaction
from protocol.clock import Clock
from protocol.errors import TransactionReverted
from protocol.identity import Key

log = logging.getLogger(__name__)

_GAS_HEADROOM = 1.25
_BUMP = 1.25  # nodes want at least 10 % more before they replace a transaction


@dataclass(frozen=True)
class SendLimits:
    deadline: float = 120.0
    """Seconds from sending to being mined; afterwards the transaction stays in the journal and may still land."""
    stuck: float = 30.0
    """Seconds without being mined after which it is sent again at a higher fee."""
    gas: int = 16_000_000
    """A call that needs more gas is refused."""
    fee: int = 50_000_000_000
    """Most wei per gas that a transaction may offer, the first attempt as well as a replacement."""
    depth: int | None = None
    """Blocks on a block after which what is in it is believed for good; None: what the network says (networks.py)."""


class Signer:
    def __init__(self, chain: Chain, key: Key, limits: SendLimits, clock: Clock) -> None:
        self._chain = chain
        self._key = key
        self._limits = limits
        self._clock = clock

    def fields(self, target: str | None, data: bytes, value: int) -> dict[str, str]:
        """Of a call by this key, in JSON-RPC."""
        to = {} if target is None else {"to": target}
        return {"from": self._key.address, **to, "value": hex(value), "data": f"0x{data.hex()}"}

    def gas_of(
        self, doing: str, target: str | None, data: bytes, value: int, room: int, *, of_most: bool = False
    ) -> int:
        """What a call may use: others' transactions may come before it, and make it do more than as of the estimate. `of_most`: the best
        endpoint's estimate was wrong before, or may be. Raises TransactionReverted, also where it is more than the limit, RpcRefusal or RpcUnavailable."""
        least, most = gas.intrinsic(target, data), int(self._limits.gas / _GAS_HEADROOM)
        fields = self.fields(target, data, value)
        needed = int(gas.estimate(self._chain, fields, least, most, of_most=of_most) * _GAS_HEADROOM)
        if needed > self._limits.gas:
            raise TransactionReverted(
                f"{doing} needs {needed} gas, more than the cap of {self._limits.gas}",
                hint="raise chain.gas_max if this is right",
            )
        return min(needed + room, self._limits.gas)

    def fee(self, *, of_most: bool = False) -> int:
        """What a first attempt offers, in wei per gas; `of_most`: whatever the best endpoint says. Raises FeeTooHigh or RpcUnavailable."""
        base = gas.median_base_fee(self._chain) if of_most else gas.base_fee(self._chain, self._limits.fee)
        return gas.fee(base, self._limits.fee)

    def sign(self, transaction: Transaction, fee: int, tip: int = gas.TIP) -> Attempt:
        """`fee` and `tip` in wei per gas."""
        from eth_account import Account

        fields: dict[str, Any] = {
            "type": 2, "chainId": self._chain.chain_id, "nonce": transaction.nonce, "gas": transaction.gas,
            "value": transaction.value,
            "maxFeePerGas": fee, "maxPriorityFeePerGas": min(tip, fee), "data": transaction.data,
        }  # fmt: skip
        if transaction.target is not None:
            fields["to"] = transaction.target
        raw = bytes(Account.sign_transaction(fields, self._key.secret).raw_transaction)
        return Attempt(keccak(raw), raw, fee, tip, self._clock.wall(), transaction.gas)

    def instead(self, transaction: Transaction, attempt: Attempt) -> Attempt:
        """Of another transaction with the nonce of `attempt`, as dear as may be to take its place."""
        fee = min(self._limits.fee, max(int(attempt.fee * _BUMP), gas.offer(gas.median_base_fee(self._chain))))
        return self.sign(transaction, fee, min(int(attempt.tip * _BUMP) + 1, fee))

    def dearer(self, transaction: Transaction, attempt: Attempt) -> Attempt:
        """One that takes the place of `attempt`; that one itself where it offers as much as it may."""
        fee = max(int(attempt.fee * _BUMP), gas.offer(gas.median_base_fee(self._chain)))
        if fee > self._limits.fee:
            log.warning("%s is stuck and its fee is at the cap of %d wei", transaction.doing, self._limits.fee)
            if attempt.fee >= self._limits.fee:
                return attempt
            fee = self._limits.fee
        return self.sign(transaction, fee, min(int(attempt.tip * _BUMP) + 1, fee))
