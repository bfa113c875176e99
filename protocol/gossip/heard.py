"""What was heard by gossip: the newest of each kind, and who is woken when there is something new."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from threading import Event
from typing import Final

from protocol.clock import SYSTEM, Clock
from protocol.gossip.messages import NeedWord, VersionWord, Word
from protocol.hub.need import SignedNeed

FLOWS_SECONDS: Final = 150.0
"""For which gossip counts as flowing after a word of the trainer or of a validator."""


class HeardWords:
    """Written by the host's thread, read by any."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._heard_at = float("-inf")
        self.need: SignedNeed | None = None
        self.head: VersionWord | None = None
        self._actions: defaultdict[str, list[Callable[[Word], object]]] = defaultdict(list)

    def on(self, kind: str, action: Callable[[Word], object]) -> None:
        """Calls `action` with each word of that kind from now on, in the host's thread: it must return at once and raise nothing."""
        self._actions[kind].append(action)

    @property
    def flows(self) -> bool:
        """Whether something was heard lately: what the trainer needs is said anew every minute."""
        return self._clock.monotonic() < self._heard_at + FLOWS_SECONDS

    def take(self, word: Word) -> None:
        self._heard_at = self._clock.monotonic()
        if isinstance(word, NeedWord):
            self.need = word.signed
        elif isinstance(word, VersionWord) and word.kind == "head":
            self.head = word if self.head is None or word.step >= self.head.step else self.head
        for action in self._actions[word.kind]:
            action(word)


class NewsPause:
    """A pause that ends early when there is news, or when all is to end; for one thread. Without gossip it is a plain one."""

    _SLICE_SECONDS = 0.5  # after which it is looked whether all is to end
    _SELDOM = 5.0  # times as long, where gossip flows
    _WATCHFUL_SECONDS = 30.0  # after news: it may take a moment until an endpoint of the chain has it

    def __init__(self, heard: HeardWords | None, *kinds: str, clock: Clock = SYSTEM) -> None:
        self._heard, self._clock = heard, clock
        self._rung = Event()
        self._rung_at = float("-inf")
        for kind in kinds if heard else ():
            heard.on(kind, self.ring)  # type: ignore[union-attr]

    def ring(self, *_: object) -> None:
        """From any thread."""
        self._rung.set()

    def wait(self, stop: Event, seconds: float, *, seldom: bool = False) -> bool:
        """For at most `seconds`, unless `stop` is set; whether it was rung since the last wait. `seldom`: for longer, where gossip would
        tell what is waited for."""
        if self._heard is None:
            self._clock.wait(stop, seconds)
            return False
        now = self._clock.monotonic()
        if seldom and self._heard.flows and now > self._rung_at + self._WATCHFUL_SECONDS:
            seconds *= self._SELDOM
        until = now + seconds
        while not stop.is_set() and (left := until - self._clock.monotonic()) > 0:
            if self._clock.wait(self._rung, min(left, self._SLICE_SECONDS)):
                break
        rung = self._rung.is_set()
        self._rung.clear()
        if rung:
            self._rung_at = self._clock.monotonic()
        return rung
