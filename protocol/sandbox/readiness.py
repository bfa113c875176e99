"""Waits until a file can be read or written, by poll: `select` knows 1,024 files alone, and a hub has thousands open."""

from __future__ import annotations

import select

READABLE, WRITABLE = select.POLLIN, select.POLLOUT


def is_ready(descriptor: int, event: int, seconds: float) -> bool:
    """Whether it can be within so long; also where that will only tell that the other side has gone."""
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))
