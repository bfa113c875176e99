"""Who serves the DHT must be reachable: somebody is put into a table once he has been dialled back at the address he claims, which must be the one he comes from."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio

from protocol.identity import Key
from protocol.p2p import Host, HostLimits, negotiation
from protocol.p2p.address import Address, PeerAddress
from protocol.p2p.discovery import Discovery
from protocol.p2p.routing import Contact
from protocol.p2p.wire import PROTOCOL as KAD
from protocol.p2p.wire import Kind, Question
from tests.clock import eventually
from tests.p2p.attacker import ELSEWHERE, hostile
from tests.p2p.network import Network, find, listening_on, port_of

VICTIM = "127.0.0.5"
"""Another address of this machine, from which nobody in a test asks anything."""


def table(host: Host) -> dict[bytes, tuple[str, ...]]:
    """The addresses that `host` has of each peer."""

    async def look(discovery: Discovery) -> dict[bytes, tuple[str, ...]]:
        return {each.peer: tuple(map(str, each.addresses)) for each in discovery.dht.table.contacts()}

    return host.run_inside(look, deadline=10, what="looking")


def count(host: Host, what: str) -> int:
    return host.status().counts.get(what, 0)


def judged(host: Host) -> int:
    """Claims that `host` has refused or put off."""
    return sum(count(host, what) for what in ("not reached back", "claims of others' addresses", "dials back put off"))


@pytest.fixture
def victim() -> Iterator[socket.socket]:
    """Notes who connects, and says nothing."""
    with socket.create_server((VICTIM, 0)) as listener:
        listener.setblocking(False)
        yield listener


def visited(victim: socket.socket) -> bool:
    try:
        victim.accept()[0].close()
    except BlockingIOError:
        return False
    return True


async def claim(host: Host, key: Key, *places: Address, times: int = 1) -> None:
    """From ELSEWHERE, as the holder of `key`: "I serve the DHT at these places"."""
    question = Question(Kind.FIND_NODE, key.peer, Contact(key.peer, places))
    before = judged(host)
    async with hostile(host, key=key) as peer:
        for number in range(1, 2 * times, 2):
            await peer.speak(number, KAD, negotiation.message(question.encode()))
        with trio.fail_after(20):
            while judged(host) == before:  # who hangs up earlier may not have been heard
                await trio.sleep(0.02)


def test_a_host_that_can_be_reached_is_in_the_tables_of_others(network: Network) -> None:
    bootnode = network.host()
    host = network.host(bootnode, listen="/ip4/0.0.0.0/tcp/0")
    there = {PeerAddress.parse(host.addresses[0]).peer: (f"/ip4/127.0.0.1/tcp/{port_of(host)}",)}
    eventually(lambda: table(bootnode) == there, what="the host in the bootnode's table")


def test_a_host_that_announces_a_name_alone_is_in_the_tables_of_others(network: Network) -> None:
    bootnode = network.host()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    listen = f"/ip4/127.0.0.1/tcp/{port}"
    host = network.host(bootnode, listen=listen, announce=[f"/dns4/localhost/tcp/{port}"])
    there = {PeerAddress.parse(host.addresses[0]).peer: (listen,)}
    eventually(lambda: table(bootnode) == there, what="the host in the bootnode's table, where its name leads")


def test_a_host_that_nobody_reaches_stays_a_client_and_is_in_no_table(network: Network) -> None:
    bootnode = network.host()
    provider = network.provider(bootnode)
    behind_nat = network.host(bootnode, announce=["/ip4/127.0.0.1/tcp/1"])

    assert set(find(behind_nat)) == {provider.peer_id}
    eventually(lambda: count(bootnode, "not reached back"), what="a dial in vain")
    other = network.host(bootnode)
    assert set(find(other)) == {provider.peer_id}

    hidden = PeerAddress.parse(behind_nat.addresses[0]).peer
    eventually(lambda: len(table(bootnode)) == 2, what="everybody else in the bootnode's table")
    assert all(hidden not in table(each) for each in (bootnode, provider, other))


def test_an_address_of_a_third_is_not_dialled(network: Network, victim: socket.socket) -> None:
    bootnode, liar = network.host(), Key.generate()

    trio.run(claim, bootnode, liar, Address("ip4", *victim.getsockname()))

    assert count(bootnode, "claims of others' addresses") == 1
    assert not visited(victim)
    assert table(bootnode) == {}


def test_a_name_that_leads_to_a_third_is_not_dialled(network: Network) -> None:
    bootnode, liar = network.host(), Key.generate()
    with socket.create_server(("127.0.0.1", 0)) as third:
        third.setblocking(False)
        trio.run(claim, bootnode, liar, Address("dns4", "localhost", third.getsockname()[1]))
        assert not visited(third)
    assert count(bootnode, "claims of others' addresses") == 1


def test_of_a_true_and_a_false_address_only_the_true_one_is_told(network: Network, victim: socket.socket) -> None:
    bootnode, key = network.host(), Key.generate()
    false = "/ip4/{}/tcp/{}".format(*victim.getsockname())
    listens = network.host(key=key)
    place = listening_on(listens)
    listens.close()
    liar = network.host(bootnode, key=key, listen=place, announce=[false, place])

    eventually(lambda: table(bootnode) == {key.peer: (place,)}, what="the liar in the bootnode's table")
    seeker = network.host(bootnode)
    eventually(lambda: table(seeker).get(key.peer) == (place,), what="the liar in the seeker's table")
    assert not visited(victim)
    assert liar.status().joined


def test_who_answers_on_a_connection_of_its_own_making_is_in_no_table_for_it(network: Network) -> None:
    """Somebody else may name it at an address where it was never reached."""
    bootnode, key = network.host(), Key.generate()
    network.host(bootnode, key=key, announce=["/ip4/127.0.0.1/tcp/1"])
    eventually(lambda: count(bootnode, "not reached back"), what="a dial in vain")

    async def ask(discovery: Discovery) -> None:
        question = Question(Kind.FIND_NODE, key.peer)
        await discovery.dht._ask(Contact(key.peer, (Address("ip4", "127.0.0.1", 1),)), question)

    bootnode.run_inside(ask, deadline=10, what="asking")
    assert table(bootnode) == {}


def test_claims_of_one_network_cost_only_so_many_dials(network: Network) -> None:
    bootnode = network.host(limits=HostLimits(dial_backs=3, dial_back_rate=0.0))

    async def claims() -> None:
        for port in range(1, 11):
            await claim(bootnode, Key.generate(), Address("ip4", ELSEWHERE, port))

    trio.run(claims)
    eventually(lambda: count(bootnode, "dials back put off") == 7, what="seven that are put off")
    eventually(lambda: count(bootnode, "not reached back") == 3, what="three dials in vain")


def test_who_was_not_reached_is_not_dialled_again_at_once(network: Network) -> None:
    bootnode, key, place = network.host(), Key.generate(), Address("ip4", ELSEWHERE, 1)
    trio.run(claim, bootnode, key, place)
    trio.run(lambda: claim(bootnode, key, place, times=9))
    eventually(lambda: count(bootnode, "dials back put off"), what="claims that are put off")
    assert count(bootnode, "not reached back") == 1
