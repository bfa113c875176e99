"""Two endpoints of which one lags or is gone, and nobody lies: what is sent is told, or why not, and nothing waits behind it for long."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from swarm.faulty_endpoint import Drop, FaultyEndpoint, Refuse, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender, pushing
from protocol.chain.ahead import AskedAhead
from protocol.chain.command import open_sender
from protocol.chain.drafts import Drafts
from protocol.chain.endpoints import Endpoints
from protocol.chain.landing import Landing
from protocol.chain.sender import SendLimits, Sent
from protocol.chain.transaction_log import Transaction
from protocol.chain.transport import Failed, RpcTransport
from protocol.errors import DeadlineExceeded, InsufficientFunds, RpcUnavailable, TransactionReverted
from protocol.identity import Key
from tests.chain.paying import begun, deposits
from tests.chain.test_one_refuses import REVERTS
from tests.chain.test_told import Killed, die
from tests.clock import VirtualClock

_BEHIND = 300


class Late:
    """Some blocks and ten minutes behind."""

    def __init__(self, world: World, *, moves: bool) -> None:
        self._world, self._moves = world, moves
        self._still = self._newest() - _BEHIND

    def _newest(self) -> int:
        return int(self._world.anvil.request("eth_blockNumber"), 16)

    def __call__(self, method: str, params: Any) -> bytes | None:
        head = self._newest() - _BEHIND if self._moves else self._still
        if method == "eth_blockNumber":
            return result(hex(head))
        if method == "eth_getBlockByNumber" and params[0] == "latest":
            block = self._world.anvil.request(method, hex(head), params[1])
            return result({**block, "timestamp": hex(int(time.time()) - 600)})
        if method == "eth_getBlockByNumber" and int(params[0], 16) > head:
            return result(None)
        if method == "eth_getTransactionReceipt":
            found = self._world.anvil.request(method, *params)
            return result(None) if found is None or int(found["blockNumber"], 16) > head else None
        return None


@pytest.mark.parametrize("moves", [True, False], ids=["moving", "standing still"])
def test_one_of_two_that_lags_stops_no_command(
    world: World, faulty: FaultyEndpoint, key: Key, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.anvil.request("anvil_mine", hex(_BEHIND + 100))
    good = FaultyEndpoint(world.anvil.rpc)

    def of_now(method: str, params: Any) -> bytes | None:
        if method != "eth_getBlockByNumber" or params[0] != "latest":
            return None
        return result({**world.anvil.request(method, *params), "timestamp": hex(int(time.time()))})

    good.fault, faulty.fault = of_now, Late(world, moves=moves)
    chain = Chain([good.url, faulty.url], world.chain.runs.address, timeout=20)
    chain.expect_blocks(60)
    chain.check()
    try:
        Sender(chain, key, limits=SendLimits(deadline=5)).send(chain.deposit(key.address, TOKEN))
    finally:
        good.close()
    assert deposits(world, key.address) == 1


@pytest.fixture
def halved(world: World, faulty: FaultyEndpoint, monkeypatch: pytest.MonkeyPatch) -> Chain:
    """The second of which has been silent for as long as it takes to be gone."""
    for name, seconds in {
        "endpoints.PATIENCE_SECONDS": 0.5, "sender._RESEND_SECONDS": 0.3, "landing._SILENT_SECONDS": 0.2,
    }.items():  # fmt: skip
        monkeypatch.setattr(f"protocol.chain.{name}", seconds)

    def dead(*_: object) -> bytes | None:
        raise Drop

    faulty.fault = dead
    chain = Chain([world.anvil.rpc, faulty.url], world.chain.runs.address, timeout=20)
    with suppress(RpcUnavailable):
        chain.singles[1].block_number()
    time.sleep(0.6)
    assert chain.provider.gone()
    return chain


def test_where_a_command_took_the_nonce_of_a_service_later_deeds_go_on(
    world: World, faulty: FaultyEndpoint, halved: Chain, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between signing and sending. Which transaction took it one of two cannot tell alone."""
    service = Sender(halved, key, begun(world, key), SendLimits(deadline=60))
    service.send(halved.deposit(key.address, TOKEN), name="deed/0")
    real, taken = pushing.push, list[int]()

    def push(*args: Any, **options: Any) -> pushing.Pushed:
        if not taken:
            taken.append(1)
            Sender(world.chain, key).send(world.chain.deposit(key.address, 2 * TOKEN))
        return real(*args, **options)

    monkeypatch.setattr("protocol.chain.sender.push", push)
    with pytest.raises(RpcUnavailable, match="its nonce seems to be used") as raised:
        service.send(halved.deposit(key.address, 3 * TOKEN), name="deed/1")
    assert faulty.url in str(raised.value.hint)
    service.send(halved.deposit(key.address, 4 * TOKEN), name="deed/2")
    assert deposits(world, key.address) == 3, "two of the service, and the command's"


def test_where_a_deed_seems_to_have_failed_nobody_waits_for_a_deadline(
    world: World, faulty: FaultyEndpoint, halved: Chain, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Sender(halved, key, begun(world, key), SendLimits(deadline=60))
    bad = halved.transfer_tokens(world.owner.key.address, 10**6 * TOKEN)
    with monkeypatch.context() as patch:
        patch.setattr(Drafts, "gas", lambda *_: 200_000)
        for _ in range(2):
            with pytest.raises(RpcUnavailable, match="it seems to have failed") as raised:
                service.send(bad, name="bad")
            assert faulty.url in str(raised.value.hint)
    service.send(halved.deposit(key.address, TOKEN), name="next")
    assert deposits(world, key.address) == 1


def test_what_a_single_endpoint_does_not_answer_is_no_count(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    asked: list[str] = []

    def fault(method: str, _: Any) -> bytes | None:
        if method != "eth_getTransactionCount":
            return None
        asked.append(method)
        if len(asked) > 1:
            raise Drop
        return None

    sender = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key)
    faulty.fault = fault
    with suppress(RpcUnavailable):
        assert sender.next_nonce() == world.chain.ethereum.transaction_count(key.address)
    assert asked


def test_one_that_fails_at_what_would_revert_alone_keeps_no_contracts_no_from_being_told(
    world: World, faulty: FaultyEndpoint, key: Key
) -> None:
    def fault(method: str, _: Any) -> bytes | None:
        if method == "eth_estimateGas":
            raise Refuse(500)
        return None

    faulty.fault = fault
    chain = Chain([world.anvil.rpc, faulty.url], world.chain.runs.address, timeout=20)
    with pytest.raises(InsufficientFunds, match="ERC20InsufficientBalance"):
        Sender(chain, key).send(chain.transfer_tokens(world.owner.key.address, 10**9 * TOKEN))


def test_what_nobody_can_tell_of_is_waited_for_once_where_its_nonce_is_used(
    world: World, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Sender(world.chain, key, begun(world, key), SendLimits(deadline=1))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Sender, "_finish", die)
        service.send(world.chain.deposit(key.address, TOKEN), name="deed/0")
    Sender(world.chain, key).send(world.chain.transfer_tokens(world.owner.key.address, 1))  # with its nonce
    monkeypatch.setattr("protocol.chain.finality.Finality.user", lambda *_: None)
    waited: list[str] = []
    finish = Sender._finish

    def counted(self: Sender, transaction: Transaction, **options: Any) -> Sent:
        waited.append(str(transaction.name))
        return finish(self, transaction, **options)

    monkeypatch.setattr(Sender, "_finish", counted)
    for number in (1, 2):
        service.send(world.chain.deposit(key.address, TOKEN), name=f"deed/{number}")
    assert deposits(world, key.address) == 2
    assert waited == ["deed/0", "deed/1", "deed/2"]
    with pytest.raises(DeadlineExceeded):
        service.send(world.chain.deposit(key.address, TOKEN), name="deed/0")


def test_one_that_hangs_is_silent_once_it_has_had_its_whole_time_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, given = VirtualClock(), list[float]()

    def post(_: object, url: str, body: Any, *, seconds: float, **__: object) -> Any:
        if url == "http://1":
            given.append(seconds)
            raise Failed("no answer", "timeout")
        return {"jsonrpc": "2.0", "id": 0, "result": "0x1"}, 0.0

    monkeypatch.setattr(RpcTransport, "post", post)
    endpoints = Endpoints(["http://0", "http://1"], timeout=10.0, clock=clock)

    def ask() -> None:
        endpoints.give_time(1)
        with suppress(RpcUnavailable):
            endpoints.ask_one(1, "eth_chainId", [])

    endpoints.ask_one(0, "eth_chainId", [])  # the two are compared then, and one hangs
    assert given == [10]
    ask()
    clock.sleep(12)
    ask()
    assert not endpoints.is_silent(1, 10), "it may just be slow"
    clock.sleep(9)
    ask()
    assert endpoints.is_silent(1, 10)
    assert given == [10, 2, 2, 10]


def test_who_says_when_to_come_back_is_gone_after_a_minute_though_it_answered_a_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()

    def post(_: object, url: str, body: Any, **__: object) -> Any:
        if not isinstance(body, list):
            return {"jsonrpc": "2.0", "id": 0, "result": "0x1"}, 0.0
        busy = {"id": 1, "error": {"code": -32005, "message": "limit"}}
        if url == "http://1":
            return [{"id": 0, "result": None}, busy], 600.0
        return [{"id": each["id"], "result": None} for each in body], 0.0

    monkeypatch.setattr(RpcTransport, "post", post)
    endpoints = Endpoints(["http://0", "http://1"], timeout=10.0, clock=clock)
    endpoints.ask_one(0, "eth_chainId", [])
    with endpoints.ahead(
        AskedAhead(1, clock), [("eth_getTransactionReceipt", ["0x1"]), ("eth_getBlockByNumber", ["0x1", False])]
    ):
        pass
    assert endpoints.gone() == []
    for _ in range(8):
        clock.sleep(10)
        with suppress(RpcUnavailable):
            endpoints.ask_one(1, "eth_chainId", [])
    assert endpoints.gone() == ["http://1"]


def test_what_one_of_two_does_not_confirm_is_waited_for_once(
    world: World, faulty: FaultyEndpoint, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is still indexing transactions."""
    for name, seconds in {"_RESEND_SECONDS": 0.3, "_ALONE_SECONDS": 7.0}.items():
        monkeypatch.setattr(f"protocol.chain.sender.{name}", seconds)
    journal = begun(world, key)
    indexing = error(-32000, "transaction indexing is in progress")
    faulty.fault = lambda method, _: indexing if method == "eth_getTransactionReceipt" else None
    chain = Chain([world.anvil.rpc, faulty.url], world.chain.runs.address, timeout=20)
    one = Sender(chain, key, journal, SendLimits(deadline=1))
    for number in range(3):
        with pytest.raises(RpcUnavailable, match="too few others show it"):
            one.send(chain.deposit(key.address, TOKEN), name=f"deed/{number}")
    patience: list[float | None] = []
    finish = Sender._finish

    def noted(self: Sender, transaction: Transaction, **options: Any) -> Sent:
        patience.append(options.get("patience"))
        return finish(self, transaction, **options)

    monkeypatch.setattr(Sender, "_finish", noted)
    with pytest.raises(RpcUnavailable):
        one.send(chain.deposit(key.address, TOKEN), name="deed/3")
    assert patience == [0.0, 0.0, 0.0, None]
    again = Sender(chain, key, journal, SendLimits(deadline=1))
    patience.clear()
    again.recover()
    assert patience == [7.0, 0.0, 0.0, 0.0], "of several only the first"
    faulty.fault = lambda *_: None
    again.recover()
    assert deposits(world, key.address) == 4
    assert not journal.pending()


def test_who_says_when_to_come_back_is_not_waited_for_to_confirm_what_landed(
    world: World, faulty: FaultyEndpoint, key: Key
) -> None:
    journal = begun(world, key)
    transaction = journal.named("first")
    assert transaction is not None
    clock = VirtualClock()
    chain = Chain([world.anvil.rpc, faulty.url], world.chain.runs.address, timeout=20, clock=clock)

    def limited(method: str, _: object) -> bytes | None:
        raise Refuse(429, Retry_After="2")

    faulty.fault = limited
    landing = Landing(chain, journal)
    assert landing.confirmed(transaction, anywhere=True) is None, "who is busy from the first is not behind"
    waited = list(clock.waits)
    assert landing.confirmed(transaction, anywhere=True) is None
    assert clock.waits == waited
    faulty.fault = lambda *_: None
    clock.advance(2)
    assert landing.confirmed(transaction, anywhere=True) is not None


def test_what_one_of_two_does_not_confirm_counts_as_done_for_whoever_asks_if_it_can_be_made(
    world: World, faulty: FaultyEndpoint, key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens are gone: else the user would be told to bring as many again."""
    monkeypatch.setattr("protocol.chain.sender._ALONE_SECONDS", 0.5)
    chain = Chain([world.anvil.rpc, faulty.url], world.chain.runs.address, timeout=20)
    call = chain.deposit(key.address, TOKEN)
    one = open_sender(chain, key, tmp_path / "key.json", SendLimits())
    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(Sender, "_close", die)
        one.send(call)
    one.close()
    indexing = error(-32000, "transaction indexing is in progress")
    faulty.fault = lambda method, _: indexing if method == "eth_getTransactionReceipt" else None
    two = open_sender(chain, key, tmp_path / "key.json", SendLimits())
    assert two.is_done(call)
    faulty.fault = lambda *_: None
    two.send(call)
    assert deposits(world, key.address) == 1


@pytest.mark.parametrize("how", ["in words", "busy", "HTTP 429"])
@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_one_that_is_busy_keeps_a_revert_of_the_other_from_being_told_as_all(
    world: World, faulty: FaultyEndpoint, key: Key, how: str, is_first: bool
) -> None:
    good = FaultyEndpoint(world.anvil.rpc)
    faulty.fault = lambda method, _: REVERTS if method == "eth_estimateGas" else None

    def limited(method: str, _: object) -> bytes | None:
        if method != "eth_estimateGas":
            return None
        if how == "HTTP 429":
            raise Refuse(429)
        return error(-32016 if how == "in words" else -32005, "over rate limit")

    good.fault = limited
    urls = [faulty.url, good.url] if is_first else [good.url, faulty.url]
    one = Sender(Chain(urls, world.chain.runs.address, timeout=20), key, begun(world, key))
    with pytest.raises(RpcUnavailable, match="and by another endpoint it would be refused"):
        one.send(one.chain.deposit(key.address, TOKEN))
    good.fault = lambda *_: None
    one.send(one.chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1
    good.close()


def test_one_that_was_busy_once_is_not_busy_for_ever(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key
) -> None:
    good = honest[0]
    chain = Chain([good.url, faulty.url], world.chain.runs.address, timeout=20)
    one = Sender(chain, key, begun(world, key))

    def busy(method: str, _: Any) -> bytes | None:
        raise Refuse(429)

    faulty.fault = busy
    with suppress(RpcUnavailable):
        chain.singles[1].block_number()
    faulty.fault = lambda method, _: result(None) if method == "eth_estimateGas" else None
    chain.singles[1].block_number()
    too_much = chain.deposit(key.address, 1001 * TOKEN)
    with pytest.raises((TransactionReverted, InsufficientFunds)):
        one.send(too_much)
