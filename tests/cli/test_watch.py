"""`murmur chain watch`: a sentence for whatever the contracts can emit, told once, taken back with the chain, and patient."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from swarm.anvil import Anvil
from swarm.faulty_endpoint import Drop, FaultyEndpoint
from swarm.processes import ROOT
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.deploy import Deployment
from protocol.chain.events import KINDS, Abstained, Emitted, Published, RunCreated, Settled, Submitted
from protocol.chain.following import Follower, Happened
from protocol.errors import WrongChain
from protocol.identity import Key
from protocol.shell import watch
from protocol.shell.sentences import sentence
from tests.cli.conftest import Console, exact
from tests.clock import VirtualClock

DEAD = "http://127.0.0.1:9"


@pytest.fixture
def faulty(anvil: Anvil) -> Iterator[FaultyEndpoint]:
    endpoint = FaultyEndpoint(anvil.rpc)
    yield endpoint
    endpoint.close()


def watched(console: Console, world: World, *options: object) -> list[str]:
    where = ("--contract", world.chain.runs.address, "--rpc", world.anvil.rpc, "--run", world.run)
    ended = console.murmur("chain", "watch", *where, "--once", *options)
    assert (ended.code, ended.err) == (0, "")
    return ended.out.splitlines()


def kinds(news: list[Happened]) -> list[tuple[str, bool]]:
    return [(type(each.event.data).__name__, each.taken_back) for each in news]


# ---- sentences ---------------------------------------------------------------------------------------------------------


def example(kind: type[Emitted]) -> Any:
    values: dict[str, Any] = {"int": 3, "bool": True, "bytes": b"\x0a" * 32, "str": "no weights", "Any": None}
    return kind(**{f.name: values.get(f.type, "0x" + "ab" * 20) for f in fields(kind)})  # type: ignore[arg-type, call-overload]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_event_has_a_sentence_of_one_printable_line(kind: type[Emitted]) -> None:
    said = sentence(example(kind))
    assert said.isprintable()
    assert len(said.split()) > 3
    assert "b'" not in said and "None" not in said


def test_what_strangers_write_cannot_turn_a_terminal() -> None:
    data = Abstained(1, "0x" + "ab" * 20, 1, "0x" + "cd" * 20, "\x1b[2J\nblock 1: the run is yours")  # type: ignore[arg-type]
    assert "\x1b" not in sentence(data)
    assert "\n" not in sentence(data)


def test_a_verdict_names_the_submissions_it_is_about() -> None:
    data = Settled(1, "0x" + "ab" * 20, 2, 6, 0b101, 0b010, False, 30, 3 * TOKEN)  # type: ignore[arg-type]
    assert "was split (false 0, 2; good 1): 30 units revoked, 3 MUR of stake slashed" in sentence(data)


def test_times_beyond_the_calendar_are_told() -> None:
    assert sentence(KINDS["Defunding"](run=1, amount=5, from_=1 << 255)).endswith("from 9999-12-31 23:59:59 on")  # type: ignore[call-arg]


# ---- what is told ------------------------------------------------------------------------------------------------------


def test_a_runs_story_is_told_from_its_creation_on(console: Console, world: World) -> None:
    node, operator = Key.generate(), Key.generate()
    world.seat_node(operator, node)
    world.publish(0)
    world.submit(node, 0, 0, b"\x0b" * 32)
    World.sharing(world)  # another run's events are none of this one's
    lines = watched(console, world, "--from-block", 0)
    said = [line.split(": ", 1)[1] for line in lines]
    assert said[0].startswith(f"{world.owner.key.address} created run {world.run} with spec 0707")
    assert said[1] == "1,000,000 MUR were added to the budget"
    assert said[2].startswith(f"node {node.address} of operator {operator.address} took a seat")
    assert [line.split(" ", 3)[:2] for line in said[3:5]] == [["version", "0"], ["the", "beacon"]]
    assert said[5:] == [f"node {node.address} submitted 0.0, 10 units, root {'0b' * 32}"]


def test_json_is_one_object_a_line_with_all_that_the_event_holds(console: Console, world: World) -> None:
    world.publish(0)
    lines = [json.loads(line, parse_int=exact) for line in watched(console, world, "--from-block", 0, "--json")]
    (published,) = [line for line in lines if line["event"] == "Published"]
    assert published["values"] == {"run": world.run, "step": 0, "manifest": "0a" * 32}
    assert published["taken_back"] is False
    assert published["time"] == world.chain.block(published["block"]).time
    receipt = world.anvil.request("eth_getTransactionReceipt", published["transaction"])
    assert int(receipt["blockNumber"], 16) == published["block"]
    assert lines[0]["values"]["policy"]["owner"] == world.owner.key.address
    assert lines[0]["values"]["policy"]["reward"] == str(world.chain.policy(world.run).reward)
    assert lines[0]["values"]["policy"]["window"] == world.chain.policy(world.run).window


def test_stakes_and_vouchers_are_told_of_where_asked_for(console: Console, world: World, tmp_path: Path) -> None:
    chain, owner = world.chain, world.owner
    file = tmp_path / "deployment.json"
    Deployment(chain.chain_id, chain.runs.address, chain.bonds.address, chain.court.address, world.vouchers, chain.token.address, 1).save(file)  # fmt: skip
    from protocol.chain.vouchers import Vouchers

    owner.send(chain.deposit(owner.key.address, 7 * TOKEN))
    owner.send(chain.approve_tokens(world.vouchers, TOKEN))  # type: ignore[arg-type]
    owner.send(Vouchers(chain, world.vouchers).fund(world.run, TOKEN))
    owner.send(chain.locate(world.run, b'{"hub":"https://hub.example"}'))
    plain = "\n".join(watched(console, world, "--from-block", 0))
    assert "hub.example" in plain
    assert "deposited" not in plain
    ended = console.murmur(
        "chain", "watch", "--deployment", file, "--rpc", world.anvil.rpc, "--run", world.run, "--once", "--from-block", 0, "--stakes"
    )  # fmt: skip
    assert f"7 MUR were deposited as stake of {owner.key.address}" in ended.out
    assert "1 MUR were added to the pot" in ended.out


# ---- the chain goes back -----------------------------------------------------------------------------------------------


def test_what_a_reorganisation_took_is_told_as_taken_back_and_the_rest_stays(world: World) -> None:
    follower = Follower(world.chain, world.run, world.chain.block_number() + 1)
    world.owner.send(world.chain.approve_validator(world.run, Key.generate().address, True))
    assert kinds(list(follower.poll())) == [("ValidatorApproved", False)]
    before = world.anvil.request("evm_snapshot")
    world.trainer.send(world.chain.publish(world.run, 0, b"\x0a" * 32))
    (published,) = follower.poll()
    assert isinstance(published.event.data, Published)
    assert list(follower.poll()) == []

    world.anvil.request("evm_revert", before)
    assert list(follower.poll()) == [], "a shorter chain is an endpoint that lags, until a block differs"
    world.anvil.advance(5)
    Sender(world.chain, world.trainer.key).send(world.chain.publish(world.run, 0, b"\x0c" * 32))  # knows of no other
    told = list(follower.poll())
    assert kinds(told) == [("Published", True), ("Published", False)]
    assert (told[0].event, told[1].event.data.manifest) == (published.event, b"\x0c" * 32)
    assert list(follower.poll()) == []


def test_a_reorganisation_below_the_first_block_that_was_read_is_read_anew(world: World) -> None:
    world.anvil.advance(1)
    before = world.anvil.request("evm_snapshot")
    world.trainer.send(world.chain.publish(world.run, 0, b"\x0a" * 32))
    follower = Follower(world.chain, world.run, world.chain.block_number())
    assert kinds(list(follower.poll())) == [("Published", False)]
    world.anvil.request("evm_revert", before)
    for _ in range(3):
        world.anvil.advance(3)
    assert kinds(list(follower.poll())) == [("Published", True)]


def test_an_endpoint_that_lags_takes_nothing_back(world: World, faulty: FaultyEndpoint) -> None:
    chain = Chain(faulty.url, world.chain.runs.address)
    follower = Follower(chain, world.run, chain.block_number() + 1)
    old = world.anvil.request("eth_getBlockByNumber", "latest", False)
    world.trainer.send(world.chain.publish(world.run, 0, b"\x0a" * 32))
    assert kinds(list(follower.poll())) == [("Published", False)]
    faulty.fault = lambda method, parameters: (
        json.dumps({"jsonrpc": "2.0", "id": 0, "result": old}).encode()
        if method == "eth_getBlockByNumber" and parameters[0] == "latest"
        else None
    )
    assert list(follower.poll()) == []
    faulty.fault = lambda *_: None
    assert list(follower.poll()) == []


def test_logs_that_come_later_than_their_block_are_told_once(world: World, faulty: FaultyEndpoint) -> None:
    chain = Chain(faulty.url, world.chain.runs.address)
    follower = Follower(chain, world.run, chain.block_number() + 1)
    world.trainer.send(world.chain.publish(world.run, 0, b"\x0a" * 32))
    nothing = json.dumps({"jsonrpc": "2.0", "id": 0, "result": []}).encode()
    faulty.fault = lambda method, _: nothing if method == "eth_getLogs" else None
    assert list(follower.poll()) == []
    faulty.fault = lambda *_: None
    world.anvil.advance(1)
    assert kinds(list(follower.poll())) == [("Published", False)]
    world.anvil.advance(1)
    assert list(follower.poll()) == []


def test_a_provider_that_refuses_long_ranges_is_asked_for_short_ones(world: World, faulty: FaultyEndpoint) -> None:
    from swarm.faulty_endpoint import error

    node, operator = Key.generate(), Key.generate()
    world.seat_node(operator, node)
    world.publish(0)
    for sequence in range(8):
        world.submit(node, 0, sequence, bytes([sequence]) * 32)

    def refuse(method: str, parameters: list[Any]) -> bytes | None:
        if method != "eth_getLogs":
            return None
        first, last = (int(parameters[0][which], 16) for which in ("fromBlock", "toBlock"))
        return error(-32000, "block range too wide") if last - first > 9 else None

    faulty.fault = refuse
    chain = Chain(faulty.url, world.chain.runs.address)
    told = list(Follower(chain, world.run, 0).poll())
    expected = [event.data for event in world.logs() if getattr(event.data, "run", None) == world.run]
    assert [news.event.data for news in told[1:]] == expected[1:]
    assert type(told[0].event.data) is type(expected[0]) is RunCreated  # its policy is decoded in two ways
    assert sum(isinstance(news.event.data, Submitted) for news in told) == 8


def test_another_chain_behind_the_endpoint_ends_the_watching(world: World, faulty: FaultyEndpoint) -> None:
    chain = Chain(faulty.url, world.chain.runs.address)
    follower = Follower(chain, world.run, chain.block_number() + 1)
    world.anvil.advance(1)
    list(follower.poll())

    def other(method: str, parameters: list[Any]) -> bytes | None:
        if method == "eth_chainId":
            return json.dumps({"jsonrpc": "2.0", "id": 0, "result": hex(8453)}).encode()
        if method == "eth_getBlockByNumber":
            found = world.anvil.request(method, *parameters)
            return json.dumps({"jsonrpc": "2.0", "id": 0, "result": {**found, "hash": "0x" + "66" * 32}}).encode()
        return None

    faulty.fault = other
    with pytest.raises(WrongChain):
        list(follower.poll())


# ---- endpoints that are gone -------------------------------------------------------------------------------------------


class Looked(Exception):
    """Enough was seen."""


def test_an_endpoint_that_is_gone_is_said_once_and_waited_for_and_nothing_is_lost(
    world: World, faulty: FaultyEndpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, chain = VirtualClock(), Chain(faulty.url, world.chain.runs.address)
    follower = Follower(chain, world.run, chain.block_number() + 1)

    def drop(*_: object) -> None:
        raise Drop

    def meanwhile() -> None:
        if len(clock.waits) == 1:
            world.trainer.send(world.chain.publish(world.run, 0, b"\x0a" * 32))
            faulty.fault = drop
        if len(clock.waits) == 5:
            faulty.fault = lambda *_: None
        if len(clock.waits) == 7:
            raise Looked

    clock.meanwhile = meanwhile
    with pytest.raises(Looked):
        watch.follow(follower, watch.Teller(), poll_seconds=2, clock=clock)
    out, err = capsys.readouterr()
    assert out.count("version 0 was published") == 1
    said = err.splitlines()
    assert [line.split(":")[0] for line in said] == ["no news", "the endpoint answers again"]
    assert clock.waits == [2, 2, 4, 8, 16, 2, 2], "longer pauses while it is gone"


def test_no_endpoint_at_the_start_is_an_error_that_ends_it(console: Console, world: World) -> None:
    ended = console.murmur("chain", "watch", "--contract", world.chain.runs.address, "--run", 1, "--rpc", DEAD)
    assert (ended.code, ended.out) == (4, "")
    assert ended.err.startswith("error: ")
    assert "try: check the RPC address" in ended.err


def test_a_run_that_is_not_there_is_an_error(console: Console, world: World) -> None:
    where = ("--contract", world.chain.runs.address, "--rpc", world.anvil.rpc)
    ended = console.murmur("chain", "watch", *where, "--run", 77)
    assert (ended.code, "there is no run 77" in ended.err) == (3, True)


def test_it_tells_what_happens_while_it_runs_and_ends_with_130_when_interrupted(world: World) -> None:
    command = [
        sys.executable, "-m", "protocol", "chain", "watch", "--contract", world.chain.runs.address, "--rpc", world.anvil.rpc,
        "--run", str(world.run), "--poll-seconds", "0.1", "--from-block", str(world.chain.block_number() + 1),
    ]  # fmt: skip
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        world.trainer.send(world.chain.publish(world.run, 0, b"\x0a" * 32))
        assert "version 0 was published" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.wait()
