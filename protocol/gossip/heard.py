"""What was heard by gossip: the newest of each kind, and who is woken when there is something new."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from threading import Event

from protocol.clock import SYSTEM, Clock
from protocol.gossip.messages import NeedWord, VersionWord, Word
from protocol.hub.need import SignedNeed


class HeardWords:
    """Written by the host's thread, read by any."""

    def __init__(self) -> None:
        self.need: SignedNeed | None = None
        self.head: VersionWord | None = None
        self._actions: defaultdict[str, list[Callable[[Word], object]]] = defaultdict(list)

    def on(self, kind: str, action: Callable[[Word], object]) -> None:
        """Calls `action` with each word of that kind from now on, in the host's thread: it must return at once and raise nothing."""
        self._actions[kind].append(action)

    def take(self, word: Word) -> None:
        if isinstance(word, NeedWord):
            self.need = word.signed
        elif isinstance(word, VersionWord) and word.kind == "head":
            self.head = word if self.head is None or word.step >= self.head.step else self.head
        for action in self._actions[word.kind]:
            action(word)


class NewsPause:
    """A pause that ends early when there is news, or when all is to end."""

    _SLICE_SECONDS = 0.5  # after which it is looked whether all is to end

    def __init__(self, stop: Event, clock: Clock = SYSTEM) -> None:
        self._stop, self._clock = stop, clock
        self._rung = Event()

    def ring(self, *_: object) -> None:
        """From any thread."""
        self._rung.set()

    def wait(self, seconds: float) -> bool:
        """For at most `seconds`; whether it was rung since the last wait."""
        until = self._clock.monotonic() + seconds
        while not self._stop.is_set() and (left := until - self._clock.monotonic()) > 0:
            if self._clock.wait(self._rung, min(left, self._SLICE_SECONDS)):
                break
        rung = self._rung.is_set()
        self._rung.clear()
        return rung
