"""What one endpoint refuses stops no transaction, nor does it make one dearer: the next is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from eth_utils import keccak
from swarm.faulty_endpoint import FaultyEndpoint, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender, artifacts
from protocol.chain.calls import Call
from protocol.chain.contract import creation
from protocol.chain.gas import TIP
from protocol.chain.sender import SendLimits
from protocol.chain.transaction_log import FAILED, Attempt, TransactionLog
from protocol.errors import DeadlineExceeded, InsufficientFunds, RpcUnavailable, TransactionReverted
from protocol.identity import Key
from tests.chain.paying import begun, deposits, noted

REVERTS = b'{"jsonrpc":"2.0","id":1,"error":{"code":3,"message":"execution reverted","data":"0x%s"}}' % (
    keccak(text="TooLate()")[:4].hex().encode()
)


@pytest.fixture
def three(world: World, faulty: FaultyEndpoint) -> Iterator[Chain]:
    """The first of which is the faulty one."""
    others = [FaultyEndpoint(world.anvil.rpc) for _ in range(2)]
    yield Chain([faulty.url, *(each.url for each in others)], world.chain.runs.address, timeout=20)
    for each in others:
        each.close()


@pytest.mark.parametrize(
    "answer",
    ["already known", "nonce too low", "transaction underpriced", "intrinsic gas too low", "limit exceeded", "no such method"],
)  # fmt: skip
def test_whatever_one_says_the_next_is_asked_at_once(
    world: World, faulty: FaultyEndpoint, three: Chain, key: Key, answer: str
) -> None:
    faulty.fault = lambda method, _: error(-32000, answer) if method == "eth_sendRawTransaction" else None
    journal = TransactionLog()
    one = Sender(three, key, journal, SendLimits(deadline=4))
    one.send(three.deposit(key.address, TOKEN), name="deposit/1")
    named = journal.named("deposit/1")
    assert named is not None
    assert len(journal.attempts(named)) == 1, "nothing was signed anew"
    assert faulty.asked["eth_sendRawTransaction"] == 1
    assert deposits(world, key.address) == 1


def test_at_the_cap_nothing_is_signed_anew(
    world: World, faulty: FaultyEndpoint, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the only endpoint says that it is offered too little."""
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.05)
    faulty.fault = lambda method, _: error(-32000, "transaction underpriced") if "sendRaw" in method else None
    chain, journal = Chain(faulty.url, world.chain.runs.address, timeout=20), TransactionLog()
    world.anvil.request("anvil_setNextBlockBaseFeePerGas", hex(10**9))
    world.anvil.request("evm_mine")
    cap = chain.ethereum.base_fee() + 2 * TIP
    one = Sender(chain, key, journal, SendLimits(deadline=2, fee=cap))
    with pytest.raises(DeadlineExceeded):
        one.send(chain.deposit(key.address, TOKEN), name="deposit/1")
    named = journal.named("deposit/1")
    assert named is not None
    assert [attempt.fee for attempt in journal.attempts(named)] == [cap]
    assert faulty.asked["eth_sendRawTransaction"] > 2


@pytest.mark.parametrize("reverting", [1, 2])
def test_a_call_would_revert_where_most_say_so(world: World, faulty: FaultyEndpoint, key: Key, reverting: int) -> None:
    others = [FaultyEndpoint(world.anvil.rpc) for _ in range(2)]
    for each in [faulty, *others][:reverting]:
        each.fault = lambda method, _: REVERTS if method == "eth_estimateGas" else None
    chain = Chain([faulty.url, *(each.url for each in others)], world.chain.runs.address, timeout=20)
    try:
        if reverting == 1:
            Sender(chain, key).send(chain.deposit(key.address, TOKEN))
            assert deposits(world, key.address) == 1
        else:
            with pytest.raises(TransactionReverted, match="refused"):
                Sender(chain, key).send(chain.deposit(key.address, TOKEN))
            assert deposits(world, key.address) == 0
    finally:
        for each in others:
            each.close()


@pytest.mark.parametrize("several", [True, False])
def test_a_count_that_is_too_high_leaves_no_gap(
    world: World, faulty: FaultyEndpoint, three: Chain, key: Key, several: bool
) -> None:
    """Of several endpoints one that always says so, of a single one what it said once."""
    said: list[str] = []

    def fault(method: str, params: list[str]) -> bytes | None:
        if method != "eth_getTransactionCount" or params[1] != "latest" or (said and not several):
            return None
        said.append(method)
        return result(hex(1000))

    faulty.fault = fault
    chain = three if several else Chain(faulty.url, world.chain.runs.address, timeout=20)
    one = Sender(chain, key, limits=SendLimits(deadline=4))
    for number in range(3):
        one.send(chain.deposit(key.address, TOKEN), name=f"deposit/{number}")
    assert said
    assert deposits(world, key.address) == 3


def test_what_was_refused_costs_one_look_however_much_it_is(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    def asked(count: int) -> int:
        journal = TransactionLog()
        one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key, journal, SendLimits(depth=12))
        faulty.fault = lambda method, _: error(-32003, "insufficient funds") if "sendRaw" in method else None
        for number in range(count):
            with pytest.raises(InsufficientFunds):
                one.send(one.chain.deposit(key.address, (number + 1) * TOKEN), name=f"deposit/{number}")
        faulty.fault = lambda *_: None
        one.send(one.chain.transfer_tokens(world.owner.key.address, 1), name="transfer/1")
        before = faulty.asked.total()
        one.send(one.chain.transfer_tokens(world.owner.key.address, 1), name="transfer/2")
        assert len(journal.dropped()) == count
        return faulty.asked.total() - before

    assert asked(6) <= asked(2) + 1


def test_one_base_fee_that_is_too_high_stops_nothing(
    world: World, faulty: FaultyEndpoint, three: Chain, key: Key
) -> None:
    def fault(method: str, params: list[str]) -> bytes | None:
        if method != "eth_getBlockByNumber" or params[0] != "latest":
            return None
        return result({**world.anvil.request(method, *params), "baseFeePerGas": hex(10**13)})

    faulty.fault = fault
    Sender(three, key).send(three.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1


def test_an_estimate_that_was_too_low_is_not_believed_twice(
    world: World, faulty: FaultyEndpoint, three: Chain, key: Key
) -> None:
    faulty.fault = lambda method, _: result(hex(26_000)) if method == "eth_estimateGas" else None
    one = Sender(three, key, limits=SendLimits(deadline=5))
    call = replace(three.deposit(key.address, TOKEN), room=0)
    with pytest.raises(RpcUnavailable, match="ran out of gas"):
        one.send(call, name="deposit/1")
    one.send(call, name="deposit/1")
    assert deposits(world, key.address) == 1


def test_a_low_count_has_only_so_much_doubted(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    """Of a thousand deeds that failed long ago."""
    journal = TransactionLog()
    for number in range(1000):
        attempt = Attempt(number.to_bytes(32, "big"), b"", 1, 1, 0.0)
        failed = noted(journal, None, number, attempt)
        journal.finish(failed, FAILED, attempt.hash, 5)
    faulty.fault = lambda method, _: result("0x0") if method == "eth_getTransactionCount" else None
    one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key, journal, SendLimits(deadline=0.1))
    with suppress(RpcUnavailable, DeadlineExceeded):
        one.recover()
    assert faulty.requests < 150


def test_where_a_contract_was_deployed_no_endpoint_decides(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    liar = "0x" + "11" * 20

    def fault(method: str, params: list[str]) -> bytes | None:
        shown = world.anvil.request(method, *params) if "Receipt" in method else None
        return result({**shown, "contractAddress": liar}) if shown else None

    faulty.fault = fault
    chain = Chain(faulty.url, world.chain.runs.address, timeout=20)
    artifact = artifacts.load("Token")
    made = creation(chain.ethereum, artifact.abi, artifact.bytecode, TOKEN)
    address = Sender(chain, key).send(Call("deploying a token", made)).contract
    assert address is not None
    assert address != liar
    assert world.anvil.request("eth_getCode", address, "latest") != "0x"


@pytest.mark.parametrize(
    "words", ["failed to forward tx to sequencer, please try again", "request timed out", "Internal error"]
)
def test_what_was_taken_beside_an_error_is_not_told_as_refused(
    world: World, faulty: FaultyEndpoint, key: Key, words: str
) -> None:
    """As proxies say it when what is behind them is slow."""
    world.anvil.request("evm_setAutomine", False)

    def fault(method: str, params: list[str]) -> bytes | None:
        if method != "eth_sendRawTransaction":
            return None
        world.anvil.request(method, *params)
        return error(-32000, words)

    faulty.fault = fault
    one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key, limits=SendLimits(deadline=1))
    try:
        with pytest.raises(DeadlineExceeded, match=words) as raised:
            one.send(one.chain.deposit(key.address, TOKEN))
        assert "may still land" in str(raised.value.hint)
    finally:
        world.anvil.request("evm_setAutomine", True)
        world.anvil.request("evm_mine")
    one.send(one.chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1


def refusing_once(words: str) -> Callable[[str, list[str]], bytes | None]:
    left = [1]

    def fault(method: str, _: list[str]) -> bytes | None:
        if method != "eth_sendRawTransaction" or not left:
            return None
        left.clear()
        return error(-32000, words)

    return fault


@pytest.mark.parametrize(
    "words", ["NonceGap", "nonce too high", "over rate limit", "txpool is full", "ReplacementNotAllowed"]
)
def test_what_is_refused_for_a_moment_is_sent_a_moment_later(
    world: World, faulty: FaultyEndpoint, key: Key, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.1)
    faulty.fault = refusing_once(words)
    one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key)
    one.send(one.chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1


def test_words_of_one_that_takes_it_later_are_not_told(
    world: World, faulty: FaultyEndpoint, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.1)
    faulty.fault = refusing_once("txpool is full")
    world.anvil.request("evm_setAutomine", False)
    try:
        one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key, limits=SendLimits(deadline=1))
        with pytest.raises(DeadlineExceeded, match=r"not mined within 1 s$"):
            one.send(one.chain.deposit(key.address, TOKEN))
    finally:
        world.anvil.request("evm_setAutomine", True)
        world.anvil.request("evm_mine")


def test_want_of_gas_money_is_told_though_one_of_three_refuses_in_other_words(
    world: World, faulty: FaultyEndpoint, three: Chain, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an earlier deed that all refuse is left, so that the next one is told the same."""
    for name, seconds in {"_RESEND_SECONDS": 0.2, "_ALONE_SECONDS": 0.4}.items():
        monkeypatch.setattr(f"protocol.chain.sender.{name}", seconds)
    journal = begun(world, key)
    had = world.chain.balance(key.address)
    world.anvil.request("anvil_setBalance", key.address, "0x1")

    def fault(method: str, _: object) -> bytes | None:
        if method == "eth_getBalance":
            return result(hex(had))
        return error(-32000, "not now") if method == "eth_sendRawTransaction" else None

    faulty.fault = fault
    one = Sender(three, key, journal, SendLimits(deadline=2))
    for number in range(2):
        with pytest.raises(DeadlineExceeded, match=r"(?i)insufficient funds"):
            one.send(three.deposit(key.address, TOKEN), name=f"deed/{number}")
