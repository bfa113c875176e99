"""`murmur net status`: what an operator sees of a network of real hosts, a dead bootnode, and roles that are down."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from swarm.world import World

from protocol.deadline import Transport, why, within
from protocol.errors import Unavailable
from protocol.identity import Key
from protocol.p2p import report
from protocol.p2p.address import Address, PeerAddress
from protocol.p2p.discovery import Discovery
from protocol.p2p.identify import IDENTIFY
from protocol.p2p.stream import Stream
from protocol.settings import write_toml
from protocol.shell import remedy, standpoint
from protocol.shell.home import write_json
from protocol.shell.location import RunLocation
from tests.cli.conftest import PASSWORD, Console
from tests.cli.net import flat, narrow, world
from tests.cli.operator import Operator
from tests.clock import eventually
from tests.p2p.network import Network, quick

__all__ = ["world"]


def test_status_says_where_the_weights_came_from(
    operator: Operator, network: Network, served: Callable[[dict[str, bytes]], str]
) -> None:
    lines = [
        'murmur_weights_fetched_bytes_total{source="relay"} 3.0e+06',
        'murmur_weights_fetched_bytes_total{source="origin"} 1e6',
        "murmur_shardcast_served_bytes_total 5e6",
        "murmur_other nonsense",
    ]
    bootnode = network.host()
    network.host(bootnode, report_file=operator.home / "data" / "network.json")
    operator.settle(bootnode)
    url = served({"/metrics": "\n".join(lines).encode()})
    write_json(operator.home / "status.json", {"state": "serving", "metrics_url": url})
    done = operator.net("status")
    assert "3.0 MB from relay (75 %)" in done.out
    assert (done.code, "✗ the relay serves nothing yet" in done.out) == (1, True)
    assert "1.0 MB from origin (25 %)" in done.out
    assert "5.0 MB served to others" in done.out
    assert operator.json("status")["weights"] == {"relay": 3_000_000, "origin": 1_000_000}
    write_json(operator.home / "status.json", {"state": "serving"})
    assert "set [metrics] port" in operator.net("status").out


def test_status_names_a_dead_bootnode_and_a_hub_that_nobody_finds(operator: Operator, network: Network) -> None:
    operator.settle(network.gone())
    done = operator.net("status")
    said = re.sub(r"\s+", " ", done.out)
    assert done.code == 1
    assert "✗ no bootnode answers" in said
    assert "connection refused" in said
    assert "the role does not run" in said
    assert narrow(done.out)

    operator.settle(network.host())
    without = operator.net("status")
    assert (without.code, "the run's hub is not found" in without.out) == (1, True)
    assert "murmur net trace hub" in without.out


def test_a_role_that_has_just_started_is_said_to_be_joining(operator: Operator, network: Network) -> None:
    operator.settle(network.host())
    said = {
        "pid": os.getpid(),
        "at": time.time(),
        "state": report.RUNNING,
        "joined": False,
        "reason": "no bootnode is reachable",
    }
    (operator.home / "data").mkdir()
    write_json(operator.home / "data" / "network.json", said | {"joining": True})
    assert "the running role is still joining" in operator.net("status").out
    write_json(operator.home / "data" / "network.json", said | {"joining": False})
    assert "the running role knows nobody: no bootnode is reachable" in operator.net("status").out


def test_a_host_is_joining_until_a_bootnode_has_answered_or_failed(network: Network, tmp_path: Path) -> None:
    file = tmp_path / "network.json"

    def says(joining: bool) -> bool:
        said = report.read(file) or {}
        return (said.get("joined"), said.get("joining")) == (False, joining)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}/p2p/{Key.generate().peer_id}"
        network.host(mute, report_file=file, timing=quick(report=0.05))
        eventually(lambda: says(joining=True), what="it waits for the bootnode's first word")
    file = tmp_path / "other.json"
    network.host(network.gone(), report_file=file, timing=quick(report=0.05))
    eventually(lambda: says(joining=False), what="a bootnode that is down is an answer")


def test_a_bootnode_of_the_run_spec_is_a_way_in_for_commands_as_for_the_role(
    operator: Operator, network: Network
) -> None:
    """The role said in its report that it goes there; what --bootnode names takes its place too."""
    agreed, other = network.host(), network.host()
    own = network.host(report_file=operator.home / "data" / "network.json")
    own.add_bootnodes([PeerAddress.parse(agreed.addresses[0])])
    own.join(20)
    own.close()
    operator.settle()

    def ways(verb: str, *words: object) -> list[tuple[object, object]]:
        found = operator.json(verb, *words)["bootnodes" if verb == "status" else "ways_in"]
        return [(way["what"], way["answers"]) for way in found]  # type: ignore[attr-defined]

    assert ways("status") == ways("trace", "hub") == [("bootnode the role knows", True)]
    assert ways("status", "--bootnode", other.addresses[0]) == [("bootnode", True)]
    (known,) = operator.json("peers")["peers"]  # type: ignore[misc]
    assert (known["peer"], known["role"], known["answers"]) == (agreed.peer_id, "bootnode", True)
    agreed.close()
    down = operator.json("status")["problems"]
    assert "no bootnode answers" in [each["what"] for each in down]  # type: ignore[attr-defined]


def test_a_role_that_was_stopped_is_told_to_start_and_not_to_open_its_port(
    operator: Operator, network: Network
) -> None:
    bootnode = network.host()
    own = network.host(bootnode, report_file=operator.home / "data" / "network.json")
    operator.settle(bootnode)
    own.join(20)
    own.close()
    done = operator.net("trace", "me")
    assert (done.code, "It stops here: this role does not run" in done.out) == (1, True), done.out
    assert "peers.announce" not in done.out


def test_status_tells_a_machine_behind_nat(operator: Operator, network: Network) -> None:
    """By what the bootnodes see, of whom one may lie."""
    from libp2p.identity.identify.pb.identify_pb2 import Identify

    bootnodes = [network.host() for _ in range(3)]
    operator.settle(*bootnodes)
    here = operator.net("status")
    assert ("3 peers saw this machine at 127.0.0.1" in here.out, "NAT" in here.out) == (True, False), here.out

    async def see(stream: Stream) -> None:
        outside = Address("ip4", "203.0.113.7", 40_001).encode()
        await stream.write_message(Identify(observed_addr=outside).SerializeToString())

    async def start(discovery: Discovery) -> None:
        discovery.node.handle(IDENTIFY, see)

    bootnodes[0].run_inside(start, deadline=5, what="lying")
    assert operator.json("status")["behind_nat"] is False
    bootnodes[1].run_inside(start, deadline=5, what="seeing it so too")
    done = operator.net("status")
    assert "2 peers saw this machine at 203.0.113.7" in done.out
    assert "(127.0.0.1): it is behind NAT" in re.sub(r"\s+", " ", done.out)
    assert narrow(done.out)


def test_status_goes_through_saved_peers_where_no_bootnode_answers(operator: Operator, network: Network) -> None:
    operator.settle(network.gone())
    (operator.home / "data").mkdir(parents=True)
    (operator.home / "data" / "peers.json").write_text(json.dumps([network.host().addresses[0]]))
    assert "reached through a saved peer" in re.sub(r"\s+", " ", operator.net("status").out)


def test_status_survives_a_chain_that_is_down(operator: Operator, network: Network) -> None:
    operator.settle(network.host())
    config = operator.home / "relay.toml"
    config.write_text(config.read_text().replace(operator.world.anvil.rpc, "http://127.0.0.1:9"))
    done = operator.net("status")
    assert (done.code, "the chain does not say who the trainer is" in re.sub(r"\s+", " ", done.out)) == (1, True)
    assert "✓ /ip4/127.0.0.1" in done.out
    assert "the chain does not say where it is" not in done.out  # nobody knows


def test_status_of_a_bootnode_needs_no_chain(console: Console, network: Network, tmp_path: Path) -> None:
    home = tmp_path / "bootnode"
    write_toml(home / "bootnode.toml", {"listen": "/ip4/127.0.0.1/tcp/0"}, "A bootnode.")
    alone = console.murmur("net", "status", "--home", home)
    assert (alone.code, "the role does not run" in alone.out, "no bootnode" in alone.out) == (1, True, False)
    said = home / "data" / "network.json"
    network.host(report_file=said)
    eventually(said.exists, within=30, what="its first report")
    found = console.murmur("net", "status", "--home", home)
    assert (found.code, "bootnode: runs" in found.out, "Hub" in found.out) == (0, True, False), found.out


def test_a_trainers_hub_is_looked_at_by_its_run_file(operator: Operator, network: Network, tmp_path: Path) -> None:
    bootnode = network.host()
    operator.settle(bootnode)
    text = (operator.home / "relay.toml").read_text().replace("[serve]", "[trainer]\noutput = 'out'\n[serve]")
    (tmp_path / "run.toml").write_text(text)
    hub = network.host(bootnode, key=operator.world.trainer.key, report_file=tmp_path / "out" / "hub" / "network.json")
    found = operator.console.murmur("net", "status", "--home", f"@{tmp_path / 'run.toml'}", "--json").json
    assert (found["role"], found["running"], found["peer"]) == ("trainer", True, hub.peer_id)


def test_where_no_role_lives_the_error_says_how_to_name_one(
    console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    none = console.murmur("net", "status")
    assert (none.code, "--home" in none.err) == (3, True)
    empty = console.murmur("net", "status", "--home", tmp_path)
    assert (empty.code, "is no role's home" in empty.err) == (3, True)
    for role in ("node", "relay"):
        home = tmp_path / "data" / "murmuration" / role
        home.mkdir(parents=True)
        (home / f"{role}.toml").write_text("")
    several = console.murmur("net", "status")
    assert (several.code, "several roles" in several.err) == (2, True)


def test_of_a_bootnode_that_is_down_status_says_that_alone(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs no other bootnode."""
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    home = tmp_path / "alone"
    assert console.murmur("bootnode", "init", "--home", home, "--listen", "/ip4/127.0.0.1/tcp/4001").code == 0
    found = console.murmur("net", "status", "--home", home, "--json")
    assert found.code == 1
    assert [each["what"] for each in found.json["problems"]] == ["the role does not run"]


def test_a_hub_that_is_down_is_started_again_and_moves_nowhere(
    operator: Operator, network: Network, world: World
) -> None:
    """Advice follows the error: nobody opens the port of libp2p, or says another address on chain, for a hub that does not run."""
    closed = "http://127.0.0.1:9"
    world.owner.send(world.chain.locate(world.run, RunLocation(hub=closed).encode()))
    bootnode, hub = operator.hub(network, closed)
    operator.settle(bootnode)
    answers = flat(operator.net("trace", "hub").out)
    assert "connection refused" in answers
    assert "ConnectError" not in answers
    assert "try: its peer answers: hub.public_host leads elsewhere" in answers

    hub.close()
    status, trace = flat(operator.net("status").out), flat(operator.net("trace", "hub").out)
    hub_section = status.partition(" Hub ")[2].partition(" Relays ")[0]
    assert f"✗ {hub.peer_id} the trainer's peer, named by 1 peer" in hub_section
    assert "not found" not in hub_section
    for said in (status, trace):
        assert "the hub is not running: its operator starts it (murmur trainer run @run.toml)" in said
        assert "murmur run locate" not in said
        assert "peers.listen" not in said

    world.owner.send(world.chain.locate(world.run, RunLocation(origin=closed).encode()))
    known = flat(operator.net("status").out)
    assert "✗ the run's hub is known to peers, and does not answer: " in known
    assert "the hub is not running" in known
    assert "it does not say where it serves" not in known
    assert "peers.listen" not in flat(operator.net("trace", "hub").out)


def test_the_owner_is_told_to_locate_where_the_chain_names_another_service(
    operator: Operator, network: Network, world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    operator.settle(network.host())
    world.owner.send(world.chain.locate(world.run, RunLocation(hub=served({})).encode()))
    assert "the run's owner: murmur run locate" in flat(operator.net("status").out)


@pytest.mark.parametrize(
    ("problem", "advised"),
    [
        ("it does not answer: no answer in time", "a firewall or NAT"),
        ("it does not answer: its name does not resolve", "DNS record"),
        ("it does not answer: connection refused", "the origin is not running"),
    ],
)
def test_advice_about_an_endpoint_follows_what_went_wrong(problem: str, advised: str) -> None:
    assert advised in remedy.of_endpoint("origin", Unavailable(problem))


def test_why_a_call_failed_is_said_in_the_systems_words() -> None:
    def failed(url: str) -> str:
        with within(5), httpx.Client(transport=Transport()) as client, pytest.raises(httpx.HTTPError) as error:
            client.get(url)
        return why(error.value)

    assert failed("http://127.0.0.1:9") == "connection refused"
    assert failed("http://nowhere.invalid:80") == "its name does not resolve"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        with within(0.2), httpx.Client(transport=Transport()) as client, pytest.raises(httpx.HTTPError) as late:
            client.get(f"http://127.0.0.1:{mute.getsockname()[1]}")
        assert why(late.value) == "no answer in time"


def test_what_starts_a_role_is_the_command_for_its_home(operator: Operator, network: Network, tmp_path: Path) -> None:
    operator.settle(network.host())
    assert operator.json("status")["problems"][0]["try"] == f"murmur relay start --home {operator.home}"  # type: ignore[index]
    file = tmp_path / "my run.toml"
    file.write_text((operator.home / "relay.toml").read_text() + "\n[trainer]\noutput = 'out'\n")
    assert standpoint.find(f"@{file}").start == f"murmur trainer run '@{file}'"


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[None]:
    """Another user looks, who may enter the folder of the test."""
    if os.geteuid():
        pytest.skip("only root may become another user")
    for folder in (tmp_path, *tmp_path.parents):  # left so: other tests may be strangers in the same ones
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o55)
    os.seteuid(65_534)
    yield
    os.seteuid(0)


@pytest.mark.parametrize("closed", [".", "relay.toml", "data", "data/network.json"])
def test_the_home_of_another_user_is_looked_at_as_that_user(
    operator: Operator, network: Network, stranger: None, closed: str
) -> None:
    os.seteuid(0)
    operator.settle(network.gone())
    (operator.home / "data").mkdir()
    write_json(operator.home / "data" / "network.json", {"pid": 1})
    (operator.home / closed).chmod(0)
    os.seteuid(65_534)
    done = operator.net("status")
    assert (done.code, "error: this home belongs to user root\n" in done.err) == (3, True), done.err
    assert f"try: sudo -u root murmur net status --home {operator.home}" in done.err


def test_a_role_whose_keystore_is_closed_has_the_address_of_its_peer_id(
    operator: Operator, network: Network, stranger: None
) -> None:
    os.seteuid(0)
    operator.settle(network.gone())
    for name in ("data", "keys"):
        (operator.home / name).mkdir()
    key = Key.generate()
    write_json(operator.home / "data" / "network.json", {"peer": key.peer_id})
    write_json(operator.home / "keys" / "relay.json", {"address": key.address})
    (operator.home / "keys").chmod(0)
    os.seteuid(65_534)
    assert standpoint.find(str(operator.home)).key == key.address


@pytest.mark.parametrize(
    ("announce", "why"),
    [
        ("/dns4/boot.nowhere.invalid/tcp/4001", "the name does not resolve"),
        ("gone", "connection refused"),
        ("", "stands for any address: nobody can dial it"),
    ],
)
def test_status_of_a_bootnode_dials_what_it_announces(
    console: Console, network: Network, tmp_path: Path, announce: str, why: str
) -> None:
    home = tmp_path / "bootnode"
    write_toml(home / "bootnode.toml", {"listen": "/ip4/127.0.0.1/tcp/0"}, "A bootnode.")
    place = network.gone().partition("/p2p/")[0] if announce == "gone" else announce
    options = {"announce": [place]} if announce else {"listen": "/ip4/0.0.0.0/tcp/0"}
    host = network.host(report_file=home / "data" / "network.json", **options)
    place = place or host.addresses[0].partition("/p2p/")[0]
    eventually((home / "data" / "network.json").exists, within=30, what="its first report")
    found = console.murmur("net", "status", "--home", home)
    assert found.code == 1
    assert f"✗ {place}" in found.out.partition("What it announces")[2]
    assert why in flat(found.out)
    assert "peers." not in found.out
    assert narrow(found.out)


def test_a_first_bootnode_to_which_nobody_has_come_is_well(console: Console, network: Network, tmp_path: Path) -> None:
    home = tmp_path / "bootnode"
    write_toml(home / "bootnode.toml", {"listen": "/ip4/127.0.0.1/tcp/0"}, "A bootnode.")
    network.host(report_file=home / "data" / "network.json")
    eventually((home / "data" / "network.json").exists, within=30, what="its first report")
    for words, says in ((("peers",), "– nobody has come yet"), (("trace", "me"), "✓ it answers where it listens")):
        done = console.murmur("net", *words, "--home", home)
        assert (done.code, says in done.out) == (0, True), done.out


def test_a_roles_own_listener_is_no_network(operator: Operator, network: Network) -> None:
    operator.settle(network.gone())
    network.host(report_file=operator.home / "data" / "network.json")
    eventually((operator.home / "data" / "network.json").exists, within=30, what="its first report")
    out = flat(operator.net("status").out)
    assert "✗ no bootnode answers" in out
    assert "through a this role" not in out


def test_that_no_node_serves_weights_is_the_default(operator: Operator, network: Network) -> None:
    operator.settle(network.host())
    assert "which is not the default" in flat(operator.net("trace", "seeder").out)


def test_the_advice_about_a_way_in_stands_under_its_line(operator: Operator, network: Network) -> None:
    operator.settle(network.gone(), network.host())
    lines = operator.net("status").out.splitlines()
    (place,) = [number for number, line in enumerate(lines) if "connection refused" in line]
    assert "nothing listens on that port" in lines[place + 1]
