"""Several endpoints as one: whatever one of them does, the others carry on, and no lie goes unnoticed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from swarm.anvil import Anvil

from protocol.chain import Chain
from protocol.chain.endpoints import EndpointsDisagree
from protocol.errors import RpcUnavailable
from tests.chain.faulty_endpoint import Drop, FaultyEndpoint, Hang, error, result
from tests.world import World


@pytest.fixture
def faulty(anvil: Anvil) -> Iterator[FaultyEndpoint]:
    endpoint = FaultyEndpoint(anvil.rpc)
    yield endpoint
    endpoint.close()


def hang(*_: object) -> bytes:
    raise Hang


def drop(*_: object) -> bytes:
    raise Drop


FAULTS = {
    "hangs": hang,
    "hangs up": drop,
    "garbage": lambda *_: b"\xff\xfe{{{",
    "html": lambda *_: b"<html>busy</html>",
    "a list": lambda *_: b"[1, 2]",
    "nothing": lambda *_: b"",
    "no result": lambda *_: b'{"jsonrpc": "2.0", "id": 1}',
    "deep nesting": lambda *_: b"[" * 200_000,
    "rate limit": lambda *_: error(-32005, "limit exceeded"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_second_endpoint_takes_over(world: World, faulty: FaultyEndpoint, name: str) -> None:
    faulty.fault = FAULTS[name]
    chain = Chain([faulty.url, world.anvil.rpc], world.chain.runs.address, timeout=1)
    assert chain.policy(world.run).window == 86_400
    assert faulty.asked


@pytest.mark.parametrize("name", FAULTS)
def test_alone_it_is_one_clear_error(world: World, faulty: FaultyEndpoint, name: str) -> None:
    faulty.fault = FAULTS[name]
    with pytest.raises(RpcUnavailable) as caught:
        Chain(faulty.url, world.chain.runs.address, timeout=1).policy(world.run)
    assert faulty.url in str(caught.value)


def test_an_answer_without_end_is_cut_off(
    world: World, faulty: FaultyEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.chain.endpoints.ANSWER_BYTES_MAX", 100_000)
    faulty.fault = lambda *_: result("0x" + "00" * 200_000)
    with pytest.raises(RpcUnavailable, match="more than 100000 bytes"):
        Chain(faulty.url, None, timeout=5).block_number()


def test_a_failed_endpoint_rests_and_comes_back(
    world: World, faulty: FaultyEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("protocol.chain.endpoints.time.monotonic", lambda: now[0])
    chain = Chain([faulty.url, world.anvil.rpc], None, timeout=1)
    chain.block_number()
    faulty.fault = drop
    chain.block_number()
    asked = sum(faulty.asked.values())
    chain.block_number()
    assert sum(faulty.asked.values()) == asked
    faulty.fault = lambda *_: None
    now[0] += 2
    chain.block_number()
    assert sum(faulty.asked.values()) == asked + 1


def test_an_endpoint_that_lags_is_passed_over(world: World, faulty: FaultyEndpoint) -> None:
    world.anvil.request("anvil_mine", hex(30))
    head = world.chain.block_number()
    faulty.fault = lambda method, _: result(hex(head - 20)) if method == "eth_blockNumber" else None
    chain = Chain([faulty.url, world.anvil.rpc], None, timeout=5)
    assert chain.block_number() == head
    assert chain.block_number() == head


def test_a_head_that_goes_back_is_noticed(world: World, faulty: FaultyEndpoint) -> None:
    world.anvil.request("anvil_mine", hex(30))
    chain = Chain([faulty.url, world.anvil.rpc], None, timeout=5)
    head = chain.block_number()
    faulty.fault = lambda method, _: result(hex(3)) if method == "eth_blockNumber" else None
    chain.block_number()  # the lie itself may come through once; from then on the other is asked
    assert chain.block_number() >= head


def test_endpoints_that_hold_different_blocks_are_an_error(world: World, faulty: FaultyEndpoint) -> None:
    world.anvil.request("anvil_mine", hex(30))

    def lie(method: str, params: list[object]) -> bytes | None:
        return result({"hash": "0x" + "99" * 32, "number": params[0]}) if method == "eth_getBlockByNumber" else None

    faulty.fault = lie
    with pytest.raises(EndpointsDisagree, match="different blocks"):
        Chain([world.anvil.rpc, faulty.url], None, timeout=5).block_number()
