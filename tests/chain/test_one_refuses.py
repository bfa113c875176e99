"""What one endpoint refuses stops no transaction, nor does it make one dearer: the next is asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from eth_utils import keccak
from swarm.faulty_endpoint import FaultyEndpoint, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.gas import TIP
from protocol.chain.sender import SendLimits
from protocol.chain.transaction_log import TransactionLog
from protocol.errors import DeadlineExceeded, InsufficientFunds, TransactionReverted
from protocol.identity import Key
from tests.chain.paying import deposits, sender

REVERTS = b'{"jsonrpc":"2.0","id":1,"error":{"code":3,"message":"execution reverted","data":"0x%s"}}' % (
    keccak(text="TooLate()")[:4].hex().encode()
)


@pytest.fixture
def key(world: World) -> Key:
    key = Key.generate()
    sender(world, key)
    return key


@pytest.fixture
def three(world: World, faulty: FaultyEndpoint) -> Iterator[Chain]:
    """The first of which is the faulty one."""
    others = [FaultyEndpoint(world.anvil.rpc) for _ in range(2)]
    yield Chain([faulty.url, *(each.url for each in others)], world.chain.runs.address, timeout=3)
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
    chain, journal = Chain(faulty.url, world.chain.runs.address, timeout=3), TransactionLog()
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
    chain = Chain([faulty.url, *(each.url for each in others)], world.chain.runs.address, timeout=3)
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
    chain = three if several else Chain(faulty.url, world.chain.runs.address, timeout=3)
    one = Sender(chain, key, limits=SendLimits(deadline=4))
    for number in range(3):
        one.send(chain.deposit(key.address, TOKEN), name=f"deposit/{number}")
    assert said
    assert deposits(world, key.address) == 3


def test_what_was_refused_costs_one_look_however_much_it_is(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    def asked(count: int) -> int:
        journal = TransactionLog()
        one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=3), key, journal, SendLimits(depth=12))
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
