"""Invites: a gated run lets a node take a seat only with its gate's word, signed for that node until a block time.

`murmur run invite` signs one, `node stake --invite` hands it in. As text it is one word that survives any messenger,
RUN:NODE:DEADLINE:SIGNATURE, addresses and bytes in hex. The signature binds chain and contract as well (signing.py, Invite).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eth_utils import to_checksum_address

from protocol.errors import Malformed
from protocol.identity import Key
from protocol.signing import Domain, Invite

_BYTES_MAX = 4096
"""Of a signature: that of a contract (ERC-1271) may be longer than a key's 65."""


@dataclass(frozen=True)
class SignedInvite:
    invite: Invite
    signature: bytes

    @classmethod
    def sign(cls, invite: Invite, gate: Key, domain: Domain) -> SignedInvite:
        return cls(invite, invite.sign(gate, domain))

    @property
    def text(self) -> str:
        i = self.invite
        return f"{i.run}:{i.node}:{i.deadline}:0x{self.signature.hex()}"

    def as_json(self) -> dict[str, Any]:
        """All of it, and `invite`, the same as one word."""
        i = self.invite
        return {
            "run": i.run, "node": i.node, "deadline": i.deadline, "signature": "0x" + self.signature.hex(),
            "invite": self.text,
        }  # fmt: skip

    @classmethod
    def parse(cls, text: str) -> SignedInvite:
        """Raises Malformed. Whether the gate signed it is for the caller."""
        try:
            run, node, deadline, signature = text.strip().split(":")
            invite = Invite(_number(run), to_checksum_address(node), _number(deadline))
            signed = bytes.fromhex(signature.removeprefix("0x"))
        except ValueError as error:
            raise Malformed("this is no invite: one is RUN:NODE:DEADLINE:SIGNATURE, in one word") from error
        if not 0 < len(signed) <= _BYTES_MAX:
            raise Malformed("the invite carries no signature")
        return cls(invite, signed)


def _number(text: str) -> int:
    """Raises ValueError for anything but the digits of a uint256, written the shortest way."""
    if (
        not text.isascii()
        or not text.isdigit()
        or len(text) > 78
        or (number := int(text)) >= 1 << 256
        or str(number) != text
    ):
        raise ValueError(f"{text[:80]!r} is no number")
    return number
