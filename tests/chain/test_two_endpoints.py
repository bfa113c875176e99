"""Two endpoints of which one lags or is gone, and nobody lies: what is sent is told, or why not, and nothing waits behind it for long."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest
from swarm.faulty_endpoint import Drop, FaultyEndpoint, Refuse, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender, pushing
from protocol.chain.sender import SendLimits
from protocol.errors import InsufficientFunds, RpcUnavailable
from protocol.identity import Key
from tests.chain.paying import begun, deposits

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
    chain = Chain([good.url, faulty.url], world.chain.runs.address, timeout=3)
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
    chain = Chain([world.anvil.rpc, faulty.url], world.chain.runs.address, timeout=3)
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
        patch.setattr(service, "_gas", lambda _: 200_000)
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

    sender = Sender(Chain(faulty.url, world.chain.runs.address, timeout=3), key)
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
    chain = Chain([world.anvil.rpc, faulty.url], world.chain.runs.address, timeout=3)
    with pytest.raises(InsufficientFunds, match="ERC20InsufficientBalance"):
        Sender(chain, key).send(chain.transfer_tokens(world.owner.key.address, 10**9 * TOKEN))
