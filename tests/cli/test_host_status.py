"""`murmur relay status`, `murmur bootnode status` and `murmur bootnode doctor`: hosts that are real, on the loopback."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from swarm.anvil import Anvil
from swarm.world import World

from protocol.p2p import report
from protocol.settings import write_toml
from protocol.shell.home import Home, write_json
from tests.cli.conftest import PASSWORD, SPEC, Console, Ended
from tests.cli.operator import ESCAPE, Operator
from tests.clock import eventually
from tests.p2p.network import Network, quick


@pytest.fixture
def world(anvil: Anvil) -> World:
    return World.fresh(anvil, spec_digest=SPEC.digest)


# ---- relay ----


def test_a_relay_is_told_who_reaches_it_what_it_has_and_what_it_served(
    operator: Operator, network: Network, world: World, served: Callable[[dict[str, bytes]], str]
) -> None:
    bootnode, _ = operator.hub(network, served({f"/v1/runs/{world.run}/spec": SPEC.canonical()}))
    file = operator.home / "data" / "network.json"
    relay = network.host(bootnode, report_file=file, timing=quick(report=0.05))
    operator.announce(relay, "relay", url := served({}))
    operator.settle(bootnode)
    for step in range(3):
        world.trainer.send(world.chain.publish(world.run, step, bytes(range(32))))
    doing = {"state": "serving", "pid": os.getpid(), "versions": [1, 2], "bytes_served": 12_500_000}
    write_json(operator.home / "status.json", doing)

    def is_told() -> bool:
        said = report.read(file) or {}
        return bool(said.get("provided") and said["provides"] and said["provides"][0]["holders"])

    eventually(is_told, what="a report of a relay that is announced")
    done = of(operator, "status")
    assert done.code == 0
    assert f"relay of run {world.run}: runs" in done.out
    assert "reachable  yes: peers tell where it is, and it answers this machine there" in done.out
    assert f"serves at  {url}, known to" in done.out
    assert "versions   1, 2; the chain is at version 2" in done.out
    assert "served     12.5 MB since its start" in done.out
    assert re.search(r"told peers \d+ s ago", done.out)
    assert "next:" not in done.out, done.out
    found = of(operator, "status", "--json").json
    assert (found["versions"], found["head"], found["behind"], found["bytes_served"]) == ([1, 2], 2, 0, 12_500_000)
    assert (found["reachable"], found["problems"], found["serves"][0]["http"]) == ("yes", [], url)
    assert found["announced_at"] == pytest.approx((report.read(file) or {})["provided"], abs=30)

    operator.announce(relay, "relay", "http://127.0.0.1:9")
    eventually(lambda: (report.read(file) or {})["provides"][0]["http"].endswith(":9"), what="a new address")
    dead = of(operator, "status")
    assert "reachable  no: http://127.0.0.1:9, where others fetch weights: it does not answer" in dead.out
    assert "let serve.public_url lead to it" in dead.out.partition("next: ")[2]


def test_a_relay_that_does_not_run_is_said_to_be_stopped_and_nobody_is_asked(operator: Operator) -> None:
    operator.settle("/ip4/127.0.0.1/tcp/9/p2p/16Uiu2HAmPLe7Mzm8TsYUubgCAW1aJoeFScxrLj8ppHFivPo97bUZ")
    done = of(operator, "status")
    assert done.code == 0
    assert "does not run" in done.out
    assert "reachable  no: it does not run" in done.out
    assert done.out.rstrip().endswith(f"next: murmur relay start --home {operator.home}")


def of(operator: Operator, *words: object) -> Ended:
    done = operator.console.murmur("relay", *words, "--home", operator.home)
    assert ESCAPE not in done.out + done.err
    return done


# ---- bootnode ----


@pytest.fixture
def bootnode_home(tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    home = tmp_path / "bootnode"
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"/ip4/127.0.0.1/tcp/{free.getsockname()[1]}"
    assert console.murmur("bootnode", "init", "--home", home, "--listen", listen).code == 0
    return home


def test_a_bootnode_is_told_who_came_and_what_it_keeps(console: Console, network: Network, bootnode_home: Path) -> None:
    stopped = console.murmur("bootnode", "status", "--home", bootnode_home)
    assert (stopped.code, "bootnode: does not run" in stopped.out) == (0, True)
    assert stopped.out.rstrip().endswith(f"next: murmur bootnode start --home {bootnode_home}")

    file = bootnode_home / "data" / "network.json"
    host = network.host(report_file=file, timing=quick(report=0.05))
    network.provider(host)
    eventually(lambda: (report.read(file) or {}).get("records"), what="a report of who came")
    done = console.murmur("bootnode", "status", "--home", bootnode_home)
    assert "bootnode: runs" in done.out
    assert f"announces  {host.addresses[0].partition('/p2p/')[0]}" in done.out
    assert "knows      1 peer; 0 connections out, 1 in" in done.out
    assert "keeps      1 record of who provides what" in done.out
    assert "next:" not in done.out
    found = console.murmur("bootnode", "status", "--home", bootnode_home, "--json").json
    assert (found["records"], found["peers"], found["reachable"]) == (1, 1, "yes")
    assert "versions" not in found


def test_a_bootnode_that_does_not_answer_where_it_announces_itself_is_told_so(
    console: Console, network: Network, bootnode_home: Path
) -> None:
    gone = network.gone().partition("/p2p/")[0]
    network.host(report_file=(file := bootnode_home / "data" / "network.json"), announce=[gone])
    eventually(file.exists, within=30, what="its first report")
    done = console.murmur("bootnode", "status", "--home", bootnode_home)
    assert f"reachable  no: {gone}, where it says that it is: " in done.out
    assert "open the port" in done.out.partition("next: ")[2]


def test_an_announce_that_a_running_bootnode_has_not_read_is_told_alike_by_status_and_doctor(
    console: Console, network: Network, bootnode_home: Path
) -> None:
    gone, named = network.gone().partition("/p2p/")[0], "/dns4/boot.example.org/tcp/4001"
    write_toml(bootnode_home / "bootnode.toml", {"listen": gone, "announce": [named]}, "A bootnode.", mode=0o600)
    stopped = console.murmur("bootnode", "status", "--home", bootnode_home)
    assert f"announces  {named}" in stopped.out
    network.host(report_file=(file := bootnode_home / "data" / "network.json"), announce=[gone])
    eventually(file.exists, within=30, what="its first report")
    said = f"it announces {gone} since its start, and {bootnode_home}/bootnode.toml names {named} by now"
    for command in ("status", "doctor"):
        with Home(bootnode_home, "bootnode").lock():
            done = console.murmur("bootnode", command, "--home", bootnode_home)
        assert said in done.out and "start it again" in done.out, done.out


def health(done: Ended) -> dict[str, str]:
    return {each["name"]: each["health"] for each in done.json["checks"]}


def test_a_bootnodes_doctor_looks_at_its_machine_what_it_announces_and_its_network(
    console: Console, network: Network, bootnode_home: Path
) -> None:
    place = ["--home", bootnode_home, "--json"]
    well = console.murmur("bootnode", "doctor", *place)
    assert (well.code, set(health(well).values())) == (0, {"ok", "skipped"}), well.out
    assert health(well)["network"] == "skipped"
    assert well.json["next"] == f"murmur bootnode start --home {bootnode_home}"

    listen = "/ip4/0.0.0.0/tcp/4001"
    write_toml(
        bootnode_home / "bootnode.toml", {"listen": listen, "bootnodes": [network.gone()]}, "A bootnode.", mode=0o600
    )
    alone = console.murmur("bootnode", "doctor", *place)
    assert (alone.code, health(alone)["announce"], health(alone)["network"]) == (0, "warning", "warning")
    assert alone.json["next"] == f'put announce = ["/dns4/HOST/tcp/4001"] into {bootnode_home / "bootnode.toml"}'

    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        other = network.host().addresses[0]
        write_toml(bootnode_home / "bootnode.toml", {"listen": listen, "bootnodes": [other]}, "A bootnode.", mode=0o600)
        shut = console.murmur("bootnode", "doctor", *place)
        assert (shut.code, health(shut)["ports"], health(shut)["network"]) == (1, "failed", "ok")
        start = console.murmur("bootnode", "start", "--home", bootnode_home)
        assert (start.code, "cannot listen on" in start.err) == (5, True)
