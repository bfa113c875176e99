"""EIP-712 messages: everything one party signs for another, each with one type of its own.

The domain binds a signature to chain and contract, the `run` field to the run: a message signed for one can never be
replayed to another. `Join`, `Invite`, `Verdict` and `Voucher` are checked by the contracts, the others by Python only.
Vectors shared with Solidity: tests/vectors/eip712.json.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from eth_account import Account
from eth_account.messages import SignableMessage, encode_typed_data
from eth_keys.exceptions import BadSignature as CurveMismatch
from eth_keys.exceptions import ValidationError
from eth_typing import ChecksumAddress
from eth_utils import keccak

from protocol.constants import EIP712_NAME, EIP712_VERSION
from protocol.errors import BadSignature
from protocol.identity import Key

_HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0


@dataclass(frozen=True)
class Domain:
    """Where signatures count: a chain and its Runs contract."""

    chain_id: int
    contract: ChecksumAddress

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": EIP712_NAME,
            "version": EIP712_VERSION,
            "chainId": self.chain_id,
            "verifyingContract": self.contract,
        }


class Typed:
    """Base of all messages: `SOLIDITY` gives the type of each dataclass field, in order; its name is the struct's."""

    SOLIDITY: ClassVar[tuple[str, ...]]

    def _encoded(self, domain: Domain) -> SignableMessage:
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        types = {type(self).__name__: [{"name": n, "type": t} for n, t in zip(names, self.SOLIDITY, strict=True)]}
        return encode_typed_data(domain.as_dict(), types, {name: getattr(self, name) for name in names})

    def signing_hash(self, domain: Domain) -> bytes:
        """The 32 bytes that are signed."""
        message = self._encoded(domain)
        return keccak(b"\x19" + message.version + message.header + message.body)

    def sign(self, key: Key, domain: Domain) -> bytes:
        """65 bytes r, s, v."""
        return bytes(key.account.sign_message(self._encoded(domain)).signature)

    def signer(self, signature: bytes, domain: Domain) -> ChecksumAddress:
        """Who signed. Raises BadSignature for anything but 65 bytes with v of 27 or 28 and s in the lower half."""
        if len(signature) != 65 or signature[64] not in (27, 28):
            raise BadSignature("a signature has 65 bytes and ends in 27 or 28")
        if int.from_bytes(signature[32:64], "big") > _HALF_ORDER:
            raise BadSignature("signature is malleable (s in the upper half)")
        try:
            return Account._recover_hash(self.signing_hash(domain), signature=signature)
        except (ValueError, CurveMismatch, ValidationError) as error:
            raise BadSignature("signature matches no key") from error

    def require(self, signature: bytes, domain: Domain, expected: ChecksumAddress, what: str) -> None:
        """Raises BadSignature unless `expected` signed."""
        actual = self.signer(signature, domain)
        if actual != expected:
            raise BadSignature(f"{what} is signed by {actual}, not by {expected}")


@dataclass(frozen=True)
class Join(Typed):
    """A node's consent to work in `run` for `operator`; `peer` is keccak256 of its PeerID bytes."""

    SOLIDITY = ("uint256", "address", "address", "bytes32", "uint8", "uint256")
    run: int
    operator: str
    node: str
    peer: bytes
    hardware: int
    deadline: int


@dataclass(frozen=True)
class Write(Typed):
    """One write to the hub: `body` is SHA-256 of what is sent, `expiry` in block time (seconds)."""

    SOLIDITY = ("uint256", "string", "string", "bytes32", "bytes32", "uint64")
    run: int
    method: str
    path: str
    body: bytes
    nonce: bytes
    expiry: int


@dataclass(frozen=True)
class StorageReceipt(Typed):
    """The hub's promise that it holds the `size` bytes that hash to `root`; `time` in block time (seconds)."""

    SOLIDITY = ("uint256", "bytes32", "bytes32", "uint64", "uint64")
    run: int
    work: bytes
    root: bytes
    size: int
    time: int


@dataclass(frozen=True)
class Verdict(Typed):
    """A validator's judgement of one work; `details` is SHA-256 of the receipt's canonical JSON (protocol/verdict.py).

    Bit i of `samples` stands for sample i of the file: it was checked (accept) or found false (soft, hard).
    """

    SOLIDITY = ("uint256", "bytes32", "uint8", "uint256", "bytes32")
    run: int
    work: bytes
    outcome: int
    samples: int
    details: bytes


@dataclass(frozen=True)
class Invite(Typed):
    """The gate of a run lets a node take a seat until `deadline` (block time)."""

    SOLIDITY = ("uint256", "address", "uint256")
    run: int
    node: str
    deadline: int


@dataclass(frozen=True)
class Voucher(Typed):
    """The run owes a validator `total` in all, what was paid before included; `Wages.redeem` pays the difference."""

    SOLIDITY = ("uint256", "address", "uint256")
    run: int
    validator: str
    total: int


@dataclass(frozen=True)
class Manifest(Typed):
    """The trainer's word that `digest` (SHA-256 of the manifest's canonical JSON) is version `step` of the weights."""

    SOLIDITY = ("uint256", "uint32", "bytes32")
    run: int
    step: int
    digest: bytes
