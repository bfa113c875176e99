"""Messages that are in memory to be handed out: few of each signer and kind, of each network, and in all, and none for long."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from protocol.p2p.settings import GossipLimits


@dataclass(frozen=True)
class _Entry:
    data: bytes
    slot: Hashable
    network: str
    until: float


class MessageCache:
    """By name. `now` gives seconds."""

    def __init__(self, limits: GossipLimits, now: Callable[[], float]) -> None:
        self._limits = limits
        self._now = now
        self._entries: dict[bytes, _Entry] = {}  # oldest first
        self._slots: defaultdict[Hashable, list[bytes]] = defaultdict(list)
        self._networks: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, name: bytes, data: bytes, slot: Hashable, most: int, network: str) -> None:
        """`slot` stands for a signer and a kind, of which the last `most` are kept; `network` is where the message came from."""
        self._entries[name] = _Entry(data, slot, network, self._now() + self._limits.keep)
        self._slots[slot].append(name)
        self._networks[network] += 1
        if len(self._slots[slot]) > most:
            self._drop(self._slots[slot][0])
        if self._networks[network] > self._limits.cached_per_network:
            self._drop(next(each for each, entry in self._entries.items() if entry.network == network))
        if len(self._entries) > self._limits.cached:
            crowd = self._networks.most_common(1)[0][0]
            self._drop(next(each for each, entry in self._entries.items() if entry.network == crowd))

    def get(self, name: bytes) -> bytes | None:
        entry = self._entries.get(name)
        return entry.data if entry and entry.until > self._now() else None

    def newest(self, most: int) -> list[bytes]:
        """Names, newest first."""
        self.tidy()
        return [*self._entries][: -most - 1 : -1]

    def tidy(self) -> None:
        """Forgets what has been here for long enough."""
        now = self._now()
        while self._entries and self._entries[oldest := next(iter(self._entries))].until <= now:
            self._drop(oldest)

    def _drop(self, name: bytes) -> None:
        entry = self._entries.pop(name)
        self._slots[entry.slot].remove(name)
        if not self._slots[entry.slot]:
            del self._slots[entry.slot]
        self._networks[entry.network] -= 1
        if not self._networks[entry.network]:
            del self._networks[entry.network]
