"""Whom a role knows: from its host's last word, its saved peers and its settings, and from a lookup; with what the chain says of each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from protocol.errors import ChainError, Malformed, MurmurationError, Unavailable
from protocol.p2p.address import Address, peer_bytes, peer_text
from protocol.p2p.explorer import Explorer, explore
from protocol.p2p.kademlia import LookupStep
from protocol.p2p.settings import Timing
from protocol.p2p.wire import KademliaAnswer
from protocol.shell.lookups import WayIn, chain_address, claimants, enter, said, service_of, trainer_of
from protocol.shell.standpoint import Standpoint

if TYPE_CHECKING:
    from protocol.chain import Chain

BOOTNODE, UNKNOWN = "bootnode", "unknown"
_SERVING = ("relay", "seeder")
_THREADS = 8
_PEERS_MAX = 256


@dataclass
class Acquaintance:
    """`role` is what the chain says, else what it proved to serve, else "unknown". `seen` is when the running role had an answer of it last;
    `problem` is None where it answered just now, or was not asked (`answers` None)."""

    peer: bytes
    addresses: dict[Address, None] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    role: str = UNKNOWN
    seen: float | None = None
    answers: bool | None = None
    problem: MurmurationError | None = None

    @property
    def address(self) -> str | None:
        return chain_address(self.peer)

    def as_json(self) -> dict[str, Any]:
        return {
            "peer": peer_text(self.peer), "address": self.address, "role": self.role, "seen": self.seen,
            "answers": self.answers, "addresses": [str(place) for place in self.addresses], "known_from": self.sources,
        } | said(self.problem)  # fmt: skip


class Acquaintances:
    def __init__(self, here: Standpoint) -> None:
        self._here = here
        self.known: dict[bytes, Acquaintance] = {}
        self.notes: list[str] = []
        self.problem: tuple[str, str] | None = None
        """What is wrong where nobody is known or nobody answered, and what to do about it; set by `judge`."""
        self.hint = ""
        """What there is to say where nobody is known and nothing is wrong."""
        self._chain_problem: MurmurationError | None = None
        self._asked = False
        for known in here.bootnodes:
            self._add(known.peer, [known.address], "settings").role = BOOTNODE
        for known in here.learned:
            self._add(known.peer, [known.address], "bootnodes").role = BOOTNODE
        for entry in here.said.get("peers", []):
            try:
                peer, places = peer_bytes(entry["peer"]), [Address.parse(text) for text in entry["addresses"]]
                seen = float(entry["seen"])
            except (Malformed, KeyError, TypeError, ValueError):
                continue
            self._add(peer, places, "table").seen = seen
        for known in here.saved:
            self._add(known.peer, [known.address], "saved")

    def _add(self, peer: bytes, places: list[Address], source: str) -> Acquaintance:
        found = self.known.setdefault(peer, Acquaintance(peer))
        found.addresses.update(dict.fromkeys(places))
        if source not in found.sources:
            found.sources.append(source)
        return found

    def look_around(self, *, seconds: float, timing: Timing = Timing()) -> None:
        """Adds whom a lookup meets, and notes who answers."""
        self._asked = True

        def met(way: WayIn) -> None:
            self._answered(way.known.peer, [way.known.address], way.problem)

        def watch(step: LookupStep) -> None:
            problem = None if isinstance(step.outcome, KademliaAnswer) else step.outcome
            self._answered(step.contact.peer, [*step.contact.addresses], problem)

        async def look(explorer: Explorer) -> None:
            if not await enter(explorer, self._here, met):
                return
            own = self._here.peer
            await explorer.look_for(peer_bytes(own) if own else explorer.dht.peer, watch, providers=False)
            for role in _SERVING if self._here.chain else ():
                for claimant in await claimants(explorer, service_of(self._here, role), None, watch):
                    if claimant.url:
                        self._add(claimant.contact.peer, [*claimant.contact.addresses], "lookup").role = role

        try:
            explore(look, seconds=seconds, loopback=self._here.is_local, timing=timing)
        except Unavailable as error:
            self.notes.append(f"not everybody was asked: {error}")
        if self._here.peer:
            self.known.pop(peer_bytes(self._here.peer), None)

    def _answered(self, peer: bytes, places: list[Address], problem: MurmurationError | None) -> None:
        found = self._add(peer, places, "lookup")
        if problem is None or found.answers is None:
            found.answers, found.problem = problem is None, problem

    def ask_chain(self) -> None:
        """Adds what the chain says of each key."""
        chain, trainer, problem = trainer_of(self._here)
        if problem is not None:
            self.notes.append(f"of roles on chain nothing is known: {problem}")
            self._chain_problem = problem
        if chain is None or self._here.chain is None:
            return
        run = self._here.chain.run
        asked = {each.address: each for each in self.known.values() if each.address}
        try:
            now = chain.block().time
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="chain") as pool:
                addresses = [address for address in asked if address][:_PEERS_MAX]
                roles = pool.map(lambda address: role_on_chain(chain, run, address, now, trainer), addresses)
                for address, role in zip(addresses, roles, strict=True):
                    if role != UNKNOWN:
                        asked[address].role = role
        except ChainError as error:
            self.notes.append(f"of roles on chain not all is known: {error}")
            self._chain_problem = error

    @property
    def exit_code(self) -> int:
        if self.problem:
            return Unavailable.exit_code
        return self._chain_problem.exit_code if self._chain_problem else 0

    def judge(self) -> None:
        """Called last."""
        here = self._here
        if not self.known and here.role == "bootnode" and here.running:
            self.hint = "nobody has come yet: the first bootnode waits for others"
        elif not self.known and here.role == "bootnode":
            self.problem = ("nobody is known", here.start)
        elif not self.known:
            then = "" if here.running else f", then {here.start}"
            self.problem = ("nobody is known", f"put {here.setting('bootnodes')} into the config file{then}")
        elif self._asked and not any(each.answers for each in self.known.values()):
            advice = "murmur net ping ADDRESS for each; ask the run's owner for bootnodes that run"
            if here.role == "bootnode" and not here.running:  # others come back to it
                advice = here.start
            self.problem = ("nobody was met: no bootnode and no saved peer answers", advice)

    def listed(self) -> list[Acquaintance]:
        """Those that answered first, then who was seen last."""
        return sorted(
            self.known.values(), key=lambda each: (not each.answers, each.role == UNKNOWN, -(each.seen or 0), each.peer)
        )


def role_on_chain(chain: Chain, run: int, address: str, now: int, trainer: str | None) -> str:
    """What a key is in a run: "trainer", "validator", "node", "banned node", "node that left" or "unknown". `now` in block time. Raises ChainError."""
    from protocol.chain.types import Role

    if address == trainer:
        return "trainer"
    if chain.validator(run, address).serves(now):
        return "validator"
    seat = chain.seat(run, address)
    if seat.serves(now):
        return "node"
    return {Role.LEFT: "node that left", Role.BANNED: "banned node"}.get(seat.role, UNKNOWN)
