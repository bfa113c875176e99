"""What the hub has to say to one node, over one poll: verdicts on its work, a challenge of its seat, what the trainer needs.

A node that waits costs the hub a little more than one request a minute: the hub holds the answer back until there is news. The thread that
follows the verdicts reads it (verdicts.py); who wants to know the rest asks here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from protocol.clock import SYSTEM, Clock
from protocol.gossip.messages import NeedWord, Word
from protocol.hub.client import HubClient
from protocol.hub.listing import Mark
from protocol.hub.need import SignedNeed
from protocol.hub.wire import EARLIER_KEYS_MAX, PAGE

WAIT_SECONDS = 50
"""That the hub may hold an answer back: below what proxies and routers keep an idle connection for, a minute."""
_FIRST_SECONDS = 3.0  # that who wants to know something waits for the first answer of all


class Mail:
    """`fetch` is called by one thread; everything else is safe to share."""

    def __init__(self, node: str, trainer: Callable[[], str], clock: Clock = SYSTEM) -> None:
        """`trainer` says whose word counts now: the run's owner may appoint another key."""
        self.challenged = threading.Event()
        """Set when a challenge has begun; who answers it clears this."""
        self._node, self._trainer, self._clock = node, trainer, clock
        self._heard = threading.Event()
        self._need: SignedNeed | None = None
        self._overheard: SignedNeed | None = None
        self._challenge = self._tag = ""

    @property
    def need(self) -> SignedNeed | None:
        """What the trainer needs, as it said last to hub or peers; waits a little where neither has said anything at all yet."""
        if not self._heard.is_set():
            self._clock.wait(self._heard, _FIRST_SECONDS)
            self._heard.set()
        said = [each for each in (self._need, self._overheard) if each is not None]
        return max(said, key=lambda each: (each.need.until, each.need.step), default=None)

    def overhear(self, word: Word) -> None:
        """A word of the trainer's that came by gossip, where its signature was checked."""
        if isinstance(word, NeedWord):
            self._overheard = word.signed

    def fetch(self, hub: HubClient, mark: Mark, earlier: Sequence[str] = ()) -> Iterator[tuple[int, bytes]]:
        """Receipts after `mark` of this node's submissions and of those of `earlier` keys of it; waits for news where there are none."""
        wait = WAIT_SECONDS if self._heard.is_set() else 0
        while True:
            news = hub.news(
                self._node, mark, trainer=self._trainer(), also=earlier[:EARLIER_KEYS_MAX], challenge=self._challenge,
                tag=self._tag, wait=wait,
            )  # fmt: skip
            self._need, self._tag = news.need, news.tag
            if news.challenge != self._challenge and news.challenge:
                self.challenged.set()
            self._challenge = news.challenge
            self._heard.set()
            yield from news.receipts
            if len(news.receipts) < PAGE:
                return
            mark, wait = Mark(news.receipts[-1][0]), 0

    def lost(self) -> None:
        """The hub does not answer any more: what it said holds until it runs out."""
        self._heard.set()
        self._tag = ""  # it says it again, whatever it is
