"""A sender with two endpoints, of which one does not answer: what failed on chain keeps nothing from being sent."""

from __future__ import annotations

import random
from typing import Any

import pytest

from protocol.chain import Chain, Sender
from protocol.chain.calls import Call
from protocol.chain.contract import Function
from protocol.chain.endpoints import Endpoints, OneEndpoint
from protocol.chain.sender import SendLimits
from protocol.chain.signer import Signer
from protocol.chain.transaction_log import TransactionLog
from protocol.errors import MurmurationError, RpcUnavailable
from tests.chain.ledger import Ledger
from tests.chain.test_once import KEY, TARGET, unsigned


@pytest.mark.parametrize("is_down", [False, True])
def test_what_failed_on_chain_keeps_nothing_from_being_sent(monkeypatch: pytest.MonkeyPatch, is_down: bool) -> None:
    """Whether it failed for good takes more than half of the endpoints to tell; that its nonce is used does not."""
    monkeypatch.setattr("protocol.chain.sender._POLL_SECONDS", 0.5)
    ledger = Ledger(KEY.address, random.Random(1), 3, failing=1.0)
    ledger.chance.random = lambda: 0.5  # type: ignore[method-assign]  # no other trouble by chance
    for _ in range(8):
        ledger.mine()
    ledger.clock.meanwhile, down = ledger.mine, list[int]()

    def answer(method: str, params: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": 0, **ledger.answer(ledger.now, method, params)}

    def of_one(one: OneEndpoint, method: str, params: Any) -> dict[str, Any]:
        if down and one._place == 1:
            raise RpcUnavailable("down")
        return answer(method, params)

    monkeypatch.setattr(Signer, "sign", unsigned)
    monkeypatch.setattr(OneEndpoint, "make_request", of_one)
    monkeypatch.setattr(Endpoints, "make_request", lambda _, method, params: answer(method, params))
    chain = Chain(["http://0", "http://1"], None, clock=ledger.clock)
    limits = SendLimits(deadline=120, stuck=30, depth=3)
    sender = Sender(chain, KEY, TransactionLog(), limits, clock=ledger.clock)

    def send(name: str) -> None:
        sender.send(Call(name, Function(chain.ethereum, TARGET, name.encode())), name=name)

    with pytest.raises(MurmurationError):
        send("deposit")
    down += [1] if is_down else []
    with pytest.raises(MurmurationError):
        send("impeach")
    ledger.failing = 0.0
    before = ledger.clock.monotonic()
    send("vote")
    assert ledger.clock.monotonic() - before < limits.deadline
