"""What decides is a block that is deep enough, in one chain, as most endpoints show it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from protocol.chain import Chain, networks
from protocol.chain.finality import Finality
from protocol.chain.transport import Failed, RpcTransport
from tests.chain.ledger import CHAIN_ID, Deed, Ledger, Mined
from tests.clock import VirtualClock

ACCOUNT = "0x" + "a" * 40
DEPTH = 3
DEED = Deed("deed", 0, 1, f"0x{7:064x}")
HASH = bytes.fromhex(DEED.hash[2:])


def ledger(*, good: bool = True) -> Ledger:
    """Its deed is in block 1."""
    chain = Ledger(ACCOUNT, random.Random(0), DEPTH, failing=not good)
    chain.waiting[DEED.hash] = DEED
    while not chain.now[-1].transactions:
        chain.states[-1:] = [chain.now[:1]]
        chain.mine()
    return chain


def serve(monkeypatch: pytest.MonkeyPatch, *machines: Any) -> Finality:
    """Of endpoints, each a function (method, params) → answer."""

    def post(_: object, url: str, body: Any, **__: object) -> Any:
        machine = machines[int(url.removeprefix("http://"))]
        asked = body if isinstance(body, list) else [body]
        answers = [{"id": each["id"], **machine(each["method"], each["params"])} for each in asked]
        return (answers if isinstance(body, list) else answers[0]), 0.0

    monkeypatch.setattr(RpcTransport, "post", post)
    urls = [f"http://{number}" for number in range(len(machines))]
    return Finality(Chain(urls, None, clock=VirtualClock()), ACCOUNT, DEPTH)


def honest(chain: Ledger) -> Any:
    return lambda method, params: chain.answer(chain.now, method, params)


def test_development_chains_are_believed_at_once_and_others_at_depth() -> None:
    assert networks.depth(CHAIN_ID) == 0
    assert {networks.depth(chain) for chain in (8_453, 84_532, 1)} == {12}


@pytest.mark.parametrize("good", [True, False])
def test_an_outcome_is_believed_once_its_block_is_deep_enough(monkeypatch: pytest.MonkeyPatch, good: bool) -> None:
    chain = ledger(good=good)
    finality = serve(monkeypatch, honest(chain))
    for _ in range(DEPTH):
        assert finality.outcome(HASH, 1) is None
        assert finality.user(0, ()) is None
        chain.mine()
    assert finality.outcome(HASH, 1) == (good, 1)
    assert finality.user(0, ()) == HASH
    assert finality.user(1, ()) is None


def test_a_receipt_of_another_block_of_the_same_number_is_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed in a fork that is gone, and succeeded in the block that took the place of that one."""
    old, new = ledger(good=False), ledger(good=True)
    first = new.now[1]
    block = Mined(1, f"0x{99:064x}", first.parent, first.transactions, 1)
    new.states.append((new.now[0], block))
    new._found[DEED.hash] = [(block, True)]
    for _ in range(DEPTH):
        new.mine()

    def forgetful(method: str, params: Any) -> Any:
        return honest(old if method == "eth_getTransactionReceipt" else new)(method, params)

    assert serve(monkeypatch, forgetful).outcome(HASH, 1) is None
    assert serve(monkeypatch, honest(new)).outcome(HASH, 1) == (True, 1)


@pytest.mark.parametrize("last", range(1, DEPTH + 1))
def test_blocks_of_two_forks_are_no_depth(monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """The transaction is in a short fork, which ends at block `last`; the long one does not have it."""
    short, long = ledger(), Ledger(ACCOUNT, random.Random(1), DEPTH)
    long._forks = 500
    for _ in range(DEPTH + 2):
        short.mine()
        long.mine()

    def forgetful(method: str, params: Any) -> Any:
        is_short = method == "eth_getTransactionReceipt" or (params[0] != "latest" and int(params[0], 16) <= last)
        return honest(short if is_short else long)(method, params)

    assert serve(monkeypatch, forgetful).outcome(HASH, 1) is None


def test_of_several_endpoints_more_than_half_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad, behind = ledger(good=True), ledger(good=False), ledger()
    for chain in (good, bad):
        for _ in range(DEPTH):
            chain.mine()

    def silent(*_: Any) -> Any:
        raise Failed("no answer", "unreachable")

    for machines, expected in (
        ((good, good, bad), True),
        ((bad, good, good), True),
        ((good, bad), None),
        ((good, behind), None),
        ((good, behind, behind), None),
        ((bad, bad, behind), False),
    ):
        assert serve(monkeypatch, *map(honest, machines)).outcome(HASH, 1) == (
            None if expected is None else (expected, 1)
        )
    assert serve(monkeypatch, silent, honest(good), honest(good)).outcome(HASH, 1) == (True, 1)
    assert serve(monkeypatch, silent, honest(good)).outcome(HASH, 1) is None
