"""Provider records held for others: who says it provides which key. Pure data; time is handed in.

Anybody may announce anything, so everything is capped, and by source network, because PeerIDs cost nothing. A full key
makes room at the expense of the network that takes most of it: whoever floods a key from one place displaces itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from protocol.p2p.routing import Contact
from protocol.p2p.settings import HostLimits

PROVIDERS_PER_KEY: Final = 64
"""Most providers of one key, and so the most in an answer. Changing it breaks: nodes with a smaller one read no answer."""

_SWEEP_SECONDS: Final = 60.0


@dataclass(frozen=True)
class _Record:
    contact: Contact
    source: str
    expires: float


class ProviderRecords:
    """`put` and `get`; every record expires `life` seconds after it was last renewed."""

    def __init__(self, limits: HostLimits, life: float) -> None:
        self._limits = limits
        self._life = life
        self._keys: dict[bytes, dict[bytes, _Record]] = {}
        self._held: Counter[str] = Counter()
        self._swept = 0.0

    def __len__(self) -> int:
        return sum(len(records) for records in self._keys.values())

    def put(self, key: bytes, contact: Contact, *, source: str, now: float) -> bool:
        """Stores or renews; `source` is the network the announcement came from. Says whether it is held now."""
        self._drop_expired(key, now)
        if contact.peer in self._keys.get(key, {}):
            self._drop(key, contact.peer)
        if self._held[source] >= self._limits.records_per_address or not self._has_room(key, now):
            return False
        records = self._keys.setdefault(key, {})
        if len(records) >= PROVIDERS_PER_KEY:
            self._drop(key, self._expendable(records))
        self._keys.setdefault(key, {})[contact.peer] = _Record(contact, source, now + self._life)
        self._held[source] += 1
        return True

    def get(self, key: bytes, now: float) -> list[Contact]:
        self._drop_expired(key, now)
        return [record.contact for record in self._keys.get(key, {}).values()]

    def _has_room(self, key: bytes, now: float) -> bool:
        if key in self._keys or len(self._keys) < self._limits.keys:
            return True
        if now - self._swept >= _SWEEP_SECONDS:
            self._swept = now
            for other in list(self._keys):
                self._drop_expired(other, now)
        return len(self._keys) < self._limits.keys

    @staticmethod
    def _expendable(records: dict[bytes, _Record]) -> bytes:
        crowd = Counter(record.source for record in records.values())
        most = max(crowd.values())
        candidates = [record for record in records.values() if crowd[record.source] == most]
        return min(candidates, key=lambda record: record.expires).contact.peer

    def _drop_expired(self, key: bytes, now: float) -> None:
        for peer in [peer for peer, record in self._keys.get(key, {}).items() if record.expires <= now]:
            self._drop(key, peer)

    def _drop(self, key: bytes, peer: bytes) -> None:
        record = self._keys[key].pop(peer)
        if not self._keys[key]:
            del self._keys[key]
        self._held[record.source] -= 1
        if self._held[record.source] <= 0:
            del self._held[record.source]
