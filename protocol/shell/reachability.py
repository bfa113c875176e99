"""Why nobody finds this role, or it finds nobody: what it says of itself, and what a stranger beside it sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import httpx

from protocol.deadline import Transport, within
from protocol.errors import ChainError, MurmurationError, Unavailable
from protocol.p2p.address import Address, peer_bytes
from protocol.p2p.explorer import Dialled, Explorer, explore
from protocol.p2p.kademlia import LookupStep
from protocol.p2p.settings import Timing
from protocol.p2p.wire import KademliaAnswer
from protocol.shell.connection import RELAY, SEEDER
from protocol.shell.endpoint_check import RESERVE_SECONDS, EndpointCheck, check
from protocol.shell.location import RunLocation
from protocol.shell.lookups import (
    CHAIN,
    Claimant,
    WayIn,
    Whereabouts,
    Word,
    claimants,
    enter,
    service_of,
    told_of,
    trainer_of,
    trusted_one,
    whereabouts,
    words,
)
from protocol.shell.standpoint import Standpoint

if TYPE_CHECKING:
    from protocol.chain import Chain
    from protocol.chain.types import Publication

_METRICS_SECONDS = 3.0
_METRICS_BYTES_MAX = 4 << 20
_FETCHED = "murmur_weights_fetched_bytes_total{source="
_SERVED = "murmur_shardcast_served_bytes_total"
SERVICES = ("hub", "relay")
_WEIGHTS = (RELAY, SEEDER)
_RELAYS_TRIED = 16
_RELAYS_AT_ONCE = 8
_RELAY_SECONDS = 4.0  # for one of them


@dataclass
class Reachability:
    here: Standpoint
    ways: list[WayIn] = field(default_factory=list)
    asked: int = 0
    answered: int = 0
    outside: Whereabouts | None = None
    """Where others say this role is; None where it was not asked."""
    announced: list[Dialled] = field(default_factory=list)
    """What came of dialling where a running bootnode announces itself, by address and by what a name led to."""
    services: dict[str, list[Claimant]] = field(default_factory=dict)
    hub_check: EndpointCheck | None = None
    """What came of asking the hub to which a role goes."""
    reserve: dict[str, EndpointCheck] = field(default_factory=dict)
    """The same of URLs at which the hub would be by words that are not needed now."""
    served_at: list[EndpointCheck] = field(default_factory=list)
    """Where the running role says that it serves weights, each tried from here."""
    head: Publication | None = None
    """The newest version that the chain knows, where the role is one that serves them."""
    trainer: str | None = None
    told: RunLocation | None = None
    """What the run's owner says on chain."""
    chain_problem: MurmurationError | None = None
    """What kept the chain from being asked."""
    late: Unavailable | None = None
    """What cut the asking short."""
    fetched: dict[str, int] | None = None
    """Bytes of weights by source since the role's start; None where it serves no metrics."""
    served: int | None = None
    notes: list[tuple[str, str]] = field(default_factory=list)
    """What is wrong and keeps this role from nothing now, and what to do about it."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    """What is wrong and what to do about it, the first cause first."""
    exit_code: int = 0

    @property
    def seen_as(self) -> Counter[str]:
        """From which IPs this machine came, by how many of those who were met through a network."""
        return Counter(way.greeting.seen_ip for way in self._met)

    @property
    def behind_nat(self) -> bool | None:
        """Whether most of those saw another IP than this machine's own; None where nobody said. None of them is believed more than the
        others."""
        met = self._met
        return sum(way.greeting.seen_ip != way.greeting.local for way in met) * 2 > len(met) if met else None

    @property
    def _met(self) -> list[WayIn]:
        return [way for way in self.ways if way.greeting.seen_ip and way.what != "this role"]

    @property
    def hub(self) -> Claimant | None:
        """The hub that a role would take."""
        return trusted_one(self.services.get("hub", []))

    @property
    def hub_peer(self) -> Claimant | None:
        """The trainer's peer where peers know it, and it does not say where it serves."""
        known = (each for each in self.services.get("hub", []) if each.trusted)
        return None if self.hub else next(known, None)

    @property
    def words(self) -> list[Word]:
        """What settings and chain say of the hub; a chain that could not be asked says nothing, not that there is nothing."""
        said = words(self.here, "hub", self.told, found=self.hub is not None) if self.here.chain else []
        told = [word for word in said if word.whose != CHAIN or self.chain_problem is None]
        return [replace(word, check=self.hub_check if word.used else self.reserve.get(word.url)) for word in told]

    @property
    def goes_to(self) -> str | None:
        """The URL of the hub to which a role goes."""
        return next((word.url for word in self.words if word.used), self.hub.url if self.hub else None)

    @property
    def relays(self) -> list[Claimant]:
        return [each for each in self.services.get("relay", []) if each.url]

    @property
    def announced_by_place(self) -> dict[Address, Dialled]:
        """Of each announced address the best that came of it: a name may lead to several."""
        best: dict[Address, Dialled] = {}
        for each in sorted(self.announced, key=lambda each: each.problem is not None):
            best.setdefault(each.named.address, each)
        return best

    @property
    def doing(self) -> dict[str, Any]:
        """What the running process says that it does; empty where those are an earlier one's words."""
        doing, pid = self.here.doing, self.here.said.get("pid")
        return doing if self.here.running and doing.get("pid", pid) == pid else {}

    @property
    def behind(self) -> int:
        """How many versions the chain is ahead of the newest that the running role says it has."""
        versions = self.doing.get("versions")
        if self.head is None or not isinstance(versions, list):
            return 0
        return max(0, self.head.step - max((step for step in versions if isinstance(step, int)), default=-1))

    def wrong(self, what: str, advice: str, problem: MurmurationError | None = None) -> None:
        self.problems.append((what, advice))
        self.exit_code = self.exit_code or (Unavailable.exit_code if problem is None else problem.exit_code)

    def as_json(self) -> dict[str, Any]:
        here = self.here
        table = {name: here.said.get(name) for name in _SHOWN}
        return {
            "role": here.role, "home": str(here.home) if here.home else None, "running": here.running, "peer": here.peer,
            "address": here.key, "listen": here.said.get("listen"), "announced": here.said.get("announced"),
            "run": here.chain.run if here.chain else None, "said": {"age": here.age, **table} if here.said else None,
            "doing": here.doing or None, "bootnodes": [way.as_json() for way in self.ways],
            "seen_as": dict(self.seen_as), "behind_nat": self.behind_nat, "asked": self.asked,
            "answered": self.answered, "outside": None if self.outside is None else self.outside.as_json(),
            "announced_tried": [
                {"address": str(place), "answers": each.problem is None, "problem": str(each.problem) if each.problem else None}
                for place, each in self.announced_by_place.items()
            ],
            "trainer": self.trainer, "hub": self.goes_to, "words": [word.as_json() for word in self.words],
            "hub_check": self.hub_check.as_json() if self.hub_check else None,
            "relays": [each.url for each in self.relays],
            "services": {role: [each.as_json() for each in found] for role, found in self.services.items()},
            "served_at": [
                {
                    "url": each.url, "answers": each.answers, "serves_others": each.serves_others,
                    "problem": str(each.problem) if each.problem else None,
                } for each in self.served_at
            ],
            "head": self.head.step if self.head else None, "behind": self.behind,
            "weights": self.fetched, "served": self.served,
            "problems": [{"what": what, "try": advice} for what, advice in self.problems],
            "notes": [{"what": what, "try": advice} for what, advice in self.notes],
        }  # fmt: skip


_SHOWN = (
    "state", "joined", "reason", "bootnodes", "known", "inbound", "outbound", "welcomed", "records", "provides", "counts",
)  # fmt: skip


def look(
    here: Standpoint, *, seconds: float, progress: Callable[[str], None] = lambda _: None, timing: Timing = Timing()
) -> Reachability:
    """Asks bootnodes and peers as a stranger, for at most `seconds`, and the chain; nothing is judged (diagnosis.py). `progress` hears what is being done."""
    found, chain = Reachability(here), None
    if here.chain is not None:
        progress("asking the chain who the trainer is")
        chain, found.trainer, found.chain_problem = trainer_of(here)
        found.told = told_of(here, chain)
    progress("asking around")
    _ask_around(found, seconds, timing)
    _read_metrics(found)
    if chain is not None:
        _try_hub(found, chain)
        _try_own(found, chain)
        _try_relays(found, chain)
    return found


def _ask_around(found: Reachability, seconds: float, timing: Timing) -> None:
    here = found.here
    places = here.announced if here.role == "bootnode" and here.running else []

    def watch(step: LookupStep) -> None:
        found.asked += 1
        found.answered += isinstance(step.outcome, KademliaAnswer)

    async def task(explorer: Explorer) -> None:
        if places and here.peer:
            found.announced = [*(await explorer.greet(peer_bytes(here.peer), places)).dialled]
        if not await enter(explorer, here, found.ways.append, found.told):
            return
        if here.peer:
            found.outside = await whereabouts(explorer, peer_bytes(here.peer), watch)
        for role in SERVICES if here.chain else ():
            trusted = found.trainer if role == "hub" else None
            found.services[role] = await claimants(
                explorer, service_of(here, role), trusted, watch, here.memory.notices
            )

    if not (places or here.has_way_in or (found.told and found.told.bootnodes)):
        return
    try:
        explore(task, seconds=seconds, loopback=here.is_local, timing=timing)
    except Unavailable as error:
        found.late = error


def _try_hub(found: Reachability, chain: Chain) -> None:
    if found.here.chain and found.goes_to is not None:
        with suppress(ChainError):
            found.hub_check = check(chain, found.here.chain.run, "hub", found.goes_to)
            for url in {word.url for word in found.words if word.url and not word.used}:
                again = url == found.goes_to
                found.reserve[url] = (
                    found.hub_check
                    if again
                    else check(chain, found.here.chain.run, "hub", url, seconds=RESERVE_SECONDS)
                )


def _try_own(found: Reachability, chain: Chain) -> None:
    here = found.here
    if here.chain and here.role == RELAY:
        with suppress(ChainError):
            found.head = chain.head(here.chain.run)
    provides = (here.said.get("provides") or []) if here.running else []
    for each in provides:
        if here.chain and isinstance(each, dict) and each.get("role") in _WEIGHTS:
            with suppress(ChainError):
                found.served_at.append(check(chain, here.chain.run, "relay", str(each.get("http"))))


def _try_relays(found: Reachability, chain: Chain) -> None:
    """Asks relays for weights as a node does, a bounded number of them; this role's own was tried before."""
    run, relays = found.here.chain.run if found.here.chain else 0, found.services.get("relay", [])
    own = {each.url: each for each in found.served_at}

    def tried(relay: Claimant) -> Claimant:
        with suppress(ChainError):
            return replace(relay, check=check(chain, run, "relay", relay.url or "", seconds=_RELAY_SECONDS))
        return relay

    found.services["relay"] = [replace(each, check=own.get(each.url or "")) for each in relays]
    places = [place for place, each in enumerate(found.services["relay"]) if each.url and each.check is None]
    with ThreadPoolExecutor(_RELAYS_AT_ONCE, thread_name_prefix="relays") as pool:
        some = places[:_RELAYS_TRIED]
        for place, relay in zip(some, pool.map(lambda place: tried(relays[place]), some), strict=True):
            found.services["relay"][place] = relay


def _read_metrics(found: Reachability) -> None:
    """Where the role's weights came from, by its own count."""
    url = found.here.doing.get("metrics_url")
    if not found.here.running or not isinstance(url, str):
        return
    try:
        with (
            within(_METRICS_SECONDS),
            httpx.Client(transport=Transport()) as client,
            client.stream("GET", f"{url}/metrics") as answer,
        ):
            text = b""
            for part in answer.iter_bytes():
                text += part
                if len(text) > _METRICS_BYTES_MAX:
                    return
    except (httpx.HTTPError, httpx.InvalidURL):
        return
    found.fetched = {}
    for line in text.decode("ascii", "replace").splitlines():
        name, _, value = line.rpartition(" ")
        try:
            if name.startswith(_FETCHED):
                found.fetched[name[len(_FETCHED) :].strip('"}')] = int(float(value))
            elif name == _SERVED:
                found.served = int(float(value))
        except ValueError:
            continue
