"""Whom a server serves: its own networks, by the address that it sees, which is a proxy's where one stands before it."""

from __future__ import annotations

import socket

import pytest

from protocol.errors import Unavailable
from protocol.shardcast.server import ServerLimits, ShardServer
from protocol.shardcast.settings import ServingSettings

from .conftest import DEADLINE, QUICK, Cast, contents, origin_at, relay_at, wait_until
from .proxy import Proxy
from .test_stream import CHUNKS, Party, Writer

FILES = {"model": b"weights", "config.json": b"{}"}
REQUEST = b"GET /v/1/files/model HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def limits(allow: tuple[str, ...] = (), deny: tuple[str, ...] = ()) -> ServerLimits:
    return ServingSettings(allow=allow, deny=deny).limits()


def answer(server: ShardServer, own: str, to: str) -> int:
    """The status that a guest gets who comes from the address `own`."""
    with socket.create_connection((to, server.port), timeout=DEADLINE, source_address=(own, 0)) as guest:
        guest.sendall(REQUEST)
        text = b""
        while b"\r\n\r\n" not in text:
            piece = guest.recv(1 << 16)
            assert piece
            text += piece
    return int(text.split(b" ")[1])


HOSTS = {"127.0.0.1": "127.0.0.1", "127.0.0.2": "127.0.0.1", "127.1.0.1": "127.0.0.1", "::1": "::1"}
LISTS = [
    ((), (), {"127.0.0.1", "127.0.0.2", "127.1.0.1", "::1"}),
    (("127.0.0.0/16",), (), {"127.0.0.1", "127.0.0.2"}),
    ((), ("127.0.0.0/16",), {"127.1.0.1", "::1"}),
    (("127.0.0.0/16",), ("127.0.0.2",), {"127.0.0.1"}),
    (("127.0.0.2", "::/64"), ("10.0.0.0/8",), {"127.0.0.2", "::1"}),
    (("::/0",), (), {"::1"}),
    (("0.0.0.0/0",), ("::1/128",), {"127.0.0.1", "127.0.0.2", "127.1.0.1"}),
    (("10.0.0.0/8",), (), set()),
    (("::ffff:127.0.0.0/112",), (), {"127.0.0.1", "127.0.0.2"}),
    ((), ("::ffff:127.0.0.2",), {"127.0.0.1", "127.1.0.1", "::1"}),
]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(("allow", "deny", "served"), LISTS)
def test_who_is_allowed_is_served_and_nobody_else_and_deny_goes_before_allow(
    cast: Cast, allow: tuple[str, ...], deny: tuple[str, ...], served: set[str]
) -> None:
    """On one socket for both, where an IPv4 guest's address is ::ffff:a.b.c.d."""
    server = cast.origin(FILES, host="::", limits=limits(allow, deny))[1]
    assert {own: answer(server, own, to) for own, to in HOSTS.items()} == {
        own: 200 if own in served else 403 for own in HOSTS
    }
    assert server.counts.connections == len(served)
    assert server.counts.refused == len(HOSTS) - len(served)


def test_a_socket_for_ipv4_alone_knows_its_guests_by_the_same_networks(cast: Cast) -> None:
    server = cast.origin(FILES, host="127.0.0.1", limits=limits(("127.0.0.0/24",), ("127.0.0.2/32",)))[1]
    assert [answer(server, own, "127.0.0.1") for own in ("127.0.0.1", "127.0.0.2", "127.1.0.1")] == [200, 403, 403]


@pytest.mark.parametrize("is_relay", [True, False])
def test_a_source_that_serves_others_only_is_not_blamed_nor_asked_again_and_another_one_serves(
    cast: Cast, is_relay: bool
) -> None:
    manifest, origin = cast.origin(FILES)
    closed = cast.serve(origin.store, limits=limits(deny=("127.0.0.1",)))
    refusing = relay_at(closed.url, "closed") if is_relay else origin_at(closed.url, "closed")
    client = cast.client()
    folder = client.fetch(1, manifest.digest, [refusing, origin_at(origin.url)], DEADLINE)
    assert contents(folder) == FILES
    assert not client.statistics.violations
    assert client.statistics.failovers == 0
    assert client._standings["closed"].success(0.0) == 1.0
    assert closed.counts.refused <= 1 + 2 * client.streams, "by each thread of the manifest's and the chunks' once"


def test_where_every_source_serves_others_only_that_is_said_at_once(cast: Cast) -> None:
    manifest, origin = cast.origin(FILES, limits=limits(("10.0.0.0/8",)))
    with pytest.raises(Unavailable, match="403: it serves others only"):
        cast.client().fetch(1, manifest.digest, [origin_at(origin.url)], 1e6)
    assert origin.counts.refused <= 2 * 3


# ---- behind a reverse proxy


def proxied(cast: Cast, server: ShardServer, own: str = "127.0.0.1") -> Proxy:
    return cast.stack.enter_context(Proxy(server.port, own))


def test_a_version_comes_whole_and_in_parts_through_a_reverse_proxy(cast: Cast) -> None:
    writer = Writer(cast, cast.bytes(CHUNKS * (64 << 10)))
    proxy = proxied(cast, writer.server)
    node = Party(cast, "node", [relay_at(proxy.url)])
    writer.write(3)
    wait_until(lambda: node.present == 4)
    writer.write(CHUNKS)
    manifest = writer.publish()
    assert node.fetch(manifest) == writer.files
    newcomer = cast.client(timeouts=QUICK, serves="http://relay.example:8460")
    assert contents(newcomer.fetch(1, manifest.digest, [relay_at(proxy.url)], DEADLINE)) == writer.files
    assert not (node.client.statistics.violations or newcomer.statistics.violations)
    heads = b"".join(proxy.passed_on)
    assert b"/holding?" in heads and b"/opening?" in heads and b"Range: bytes=" in heads
    assert b"Serves: http://relay.example:8460" in heads, "fields of our own pass, too"


def test_behind_a_proxy_everybody_has_its_address(cast: Cast) -> None:
    """Allowed or not, and counted as one peer."""
    manifest, server = cast.origin(FILES, limits=limits(("127.0.0.1",), ("127.0.0.2",)))
    assert contents(cast.client().fetch(1, manifest.digest, [origin_at(proxied(cast, server).url)], DEADLINE)) == FILES
    behind = proxied(cast, server, own="127.0.0.2")
    with pytest.raises(Unavailable, match="403"):
        cast.client(cast.store("other")).fetch(1, manifest.digest, [origin_at(behind.url)], DEADLINE)
