"""Strangers do what they like; others are served all the same.

Where py-libp2p 0.8.1's own host would fail a test, the test says so: these are the reasons it is not used.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace

import pytest
import trio
from libp2p.stream_muxer.yamux.yamux import FLAG_RST, TYPE_PING, TYPE_WINDOW_UPDATE
from swarm.pace import Patience

from protocol.errors import Unavailable
from protocol.identity import Key
from protocol.p2p import Directory, Host, HostLimits, Provider, Service, negotiation
from protocol.p2p.address import Address, PeerAddress
from protocol.p2p.discovery import ENDPOINT_PROTOCOL, Discovery, _Search
from protocol.p2p.identify import IDENTIFY, PING, PUSH
from protocol.p2p.node import PeerConnection
from protocol.p2p.routing import Contact
from protocol.p2p.stream import Stream
from protocol.p2p.wire import PROTOCOL as KAD
from protocol.p2p.wire import KademliaAnswer, Kind, Question
from tests.clock import eventually
from tests.p2p.attacker import ELSEWHERE, Hostile, hostile, under_attack
from tests.p2p.network import QUICK, RELAY, Network, endpoint, find, port_of, quick


def count(host: Host, what: str) -> int:
    return host.status().counts.get(what, 0)


def served(network: Network, bootnode: Host, provider: Host) -> bool:
    """A newcomer joins through the bootnode and finds the provider, in reasonable time."""
    newcomer = network.host(bootnode)
    began = time.monotonic()
    found = find(newcomer, within=10)
    newcomer.close()
    return set(found) == {provider.peer_id} and time.monotonic() - began < 8


@pytest.fixture
def bootnode(network: Network) -> Host:
    return network.host()


@pytest.fixture
def provider(network: Network, bootnode: Host) -> Host:
    return network.provider(bootnode)


# ---- before anybody has proven anything ----


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\x00",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 100_000,
        negotiation.message(b"\xff\xfe\n"),
        negotiation.message(b"/multistream/1.0.0\n") + negotiation.message(b"/noise\n") + b"\xff" * 70_000,
        negotiation.message(b"/multistream/1.0.0\n") + negotiation.message(b"/tls/1.0.0\n") * 1000,
        b"\x80" * 50,
    ],
)
def test_garbage_in_place_of_a_handshake_harms_nobody(
    network: Network, bootnode: Host, provider: Host, junk: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", port_of(bootnode))) as stranger:
        stranger.sendall(junk)
        assert served(network, bootnode, provider)
    eventually(lambda: count(bootnode, "failed handshakes") == 1)


def test_a_length_prefix_of_a_gigabyte_is_refused_and_not_read(bootnode: Host) -> None:
    """py-libp2p 0.8.1 allocates whatever length an unauthenticated peer names."""
    gigabyte = b"\x80\x80\x80\x80\x04"
    with socket.create_connection(("127.0.0.1", port_of(bootnode)), timeout=5) as stranger:
        stranger.sendall(gigabyte + b"x" * 1000)
        patience = Patience(1)
        with suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass
    assert not patience.ended()


def test_who_dallies_in_the_handshake_is_cut_off(network: Network) -> None:
    host = network.host(timing=quick(handshake=0.3))
    with socket.create_connection(("127.0.0.1", port_of(host)), timeout=5) as stranger:
        while stranger.recv(4096):  # until the other side hangs up
            pass
    assert count(host, "failed handshakes") == 1


def test_dallying_strangers_do_not_keep_others_out(network: Network) -> None:
    bootnode = network.host(limits=HostLimits(handshakes=4), timing=quick(handshake=600))
    provider = network.provider(bootnode)
    strangers = [
        socket.create_connection(("127.0.0.1", port_of(bootnode)), source_address=(f"127.0.1.{n}", 0))
        for n in range(1, 30)
    ]
    assert served(network, bootnode, provider)
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize(
    "limits",
    [
        HostLimits(connections_per_address=10, accept_burst=10_000),
        HostLimits(connections_per_address=10_000, accept_burst=10, accept_rate=0.001),
    ],
    ids=["at the same time", "in a row"],
)
def test_hundreds_of_connections_from_one_address_do_not_keep_others_out(network: Network, limits: HostLimits) -> None:
    bootnode = network.host(limits=limits, timing=quick(handshake=600))
    provider = network.provider(bootnode)
    place = ("127.0.0.1", port_of(bootnode))

    strangers = [socket.create_connection(place, source_address=(ELSEWHERE, 0)) for _ in range(300)]

    eventually(lambda: count(bootnode, "refused") == 290)
    assert served(network, bootnode, provider)
    for stranger in strangers:
        stranger.close()


def test_a_full_house_gives_a_newcomer_the_place_of_the_least_missed(network: Network) -> None:
    """That is one of the address that has most of them: who comes alone is neither kept out nor thrown out."""
    bootnode = network.host(limits=HostLimits(connections=6))
    provider = network.provider(bootnode)

    async def to_provider(discovery: Discovery) -> PeerConnection | None:
        return discovery.node.connection(PeerAddress.parse(provider.addresses[0]).peer)

    before = bootnode.run_inside(to_provider, deadline=5, what="looking")

    async def crowd(started: trio.Event) -> None:
        async def sit() -> None:
            async with hostile(bootnode) as peer:
                sitting.append(peer)
                await peer.muxer.event_shutting_down.wait()

        sitting: list[Hostile] = []
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(sit)
            while len(sitting) < 10:
                await trio.sleep(0.02)
            started.set()

    with under_attack(crowd):
        eventually(lambda: bootnode.status().connections == 6)
        assert served(network, bootnode, provider)
        assert bootnode.run_inside(to_provider, deadline=5, what="looking") == before


def test_a_closed_connection_gives_its_place_back(network: Network) -> None:
    """py-libp2p 0.8.1 keeps the slot of an accepted connection until the host stops."""
    bootnode = network.host(limits=HostLimits(connections_per_address=4))

    async def come_and_go() -> None:
        for _ in range(20):
            async with hostile(bootnode):
                pass
            while bootnode.status().connections:
                await trio.sleep(0.01)

    trio.run(come_and_go)
    assert count(bootnode, "refused") == 0


# ---- streams ----


async def garbage_names(bootnode: Host) -> None:
    """py-libp2p 0.8.1 ends the whole host on the first of these: a UnicodeDecodeError nobody catches."""
    async with hostile(bootnode) as peer:
        for number in range(1, 41, 2):
            await peer.open(number)
            await peer.data(number, negotiation.message(b"/multistream/1.0.0\n") + negotiation.message(b"\xff\xfe\n"))
        await trio.sleep(0)


async def half_messages(bootnode: Host) -> None:
    async with hostile(bootnode) as peer:
        await peer.speak(1, KAD, negotiation.message(Question(Kind.FIND_NODE, b"key").encode())[:-1])
        await peer.speak(3, ENDPOINT_PROTOCOL, b"\x22\x12")
        await peer.speak(5, KAD, b"\x80")
        await peer.data(7, b"data of a stream that was never opened")


async def oversized_messages(bootnode: Host) -> None:
    async with hostile(bootnode) as peer:
        await peer.speak(1, KAD, b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
        await peer.speak(3, ENDPOINT_PROTOCOL, negotiation.message(os.urandom(200_000))[:60_000])
        await peer.speak(5, KAD, b"\xff" * 64)


async def nonsense_questions(bootnode: Host) -> None:
    async with hostile(bootnode) as peer:
        for number in range(1, 61, 2):
            await peer.speak(number, KAD, negotiation.message(os.urandom(number)))


async def nonsense_of_identify(bootnode: Host) -> None:
    async with hostile(bootnode) as peer:
        for number in range(1, 31, 2):
            await peer.speak(number, (IDENTIFY, PUSH, PING)[number % 3], negotiation.message(os.urandom(number * 5)))
        await peer.speak(31, PUSH, b"\xff\xff\xff\x7f")
        await peer.speak(33, PUSH, negotiation.message(b"\x1a\x02\xff\xfe") * 10)  # a protocol that is no UTF-8
        await peer.speak(35, PING, bytes(31))


async def resets(bootnode: Host) -> None:
    async with hostile(bootnode) as peer:
        for number in range(1, 601, 2):
            await peer.open(number)
            await peer.frame(TYPE_WINDOW_UPDATE, FLAG_RST, number, 0)


async def resets_in_the_middle(bootnode: Host) -> None:
    for _ in range(5):
        async with hostile(bootnode) as peer:
            await peer.speak(1, KAD, negotiation.message(Question(Kind.FIND_NODE, b"key").encode()))


async def unknown_frames(bootnode: Host) -> None:
    async with hostile(bootnode) as peer:
        for kind in range(4, 40):
            await peer.frame(kind, 0xFFFF, 0xFFFFFFFF, 0)


ATTACKS = [
    garbage_names,
    half_messages,
    oversized_messages,
    nonsense_questions,
    nonsense_of_identify,
    resets,
    resets_in_the_middle,
    unknown_frames,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_nonsense_on_an_authenticated_connection_harms_nobody(
    network: Network,
    bootnode: Host,
    provider: Host,
    attack: Callable[[Host], Awaitable[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def three_times() -> None:
        for _ in range(3):
            await attack(bootnode)

    trio.run(three_times)

    assert served(network, bootnode, provider)
    eventually(lambda: bootnode.status().connections == 1)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("protocol.p2p")]
    assert ours == []  # what strangers do fills nobody's log


def test_hundreds_of_silent_streams_are_capped_and_in_nobodys_way(network: Network) -> None:
    """py-libp2p 0.8.1's DHT serves twelve streams at a time and gives a silent one its place for ever."""
    bootnode = network.host(timing=quick(stream=600))
    provider = network.provider(bootnode)

    async def silent_streams(started: trio.Event) -> None:
        async with hostile(bootnode) as one, hostile(bootnode) as other:
            for peer in (one, other):
                for number in range(1, 401, 2):
                    await peer.speak(number, KAD)
            started.set()
            await trio.sleep_forever()

    with under_attack(silent_streams):
        eventually(lambda: count(bootnode, "refused streams") == 2 * (200 - HostLimits().streams_per_connection))
        assert served(network, bootnode, provider)


def test_a_silent_stream_is_cut_off_and_its_place_given_back(network: Network) -> None:
    host = network.host(timing=quick(stream=0.2), limits=HostLimits(streams_per_connection=1))

    async def one_after_the_other() -> None:
        async with hostile(host) as peer:
            for number in (1, 3, 5):
                await peer.speak(number, KAD)
                while count(host, "failed streams") < (number + 1) // 2:
                    await trio.sleep(0.02)

    trio.run(one_after_the_other)
    assert count(host, "refused streams") == 0


def test_a_hundred_megabytes_on_the_endpoint_protocol_are_not_taken(
    network: Network, bootnode: Host, provider: Host
) -> None:
    """Neither read nor kept: the sender is disconnected after its budget, a few megabytes."""
    sent: list[int] = []
    chunk = bytes(60_000)

    async def flood() -> None:
        async with hostile(provider) as peer:
            await peer.speak(1, ENDPOINT_PROTOCOL, b"\xff\xff\xff\x7f")
            total = 0
            while total < 100 << 20 and not peer.muxer.is_dead:
                await peer.data(1, chunk)
                total += len(chunk)
            sent.append(total)

    before = resident()
    trio.run(flood)

    assert sent[0] < 20 << 20
    assert resident() - before < 30 << 20
    assert served(network, bootnode, provider)


def test_unread_data_beyond_the_window_ends_the_connection(network: Network) -> None:
    """py-libp2p 0.8.1 logs a warning and keeps all of it."""
    limits = HostLimits(receive_burst=1 << 40)
    host = network.host(limits=limits, timing=quick(stream=60))

    async def install(discovery: Discovery) -> None:
        discovery.node.handle("/sleepy/1", nothing)

    host.run_inside(install, deadline=5, what="installing a handler that never reads")

    async def ignore_flow_control() -> None:
        async with hostile(host) as peer:
            await peer.speak(1, "/sleepy/1")
            for _ in range(2 * limits.buffered // 60_000):
                await peer.data(1, bytes(60_000))
            await peer.cut_off()

    trio.run(ignore_flow_control)


def test_a_frame_larger_than_any_of_ours_ends_the_connection(bootnode: Host) -> None:
    async def announce_much() -> None:
        async with hostile(bootnode) as peer:
            await peer.open(1)
            await peer.frame(0, 0, 1, 1 << 20)
            await peer.cut_off()

    trio.run(announce_much)


def test_a_flood_of_tiny_frames_ends_the_connection(network: Network, bootnode: Host, provider: Host) -> None:
    async def flood(started: trio.Event) -> None:
        async with hostile(bootnode) as peer:
            started.set()
            while not peer.muxer.is_dead:
                await peer.frame(TYPE_PING, 1, 0, 7)
            await trio.sleep_forever()

    with under_attack(flood):
        assert served(network, bootnode, provider)
        eventually(lambda: bootnode.status().connections == 1)


def test_a_peer_that_does_not_read_is_cut_off_and_delays_nobody(network: Network) -> None:
    bootnode = network.host(timing=quick(write=0.5))
    provider = network.provider(bootnode)

    async def never_read(started: trio.Event) -> None:
        known = PeerAddress.parse(bootnode.addresses[0])
        async with hostile(bootnode) as peer:
            peer.muxer._nursery.cancel_scope.cancel()  # nobody reads any more
            question = negotiation.message(Question(Kind.FIND_NODE, known.peer).encode())
            started.set()
            for number in range(
                1, 1 << 20, 2
            ):  # until it is told to stop: how soon buffers are full is the machine's affair
                await peer.speak(number, KAD, question)
            await trio.sleep_forever()

    with under_attack(never_read):
        assert served(network, bootnode, provider)
        eventually(lambda: bootnode.status().connections == 1)


def test_a_fault_in_a_handler_ends_its_stream_only(
    network: Network, bootnode: Host, provider: Host, caplog: pytest.LogCaptureFixture
) -> None:
    async def faulty(stream: Stream) -> None:
        raise KeyError("planted fault")

    async def install(discovery: Discovery) -> None:
        discovery.node.handle("/faulty/1", faulty)

    bootnode.run_inside(install, deadline=5, what="installing a faulty handler")

    async def use(discovery: Discovery) -> bytes:
        known = PeerAddress.parse(bootnode.addresses[0])
        return await discovery.node.request(known.peer, (known.address,), "/faulty/1", b"?", cap=100, what="answer")

    for _ in range(3):
        with pytest.raises(Unavailable):
            provider.run_inside(use, deadline=10, what="using it")
    assert caplog.text.count("planted fault") == 3
    assert served(network, bootnode, provider)


# ---- lies ----


async def other_role(stream: Stream) -> None:
    await stream.read_message(64, "key")
    await stream.write_message(b'{"http":"http://127.0.0.1:1","role":"hub","run":"1"}')


async def other_run(stream: Stream) -> None:
    await stream.read_message(64, "key")
    await stream.write_message(b'{"http":"http://127.0.0.1:1","role":"relay","run":"2"}')


async def not_json(stream: Stream) -> None:
    await stream.read_message(64, "key")
    await stream.write_message(os.urandom(500))


async def no_url(stream: Stream) -> None:
    await stream.read_message(64, "key")
    await stream.write_message(b'{"http":"http://user:secret@127.0.0.1:1","role":"relay","run":"1"}')


async def too_long(stream: Stream) -> None:
    await stream.read_message(64, "key")
    await stream.write_message(b" " * 5000)


async def half_an_answer(stream: Stream) -> None:
    await stream.read_message(64, "key")
    await stream.write(b"\x50{")


async def more_than_an_answer(stream: Stream) -> None:
    await stream.read_message(64, "key")
    await stream.write_message(b'{"http":"http://127.0.0.1:1","role":"relay","run":"1"}')
    await stream.write(b"and more")


async def nothing(stream: Stream) -> None:
    await trio.sleep_forever()


async def a_reset(stream: Stream) -> None:
    await stream.reset()


LIES = [other_role, other_run, not_json, no_url, too_long, half_an_answer, more_than_an_answer, nothing, a_reset]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_liar_that_provides_the_key_but_answers_nonsense_is_dropped(
    network: Network, bootnode: Host, lie: Callable[[Stream], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="protocol.p2p")
    liar = network.provider(bootnode)

    async def start_lying(discovery: Discovery) -> None:
        discovery.node.handle(ENDPOINT_PROTOCOL, lie)

    liar.run_inside(start_lying, deadline=5, what="starting to lie")
    honest = network.provider(bootnode, port=8101)
    seeker = network.host(bootnode, timing=quick(request=0.7, grace=2.0))

    assert set(find(seeker)) == {honest.peer_id}
    counts = seeker.status().counts
    assert counts.get("with a wrong answer", 0) + counts.get("without an answer", 0) == 1
    assert set(find(seeker)) == {honest.peer_id}
    assert caplog.text.count("relay of run 1: 1 found, dropped 1 with") == 1, "the second time it is not news"

    honest.close()
    with pytest.raises(Unavailable, match="claimed to be one and failed"):
        find(seeker, within=0.3)


def test_nobody_announces_for_somebody_else(bootnode: Host) -> None:
    victim = Contact(Key.generate().peer, (PeerAddress.parse(bootnode.addresses[0]).address,))
    question = Question(Kind.ADD_PROVIDER, RELAY.key, victim)

    async def announce() -> None:
        async with hostile(bootnode) as peer:
            await peer.speak(1, KAD, negotiation.message(question.encode()))
            while not count(bootnode, "failed streams"):
                await trio.sleep(0.01)

    trio.run(announce)
    assert bootnode.status().records == 0
    assert bootnode.status().peers == 0


def test_a_bootnode_cannot_pass_itself_off_as_a_provider_it_is_not(network: Network) -> None:
    """It may name the victim's PeerID at an address of its own; who answers there cannot prove to be the victim."""
    crooked, victim = network.host(), Key.generate()
    own = PeerAddress.parse(crooked.addresses[0])

    async def lie(stream: Stream) -> None:
        question = Question.decode(await stream.read_message(4096, "question"))
        answer = KademliaAnswer(providers=(Contact(victim.peer, (own.address,)),))
        await stream.write_message(answer.encode(question.kind))

    async def start_lying(discovery: Discovery) -> None:
        discovery.node.handle(KAD, lie)

    crooked.run_inside(start_lying, deadline=5, what="starting to lie")
    seeker = network.host(crooked)
    with pytest.raises(Unavailable, match="claimed to be one and failed"):
        find(seeker, within=1.0)


@pytest.fixture
def black_hole() -> Iterator[socket.socket]:
    """Takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        yield listener


def names(key: Key, place: Address, after: threading.Event | None = None) -> Callable[[Discovery], Awaitable[None]]:
    """Makes a host answer every question for providers with `key`'s PeerID at `place`, and none before `after` is set."""

    async def answer(stream: Stream) -> None:
        question = Question.decode(await stream.read_message(4096, "question"))
        providers = (Contact(key.peer, (place,)),) if question.kind is Kind.GET_PROVIDERS else ()
        if providers and after:
            await trio.to_thread.run_sync(after.wait, 20)
        await stream.write_message(KademliaAnswer(providers=providers).encode(question.kind))

    async def install(discovery: Discovery) -> None:
        discovery.node.handle(KAD, answer)

    return install


def test_a_false_address_of_a_provider_does_not_hold_up_its_true_one(
    network: Network, black_hole: socket.socket
) -> None:
    """A crooked bootnode names the provider's PeerID at a silent address; the dial there must not be waited for."""
    crooked, honest, provider_key = network.host(), network.host(), Key.generate()
    provider = network.host(key=provider_key)
    Directory(provider).announce(RELAY, endpoint(8100))
    dialled, over = threading.Event(), threading.Event()

    def accept() -> None:
        with black_hole.accept()[0]:
            dialled.set()
            over.wait(40)

    false = Address("ip4", "127.0.0.1", black_hole.getsockname()[1])
    true = PeerAddress.parse(provider.addresses[0]).address
    crooked.run_inside(names(provider_key, false), deadline=5, what="starting to lie")
    honest.run_inside(names(provider_key, true, after=dialled), deadline=5, what="naming the provider second")
    # Longer than the test may take: were the silent dial waited for, nothing would be found.
    seeker = network.host(crooked, honest, timing=quick(dial=60, request=60, stream=60))
    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        assert set(find(seeker)) == {provider.peer_id}
        assert dialled.is_set()
    finally:
        over.set()
        thread.join(20)


def test_false_addresses_use_up_no_attempts_of_the_true_one() -> None:
    peer = Key.generate().peer
    true, *false = (Address("ip4", "192.0.2.7", port) for port in range(1, 4))
    named_now: list[tuple[Address, ...]] = []
    asked: list[tuple[Address, ...]] = []

    class Dht:
        async def providers(self, key: bytes, named: Callable[[Contact], None], *_: object) -> None:
            for addresses in named_now:
                named(Contact(peer, addresses))

    class Asked:
        node, dht = SimpleNamespace(limits=HostLimits(), timing=QUICK), Dht()

        async def ask(self, contact: Contact, service: Service) -> Provider:
            asked.append(contact.addresses)
            if true not in contact.addresses:
                raise Unavailable("nobody there")
            return Provider("", "", endpoint(8100))

    async def run() -> None:
        search = _Search(Asked(), RELAY, 1, None)  # type: ignore[arg-type]
        for _ in range(20):
            named_now[:] = [(false[0],), (false[1],)]
            await search.round()
        assert len(asked) == 16  # each is given up in the end
        named_now[:] = [(false[0], true)]
        await search.round()
        assert set(search.found) == {peer}
        assert asked[-1] == (true,)

    trio.run(run)


def test_a_thousand_announcements_are_not_all_kept(network: Network) -> None:
    bootnode = network.host(limits=HostLimits(records_per_address=50, frames_burst=1e9, receive_burst=1e9))
    key = Key.generate()
    own = Contact(key.peer, (PeerAddress.parse(bootnode.addresses[0]).address,))

    async def announce() -> None:
        async with hostile(bootnode, key=key) as peer:
            for _ in range(200):
                question = Question(Kind.ADD_PROVIDER, os.urandom(34), own)
                stream = await peer.muxer.open_stream()
                channel = Stream(stream, own.peer, "")
                messages = (question.encode(), Question(Kind.PING, b"").encode())  # only the second has an answer
                await negotiation.propose(channel, KAD, b"".join(map(negotiation.message, messages)))
                await channel.read_message(100, "answer")
                await channel.finish()

    trio.run(announce)
    assert bootnode.status().records == 50


def resident() -> int:
    """Bytes of memory this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
