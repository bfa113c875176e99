"""What the mesh promises, with many peers in virtual time: messages reach all, few frames are needed, and who misbehaves starves nobody."""

from __future__ import annotations

import random

import pytest

from protocol.p2p import GossipLimits
from protocol.p2p.gossip_frames import FRAME_BYTES_MAX, Frame, name_of
from protocol.p2p.mesh import Mesh
from protocol.p2p.message_cache import MessageCache
from protocol.p2p.reputation import FORGED, Reputation, gossip_network
from protocol.p2p.subject import MESSAGE_BYTES_MAX
from tests.p2p.gossip_world import LIMITS, GossipPeer, GossipWorld, PlainRules

PEERS = 200
FRAMES_PER_MINUTE = 90
"""Most that a peer sends in a minute, on average, while others come and go and six messages a minute are told."""


def grown(count: int, *, seed: int = 14) -> GossipWorld:
    """A third of them can be reached, as where most are behind NAT."""
    world = GossipWorld(seed)
    for number in range(count):
        world.peer(reachable=number % 3 == 0)
    world.run(30)
    return world


def churned(count: int, seed: int) -> None:
    world = grown(count, seed=seed)
    before, began = world.frames, world.now
    for turn in range(8):
        for leaver in world.chance.sample(world.up()[1:], count * 3 // 10 // 8):
            world.leave(leaver)
            world.peer(reachable=leaver.reachable)
        message = b"trainer:%d" % turn
        speaker = world.chance.choice(world.up())
        there = world.up()
        speaker.mesh.publish(message)
        world.run(10)
        stayed = [each for each in there if each.is_up and each is not speaker]
        assert world.reached(message, stayed) == len(stayed)
    minutes = (world.now - began) / 60
    assert (world.frames - before) / count / minutes <= FRAMES_PER_MINUTE
    assert not [name for name in world.counts() if name.startswith("refused: too many") or name == "cut off"]


def test_a_message_reaches_200_peers_of_whom_a_third_come_and_go_with_few_frames() -> None:
    churned(PEERS, seed=14)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_message_reaches_1000_peers_of_whom_a_third_come_and_go(seed: int) -> None:
    churned(1000, seed)


def test_a_message_is_pushed_within_the_mesh_and_takes_less_than_a_heartbeat() -> None:
    world = grown(50)
    world.peers[b"peer 0"].mesh.publish(b"trainer:1")
    world.run(0.9)
    assert world.reached(b"trainer:1") >= 45


def test_what_was_told_in_one_half_reaches_the_other_after_a_partition() -> None:
    world = grown(60)
    half = {each.name for each in world.up()[::2]}
    world.part(lambda one, other: (one.name in half) != (other.name in half))
    world.run(60)
    speaker = world.peers[b"peer 0"]
    speaker.mesh.publish(b"trainer:1")
    world.run(30)
    assert world.reached(b"trainer:1") == len(half) - 1
    world.part(lambda one, other: False)
    world.run(120)
    assert world.reached(b"trainer:1") == 59


def test_who_comes_later_hears_of_what_is_still_kept() -> None:
    world = grown(10)
    world.peers[b"peer 0"].mesh.publish(b"trainer:1")
    world.run(60)
    newcomer = world.peer()
    world.run(10)
    assert newcomer.rules.taken == [b"trainer:1"]
    world.run(LIMITS.keep)
    late = world.peer()
    world.run(10)
    assert late.rules.taken == []


def test_a_mesh_has_few_peers_and_some_that_it_has_chosen_itself() -> None:
    world = GossipWorld()
    for _ in range(60):
        world.peer()
    world.run(60)
    meshes = [each.mesh.meshed for each in world.up()]
    assert all(LIMITS.degree_least <= len(meshed) <= LIMITS.degree_most for meshed in meshes)
    assert sum(sum(peer.outbound for peer in meshed) >= LIMITS.outbound for meshed in meshes) >= 50


def test_of_many_who_ask_those_with_a_stake_are_in_the_mesh() -> None:
    world = GossipWorld()
    centre = world.peer()
    crowd = [world.peer(reachable=False) for _ in range(60)]
    world.run(30)
    staked = [world.peer(reachable=False) for _ in range(6)]
    world.stakes.update({each.name: 1.0 for each in staked})
    world.run(30)
    assert {each.peer for each in centre.mesh.meshed} >= {each.name for each in staked}
    assert len(centre.mesh.neighbours) == len(crowd) + len(staked)


def test_of_those_who_can_be_asked_those_with_a_stake_come_first() -> None:
    rules = PlainRules({b"%d" % number: 1.0 for number in range(0, 40, 10)})
    mesh = Mesh("t", rules, LIMITS, now=lambda: 0.0, send=lambda peer, frame: None, chance=random.Random(14))
    for number in range(40):
        mesh.opened(b"%d" % number, f"{number}", outbound=True)
        mesh.received(b"%d" % number, Frame(subscribes=True).encode("t"))
    mesh.heartbeat()
    assert len(mesh.meshed) == LIMITS.degree
    assert {each.peer for each in mesh.meshed} >= rules.stakes.keys()


# ---- who misbehaves --------------------------------------------------------------------------------------------------------


def attacked(
    frames: list[bytes], *, networks: int = 3, seconds: int = 120
) -> tuple[GossipWorld, list[GossipPeer], bool]:
    """Ten attackers in a few networks send to all they are linked with, every second, until nobody is; honest peers go on talking. The last
    value says whether it came to that."""
    world = grown(30)
    honest = world.up()
    crowd = [world.peer(network=f"9.9.{number % networks}.0/24") for number in range(10)]
    world.run(5)
    told, is_rid = [], False
    for second in range(seconds):
        for each in crowd:
            for frame in frames:
                for name in [*each.mesh.neighbours]:
                    world.deliver(each, name, frame.replace(b"####", b"%04d" % second))
        if second % 5 == 0:
            told.append((honest[second % 30], b"trainer:%d" % second))
            told[-1][0].mesh.publish(told[-1][1])
        world.run(1)
        is_rid = second >= 10 and is_rid_of(world, crowd)
        if is_rid:
            break
    world.run(10)
    for speaker, message in told:
        others = [each for each in honest if each is not speaker]
        assert world.reached(message, others) == len(others), message
    return world, crowd, is_rid


def is_rid_of(world: GossipWorld, crowd: list[GossipPeer]) -> bool:
    names = {each.name for each in crowd}
    return not any(names & each.mesh.neighbours.keys() for each in world.up() if each.name not in names)


HOSTILE = {
    "malformed frames": [b"\xff" * 40],
    "oversized frames": [b"\x00" * (FRAME_BYTES_MAX + 1)],
    "oversized messages": [Frame(messages=(b"trainer:####" + b"x" * MESSAGE_BYTES_MAX,)).encode("t")],
    "forged messages": [Frame(messages=(b"forger:####",)).encode("t")],
    "messages without a stake": [Frame(messages=(b"stranger:####",)).encode("t")],
    "more than one may say": [Frame(messages=tuple(b"old:####%d %d" % (n, m) for m in range(14))).encode("t") for n in range(4)],
    "names by the thousand": [Frame(have=tuple(name_of(b"####%d %d" % (n, m)) for m in range(256))).encode("t") for n in range(2)],
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_who_misbehaves_is_cut_off_and_starves_nobody(what: str) -> None:
    world, _, is_rid = attacked(HOSTILE[what])
    assert is_rid, world.counts()


def test_honest_peers_blame_nobody_honest_while_they_are_attacked() -> None:
    world, crowd, _ = attacked(HOSTILE["forged messages"])
    names = {each.name for each in crowd}
    for one in world.up():
        if one.name not in names:
            assert all(one.mesh.reputation.points(other.name) == 0 for other in world.up() if other.name not in names)


def test_nobody_is_blamed_for_messages_of_who_has_taken_a_seat_since_the_chain_was_asked() -> None:
    world = grown(12)
    late, honest = world.up()[0], world.up()[1:]
    late.rules.asked.add("validator")
    late.rules.unseated.add("validator")
    for number in range(8):
        honest[number].mesh.publish(b"validator:%d" % number)
    world.run(10)
    assert len(late.rules.taken) == 8
    assert late.mesh.counts["cut off"] == 0
    assert all(late.mesh.reputation.points(one.name) == 0 for one in honest)


def test_while_the_chain_does_not_answer_nobody_is_blamed_by_what_it_said_before() -> None:
    world = grown(12)
    late, honest = world.up()[0], world.up()[1:]
    late.rules.asked.add("validator")
    late.rules.unseated.add("validator")
    late.rules.chain_is_down = True
    for number in range(8):
        honest[number].mesh.publish(b"validator:%d" % number)
    world.run(10)
    assert late.mesh.counts["refused: of somebody without a stake"] > 0
    assert all(late.mesh.reputation.points(one.name) == 0 for one in honest)


def test_what_is_old_is_not_handed_on_and_nobody_is_cut_off_for_it() -> None:
    """A replay costs who sends it its own budget, and others nothing."""
    world, _, _ = attacked([Frame(messages=(b"old:####",)).encode("t")], seconds=15)
    assert world.counts()["cut off"] == 0
    assert not any(b"old" in data for each in world.up() for data in each.rules.taken)


def test_strangers_of_one_network_cause_few_questions_to_the_chain() -> None:
    frames = [Frame(messages=(b"stranger%d ####:1" % number,)).encode("t") for number in range(8)]
    world, crowd, _ = attacked(frames, networks=1)
    names = {each.name for each in crowd}
    assert max(each.questions for each in world.up() if each.name not in names) <= 16


def test_a_validator_that_is_not_known_yet_is_heard_after_one_question() -> None:
    world = grown(20)
    speaker = world.peers[b"peer 0"]
    speaker.rules.asked.add("validator")
    speaker.mesh.publish(b"validator:1")
    world.run(20)
    assert world.reached(b"validator:1") == 19
    assert {each.questions for each in world.up() if each is not speaker} == {1}
    speaker.mesh.publish(b"validator:2")
    world.run(5)
    assert world.reached(b"validator:2") == 19
    assert {each.questions for each in world.up() if each is not speaker} == {1}


def test_a_network_of_forgers_is_refused_but_not_who_has_a_stake_there() -> None:
    world = GossipWorld()
    centre = world.peer()
    crowd = [world.peer(network="9.9.9.0/24", reachable=False) for _ in range(6)]
    staked = world.peer(network="9.9.9.0/24", reachable=False)
    world.stakes[staked.name] = 1.0
    world.run(5)
    for turn in range(2):
        for each in crowd:
            centre.mesh.received(each.name, Frame(messages=(b"forger:%d" % turn,)).encode("t"))
    bystander = world.peer(network="9.9.9.0/24", reachable=False)
    world.run(5)
    assert centre.mesh.neighbours.keys() == {staked.name}
    assert not centre.mesh.admits(bystander.name, bystander.network)
    world.run(LIMITS.cut)
    assert centre.mesh.admits(bystander.name, bystander.network)


def test_what_those_with_a_stake_do_is_not_held_against_their_network() -> None:
    reputation = Reputation(lambda: 0.0, LIMITS.cut)
    for number in range(20):
        reputation.blame(b"%d" % number, "9.9.9.0/24", FORGED, has_stake=True)
    assert not reputation.refuses(b"bystander", "9.9.9.0/24")


def test_who_connects_again_and_again_has_no_more_to_say_than_before() -> None:
    world = GossipWorld()
    centre, other = world.peer(), world.peer()
    world.run(5)
    for turn in range(20):
        for number in range(4):
            frame = Frame(messages=tuple(b"old:%d %d %d" % (turn, number, m) for m in range(14))).encode("t")
            centre.mesh.received(other.name, frame)
        centre.mesh.closed(other.name)
        if centre.mesh.admits(other.name, other.network):
            centre.mesh.opened(other.name, other.network, outbound=False)
    assert not centre.mesh.admits(other.name, other.network)


def test_who_offers_a_message_first_and_never_sends_it_keeps_nobody_from_it() -> None:
    world = GossipWorld()
    centre, honest = world.peer(), world.peer(reachable=False)
    crowd = [world.peer(reachable=False) for _ in range(20)]
    world.run(5)
    honest.mesh.neighbours[centre.name].outbound = False
    centre.mesh.neighbours[honest.name].outbound = True
    asked: list[bytes] = []
    centre.mesh._send = lambda peer, data: asked.append(peer) if Frame.decode(data, "t").want else None
    offer = Frame(have=(name_of(b"trainer:1"),)).encode("t")
    for each in [*crowd, honest]:
        centre.mesh.received(each.name, offer)
    world.run(LIMITS.promise + 2 * LIMITS.heartbeat)
    assert asked == [crowd[0].name, honest.name]
    assert centre.mesh.reputation.points(crowd[0].name) > 0
    centre.mesh.received(honest.name, Frame(messages=(b"trainer:1",)).encode("t"))
    world.run(LIMITS.promise + 2 * LIMITS.heartbeat)
    assert centre.rules.taken == [b"trainer:1"]
    assert asked == [crowd[0].name, honest.name]


def test_one_fault_of_the_chains_endpoint_cuts_nobody_off() -> None:
    world = GossipWorld()
    one, other = world.peer(), world.peer()
    world.run(5)
    one.mesh.received(other.name, Frame(messages=(b"stranger:1",)).encode("t"))
    world.run(5)
    assert other.name in one.mesh.neighbours
    assert 0 < one.mesh.reputation.points(other.name) < FORGED


def test_who_asks_to_be_in_the_mesh_again_and_again_is_cut_off() -> None:
    world = GossipWorld()
    centre = world.peer()
    crowd = [world.peer(reachable=False) for _ in range(20)]
    world.run(10)
    refused = next(each for each in crowd if not centre.mesh.neighbours[each.name].meshed)
    centre.mesh.received(refused.name, Frame(graft=True).encode("t"))
    for _ in range(12):
        centre.mesh.received(refused.name, Frame(graft=True).encode("t"))
    assert refused.name not in centre.mesh.neighbours


# ---- memory ----------------------------------------------------------------------------------------------------------------


def test_messages_in_memory_are_few_of_each_signer_of_each_network_and_in_all() -> None:
    now = 0.0
    limits = GossipLimits(cached=20, cached_per_network=8, keep=10)
    cache = MessageCache(limits, lambda: now)
    for number in range(5):
        cache.put(b"need %d" % number, b"x", "need", 1, "a")
    assert cache.newest(9) == [b"need 4"]
    for number in range(30):
        cache.put(b"crowd %d" % number, b"x", number, 1, "crowd")
    assert len(cache) == 9
    assert cache.get(b"need 4") is not None
    for number in range(30):
        cache.put(b"%d" % number, b"x", "own", 99, f"n{number}")
        assert len(cache) <= 20
    assert cache.get(b"29") is not None
    now = 11.0
    assert cache.get(b"29") is None
    cache.tidy()
    assert len(cache) == 0


def test_a_network_is_what_costs_money() -> None:
    assert gossip_network("8.8.4.4") == gossip_network("8.8.4.250") == "8.8.4.0/24"
    assert gossip_network("2001:4860::1") == gossip_network("2001:4860::ffff") == "2001:4860::/64"
    assert gossip_network("2001:4860:0:1::1") != gossip_network("2001:4860::1")
    assert gossip_network("::ffff:8.8.4.4") == "8.8.4.0/24"
    assert gossip_network("192.168.1.4") != gossip_network("192.168.1.5")


# ---- fuzz ------------------------------------------------------------------------------------------------------------------


def fuzzed(cases: int, seed: int) -> None:
    """Frames that are nearly right, and noise: nothing is raised, nothing grows, and what is told besides is heard."""
    chance = random.Random(seed)
    world = GossipWorld(seed)
    centre = world.peer()
    names = tuple(chance.randbytes(20) for _ in range(4))
    whole = [
        Frame(True, (b"trainer:1", b"x" * 300), names, names, True, 60).encode("t"),
        Frame(messages=(b"validator:1",) * 14).encode("t"),
        Frame(subscribes=False, prune=2**40).encode("t"),
        Frame(want=names).encode("t") + Frame(graft=True).encode("other"),
        b"",
    ]
    for case in range(cases):
        peer = b"%d" % case
        world.peers[peer] = centre  # who is answered
        centre.mesh.opened(peer, f"{case}", outbound=False)
        data = bytearray(chance.choice(whole) if chance.random() < 0.9 else chance.randbytes(chance.randrange(200)))
        for _ in range(chance.choice((0, 1, 1, 2, 8))):
            if data:
                place = chance.randrange(len(data))
                cut = chance.random()
                if cut < 0.6:
                    data[place] = chance.randrange(256)
                elif cut < 0.8:
                    del data[place : place + chance.randrange(1, 9)]
                else:
                    data[place:place] = chance.randbytes(chance.randrange(1, 9))
        centre.mesh.received(peer, bytes(data))
        centre.mesh.closed(peer)
        world.peers.pop(peer)
        world._events.clear()
        if case % 50 == 0:
            centre.mesh.heartbeat()
            world.now += 1
    world.peers[b"honest"] = centre
    centre.mesh.opened(b"honest", "h", outbound=False)
    centre.mesh.received(b"honest", Frame(messages=(b"trainer:last",)).encode("t"))
    assert centre.rules.taken[-1] == b"trainer:last"


@pytest.mark.parametrize("cases", [5_000, pytest.param(200_000, marks=pytest.mark.long)])
def test_frames_that_are_broken_break_nothing(cases: int) -> None:
    fuzzed(cases, seed=14)


def test_what_was_lost_with_a_connection_is_said_again() -> None:
    world = GossipWorld()
    one, other = world.peer(), world.peer()
    world.link(one, other)
    lose(world)  # that they subscribe
    world.run(5)
    assert not (one.mesh.meshed or other.mesh.meshed)
    one.mesh.repeat(other.name)
    other.mesh.repeat(one.name)
    world.run(5)
    assert one.mesh.meshed and other.mesh.meshed
    one.mesh.publish(b"trainer:1")
    lose(world)
    world.run(1)
    assert not other.rules.taken
    one.mesh.repeat(other.name)
    world.run(10)
    assert other.rules.taken == [b"trainer:1"]


def lose(world: GossipWorld) -> None:
    """What is on its way does not arrive."""
    world._events = [each for each in world._events if "deliver" not in each[2].__qualname__]


def test_a_peer_that_begins_anew_is_told_anew() -> None:
    world = GossipWorld()
    one, other = world.peer(), world.peer()
    world.link(one, other)
    world.run(5)
    assert one.mesh.meshed and other.mesh.meshed
    other.mesh.closed(one.name)
    other.mesh.opened(one.name, one.network, outbound=False)
    one.mesh.began_anew(other.name)
    assert not one.mesh.meshed
    world.run(5)
    assert one.mesh.meshed and other.mesh.meshed
