"""EIP-712 messages: everything one party signs for another, each with one type of its own.

The domain binds a signature to chain and contract, the `run` field to the run: a message signed for one can never be
replayed to another. `Join`, `Invite`, `Verdict` and `Voucher` are checked by the contracts, the others by Python only.
Vectors shared with Solidity: tests/vectors/eip712.json.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar

from eth_abi import encode
from eth_keys.datatypes import Signature
from eth_keys.exceptions import BadSignature as CurveMismatch
from eth_keys.exceptions import ValidationError
from eth_typing import ChecksumAddress
from eth_utils import keccak

from protocol.constants import EIP712_NAME, EIP712_VERSION
from protocol.errors import BadSignature, Malformed
from protocol.identity import Key

_SIGNATURE = re.compile(r"[0-9a-f]{130}")
_DOMAIN = (("string", "name"), ("string", "version"), ("uint256", "chainId"), ("address", "verifyingContract"))
_HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0


@dataclass(frozen=True)
class Domain:
    """Where signatures count: a chain and its Runs contract."""

    chain_id: int
    contract: ChecksumAddress

    @cached_property
    def separator(self) -> bytes:
        """The 32 bytes that stand for it in every message."""
        members = ",".join(f"{kind} {name}" for kind, name in _DOMAIN)
        values = (EIP712_NAME, EIP712_VERSION, self.chain_id, self.contract)
        return _struct_hash(f"EIP712Domain({members})", [kind for kind, _ in _DOMAIN], values)


def _struct_hash(kind: str, types: Sequence[str], values: Sequence[object]) -> bytes:
    """keccak256 of a flat struct; `kind` is its name with the members in parentheses."""
    words = [keccak(text=str(value)) if t == "string" else value for t, value in zip(types, values, strict=True)]
    return keccak(keccak(text=kind) + encode([t if t != "string" else "bytes32" for t in types], words))


class Typed:
    """Base of all messages: `SOLIDITY` gives the type of each dataclass field, in order; its name is the struct's."""

    SOLIDITY: ClassVar[tuple[str, ...]]

    def _values(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def signing_hash(self, domain: Domain) -> bytes:
        """The 32 bytes that are signed."""
        values = self._values()
        members = ",".join(f"{kind} {name}" for kind, name in zip(self.SOLIDITY, values, strict=True))
        content = _struct_hash(f"{type(self).__name__}({members})", self.SOLIDITY, list(values.values()))
        return keccak(b"\x19\x01" + domain.separator + content)

    def typed_data(self, domain: Domain) -> dict[str, object]:
        """The same for a wallet to show and sign, as `eth_signTypedData_v4` takes it; numbers are decimal text, as more than JSON readers count exactly."""
        of = self._values()
        return {
            "types": {
                "EIP712Domain": [{"name": name, "type": kind} for kind, name in _DOMAIN],
                type(self).__name__: [{"name": name, "type": kind} for kind, name in zip(self.SOLIDITY, of, strict=True)],
            },
            "primaryType": type(self).__name__,
            "domain": {
                "name": EIP712_NAME, "version": EIP712_VERSION, "chainId": str(domain.chain_id),
                "verifyingContract": domain.contract,
            },
            "message": {name: f"0x{value.hex()}" if isinstance(value, bytes) else str(value) for name, value in of.items()},
        }  # fmt: skip

    def sign(self, key: Key, domain: Domain) -> bytes:
        """65 bytes r, s, v."""
        return key.sign(self.signing_hash(domain))

    def signer(self, signature: bytes, domain: Domain) -> ChecksumAddress:
        """Who signed. Raises BadSignature for anything but 65 bytes with v of 27 or 28 and s in the lower half."""
        if len(signature) != 65 or signature[64] not in (27, 28):
            raise BadSignature("a signature has 65 bytes and ends in 27 or 28")
        if int.from_bytes(signature[32:64], "big") > _HALF_ORDER:
            raise BadSignature("signature is malleable (s in the upper half)")
        try:
            recoverable = Signature(signature[:64] + bytes([signature[64] - 27]))
            public = recoverable.recover_public_key_from_msg_hash(self.signing_hash(domain))
            return public.to_checksum_address()
        except (ValueError, CurveMismatch, ValidationError) as error:
            raise BadSignature("signature matches no key") from error

    def require(self, signature: bytes, domain: Domain, expected: ChecksumAddress, what: str) -> None:
        """Raises BadSignature unless `expected` signed."""
        actual = self.signer(signature, domain)
        if actual != expected:
            raise BadSignature(f"{what} is signed by {actual}, not by {expected}")


def signature_of(value: object, what: str) -> bytes:
    """The 65 bytes of a signature as JSON holds it: 130 hex digits, lower-case, so that a message has one form only. Raises Malformed, with
    `what` it is the signature of."""
    if not isinstance(value, str) or not _SIGNATURE.fullmatch(value):
        raise Malformed(f"the signature of {what} is not 130 lower-case hex digits")
    return bytes.fromhex(value)


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
    submission: bytes
    root: bytes
    size: int
    time: int


@dataclass(frozen=True)
class Verdict(Typed):
    """A validator's judgement of one submission; `details` is SHA-256 of the receipt's canonical JSON (protocol/verdict.py).

    Bit i of `samples` stands for sample i of the file: it was checked (accept) or found false (soft, hard).
    """

    SOLIDITY = ("uint256", "bytes32", "uint8", "uint256", "bytes32")
    run: int
    submission: bytes
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
    """The run owes a validator `total` in all, what was paid before included; `Vouchers.redeem` pays the difference."""

    SOLIDITY = ("uint256", "address", "uint256")
    run: int
    validator: str
    total: int


@dataclass(frozen=True)
class Need(Typed):
    """What the trainer still wants (hub/need.py says what each number means); it holds until `until`, in block time (seconds)."""

    SOLIDITY = ("uint256", "uint32", "uint32", "uint32", "uint32", "uint32", "uint32", "uint32", "uint64")
    run: int
    step: int
    last: int
    groups: int
    ahead: int
    ready: int
    settled: int
    usable: int
    until: int


@dataclass(frozen=True)
class PublishedManifest(Typed):
    """The trainer's word that `digest` (SHA-256 of the manifest's canonical JSON) is version `step` of the weights."""

    SOLIDITY = ("uint256", "uint32", "bytes32")
    run: int
    step: int
    digest: bytes


@dataclass(frozen=True)
class PublishedHead(Typed):
    """The trainer's word that the chain has version `step`, whose manifest has this digest. Whoever has a manifest has no such word."""

    SOLIDITY = ("uint256", "uint32", "bytes32")
    run: int
    step: int
    digest: bytes


@dataclass(frozen=True)
class ListedChunks(Typed):
    """The trainer's word on a version that it is still writing: `chunks` of it are finished, and the SHA-256 of their BLAKE3 hashes is
    `listed`; `opening` is SHA-256 of what says which files these are of (protocol/shardcast/opening.py)."""

    SOLIDITY = ("uint256", "uint32", "bytes32", "uint32", "bytes32")
    run: int
    step: int
    opening: bytes
    chunks: int
    listed: bytes
