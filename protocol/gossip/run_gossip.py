"""Gossip of one run over a host: what a role calls to tell the others, and to hear them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from threading import Lock

from protocol.chain import Chain
from protocol.clock import SYSTEM, Clock
from protocol.errors import Malformed
from protocol.gossip.authority import Authority
from protocol.gossip.checks import Checks
from protocol.gossip.heard import HeardWords
from protocol.gossip.messages import NEED, NeedWord, VerdictWord, VersionWord, Word, parse
from protocol.hub.need import SignedNeed
from protocol.identity import Key, address_of_peer
from protocol.p2p import GossipSubject, Host, Ruling, Service
from protocol.p2p.settings import GossipLimits
from protocol.verdict import Receipt

log = logging.getLogger(__name__)

ROLE = "gossip"
"""Under which those who gossip about a run are found. Changing it breaks: nodes of different versions find each other only at hub and relays."""


class RunGossip:
    """The rules of a run's gossip (protocol/p2p/subject.py), and both ends of it. Safe to share between threads."""

    def __init__(
        self,
        host: Host,
        chain: Chain,
        run: int,
        services: tuple[Service, ...],
        *,
        max_lag: Callable[[], int],
        limits: GossipLimits = GossipLimits(),
        clock: Clock = SYSTEM,
    ) -> None:
        """`services` are the run's, under which others who gossip are found; the first is for this alone. `max_lag` is the
        run spec's, which may be known only later."""
        self.heard_words = HeardWords(clock)
        self._told: dict[str, bytes] = {}  # what was said last of each kind
        self._lock = Lock()
        self._host, self._domain, self._run = host, chain.domain, run
        self._authority = Authority(chain, run, max_lag, clock)
        self._checks = Checks(run, chain.domain, self._authority, clock)
        keys = tuple(service.key for service in services)
        self._subject = GossipSubject(f"{services[0].name}/1", keys, self, limits)

    def start(self) -> None:
        self._host.gossip_about(self._subject)

    # ---- what this role says ---------------------------------------------------------------------------------------------

    def tell_version(self, kind: str, step: int, digest: bytes, key: Key) -> None:
        """`kind`: MANIFEST or HEAD; `key` is the trainer's."""
        self._tell(kind, VersionWord.sign(kind, self._run, step, digest, key, self._domain).encode())

    def tell_need(self, need: SignedNeed) -> None:
        self._tell(NEED, NeedWord(need).encode())

    def tell_verdict(self, receipt: Receipt) -> None:
        self._host.publish(VerdictWord.of(receipt).encode())

    def _tell(self, kind: str, data: bytes) -> None:
        with self._lock:
            self._told[kind] = data
        self._host.publish(data)

    # ---- the rules ---------------------------------------------------------------------------------------------------------

    def rule(self, data: bytes) -> Ruling:
        return self._checks.rule(data)

    def heard(self, data: bytes) -> None:
        word: Word = parse(data, self._run)
        log.debug("heard by gossip: %s of step %d", word.kind, word.step)
        self.heard_words.take(word)

    def weight(self, peer: bytes) -> float:
        return self._authority.weight(_address(peer))

    def unknown(self, peer: bytes) -> str:
        address = _address(peer)
        return address if address and self._authority.stake(address) is None else ""

    def look_up(self, about: str) -> bool:
        return self._authority.look_up(about)

    def refresh(self) -> None:
        """And says again what others may have missed: a host that has just started has asked nothing and met nobody yet."""
        self._authority.refresh()
        with self._lock:
            said = [*self._told.values()]
        for data in said:
            self._host.publish(data)


@lru_cache(maxsize=4096)
def _address(peer: bytes) -> str:
    """On chain; empty for a stranger."""
    try:
        return address_of_peer(peer)
    except Malformed:
        return ""
