"""The parts that need no network: addresses, endpoints, the routing table, provider records, messages, the peer file."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from multiaddr import Multiaddr

from protocol import canonical
from protocol.errors import Malformed, Oversized, ProtocolViolation
from protocol.identity import Key
from protocol.p2p import Endpoint, HostLimits, Service, Timing, peers
from protocol.p2p.address import Address, PeerAddress, network_of
from protocol.p2p.admission import as_seen
from protocol.p2p.identify import Identified
from protocol.p2p.kademlia import Kademlia
from protocol.p2p.notices import NAMESPACE, NOTICE_BYTES_MAX, value_key
from protocol.p2p.records import PROVIDERS_PER_KEY, ProviderRecords
from protocol.p2p.routing import BUCKET, STALE_SECONDS, Contact, RoutingTable, nearest, place
from protocol.p2p.wire import ANSWER_BYTES_MAX, QUESTION_BYTES_MAX, KademliaAnswer, Kind, Question, Value
from tests.p2p.network import CONTRACT

KEYS = [Key.generate() for _ in range(70)]


def contact(number: int, address: str = "/ip4/127.0.0.1/tcp/4001") -> Contact:
    return Contact(KEYS[number].peer, (Address.parse(address),))


# ---- addresses ----

GOOD = [
    "/ip4/192.0.2.7/tcp/4001",
    "/ip4/0.0.0.0/tcp/0",
    "/ip6/2001:db8::1/tcp/65535",
    "/ip6/::/tcp/1",
    "/dns4/boot.example.org/tcp/4001",
    "/dns6/a/tcp/1",
    "/dns/xn--bcher-kva.example/tcp/443",
]
BAD = [
    "",
    "/",
    "/ip4/192.0.2.7",
    "/ip4/192.0.2.7/tcp/65536",
    "/ip4/192.0.2.7/tcp/-1",
    "/ip4/192.0.2.7/tcp/04001",
    "/ip4/192.0.2.7/tcp/4001/",
    "/ip4/192.0.2.7/udp/4001",
    "/ip4/192.0.2.256/tcp/1",
    "/ip4/192.000.2.7/tcp/1",
    "/ip4/::1/tcp/1",
    "/ip6/192.0.2.7/tcp/1",
    "/ip6/fe80::1%eth0/tcp/1",
    "/dns4/-a.example/tcp/1",
    "/dns4/a..b/tcp/1",
    "/dns4/A.example/tcp/1",
    "/dns4/" + "a" * 64 + "/tcp/1",
    "/ip4/192.0.2.7/tcp/4001/ws",
    "/ip4/192.0.2.7/tcp/٤",
]


@pytest.mark.parametrize("text", GOOD)
def test_an_address_reads_and_writes_as_the_multiaddr_library_does(text: str) -> None:
    address = Address.parse(text)
    assert str(address) == text
    assert address.encode() == Multiaddr(text).to_bytes()
    assert Address.decode(address.encode()) == address


@pytest.mark.parametrize("text", BAD)
def test_a_text_that_is_no_address_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        Address.parse(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_address_that_writes_itself_back_or_malformed(data: bytes) -> None:
    try:
        address = Address.decode(data)
    except Malformed:
        return
    assert address.encode() == data
    assert Address.parse(str(address)) == address


def test_a_peer_address_names_whom_to_expect() -> None:
    text = f"/ip4/192.0.2.7/tcp/4001/p2p/{KEYS[0].peer_id}"
    assert PeerAddress.parse(text).peer == KEYS[0].peer
    assert str(PeerAddress.parse(text)) == text
    for wrong in ("/ip4/192.0.2.7/tcp/4001", text[:-1], text + "/p2p-circuit", text.replace("/p2p/", "/p2p/p2p/")):
        with pytest.raises(Malformed):
            PeerAddress.parse(wrong)


def test_a_source_of_connections_is_an_ipv4_address_or_an_ipv6_64() -> None:
    assert network_of("192.0.2.7") == network_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")


# ---- services and endpoints ----


def test_the_key_of_a_service_is_the_multihash_of_its_name() -> None:
    service = Service(84532, "0x" + "AB" * 20, 7, "relay")
    assert service.name == f"murmuration/84532/{CONTRACT}/7/relay"
    assert service.key == b"\x12\x20" + hashlib.sha256(service.name.encode()).digest()


@pytest.mark.parametrize(
    "arguments",
    [(0, CONTRACT, 1, "relay"), (1, "0x12", 1, "relay"), (1, CONTRACT, -1, "relay"), (1, CONTRACT, 1, "A b")],
)
def test_what_is_no_service_is_refused(arguments: tuple[int, str, int, str]) -> None:
    with pytest.raises(ValueError):
        Service(*arguments)


URLS = [
    "http://127.0.0.1:8100",
    "http://[2001:db8::1]:8100",
    "http://relay.example.org:80",
    "https://relay.example.org",
    "https://relay.example.org:8443",
]
NO_URLS = [
    "",
    "http://relay.example.org",
    "ftp://relay.example.org:21",
    "http://user@relay.example.org:80",
    "http://user:secret@relay.example.org:80",
    "http://relay.example.org:80/",
    "http://relay.example.org:80/path",
    "http://relay.example.org:80?x=1",
    "http://relay.example.org:80#x",
    "http://relay.example.org:0",
    "http://relay.example.org:65536",
    "http://relay.example.org:port",
    "http://:80",
    "http://relay_example:80",
    "http://Relay.example.org:80",
    "HTTP://relay.example.org:80",
    "http://relay.example.org:80\n",
    "http://relay.example.org :80",
    "http://bücher.example:80",
    "https://" + "a." * 130 + "org",
    "//relay.example.org:80",
    "javascript:alert(1)",
    "http://[::1:80",
    "http://127.0.0.1:080",
]


@pytest.mark.parametrize("url", URLS)
def test_an_endpoint_survives_the_wire(url: str) -> None:
    endpoint = Endpoint(role="relay", run=2**200, http=url)
    assert Endpoint.decode(endpoint.encode()) == endpoint


@pytest.mark.parametrize("url", NO_URLS)
def test_a_url_that_is_not_a_scheme_a_host_and_a_port_is_no_endpoint(url: str) -> None:
    with pytest.raises(ValueError):
        Endpoint(role="relay", run=1, http=url)
    with pytest.raises(Malformed):
        Endpoint.decode(canonical.encode({"http": url, "role": "relay", "run": "1"}))


@pytest.mark.parametrize(
    "value",
    [
        [],
        "text",
        {},
        {"http": URLS[0], "role": "relay"},
        {"http": URLS[0], "role": "relay", "run": 1},
        {"http": URLS[0], "role": "relay", "run": "01"},
        {"http": URLS[0], "role": "relay", "run": "-1"},
        {"http": URLS[0], "role": "relay", "run": "1" * 78 + "0"},
        {"http": URLS[0], "role": "", "run": "1"},
        {"http": URLS[0], "role": "Relay", "run": "1"},
        {"http": None, "role": "relay", "run": "1"},
        {"http": URLS[0], "role": "relay", "run": "1", "more": 1},
    ],
)
def test_json_that_is_no_endpoint_is_malformed(value: object) -> None:
    with pytest.raises(Malformed):
        Endpoint.decode(canonical.encode(value))


def test_an_endpoint_over_its_cap_is_refused() -> None:
    with pytest.raises(Oversized):
        Endpoint.decode(b" " * 4097)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_endpoint_or_a_protocol_violation(data: bytes) -> None:
    with suppress(ProtocolViolation):
        Endpoint.decode(data)


# ---- the routing table ----


def test_the_nearest_are_those_with_the_smallest_xor_distance() -> None:
    table = RoutingTable(KEYS[0].peer)
    for number in range(1, 60):
        table.seen(contact(number), 0)
    key = os.urandom(34)

    found = [each.peer for each in table.nearest(key, 7)]

    everybody = [each.peer for each in table.contacts()]
    assert found == sorted(everybody, key=lambda peer: place(peer) ^ place(key))[:7]
    assert nearest(table.contacts(), key, 7) == table.nearest(key, 7)


def test_a_node_is_never_in_its_own_table_and_neither_is_who_cannot_be_reached() -> None:
    table = RoutingTable(KEYS[0].peer)
    assert not table.seen(contact(0), 0)
    assert not table.seen(Contact(KEYS[1].peer, ()), 0)
    assert len(table) == 0


def full_bucket() -> tuple[RoutingTable, list[Contact], Contact]:
    """A table with one full bucket, those in it, and one more that belongs there."""
    own = KEYS[0].peer
    farthest = [contact(n) for n in range(1, 70) if (place(KEYS[n].peer) ^ place(own)).bit_length() == 256]
    table = RoutingTable(own)
    for number, each in enumerate(farthest[:BUCKET]):
        assert table.seen(each, number)
    return table, farthest[:BUCKET], farthest[BUCKET]


def test_who_has_been_there_longest_stays_while_it_is_alive() -> None:
    table, members, newcomer = full_bucket()
    assert not table.seen(newcomer, BUCKET)
    assert all(each.peer in table for each in members)

    assert table.seen(members[0], BUCKET)  # heard of again
    assert table.seen(newcomer, STALE_SECONDS + 1)  # while nobody has heard of the second for too long
    assert members[0].peer in table and members[1].peer not in table


def test_a_contact_that_moves_is_known_by_its_new_address() -> None:
    table = RoutingTable(KEYS[0].peer)
    table.seen(contact(1), 0)
    table.seen(contact(1, "/ip4/127.0.0.1/tcp/5000"), 1)
    assert table.contacts() == [contact(1, "/ip4/127.0.0.1/tcp/5000")]
    table.forget(KEYS[1].peer)
    assert table.contacts() == []


@pytest.mark.parametrize("block", ["/ip4/8.8.8.{}/tcp/1", "/ip6/2a00:1450:4001:{}::1/tcp/1"])
def test_one_global_network_cannot_fill_a_bucket(block: str) -> None:
    table = RoutingTable(KEYS[0].peer)
    for number in range(1, 60):
        table.seen(contact(number, block.format(number)), 0)
    sizes = [len(bucket) for bucket in table._buckets.values()]
    assert max(sizes) == 2


def test_private_addresses_are_not_counted_as_one_network() -> None:
    table = RoutingTable(KEYS[0].peer)
    for number in range(1, 40):
        table.seen(contact(number, f"/ip4/10.0.0.{number}/tcp/1"), 0)
    assert len(table) > 10


# ---- provider records ----


def test_a_record_lives_until_it_is_not_renewed() -> None:
    records = ProviderRecords(HostLimits(), 100.0)
    records.put(b"key", contact(1), source="a", now=0)
    records.put(b"key", contact(2), source="a", now=0)
    records.put(b"key", contact(1, "/ip4/127.0.0.1/tcp/5000"), source="a", now=50)

    assert len(records.get(b"key", 99)) == 2
    assert records.get(b"key", 120) == [contact(1, "/ip4/127.0.0.1/tcp/5000")]
    assert records.get(b"key", 151) == []
    assert len(records) == 0


def test_whoever_floods_a_key_from_one_network_displaces_only_itself() -> None:
    """py-libp2p 0.8.1 gives a key to the first twenty who claim it, for 48 hours."""
    records = ProviderRecords(HostLimits(records_per_address=1000), 100.0)
    honest = [contact(0), contact(1)]
    for number, each in enumerate(honest):
        assert records.put(b"key", each, source=f"honest {number}", now=0)
    for number in range(5000):
        peer = hashlib.sha256(str(number).encode()).digest()
        assert records.put(b"key", Contact(peer, honest[0].addresses), source="flood", now=1 + number / 1000)

    late = contact(2)
    assert records.put(b"key", late, source="late", now=10)

    held = records.get(b"key", 10)
    assert len(held) == PROVIDERS_PER_KEY
    assert {each.peer for each in [*honest, late]} <= {each.peer for each in held}


def test_one_network_holds_only_so_many_records_and_gets_its_places_back() -> None:
    records = ProviderRecords(HostLimits(records_per_address=3), 100.0)
    kept = [records.put(bytes([number]), contact(1), source="a", now=0) for number in range(5)]
    assert kept == [True, True, True, False, False]
    assert records.put(b"other", contact(2), source="b", now=0)
    assert records.put(bytes([0]), contact(1), source="a", now=1)
    assert [records.get(bytes([number]), 100.5) for number in range(3)] == [[contact(1)], [], []]
    assert records.put(b"new", contact(1), source="a", now=101)


def test_there_are_only_so_many_keys_and_expired_ones_make_room() -> None:
    records = ProviderRecords(HostLimits(keys=3), 100.0)
    kept = [records.put(bytes([number]), contact(1), source=str(number), now=0) for number in range(4)]
    assert kept == [True, True, True, False]
    assert records.put(bytes([9]), contact(1), source="a", now=101)


# ---- messages ----


@pytest.mark.parametrize("kind", list(Kind))
def test_a_question_survives_the_wire(kind: Kind) -> None:
    for server in (None, contact(1), Contact(KEYS[2].peer, tuple(Address.parse(text) for text in GOOD[:4]))):
        key = value_key(os.urandom(34), Key.generate().address)
        for value in (None, Value(key, b"what only its reader judges")):
            if value or kind is not Kind.PUT_VALUE:
                question = Question(kind, key, server, value)
                assert Question.decode(question.encode()) == question


def test_the_largest_honest_answer_fits_its_cap() -> None:
    longest = tuple(Address("dns4", ".".join(["a" * 63, "b" * 63])[:127], port) for port in range(1, 5))
    closer = tuple(Contact(KEYS[number].peer, longest) for number in range(BUCKET))
    providers = tuple(Contact(KEYS[number].peer, longest) for number in range(PROVIDERS_PER_KEY))
    answer = KademliaAnswer(closer, providers)

    data = answer.encode(Kind.GET_PROVIDERS)

    assert len(data) <= ANSWER_BYTES_MAX
    assert KademliaAnswer.decode(data, Kind.GET_PROVIDERS) == answer
    assert len(Question(Kind.ADD_PROVIDER, bytes(64), closer[0]).encode()) <= QUESTION_BYTES_MAX


def test_messages_that_break_a_rule_are_protocol_violations() -> None:
    from libp2p.kad_dht.pb.kademlia_pb2 import Message

    peer = {"id": KEYS[1].peer, "addrs": [GOOD_BYTES]}

    def message(**fields: object) -> bytes:
        return Message(**fields).SerializeToString()

    find, notice = Message.FIND_NODE, NAMESPACE + bytes(52)
    wrong_questions = [
        b"\xff",
        bytes(QUESTION_BYTES_MAX + 1),
        message(type=find),
        message(type=find, key=bytes(65)),
        message(type=Message.PUT_VALUE, key=notice),
        message(type=Message.PUT_VALUE, key=notice, record={"key": notice[:-1] + b"x", "value": b"v"}),
        message(type=Message.PUT_VALUE, key=notice, record={"key": notice, "value": bytes(NOTICE_BYTES_MAX + 1)}),
        message(type=Message.PUT_VALUE, key=b"/other/k", record={"key": b"/other/k", "value": b"v"}),
        message(type=Message.GET_VALUE),
        message(type=Message.PING, key=bytes(65)),
        message(type=Message.ADD_PROVIDER, key=b"k", providerPeers=[peer, peer]),
        message(type=find, key=b"k", closerPeers=[peer, peer]),
        message(type=find, key=b"k", closerPeers=[{**peer, "id": b"\x12\x20" + bytes(31)}]),
        message(type=find, key=b"k", closerPeers=[{**peer, "id": KEYS[1].peer[:-1]}]),
        message(type=find, key=b"k", closerPeers=[{**peer, "id": KEYS[1].peer[:6] + b"\x05" * 33}]),
    ]
    for data in wrong_questions:
        with pytest.raises(ProtocolViolation):
            Question.decode(data)
    wrong_answers = [
        bytes(ANSWER_BYTES_MAX + 1),
        message(type=Message.GET_PROVIDERS),
        message(type=find, closerPeers=[{**peer, "id": b"\x00\x24\x08\x01\x12\x20" + bytes(31)}]),
    ]
    for data in wrong_answers:
        with pytest.raises(ProtocolViolation):
            KademliaAnswer.decode(data, Kind.FIND_NODE)


def test_of_other_implementations_answers_what_is_of_use_is_read() -> None:
    """They name peers with keys of kinds that are not spoken here, one closer peer more than k, and every provider they know."""
    from libp2p.kad_dht.pb.kademlia_pb2 import Message

    peers = [{"id": KEYS[number % 70].peer, "addrs": [GOOD_BYTES]} for number in range(PROVIDERS_PER_KEY + 1)]
    rsa, ed25519 = b"\x12\x20" + bytes(32), b"\x00\x24\x08\x01\x12\x20" + os.urandom(32)
    others = [{"id": peer, "addrs": [GOOD_BYTES]} for peer in (rsa, ed25519)]
    data = Message(type=Message.GET_PROVIDERS, closerPeers=others, providerPeers=peers).SerializeToString()

    answer = KademliaAnswer.decode(data, Kind.GET_PROVIDERS)

    assert [each.peer for each in answer.closer] == [ed25519]
    assert [each.peer for each in answer.providers] == [key.peer for key in KEYS[:PROVIDERS_PER_KEY]]
    assert (
        len(KademliaAnswer.decode(Message(closerPeers=peers, type=4).SerializeToString(), Kind.FIND_NODE).closer)
        == BUCKET
    )


GOOD_BYTES = Address.parse(GOOD[0]).encode()


@given(st.binary(max_size=400))
def test_any_bytes_are_a_message_or_a_protocol_violation(data: bytes) -> None:
    for decode in (
        Question.decode,
        lambda raw: KademliaAnswer.decode(raw, Kind.GET_PROVIDERS),
        lambda raw: Identified.decode(raw, KEYS[1].peer),
    ):
        with suppress(ProtocolViolation):
            decode(data)


def test_a_remote_peer_cannot_send_others_into_their_own_machines() -> None:
    """An address inside the asker's machine counts only when it is seen there."""
    addresses = tuple(
        Address.parse(text) for text in ("/ip4/127.0.0.1/tcp/22", "/ip4/0.0.0.0/tcp/4001", "/ip6/::1/tcp/1")
    )
    sender = Contact(KEYS[1].peer, addresses)

    def seen(remote: str) -> list[str]:
        found = as_seen(sender, remote)
        return [str(place) for place in found.addresses] if found else []

    assert seen("192.0.2.7") == ["/ip4/192.0.2.7/tcp/4001"]
    assert seen("127.0.0.1") == ["/ip4/127.0.0.1/tcp/22", "/ip4/127.0.0.1/tcp/4001", "/ip6/::1/tcp/1"]


def test_a_bootnode_is_asked_and_told_however_many_others_sit_closer_to_the_key() -> None:
    """Whoever mints PeerIDs all around a key does not hide it from those who share a bootnode."""
    key = os.urandom(34)
    far, *near = nearest([contact(number) for number in range(1, 60)], key, 59)[::-1]
    asked: list[tuple[bytes, Kind]] = []

    class Surrounded:
        identity = SimpleNamespace(peer=KEYS[0].peer)
        limits, timing, wall = HostLimits(spread=0), Timing(), time.time

        def handle(self, protocol: str, handler: object) -> None: ...

        def connection(self, peer: bytes) -> None: ...

        def reached(self, peer: bytes) -> tuple[Address, ...]:
            return contact(0).addresses

        async def request(self, peer: bytes, addresses: object, protocol: str, *messages: bytes, **_: object) -> bytes:
            questions = [Question.decode(data) for data in messages]
            asked.extend((peer, question.kind) for question in questions)
            return KademliaAnswer().encode(questions[-1].kind)

    async def run() -> None:
        dht = Kademlia(Surrounded(), contact(0).addresses)  # type: ignore[arg-type]
        for each in near:
            dht.table.seen(each, 0)
        await dht.introduce(PeerAddress(far.addresses[0], far.peer), anchor=True)
        dht.table.forget(far.peer)
        asked.clear()
        await dht.providers(key, lambda found: None)
        await dht.provide(key)

    trio.run(run)
    assert (far.peer, Kind.GET_PROVIDERS) in asked
    assert (far.peer, Kind.ADD_PROVIDER) in asked
    assert len([peer for peer, kind in asked if kind is Kind.ADD_PROVIDER]) == BUCKET + 1


def test_an_answer_counts_once_for_each_provider_it_names() -> None:
    """A liar that names one PeerID at many made-up addresses takes the place of one question, not of all."""
    places = [Address("ip4", "192.0.2.7", port) for port in range(1, 20)]
    liar, victim = contact(1), KEYS[2].peer
    found: list[Contact] = []

    class Lied:
        identity = SimpleNamespace(peer=KEYS[0].peer)
        limits, timing, wall = HostLimits(), Timing(), time.time

        def handle(self, protocol: str, handler: object) -> None: ...

        def connection(self, peer: bytes) -> None: ...

        def reached(self, peer: bytes) -> tuple[Address, ...]:
            return contact(0).addresses

        async def request(self, peer: bytes, addresses: object, protocol: str, data: bytes, **_: object) -> bytes:
            named = tuple(Contact(victim, (place,)) for place in places)
            return KademliaAnswer(providers=named).encode(Question.decode(data).kind)

    async def run() -> None:
        dht = Kademlia(Lied(), contact(0).addresses)  # type: ignore[arg-type]
        dht.table.seen(liar, 0)
        await dht.providers(os.urandom(34), found.append)

    trio.run(run)
    assert [each.peer for each in found] == [victim]


def test_a_bootnode_that_is_reached_while_a_lookup_goes_on_takes_part_in_it() -> None:
    early, late = contact(1), contact(2)
    asked: list[bytes] = []

    class Reaching:
        identity = SimpleNamespace(peer=KEYS[0].peer)
        limits, timing, wall = HostLimits(spread=0), Timing(), time.time

        def handle(self, protocol: str, handler: object) -> None: ...

        def connection(self, peer: bytes) -> None: ...

        def reached(self, peer: bytes) -> tuple[Address, ...]:
            return ()

        async def request(self, peer: bytes, addresses: object, protocol: str, data: bytes, **_: object) -> bytes:
            asked.append(peer)
            dht.anchors[late.peer] = late
            return KademliaAnswer().encode(Question.decode(data).kind)

    dht = Kademlia(Reaching(), ())  # type: ignore[arg-type]
    dht.table.seen(early, 0)
    found = trio.run(dht.lookup, os.urandom(34))
    assert asked == [early.peer, late.peer]
    assert {each.peer for each in found} == {early.peer, late.peer}


# ---- the saved peer list ----


def test_the_peer_file_is_replaced_whole_and_read_up_to_a_cap(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "peers.json"
    known = [PeerAddress(Address("ip4", "192.0.2.7", port), KEYS[port].peer) for port in range(1, 30)]
    peers.save(file, peers.Memory(tuple(known)))
    peers.save(file, peers.Memory(tuple(known[::-1])))
    assert list(peers.load(file, most=100).peers) == known[::-1]
    assert list(peers.load(file, most=5).peers) == known[::-1][:5]
    file.write_bytes(canonical.encode([str(each) for each in known]))  # as earlier versions wrote it
    assert list(peers.load(file, most=100).peers) == known
    assert [each.name for each in file.parent.iterdir()] == ["peers.json"]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'["/ip4/1.2.3.4/tcp/1"]', b"[ ]", b"\xff" * 100_000, b"[" * 9999]
)
def test_a_broken_peer_file_is_ignored_and_said_to_be(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "peers.json"
    file.write_bytes(content)
    assert peers.load(file, most=10) == peers.Memory()
    assert "not readable" in caplog.text


def test_a_peer_file_that_cannot_be_written_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    peers.save(tmp_path / "file" / "peers.json", peers.Memory())
    assert "cannot save" in caplog.text
    assert peers.load(tmp_path / "none.json", most=1) == peers.Memory()
