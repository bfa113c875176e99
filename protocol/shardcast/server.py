"""Listens for requests for weights over HTTP/1.1: the serving half of origin and relay. answers.py says what is answered.

One thread per connection; `sendfile` moves the bytes without the interpreter. A connection that waits, for its next
request or for news, costs nothing and gives way to a new one when the house is full, and so does one that reads slower
than `floor_rate`. Within each chunk that is sent, one so slow is cut in any case.

It encrypts where it is given a certificate; it need not, for what it serves is public and verified by hash.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Event, Lock, Thread

from protocol import metrics
from protocol.errors import PreflightError, ProtocolViolation
from protocol.shardcast.answers import Answers, refusal
from protocol.shardcast.guest import Guest, neighbourhood, plain_address, plain_network
from protocol.shardcast.http1 import Head, Wire
from protocol.shardcast.store import VersionStore
from protocol.shardcast.uplink import Uplink

_BYTES = metrics.counter("murmur_shardcast_served_bytes_total", "Bytes of weights that left this server.")
_REQUESTS = metrics.counter("murmur_shardcast_requests_total", "Requests for weights.")
_REFUSED = metrics.counter("murmur_shardcast_refused_total", "Connections turned away: no room, or not allowed.")
log = logging.getLogger("weights")

_ACCEPT_PAUSE = 0.1  # seconds without accepting after the system refused a connection, for instance for want of files


@dataclass(frozen=True)
class ServerLimits:
    """`connections` at once, of them `per_address` from one IPv4 address or one IPv6 /64 (many nodes may share one). Networks that
    are served, if any are named in `allow`, and that are not, in `deny`.

    Seconds: `idle` between requests, `head` for a request to arrive, `stall` without the peer reading a byte. A body
    must be read at `floor_rate` bytes per second at least. A connection younger than `eviction_age` seconds of idleness
    is not sent away for a new one, unless its address has more than the new one's, nor one less than `lateness` seconds behind `floor_rate`.
    """

    connections: int = 256
    per_address: int = 64
    idle: float = 60.0
    head: float = 10.0
    stall: float = 20.0
    floor_rate: int = 64 << 10
    eviction_age: float = 1.0
    lateness: float = 10.0
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def admits(self, address: str) -> bool:
        """Whether an IP address is served at all. One that came through IPv6 (::ffff:a.b.c.d) is the IPv4 one, in settings too."""
        ip = plain_address(address)
        within = [any(ip in plain_network(network) for network in named) for named in (self.allow, self.deny)]
        return (within[0] or not self.allow) and not within[1]


@dataclass
class ServerCounts:
    """What a server has done so far."""

    connections: int = 0
    refused: int = 0
    requests: int = 0
    bytes_served: int = 0


@dataclass(eq=False)
class _Guest:
    """One connection and whether it waits (since when) or is being answered (None), and then since when, and what was sent before.
    `peer` is the neighbourhood of its address: to parse that anew for all who are here would hold up everybody at every newcomer."""

    wire: Wire
    address: str
    peer: str
    idle_since: float | None
    busy_since: float = 0.0
    sent_before: int = 0
    leaving: bool = False
    thread: Thread = field(init=False)


class ShardServer:
    """Serves `store` while the context lasts. Port 0 takes a free one; `url` tells which. With `tls` it speaks https only.

    `progress(step, name, count)` is called from serving threads for every piece of a file that left, and `sent_to(guest, step, count)` with
    who got it.
    Raises PreflightError on entry if the address cannot be listened on.
    """

    def __init__(
        self,
        store: VersionStore,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: ServerLimits | None = None,
        progress: Callable[[int, str, int], None] = lambda step, name, count: None,
        uplink: Uplink | None = None,
        tls: ssl.SSLContext | None = None,
        is_first: Callable[[Guest], bool] = lambda guest: True,
        elsewhere: Callable[[Guest, int], list[str]] = lambda guest, step: [],
        sent_to: Callable[[Guest, int, int], None] = lambda guest, step, count: None,
    ) -> None:
        self.store, self.host, self.port = store, host, port
        self.limits = limits or ServerLimits()
        self.counts = ServerCounts()
        self._progress = progress
        self._sent_to = sent_to
        self._mutex = Lock()
        self._guests: set[_Guest] = set()
        self._closing = Event()
        self._tls = tls
        self._answers = Answers(
            store, uplink or Uplink(), self._deadline, self._count, is_first, elsewhere, self._closing.is_set
        )  # fmt: skip

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    def __enter__(self) -> ShardServer:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            both = self.host == "::" and socket.has_dualstack_ipv6()
            self._listener = socket.create_server(
                (self.host, self.port), family=family, backlog=128, dualstack_ipv6=both
            )
        except OSError as error:
            raise PreflightError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror}",
                hint="set another host or port, or stop what listens there (ss -ltnp shows it)",
            ) from error
        self.port = self._listener.getsockname()[1]
        self._listener.setblocking(False)
        self._wake, self._woken = socket.socketpair()
        self._door = Thread(target=self._welcome, name=f"shardcast-{self.port}", daemon=True)
        self._door.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all connections and waits for their threads, which no longer have anything to wait for."""
        self._closing.set()
        self._wake.close()
        self._door.join()
        self._listener.close()
        self._woken.close()
        with self._mutex:
            guests = list(self._guests)
        for guest in guests:
            guest.wire.shut()
        for guest in guests:
            guest.thread.join()

    # ---- the door

    def _welcome(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while not self._closing.is_set():
            poll.poll()  # without a timeout: `close` wakes it through the pair
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError:
                self._closing.wait(_ACCEPT_PAUSE)
                continue
            try:
                self._admit(sock, address[0])
            except OSError:
                pass  # it has gone already
            except Exception:  # the door stays open whatever one newcomer does
                log.exception("a newcomer was not let in")
                sock.close()

    def _admit(self, sock: socket.socket, address: str) -> None:
        wire = Wire(sock, self.limits.stall)
        guest = _Guest(wire, address, neighbourhood(address), time.monotonic())
        guest.thread = Thread(target=self._host, args=(guest,), name=f"shardcast-{address}", daemon=True)
        refused = HTTPStatus.SERVICE_UNAVAILABLE if self.limits.admits(address) else HTTPStatus.FORBIDDEN
        with self._mutex:
            admitted = refused != HTTPStatus.FORBIDDEN and self._has_room(guest.peer)
            if admitted:
                self._guests.add(guest)
                self.counts.connections += 1
            else:
                self.counts.refused += 1
                _REFUSED.add()
        if admitted:
            try:
                guest.thread.start()
                return
            except RuntimeError:  # the system gives no more threads
                with self._mutex:
                    self._guests.discard(guest)
        sock.setblocking(False)
        with suppress(OSError):  # it learns the same from the closed connection
            if self._tls is None:
                sock.send(refusal(refused))
        wire.close()

    def _has_room(self, peer: str) -> bool:
        """Whether one more of a neighbourhood fits in, after sending away whoever has been idle for longest if that is what it takes."""
        guests = [guest for guest in self._guests if not guest.leaving]
        neighbours = [guest for guest in guests if guest.peer == peer]
        if len(neighbours) >= self.limits.per_address:
            return self._send_away(neighbours)
        if len(guests) >= self.limits.connections:
            return self._thin_out(guests, peer) or self._send_away(guests)
        return True

    def _thin_out(self, guests: list[_Guest], peer: str) -> bool:
        """Ends an idle connection of the neighbourhood that has most, however short it has been idle, where that leaves it no fewer than the
        newcomer's then has: a question now and then keeps no house full."""
        sizes = Counter(guest.peer for guest in guests)
        idle = {
            guest: since
            for guest in guests
            if (since := guest.idle_since) is not None and sizes[guest.peer] > sizes[peer] + 1
        }
        first = min(idle, key=lambda guest: (-sizes[guest.peer], idle[guest]), default=None)
        if first is not None:
            first.leaving = True
            first.wire.shut()
        return first is not None

    def _send_away(self, guests: list[_Guest]) -> bool:
        """Ends the connection among `guests` that has been idle for longest, or reads most slowly; False if none deserves it."""
        now = time.monotonic()
        since = {guest: guest.idle_since for guest in guests}  # once: who waits for news may get some meanwhile
        idle = {guest: now - begun for guest, begun in since.items() if begun is not None}
        late = {guest: self._lateness(guest, now) for guest, begun in since.items() if begun is None}
        for waiting, patience in ((idle, self.limits.eviction_age), (late, self.limits.lateness)):
            longest = max(waiting, key=lambda guest: waiting[guest], default=None)
            if longest is not None and waiting[longest] >= patience:
                longest.leaving = True
                longest.wire.shut()
                return True
        return False

    def _lateness(self, guest: _Guest, now: float) -> float:
        """Seconds by which the reader of an answer is behind the slowest rate allowed."""
        return now - guest.busy_since - (guest.wire.sent - guest.sent_before) / self.limits.floor_rate

    # ---- one connection

    def _host(self, guest: _Guest) -> None:
        wire = guest.wire
        try:
            if self._tls is not None:
                wire.start_tls(self._tls, time.monotonic() + self.limits.head)
            while wire.wait_for_head(time.monotonic() + self.limits.idle):
                head = wire.read_head(time.monotonic() + self.limits.head)
                if head is None:
                    return
                with self._mutex:
                    if guest.leaving:
                        return
                    guest.busy_since, guest.sent_before = time.monotonic(), wire.sent
                    guest.idle_since = None
                    self.counts.requests += 1
                    _REQUESTS.add()
                if not self._answer(guest, head):
                    return
                guest.idle_since = time.monotonic()
        except ProtocolViolation:
            self._answers.refuse(wire, HTTPStatus.BAD_REQUEST)
        except OSError:
            pass  # gone, too slow or closed by us: there is nobody to tell
        finally:
            with self._mutex:
                self._guests.discard(guest)
            wire.close()

    def _answer(self, guest: _Guest, head: Head) -> bool:
        def waits(is_waiting: bool) -> None:
            guest.busy_since = time.monotonic()
            guest.idle_since = guest.busy_since if is_waiting else None

        return self._answers.answer(guest.wire, head, guest.address, waits)

    def _count(self, guest: Guest, step: int, name: str, count: int) -> None:
        with self._mutex:
            self.counts.bytes_served += count
        _BYTES.add(count)
        self._progress(step, name, count)
        self._sent_to(guest, step, count)

    def _deadline(self, length: int) -> float:
        return time.monotonic() + self.limits.stall + length / self.limits.floor_rate
