"""One lookup, followed from the way in to the HTTP answer, and where it stops.

The same steps as a role takes, as a stranger and without patience: the bootnodes, the questions to peers around the key, who claims to
provide it, what the one who may says, and whether what it serves is the chain's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from protocol.errors import ConfigError, MurmurationError, Unavailable, UsageError
from protocol.p2p.address import peer_bytes, peer_text
from protocol.p2p.explorer import Explorer, explore
from protocol.p2p.kademlia import LookupStep
from protocol.p2p.service import Service
from protocol.p2p.settings import Timing
from protocol.p2p.wire import KademliaAnswer
from protocol.shell import endpoint_check, remedy
from protocol.shell.endpoint_check import EndpointCheck
from protocol.shell.location import RunLocation
from protocol.shell.lookups import (
    OF_TRAINER,
    Claimant,
    WayIn,
    Whereabouts,
    Word,
    claimants,
    enter,
    said,
    service_of,
    told_of,
    trainer_of,
    trusted_one,
    whereabouts,
    words,
)
from protocol.shell.standpoint import Standpoint

SERVICES = (*OF_TRAINER, "relay", "seeder")
ME = "me"
_CHECKS_MAX = 4

if TYPE_CHECKING:
    from protocol.chain import Chain

Step = WayIn | LookupStep | Claimant | EndpointCheck | Whereabouts | Word


@dataclass
class Trace:
    """`stopped` says in a sentence where it ended without what was looked for, `advice` what to do then."""

    what: str
    key: bytes
    ways: list[WayIn] = field(default_factory=list)
    steps: list[LookupStep] = field(default_factory=list)
    claimants: list[Claimant] = field(default_factory=list)
    whereabouts: Whereabouts | None = None
    words: list[Word] = field(default_factory=list)
    """What settings and chain say, beside peers."""
    found: str = ""
    stopped: str = ""
    advice: str = ""
    exit_code: int = 0

    def stop(self, why: str, advice: str, problem: MurmurationError | None = None) -> None:
        self.stopped, self.advice = why, advice
        self.exit_code = Unavailable.exit_code if problem is None else problem.exit_code

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what, "key": self.key.hex(), "ways_in": [way.as_json() for way in self.ways],
            "asked": [step_json(step) for step in self.steps],
            "claimants": [claimant.as_json() for claimant in self.claimants],
            "whereabouts": None if self.whereabouts is None else self.whereabouts.as_json(),
            "words": [word.as_json() for word in self.words],
            "found": self.found or None, "stopped": self.stopped or None, "advice": self.advice or None,
        }  # fmt: skip


def step_json(step: LookupStep) -> dict[str, Any]:
    found: dict[str, Any] = {
        "peer": peer_text(step.contact.peer), "addresses": [str(place) for place in step.contact.addresses],
        "seconds": step.seconds,
    }  # fmt: skip
    if isinstance(step.outcome, KademliaAnswer):
        return found | {"closer": len(step.outcome.closer), "providers": len(step.outcome.providers)}
    return found | said(step.outcome)


def trace(
    here: Standpoint, target: str, *, seconds: float, tell: Callable[[Step], None], timing: Timing = Timing()
) -> Trace:
    """Follows the lookup of a service of the run, of a peer by its PeerID, or of the role itself ("me"); `tell` hears of each step as it
    is taken. Raises UsageError or ConfigError for what cannot be looked for."""
    if target in SERVICES:
        return _Tracing(here, seconds, tell, timing).service(target)
    return _Tracing(here, seconds, tell, timing).peer(_peer(here, target))


def _peer(here: Standpoint, target: str) -> bytes:
    if target != ME:
        return parse_peer_id(target)
    if here.peer is None:
        raise ConfigError("this role has not said who it is yet", hint="start it once, or give its PeerID")
    return peer_bytes(here.peer)


def parse_peer_id(text: str) -> bytes:
    """Raises UsageError."""
    try:
        peer = peer_bytes(text)
    except (MurmurationError, ValueError):
        peer = b""
    if not 34 <= len(peer) <= 42:
        raise UsageError(
            f"{text[:80]!r} is nothing that can be looked for",
            hint=f"one of {', '.join(SERVICES)}, {ME}, or a PeerID as 16Uiu2…",
        )
    return peer


class _Tracing:
    def __init__(self, here: Standpoint, seconds: float, tell: Callable[[Step], None], timing: Timing) -> None:
        self._here = here
        self._seconds = seconds
        self._tell = tell
        self._timing = timing
        self._told: RunLocation | None = None

    def service(self, role: str) -> Trace:
        if self._here.chain is None:
            raise UsageError(f"a bootnode belongs to no run and looks for no {role}", hint="give a PeerID, or me")
        service = service_of(self._here, role)
        made = Trace(str(service), service.key)
        chain, trainer, unknown = trainer_of(self._here)
        self._told = told_of(self._here, chain)
        if not (self._told or self._here.peers.hub):
            require_way_in(self._here)
        if role not in OF_TRAINER:
            trainer = unknown = None

        async def look(explorer: Explorer) -> None:
            if await self._enter(explorer, made):
                made.claimants = await claimants(
                    explorer, service, trainer, self._note(made), self._here.memory.notices
                )

        self._explore(look, made)
        for claimant in made.claimants:
            self._tell(claimant)
        if not made.stopped:
            self._judge(made, service, role, trainer, unknown)
        if not made.stopped:
            self._check(made, role, chain)
        if chain is not None:
            self._ask_others(made, role, chain)
        return made

    def _ask_others(self, made: Trace, role: str, chain: Chain) -> None:
        """Shows what settings and chain say, and whether it is there; where a role would go by them, that decides."""
        by_peers = trusted_one(made.claimants)
        for said_so in words(self._here, role, self._told, found=by_peers is not None):
            word, run = said_so, chain_run(self._here)
            if word.url:
                seconds = endpoint_check.SECONDS if word.used else endpoint_check.RESERVE_SECONDS
                word = replace(word, check=endpoint_check.check(chain, run, role, word.url, seconds=seconds))
            made.words.append(word)
            self._tell(word)
            if word.check is None or not word.used:
                continue
            if word.check.problem is None:
                made.found = f"{made.what} at {word.url}, by {word.whose}"
                made.stopped = made.advice = ""
                made.exit_code = 0
            else:
                made.found = ""
                made.stop(
                    f"a role goes where {word.says} it is, {word.url}, and what it serves is not to be had: {word.check.problem}",
                    remedy.of_word(word, role, word.check.problem, by_peers=by_peers.url if by_peers else None),
                    word.check.problem,
                )

    def peer(self, peer: bytes) -> Trace:
        require_way_in(self._here)
        made = Trace(peer_text(peer), peer)

        async def look(explorer: Explorer) -> None:
            if await self._enter(explorer, made):
                made.whereabouts = await whereabouts(explorer, peer, self._note(made))

        self._explore(look, made)
        if made.stopped:
            return made
        found = made.whereabouts or Whereabouts()
        self._tell(found)
        answers = found.greeting is not None and found.greeting.answered
        if not answers and peer_text(peer) == self._here.peer and not self._here.running:
            made.stop(
                "this role does not run", f"{self._here.start}; what others remember of it fades within half an hour"
            )
        elif not found.told and self._is_first_bootnode(made, peer):
            made.found = "it answers where it listens; nobody has come yet who could say where it is"
        elif not found.told:
            made.stop(
                _nobody_knows(made, "where it is"),
                "it has not joined through these bootnodes, or only asks: who cannot be reached enters no table",
            )
        elif not answers:
            problem = found.greeting.problem if found.greeting else None
            advice = f"{remedy.of_dial(problem)}. " if problem else ""
            made.stop(
                "peers say where it is, and it does not answer there",
                f"{advice}Its operator: see that it runs, that its port is open, and that peers.announce names what leads to it",
                problem,
            )
        else:
            made.found = "it is known, and it answers"
        return made

    def _is_first_bootnode(self, made: Trace, peer: bytes) -> bool:
        """Whether this is the role itself, which others come to, and nobody has come."""
        here = self._here
        is_own = here.role == "bootnode" and here.running and peer_text(peer) == here.peer
        return is_own and {each.known.peer for each in made.ways} | {each.contact.peer for each in made.steps} == {peer}

    def _explore(self, look: Callable[[Explorer], Any], made: Trace) -> None:
        try:
            explore(look, seconds=self._seconds, loopback=self._here.is_local, timing=self._timing)
        except Unavailable as error:
            made.stop(f"it took too long: {error}", "give it more time with --seconds", error)

    async def _enter(self, explorer: Explorer, made: Trace) -> bool:
        def met(way: WayIn) -> None:
            made.ways.append(way)
            self._tell(way)

        if await enter(explorer, self._here, met, self._told):
            return True
        made.stop(
            "the only way into the network does not answer"
            if len(made.ways) == 1
            else f"none of {len(made.ways)} ways into the network answers",
            "ask the run's owner whether these bootnodes still run, and see that this machine may connect to their ports",
            next((way.problem for way in made.ways), None),
        )
        return False

    def _note(self, made: Trace) -> Callable[[LookupStep], None]:
        def note(step: LookupStep) -> None:
            made.steps.append(step)
            self._tell(step)

        return note

    def _judge(
        self, made: Trace, service: Service, role: str, trainer: str | None, unknown: MurmurationError | None
    ) -> None:
        if unknown is not None:
            made.stop(f"the chain does not say who the trainer is: {unknown}", unknown.hint, unknown)
            return
        if not made.claimants and role == "seeder":
            made.stop(
                _nobody_knows(made, f"a {service}"),
                "nothing, if you expect none: a node serves weights only with `enabled = true` under [serve], which is not the default",
            )
            return
        if not made.claimants:
            made.stop(
                _nobody_knows(made, f"a {service}"),
                "it does not run, or it joined through other bootnodes: compare peers.bootnodes with its operator's",
            )
            return
        may = [each for each in made.claimants if each.trusted is not False]
        if not may:
            made.stop(
                f"{len(made.claimants)} claim to be the {service}, and none holds the trainer's key {trainer}",
                "the trainer's own is not up, or joined through other bootnodes; nobody is fooled by the others",
            )
            return
        serving = [each for each in may if each.url]
        if not serving:
            problem = may[0].problem
            made.stop(
                f"a {service} is known, and does not say where it serves: {problem}",
                remedy.of_provider(role, problem),
                problem,
            )

    def _check(self, made: Trace, role: str, chain: Any) -> None:
        """Asks those endpoints that may be believed over HTTP; the best of them decides."""
        try:
            chain = chain or (self._here.chain.open() if self._here.chain else None)
            checked: list[EndpointCheck] = []
            for place, claimant in enumerate(made.claimants):
                if claimant.url is None or claimant.trusted is False or len(checked) >= _CHECKS_MAX:
                    continue
                check = endpoint_check.check(chain, chain_run(self._here), role, claimant.url)
                made.claimants[place] = replace(claimant, check=check)
                self._tell(check)
                checked.append(check)
        except MurmurationError as error:
            made.stop(f"the chain does not say what should be served: {error}", error.hint, error)
            return
        good = [check for check in checked if check.problem is None]
        if good:
            made.found = f"{made.what} at {', '.join(check.url for check in good)}"
        else:
            problem = checked[0].problem
            made.stop(
                f"the endpoint was found, and what it serves is not to be had: {problem}",
                remedy.of_endpoint(role, problem, peer_answers=True),
                problem,
            )


def chain_run(here: Standpoint) -> int:
    return here.chain.run if here.chain else 0


def _nobody_knows(made: Trace, what: str) -> str:
    answered = len({step.contact.peer for step in made.steps if isinstance(step.outcome, KademliaAnswer)})
    if answered == 0:
        return "no peer answered"
    return (
        f"the one peer that answered does not know {what}"
        if answered == 1
        else f"none of the {answered} peers that answered knows {what}"
    )


def require_way_in(here: Standpoint) -> None:
    """Raises ConfigError where nobody is known to begin with."""
    if not here.has_way_in:
        raise ConfigError(
            "no bootnode is configured, no peer was saved, and the role does not run",
            hint=f"put {here.setting('bootnodes')} into the config file, or give --bootnode",
        )
