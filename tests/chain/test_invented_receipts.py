"""One endpoint of several shows a receipt of what is not in the chain: the deed is told as done once it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
from eth_utils import keccak
from swarm.faulty_endpoint import Drop, FaultyEndpoint, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.drafts import Drafts
from protocol.chain.sender import SendLimits
from protocol.errors import DeadlineExceeded, RpcUnavailable
from protocol.identity import Key
from tests.chain.paying import begun, deposits, sender

Fault = Callable[[str, list[str]], bytes | None]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.1)


@pytest.fixture
def key(world: World) -> Key:
    """With tokens, an allowance and gas money, and some blocks on them."""
    key = Key.generate()
    sender(world, key)
    world.anvil.request("anvil_mine", hex(20))
    return key


def inventing(world: World, status: str, *, swallows: bool = True) -> Fault:
    """Receipts in the newest block of now, for transactions that it passes on to nobody."""
    head = world.anvil.request("eth_getBlockByNumber", "latest", False)
    receipt = {
        "blockNumber": head["number"], "blockHash": head["hash"], "gasUsed": "0x1000", "status": status, "logs": [],
    }  # fmt: skip

    def fault(method: str, params: list[str]) -> bytes | None:
        if method == "eth_sendRawTransaction" and swallows:
            return result(f"0x{keccak(hexstr=params[0]).hex()}")
        return result({"transactionHash": params[0], **receipt}) if method == "eth_getTransactionReceipt" else None

    return fault


def chain_of(world: World, *endpoints: FaultyEndpoint) -> Chain:
    return Chain([each.url for each in endpoints], world.chain.runs.address, timeout=20)


def test_a_true_receipt_of_another_transaction_is_none_of_this_one(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key
) -> None:
    another = sender(world, Key.generate()).chain.block()
    hashes = world.anvil.request("eth_getBlockByNumber", hex(another.number), False)["transactions"]
    shown = result(world.anvil.request("eth_getTransactionReceipt", hashes[0]))
    lies = inventing(world, "0x1")
    faulty.fault = lambda method, params: shown if method == "eth_getTransactionReceipt" else lies(method, params)
    one = Sender(chain_of(world, faulty, *honest), key, limits=SendLimits(deadline=5, depth=12))
    one.send(one.chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1


@pytest.mark.parametrize("status", ["0x1", "0x0"])
def test_the_preferred_endpoint_keeps_a_deed_to_itself_and_invents_its_receipt(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key, status: str
) -> None:
    faulty.fault = inventing(world, status)
    one = Sender(chain_of(world, faulty, *honest), key, limits=SendLimits(deadline=5, depth=12))
    one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 1


def test_an_invented_receipt_of_the_last_endpoint_is_not_told_while_the_deed_waits(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key
) -> None:
    faulty.fault = inventing(world, "0x1", swallows=False)
    one = Sender(chain_of(world, *honest, faulty), key, limits=SendLimits(deadline=0.8, depth=12))
    call = one.chain.deposit(key.address, TOKEN)
    world.anvil.request("evm_setAutomine", False)
    try:
        with pytest.raises(RpcUnavailable, match="too few others show it") as raised:
            one.send(call, name="deposit/1")
        assert "may still land" in str(raised.value.hint)
    finally:
        world.anvil.request("evm_setAutomine", True)
    world.anvil.request("evm_mine")
    one.send(call, name="deposit/1")
    assert deposits(world, key.address) == 1


def test_what_the_only_endpoint_that_answered_invented_is_sent_again_once_the_others_answer(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key
) -> None:
    journal = begun(world, key)
    faulty.fault = inventing(world, "0x1")

    def silent(*_: object) -> bytes | None:
        raise Drop

    for each in honest:
        each.fault = silent
    one = Sender(chain_of(world, faulty, *honest), key, journal, SendLimits(depth=12))
    one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 0
    for each in honest:
        each.fault = lambda *_: None
    world.anvil.request("anvil_mine", hex(12))
    Sender(chain_of(world, faulty, *honest), key, journal, SendLimits(depth=12)).recover()
    assert deposits(world, key.address) == 1


@pytest.mark.parametrize("many", [1, 2])
def test_endpoints_that_refuse_receipts_for_a_moment_confirm_nothing(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key, many: int
) -> None:
    """As one does whose rate limit is reached: it is there, so the liar is not alone."""
    faulty.fault = inventing(world, "0x1")
    refused: list[str] = []

    def fault(method: str, _: list[str]) -> bytes | None:
        if method != "eth_getTransactionReceipt" or len(refused) >= 2 * many:
            return None
        refused.append(method)
        return error(-32005, "limit exceeded")

    for each in honest:
        each.fault = fault
    one = Sender(chain_of(world, faulty, *honest[:many]), key, limits=SendLimits(deadline=5 * many, depth=12))
    with (
        pytest.raises(RpcUnavailable, match="too few others show it") if many == 1 else nullcontext()
    ):  # one against one
        one.send(one.chain.deposit(key.address, TOKEN))
        assert deposits(world, key.address) == 1
    assert refused


def test_a_failure_that_one_shows_as_a_success_is_none(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key
) -> None:
    """Its block shows the transaction; only a receipt tells how it ended."""

    def fault(method: str, params: list[str]) -> bytes | None:
        shown = world.anvil.request(method, *params) if method == "eth_getTransactionReceipt" else None
        return result({**shown, "status": "0x1"}) if shown else None

    faulty.fault = fault
    one = Sender(chain_of(world, faulty, honest[0]), key, limits=SendLimits(deadline=3))
    honest[0].fault = lambda method, _: error(-32000, "no receipts") if "Receipt" in method else None
    call = replace(one.chain.deposit(key.address, TOKEN), room=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Drafts, "gas", lambda *_: 30_000)
        with pytest.raises((RpcUnavailable, DeadlineExceeded)):
            one.send(call)
    assert deposits(world, key.address) == 0


def test_a_second_endpoint_is_asked_once_a_deed(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key
) -> None:
    second = honest[0]
    one = Sender(chain_of(world, faulty, second, honest[1]), key, limits=SendLimits(depth=12))
    one.send(one.chain.deposit(key.address, TOKEN))
    before = [second.counted, honest[1].counted]
    one.send(one.chain.deposit(key.address, TOKEN))
    asked = [after - then for (then, _), (after, _) in zip(before, [second.counted, honest[1].counted], strict=True)]
    assert asked == [1, 0], "HTTP requests"


def test_one_that_answers_and_stands_still_keeps_nothing_from_being_told(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node has stopped long ago: it knows no receipt, and never will."""
    monkeypatch.setattr("protocol.chain.endpoints.PATIENCE_SECONDS", 0.0)
    old = world.anvil.request("eth_getBlockByNumber", "0x1", False)

    def stuck(method: str, params: list[str]) -> bytes | None:
        if method == "eth_blockNumber":
            return result("0x1")
        if method == "eth_getBlockByNumber" and params[0] == "latest":
            return result(old)
        is_later = method == "eth_getBlockByNumber" and int(params[0], 16) > 1
        return result(None) if is_later or method == "eth_getTransactionReceipt" else None

    faulty.fault = stuck
    one = Sender(chain_of(world, honest[0], faulty), key, limits=SendLimits(deadline=8))
    one.send(one.chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1
