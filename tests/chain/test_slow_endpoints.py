"""Honest endpoints that take long for an answer, are down for a while or have another time, beside a liar that is quick."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from eth_utils import keccak
from swarm.faulty_endpoint import Drop, FaultyEndpoint, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.sender import SendLimits
from protocol.errors import DeadlineExceeded, RpcUnavailable
from protocol.identity import Key
from tests.chain.paying import begun, deposits

_SLOW_SECONDS = 0.4
"""Longer than who has hung is given, and much less than `timeout`."""
_AHEAD_SECONDS = 70


class Slow:
    """Breaks some connections, and each that something is sent by; answers everything else late."""

    def __init__(self, drops: float) -> None:
        self._drops = drops

    def __call__(self, method: str, params: Any) -> bytes | None:
        if self._drops or method == "eth_sendRawTransaction":
            self._drops = max(0, self._drops - 1)
            raise Drop
        time.sleep(_SLOW_SECONDS)
        return None


@pytest.fixture
def three(world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], monkeypatch: pytest.MonkeyPatch) -> Chain:
    """The first of which lies."""
    for name, seconds in {
        "endpoints.PATIENCE_SECONDS": 2.0, "endpoints._SILENT_SECONDS": 0.2, "landing._SILENT_SECONDS": 1.0, "sender._RESEND_SECONDS": 0.5
    }.items():  # fmt: skip
        monkeypatch.setattr(f"protocol.chain.{name}", seconds)
    chain = Chain([faulty.url, *(each.url for each in honest)], world.chain.runs.address, timeout=3)
    chain.check()
    return chain


def swallowing(world: World) -> Callable[[str, Any], bytes | None]:
    """Takes what is sent to itself, and shows an invented receipt for it."""
    taken: list[str] = []

    def fault(method: str, params: Any) -> bytes | None:
        if method == "eth_sendRawTransaction":
            taken.append(params[0])
            return result("0x" + keccak(hexstr=params[0]).hex())
        if method != "eth_getTransactionReceipt" or not taken:
            return None
        newest = world.anvil.request("eth_getBlockByNumber", "latest", False)
        return result({
            "transactionHash": params[0], "blockNumber": newest["number"], "blockHash": newest["hash"],
            "gasUsed": "0x5208", "status": "0x1", "logs": [], "contractAddress": None,
        })  # fmt: skip

    return fault


def let_them_fail(chain: Chain, honest: list[FaultyEndpoint], drops: float) -> None:
    for each, one in zip(honest, chain.singles[1:], strict=True):
        each.fault = Slow(drops)
        with suppress(RpcUnavailable):
            one.block_number()


def test_who_is_slow_and_failed_once_is_still_a_voice(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], three: Chain, key: Key
) -> None:
    let_them_fail(three, honest, 3)
    faulty.fault = swallowing(world)
    with suppress(DeadlineExceeded, RpcUnavailable):
        Sender(three, key, limits=SendLimits(deadline=3)).send(three.deposit(key.address, TOKEN))
        assert deposits(world, key.address) == 1, "told as done"


@pytest.mark.parametrize("drops", [3, float("inf")], ids=["slow", "down for long"])
def test_a_liar_has_no_deed_done_twice_while_the_others_are(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], three: Chain, key: Key, drops: float
) -> None:
    """It says that something else used the nonce, shows what, and keeps the first transaction until there is a second."""
    taken, journal = list[str](), begun(world, key)
    nonce = world.chain.ethereum.transaction_count(key.address)

    def lie(method: str, params: Any) -> bytes | None:
        if method == "eth_sendRawTransaction":
            if params[0] not in taken:
                taken.append(params[0])
            if len(taken) == 1:
                return error(-32000, "nonce too low")
            for each in taken:
                world.anvil.request(method, each)
            return result("0x" + keccak(hexstr=params[0]).hex())
        if len(taken) == 1 and method == "eth_getTransactionCount" and params[1] != "latest":
            return result(hex(nonce + (int(params[1], 16) >= int(world.anvil.request("eth_blockNumber"), 16))))
        if len(taken) == 1 and method == "eth_getBlockByNumber" and params[1] is True:
            other = {"from": key.address.lower(), "nonce": hex(nonce), "hash": "0x" + "ab" * 32}
            return result({**world.anvil.request(method, *params), "transactions": [other]})
        return None

    let_them_fail(three, honest, drops)
    faulty.fault = lie
    with suppress(RpcUnavailable, DeadlineExceeded):
        Sender(three, key, journal, SendLimits(deadline=5)).send(three.deposit(key.address, TOKEN))
    assert len(taken) == 1
    assert deposits(world, key.address) <= 1


def test_with_a_wrong_clock_here_one_of_three_is_not_believed_alone(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], three: Chain, key: Key
) -> None:
    """By this machine's clock the newest blocks of the honest ones are too old, and the liar's is not."""

    def timed(by: float) -> Callable[[str, Any], bytes | None]:
        def fault(method: str, params: Any) -> bytes | None:
            if method != "eth_getBlockByNumber":
                return None
            block = world.anvil.request(method, *params)
            return result(block and {**block, "timestamp": hex(int(time.time() - by))})

        return fault

    for each in honest:
        each.fault = timed(_AHEAD_SECONDS)
    swallow, suits = swallowing(world), timed(0)
    faulty.fault = lambda method, params: swallow(method, params) or suits(method, params)
    three.expect_blocks(60)
    for one in three.singles:
        with suppress(RpcUnavailable):
            one.block()
    with suppress(DeadlineExceeded, RpcUnavailable):
        Sender(three, key, limits=SendLimits(deadline=4)).send(three.deposit(key.address, TOKEN))
        assert deposits(world, key.address) == 1, "told as done"
