"""How much the hub has to do, and what it refuses when that is too much: the cheapest requests to lose first.

    watch     a page waits for news          lost: a person sees older numbers
    page      a page is looked at            lost: the same
    poll      asks to be told of news        lost: some seconds
    listing   asks what there is             lost: some seconds of whoever judges or trains
    download  fetches a file                 lost: the same, and what was sent of it
    upload    writes anything                lost: a node's grace time, a validator's word

A refusal costs no look at chain or database, and says when to come back. The level counts requests under way, polls that
and bodies that have not begun to come wait apart (they cost a place, see protocol/places.py), and by how much the event loop is late: whichever is worse.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from urllib.parse import parse_qs

from starlette.types import Scope

REQUESTS_MAX = 512
"""Requests that are answered at once, polls that wait apart."""
LATE_SECONDS = 8.0
"""By which the event loop is late, on average, where everything is refused; clients wait 20 s for an answer."""
_TICK_SECONDS = 0.25
_SHARE_OF_ONE = 8  # one address has at most 1/8 of the requests under way


class RequestKind(IntEnum):
    """From the cheapest to lose on."""

    WATCH = 0
    PAGE = 1
    POLL = 2
    LISTING = 3
    DOWNLOAD = 4
    UPLOAD = 5

    @property
    def waits(self) -> bool:
        """Held back until there is news: it costs a place, and is not counted."""
        return self in (RequestKind.WATCH, RequestKind.POLL)


REFUSED_FROM = {
    RequestKind.WATCH: 0.3, RequestKind.PAGE: 0.4, RequestKind.POLL: 0.5, RequestKind.LISTING: 0.65, RequestKind.DOWNLOAD: 0.8,
    RequestKind.UPLOAD: 1.0,
}  # fmt: skip
"""Level from which a kind is refused."""
RETRY_SECONDS = {
    RequestKind.WATCH: 15, RequestKind.PAGE: 5, RequestKind.POLL: 15, RequestKind.LISTING: 5, RequestKind.DOWNLOAD: 3,
    RequestKind.UPLOAD: 2,
}  # fmt: skip
"""After which a refused request may come back."""


def kind_of(scope: Scope) -> RequestKind:
    if scope["method"] not in ("GET", "HEAD"):
        return RequestKind.UPLOAD
    where = f"/{scope['path'].removeprefix('/')}".split("/", 5)  # "", "v1", "runs", run, what
    waits = asks_to_wait(scope["query_string"])
    if where[1] != "v1":
        return RequestKind.WATCH if waits else RequestKind.PAGE
    if waits:
        return RequestKind.POLL
    return RequestKind.DOWNLOAD if len(where) > 4 and where[4] in ("files", "tasks") else RequestKind.LISTING


def asks_to_wait(query: bytes) -> bool:
    if b"wait" not in query and b"%" not in query:
        return False
    try:
        said = parse_qs(query.decode("latin-1"), max_num_fields=16).get("wait", ["0"])
    except ValueError:
        return True  # it will be refused for what it says
    return any(text.strip("0") for text in said)


class Load:
    """For one event loop."""

    def __init__(self, most: int = REQUESTS_MAX) -> None:
        self.lateness = 0.0
        """Seconds by which the event loop is late, on average over about a second."""
        self._most = most
        self._under_way: Counter[str] = Counter()  # by address
        self._count = 0
        self._is_watching = False

    @property
    def level(self) -> float:
        """1 where everything is refused."""
        return max(self._count / self._most, self.lateness / LATE_SECONDS)

    def refuses(self, kind: RequestKind) -> bool:
        """Whether none of this kind is answered now, whoever asks."""
        return self.level >= REFUSED_FROM[kind]

    def admit(self, kind: RequestKind, address: str) -> bool:
        """Whether such a request is answered now; then `done` must follow."""
        if self.refuses(kind):
            return False
        if kind.waits:
            return True
        if self._under_way[address] >= max(1, self._most // _SHARE_OF_ONE):
            return False
        self._under_way[address] += 1
        self._count += 1
        return True

    def done(self, kind: RequestKind, address: str) -> None:
        if not kind.waits:
            self._count -= 1
            self._under_way[address] -= 1
            if not self._under_way[address]:
                del self._under_way[address]

    def watch(self, loop: asyncio.AbstractEventLoop, while_: Callable[[], object], tell: Callable[[], None]) -> None:
        """Follows how late the loop is for as long as `while_` says, and calls `tell` about every second."""
        if self._is_watching:
            return
        self._is_watching, ticks = True, 0

        def tick(due: float) -> None:
            nonlocal ticks
            now, ticks = loop.time(), ticks + 1
            self.lateness += 0.5 * (now - due - self.lateness)
            if ticks % round(1 / _TICK_SECONDS) == 0:
                tell()
            self._is_watching = bool(while_())
            if self._is_watching:
                loop.call_at(now + _TICK_SECONDS, tick, now + _TICK_SECONDS)
            else:
                self.lateness = 0.0
                tell()

        loop.call_later(_TICK_SECONDS, tick, loop.time() + _TICK_SECONDS)
