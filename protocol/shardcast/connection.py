"""Persistent connections to sources: one request at a time, answers taken only if they are exactly what was asked for.

A source that cannot be reached, answers that it cannot serve, ends early or is too slow is `Unavailable` or an OSError
and is at no fault. One that answers with anything else than what was asked, such as a redirect, another length, another
range or no HTTP, commits a ProtocolViolation.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from threading import Event, Lock, Thread
from typing import Any

from protocol.errors import Malformed, Oversized, Unavailable
from protocol.reach import Reach
from protocol.shardcast.guest import plain_address
from protocol.shardcast.http1 import Head, Wire, write_head
from protocol.shardcast.source import Source, referred

_SECONDS = re.compile(r"[0-9]{1,6}")
_RETRY_AFTER_MAX = 30  # seconds that a source may ask for; the deadline of a fetch is the fetch's own
_STATUS = re.compile(r"HTTP/1\.1 (?P<status>[0-9]{3})(?: .*)?")


class StaleConnection(ConnectionError):
    """A kept connection was closed by the other side while it was idle: no failure, a fresh one may serve."""


class NotServed(Unavailable):
    """A source answers that it does not serve this, with `status`; it asks to be left alone for `retry_after` seconds, and names
    relays to ask `instead`."""

    def __init__(self, status: int, retry_after: float, instead: Sequence[Source] = ()) -> None:
        super().__init__(
            f"answers with status {status}" + (": it serves others only" if status == HTTPStatus.FORBIDDEN else "")
        )
        self.status, self.retry_after, self.instead = status, retry_after, instead

    @property
    def is_for_good(self) -> bool:
        """Whether it serves others, not this machine: asking again would be of no use for now."""
        return self.status == HTTPStatus.FORBIDDEN


@dataclass(frozen=True)
class Timeouts:
    """Seconds to `connect`, and `idle` without a byte or until an answer begins; a chunk comes at `floor_rate` bytes per
    second at least."""

    connect: float = 5.0
    idle: float = 10.0
    floor_rate: int = 64 << 10


class SourceConnection:
    """A wire to one source. After any error it is of no more use."""

    def __init__(self, source: Source, sock: socket.socket, timeouts: Timeouts, fields: dict[str, str]) -> None:
        self.source = source
        self._fields = fields
        self._wire = Wire(sock, timeouts.idle)
        self._timeouts = timeouts
        self._host = source.url.partition("://")[2].rstrip("/")
        self._unread = 0
        self._has_served = False

    @property
    def is_clean(self) -> bool:
        """Whether the last answer was read to its end, so that another request may follow."""
        return not self._unread and not self._wire.has_surplus

    def connect(self, address: Any, deadline: float) -> None:
        self._wire.connect(address, deadline)
        if self.source.is_encrypted:
            self._wire.start_tls(ssl.create_default_context(), deadline, server_name=self.source.address()[0])

    def ask_whole(self, target: str, cap: int, deadline: float) -> int:
        """Asks for all of `target`; its length, Oversized if that is more than `cap` bytes."""
        head = self._ask(target, {}, deadline)
        length = self._require(head, 200)
        if length > cap:
            raise Oversized(f"answers with {length} bytes, more than {cap}")
        self._unread = length
        return length

    def ask_range(self, target: str, first: int, last: int, size: int, deadline: float) -> None:
        """Asks for bytes `first` to `last` (inclusive) of a file of `size` bytes."""
        head = self._ask(target, {"Range": f"bytes={first}-{last}"}, deadline)
        length = self._require(head, 206)
        if length != last - first + 1:
            raise Malformed(f"answers with {length} bytes where {last - first + 1} were asked for")
        if head.field("content-range") != f"bytes {first}-{last}/{size}":
            raise Malformed(f"answers with another range: {str(head.field('content-range'))[:80]!r}")
        self._unread = length

    def read(self, view: memoryview, deadline: float) -> None:
        """Fills `view` with the next bytes of the answer, at the slowest rate allowed or faster."""
        slowest = time.monotonic() + self._timeouts.idle + len(view) / self._timeouts.floor_rate
        self._wire.read_into(view, min(slowest, deadline))
        self._unread -= len(view)

    def shut(self) -> None:
        self._wire.shut()

    def close(self) -> None:
        self._wire.close()

    def _ask(self, target: str, fields: dict[str, str], deadline: float) -> Head:
        limit = min(deadline, time.monotonic() + self._timeouts.idle)
        request = write_head(f"GET {target} HTTP/1.1", {"Host": self._host} | self._fields | fields)
        try:
            self._wire.send(request, limit)
            head = self._wire.read_head(limit)
            if head is None:
                raise ConnectionResetError("closed without an answer")
        except ConnectionError as error:
            raise StaleConnection(str(error)) if self._has_served else error from None
        self._has_served = True
        return head

    def _require(self, head: Head, wanted: int) -> int:
        """The length of an answer with status `wanted`."""
        match = _STATUS.fullmatch(head.first)
        if match is None:
            raise Malformed(f"answers {head.first[:80]!r}")
        status = int(match["status"])
        if status != wanted:
            if status < 400 or status == 416:  # its file is not the one in the manifest
                raise Malformed(f"answers with status {status}")
            wait = head.field("retry-after") or "0"
            patience = min(int(wait), _RETRY_AFTER_MAX) if _SECONDS.fullmatch(wait) else 0.0
            raise NotServed(status, patience, self._instead(head) if status == HTTPStatus.SERVICE_UNAVAILABLE else ())
        length = head.content_length()
        if length is None:
            raise Malformed("answers without a Content-Length")
        return length

    def _instead(self, head: Head) -> list[Source]:
        """Relays that an origin names; what a relay says of others is not heard."""
        named = head.field("relays")
        if named is None or self.source.is_relay:
            return []
        return referred(named, _reach_of(self._wire.socket.getpeername()[0]))


class ConnectionPool:
    """The connections of one fetch, kept open between requests; closing it wakes whoever waits on any of them."""

    def __init__(self, timeouts: Timeouts, fields: dict[str, str] | None = None) -> None:
        """`fields` are header fields of every request."""
        self._timeouts, self._fields = timeouts, fields or {}
        self._mutex = Lock()
        self._idle: dict[str, list[SourceConnection]] = defaultdict(list)
        self._open: set[SourceConnection] = set()
        self._is_closed = False

    def take(self, source: Source, deadline: float, *, fresh: bool = False) -> SourceConnection:
        """A connection to `source`: one that has served before if there is one, unless it must be `fresh`."""
        with self._mutex:
            if self._idle[source.name] and not fresh:
                return self._idle[source.name].pop()
        return self._dial(source, min(deadline, time.monotonic() + self._timeouts.connect))

    def give(self, connection: SourceConnection) -> None:
        """Takes a connection back after use, or ends it if its last answer was not read to the end."""
        with self._mutex:
            if connection.is_clean and not self._is_closed:
                self._idle[connection.source.name].append(connection)
                return
        self.drop(connection)

    def drop(self, connection: SourceConnection) -> None:
        with self._mutex:
            self._open.discard(connection)
        connection.close()

    def close(self) -> None:
        """Shuts every connection. Those in use are dropped by their threads, the others here."""
        with self._mutex:
            self._is_closed = True
            for connection in self._open:
                connection.shut()
            idle = [connection for kept in self._idle.values() for connection in kept]
        for connection in idle:
            self.drop(connection)

    def _dial(self, source: Source, deadline: float) -> SourceConnection:
        """Connects to the first of the source's addresses that answers."""
        reason: OSError = TimeoutError("no address answered in time")
        for family, kind, protocol, _, address in _resolve(*source.address(), deadline):
            if source.reach < Reach.NOWHERE and Reach.of(plain_address(address[0])) > source.reach:
                reason = OSError("its address is nearer to this machine than the one that named it")
                continue
            connection = SourceConnection(source, socket.socket(family, kind, protocol), self._timeouts, self._fields)
            with self._mutex:
                if self._is_closed:
                    connection.close()
                    raise ConnectionAbortedError("the fetch has ended")
                self._open.add(connection)  # before it connects: `close` must be able to wake that too
            try:
                connection.connect(address, deadline)
                return connection
            except OSError as error:
                reason = error
                self.drop(connection)
        raise reason


def nearest(places: Iterable[tuple[str, int]], deadline: float) -> Reach:
    """How near to this machine the nearest of these hosts and ports is; far where their names are not known by the deadline."""
    found = [Reach.FAR]
    for host, port in places:
        with suppress(OSError):
            found += [_reach_of(address[0]) for *_, address in _resolve(host, port, deadline)]
    return max(found)


def _reach_of(ip: str) -> Reach:
    """Of a party that may name others: on this link it is near."""
    found = Reach.of(plain_address(ip))
    return Reach.NEAR if found == Reach.NOWHERE else found


def _resolve(host: str, port: int, deadline: float) -> list[Any]:
    """Addresses of a host name by `deadline`. The system's resolver knows no deadline, so it runs on a thread that is
    left behind if need be; it touches nothing but its own answer."""
    answer: list[Any] = []
    done = Event()

    def ask() -> None:
        try:
            answer.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            answer.append(error)
        except UnicodeError as error:  # no name at all, for instance a label of more than 63 letters
            answer.append(OSError(str(error)))
        done.set()

    Thread(target=ask, name=f"resolve-{host}", daemon=True).start()
    if not done.wait(max(0.0, deadline - time.monotonic())):
        raise TimeoutError(f"the name {host} was not resolved in time")
    if isinstance(answer[0], OSError):
        raise answer[0]
    return answer
