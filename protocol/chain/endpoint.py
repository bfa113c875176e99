"""What is known of one RPC endpoint: how far it is, whether it answers, what was wrong the last time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from protocol import metrics
from protocol.chain.ethereum import quantity
from protocol.clock import Clock
from protocol.http_url import without_secrets
from protocol.metrics import host_of

log = logging.getLogger(__name__)

_WARN_SECONDS = 300.0  # between warnings that a head is still too old
_HEAD = metrics.gauge("murmur_chain_head_block", "Newest block that an endpoint has named.", "endpoint")


@dataclass
class RpcEndpoint:
    url: str
    moved: float
    """Monotonic seconds when its head last grew; at first, of now: who has named none yet may be busy, and is not behind for that."""
    head: int = 0
    """Block number it last called its newest."""
    silent_since: float | None = None
    """Monotonic seconds of the first failure since it last answered; None: it answers, or was not asked yet."""
    has_answered: bool = False
    is_busy: bool = False
    """Whether its last failure was that it asks to be left alone."""
    hung: float = float("-inf")
    """Monotonic seconds when it last took the whole time for an answer in vain."""
    is_stale: bool = False
    """Whether the newest block that it last answered with was too old, or from the future."""
    age: float | None = None
    """Seconds that the block was old then, by this machine's clock; None: it was not asked yet."""
    warned: float = float("-inf")
    """Monotonic seconds when its old head was last spoken of."""
    last_error: str = ""
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Answers to what was asked together, for a comparison of endpoints that goes on."""

    @property
    def shown(self) -> str:
        return without_secrets(self.url)

    def note_number(self, number: int, least: int, now: float) -> None:
        """Its newest block; below `least` it lags. `now`: monotonic seconds."""
        if number < least <= self.head:
            log.warning(
                "RPC endpoint %s is at block %d, others are beyond %d; passing it over", self.shown, number, least
            )
        if number > self.head:
            self.moved = now
        self.head = number
        _HEAD.set(number, endpoint=host_of(self.url))

    def note_age(self, newest: Any, most: float, clock: Clock, are_all_stale: Callable[[], bool]) -> None:
        """Learns from its newest block whether it, or the whole chain, stands still: whether that is older than `most` seconds; 0: no age
        is too old. Raises ValueError where it names no time."""
        if not isinstance(newest, dict):
            return
        age = self.age = clock.wall() - quantity(newest.get("timestamp"))
        self.is_stale = 0 < most < abs(age)
        if not self.is_stale:
            self.warned = float("-inf")
            return
        self.last_error = f"its newest block is {f'{age:.0f} s old' if age > 0 else f'{-age:.0f} s in the future'}"
        if clock.monotonic() - self.warned > _WARN_SECONDS:
            self.warned = clock.monotonic()
            if are_all_stale():
                log.error("the chain stands still: %s says that %s", self.shown, self.last_error)
            else:
                log.warning("RPC endpoint %s lags: %s; passing it over", self.shown, self.last_error)
