"""A signed transaction as bytes: EIP-1559 (type 2) within the typed envelope of EIP-2718, with an empty access list."""

from __future__ import annotations

from dataclasses import dataclass

import rlp
from eth_utils import keccak, to_canonical_address

from protocol.identity import Key

_TYPE = b"\x02"


@dataclass(frozen=True)
class Envelope:
    chain_id: int
    nonce: int
    tip: int
    """maxPriorityFeePerGas in wei."""
    fee: int
    """maxFeePerGas in wei."""
    gas: int
    target: str | None
    """Address called; None creates a contract."""
    data: bytes

    def sign(self, key: Key) -> bytes:
        """The raw transaction; its keccak256 is its hash."""
        target = b"" if self.target is None else to_canonical_address(self.target)
        fields = [self.chain_id, self.nonce, self.tip, self.fee, self.gas, target, 0, self.data, []]
        signature = key.sign(keccak(_TYPE + rlp.encode(fields)))
        r, s = (int.from_bytes(signature[at : at + 32], "big") for at in (0, 32))
        return _TYPE + rlp.encode([*fields, signature[64] - 27, r, s])
