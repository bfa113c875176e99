"""What a server answers to a request for weights, and to whom first.

    GET /v/<step>/manifest            the signed manifest
    GET /v/<step>/files/<name>        a file, or one range of it (Range: bytes=<first>-<last>, both within the file)
    GET /v/<step>/delta/<name>        what makes that file out of the base's, likewise
    GET /v/<step>/holding?…           which chunks are here, and which are on their way (holding.py)
    GET /v/<step>/delta/holding?…     the same of the delta
    GET /v/<step>/opening?…           what is signed so far of a version that is still being written (opening.py)
    GET /v/<step>/opened/<id>/…       files/<name> and holding?… of that one

A version that is still being fetched is answered for chunk by chunk. Nothing is listed, nothing is decoded, and a target
that is not literally one of these forms is not found. Every body counts against the uplink's cap. What is not here is 404 where it may come, and 410 where it will not:
a version when a newer one is here already, the delta of a version that was fetched whole. A line that is used up answers
503, with Retry-After.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from protocol.constants import SHARDCAST_CHUNK_BYTES
from protocol.errors import PreflightError
from protocol.shardcast.bucket import NoTurn
from protocol.shardcast.guest import Guest, neighbourhood
from protocol.shardcast.holding import COMPLETE, REVISION_COMPLETE, WAIT_MS_MAX
from protocol.shardcast.http1 import Head, Wire, write_head
from protocol.shardcast.manifest import FILE_NAME
from protocol.shardcast.store import DELTA_FOLDER, VersionStore
from protocol.shardcast.uplink import SMALL_BYTES_MAX, Uplink

_REQUEST = re.compile(r"(?P<method>[A-Z]{1,16}) (?P<target>/[\x21-\x7e]*) HTTP/1\.1")
_TARGET = re.compile(
    rf"/v/(?P<step>0|[1-9][0-9]{{0,9}})/(?:opened/(?P<opened>[0-9a-f]{{64}})/)?"
    rf"(?:(?P<manifest>manifest)|(?P<part>files|delta)/(?P<name>{FILE_NAME})"
    r"|(?P<news>(?P<of_delta>delta/)?holding\?|opening\?of=(?P<of>[0-9a-f]{64})&)after=(?P<after>[0-9]{1,20})&wait=(?P<wait>[0-9]{1,5}))"
)
_RANGE = re.compile(r"bytes=(?P<first>[0-9]{1,16})-(?P<last>[0-9]{1,16})")
_SLICE_SECONDS = 0.5  # of a wait, so that a server that closes ends soon
_QUEUE_SECONDS = 6.0  # an answer may have to wait for its turn; clients give up after ten
_SMALL_QUEUE_SECONDS = 3.0  # the same where it may have waited for news before


@dataclass(frozen=True)
class Answers:
    """Answers for `store` through `uplink`. A guest for whom `is_first` holds is served before others; one for whom `elsewhere`
    names other servers is sent there instead of being given files. Answers have `deadline(bytes)` to arrive; `sent(guest, step, name, count)`
    is told of every piece of a file that left. `waits` says that a request has nothing to do but wait.
    """

    store: VersionStore
    uplink: Uplink
    deadline: Callable[[int], float]
    sent: Callable[[Guest, int, str, int], None]
    is_first: Callable[[Guest], bool] = lambda guest: True
    elsewhere: Callable[[Guest, int], list[str]] = lambda guest, step: []
    is_closing: Callable[[], bool] = lambda: False

    def answer(self, wire: Wire, head: Head, address: str, waits: Callable[[bool], None]) -> bool:
        """Answers one request; False if the connection ends with it. Raises Malformed for what is no request."""
        request = _REQUEST.fullmatch(head.first)
        if request is None or head.content_length() or head.field("host") is None:
            return self.refuse(wire, HTTPStatus.BAD_REQUEST)
        if request["method"] != "GET":
            return self.refuse(wire, HTTPStatus.METHOD_NOT_ALLOWED)
        stays = (head.field("connection") or "").lower() != "close"
        target = _TARGET.fullmatch(request["target"])
        if target is None:
            return self._send_status(wire, HTTPStatus.NOT_FOUND) and stays
        step, opened = int(target["step"]), target["opened"]
        of_delta = bool(target["of_delta"] or target["part"] == "delta")
        if opened and (target["manifest"] or of_delta or target["of"]):
            return self._send_status(wire, HTTPStatus.NOT_FOUND) and stays
        guest = Guest(address, head.field("serves"))
        if target["manifest"]:
            return self._send_manifest(wire, guest, step) and stays
        if target["news"]:
            if int(target["after"]) >= REVISION_COMPLETE:  # after which there is no news to wait for
                return self.refuse(wire, HTTPStatus.BAD_REQUEST)
            after, ends = int(target["after"]), time.monotonic() + min(int(target["wait"]), WAIT_MS_MAX) / 1000
            waits(True)
            try:
                if of_delta:
                    body = self._delta_news(step, after, ends)
                else:
                    body = self._news(step, opened, target["of"], after, ends)
            finally:
                waits(False)
            if body is None:
                return self._send_absent(wire, step, never=of_delta and not self._may_have_delta(step)) and stays
            return self._send_body(wire, guest, body, "application/octet-stream") and stays
        name = target["name"] if target["part"] == "files" else f"{DELTA_FOLDER}/{target['name']}"
        return self._send_file(wire, guest, step, name, head.field("range"), opened) and stays

    def refuse(self, wire: Wire, status: HTTPStatus) -> bool:
        """The last answer of a connection whose peer does not speak as it should."""
        with suppress(OSError):
            wire.send(refusal(status), self.deadline(0))
        return False

    # ---- the three kinds of answers

    def _send_manifest(self, wire: Wire, guest: Guest, step: int) -> bool:
        growing = self.store.growing(step)
        if growing is not None:
            return self._send_body(wire, guest, growing.signed, "application/json")
        try:
            body = self.store.manifest(step)
        except PreflightError:  # not held, or retired in this moment
            return self._send_absent(wire, step)
        return self._send_body(wire, guest, body, "application/json")

    def _news(self, step: int, opened: str | None, of: str | None, after: int, ends: float) -> bytes | None:
        """What is asked for by holding? and opening?, once there is news or the time is over; None where there is nothing of it."""
        if of is not None:
            return self._opening(step, of, after, ends)
        if opened is not None:
            return self._opened_holding(step, opened, after, ends)
        self._wait_for(step, ends)
        told = None
        while (growing := self.store.growing(step)) is not None:
            told = growing.holding(after, _slice(ends))
            if told.revision > after or not _slice(ends) or self.is_closing():
                break
        if self.store.holds(step):
            return COMPLETE
        return None if growing is None or told is None else told.encode()  # what is no longer shown is not served

    def _delta_news(self, step: int, after: int, ends: float) -> bytes | None:
        self._wait_for(step, ends)
        told = None
        while (growing := self.store.growing(step)) is not None:
            told = growing.delta_holding(after, _slice(ends))
            if told is None or told.revision > after or not _slice(ends) or self.is_closing():
                return None if told is None else told.encode()
        if self.store.has_delta(step):
            return COMPLETE
        return None if growing is None or told is None or self.store.holds(step) else told.encode()

    def _wait_for(self, step: int, ends: float) -> None:
        """Until there is something of a version, or a newer one, or the time is over."""
        while not self.store.wait_for(step, _slice(ends)) and _slice(ends) and not self.is_closing():
            pass

    def _opening(self, step: int, of: str, after: int, ends: float) -> bytes | None:
        while True:
            shown = self.store.wait_for_opened(step, _slice(ends))
            is_over = not _slice(ends) or self.is_closing()
            if shown is not None and (shown.has_news(of, after, _slice(ends)) or is_over):
                return shown.tell(of, after)
            if shown is None and (is_over or self.store.newest() >= step):
                return None

    def _opened_holding(self, step: int, opened: str, after: int, ends: float) -> bytes | None:
        while (shown := self.store.opened(step)) is not None and shown.id == opened:
            told = shown.holding(after, _slice(ends))
            if told.revision > after or not _slice(ends) or self.is_closing():
                return told.encode()
        return None

    def _send_file(
        self, wire: Wire, guest: Guest, step: int, name: str, wanted: str | None, opened: str | None
    ) -> bool:
        bounds = None if wanted is None else _RANGE.fullmatch(wanted)
        if wanted is not None and bounds is None:
            return self.refuse(wire, HTTPStatus.BAD_REQUEST)
        fd, size = self._open(step, name, bounds) if opened is None else self._open_opened(step, opened, name, bounds)
        if fd is None:
            is_delta = name.startswith(DELTA_FOLDER)
            return self._send_absent(wire, step, never=is_delta and not self._may_have_delta(step))
        try:
            size = os.fstat(fd).st_size if size is None else size
            first, last = (0, size - 1) if bounds is None else (int(bounds["first"]), int(bounds["last"]))
            if bounds is not None and not first <= last < size:
                return self._send_status(
                    wire, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, {"Content-Range": f"bytes */{size}"}
                )
            others = self.elsewhere(guest, step)
            if others:
                return self._send_busy(wire, others)
            fields = {"Content-Type": "application/octet-stream", "Content-Length": str(last - first + 1)}
            if bounds is not None:
                fields["Content-Range"] = f"bytes {first}-{last}/{size}"
            status = HTTPStatus.OK if bounds is None else HTTPStatus.PARTIAL_CONTENT
            return self._send_bytes(wire, guest, _head(status, fields), fd, first, last + 1, (step, name))
        finally:
            os.close(fd)

    # ---- inside

    def _open(self, step: int, name: str, bounds: re.Match[str] | None) -> tuple[int | None, int | None]:
        """A descriptor, and the file's size where that is not the descriptor's."""
        growing = self.store.growing(step)
        if growing is not None and bounds is not None:
            fd = growing.open_range(name, int(bounds["first"]), int(bounds["last"]))
            if fd is not None or self.store.growing(step) is growing:
                return fd, None  # else it has become complete meanwhile, and closed what it was written with
        return self.store.open_file(step, name), None

    def _open_opened(
        self, step: int, opened: str, name: str, bounds: re.Match[str] | None
    ) -> tuple[int | None, int | None]:
        shown = self.store.opened(step)
        if shown is None or shown.id != opened or bounds is None:
            return None, None
        return shown.open_range(name, int(bounds["first"]), int(bounds["last"])), shown.size_of(name)

    def _send_bytes(
        self, wire: Wire, guest: Guest, head: bytes, fd: int, first: int, end: int, what: tuple[int, str]
    ) -> bool:
        """Sends `head` and the bytes from `first` to before `end` of an open file, in turns with everybody else."""

        def send(offset: int, length: int, deadline: float) -> None:
            wire.send_file(fd, offset, length, deadline, lambda count: self.sent(guest, *what, count))

        return self._send_in_turns(wire, guest, head, first, end, send)

    def _send_in_turns(
        self, wire: Wire, guest: Guest, head: bytes, first: int, end: int, send: Callable[[int, int, float], None]
    ) -> bool:
        """Sends `head`, and by `send(offset, length, deadline)` what lies from `first` to before `end`."""
        uplink, began, is_first, peer = self.uplink, first, self.is_first(guest), neighbourhood(guest.address)
        while True:
            stop = min(end, first + SHARDCAST_CHUNK_BYTES)
            try:
                with uplink.turn(stop - first, first=is_first, deadline=uplink.clock() + _QUEUE_SECONDS, peer=peer):
                    deadline = self.deadline(stop - first)  # a piece's own: one for a whole file would be days away
                    if first == began:
                        wire.send(head, deadline, more=first < end)
                    while first < stop:
                        length = uplink.bucket.piece(stop - first)
                        uplink.bucket.spend(length)
                        send(first, length, deadline)
                        first += length
            except NoTurn:
                if first == began:
                    return self._send_busy(wire, [])
                raise
            if first >= end:
                return True

    def _may_have_delta(self, step: int) -> bool:
        growing = self.store.growing(step)
        return not self.store.holds(step) if growing is None else growing.has_delta

    def _send_absent(self, wire: Wire, step: int, *, never: bool = False) -> bool:
        gone = never or self.store.newest() > step
        return self._send_status(wire, HTTPStatus.GONE if gone else HTTPStatus.NOT_FOUND)

    def _send_busy(self, wire: Wire, others: list[str]) -> bool:
        fields = {"Retry-After": "2"} | ({"Relays": " ".join(others)} if others else {})
        return self._send_status(wire, HTTPStatus.SERVICE_UNAVAILABLE, fields)

    def _send_body(self, wire: Wire, guest: Guest, body: bytes, kind: str) -> bool:
        head = _head(HTTPStatus.OK, {"Content-Type": kind, "Content-Length": str(len(body))})
        if len(body) > SMALL_BYTES_MAX:
            view = memoryview(body)

            def send(offset: int, length: int, deadline: float) -> None:
                wire.send(view[offset : offset + length], deadline)
                wire.sent += length

            return self._send_in_turns(wire, guest, head, 0, len(body), send)
        bucket, peer = self.uplink.bucket, neighbourhood(guest.address)
        deadline = self.uplink.clock() + _SMALL_QUEUE_SECONDS
        try:
            bucket.spend_small(len(body), peer=peer, first=self.is_first(guest), deadline=deadline)
        except NoTurn:
            return self._send_busy(wire, [])
        wire.send(head + body, self.deadline(len(body)))
        return True

    def _send_status(self, wire: Wire, status: HTTPStatus, fields: dict[str, str] | None = None) -> bool:
        """An answer without a body, after which the connection goes on."""
        wire.send(_head(status, (fields or {}) | {"Content-Length": "0"}), self.deadline(0))
        return True


def _slice(ends: float) -> float:
    """Seconds to wait before it is looked whether the server closes; 0 when the time is over."""
    return max(0.0, min(_SLICE_SECONDS, ends - time.monotonic()))


def _head(status: HTTPStatus, fields: dict[str, str]) -> bytes:
    return write_head(f"HTTP/1.1 {status.value} {status.phrase}", fields)


def refusal(status: HTTPStatus) -> bytes:
    return _head(status, {"Content-Length": "0", "Connection": "close"})
