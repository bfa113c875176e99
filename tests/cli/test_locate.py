"""`murmur run locate`, and what the chain's word is good for: a way to the hub that no peer can hide."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from swarm.anvil import Anvil
from swarm.world import TOKEN, World

from protocol.chain.settings import ChainSettings
from protocol.errors import HashMismatch, MurmurationError, Oversized, ProtocolViolation, Unavailable
from protocol.identity import Key, save_keystore
from protocol.p2p import Host
from protocol.p2p.address import PeerAddress
from protocol.p2p.discovery import Discovery
from protocol.p2p.notices import Notice
from protocol.p2p.peers import Memory, load, save
from protocol.p2p.routing import BUCKET, Contact, place
from protocol.p2p.stream import Stream
from protocol.p2p.wire import PROTOCOL, QUESTION_BYTES_MAX, KademliaAnswer, Kind, Question
from protocol.settings import write_toml
from protocol.shell.connection import bootnodes_agreed, bootnodes_told, connect
from protocol.shell.location import LOCATION_BYTES_MAX, RunLocation, located
from protocol.shell.peers import PeerSettings
from tests.cli.conftest import PASSWORD, SPEC, Console
from tests.cli.operator import Operator
from tests.clock import eventually
from tests.p2p.network import Network

BOOTNODE = f"/dns4/boot.example.org/tcp/4001/p2p/{Key.generate().peer_id}"
HUB, ORIGIN = "https://hub.example", "http://203.0.113.7:8300"
LIARS = 4
MINTED = 50


@pytest.fixture
def world(anvil: Anvil) -> World:
    return World.fresh(anvil, spec_digest=SPEC.digest)


@pytest.fixture
def owner(world: World, console: Console, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[object]]:
    """Words of a `murmur run` command for the run's file, with the owner's key or another's."""
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    stranger = Key.generate()
    world.anvil.give(stranger.address, TOKEN)
    file, keys = console.folder / "run.toml", console.folder
    chain = {"rpc": world.anvil.rpc, "contract": world.chain.runs.address, "run": world.run}
    write_toml(file, {"chain": chain}, "A run.")
    for key, name in ((world.owner.key, "owner"), (stranger, "stranger")):
        save_keystore(key, keys / f"{name}.json", PASSWORD, chain_id=31337)

    def words(verb: str, *options: object, by: str = "") -> list[object]:
        signed = ("--keystore", keys / f"{by}.json", "--yes") if by else ()
        return ["run", verb, f"@{file}", *options, *signed]

    return words


def test_the_owner_says_shows_and_takes_back_where_its_run_is(
    console: Console, world: World, owner: Callable[..., list[object]]
) -> None:
    assert "says nothing" in console.murmur(*owner("locate")).out
    said = console.murmur(
        *owner("locate", "--hub", HUB, "--origin", ORIGIN, "--bootnode", BOOTNODE, by="owner"), "--json"
    )
    assert said.code == 0, said.err
    assert said.json == {"hub": HUB, "origin": ORIGIN, "bootnodes": [BOOTNODE]}
    assert console.murmur(*owner("locate"), "--json").json == said.json
    assert console.murmur(*owner("show"), "--json").json["located"] == said.json
    shown = console.murmur(*owner("show")).out
    assert all(text in shown for text in (HUB, ORIGIN, BOOTNODE))
    assert world.chain.located(world.run) == RunLocation(HUB, ORIGIN, (PeerAddress.parse(BOOTNODE),)).encode()

    assert console.murmur(*owner("locate", "--off", by="owner")).code == 0
    assert world.chain.located(world.run) == b""
    assert console.murmur(*owner("show"), "--json").json["located"] is None


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--hub", "hub.example"), 2),
        (("--hub", HUB + "/path"), 2),
        (("--bootnode", "/dns4/boot.example.org/tcp/4001"), 2),
        (("--off", "--hub", HUB), 2),
        (tuple(word for _ in range(6) for word in ("--bootnode", BOOTNODE)), 2),
    ],
)
def test_what_nobody_could_read_is_not_said(
    console: Console, world: World, owner: Callable[..., list[object]], options: tuple[str, ...], code: int
) -> None:
    assert console.murmur(*owner("locate", *options, by="owner")).code == code
    assert world.chain.located(world.run) == b""


def test_nobody_else_says_it_and_a_word_without_a_key_is_a_wrong_argument(
    console: Console, owner: Callable[..., list[object]]
) -> None:
    refused = console.murmur(*owner("locate", "--hub", HUB, by="stranger"))
    assert refused.code == 4
    assert "Denied" in refused.err
    assert console.murmur(*owner("locate", "--hub", HUB)).code == 2


def test_the_owner_is_warned_of_what_does_not_answer_before_it_is_signed(
    console: Console, world: World, owner: Callable[..., list[object]], served: Callable[[dict[str, bytes]], str]
) -> None:
    hub, origin = served({f"/v1/runs/{world.run}/spec": SPEC.canonical()}), "http://127.0.0.1:9"
    said = console.murmur(*owner("locate", "--hub", hub, "--origin", origin, by="owner"))
    assert said.code == 0, said.err
    assert f"WARNING: from here, origin at {origin}: it does not answer: connection refused" in said.err
    assert said.err.count("WARNING") == 1
    assert located(world.chain, world.run) == RunLocation(hub, origin)


def test_a_word_of_the_chain_in_reserve_is_tried_and_makes_no_role_broken(
    operator: Operator, network: Network, world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    bootnode, _hub = operator.hub(network, served({f"/v1/runs/{world.run}/spec": SPEC.canonical()}))
    operator.settle(bootnode)
    say(world, RunLocation(hub="http://127.0.0.1:9"))
    trace, status = operator.net("trace"), operator.net("status")
    assert trace.code == 0, trace.out
    for done in (trace, status):
        assert "✗ the chain says http://127.0.0.1:9 does not answer; not needed now" in " ".join(done.out.split())
    found = operator.json("status")
    assert [each["what"] for each in found["problems"]] == ["the role does not run"]  # type: ignore[attr-defined]
    assert [each["try"] for each in found["notes"]] == ["the run's owner: murmur run locate"]  # type: ignore[attr-defined]


def test_trace_and_status_say_what_the_chain_says_beside_what_peers_say_and_which_is_used(
    operator: Operator, network: Network, world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    url = served({f"/v1/runs/{world.run}/spec": SPEC.canonical()})
    bootnode, hub = operator.hub(network, url)
    operator.settle(bootnode)
    assert "– the chain does not say where it is" in operator.net("trace").out

    say(world, RunLocation(hub=url))
    found = operator.json("trace")
    assert found["words"] == [{"whose": "the chain", "url": url, "used": False, "ok": True}]
    assert "not needed now" in operator.net("status").out

    hub.close()
    bootnode.close()
    done = operator.net("trace")
    assert (done.code, "a role goes there" in done.out) == (0, True), done.out
    assert f"✓ hub of run {world.run} at {url}, by the chain" in done.out
    status = operator.json("status")
    assert (status["hub"], status["words"][0]["used"]) == (url, True)  # type: ignore[index]

    say(world, RunLocation(hub="http://127.0.0.1:1"))
    assert operator.net("trace").code == 1


def test_trace_and_status_say_whether_a_signed_notice_helped(
    operator: Operator, network: Network, world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    url = served({f"/v1/runs/{world.run}/spec": SPEC.canonical()})
    bootnode, other = network.host(), network.host()
    hub = network.host(bootnode, key=world.trainer.key)
    operator.announce(hub, "hub", url)
    operator.settle(bootnode)
    (claimant,) = operator.json("trace")["claimants"]  # type: ignore[misc]
    assert claimant["notice"] == "from peers"
    assert "a signed notice that peers have says so too" in " ".join(operator.net("status").out.split())

    place = PeerAddress.parse(hub.addresses[0]).address
    notice = Notice.sign(world.trainer.key, operator.service("hub").key, [place], int(time.time()))
    save(operator.home / "data" / "peers.json", Memory((), (notice,)))
    operator.settle(other)  # a network in which nobody knows the hub
    done = operator.net("trace")
    assert done.code == 0, done.out
    assert "by a signed notice alone, which this role kept" in " ".join(done.out.split())


# ---- what a reader makes of it ----

GOOD = RunLocation(HUB, ORIGIN, (PeerAddress.parse(BOOTNODE),))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 500, b'{"hub":1}', b'{"hub":""}', b'{"hub":null}',
        b'{"hub":"ftp://hub.example"}', b'{"hub":"https://user@hub.example"}', b'{"hub": "https://hub.example"}',
        b'{"hub":"https://a.example","hub":"https://b.example"}', b'{"origin":"https://a.example","hub":"https://b.example"}',
        b'{"bootnodes":[],"hub":"https://hub.example"}', b'{"bootnodes":[]}', b'{"bootnodes":"x"}', b'{"bootnodes":[1]}', b'{"bootnodes":["/ip4/1.2.3.4/tcp/1"]}',
        '{"bootnodes":["/ip4/1.2.3.4/tcp/1/p2p/é"]}'.encode(), b'{"hub":"https://hub.example","more":"x"}',
        b'{"hub":1e400}', b'{"hub":NaN}', b'{"hub":"https://[::1"}', b'{"hub":"https://hub.example:99999"}',
        '{"hub":"https://hub.example:٣"}'.encode(), b'{"hub":"\\ud800"}',
    ],
)  # fmt: skip
def test_hostile_json_on_chain_is_refused_and_ends_nobody(data: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        RunLocation.decode(data)

    class Says:
        def located(self, run: int) -> bytes:
            return data

    assert located(Says(), 1) is None  # type: ignore[arg-type]


def test_random_and_mutated_bytes_are_a_location_or_a_violation() -> None:
    good, chance = GOOD.encode(), random.Random(14)
    assert RunLocation.decode(good) == GOOD
    for _ in range(2000):
        bad = bytearray(good if chance.random() < 0.8 else chance.randbytes(chance.randrange(600)))
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(bad) + 1)
            bad[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        try:
            assert RunLocation.decode(bytes(bad)).encode() == bytes(bad)
        except ProtocolViolation:
            continue


def test_a_location_beyond_the_contracts_cap_is_not_read() -> None:
    long = b'{"hub":"https://' + b"a" * LOCATION_BYTES_MAX + b'"}'
    with pytest.raises(Oversized):
        RunLocation.decode(long)


def test_a_bootnode_in_this_machines_interior_is_for_those_who_live_there() -> None:
    inside = PeerAddress.parse(f"/ip4/127.0.0.1/tcp/4001/p2p/{Key.generate().peer_id}")
    told = RunLocation(bootnodes=(inside, *GOOD.bootnodes))
    assert bootnodes_told(told, PeerSettings()) == [BOOTNODE]
    assert bootnodes_told(told, PeerSettings(listen="/ip4/127.0.0.1/tcp/0")) == [str(inside), BOOTNODE]
    assert bootnodes_told(told, PeerSettings(bootnodes=(BOOTNODE,))) == []


# ---- a role that finds its hub by it ----


def settings_of(world: World) -> ChainSettings:
    chain = world.chain
    return ChainSettings(rpc=world.anvil.rpc, contract=chain.runs.address, chain_id=chain.chain_id, run=world.run)


def say(world: World, location: RunLocation) -> None:
    world.owner.send(world.chain.locate(world.run, location.encode()))


def lying(network: Network, key: bytes, *bootnodes: Host) -> list[Host]:
    """Hosts whose identities were minted to lie nearest to `key`, and who name only each other: no provider and no notice."""
    keys = sorted((Key.generate() for _ in range(LIARS * MINTED)), key=lambda each: place(each.peer) ^ place(key))
    liars = [network.host(*bootnodes, key=each) for each in keys[:LIARS]]
    own = [
        Contact(each.peer, (PeerAddress.parse(liar.addresses[0]).address,))
        for each, liar in zip(keys, liars, strict=False)
    ]

    async def answer(stream: Stream) -> None:
        while True:
            question = Question.decode(await stream.read_message(QUESTION_BYTES_MAX, "question"))
            if question.kind is not Kind.ADD_PROVIDER:
                await stream.write_message(KademliaAnswer(tuple(own[:BUCKET])).encode(question.kind))
            if await stream.ended():
                return

    async def turn(discovery: Discovery) -> None:
        discovery.node.handle(PROTOCOL, answer)

    for liar in liars:
        liar.run_inside(turn, deadline=20, what="turning hostile")
    return liars


def test_a_node_that_only_liars_surround_returns_by_the_chains_word(
    world: World, network: Network, operator: Operator, served: Callable[[dict[str, bytes]], str], tmp_path: Path
) -> None:
    url = served({f"/v1/runs/{world.run}/spec": SPEC.canonical()})
    liars = lying(network, operator.service("hub").key)
    memory = tmp_path / "peers.json"
    save(memory, Memory(tuple(PeerAddress.parse(liar.addresses[0]) for liar in liars)))
    peers = PeerSettings(listen="/ip4/127.0.0.1/tcp/0", bootnodes=(network.gone(),), find_seconds=8)
    with connect(settings_of(world), peers, Key.generate(), peers_file=memory) as lost:
        with pytest.raises(Unavailable, match="no hub"):
            lost._directory.find(lost.service("hub"), 2, among=[world.trainer.key.address])
        say(world, RunLocation(hub=url, origin=url))
        assert lost.spec.digest == SPEC.digest  # and at once: it runs already
        assert [source.url for source in lost.sources()] == [url]


@pytest.mark.parametrize("bootnodes", [0, 2])
def test_a_node_without_memory_whose_bootnodes_are_all_down_finds_the_hub_by_the_chain(
    world: World, network: Network, served: Callable[[dict[str, bytes]], str], bootnodes: int
) -> None:
    dead = tuple(network.gone() for _ in range(bootnodes))
    url = served({f"/v1/runs/{world.run}/spec": SPEC.canonical()})
    say(world, RunLocation(hub=url, origin=url, bootnodes=(PeerAddress.parse(network.gone()),)))
    peers = PeerSettings(listen="/ip4/127.0.0.1/tcp/0", bootnodes=dead, find_seconds=8)
    with connect(settings_of(world), peers, Key.generate()) as alone:
        assert alone.spec.digest == SPEC.digest
        assert [source.url for source in alone.sources()] == [url]


def test_a_node_without_bootnode_or_memory_joins_by_the_bootnode_on_chain(
    world: World, network: Network, operator: Operator, served: Callable[[dict[str, bytes]], str]
) -> None:
    url = served({f"/v1/runs/{world.run}/spec": SPEC.canonical()})
    bootnode, _hub = operator.hub(network, url)
    dead = network.gone()
    say(world, RunLocation(bootnodes=tuple(map(PeerAddress.parse, (dead, bootnode.addresses[0])))))
    with connect(settings_of(world), PeerSettings(listen="/ip4/127.0.0.1/tcp/0"), Key.generate()) as returned:
        assert returned.spec.digest == SPEC.digest


def test_a_role_goes_to_the_bootnodes_of_the_run_spec_and_returns_by_them(
    anvil: Anvil, network: Network, console: Console, served: Callable[[dict[str, bytes]], str], tmp_path: Path
) -> None:
    agreed, false = network.host(), "/ip4/127.0.0.1/tcp/1/p2p/" + "1" * 52  # in form alone
    spec = SPEC.model_copy(update={"bootnodes": [false, *agreed.addresses]})
    world = World.fresh(anvil, spec_digest=spec.digest)
    operator = Operator(console, world, tmp_path)
    bootnode, hub = operator.hub(network, served({f"/v1/runs/{world.run}/spec": spec.canonical()}))
    memory, peers = tmp_path / "peers.json", PeerSettings(listen="/ip4/127.0.0.1/tcp/0", bootnodes=bootnode.addresses)
    with connect(settings_of(world), peers, Key.generate(), peers_file=memory) as role:
        assert role.spec.bootnodes == spec.bootnodes
        eventually(lambda: role._host.status().peers == 3, what="knowing the bootnode of the spec")
    remembered = {str(known) for known in load(memory, most=64).peers}
    assert set(agreed.addresses) <= remembered
    bootnode.close()
    hub.close()
    with connect(settings_of(world), PeerSettings(listen=peers.listen), Key.generate(), peers_file=memory) as returned:
        returned._host.join(20)


def test_bootnodes_of_a_spec_in_this_machines_interior_are_for_those_who_live_there() -> None:
    inside = f"/ip4/127.0.0.1/tcp/4001/p2p/{Key.generate().peer_id}"
    spec = SPEC.model_copy(update={"bootnodes": [inside, BOOTNODE]})
    assert [*map(str, bootnodes_agreed(spec, PeerSettings()))] == [BOOTNODE]
    assert [*map(str, bootnodes_agreed(spec, PeerSettings(listen="/ip4/127.0.0.1/tcp/0")))] == [inside, BOOTNODE]


def test_what_is_served_where_the_chain_says_must_prove_itself(
    world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    other = SPEC.model_copy(update={"max_lag": SPEC.max_lag + 1})
    say(world, RunLocation(hub=served({f"/v1/runs/{world.run}/spec": other.canonical()})))
    peers = PeerSettings(listen="/ip4/127.0.0.1/tcp/0", find_seconds=4)
    with connect(settings_of(world), peers, Key.generate()) as role, pytest.raises((HashMismatch, Unavailable)):
        assert role.spec


def test_the_settings_go_before_peers_and_peers_before_the_chain(
    world: World, network: Network, operator: Operator, served: Callable[[dict[str, bytes]], str]
) -> None:
    right, wrong = served({f"/v1/runs/{world.run}/spec": SPEC.canonical()}), network.gone().split("/")[4]
    bootnode, _hub = operator.hub(network, right)
    say(world, RunLocation(hub=f"http://127.0.0.1:{wrong}"))
    peers = PeerSettings(listen="/ip4/127.0.0.1/tcp/0", bootnodes=bootnode.addresses)
    with connect(settings_of(world), peers, Key.generate()) as role:
        assert role._trusted("hub").endpoint.http == right
    configured = peers.model_copy(update={"hub": "http://127.0.0.1:1", "origin": "http://127.0.0.1:2"})
    with connect(settings_of(world), configured, Key.generate()) as role:
        assert (role._trusted("hub").endpoint.http, role.origin().url) == ("http://127.0.0.1:1", "http://127.0.0.1:2")


def test_a_hub_in_the_settings_that_is_none_is_a_wrong_setting(world: World) -> None:
    with (
        pytest.raises(MurmurationError, match=r"peers\.hub"),
        connect(settings_of(world), PeerSettings(hub="hub.example"), Key.generate()),
    ):
        pass


def test_without_origin_and_hub_a_role_finds_the_relays_that_have_the_weights(
    world: World, network: Network, operator: Operator
) -> None:
    bootnode = network.host()
    relay = network.host(bootnode)
    operator.announce(relay, "relay", "http://127.0.0.1:8460")
    peers = PeerSettings(listen="/ip4/127.0.0.1/tcp/0", bootnodes=bootnode.addresses, find_seconds=4)
    with connect(settings_of(world), peers, Key.generate()) as role:
        assert [source.url for source in role.sources()] == ["http://127.0.0.1:8460"]
        assert [source.url for source in role.sources()] == ["http://127.0.0.1:8460"], (
            "and looks for the origin more briefly"
        )
