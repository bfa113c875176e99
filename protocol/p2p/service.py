"""What is looked for and what is found: a role in a run, what a provider says about itself, and who it proved to be.

A service's DHT key is a SHA-256 multihash of its name, so a provider record is an ordinary Kademlia one.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from protocol import canonical
from protocol.errors import Malformed
from protocol.http_url import wrong_url

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress

ENDPOINT_BYTES_MAX: Final = 4096
"""Cap on an endpoint's canonical JSON. Changing it breaks: nothing below the cap."""

_SHA256_MULTIHASH: Final = b"\x12\x20"
_ROLE = re.compile(r"[a-z][a-z0-9-]{0,31}")
_CONTRACT = re.compile(r"0x[0-9a-f]{40}")


@dataclass(frozen=True)
class Service:
    """A role ("relay", "hub", …) of a run of a contract. Raises ValueError for anything that is none."""

    chain_id: int
    contract: str
    run: int
    role: str

    def __post_init__(self) -> None:
        if self.chain_id < 1 or self.run < 0 or self.run >= 1 << 256:
            raise ValueError(f"chain {self.chain_id}, run {self.run}: no such service")
        if not _CONTRACT.fullmatch(self.contract.lower()):
            raise ValueError(f"{self.contract!r} is no contract address")
        if not _ROLE.fullmatch(self.role):
            raise ValueError(f"{self.role!r} is no role")

    @property
    def name(self) -> str:
        return f"murmuration/{self.chain_id}/{self.contract.lower()}/{self.run}/{self.role}"

    @property
    def key(self) -> bytes:
        """The DHT key, 34 bytes."""
        return _SHA256_MULTIHASH + hashlib.sha256(self.name.encode()).digest()

    def __str__(self) -> str:
        return f"{self.role} of run {self.run}"


@dataclass(frozen=True)
class Endpoint:
    """What a provider says about itself: where it serves HTTP. Raises ValueError unless it would parse."""

    role: str
    run: int
    http: str

    def __post_init__(self) -> None:
        problem = _wrong_role_or_run(self.role, self.run) or wrong_url(self.http)
        if problem:
            raise ValueError(problem)

    def encode(self) -> bytes:
        return canonical.encode({"http": self.http, "role": self.role, "run": str(self.run)})

    @classmethod
    def decode(cls, data: bytes) -> Endpoint:
        """Raises Oversized or Malformed for anything `encode` would not have made."""
        value = canonical.decode(data, cap=ENDPOINT_BYTES_MAX, what="endpoint")
        if not isinstance(value, dict) or value.keys() != {"http", "role", "run"}:
            raise Malformed("endpoint is not an object of http, role and run")
        role, run, http = value["role"], value["run"], value["http"]
        if not (isinstance(role, str) and isinstance(run, str) and isinstance(http, str)):
            raise Malformed("endpoint has a value that is not text")
        if not re.fullmatch(r"0|[1-9][0-9]{0,77}", run):
            raise Malformed("endpoint names no run")
        try:
            return cls(role=role, run=int(run), http=http)
        except ValueError as error:
            raise Malformed(f"endpoint: {error}") from error


@dataclass(frozen=True)
class Provider:
    """One answer: `peer_id` and `address` are proven by the connection it came over, `endpoint` is its word."""

    peer_id: str
    address: ChecksumAddress
    endpoint: Endpoint


def _wrong_role_or_run(role: Any, run: Any) -> str:
    if not _ROLE.fullmatch(role):
        return f"{role[:64]!r} is no role"
    if isinstance(run, bool) or not 0 <= run < 1 << 256:
        return "no such run"
    return ""
