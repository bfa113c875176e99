"""libp2p's other users: js-libp2p with its own Kademlia, through our bootnode, and our hosts through theirs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from protocol.errors import Unavailable
from protocol.identity import Key
from protocol.p2p import Directory, Host
from protocol.p2p.address import PeerAddress, peer_text
from protocol.p2p.discovery import Discovery
from protocol.p2p.identify import IDENTIFY, PING
from protocol.p2p.wire import ANSWER_BYTES_MAX, KademliaAnswer, Kind, Question
from protocol.p2p.wire import PROTOCOL as KAD
from protocol.shell.calling import call
from protocol.shell.peers import PeerSettings
from protocol.shell.standpoint import Standpoint
from tests.clock import eventually
from tests.p2p.javascript import JsPeer, JsPeers, install
from tests.p2p.network import RELAY, Network, find, listening_on, port_of

KEY = b"\x12\x20" + hashlib.sha256(b"anything of theirs").digest()


@pytest.fixture(scope="module")
def js() -> Iterator[JsPeers]:
    install()
    with closing(JsPeers()) as made:
        yield made


def table(host: Host) -> set[str]:
    async def look(discovery: Discovery) -> set[str]:
        return {peer_text(contact.peer) for contact in discovery.dht.table.contacts()}

    return host.run_inside(look, deadline=10, what="looking")


def providers(host: Host, key: bytes) -> dict[str, list[str]]:
    """Whom the DHT names for `key`, asked by `host`."""

    async def look(discovery: Discovery) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        await discovery.dht.providers(
            key, lambda each: found.setdefault(peer_text(each.peer), []).extend(map(str, each.addresses))
        )
        return found

    return host.run_inside(look, deadline=20, what="looking for providers")


def identified(peer: JsPeer, host: Host) -> dict[str, Any]:
    """What `host` has told the js peer of itself."""
    return eventually(lambda: peer.do("identified", who=host.peer_id), what="being identified")


def test_a_js_peer_learns_of_ours_what_it_speaks_and_where_it_listens(network: Network, js: JsPeers) -> None:
    host = network.host()
    told = identified(js.start("client", *host.addresses), host)
    assert {KAD, IDENTIFY, PING} <= set(told["protocols"])
    assert told["addresses"] == [listening_on(host)]
    assert told["agent"].startswith("murmuration/")
    assert told["seen"].startswith("/ip4/127.0.0.1/tcp/")


def test_a_host_on_all_interfaces_tells_a_js_peer_the_one_it_was_reached_at(network: Network, js: JsPeers) -> None:
    host = network.host(listen="/ip4/0.0.0.0/tcp/0")
    place = f"/ip4/127.0.0.1/tcp/{port_of(host)}"
    told = identified(js.start("client", f"{place}/p2p/{host.peer_id}"), host)
    assert told["addresses"] == [place]


def test_a_js_peer_pings_ours(network: Network, js: JsPeers) -> None:
    assert js.start("client").do("ping", address=network.host().addresses[0]) >= 0


def test_ours_pings_a_js_peer(js: JsPeers) -> None:
    """As `murmur net ping` does: by Yamux's own ping."""
    (address,) = js.start("client").addresses
    greeting = call(Standpoint("", None, None, PeerSettings(), None), address, count=2, seconds=20).greeting
    assert (len(greeting.round_trips), greeting.lost, PING in greeting.protocols) == (2, 0, True)
    assert greeting.agent.startswith("js-libp2p/")


def test_kademlias_ping_is_answered_both_ways(network: Network, js: JsPeers) -> None:
    host = network.host()
    server = js.start("server", *host.addresses)
    known = PeerAddress.parse(server.addresses[0])

    async def ping(discovery: Discovery) -> KademliaAnswer:
        question = Question(Kind.PING, b"").encode()
        data = await discovery.node.request(
            known.peer, [known.address], KAD, question, cap=ANSWER_BYTES_MAX, what="answer"
        )
        return KademliaAnswer.decode(data, Kind.PING)

    assert host.run_inside(ping, deadline=20, what="a ping") == KademliaAnswer()
    assert server.do("kadPing", who=host.peer_id) == "PING"


def test_a_js_server_is_found_through_our_bootnode_by_our_host_and_by_another_js_peer(
    network: Network, js: JsPeers
) -> None:
    bootnode = network.host()
    server = js.start("server", *bootnode.addresses)
    eventually(lambda: server.id in table(bootnode), what="the js server in the bootnode's table")
    assert server.do("table") == [bootnode.peer_id]

    ours = network.host(bootnode)
    other = js.start("server", *bootnode.addresses)

    eventually(lambda: server.id in table(ours), what="the js server in our host's table")
    found = other.do("find", who=server.id)
    assert found["id"] == server.id
    assert server.addresses[0].partition("/p2p/")[0] in found["addresses"]


def test_a_js_client_finds_our_provider_and_provides_what_we_find_and_is_in_nobodys_table(
    network: Network, js: JsPeers
) -> None:
    bootnode = network.host()
    ours = network.provider(bootnode)
    client = js.start("client", *bootnode.addresses)

    (found,) = client.do("providers", key=RELAY.key.hex())
    assert found == {"id": ours.peer_id, "addresses": [listening_on(ours)]}

    client.do("provide", key=KEY.hex())
    seeker = network.host(bootnode)
    theirs = {client.id: [client.addresses[0].partition("/p2p/")[0]]}
    eventually(lambda: providers(seeker, KEY) == theirs, what="finding what the js client provides")
    assert all(client.id not in table(each) for each in (bootnode, ours, seeker))


def test_a_js_client_that_becomes_a_server_is_one_for_us_and_the_other_way_round(network: Network, js: JsPeers) -> None:
    bootnode = network.host()
    peer = js.start("client", *bootnode.addresses)
    eventually(lambda: peer.do("table") == [bootnode.peer_id])
    assert table(bootnode) == set()
    peer.do("mode", mode="server")
    eventually(lambda: table(bootnode) == {peer.id})
    peer.do("mode", mode="client")
    eventually(lambda: table(bootnode) == set())


@pytest.mark.parametrize("listen", ["/ip4/127.0.0.1/tcp/0", "/ip4/0.0.0.0/tcp/0"])
def test_our_hosts_find_each_other_through_a_js_bootnode_alone(network: Network, js: JsPeers, listen: str) -> None:
    """Also where a signed notice goes with the provider record, of which others know nothing."""
    server = js.start("server")
    ours = network.provider(*server.addresses, listen=listen)
    assert set(find(network.host(*server.addresses))) == {ours.peer_id}


def test_a_stranger_of_no_chain_that_claims_a_service_is_not_asked_and_hides_nobody(
    network: Network, js: JsPeers
) -> None:
    bootnode = network.host()
    client = js.start("client", *bootnode.addresses)
    client.do("provide", key=RELAY.key.hex())
    seeker = network.host(bootnode)

    eventually(lambda: client.id in providers(seeker, RELAY.key), what="finding what the js client claims")
    for among in (["0x" + "ab" * 20], None):
        with pytest.raises(Unavailable, match=r"no relay of run 1 was found within .* s$"):
            Directory(seeker).find(RELAY, 0.5, among=among)
    key = Key.generate()
    network.provider(bootnode, key=key)

    for among in (None, [key.address]):
        assert [found.peer_id for found in Directory(seeker).find(RELAY, 20, among=among)] == [key.peer_id]
    assert seeker.status().counts == {}


def test_a_js_peer_stores_no_value_with_us_and_gets_none(network: Network, js: JsPeers) -> None:
    bootnode = network.host()
    client, other = (js.start("client", *bootnode.addresses) for _ in range(2))
    key = b"/murmuration/anything".hex()

    assert client.do("put", key=key, value=b"a value".hex())[-1] == "QUERY_ERROR"
    events = other.do("get", key=key)

    assert "PEER_RESPONSE" in events and "VALUE" not in events and "QUERY_ERROR" not in events
