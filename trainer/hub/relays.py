"""What the origin has sent to each relay of its run, for whoever looks at the run's page.

A relay is known as in protocol/shardcast/precedence.py: anybody may pass for one, and then its bytes are told of as a relay's. What relays
send on is theirs to tell, and no peer's word is taken for it here.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from protocol.clock import SYSTEM, Clock
from protocol.shardcast.guest import Guest
from protocol.shardcast.precedence import RelaysFirst
from trainer.page.sources import RelayTally

_RELAYS_MAX = 1_000


class RelayTallies:
    """Safe to share between threads."""

    def __init__(self, relays: RelaysFirst, clock: Clock = SYSTEM) -> None:
        self._relays = relays
        self._clock = clock
        self._mutex = threading.Lock()
        self._tallies: dict[str, RelayTally] = {}

    def sent(self, guest: Guest, step: int, count: int) -> None:
        """So many bytes of a version left to this guest."""
        if guest.serves is None or not self._relays.is_first(guest):
            return
        with self._mutex:
            before = self._tallies.get(guest.serves, RelayTally())
            newest = step if before.step is None else max(step, before.step)
            of_step = before.of_step if newest == before.step else 0
            of_step += count if step == newest else 0
            tally = RelayTally(before.bytes_sent + count, newest, of_step, self._clock.wall())
            if guest.serves in self._tallies or len(self._tallies) < _RELAYS_MAX:
                self._tallies[guest.serves] = tally

    def told(self) -> Mapping[str, RelayTally]:
        """By address; those that are announced and have fetched nothing included."""
        with self._mutex:
            return {**{url: RelayTally() for url in self._relays.announced}, **self._tallies}
