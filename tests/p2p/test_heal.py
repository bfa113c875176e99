"""Things go down and come back: nobody has to be told."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from libp2p.stream_muxer.exceptions import MuxedStreamError

from protocol import canonical
from protocol.errors import Unavailable
from protocol.identity import Key
from protocol.p2p import Directory, Host
from protocol.p2p.address import PeerAddress, peer_text
from protocol.p2p.discovery import ENDPOINT_PROTOCOL, Discovery
from protocol.p2p.node import PeerConnection
from tests.clock import eventually
from tests.p2p.network import RELAY, Network, endpoint, find, find_exactly, listening_on, port_of, quick


def test_a_provider_that_restarts_on_a_new_port_is_found_again(network: Network) -> None:
    key = Key.generate()
    bootnode = network.host()
    before = network.provider(bootnode, key=key, port=8101)
    seeker = network.host(bootnode)
    assert find(seeker)[key.peer_id].endpoint.http == "http://127.0.0.1:8101"
    before.close()

    after = network.provider(bootnode, key=key, port=8102)

    assert port_of(after) != port_of(before)
    found = find_exactly(seeker, {key.peer_id})
    assert found[key.peer_id].endpoint.http == "http://127.0.0.1:8102"


def test_after_a_bootnode_restarts_newcomers_find_the_providers_of_before(network: Network) -> None:
    key = Key.generate()
    bootnode = network.host(key=key)
    place = listening_on(bootnode)
    provider = network.provider(bootnode)
    bootnode.close()

    again = network.host(key=key, listen=place)

    assert again.addresses == bootnode.addresses
    eventually(lambda: again.status().records == 1, what="the provider placing its record anew")
    assert set(find(network.host(again))) == {provider.peer_id}


def test_hosts_join_once_their_bootnode_comes_up(network: Network) -> None:
    key = Key.generate()
    bootnode = network.host(key=key)
    address, place = bootnode.addresses[0], listening_on(bootnode)
    bootnode.close()
    provider, seeker = network.host(address), network.host(address)
    Directory(provider).announce(RELAY, endpoint(8100))
    with pytest.raises(Unavailable, match="no bootnode is reachable"):
        find(seeker, within=0.5)

    network.host(key=key, listen=place)

    assert set(find(seeker)) == {provider.peer_id}


def test_who_has_met_still_finds_each_other_while_the_bootnode_is_down(network: Network) -> None:
    bootnode = network.host()
    provider = network.provider(bootnode)
    seeker = network.host(bootnode)
    eventually(lambda: seeker.status().peers == 2 and provider.status().peers == 2)
    bootnode.close()

    late = network.provider(*provider.addresses, port=8101)

    assert set(find(seeker, at_least=2)) == {provider.peer_id, late.peer_id}


def test_a_host_that_loses_everybody_says_so_and_why(network: Network) -> None:
    bootnode = network.host()
    host = network.host(bootnode)
    host.join(20)
    bootnode.close()

    eventually(lambda: not (now := host.status()).joined and "connection refused" in now.reason)
    with pytest.raises(Unavailable, match="no bootnode is reachable"):
        find(host, within=0.3)


def test_a_saved_peer_list_replaces_bootnodes_that_are_gone(network: Network, tmp_path: Path) -> None:
    file = tmp_path / "state" / "peers.json"
    bootnode = network.host()
    provider = network.provider(bootnode)
    first = network.host(bootnode, peers_file=file)
    eventually(lambda: first.status().peers == 2)
    first.close()
    bootnode.close()

    saved = canonical.decode(file.read_bytes(), cap=1 << 16, what="saved peers")
    assert sorted(saved["peers"]) == sorted([*bootnode.addresses, *provider.addresses])
    second = network.host(*bootnode.addresses, peers_file=file)

    assert set(find(second)) == {provider.peer_id}
    assert [each.name for each in file.parent.iterdir()] == ["peers.json"]


def test_a_provider_that_vanished_is_left_out_and_the_others_are_found(network: Network) -> None:
    bootnode = network.host()
    gone, here = network.provider(bootnode, port=8101), network.provider(bootnode, port=8102)
    gone.close()

    assert set(find(network.host(bootnode))) == {here.peer_id}


def test_a_peer_that_falls_silent_without_a_word_is_noticed(network: Network) -> None:
    """A machine that loses its power closes no connection: only the liveness check can tell."""
    bootnode = network.host(timing=quick(ping=0.2, pong=0.3))
    silent = network.host(bootnode)

    async def look(discovery: Discovery) -> list[PeerConnection]:
        return discovery.node.connections()

    (connection,) = eventually(lambda: bootnode.run_inside(look, deadline=5, what="looking"))

    async def fall_silent(discovery: Discovery) -> None:
        async def nothing(data: bytes) -> None:
            await trio.lowlevel.checkpoint()

        for each in discovery.node.connections():
            each.muxer._write_frame = nothing  # type: ignore[method-assign]

    silent.run_inside(fall_silent, deadline=5, what="falling silent")

    eventually(lambda: connection.muxer.is_dead)  # in a second; five were too few beside three long tests on two cores


def test_a_question_on_a_connection_that_turns_out_dead_is_asked_again_on_a_new_one(network: Network) -> None:
    """The peer restarted, and nobody has told the old connection."""
    provider = network.provider(network.host(), port=8105)
    known = PeerAddress.parse(provider.addresses[0])
    seeker = network.host(provider)
    seeker.join(20)

    async def ask(discovery: Discovery) -> bytes:
        stale = discovery.node.connection(known.peer)
        assert stale

        async def find_out() -> None:
            stale.muxer.cut()
            raise MuxedStreamError("the connection was dead all along")

        stale.muxer.open_stream = find_out  # type: ignore[method-assign]
        return await discovery.node.request(
            known.peer, (known.address,), ENDPOINT_PROTOCOL, RELAY.key, cap=4096, what="endpoint"
        )

    assert seeker.run_inside(ask, deadline=10, what="asking") == endpoint(8105).encode()


def test_two_bootnodes_that_know_each_other_survive_the_loss_of_either(network: Network) -> None:
    first = network.host()
    second = network.host(first)
    provider, seeker = network.provider(first, second), network.host(first, second)
    first.close()

    assert set(find(seeker)) == {provider.peer_id}
    assert set(find(network.host(*first.addresses, second))) == {provider.peer_id}


def test_a_bootnode_that_is_named_later_is_visited_at_once_and_outlasts_the_first(network: Network) -> None:
    first, second = network.host(), network.host()
    host = network.host(first)
    eventually(lambda: host.status().joined)
    provider = network.provider(second)
    host.add_bootnodes([PeerAddress.parse(second.addresses[0])])

    eventually(lambda: second.peer_id in find_known(host), what="the second bootnode in the table")
    first.close()
    assert set(find(host)) == {provider.peer_id}


def test_bootnodes_that_are_named_later_stay_when_the_host_starts_anew(network: Network) -> None:
    first, second = network.host(), network.host()
    host = network.host(first)
    host.add_bootnodes([PeerAddress.parse(second.addresses[0])])
    eventually(lambda: second.peer_id in find_known(host))

    async def fail(discovery: Discovery) -> None:
        discovery._nursery.start_soon(trio.sleep, -1)  # which it does not allow

    host.run_inside(fail, deadline=5, what="failing")
    first.close()
    eventually(lambda: find_known(host) == {second.peer_id}, what="joining by the second alone")


def find_known(host: Host) -> set[str]:
    async def look(discovery: Discovery) -> set[str]:
        return {peer_text(contact.peer) for contact in discovery.dht.table.contacts()}

    try:
        return host.run_inside(look, deadline=10, what="looking")
    except Unavailable:  # it starts anew
        return set()
