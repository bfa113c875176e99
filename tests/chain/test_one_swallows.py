"""One of three endpoints takes what it is sent and passes nothing on, or is false in one thing alone: what the others say decides."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from eth_utils import keccak
from swarm.faulty_endpoint import FaultyEndpoint, error, result
from swarm.world import TOKEN, World, policy_for

from protocol.chain import Chain, Sender
from protocol.chain.sender import SendLimits
from protocol.chain.transaction_log import FAILED, Attempt, TransactionLog
from protocol.errors import DeadlineExceeded, InsufficientFunds, RpcUnavailable
from protocol.identity import Key
from tests.chain.paying import deposits, noted

Fault = Callable[[str, Any], bytes | None]
GWEI = 10**9


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.2)


@pytest.fixture
def three(world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint]) -> Chain:
    """The first of which is the faulty one."""
    return Chain([faulty.url, *(each.url for each in honest)], world.chain.runs.address, timeout=20)


def swallowing(more: Fault = lambda *_: None) -> Fault:
    def fault(method: str, params: Any) -> bytes | None:
        if method == "eth_sendRawTransaction":
            return result("0x" + keccak(hexstr=params[0]).hex())
        return result(None) if method == "eth_getTransactionReceipt" else more(method, params)

    return fault


def burning(world: World, base: int) -> Fault:
    """Says that a block burns so much."""

    def fault(method: str, params: Any) -> bytes | None:
        if method != "eth_getBlockByNumber" or params[0] != "latest":
            return None
        return result({**world.anvil.request(method, *params), "baseFeePerGas": hex(base)})

    return fault


def set_base_fee(world: World, wei: int) -> None:
    world.anvil.request("anvil_setNextBlockBaseFeePerGas", hex(wei))
    world.anvil.request("evm_mine")


def test_a_nonce_that_something_else_used_is_seen_although_one_takes_it(
    world: World, faulty: FaultyEndpoint, three: Chain, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a service and a command send with one key at once."""
    faulty.fault = swallowing()
    real = Sender._finish

    def late(self: Sender, *given: Any, **named: Any) -> Any:
        monkeypatch.undo()
        monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.2)
        Sender(world.chain, key).send(world.chain.transfer_tokens(world.owner.key.address, 1))
        return real(self, *given, **named)

    monkeypatch.setattr(Sender, "_finish", late)
    Sender(three, key, limits=SendLimits(deadline=20)).send(three.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 1


def test_a_count_that_is_too_low_stops_no_new_journal(
    world: World, faulty: FaultyEndpoint, three: Chain, key: Key
) -> None:
    service = Sender(world.chain, key)
    for _ in range(13):
        service.send(world.chain.transfer_tokens(world.owner.key.address, 1))
    faulty.fault = swallowing(lambda method, _: result("0x0") if method == "eth_getTransactionCount" else None)
    Sender(three, key, limits=SendLimits(deadline=20)).send(three.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 1


def test_what_nobody_else_takes_for_want_of_gas_money_is_given_up(
    world: World, faulty: FaultyEndpoint, three: Chain, key: Key
) -> None:
    world.anvil.request("anvil_setBalance", key.address, hex(GWEI))
    faulty.fault = swallowing(lambda method, _: result(hex(TOKEN)) if method == "eth_getBalance" else None)
    journal = TransactionLog()
    with pytest.raises(InsufficientFunds):
        Sender(three, key, journal, SendLimits(deadline=20)).send(three.deposit(key.address, TOKEN), name="deposit/1")
    assert not journal.pending()


@pytest.mark.parametrize("swallows", [True, False])
def test_a_price_that_is_too_low_is_mended_by_what_the_others_say(
    world: World, faulty: FaultyEndpoint, three: Chain, key: Key, swallows: bool
) -> None:
    set_base_fee(world, 5 * GWEI)
    faulty.fault = swallowing(burning(world, 0)) if swallows else burning(world, 0)
    journal = TransactionLog()
    Sender(three, key, journal, SendLimits(deadline=20)).send(three.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 1
    named = journal.named("deposit/1")
    assert named is not None and len(journal.attempts(named)) == 2


def test_a_price_that_is_too_high_takes_nobodys_means(
    world: World, faulty: FaultyEndpoint, three: Chain, key: Key
) -> None:
    world.anvil.request("anvil_setBalance", key.address, hex(2 * 10**15))
    set_base_fee(world, GWEI // 100)
    faulty.fault = burning(world, 24 * GWEI)
    Sender(three, key).send(three.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 1


def test_an_estimate_that_is_too_low_costs_one_failure(world: World, faulty: FaultyEndpoint, three: Chain) -> None:
    faulty.fault = lambda method, _: result(hex(60_000)) if method == "eth_estimateGas" else None
    one = Sender(three, world.owner.key, TransactionLog(), SendLimits(depth=0))
    policy = policy_for(world.owner.key, world.trainer.key)
    with pytest.raises(RpcUnavailable, match="an endpoint estimated too little"):
        one.send(three.create(policy, bytes([1]) * 32))
    for number in (2, 3):
        one.send(three.create(policy, bytes([number]) * 32))


def test_no_gas_above_the_cap_is_signed_whatever_the_only_endpoint_refuses(
    world: World, faulty: FaultyEndpoint, key: Key
) -> None:
    sent: list[str] = []

    def fault(method: str, params: Any) -> bytes | None:
        if method == "eth_sendRawTransaction":
            sent.append(params[0])
            return b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"intrinsic gas too low"}}'
        if method != "eth_estimateGas":
            return None
        reverts = b'{"jsonrpc":"2.0","id":1,"error":{"code":3,"message":"execution reverted","data":"0x"}}'
        return reverts if sent else result(hex(30_000))

    faulty.fault = fault
    journal = TransactionLog()
    one = Sender(
        Chain(faulty.url, world.chain.runs.address, timeout=20), key, journal, SendLimits(gas=60_000, deadline=2)
    )
    with suppress(RpcUnavailable, DeadlineExceeded):
        one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    named = journal.named("deposit/1")
    assert named is not None and sent
    assert max(attempt.gas for attempt in journal.attempts(named)) <= 60_000


def test_a_receipt_that_two_do_not_show_alike_is_not_told(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], three: Chain, key: Key
) -> None:
    """The first shows it without its events, the second has the block only, the third all of it."""

    def altered(method: str, params: Any) -> bytes | None:
        found = world.anvil.request(method, *params) if "Receipt" in method else None
        return result({**found, "logs": [], "gasUsed": "0x1"}) if found else None

    faulty.fault = altered
    honest[0].fault = lambda method, _: result(None) if "Receipt" in method else None
    one = Sender(three, key, limits=SendLimits(deadline=3))
    with pytest.raises((DeadlineExceeded, RpcUnavailable)):
        one.send(three.deposit(key.address, TOKEN), name="deposit/1")
    honest[0].fault = lambda *_: None
    sent = one.send(three.deposit(key.address, TOKEN), name="deposit/1")
    assert sent.gas_used > 1 and sent.events
    assert deposits(world, key.address) == 1


def test_one_is_not_alone_because_nobody_asked_the_others_lately(
    world: World, faulty: FaultyEndpoint, three: Chain, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps what it was sent to itself, and waits with the receipt until the others count as stuck."""
    patience = 0.5
    monkeypatch.setattr("protocol.chain.endpoints.PATIENCE_SECONDS", patience)
    three.block()
    kept: list[str] = []

    def fault(method: str, params: Any) -> bytes | None:
        if method == "eth_sendRawTransaction":
            kept.append("0x" + keccak(hexstr=params[0]).hex())
            return result(kept[-1])
        if method != "eth_getTransactionReceipt" or params[0] not in kept:
            return None
        time.sleep(1.2 * patience)
        head = world.anvil.request("eth_getBlockByNumber", "latest", False)
        where = {"blockNumber": head["number"], "blockHash": head["hash"]}
        return result({"transactionHash": params[0], **where, "gasUsed": "0x9000", "status": "0x1", "logs": []})

    faulty.fault = fault
    world.anvil.request("anvil_mine", hex(20))
    three.block()
    one = Sender(three, key, limits=SendLimits(deadline=10, depth=12))
    one.send(three.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 1


@pytest.mark.parametrize("said", ["the method eth_sendRawTransaction does not exist", "insufficient funds for gas"])
def test_what_one_takes_while_the_others_take_nothing_lands(
    world: World, honest: list[FaultyEndpoint], three: Chain, key: Key, said: str
) -> None:
    """Two that serve reads alone, or that lag behind what the key was given."""
    world.anvil.request("evm_setAutomine", False)
    for each in honest:
        each.fault = lambda method, _: error(-32601, said) if method == "eth_sendRawTransaction" else None
    timer = threading.Timer(1.5, lambda: world.anvil.request("evm_setAutomine", True))
    timer.start()
    try:
        Sender(three, key, limits=SendLimits(deadline=20)).send(three.deposit(key.address, TOKEN), name="deposit/1")
    finally:
        timer.join()
    assert deposits(world, key.address) == 1


@pytest.mark.parametrize("place", [0, 2])
def test_an_estimate_that_is_too_high_takes_nobodys_means(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key, place: int
) -> None:
    """Also after a failure, when more than one are asked."""
    urls = [each.url for each in honest]
    chain = Chain([*urls[:place], faulty.url, *urls[place:]], world.chain.runs.address, timeout=20)
    set_base_fee(world, GWEI)
    world.anvil.request("anvil_setBalance", key.address, hex(10**16))
    journal = TransactionLog()
    failed = noted(
        journal, None, world.chain.ethereum.transaction_count(key.address) - 1, Attempt(b"x" * 32, b"", 1, 1, 0.0)
    )
    journal.finish(failed, FAILED, b"x" * 32, 1)
    faulty.fault = lambda method, _: result(hex(12_700_000)) if method == "eth_estimateGas" else None
    Sender(chain, key, journal).send(chain.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 1


def test_what_one_claims_alone_makes_nobody_late(
    world: World, faulty: FaultyEndpoint, three: Chain, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a chain that stands still, a head that only the liar knows."""
    monkeypatch.setattr("protocol.chain.endpoints.PATIENCE_SECONDS", 0.3)
    three.block()
    kept: list[str] = []

    def fault(method: str, params: Any) -> bytes | None:
        head = world.anvil.request("eth_getBlockByNumber", "latest", False)
        number = hex(int(head["number"], 16) + 20)
        if method == "eth_blockNumber":
            return result(number)
        if method == "eth_getBlockByNumber" and params[0] in ("latest", number):
            return result({**head, "number": number})
        if method == "eth_sendRawTransaction":
            kept.append("0x" + keccak(hexstr=params[0]).hex())
            return result(kept[-1])
        if method != "eth_getTransactionReceipt" or params[0] not in kept:
            return None
        time.sleep(0.5)
        where = {"blockNumber": number, "blockHash": head["hash"]}
        return result({"transactionHash": params[0], **where, "gasUsed": "0x9000", "status": "0x1", "logs": []})

    faulty.fault = fault
    with suppress(RpcUnavailable, DeadlineExceeded):
        Sender(three, key, limits=SendLimits(deadline=4)).send(three.deposit(key.address, TOKEN), name="deposit/1")
        assert deposits(world, key.address) == 1
