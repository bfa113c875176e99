"""Why nobody finds this role, or it finds nobody: what it says of itself, and what a stranger beside it sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import httpx

from protocol.deadline import Transport, within
from protocol.errors import ChainError, MurmurationError, Unavailable
from protocol.p2p.address import peer_bytes, peer_text
from protocol.p2p.explorer import Explorer, explore
from protocol.p2p.kademlia import LookupStep
from protocol.p2p.settings import Timing
from protocol.p2p.wire import KademliaAnswer
from protocol.shell.connection import RELAY, SEEDER
from protocol.shell.endpoint_check import OPERATOR, EndpointCheck, check
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

_METRICS_SECONDS = 3.0
_METRICS_BYTES_MAX = 4 << 20
_FETCHED = "murmur_weights_fetched_bytes_total{source="
_SERVED = "murmur_shardcast_served_bytes_total"
SERVICES = ("hub", "relay")
_WEIGHTS = (RELAY, SEEDER)
_OPEN_WEIGHTS = (
    "open serve.port, and let serve.public_url lead to it; https needs a reverse proxy or serve.tls_certificate, and a certificate "
    "of a CA that this system knows. Some routers keep a machine from its own outside address: then have somebody else try"
)


@dataclass
class Reachability:
    here: Standpoint
    ways: list[WayIn] = field(default_factory=list)
    asked: int = 0
    answered: int = 0
    outside: Whereabouts | None = None
    """Where others say this role is; None where it was not asked."""
    services: dict[str, list[Claimant]] = field(default_factory=dict)
    hub_check: EndpointCheck | None = None
    """What came of asking the hub to which a role goes."""
    served_at: list[EndpointCheck] = field(default_factory=list)
    """Where the running role says that it serves weights, each tried from here."""
    trainer: str | None = None
    told: RunLocation | None = None
    """What the run's owner says on chain."""
    chain_problem: MurmurationError | None = None
    """What kept the chain from being asked."""
    fetched: dict[str, int] | None = None
    """Bytes of weights by source since the role's start; None where it serves no metrics."""
    served: int | None = None
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
    def words(self) -> list[Word]:
        """What settings and chain say of the hub; a chain that could not be asked says nothing, not that there is nothing."""
        said = words(self.here, "hub", self.told, found=self.hub is not None) if self.here.chain else []
        told = [word for word in said if word.whose != CHAIN or self.chain_problem is None]
        return [replace(word, check=self.hub_check) if word.used else word for word in told]

    @property
    def goes_to(self) -> str | None:
        """The URL of the hub to which a role goes."""
        return next((word.url for word in self.words if word.used), self.hub.url if self.hub else None)

    @property
    def relays(self) -> list[Claimant]:
        return [each for each in self.services.get("relay", []) if each.url]

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
            "trainer": self.trainer, "hub": self.goes_to, "words": [word.as_json() for word in self.words],
            "hub_check": self.hub_check.as_json() if self.hub_check else None,
            "relays": [each.url for each in self.relays],
            "services": {role: [each.as_json() for each in found] for role, found in self.services.items()},
            "served_at": [
                {"url": each.url, "answers": each.answers, "problem": str(each.problem) if each.problem else None} for each in self.served_at
            ],
            "weights": self.fetched, "served": self.served,
            "problems": [{"what": what, "try": advice} for what, advice in self.problems],
        }  # fmt: skip


_SHOWN = (
    "state", "joined", "reason", "bootnodes", "known", "inbound", "outbound", "welcomed", "records", "provides", "counts",
)  # fmt: skip


def look(
    here: Standpoint, *, seconds: float, progress: Callable[[str], None] = lambda _: None, timing: Timing = Timing()
) -> Reachability:
    """Asks bootnodes and peers as a stranger, for at most `seconds`, and the chain; `progress` hears what is being done."""
    found, chain = Reachability(here), None
    if here.chain is not None:
        progress("asking the chain who the trainer is")
        chain, found.trainer, found.chain_problem = trainer_of(here)
        found.told = told_of(here, chain)
    progress("asking around")
    late = _ask_around(found, seconds, timing)
    _read_metrics(found)
    if chain is not None:
        _try_hub(found, chain)
        _try_own(found, chain)
    _judge(found, late)
    return found


def _ask_around(found: Reachability, seconds: float, timing: Timing) -> Unavailable | None:
    here = found.here

    def watch(step: LookupStep) -> None:
        found.asked += 1
        found.answered += isinstance(step.outcome, KademliaAnswer)

    async def task(explorer: Explorer) -> None:
        if not await enter(explorer, here, found.ways.append, found.told):
            return
        if here.peer:
            found.outside = await whereabouts(explorer, peer_bytes(here.peer), watch)
        for role in SERVICES if here.chain else ():
            trusted = found.trainer if role == "hub" else None
            found.services[role] = await claimants(
                explorer, service_of(here, role), trusted, watch, here.memory.notices
            )

    if not (here.has_way_in or (found.told and found.told.bootnodes)):
        return None
    try:
        explore(task, seconds=seconds, loopback=here.is_local, timing=timing)
    except Unavailable as error:
        return error
    return None


def _try_hub(found: Reachability, chain: Chain) -> None:
    if found.here.chain and found.goes_to is not None:
        with suppress(ChainError):
            found.hub_check = check(chain, found.here.chain.run, "hub", found.goes_to)


def _try_own(found: Reachability, chain: Chain) -> None:
    here = found.here
    provides = (here.said.get("provides") or []) if here.running else []
    for each in provides:
        if here.chain and isinstance(each, dict) and each.get("role") in _WEIGHTS:
            with suppress(ChainError):
                found.served_at.append(check(chain, here.chain.run, "relay", str(each.get("http"))))


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


def _judge(found: Reachability, late: Unavailable | None) -> None:
    """In the order of causes: what comes first may explain the rest."""
    here = found.here
    if here.role and not here.running:
        found.wrong("the role does not run", here.start)
    if not found.ways:
        if here.role != "bootnode":  # which others come to
            found.wrong("no bootnode is configured", "put peers.bootnodes into the config file, or give --bootnode")
        return
    _judge_ways(found, late)
    _judge_hub(found)
    if here.running:
        _judge_running(found)
    _judge_outside(found)


def _judge_ways(found: Reachability, late: Unavailable | None) -> None:
    bootnodes = [way for way in found.ways if way.what == "bootnode"]
    bootnodes = bootnodes or [way for way in found.ways if way.what.startswith("bootnode")]
    dead = [way for way in bootnodes if way.problem]
    if dead and len(dead) == len(bootnodes):
        through = [way for way in found.ways if not way.problem]
        what = "no bootnode answers" + (f"; the network is reached through a {through[0].what}" if through else "")
        found.wrong(what, "murmur net ping ADDRESS for each; ask the run's owner for ones that run", dead[0].problem)
    if late is not None:
        found.wrong(f"not everybody was asked: {late}", "give it more time with --seconds", late)


def _judge_hub(found: Reachability) -> None:
    chain_problem = found.chain_problem
    if chain_problem is not None:
        found.wrong(f"the chain does not say who the trainer is: {chain_problem}", chain_problem.hint, chain_problem)
    elif found.here.chain is not None and found.goes_to is None and found.answered:
        found.wrong("the run's hub is not found", "murmur net trace hub shows where the lookup stops")
    if (hub := found.hub_check) and hub.problem:
        word = next((word for word in found.words if word.used), None)
        found.wrong(
            f"{hub.url}, where {word.says if word else 'peers say'} that the hub is: {hub.problem}",
            word.remedy if word else hub.problem.hint or OPERATOR,
            hub.problem,
        )


def _judge_running(found: Reachability) -> None:
    """By what the running role says of itself, and where it says that it serves weights."""
    here = found.here
    if here.said.get("joined") is False and (here.bootnodes or here.role != "bootnode"):
        if here.said.get("joining"):
            found.wrong(
                "the running role is still joining: it waits for its bootnodes' first answer",
                "ask again in ten seconds",
            )
        else:
            found.wrong(
                f"the running role knows nobody: {here.said.get('reason')}",
                "its log says more; it keeps trying by itself",
            )
    if here.role == RELAY and not here.said.get("provides"):
        found.wrong(
            "the relay serves nothing yet: it has not said to peers where it is",
            "its log says what it waits for; it goes on by itself",
        )
    for each in found.served_at:
        if not each.answers and each.problem:
            found.wrong(
                f"{each.url}, where others fetch weights from this role: {each.problem}", _OPEN_WEIGHTS, each.problem
            )


def _judge_outside(found: Reachability) -> None:
    """Only those who serve need to be found."""
    here = found.here
    reach = "forward the port of peers.listen to this machine" if found.behind_nat else "open the port of peers.listen"
    provides = here.said.get("provides") or []
    if not here.running or not (provides or here.role == "bootnode") or not found.answered:
        return
    if found.outside is not None and found.outside.told:
        if found.outside.greeting and not found.outside.greeting.answered:
            found.wrong(
                "others are told where this role is, and it does not answer there",
                f"{reach}, and name the address that leads to it (peers.announce)",
                found.outside.greeting.problem,
            )
    elif here.role != "bootnode" or here.peer not in {peer_text(way.known.peer) for way in found.ways}:
        found.wrong(
            "nobody tells where this role is", f"{reach}, or name the address that leads to it (peers.announce)"
        )
    lost = [each for each in provides if isinstance(each, dict) and not each.get("holders")]
    if lost:
        found.wrong("no peer holds the record of what this role serves", "it is announced again by itself; see its log")
