"""One deadline for a whole HTTP call, from looking for the host to the last byte of the answer.

httpx's own timeouts are per read and per write: a peer that sends a byte now and then keeps a call for ever, also within
the headers, where no code of ours is asked. Here every read and write of the socket gets what is left of the call's time.

Not covered: the system's resolver, which has limits of its own.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from ssl import SSLContext
from typing import Any

import httpcore
import httpx

_present: ContextVar[Deadline] = ContextVar("deadline of the present call")

_WHERE = re.compile(r"^\[(Errno|SSL)[^]]*\] | \(_ssl\.c:\d+\)$")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
MayReach = Callable[[IpAddress], bool]


class Deadline:
    """A moment that a transfer pushes back as it gets on, so that only its slowest rate is bounded."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def extend(self, seconds: float) -> None:
        self._at += seconds

    @property
    def left(self) -> float:
        """Seconds; none or fewer once it has passed."""
        return self._at - time.monotonic()


@contextmanager
def within(seconds: float) -> Iterator[Deadline]:
    """What a `Transport` does inside, on this thread, ends within so many seconds or raises httpx.TimeoutException."""
    deadline = Deadline(seconds)
    token = _present.set(deadline)
    try:
        yield deadline
    finally:
        _present.reset(token)


class Transport(httpx.HTTPTransport):
    """httpx's transport for calls inside `within`; outside it raises LookupError, so that none goes without.

    `may_reach` says to which IP addresses it may connect: asked of the address itself after the name was looked up, so that no
    name leads elsewhere than what was asked about. Anything else is an httpx.ConnectError.
    """

    def __init__(self, may_reach: MayReach | None = None) -> None:
        context = _trusted()
        super().__init__(verify=context)
        self._pool = httpcore.ConnectionPool(
            ssl_context=context, max_connections=100, max_keepalive_connections=20, keepalive_expiry=5.0,
            network_backend=_Network(may_reach),
        )  # fmt: skip


@cache
def _trusted() -> SSLContext:
    """The machine's certificates: a parse of 200 kB that every client of a process can share."""
    return httpx.create_ssl_context()


class _Network(httpcore.NetworkBackend):
    def __init__(self, may_reach: MayReach | None = None) -> None:
        self._network = httpcore.SyncBackend()
        self._may_reach = may_reach

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        if self._may_reach is not None:
            host = _reachable(host, port, self._may_reach)
        patience = _patience(timeout, httpcore.ConnectTimeout)
        return _Stream(self._network.connect_tcp(host, port, patience, local_address, socket_options))


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _patience(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Sends piece by piece: httpcore's own loop would grant each of them the whole time anew."""
        view, sock = memoryview(buffer), self._stream.get_extra_info("socket")
        while view:
            sock.settimeout(_patience(timeout, httpcore.WriteTimeout))
            try:
                view = view[sock.send(view) :]
            except TimeoutError as error:
                raise httpcore.WriteTimeout(str(error)) from error
            except OSError as error:
                raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(
            self._stream.start_tls(ssl_context, server_hostname, _patience(timeout, httpcore.ConnectTimeout))
        )

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def why(error: BaseException) -> str:
    """Why a call over the network failed, in the system's words where it has some: "connection refused". Holds no URL, which may have
    a secret in it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return "its name does not resolve"
        if isinstance(cause, TimeoutError | httpx.TimeoutException | httpcore.TimeoutException):
            return "no answer in time"
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted here: {cause.verify_message}"
        if isinstance(cause, OSError) and cause.strerror:
            return _WHERE.sub("", cause.strerror).lower()
        cause = cause.__cause__ or cause.__context__
    return str(error) if isinstance(error, httpx.HTTPError) and str(error) else "the connection broke"


def plain_address(text: str) -> IpAddress:
    """An IP address without zone, an IPv4 one also where it is written as an IPv6 one. Raises ValueError for anything else."""
    ip = ipaddress.ip_address(text.partition("%")[0])
    return ip.ipv4_mapped or ip if isinstance(ip, ipaddress.IPv6Address) else ip


def _reachable(host: str, port: int, may_reach: MayReach) -> str:
    """The first address of a host that may be connected to."""
    try:
        found = [str(place[4][0]) for place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(f"{host[:100]} is not known") from error
    for place in found:
        if may_reach(plain_address(place)):
            return place
    raise httpcore.ConnectError(f"{host[:100]} is at no address that may be connected to")


def _patience(timeout: float | None, late: type[httpcore.TimeoutException]) -> float:
    left = _present.get().left
    if left <= 0:
        raise late("the whole call took too long")
    return left if timeout is None else min(left, timeout)
