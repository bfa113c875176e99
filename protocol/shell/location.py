"""Where a run's hub, the origin of its weights and bootnodes are, as its owner says on chain: a way in that needs no peer.

Canonical JSON of at most 512 bytes, which the contract does not read: {"bootnodes": [multiaddr, …], "hub": URL, "origin": URL}, each of
them if the owner likes. The owner's word is no proof: what is served there must prove itself, as wherever it was found.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from protocol import canonical
from protocol.chain import Chain
from protocol.errors import Malformed, MurmurationError, ProtocolViolation, UsageError
from protocol.p2p.address import PeerAddress
from protocol.p2p.service import Endpoint

log = logging.getLogger(__name__)

LOCATION_BYTES_MAX: Final = 512
"""Cap on a location's canonical JSON; contracts/src/Locations.sol has it too. Changing it breaks: nothing below the cap."""

_URLS: Final = ("hub", "origin")


@dataclass(frozen=True)
class RunLocation:
    """Empty where the owner says nothing. Raises ValueError for URLs that are none."""

    hub: str = ""
    origin: str = ""
    bootnodes: tuple[PeerAddress, ...] = ()

    def __post_init__(self) -> None:
        for role in _URLS:
            if url := self.of(role):
                check_url(role, url)

    def of(self, role: str) -> str:
        """The URL of the hub or the origin, or nothing."""
        return {"hub": self.hub, "origin": self.origin}.get(role, "")

    def encode(self) -> bytes:
        """Raises ValueError for one that is too long, or says nothing."""
        fields: dict[str, object] = {role: self.of(role) for role in _URLS if self.of(role)}
        if self.bootnodes:
            fields["bootnodes"] = [str(known) for known in self.bootnodes]
        data = canonical.encode(fields)
        if not fields or len(data) > LOCATION_BYTES_MAX:
            raise ValueError(
                f"a location has 1 to {LOCATION_BYTES_MAX} bytes; this one has {len(data) if fields else 0}"
            )
        return data

    @classmethod
    def decode(cls, data: bytes) -> RunLocation:
        """Raises Oversized or Malformed for anything `encode` would not have made."""
        value = canonical.decode(data, cap=LOCATION_BYTES_MAX, what="location")
        if not isinstance(value, dict) or not value or value.keys() - {*_URLS, "bootnodes"}:
            raise Malformed("a location is not an object of hub, origin and bootnodes")
        urls = {role: value[role] for role in _URLS if role in value}
        texts = value.get("bootnodes", [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in [*urls.values(), *texts]):
            raise Malformed("a location has a value that is not text")
        try:
            made = cls(**urls, bootnodes=tuple(map(PeerAddress.parse, texts)))
            again = made.encode()
        except ValueError as error:
            raise Malformed(f"a location: {error}") from error
        if again != data:
            raise Malformed("a location is written in another way than ours")
        return made

    @property
    def lines(self) -> list[str]:
        """A line for each thing it says."""
        return [f"{role} at {url}" for role in _URLS if (url := self.of(role))] + [
            f"bootnode {known}" for known in self.bootnodes
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "hub": self.hub or None,
            "origin": self.origin or None,
            "bootnodes": [str(known) for known in self.bootnodes],
        }


def wanted(hub: str, origin: str, bootnodes: Iterable[str], *, off: bool) -> RunLocation | None:
    """What an owner typed; None to take back what was said. Raises UsageError."""
    named = tuple(bootnodes)
    if off and (hub or origin or named):
        raise UsageError("--off stands alone", hint="what is said replaces all that was said before")
    try:
        made = None if off else RunLocation(hub, origin, tuple(map(PeerAddress.parse, named)))
        if made:
            made.encode()
    except (ValueError, Malformed) as error:
        raise UsageError(
            str(error), hint="as https://hub.example or http://203.0.113.7:8200, and /dns4/…/tcp/4001/p2p/16Uiu2…"
        ) from None
    return made


def check_url(role: str, url: str) -> None:
    """Raises ValueError unless a hub or an origin may be at `url`."""
    try:
        Endpoint(role, 0, url)
    except ValueError as error:
        raise ValueError(f"{role}: {error}") from None


def located(chain: Chain, run: int) -> RunLocation | None:
    """What the owner of `run` says; None where that is nothing, or nothing that can be read. Raises RpcUnavailable."""
    said = chain.located(run)
    if not said:
        return None
    try:
        return RunLocation.decode(said)
    except ProtocolViolation as error:
        log.warning("the chain says where run %d is in a form that is not known here: %s", run, error)
        return None


def located_if_told(chain: Chain, run: int, otherwise: RunLocation | None = None) -> RunLocation | None:
    """As `located`; `otherwise` where the chain does not answer. Raises nothing: peers are the usual way."""
    try:
        return located(chain, run)
    except MurmurationError as error:
        log.warning("the chain does not say where run %d is: %s", run, error)
        return otherwise
