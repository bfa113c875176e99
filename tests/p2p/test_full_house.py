"""More hosts than a bootnode has room for: it keeps those it has, tells the others whom it knows, and they leave it alone."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from protocol.p2p import Directory, Host, HostLimits
from protocol.p2p.service import Service
from tests.clock import eventually
from tests.p2p.network import HUB, QUICK, RELAY, Network, endpoint, find

PATIENT = replace(QUICK, request=20, dial=20, handshake=20)
"""On a busy machine nobody is taken for gone."""
QUIET_SECONDS = 4.0
"""Without a new connection. Ten times the longest pause with which hosts of these tests dialled a full bootnode before."""


def room_made(bootnode: Host) -> int:
    return bootnode.status().counts.get("made room", 0)


def quiet_seconds(bootnode: Host, *, within: float) -> float:
    """The longest time, up to QUIET_SECONDS, in which nobody had to go for somebody new."""
    longest, before, since, end = 0.0, room_made(bootnode), time.monotonic(), time.monotonic() + within
    while longest < QUIET_SECONDS and time.monotonic() < end:
        time.sleep(0.1)
        if (now := room_made(bootnode)) != before:
            before, since = now, time.monotonic()
        longest = max(longest, time.monotonic() - since)
    return longest


def crowd(network: Network, hosts: int, cap: int, service: Service = HUB) -> tuple[Host, list[Host]]:
    """A bootnode with room for `cap`, a provider, and as many hosts that came afterwards as make `hosts` in all."""
    bootnode = network.host(limits=HostLimits(connections=cap), timing=PATIENT)
    provider = network.host(bootnode, timing=PATIENT)
    Directory(provider).announce(service, endpoint(8200, service), deadline=60)
    return bootnode, [provider, *(network.host(bootnode, timing=PATIENT) for _ in range(hosts - 1))]


async def _peers(discovery: object) -> list[bytes]:
    """Who is connected to a host, who came first at the front."""
    came = sorted(discovery.node.connections(), key=lambda each: each.since)  # type: ignore[attr-defined]
    return [each.peer for each in came if not each.outbound]


@pytest.mark.timeout(600)  # of waiting, on a busy machine
@pytest.mark.parametrize(("hosts", "cap"), [(12, 6), pytest.param(30, 16, marks=pytest.mark.long)])
def test_a_bootnode_past_its_cap_keeps_its_peers_and_everybody_finds_the_hub(
    network: Network, hosts: int, cap: int
) -> None:
    bootnode, others = crowd(network, hosts, cap)
    for each in others:
        each.join(120)
    for each in others[1:]:
        assert set(find(each, HUB, within=60)) == {others[0].peer_id}
    assert room_made(bootnode) >= hosts - cap
    assert quiet_seconds(bootnode, within=90) >= QUIET_SECONDS
    assert bootnode.status().connections <= cap
    assert all(each.status().joined for each in others)

    stay = round(0.75 * cap)
    residents = bootnode.run_inside(_peers, deadline=20, what="looking")[:stay]
    newcomer = network.host(bootnode, timing=PATIENT)
    assert set(find(newcomer, HUB, within=60)) == {others[0].peer_id}
    assert newcomer.status().peers > 1
    assert bootnode.run_inside(_peers, deadline=20, what="looking")[:stay] == residents


def test_a_bootnode_that_restarts_is_joined_again_at_once_whatever_it_had_no_room_for(network: Network) -> None:
    timing = replace(PATIENT, stay=0.0)  # longer than that everybody was here
    bootnode = network.host(timing=timing)
    place = bootnode.addresses[0].partition("/p2p/")[0]
    key = bootnode._setup.key
    provider = network.host(bootnode, timing=timing)
    Directory(provider).announce(RELAY, endpoint(8100), deadline=20)
    bootnode.close()
    again = network.host(key=key, listen=place, timing=timing)
    eventually(lambda: again.status().records > 0, what="the record to be there again")
