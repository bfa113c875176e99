"""The strict little of HTTP/1.1 that SHARDCAST speaks: heads of bounded size, bodies of known length, always by a deadline.

Deliberately absent: chunked bodies, continuation lines, compression, redirects, 1xx answers, percent-encoding. Whoever
sends one of these is refused rather than interpreted. Source: RFC 9112, and RFC 9110 section 14 for ranges.

Deadlines are values of `time.monotonic()`. A deadline that passes is a TimeoutError, a connection that ends too early a
ConnectionError: both are OSErrors and nobody's fault. What is no HTTP at all is Malformed or Oversized: the peer's fault.
"""

from __future__ import annotations

import os
import re
import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from protocol.errors import Malformed, Oversized

HEAD_BYTES_MAX = 16 << 10
_END = b"\r\n\r\n"
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t\x80-\xff]*)")
_NUMBER = re.compile(r"[0-9]{1,16}")
_MORE = getattr(socket, "MSG_MORE", 0)  # Linux: the head waits for the body, so that both leave in one packet
_SENDFILE_BYTES = 4 << 20
_ENCRYPTED_BYTES = 256 << 10


def manifest_target(step: int) -> str:
    return f"/v/{step}/manifest"


def file_target(step: int, name: str) -> str:
    return f"/v/{step}/files/{name}"


def delta_target(step: int, name: str) -> str:
    return f"/v/{step}/delta/{name}"


@dataclass(frozen=True)
class Head:
    """First line and header fields of a request or an answer; names in lower case."""

    first: str
    fields: tuple[tuple[str, str], ...]

    def field(self, name: str) -> str | None:
        """The value of a field that may stand once; Malformed if it stands twice."""
        values = [value for known, value in self.fields if known == name]
        if len(values) > 1:
            raise Malformed(f"header {name} stands twice")
        return values[0] if values else None

    def content_length(self) -> int | None:
        """Bytes of the body, None if it is not said. Malformed for a body of any other kind."""
        for unusual in ("transfer-encoding", "content-encoding"):
            if self.field(unusual) is not None:
                raise Malformed(f"header {unusual} is not spoken here")
        text = self.field("content-length")
        if text is None:
            return None
        if not _NUMBER.fullmatch(text):
            raise Malformed(f"Content-Length is {text[:40]!r}")
        return int(text)


class Wire:
    """A connected socket, with the bytes that arrived behind the last head. `idle` seconds without a byte end it."""

    def __init__(self, sock: socket.socket, idle: float) -> None:
        self.socket = sock
        self._idle = idle
        self._ahead = bytearray()
        self.sent = 0  # bytes of bodies that are sent bit by bit
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connect(self, address: Any, deadline: float) -> None:
        self._limit(deadline)
        self.socket.connect(address)

    def start_tls(self, context: ssl.SSLContext, deadline: float, *, server_name: str | None = None) -> None:
        """From now on encrypted: as the client of `server_name`, or as a server. What TLS refuses is an OSError, and nobody's fault:
        the bytes are trusted by their hashes."""
        is_server = server_name is None
        self._limit(deadline)
        self.socket = context.wrap_socket(
            self.socket, server_side=is_server, server_hostname=server_name, do_handshake_on_connect=False
        )
        self.socket.do_handshake()

    def read_head(self, deadline: float) -> Head | None:
        """The next head; None if the peer closed before its first byte."""
        seen = 0
        while (end := self._ahead.find(_END, max(0, seen - 3))) < 0:
            seen = len(self._ahead)
            if seen >= HEAD_BYTES_MAX:
                raise Oversized(f"head of more than {HEAD_BYTES_MAX} bytes")
            self._limit(deadline)
            piece = self.socket.recv(HEAD_BYTES_MAX - seen)
            if not piece:
                if self._ahead:
                    raise ConnectionAbortedError("closed within a head")
                return None
            self._ahead += piece
        text = self._ahead[:end].decode("latin-1")
        del self._ahead[: end + len(_END)]
        return parse_head(text)

    def wait_for_head(self, deadline: float) -> bool:
        """Whether a byte of the next head came before `deadline`; False also when the peer has closed."""
        if not self._ahead:
            try:
                self.socket.settimeout(max(0.0, deadline - time.monotonic()))
                self._ahead += self.socket.recv(HEAD_BYTES_MAX)
            except (TimeoutError, BlockingIOError):
                return False
        return bool(self._ahead)

    def read_into(self, view: memoryview, deadline: float) -> None:
        """Fills `view` with the next bytes of a body, and never takes more."""
        got = min(len(view), len(self._ahead))
        view[:got] = self._ahead[:got]
        del self._ahead[:got]
        while got < len(view):
            self._limit(deadline)
            count = self.socket.recv_into(view[got:])
            if not count:
                raise ConnectionAbortedError(f"closed {len(view) - got} bytes too early")
            got += count

    @property
    def has_surplus(self) -> bool:
        """Whether bytes arrived that belong to no answer that was asked for."""
        return bool(self._ahead)

    def send(self, data: bytes | memoryview, deadline: float, *, more: bool = False) -> None:
        """Sends all of `data`; `more` says that a body follows at once."""
        view = memoryview(data)
        while view:
            self._limit(deadline)
            view = view[self.socket.send(view, _MORE if more and not isinstance(self.socket, ssl.SSLSocket) else 0) :]

    def send_file(self, fd: int, offset: int, length: int, deadline: float, sent: Callable[[int], None]) -> None:
        """Sends `length` bytes of an open file without copying them through this process; reports each piece."""
        if isinstance(self.socket, ssl.SSLSocket):
            self._send_encrypted(fd, offset, length, deadline, sent)
            return
        self.socket.setblocking(False)
        while length:
            try:
                count = os.sendfile(self.socket.fileno(), fd, offset, min(length, _SENDFILE_BYTES))
            except BlockingIOError:
                self._wait_until_writable(deadline)
                continue
            if not count:
                raise ConnectionAbortedError("the file is shorter than it was")
            offset += count
            length -= count
            self.sent += count
            sent(count)

    def _send_encrypted(self, fd: int, offset: int, length: int, deadline: float, sent: Callable[[int], None]) -> None:
        while length:
            piece = os.pread(fd, min(length, _ENCRYPTED_BYTES), offset)
            if not piece:
                raise ConnectionAbortedError("the file is shorter than it was")
            self.send(piece, deadline)
            offset += len(piece)
            length -= len(piece)
            self.sent += len(piece)
            sent(len(piece))

    def shut(self) -> None:
        """Ends the connection from any thread: whoever waits on it wakes with an error."""
        with suppress(OSError):  # the peer was first
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # beneath TLS, which another thread may be using

    def close(self) -> None:
        self.socket.close()

    def _limit(self, deadline: float) -> None:
        self.socket.settimeout(self._patience(deadline))

    def _patience(self, deadline: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("slower than the slowest rate allowed")
        return min(left, self._idle)

    def _wait_until_writable(self, deadline: float) -> None:
        poll = select.poll()
        poll.register(self.socket, select.POLLOUT)
        if not poll.poll(self._patience(deadline) * 1000):
            raise TimeoutError("the reader stands still")


def parse_head(text: str) -> Head:
    """Raises Malformed unless every line has the form the standard wants, without the leniencies it allows."""
    first, *lines = text.split("\r\n")
    fields = []
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise Malformed(f"header line {line[:80]!r}")
        fields.append((match.group(1).lower(), match.group(2).rstrip(" \t")))
    if not first.isprintable():
        raise Malformed(f"first line {first[:80]!r}")
    return Head(first, tuple(fields))


def write_head(first: str, fields: dict[str, str]) -> bytes:
    return "\r\n".join([first, *(f"{name}: {value}" for name, value in fields.items()), "", ""]).encode("latin-1")
