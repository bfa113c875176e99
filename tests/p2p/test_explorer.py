"""What an operator's commands see of the network: real hosts, dead ones, and such as answer whatever they like."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio
from libp2p import new_host
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as x25519_pair
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from multiaddr import Multiaddr

from protocol.errors import DeadlineExceeded, Malformed, ProtocolViolation, Unavailable
from protocol.identity import Key
from protocol.p2p import Host, report
from protocol.p2p.address import Address, PeerAddress, peer_text
from protocol.p2p.discovery import Discovery
from protocol.p2p.explorer import Explorer, Greeting, explore
from protocol.p2p.identify import IDENTIFY
from protocol.p2p.kademlia import LookupStep
from protocol.p2p.service import Provider
from protocol.p2p.stream import Stream
from protocol.p2p.wire import PROTOCOL, KademliaAnswer
from tests.clock import eventually
from tests.p2p.attacker import ELSEWHERE, hostile
from tests.p2p.network import QUICK, RELAY, Network, listening_on, quick


def known(host: Host) -> PeerAddress:
    return PeerAddress.parse(host.addresses[0])


def gone(network: Network) -> PeerAddress:
    """Where no host is."""
    return PeerAddress.parse(network.gone())


def greet(place: PeerAddress, *, pings: int = 3, **changes: float) -> Greeting:
    return explore(
        lambda explorer: explorer.greet(place.peer, [place.address], pings=pings), seconds=20, timing=quick(**changes)
    )


@pytest.fixture
def silent() -> Iterator[Address]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Address("ip4", "127.0.0.1", listener.getsockname()[1])


def test_a_host_that_answers_is_pinged_and_tells_which_of_our_protocols_it_speaks(network: Network) -> None:
    found = greet(known(network.host()))
    assert found.answered
    assert (len(found.round_trips), found.lost) == (3, 0)
    assert all(0 < trip < 10 for trip in found.round_trips)
    assert PROTOCOL in found.protocols


def test_a_dead_host_a_silent_one_and_somebody_else_are_told_apart(network: Network, silent: Address) -> None:
    host, absent = network.host(), Key.generate()
    (refused,) = greet(gone(network)).dialled
    assert "connection refused" in str(refused.problem)
    (late,) = greet(PeerAddress(silent, absent.peer), dial=0.3).dialled
    assert "no answer within 0.3 s" in str(late.problem)
    (wrong,) = greet(PeerAddress(known(host).address, absent.peer)).dialled
    assert str(wrong.problem) == f"somebody else answers there: {host.peer_id}"


def test_every_address_of_a_peer_is_tried_and_told_of(network: Network) -> None:
    """Where a node would go with the first that answers."""
    host = network.host()
    lost, there = gone(network).address, known(host).address
    no_name = Address("dns4", "no-such-name.invalid", 4001)
    found = explore(
        lambda explorer: explorer.greet(known(host).peer, [lost, there, no_name]), seconds=20, timing=quick(dial=4)
    )
    assert {each.named.address: each.problem is None for each in found.dialled} == {
        lost: False,
        there: True,
        no_name: False,
    }
    assert found.problem is None


def test_a_name_is_told_with_the_address_behind_it(network: Network) -> None:
    port = known(network_host := network.host()).address.port
    (dialled,) = greet(PeerAddress(Address("dns4", "localhost", port), known(network_host).peer)).dialled
    assert (dialled.named.address.host, str(dialled.ip)) == ("localhost", f"/ip4/127.0.0.1/tcp/{port}")
    assert dialled.problem is None


def test_a_stock_libp2p_host_says_who_it_is() -> None:
    async def main() -> Greeting:
        pair = create_new_key_pair(os.urandom(32))
        noise = NoiseTransport(pair, noise_privkey=x25519_pair().private_key)
        stock = new_host(key_pair=pair, sec_opt={NOISE_ID: noise})
        async with stock.run([Multiaddr("/ip4/127.0.0.1/tcp/0")]):
            text = str(stock.get_addrs()[0])
            return await trio.to_thread.run_sync(lambda: greet(PeerAddress.parse(text)))

    found = trio.run(main)
    assert "py-libp2p" in found.agent
    assert IDENTIFY in found.protocols
    assert found.seen_as.startswith("/ip4/127.0.0.1/tcp/")
    assert len(found.round_trips) == 3


async def garbage(stream: Stream) -> None:
    await stream.write_message(os.urandom(300))


async def a_huge_identity(stream: Stream) -> None:
    await stream.write(b"\xff\xff\xff\x7f" + bytes(1000))


async def nothing(stream: Stream) -> None:
    await trio.sleep_forever()


async def a_reset(stream: Stream) -> None:
    await stream.reset()


@pytest.mark.parametrize("lie", [garbage, a_huge_identity, nothing, a_reset], ids=lambda lie: lie.__name__)
def test_a_peer_that_lies_about_itself_is_still_pinged(
    network: Network, lie: Callable[[Stream], Awaitable[None]]
) -> None:
    host = network.host()

    async def start_lying(discovery: Discovery) -> None:
        discovery.node.handle(IDENTIFY, lie)

    host.run_inside(start_lying, deadline=5, what="starting to lie")
    found = greet(known(host), request=0.5)
    assert (found.answered, len(found.round_trips), found.agent) == (True, 3, "")
    assert found.unidentified
    assert PROTOCOL in found.protocols


def test_a_peer_without_end_to_what_it_says_is_cut_short(network: Network) -> None:
    from libp2p.identity.identify.pb.identify_pb2 import Identify

    host = network.host()

    async def boast(stream: Stream) -> None:
        names = ["/p" * 500] * 20 + ["/q"] * 100
        said = Identify(agent_version="\x1b[31m" * 1000, protocols=names, observed_addr=b"\x04")
        await stream.write_message(said.SerializeToString())

    async def start(discovery: Discovery) -> None:
        discovery.node.handle(IDENTIFY, boast)

    host.run_inside(start, deadline=5, what="starting to boast")
    found = greet(known(host))
    assert len(found.agent) == 128
    assert len(found.protocols) == 32
    assert all(len(name) <= 128 for name in found.protocols)
    assert found.seen_as == ""


def test_a_lookup_tells_of_each_question_with_its_answer_or_what_was_wrong(network: Network) -> None:
    bootnode = network.host()
    provider = network.provider(bootnode, port=8101)
    peer = network.host(bootnode)
    eventually(lambda: bootnode.status().peers == 2, what="two peers at the bootnode")
    told: list[LookupStep] = []
    entered: dict[str, bool] = {}
    dead = gone(network)

    async def task(explorer: Explorer) -> list[tuple[str, str]]:
        await explorer.enter(
            [known(bootnode), dead], lambda one, greeting: entered.update({str(one): greeting.answered})
        )
        provider.close()
        found = await explorer.look_for(RELAY.key, told.append, providers=True)
        answers = await explorer.ask(found, RELAY)
        return [(peer_text(each.peer), str(answer)) for each, answer in zip(found, answers, strict=True)]

    found = explore(task, seconds=30, loopback=True, timing=QUICK)

    assert entered == {str(known(bootnode)): True, str(dead): False}
    outcomes = {peer_text(asked.contact.peer): asked.outcome for asked in told}
    answer = outcomes[bootnode.peer_id]
    assert isinstance(answer, KademliaAnswer)
    assert [peer_text(each.peer) for each in answer.providers] == [provider.peer_id]
    assert isinstance(outcomes[peer.peer_id], KademliaAnswer)
    assert isinstance(outcomes[provider.peer_id], Unavailable)
    assert [who for who, _ in found] == [provider.peer_id]
    assert "connection refused" in found[0][1]


def test_who_provides_a_service_is_asked_for_its_endpoint(network: Network) -> None:
    bootnode = network.host()
    provider = network.provider(bootnode, port=8107)

    async def task(explorer: Explorer) -> Provider | object:
        await explorer.enter([known(bootnode)], lambda *_: None)
        (answer,) = await explorer.ask(await explorer.look_for(RELAY.key, lambda _: None, providers=True), RELAY)
        return answer

    answer = explore(task, seconds=20, loopback=True, timing=QUICK)
    assert isinstance(answer, Provider)
    assert (answer.peer_id, answer.endpoint.http) == (provider.peer_id, "http://127.0.0.1:8107")


def test_an_address_that_answers_and_speaks_no_dht_is_no_bootnode(network: Network) -> None:
    host = network.host()

    async def mute(discovery: Discovery) -> None:
        async def wrong(stream: Stream) -> None:
            await stream.write_message(b"\xff" * 40)

        discovery.node.handle(PROTOCOL, wrong)

    host.run_inside(mute, deadline=5, what="growing mute")
    met: list[Greeting] = []
    explore(
        lambda explorer: explorer.enter([known(host)], lambda _, greeting: met.append(greeting)),
        seconds=20,
        timing=QUICK,
    )
    assert isinstance(met[0].problem, ProtocolViolation)
    assert "it answers, and is no bootnode" in str(met[0].problem)


def test_an_explorer_enters_nobodys_table_and_leaves_nothing_behind(network: Network) -> None:
    bootnode = network.host()

    async def task(explorer: Explorer) -> None:
        await explorer.enter([known(bootnode)], lambda *_: None)
        await explorer.look_for(Key.generate().peer, lambda _: None, providers=False)

    explore(task, seconds=20, loopback=True, timing=QUICK)
    assert bootnode.status().peers == 0
    eventually(lambda: bootnode.status().connections == 0, what="no connection")


def test_peers_send_an_explorer_into_no_ones_interior(network: Network) -> None:
    """Of a person's word it goes there."""
    place = known(network.host())

    def greeted(**options: bool) -> Greeting:
        return explore(
            lambda explorer: explorer.greet(place.peer, [place.address], **options), seconds=20, timing=QUICK
        )

    assert greeted().answered
    (left_out,) = greeted(hearsay=True).dialled
    assert "not dialled on the word of peers" in str(left_out.problem)


def test_an_interrupt_ends_it_as_it_ends_other_commands() -> None:
    async def task(explorer: Explorer) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        explore(task, seconds=5)


def test_asking_around_keeps_its_deadline() -> None:
    async def task(explorer: Explorer) -> None:
        await trio.sleep_forever()

    with pytest.raises(DeadlineExceeded, match=r"longer than 0\.2 s"):
        explore(task, seconds=0.2)


def test_an_error_comes_out_as_it_is() -> None:
    async def task(explorer: Explorer) -> None:
        raise Malformed("as it is")

    with pytest.raises(Malformed, match="as it is"):
        explore(task, seconds=5)


# ---- what a running host says of itself ----


def test_a_running_host_says_where_it_listens_whom_it_knows_and_what_is_wrong(network: Network, tmp_path: Path) -> None:
    bootnode, dead = network.host(), gone(network)
    file = tmp_path / "data" / "network.json"
    host = network.provider(bootnode, str(dead), port=8102, report_file=file, timing=quick(report=0.05))

    def told() -> dict[str, object] | None:
        found = report.read(file)
        alone = found and found["inbound"] == 0  # not while the bootnode dials back
        return found if alone and found["known"] == 1 and found["provides"][0]["holders"] else None

    found = eventually(told, what="a report")
    assert (found["state"], found["pid"], found["peer"]) == ("running", os.getpid(), host.peer_id)
    assert (found["listen"], found["joined"]) == (listening_on(host), True)
    assert found["provides"] == [{"role": "relay", "run": 1, "http": "http://127.0.0.1:8102", "holders": 1}]
    assert [each["peer"] for each in found["peers"]] == [bootnode.peer_id]
    problems = {each["address"]: each["problem"] for each in found["bootnodes"]}
    assert problems[bootnode.addresses[0]] == ""
    assert "connection refused" in problems[str(dead)]
    assert (found["inbound"], found["outbound"], found["welcomed"]) == (0, 1, 0)

    assert greet(known(host)).answered, "somebody comes in from this machine"

    async def come_in() -> None:
        async with hostile(host, source=ELSEWHERE):
            pass

    trio.run(come_in)
    eventually(lambda: (report.read(file) or {})["welcomed"] == 1, what="one that came in")
    host.close()
    last = report.read(file) or {}
    assert (last["state"], last["welcomed"]) == ("stopped", 1)


def test_a_host_says_at_once_that_it_has_joined_and_that_it_can_be_found(network: Network, tmp_path: Path) -> None:
    file = tmp_path / "network.json"
    network.provider(network.host(), port=8102, report_file=file, timing=quick(report=3600.0))

    def told() -> bool:
        found = report.read(file) or {}
        return bool(found.get("joined") and found["provides"][0]["holders"])

    eventually(told, what="a report of a host that has joined and provides")


def test_a_report_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    file = tmp_path / "network.json"
    assert report.read(file) is None
    for text in ("", "{", "[1]", json.dumps("x")):
        file.write_text(text)
        assert report.read(file) is None
    file.write_bytes(b'{"peer": "' + b"x" * (2 << 20) + b'"}')
    assert report.read(file) is None
