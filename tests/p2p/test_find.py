"""Finding each other: what the rest of the project relies on."""

from __future__ import annotations

import pytest
from swarm.pace import Patience

from protocol.errors import Unavailable, UsageError
from protocol.identity import Key
from protocol.p2p import Directory, Endpoint, Service
from tests.clock import eventually
from tests.p2p.network import HUB, QUICK, RELAY, Network, endpoint, find, quick


def test_two_providers_are_found_through_a_bootnode_by_a_third_host(network: Network) -> None:
    bootnode = network.host()
    first, second = network.provider(bootnode, port=8101), network.provider(bootnode, port=8102)
    seeker = network.host(bootnode)

    found = find(seeker, at_least=2)

    assert {peer: provider.endpoint.http for peer, provider in found.items()} == {
        first.peer_id: "http://127.0.0.1:8101",
        second.peer_id: "http://127.0.0.1:8102",
    }


def test_the_address_of_a_provider_is_the_chain_address_of_its_key(network: Network) -> None:
    key = Key.generate()
    bootnode = network.host()
    network.provider(bootnode, key=key)

    (provider,) = find(network.host(bootnode)).values()

    assert provider.address == key.address
    assert provider.peer_id == key.peer_id


def test_without_the_bootnodes_address_nothing_is_found_and_the_error_says_so(network: Network) -> None:
    bootnode = network.host()
    network.provider(bootnode)
    seeker = network.host()

    patience = Patience(3)
    with pytest.raises(Unavailable, match="no bootnode was given") as lost:
        find(seeker, within=0.5)
    assert "murmur net status" in lost.value.hint
    assert not patience.ended()


def test_with_an_unreachable_bootnode_find_ends_in_time_and_names_it_and_the_reason(network: Network) -> None:
    gone = network.host()
    address = gone.addresses[0]
    gone.close()
    seeker = network.host(address)

    patience = Patience(4)
    with pytest.raises(Unavailable, match=r"no bootnode is reachable \(127\.0\.0\.1:\d+: .*connection refused"):
        find(seeker, within=1.0)
    assert not patience.ended()


def test_a_bootnode_address_with_another_peer_id_is_never_trusted(network: Network) -> None:
    bootnode = network.host()
    network.provider(bootnode)
    place = bootnode.addresses[0].partition("/p2p/")[0]
    seeker = network.host(f"{place}/p2p/{Key.generate().peer_id}")

    with pytest.raises(Unavailable, match="somebody else answers there"):
        find(seeker, within=1.0)


def test_services_are_kept_apart_by_role_run_contract_and_chain(network: Network) -> None:
    bootnode = network.host()
    relay = network.provider(bootnode)
    hub = network.provider(bootnode, service=HUB, port=8200)
    seeker = network.host(bootnode)

    assert set(find(seeker, RELAY)) == {relay.peer_id}
    assert set(find(seeker, HUB)) == {hub.peer_id}
    for other in (
        Service(RELAY.chain_id, RELAY.contract, 2, "relay"),
        Service(RELAY.chain_id, "0x" + "cd" * 20, 1, "relay"),
        Service(84532, RELAY.contract, 1, "relay"),
    ):
        assert Directory(seeker).find(other, 10, at_least=0) == []


def test_only_those_who_may_provide_a_service_are_asked(network: Network) -> None:
    bootnode = network.host()
    keys = [Key.generate() for _ in range(3)]
    for port, key in enumerate(keys, 8100):
        network.provider(bootnode, key=key, port=port)
    seeker = network.host(bootnode)

    allowed = {keys[0].address, keys[2].address.lower()}
    found = Directory(seeker).find(RELAY, 20, 2, among=allowed)

    assert {provider.address for provider in found} == {keys[0].address, keys[2].address}
    with pytest.raises(Unavailable, match="no relay of run 1 was found within"):
        Directory(seeker).find(RELAY, 0.3, among=[])


def test_a_provider_that_comes_later_is_found_by_a_seeker_that_already_waits(network: Network) -> None:
    bootnode = network.host()
    seeker = network.host(bootnode)
    late = network.host(bootnode)
    late_announces = Directory(late)

    with pytest.raises(Unavailable, match="no relay of run 1 was found"):
        find(seeker, within=0.3)
    late_announces.announce(RELAY, endpoint(8100))
    assert set(find(seeker)) == {late.peer_id}


def test_a_second_find_sees_who_came_after_the_first(network: Network) -> None:
    bootnode = network.host()
    first = network.provider(bootnode)
    seeker = network.host(bootnode)
    assert set(find(seeker)) == {first.peer_id}

    second = network.provider(bootnode, port=8101)

    assert set(find(seeker, at_least=2)) == {first.peer_id, second.peer_id}


def test_a_provider_finds_the_others_and_not_itself(network: Network) -> None:
    bootnode = network.host()
    first, second = network.provider(bootnode), network.provider(bootnode, port=8101)

    assert set(find(first)) == {second.peer_id}
    assert set(find(second)) == {first.peer_id}
    assert first.status().counts == {}  # and does not even try


def test_a_new_endpoint_replaces_the_old_one_and_a_withdrawn_one_is_gone(network: Network) -> None:
    bootnode = network.host()
    provider = network.provider(bootnode, port=8101)
    seeker = network.host(bootnode)
    directory = Directory(provider)

    directory.announce(RELAY, endpoint(8102))
    assert find(seeker)[provider.peer_id].endpoint.http == "http://127.0.0.1:8102"

    directory.withdraw(RELAY)
    with pytest.raises(Unavailable, match="1 claimed to be one and failed"):
        find(seeker, within=0.5)


def test_a_host_that_does_not_listen_finds_and_is_in_nobodys_routing_table(network: Network) -> None:
    bootnode = network.host()
    provider = network.provider(bootnode)
    asking = network.host(bootnode, listen=None)

    assert set(find(asking)) == {provider.peer_id}
    assert asking.addresses == ()
    eventually(lambda: bootnode.status().connections == 2)
    assert bootnode.status().peers == 1
    with pytest.raises(UsageError, match="does not listen"):
        Directory(asking).announce(RELAY, endpoint(8100))


def test_a_host_listening_on_all_interfaces_is_found_where_it_is_seen(network: Network) -> None:
    bootnode = network.host(listen="/ip4/0.0.0.0/tcp/0")
    port = bootnode.addresses[0].split("/")[4]
    known = f"/ip4/127.0.0.1/tcp/{port}/p2p/{bootnode.peer_id}"
    provider = network.provider(known, listen="/ip4/0.0.0.0/tcp/0")

    assert set(find(network.host(known))) == {provider.peer_id}


def test_a_host_can_be_known_by_other_addresses_than_it_listens_on(network: Network) -> None:
    bootnode = network.host()
    key = Key.generate()
    listens = network.host(key=key)
    outside = listens.addresses[0].partition("/p2p/")[0]
    listens.close()

    # It listens on every interface, and says that others reach it under the address given.
    provider = network.provider(
        bootnode, key=key, listen=f"/ip4/0.0.0.0/tcp/{outside.rpartition('/')[2]}", announce=[outside]
    )

    assert provider.addresses == (f"{outside}/p2p/{provider.peer_id}",)
    assert set(find(network.host(bootnode))) == {provider.peer_id}


def test_a_bootnode_that_is_a_provider_too_is_found_by_the_first_who_asks(network: Network) -> None:
    both = network.host(listen="/ip4/0.0.0.0/tcp/0", timing=quick(retry=60, retry_most=60))
    Directory(both).announce(RELAY, endpoint(8100))
    known = f"/ip4/127.0.0.1/tcp/{both.addresses[0].split('/')[4]}/p2p/{both.peer_id}"

    assert set(find(network.host(known))) == {both.peer_id}


def test_records_placed_with_one_bootnode_are_found_through_another(network: Network) -> None:
    first = network.host()
    second = network.host(first)
    provider = network.provider(first)

    assert set(find(network.host(second))) == {provider.peer_id}


def test_a_find_after_joining_answers_within_two_seconds(network: Network) -> None:
    bootnode = network.host()
    for port in range(8100, 8105):
        network.provider(bootnode, port=port)
    seeker = network.host(bootnode)
    seeker.join(20)

    patience = Patience(2)
    find(seeker, at_least=5)
    assert not patience.ended()


def test_an_announcement_must_be_of_its_service(network: Network) -> None:
    host = network.host()
    with pytest.raises(ValueError, match="is none of relay of run 1"):
        Directory(host).announce(RELAY, Endpoint(role="hub", run=1, http="http://127.0.0.1:8100"))


def test_announcing_with_a_deadline_fails_in_time_while_nobody_takes_the_record(network: Network) -> None:
    alone = network.host(timing=QUICK)
    patience = Patience(3)
    with pytest.raises(Unavailable, match="announcing relay of run 1"):
        Directory(alone).announce(RELAY, endpoint(8100), deadline=0.3)
    assert not patience.ended()

    joined = network.host(alone)  # and the record is placed as soon as somebody comes
    assert set(find(joined)) == {alone.peer_id}
