"""Calling on one peer: found by a multiaddr, by its PeerID, or by the chain address of its key; then dialled and asked who it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from protocol.errors import IntegrityError, MurmurationError, Unavailable
from protocol.p2p.address import Address, peer_text
from protocol.p2p.explorer import Explorer, Greeting, explore
from protocol.p2p.routing import Contact
from protocol.p2p.service import Provider
from protocol.p2p.settings import Timing
from protocol.shell.acquaintances import Acquaintances
from protocol.shell.lookups import chain_address, claimants, enter, said, service_of, whereabouts
from protocol.shell.standpoint import Standpoint, parse_peer
from protocol.shell.trace import SERVICES, parse_peer_id, require_way_in

_CHAIN_ADDRESS = re.compile("0x[0-9a-fA-F]{40}")
BOOK = "chain.sqlite"


@dataclass(frozen=True)
class PeerCall:
    """`found` says where the addresses came from; `provides` is by role, what it says that it serves in the run."""

    peer: bytes
    found: str
    greeting: Greeting
    provides: dict[str, str]

    @property
    def problem(self) -> MurmurationError | None:
        """What a command ends with."""
        if self.greeting.problem is None and self.greeting.lost:
            return Unavailable("it took the connection, and a ping was not answered")
        return self.greeting.problem

    def as_json(self) -> dict[str, Any]:
        greeting = self.greeting
        dialled: list[dict[str, Any]] = [
            {
                "address": str(each.named.address), "ip": str(each.ip) if each.ip else None, "seconds": each.seconds,
                "answers": each.problem is None,
            } | said(each.problem)
            for each in greeting.dialled
        ]  # fmt: skip
        return {
            "peer": peer_text(self.peer), "address": chain_address(self.peer), "found": self.found, "dialled": dialled,
            "answers": greeting.answered, "round_trips": greeting.round_trips, "lost": greeting.lost,
            "agent": greeting.agent or None, "protocols": greeting.protocols, "seen_as": greeting.seen_as or None,
            "provides": self.provides,
        } | said(self.problem)  # fmt: skip


def call(here: Standpoint, whom: str, *, count: int, seconds: float, timing: Timing = Timing()) -> PeerCall:
    """Raises UsageError or ConfigError for a `whom` that is none, Unavailable for a peer of which no address is known."""
    if "/" in whom:
        known = parse_peer(whom)
        return _explore(here, seconds, timing, lambda explorer: _given(explorer, known.peer, [known.address]), count)
    acquaintances = Acquaintances(here)
    if not _CHAIN_ADDRESS.fullmatch(whom):
        peer = parse_peer_id(whom)
    else:
        require_way_in(here)
        found = next((each.peer for each in acquaintances.known.values() if _is(each.peer, whom)), None)
        peer = found or _in_book(here, whom) or b""
    require_way_in(here)
    entry = acquaintances.known.get(peer)
    places = list(entry.addresses) if entry else []
    return _explore(here, seconds, timing, lambda explorer: _looked_up(explorer, here, peer, places, whom), count)


def _is(peer: bytes, address: str) -> bool:
    return (chain_address(peer) or "").lower() == address.lower()


def _in_book(here: Standpoint, address: str) -> bytes | None:
    """The PeerID that the key's seat was taken with, out of the book that a validator or hub keeps."""
    from eth_utils import to_checksum_address

    from protocol.chain.events import Joined
    from protocol.chain.view import View

    if here.data is None or not (here.data / BOOK).exists():
        return None
    try:
        view = View.read(here.data / BOOK)
        events = view.events(Joined, to_checksum_address(address))
        view.close()
    except IntegrityError:
        return None
    return bytes(events[-1].data.peer) if events else None


_Found = tuple[bytes, list[Address], str, bool]
"""Whom to greet, at which addresses, where these come from, and whether that is hearsay."""


async def _given(explorer: Explorer, peer: bytes, places: list[Address]) -> _Found:
    return peer, places, "as given", False


async def _looked_up(explorer: Explorer, here: Standpoint, peer: bytes, places: list[Address], whom: str) -> _Found:
    """What the role knows is dialled beside what peers tell."""
    entered = await enter(explorer, here, lambda way: None)
    if not entered and not places:
        raise Unavailable(
            "no address of it is known here, and nobody could be asked: no bootnode and no saved peer answers",
            hint=f"{here.command('murmur net status')} says what is wrong with each",
        )
    if not peer:
        for role in SERVICES if entered and here.chain else ():
            for each in await claimants(explorer, service_of(here, role), whom, lambda step: None):
                if _is(each.contact.peer, whom):
                    return each.contact.peer, list(each.contact.addresses), f"named as {role} by peers", True
        raise Unavailable(
            "nobody that is known here, and nobody who serves in this run, holds that key",
            hint="a chain address says nothing of where a peer is: give its PeerID, or a multiaddr",
        )
    told = list((await whereabouts(explorer, peer, lambda step: None)).told) if entered else []
    if not places and not told:
        raise Unavailable(
            "nobody that was asked knows where it is",
            hint="murmur net trace PEERID shows who was asked; who only asks or cannot be reached is in no table",
        )
    found = " and ".join(["known to this role"] * bool(places) + ["told by peers"] * bool(told))
    return peer, list(dict.fromkeys([*places, *told])), found, True


def _explore(here: Standpoint, seconds: float, timing: Timing, find: Any, count: int) -> PeerCall:
    async def task(explorer: Explorer) -> PeerCall:
        peer, places, found, hearsay = await find(explorer)
        greeting = await explorer.greet(peer, places, pings=count, hearsay=hearsay)
        provides = {}
        for role in SERVICES if greeting.answered and here.chain else ():
            (answer,) = await explorer.ask([Contact(peer, tuple(places))], service_of(here, role))
            if isinstance(answer, Provider):
                provides[role] = answer.endpoint.http
        return PeerCall(peer, found, greeting, provides)

    return explore(task, seconds=seconds, loopback=here.is_local, timing=timing)
