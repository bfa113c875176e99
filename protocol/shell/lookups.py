"""An operator's lookups: the way into the network, who claims to provide a service, and where a peer is said to be.

Each is put together from what an explorer hears (protocol/p2p/explorer.py), with the names of those who said it: that is what an
operator needs to know who is wrong. What can be believed, the chain says: `trusted`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from protocol.errors import Malformed, MurmurationError, Unavailable
from protocol.identity import address_of_peer
from protocol.p2p.address import Address, PeerAddress, peer_text
from protocol.p2p.notices import Notice, value_key
from protocol.p2p.routing import Contact
from protocol.p2p.service import Provider, Service
from protocol.p2p.wire import KademliaAnswer
from protocol.shell.location import RunLocation, located_if_told

if TYPE_CHECKING:
    from protocol.chain import Chain
    from protocol.p2p.explorer import Explorer, Greeting
    from protocol.p2p.kademlia import LookupStep
    from protocol.shell.endpoint_check import EndpointCheck
    from protocol.shell.standpoint import Standpoint

OF_TRAINER = ("hub", "origin")
"""Services that the run's trainer alone may provide."""
_SAVED = 8  # saved peers that are tried where no bootnode answers
_CLAIMS = 64  # claimants that are asked, as a role does


@dataclass(frozen=True)
class WayIn:
    """Somebody through whom one may enter. `what` is "bootnode" (of the settings), "bootnode on chain", "bootnode the role knows",
    "saved peer" or "this role"; `greeting` what came of it."""

    known: PeerAddress
    what: str
    greeting: Greeting

    @property
    def problem(self) -> MurmurationError | None:
        return self.greeting.problem

    @property
    def seconds(self) -> float:
        return min((each.seconds for each in self.greeting.dialled), default=0.0)

    def as_json(self) -> dict[str, Any]:
        return {
            "address": str(self.known),
            "what": self.what,
            "answers": self.greeting.answered,
            "seconds": self.seconds,
            "seen_as": self.greeting.seen_as or None,
            "local": self.greeting.local or None,
        } | said(self.problem)


@dataclass(frozen=True)
class Claimant:
    """Somebody who is said to provide a service. `trusted` is None where anybody may provide it, or nobody could say who may."""

    contact: Contact
    address: str | None
    named_by: tuple[bytes, ...]
    trusted: bool | None
    url: str | None
    problem: MurmurationError | None
    check: EndpointCheck | None = None
    notice: str = ""
    """Where its signed notice was found: "kept here" or "from peers". With no `named_by` it alone helped."""

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "notice": self.notice or None,
            "peer": peer_text(self.contact.peer), "address": self.address, "trusted": self.trusted, "url": self.url,
            "addresses": [str(place) for place in self.contact.addresses],
            "named_by": [peer_text(peer) for peer in self.named_by],
        }  # fmt: skip
        if self.check is not None:
            found["check"] = self.check.as_json()
        return found | said(self.problem)


@dataclass
class Whereabouts:
    """Addresses that peers gave for a peer, each with those who did; and what came of dialling them."""

    told: dict[Address, list[bytes]] = field(default_factory=dict)
    greeting: Greeting | None = None

    def as_json(self) -> list[dict[str, Any]]:
        tried = {each.named.address: each for each in (self.greeting.dialled if self.greeting else ())}
        return [
            {"address": str(place), "told_by": [peer_text(peer) for peer in by]}
            | {"answers": place in tried and tried[place].problem is None}
            | said(tried[place].problem if place in tried else None)
            for place, by in self.told.items()
        ]


def said(problem: MurmurationError | None) -> dict[str, str]:
    return {} if problem is None else {"problem": str(problem) or type(problem).__name__}


def chain_address(peer: bytes) -> str | None:
    """None for a peer whose key is of no chain."""
    try:
        return address_of_peer(peer)
    except Malformed:
        return None


async def enter(
    explorer: Explorer, here: Standpoint, met: Callable[[WayIn], None], told: RunLocation | None = None
) -> bool:
    """Through the bootnodes, those that the run's owner has `told` on chain, and those that the role went to besides; where none answers,
    through the running role itself and peers that it saved. Whether anybody answered."""
    bootnodes = dict.fromkeys(here.learned, "bootnode the role knows")
    bootnodes |= dict.fromkeys(told.bootnodes if told else (), "bootnode on chain")
    bootnodes |= dict.fromkeys(here.bootnodes, "bootnode")

    async def through(those: Iterable[PeerAddress], what: str) -> None:
        await explorer.enter(those, lambda known, greeting: met(WayIn(known, bootnodes.get(known, what), greeting)))

    await through(bootnodes, "")
    if not explorer.dht.anchors and here.own is not None:
        await through([here.own], "this role")
    if not explorer.dht.anchors:
        others = [known for known in here.saved if known not in bootnodes]
        await through(random.sample(others, min(_SAVED, len(others))), "saved peer")
    return bool(explorer.dht.anchors)


async def claimants(
    explorer: Explorer,
    service: Service,
    trusted: str | None,
    watch: Callable[[LookupStep], None],
    kept: Iterable[Notice] = (),
) -> list[Claimant]:
    """Who is said to provide a service, and what they say themselves. Only `trusted`, a chain address, is asked where it is given: as a
    role does, to whom crowds of strangers then cost nothing. Its newest signed notice counts too, of those that peers have and the role
    has `kept`."""
    named_by: dict[bytes, list[bytes]] = {}
    mine = value_key(service.key, trusted) if trusted else b""
    notices = [(notice, "kept here") for notice in kept if notice.key == mine]

    def look(step: LookupStep) -> None:
        if isinstance(step.outcome, KademliaAnswer):
            for provider in step.outcome.providers:
                by = named_by.setdefault(provider.peer, [])
                if step.contact.peer not in by:
                    by.append(step.contact.peer)
        watch(step)

    found = await explorer.look_for(
        service.key, look, providers=True, signer=trusted, noticed=lambda notice: notices.append((notice, "from peers"))
    )
    newest, whence = max(notices, key=lambda each: each[0].issued, default=(None, ""))
    if newest:
        others = [each for each in found if each.peer != newest.peer]
        known = [place for each in found if each.peer == newest.peer for place in each.addresses]
        found = [*others, Contact(newest.peer, tuple(dict.fromkeys((*known, *newest.addresses))))]
    may = {contact.peer: trusted is None or chain_address(contact.peer) == trusted for contact in found}
    asked = [contact for contact in found if may[contact.peer]][:_CLAIMS]
    answers = dict(zip((each.peer for each in asked), await explorer.ask(asked, service), strict=True))
    made = []
    for contact in found:
        answer = answers.get(contact.peer)
        made.append(
            Claimant(
                contact=contact,
                address=chain_address(contact.peer),
                named_by=tuple(named_by.get(contact.peer, ())),
                trusted=None if trusted is None else may[contact.peer],
                url=answer.endpoint.http if isinstance(answer, Provider) else None,
                problem=answer if isinstance(answer, MurmurationError) else None,
                notice=whence if newest and contact.peer == newest.peer else "",
            )
        )
    return sorted(made, key=lambda each: (each.trusted is False, each.url is None, each.contact.peer))


def trusted_one(found: Iterable[Claimant]) -> Claimant | None:
    """Whom a role takes: the first that holds the trainer's key and says where it serves, whether it answers there or not."""
    return next((each for each in found if each.trusted and each.url), None)


async def whereabouts(
    explorer: Explorer, peer: bytes, watch: Callable[[LookupStep], None], *, pings: int = 0
) -> Whereabouts:
    """Where peers say that a peer is, and whether it answers there."""
    found = Whereabouts()

    def look(step: LookupStep) -> None:
        if isinstance(step.outcome, KademliaAnswer):
            for closer in step.outcome.closer:
                for place in closer.addresses if closer.peer == peer else ():
                    found.told.setdefault(place, []).append(step.contact.peer)
        watch(step)

    await explorer.look_for(peer, look, providers=False)
    if found.told:
        found.greeting = await explorer.greet(peer, found.told, pings=pings, hearsay=True)
    return found


SETTINGS, CHAIN = "the settings", "the chain"


@dataclass(frozen=True)
class Word:
    """What SETTINGS or CHAIN, not peers, say of where a service of the trainer is. `check` where it was looked
    into, and `used` whether a role goes there."""

    whose: str
    url: str
    used: bool
    check: EndpointCheck | None = None

    @property
    def says(self) -> str:
        """The beginning of a sentence."""
        return f"{self.whose} {'say' if self.whose == SETTINGS else 'says'}"

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"whose": self.whose, "url": self.url or None, "used": self.used}
        return found if self.check is None else found | {"ok": self.check.problem is None} | said(self.check.problem)


def words(here: Standpoint, role: str, told: RunLocation | None, *, found: bool) -> list[Word]:
    """The settings' and the chain's, where a role would go by them: to the settings' always, to the chain's where peers found nothing."""
    if role not in OF_TRAINER:
        return []
    configured, on_chain = here.peers.hub if role == "hub" else here.peers.origin, told.of(role) if told else ""
    made = [Word(SETTINGS, configured, True)] if configured else []
    return [*made, Word(CHAIN, on_chain, bool(on_chain) and not (configured or found))]


def told_of(here: Standpoint, chain: Chain | None) -> RunLocation | None:
    """What the run's owner says on chain; None where that is nothing, or nobody could be asked."""
    return located_if_told(chain, here.chain.run) if chain and here.chain else None


def trainer_of(here: Standpoint) -> tuple[Any, str | None, MurmurationError | None]:
    """The chain, the run's trainer, and what kept it from being asked."""
    if here.chain is None:
        return None, None, None
    try:
        chain = here.chain.open()
        return chain, chain.trainer(here.chain.run), None
    except MurmurationError as error:
        return None, None, error


def service_of(here: Standpoint, role: str) -> Service:
    if here.chain is None:
        raise Unavailable("a bootnode belongs to no run")
    return Service(here.chain.chain_id, here.chain.contract, here.chain.run, role)
