"""The JSON-RPC methods of an Ethereum node that this software uses, their answers parsed strictly.

`Ethereum` asks and parses; it maps no errors: what an endpoint refuses is an `RpcRefusal`, an answer of another shape is a
ValueError, TypeError or LookupError. `Chain.errors` (client.py) makes errors of our tree of both.
Source: https://ethereum.github.io/execution-apis.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import rlp
from eth_typing import ChecksumAddress
from eth_utils import keccak, to_canonical_address, to_checksum_address

from protocol.chain.transport import Request
from protocol.chain.types import Block

Log = Mapping[str, Any]
"""A log as JSON has it: hex strings."""
Which = int | str
"""A block: its number, or "latest"."""
_QUANTITY = re.compile("0x[0-9a-fA-F]+")
_QUANTITY_CHARS = 66  # "0x" and 256 bits
_ORDINAL_BITS = 62  # of a block's number or time, or a nonce: no chain will have more, and no database takes them
_CALL, _ESTIMATE = "eth_call", "eth_estimateGas"


class RpcProvider(Protocol):
    def make_request(self, method: str, params: Sequence[Any]) -> dict[str, Any]:
        """The whole answer, with a "result" or an "error"."""


class RpcRefusal(Exception):
    """An endpoint understood and said no. `data` is as it came."""

    def __init__(self, code: object, message: str, data: object, *, method: str = _CALL) -> None:
        """`method`: what was asked."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self._runs_code = method in (_CALL, _ESTIMATE)

    @property
    def revert(self) -> bytes | None:
        """What a contract returned that reverted, empty where it gave no reason; None where no contract is the cause: whatever an endpoint says, none
        is where a receipt or a balance was asked for."""
        if not self._runs_code:
            return None
        data = self.data.get("data") if isinstance(self.data, Mapping) else self.data  # so Hardhat answers
        if isinstance(data, str):
            text = data.removeprefix("Reverted ")  # so Parity and Nethermind answer
            if text.startswith("0x"):
                try:
                    return bytes.fromhex(text[2:])
                except ValueError:
                    return b""
        return b"" if self.code == 3 or "revert" in self.message.lower() else None


@dataclass(frozen=True)
class TransactionReceipt:
    """Of a transaction that was mined."""

    hash: bytes
    block: int
    block_hash: bytes
    gas_used: int
    succeeded: bool
    logs: tuple[Log, ...]
    contract: ChecksumAddress | None
    """Address of the contract it created, as the endpoint says: created_by knows."""

    def says_the_same(self, other: TransactionReceipt) -> bool:
        """Whether both are one receipt, as far as the chain fixes it: nodes add fields of their own to logs."""
        return self._content() == other._content()

    def _content(self) -> tuple[Any, ...]:
        logs = [
            (str(e["address"]).lower(), [str(t).lower() for t in e["topics"]], str(e["data"]).lower())
            for e in self.logs
        ]
        return self.hash, self.block, self.block_hash, self.gas_used, self.succeeded, logs


def created_by(account: str, nonce: int) -> ChecksumAddress:
    """Where a transaction of this nonce creates a contract."""
    return to_checksum_address(keccak(rlp.encode([to_canonical_address(account), nonce]))[12:])


def nonce_of(raw: bytes) -> int:
    """Of a signed transaction with a type (EIP-2718), whose second field it is."""
    return int.from_bytes(rlp.decode(raw[1:])[1], "big")


def called_by(raw: bytes) -> tuple[ChecksumAddress | None, bytes]:
    """(address called, None: it deploys; calldata) of a signed transaction with dynamic fees (EIP-1559)."""
    fields = rlp.decode(raw[1:])
    return to_checksum_address(fields[5]) if fields[5] else None, fields[7]


class Ethereum:
    """Safe to share between threads where the provider is."""

    def __init__(self, provider: RpcProvider) -> None:
        self._provider = provider

    def request(self, method: str, *params: Any) -> Any:
        """The result. Raises RpcRefusal, or what the provider raises."""
        answer = self._provider.make_request(method, params)
        if (refusal := answer.get("error")) is not None:
            if not isinstance(refusal, Mapping):
                refusal = {"message": refusal}
            raise RpcRefusal(refusal.get("code"), str(refusal.get("message")), refusal.get("data"), method=method)
        return answer["result"]

    def chain_id(self) -> int:
        return quantity(self.request("eth_chainId"))

    def block_number(self) -> int:
        return ordinal(self.request("eth_blockNumber"))

    def block(self, which: Which) -> Block | None:
        """None where there is no such block (any more)."""
        found = self._block(which)
        return found and Block(ordinal(found["number"]), data(found["hash"], 32), ordinal(found["timestamp"]))

    def balance(self, address: str) -> int:
        """In wei."""
        method, params = balance_request(address)
        return quantity(self.request(method, *params))

    def code(self, address: str, which: Which = "latest") -> bytes:
        method, params = code_request(address, which)
        return data(self.request(method, *params))

    def call(self, transaction: Mapping[str, Any], which: Which = "latest") -> bytes:
        """What a call would return after a block; nothing is sent."""
        method, params = call_request(transaction, which)
        return data(self.request(method, *params))

    def estimate_gas(self, transaction: Mapping[str, Any]) -> int:
        """Gas that a call needs, made now. Raises RpcRefusal where it would revert."""
        method, params = gas_request(transaction)
        return quantity(self.request(method, *params))

    def base_fee(self) -> int:
        """Wei per gas that the newest block burns; 0 on chains that burn none."""
        return quantity(self._block("latest").get("baseFeePerGas") or "0x0")

    def transaction_count(self, account: str, which: Which = "latest") -> int:
        """Transactions that an account has sent up to a block: its next nonce there."""
        method, params = account_count(account, which)
        return ordinal(self.request(method, *params))

    def receipt(self, transaction: bytes) -> TransactionReceipt | None:
        """None where the endpoint knows of none."""
        method, params = receipt_request(transaction)
        found = self.request(method, *params)
        if found is None:
            return None
        contract = found.get("contractAddress")
        return TransactionReceipt(
            data(found["transactionHash"], 32), ordinal(found["blockNumber"]), data(found["blockHash"], 32),
            quantity(found["gasUsed"]), quantity(found["status"]) == 1, tuple(found["logs"]), contract and to_checksum_address(contract),
        )  # fmt: skip

    def send_raw(self, raw: bytes) -> None:
        self.request("eth_sendRawTransaction", f"0x{raw.hex()}")

    def _block(self, which: Which) -> Any:
        method, params = numbered_block(which)
        return self.request(method, *params)


def newest_block() -> Request:
    """What Ethereum.block asks."""
    return numbered_block("latest")


def numbered_block(which: Which, *, full: bool = False) -> Request:
    """`full`: with whole transactions."""
    return "eth_getBlockByNumber", (_which(which), full)


def code_request(address: str, which: Which = "latest") -> Request:
    """What Ethereum.code asks."""
    return "eth_getCode", (address, _which(which))


def call_request(transaction: Mapping[str, Any], which: Which) -> Request:
    """What Ethereum.call asks."""
    return _CALL, (transaction, _which(which))


def gas_request(transaction: Mapping[str, Any]) -> Request:
    """What Ethereum.estimate_gas asks."""
    return _ESTIMATE, (transaction,)


def balance_request(address: str) -> Request:
    """What Ethereum.balance asks."""
    return "eth_getBalance", (address, "latest")


def receipt_request(transaction: bytes) -> Request:
    """What Ethereum.receipt asks."""
    return "eth_getTransactionReceipt", (f"0x{transaction.hex()}",)


def account_count(account: str, which: Which = "latest") -> Request:
    """What Ethereum.transaction_count asks."""
    return "eth_getTransactionCount", (account, _which(which))


def quantity(value: object) -> int:
    """The number of a hex quantity. Raises ValueError for anything else, and for more than 256 bits."""
    if not isinstance(value, str) or len(value) > _QUANTITY_CHARS or not _QUANTITY.fullmatch(value):
        raise ValueError(f"{str(value)[:80]!r} is no quantity")
    return int(value, 16)


def ordinal(value: object) -> int:
    """The number or the time of a block, or a count of transactions. Raises ValueError for anything else."""
    found = quantity(value)
    if found.bit_length() > _ORDINAL_BITS:
        raise ValueError(f"{str(value)[:80]!r} is no number or time of a block, and no count")
    return found


def data(value: object, size: int | None = None) -> bytes:
    """The bytes of hex data, `size` of them where that is given. Raises ValueError for anything else."""
    if not isinstance(value, str) or not value.startswith("0x"):
        raise ValueError(f"{str(value)[:80]!r} is no hex data")
    found = bytes.fromhex(value[2:])
    if size is not None and len(found) != size:
        raise ValueError(f"{len(found)} bytes instead of {size}")
    return found


def _which(block: Which) -> str:
    return block if isinstance(block, str) else hex(block)
