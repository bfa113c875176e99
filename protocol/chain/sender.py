"""Sends the transactions of one key, in order, one nonce after the other.

There is one sender per key and process; nonces are counted here, because a "pending" nonce read back from an endpoint by
several threads loses transactions. After any error the counter is read anew from the chain.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from eth_utils import keccak
from web3.exceptions import TransactionNotFound, Web3RPCError

from protocol.chain.client import Call, Chain
from protocol.errors import ChainError, DeadlineExceeded, InsufficientFunds, TransactionReverted
from protocol.identity import Key

log = logging.getLogger(__name__)

_GAS_HEADROOM = 1.25
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Sent:
    """A transaction that was mined. `events` are those of our contracts, in order."""

    hash: bytes
    block: int
    gas_used: int
    events: tuple[Any, ...]

    def event(self, kind: type) -> Any:
        """The first event of a kind; ChainError when there is none, for then the contract is not ours."""
        for event in self.events:
            if isinstance(event, kind):
                return event
        raise ChainError(f"transaction 0x{self.hash.hex()} emitted no {kind.__name__}")


class Sender:
    def __init__(self, chain: Chain, key: Key, *, deadline: float = 60.0, gas_cap: int = 12_000_000) -> None:
        """`deadline` in seconds from sending to being mined; `gas_cap` refuses what would cost more gas."""
        self.chain = chain
        self.key = key
        self._deadline = deadline
        self._gas_cap = gas_cap
        self._nonce: int | None = None
        self._lock = threading.Lock()

    def send(self, call: Call) -> Sent:
        """Sends and waits until mined. Raises TransactionReverted, InsufficientFunds, RpcUnavailable or DeadlineExceeded."""
        with self._lock:
            try:
                transaction_hash = self._submit(call)
                return self._wait(call, transaction_hash)
            except ChainError:
                self._nonce = None
                raise

    def estimate(self, call: Call) -> tuple[int, int]:
        """(gas, most it can cost in wei) of a call, without sending it."""
        web3 = self.chain.web3
        with self.chain.errors(call.doing):
            gas = int(int(call.function.estimate_gas({"from": self.key.address})) * _GAS_HEADROOM)
            return gas, gas * self._fees(web3)["maxFeePerGas"]

    def _submit(self, call: Call) -> bytes:
        web3 = self.chain.web3
        with self.chain.errors(call.doing):
            estimated = int(call.function.estimate_gas({"from": self.key.address}))
            gas = int(estimated * _GAS_HEADROOM)
            if gas > self._gas_cap:
                raise TransactionReverted(f"{call.doing} needs {gas} gas, more than the cap of {self._gas_cap}")
            if self._nonce is None:
                self._nonce = int(web3.eth.get_transaction_count(self.key.address, "pending"))
            fields = {"from": self.key.address, "nonce": self._nonce, "gas": gas, "chainId": self.chain.chain_id}
            built = call.function.build_transaction({**fields, **self._fees(web3)})
            raw = bytes(self.key.account.sign_transaction(built).raw_transaction)
            try:
                web3.eth.send_raw_transaction(raw)
            except Web3RPCError as error:
                self._on_refusal(call, error)
        self._nonce += 1
        return keccak(raw)

    @staticmethod
    def _fees(web3: Any) -> dict[str, int]:
        base = int(web3.eth.get_block("latest").get("baseFeePerGas") or 0)
        tip = 1_000_000  # 0.001 gwei: enough on Base, whose sequencer orders by arrival
        return {"maxFeePerGas": 2 * base + tip, "maxPriorityFeePerGas": tip}

    def _on_refusal(self, call: Call, error: Web3RPCError) -> None:
        text = str(error).lower()
        if "already known" in text or "already imported" in text:
            return  # the very same transaction is there: what we wanted
        self._nonce = None
        if "insufficient funds" in text:
            raise InsufficientFunds(
                f"{call.doing}: {self.key.address} cannot pay the gas", hint=f"send some ETH to {self.key.address}"
            ) from error
        raise error

    def _wait(self, call: Call, transaction_hash: bytes) -> Sent:
        until = time.monotonic() + self._deadline
        while True:
            with self.chain.errors(call.doing):
                try:
                    receipt = self.chain.web3.eth.get_transaction_receipt(transaction_hash)
                    break
                except TransactionNotFound:
                    pass
            if time.monotonic() > until:
                raise DeadlineExceeded(f"{call.doing}: 0x{transaction_hash.hex()} not mined in {self._deadline:g} s")
            time.sleep(_POLL_SECONDS)
        if receipt["status"] != 1:
            with self.chain.errors(call.doing):
                call.function.call({"from": self.key.address}, int(receipt["blockNumber"]))  # raises the reason
            raise TransactionReverted(f"{call.doing}: transaction 0x{transaction_hash.hex()} failed")
        logs = [self.chain.decode(entry) for entry in receipt["logs"]]
        events = tuple(event for event in logs if event is not None)
        return Sent(transaction_hash, int(receipt["blockNumber"]), int(receipt["gasUsed"]), events)
