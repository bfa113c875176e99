"""Answers byte ranges of a version store over HTTP/1.1: the serving half of origin and relay.

    GET /v/<step>/manifest            the signed manifest
    GET /v/<step>/files/<name>        a file, or one range of it (Range: bytes=<first>-<last>, both within the file)

One thread per connection; `sendfile` moves the bytes without the interpreter. A connection that waits for its next
request costs nothing and gives way to a new one when the house is full; one that reads slower than `floor_rate` is cut.
Nothing is listed, nothing is decoded, and a target that is not literally one of the two forms above is not found.

It does not encrypt: what it serves is public and verified by hash.
"""

from __future__ import annotations

import os
import re
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Event, Lock, Thread

from protocol import metrics
from protocol.errors import PreflightError, ProtocolViolation
from protocol.shardcast.http1 import Head, Wire, write_head
from protocol.shardcast.manifest import FILE_NAME
from protocol.shardcast.store import VersionStore

_REQUEST = re.compile(r"(?P<method>[A-Z]{1,16}) (?P<target>/[\x21-\x7e]*) HTTP/1\.1")
_TARGET = re.compile(rf"/v/(?P<step>0|[1-9][0-9]{{0,9}})/(?:(?P<manifest>manifest)|files/(?P<name>{FILE_NAME}))")
_RANGE = re.compile(r"bytes=(?P<first>[0-9]{1,16})-(?P<last>[0-9]{1,16})")
_BYTES = metrics.counter("murmur_shardcast_served_bytes_total", "Bytes of weights that left this server.")
_REQUESTS = metrics.counter("murmur_shardcast_requests_total", "Requests for weights.")
_REFUSED = metrics.counter("murmur_shardcast_refused_total", "Connections turned away for want of room.")
_ACCEPT_PAUSE = 0.1  # seconds without accepting after the system refused a connection, for instance for want of files


@dataclass(frozen=True)
class ServerLimits:
    """`connections` at once, of them `per_address` from one IP address (many nodes may share one).

    Seconds: `idle` between requests, `head` for a request to arrive, `stall` without the peer reading a byte. A body
    must be read at `floor_rate` bytes per second at least. A connection younger than `eviction_age` seconds of idleness
    is not sent away for a new one.
    """

    connections: int = 256
    per_address: int = 64
    idle: float = 60.0
    head: float = 10.0
    stall: float = 20.0
    floor_rate: int = 64 << 10
    eviction_age: float = 1.0


@dataclass
class ServerCounts:
    """What a server has done so far."""

    connections: int = 0
    refused: int = 0
    requests: int = 0
    bytes_served: int = 0


@dataclass(eq=False)
class _Guest:
    """One connection and whether it waits (since when) or is being answered (None)."""

    wire: Wire
    address: str
    idle_since: float | None
    leaving: bool = False
    thread: Thread = field(init=False)


class ShardServer:
    """Serves `store` while the context lasts. Port 0 takes a free one; `url` tells which.

    `progress(step, name, count)` is called from serving threads for every piece of a file that left.
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
    ) -> None:
        self.store, self.host, self.port = store, host, port
        self.limits = limits or ServerLimits()
        self.counts = ServerCounts()
        self._progress = progress
        self._mutex = Lock()
        self._guests: set[_Guest] = set()
        self._closing = Event()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def __enter__(self) -> ShardServer:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            self._listener = socket.create_server((self.host, self.port), family=family, backlog=128)
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
            with suppress(OSError):  # it has gone already
                self._admit(sock, address[0])

    def _admit(self, sock: socket.socket, address: str) -> None:
        wire = Wire(sock, self.limits.stall)
        guest = _Guest(wire, address, time.monotonic())
        guest.thread = Thread(target=self._host, args=(guest,), name=f"shardcast-{address}", daemon=True)
        with self._mutex:
            admitted = self._has_room(address)
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
            sock.send(_refusal(HTTPStatus.SERVICE_UNAVAILABLE))
        wire.close()

    def _has_room(self, address: str) -> bool:
        """Whether one more fits in, after sending away whoever has been idle for longest if that is what it takes."""
        guests = [guest for guest in self._guests if not guest.leaving]
        neighbours = [guest for guest in guests if guest.address == address]
        if len(neighbours) >= self.limits.per_address:
            return self._send_away(neighbours)
        if len(guests) >= self.limits.connections:
            return self._send_away(guests)
        return True

    def _send_away(self, guests: list[_Guest]) -> bool:
        """Ends the connection among `guests` that has been idle for longest; False if none has been for long enough."""
        now = time.monotonic()
        idle = {guest: now - guest.idle_since for guest in guests if guest.idle_since is not None}
        longest = max(idle, key=lambda guest: idle[guest], default=None)
        if longest is None or idle[longest] < self.limits.eviction_age:
            return False
        longest.leaving = True
        longest.wire.shut()
        return True

    # ---- one connection

    def _host(self, guest: _Guest) -> None:
        wire = guest.wire
        try:
            while wire.wait_for_head(time.monotonic() + self.limits.idle):
                head = wire.read_head(time.monotonic() + self.limits.head)
                if head is None:
                    return
                with self._mutex:
                    if guest.leaving:
                        return
                    guest.idle_since = None
                    self.counts.requests += 1
                    _REQUESTS.add()
                if not self._answer(wire, head):
                    return
                guest.idle_since = time.monotonic()
        except ProtocolViolation:
            self._refuse(wire, HTTPStatus.BAD_REQUEST)
        except OSError:
            pass  # gone, too slow or closed by us: there is nobody to tell
        finally:
            with self._mutex:
                self._guests.discard(guest)
            wire.close()

    def _answer(self, wire: Wire, head: Head) -> bool:
        """Answers one request; False if the connection ends with it. Raises Malformed for what is no request."""
        request = _REQUEST.fullmatch(head.first)
        if request is None or head.content_length() or head.field("host") is None:
            return self._refuse(wire, HTTPStatus.BAD_REQUEST)
        if request["method"] != "GET":
            return self._refuse(wire, HTTPStatus.METHOD_NOT_ALLOWED)
        stays = (head.field("connection") or "").lower() != "close"
        target = _TARGET.fullmatch(request["target"])
        if target is None:
            return self._send_status(wire, HTTPStatus.NOT_FOUND) and stays
        step = int(target["step"])
        if target["manifest"]:
            return self._send_manifest(wire, step) and stays
        return self._send_file(wire, step, target["name"], head.field("range")) and stays

    def _send_manifest(self, wire: Wire, step: int) -> bool:
        try:
            body = self.store.manifest(step)
        except PreflightError:  # not held, or retired in this moment
            return self._send_status(wire, HTTPStatus.NOT_FOUND)
        head = write_head("HTTP/1.1 200 OK", {"Content-Type": "application/json", "Content-Length": str(len(body))})
        wire.send(head + body, self._deadline(len(body)))
        return True

    def _send_file(self, wire: Wire, step: int, name: str, wanted: str | None) -> bool:
        fd = self.store.open_file(step, name)
        if fd is None:
            return self._send_status(wire, HTTPStatus.NOT_FOUND)
        try:
            size = os.fstat(fd).st_size
            first, last = 0, size - 1
            fields = {"Content-Type": "application/octet-stream"}
            if wanted is not None:
                match = _RANGE.fullmatch(wanted)
                if match is None:
                    return self._refuse(wire, HTTPStatus.BAD_REQUEST)
                first, last = int(match["first"]), int(match["last"])
                if not first <= last < size:
                    return self._send_status(
                        wire, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}"}
                    )
                fields["Content-Range"] = f"bytes {first}-{last}/{size}"
            length = last - first + 1
            status = HTTPStatus.OK if wanted is None else HTTPStatus.PARTIAL_CONTENT
            deadline = self._deadline(length)
            wire.send(_head(status, fields | {"Content-Length": str(length)}), deadline, more=length > 0)
            wire.send_file(fd, first, length, deadline, lambda count: self._count(step, name, count))
            return True
        finally:
            os.close(fd)

    def _count(self, step: int, name: str, count: int) -> None:
        with self._mutex:
            self.counts.bytes_served += count
        _BYTES.add(count)
        self._progress(step, name, count)

    def _deadline(self, length: int) -> float:
        return time.monotonic() + self.limits.stall + length / self.limits.floor_rate

    def _send_status(self, wire: Wire, status: HTTPStatus, fields: dict[str, str] | None = None) -> bool:
        """An answer without a body, after which the connection goes on."""
        wire.send(_head(status, (fields or {}) | {"Content-Length": "0"}), self._deadline(0))
        return True

    def _refuse(self, wire: Wire, status: HTTPStatus) -> bool:
        """The last answer of a connection whose peer does not speak as it should."""
        with suppress(OSError):
            wire.send(_refusal(status), self._deadline(0))
        return False


def _head(status: HTTPStatus, fields: dict[str, str]) -> bytes:
    return write_head(f"HTTP/1.1 {status.value} {status.phrase}", fields)


def _refusal(status: HTTPStatus) -> bytes:
    return _head(status, {"Content-Length": "0", "Connection": "close"})
