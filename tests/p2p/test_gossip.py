"""Gossip between real hosts on sockets: it spreads, also over connections that only one side could open, heals, and outlives who breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio

from protocol.errors import Unavailable
from protocol.identity import Key
from protocol.p2p import GossipLimits, GossipSubject, Host, HostLimits, host, negotiation
from protocol.p2p.address import peer_text
from protocol.p2p.discovery import Discovery
from protocol.p2p.gossip_frames import PROTOCOL, Frame
from protocol.p2p.mesh import summary
from protocol.p2p.stream import Stream
from tests.clock import eventually
from tests.p2p.attacker import hostile, under_attack
from tests.p2p.gossip_world import PlainRules
from tests.p2p.network import Network, listening_on

KEYS = (b"\x12\x20" + b"g" * 32,)
LIMITS = GossipLimits(heartbeat=0.2, look=0.5)
TOPIC = "t"


class Talker:
    """A host that gossips."""

    def __init__(self, network: Network, *bootnodes: Host, gossip: GossipLimits = LIMITS, **options: Any) -> None:
        self.rules = PlainRules()
        self.host = network.host(*bootnodes, **options)
        self.host.gossip_about(GossipSubject(TOPIC, KEYS, self.rules, gossip))

    def state(self) -> dict[str, Any]:
        async def look(discovery: Discovery) -> dict[str, Any]:
            return dict(summary(discovery.gossip.mesh)) if discovery.gossip else {"mesh": 0}

        return self.host.run_inside(look, deadline=20, what="looking at the mesh")

    def meets(self, count: int) -> None:
        eventually(lambda: self.state()["mesh"] >= count, within=30, what=f"a mesh of {count}")

    def hears(self, message: bytes) -> None:
        eventually(lambda: message in self.rules.taken, within=30, what=f"hearing {message!r}")


def test_a_message_reaches_everybody_also_who_can_only_dial_out(network: Network) -> None:
    bootnode = network.host()
    talkers = [Talker(network, bootnode) for _ in range(3)]
    behind_nat = [Talker(network, bootnode, listen=None) for _ in range(2)]
    everybody = [*talkers, *behind_nat]
    for each in everybody:
        each.meets(2)
    for number, speaker in enumerate((talkers[0], behind_nat[0])):
        message = b"trainer:%d" % number
        speaker.host.publish(message)
        for each in everybody:
            if each is not speaker:
                each.hears(message)
    assert all(len(each.rules.taken) == len(set(each.rules.taken)) for each in everybody)


def test_a_mesh_heals_when_peers_vanish_and_a_host_that_returns_hears_again(network: Network) -> None:
    bootnode = network.host()
    talkers = [Talker(network, bootnode) for _ in range(4)]
    for each in talkers:
        each.meets(3)
    key, place = Key.generate(), listening_on(talkers[3].host)
    talkers[3].host.close()
    eventually(lambda: all(each.state()["neighbours"] == 2 for each in talkers[:3]), within=30, what="noticing it")
    talkers[0].host.publish(b"trainer:1")
    talkers[1].hears(b"trainer:1")
    newcomer = Talker(network, bootnode, key=key, listen=place)
    newcomer.hears(b"trainer:1")
    newcomer.host.publish(b"trainer:2")
    talkers[2].hears(b"trainer:2")


BROKEN = {
    "no frame": b"\x05\xff\xff\xff\xff\xff",
    "a frame of a gigabyte": b"\x80\x80\x80\x80\x04",
    "a length without end": b"\xff" * 12,
    "a forged message": negotiation.message(Frame(messages=(b"forger:1",)).encode(TOPIC)),
}


@pytest.mark.parametrize("what", BROKEN)
def test_who_sends_what_no_honest_peer_sends_is_cut_off_and_others_are_heard(network: Network, what: str) -> None:
    bootnode = network.host()
    one, other = Talker(network, bootnode), Talker(network, bootnode)
    one.meets(1)
    other.meets(1)
    key = Key.generate()

    async def attack(started: trio.Event) -> None:
        for _ in range(20):
            try:
                async with hostile(one.host, key=key) as peer:
                    for stream in range(1, 9, 2):
                        await peer.speak(stream, PROTOCOL, BROKEN[what] * 2)
                        await trio.sleep(0.05)
            except (OSError, trio.TooSlowError):
                pass
            if "cut off" in (await trio.to_thread.run_sync(one.state)) and one.state()["cut off"]:
                break
        started.set()

    with under_attack(attack):
        assert one.state()["cut off"] >= 1
        other.host.publish(b"trainer:1")
        one.hears(b"trainer:1")


def test_silent_streams_of_a_crowd_take_no_place_that_others_need(network: Network) -> None:
    """A stream that lasts keeps no connection from being thinned out, and one connection has no more than two of them."""
    bootnode = network.host()
    one, other = Talker(network, bootnode), Talker(network, bootnode)
    one.meets(1)

    async def attack(started: trio.Event) -> None:
        async with hostile(one.host) as peer:
            for stream in range(1, 41, 2):
                await peer.speak(stream, PROTOCOL)
            started.set()
            await trio.sleep_forever()

    with under_attack(attack):
        eventually(lambda: one.host.status(20).counts.get("failed streams", 0) >= 10, within=30, what="refusing")
        other.host.publish(b"trainer:1")
        one.hears(b"trainer:1")


def test_who_came_by_itself_keeps_its_connection_in_use_by_gossip_only_with_a_stake(network: Network) -> None:
    """In a full house it makes way as others do that are silent; the end that has dialled does not close it as idle."""
    bootnode = network.host()
    rarely = replace(LIMITS, look=600)  # what is asked of the DHT uses connections too
    inner = Talker(network, bootnode, gossip=rarely)
    outer = Talker(network, bootnode, gossip=rarely, listen=None)
    outer.meets(1)
    inner.meets(1)

    def silent_seconds(one: Talker, other: Talker) -> float:
        async def look(discovery: Discovery) -> float:
            assert discovery.gossip is not None
            talks = {peer_text(peer): talk for peer, talk in discovery.gossip._talks.items()}
            return trio.current_time() - talks[other.host.peer_id].connection.used

        return one.host.run_inside(look, deadline=20, what="looking at a connection")

    eventually(lambda: silent_seconds(inner, outer) > 10 * LIMITS.heartbeat, within=60, what="silence")
    eventually(lambda: silent_seconds(outer, inner) < 5 * LIMITS.heartbeat, within=60, what="use where it was dialled")
    inner.rules.stakes[outer.host._setup.key.peer] = 1.0
    eventually(lambda: silent_seconds(inner, outer) < 5 * LIMITS.heartbeat, within=60, what="use by one with a stake")


def test_who_finds_a_full_host_leaves_it_alone_for_pauses_that_grow(network: Network) -> None:
    bootnode = network.host()
    full = Talker(network, bootnode, limits=HostLimits(connections=2))
    others = [Talker(network, bootnode, listen=None) for _ in range(6)]

    async def longest(discovery: Discovery) -> float:
        known = discovery.gossip._full.values() if discovery.gossip else ()
        return max((pause for pause, _ in known), default=0.0)

    def pause() -> float:
        return max(each.host.run_inside(longest, deadline=20, what="looking") for each in others)

    eventually(lambda: pause() > LIMITS.look, within=90, what="a longer pause")
    assert pause() <= 10 * LIMITS.look
    eventually(lambda: full.host.status(20).connections <= 2, within=20, what="the end of what was cut")


def test_a_stake_that_is_not_known_any_more_is_looked_up_while_its_holder_is_a_neighbour(network: Network) -> None:
    bootnode = network.host()
    inner = Talker(network, bootnode, gossip=replace(LIMITS, refresh=0.2))
    outer = Talker(network, bootnode)
    inner.meets(1)
    peer = outer.host._setup.key.peer
    inner.rules.unknown = lambda who: "outer" if who == peer and "outer" not in inner.rules.asked else ""  # type: ignore[method-assign]
    eventually(lambda: "outer" in inner.rules.asked, within=30, what="a question to the chain")


def test_in_a_full_house_the_chain_is_asked_about_a_newcomer_that_is_let_in_by_its_stake(network: Network) -> None:
    """Before the answer it counts as one without a stake, so it is not admitted: no message of it, nor a neighbour's turn, asks."""
    bootnode = network.host()
    inner = Talker(network, bootnode, gossip=replace(LIMITS, neighbours=1, refresh=3600.0))
    Talker(network, bootnode, listen=None)
    inner.meets(1)
    key = Key.generate()
    peer, rules = key.peer, inner.rules
    rules.unknown = lambda who: "newcomer" if who == peer and "newcomer" not in rules.asked else ""  # type: ignore[method-assign]
    rules.weight = lambda who: float(who == peer and "newcomer" in rules.asked)  # type: ignore[method-assign]
    Talker(network, bootnode, key=key, listen=None)

    async def neighbours(discovery: Discovery) -> set[bytes]:
        return set() if discovery.gossip is None else set(discovery.gossip.mesh.neighbours)

    def is_in() -> bool:
        return inner.host.run_inside(neighbours, deadline=20, what="looking at the mesh") == {peer}

    eventually(lambda: "newcomer" in rules.asked, within=30, what="a question to the chain")
    eventually(is_in, within=30, what="being let in for its stake")


def test_who_was_not_listened_to_once_is_heard_after_all(network: Network) -> None:
    """A peer may refuse a stream, for instance when a connection is new to it; the end of ours says so."""
    bootnode = network.host()
    dialled = Talker(network, bootnode)

    async def refuse_once(discovery: Discovery) -> None:
        gossip = discovery.gossip
        assert gossip is not None

        async def refuse(stream: Stream) -> None:
            gossip._node.handle(PROTOCOL, gossip._listen, lasting=True)

        gossip._node.handle(PROTOCOL, refuse, lasting=True)

    dialled.host.run_inside(refuse_once, deadline=20, what="refusing")
    dialler = Talker(network, bootnode, listen=None)
    dialler.meets(1)
    dialled.meets(1)


@pytest.mark.parametrize("who", ["who dialled", "who was dialled"])
def test_a_peer_whose_stream_broke_off_is_in_the_mesh_again_over_the_same_connection(
    network: Network, who: str
) -> None:
    bootnode = network.host()
    dialler, dialled = Talker(network, bootnode, listen=None), Talker(network, bootnode)
    dialler.meets(1)
    dialled.meets(1)
    one, other = (dialler, dialled) if who == "who dialled" else (dialled, dialler)

    async def forget(discovery: Discovery) -> None:
        assert discovery.gossip is not None
        (talk,) = discovery.gossip._talks.values()
        talk.scope.cancel()
        discovery.gossip._forget(talk.connection.peer)

    one.host.run_inside(forget, deadline=20, what="forgetting")
    one.meets(1)
    other.host.publish(b"trainer:1")
    one.hears(b"trainer:1")
    other.meets(1)


def test_a_role_counts_what_it_gossips_for_its_metrics(network: Network) -> None:
    bootnode = network.host()
    one, other = Talker(network, bootnode), Talker(network, bootnode)
    one.meets(1)
    other.meets(1)
    other.host.publish(b"trainer:1")
    one.hears(b"trainer:1")
    one.host._measure()
    assert host._GOSSIPING.values() == {(): 1}
    assert host._GOSSIP.values()[("heard",)] >= 1


def test_gossip_goes_on_after_the_thread_of_a_host_has_failed(network: Network) -> None:
    bootnode = network.host()
    one, other = Talker(network, bootnode), Talker(network, bootnode)
    one.meets(1)

    async def broken() -> None:
        raise ZeroDivisionError

    async def fail(discovery: Discovery) -> None:
        discovery._nursery.start_soon(broken)

    one.host.run_inside(fail, deadline=20, what="failing")

    def has_a_mesh_again() -> bool:
        try:
            return bool(one.state()["mesh"] >= 1)
        except Unavailable:  # it starts anew just now
            return False

    eventually(has_a_mesh_again, within=30, what="a mesh again")
    other.host.publish(b"trainer:1")
    one.hears(b"trainer:1")
