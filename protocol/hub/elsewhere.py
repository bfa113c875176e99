"""A file fetched from where the hub says that it lies: by a signed URL of the bucket behind it, followed once.

The hub is not believed: it could name any machine that its clients reach and it does not. Therefore

    one hop     whatever the other place answers but 200 is no file, another redirect included
    https       plain HTTP only where the hub itself is not on the Internet
    addresses   nothing nearer to this machine than the hub is: a hub on the Internet leads to the Internet only, one in a private
                network not to this machine itself, and none to link-local addresses, where clouds keep credentials
    nothing     of this client is sent along: no header of ours, no cookie, no credential of the URL
    size, hash  the caller's, as for what the hub sends itself

Not covered: who the other place is. It hears of this machine's address and which file it wants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import httpx

from protocol.deadline import Transport, plain_address, why, within
from protocol.errors import Malformed, Oversized, Unavailable
from protocol.reach import Reach

RATE_MIN = 64 << 10
"""A slower transfer gets no more time. Bytes per second."""
_LINK_LENGTH_MAX = 8192  # of a URL; with a session token they have 2 KiB


@dataclass(frozen=True)
class Link:
    """What a hub answered in place of a file."""

    url: str
    hub: Reach

    @classmethod
    def of(cls, answer: httpx.Response) -> Link:
        """Of a redirect, not looked at yet."""
        return cls(answer.headers.get("location", ""), hub_reach(answer))

    def require(self) -> None:
        """Raises Malformed where it is none that is followed."""
        if len(self.url) > _LINK_LENGTH_MAX or not self.url.isascii():
            raise Malformed("the hub names a place that is no URL")
        try:
            url = httpx.URL(self.url)
        except (httpx.InvalidURL, ValueError) as error:
            raise Malformed("the hub names a place that is no URL") from error
        if not url.host or url.userinfo or url.fragment:
            raise Malformed("the hub names a place that is no plain URL")
        if url.scheme != "https" and (url.scheme != "http" or self.hub == Reach.FAR):
            raise Malformed("the hub names a place that is not https")


def hub_reach(answer: httpx.Response) -> Reach:
    """Of the hub that gave an answer, by the address that was connected to; far where that is not known."""
    try:
        peer = answer.extensions["network_stream"].get_extra_info("server_addr")
        found = Reach.of(plain_address(str(peer[0])))
    except (KeyError, TypeError, IndexError, ValueError):
        return Reach.FAR
    return Reach.NEAR if found == Reach.NOWHERE else found


class Elsewhere:
    """For one hub's client; safe to share between threads."""

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds that an answer may take, besides one for every 64 KiB that it moves."""
        self._timeout = timeout
        self._clients: dict[Reach, httpx.Client] = {}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def fetch(self, link: Link, sink: BinaryIO, *, cap: int) -> bytes:
        """Writes what lies there to `sink` and returns its SHA-256. Raises Unavailable, Malformed or Oversized, without the URL: it
        holds a signature."""
        link.require()
        hashed, size = hashlib.sha256(), 0
        with self._answer(link) as parts:
            for part in parts:
                size += len(part)
                if size > cap:
                    raise Oversized(f"the place that the hub named sends more than {cap} bytes")
                hashed.update(part)
                sink.write(part)
        return hashed.digest()

    @contextmanager
    def _answer(self, link: Link) -> Iterator[Iterator[bytes]]:
        try:
            with within(self._timeout) as deadline, self._client(link.hub).stream("GET", link.url) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise Unavailable(f"the place that the hub named answers with {answer.status_code}")

                def parts() -> Iterator[bytes]:
                    for part in answer.iter_raw():
                        deadline.extend(len(part) / RATE_MIN)
                        yield part

                yield parts()
        except httpx.HTTPError as error:
            raise Unavailable(f"the place that the hub named did not answer: {why(error)}") from None
        except (httpx.InvalidURL, ValueError) as error:
            raise Malformed(f"the place that the hub named makes no sense: {type(error).__name__}") from None

    def _client(self, hub: Reach) -> httpx.Client:
        if hub not in self._clients:
            made = httpx.Client(
                timeout=self._timeout, follow_redirects=False, headers={"Accept-Encoding": "identity"}, trust_env=False,
                transport=Transport(lambda ip: Reach.of(ip) <= hub),
            )  # fmt: skip
            self._clients.setdefault(hub, made)
        return self._clients[hub]
