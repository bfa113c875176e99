"""What is signed above a nonce that nothing uses lands all the same: something fills the gap."""

from __future__ import annotations

from typing import Any

import pytest
from eth_utils import keccak
from swarm.faulty_endpoint import FaultyEndpoint, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.calls import Call
from protocol.chain.drafts import Drafts
from protocol.chain.sender import SendLimits
from protocol.chain.transaction_log import DROPPED, MINED, PENDING, VOID, TransactionLog
from protocol.errors import DeadlineExceeded, InsufficientFunds, MurmurationError
from protocol.identity import Key
from tests.chain.paying import begun, deposits

_SENDING, _RECEIPT, _BALANCE = "eth_sendRawTransaction", "eth_getTransactionReceipt", "eth_getBalance"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"_RESEND_SECONDS": 0.2, "_ALONE_SECONDS": 0.6}.items():
        monkeypatch.setattr(f"protocol.chain.sender.{name}", seconds)


def states(journal: TransactionLog, *names: str) -> list[tuple[int, str]]:
    """(nonce, state) of each."""
    found = [journal.named(name) for name in names]
    return [(each.nonce, each.state) for each in found if each is not None]


def ends(one: Sender, call: Call, name: str) -> bool:
    try:
        one.send(call, name=name)
    except MurmurationError:
        return False
    return True


def test_of_two_that_were_refused_for_want_of_gas_money_the_later_one_may_be_asked_for_first(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key
) -> None:
    """The liar, first of three, shows an invented receipt of the first deed while the second is refused."""
    chain = Chain([faulty.url, *(each.url for each in honest)], world.chain.runs.address, timeout=20)
    journal = begun(world, key)
    nonce = world.chain.ethereum.transaction_count(key.address)
    one = Sender(chain, key, journal, SendLimits(deadline=3))
    had = world.chain.balance(key.address)
    world.anvil.request("anvil_setBalance", key.address, "0x1")
    first: set[str] = set()
    shown = {"receipt": False}

    def lie(method: str, params: Any) -> bytes | None:
        if method == _BALANCE:
            return result(hex(had))
        if method == _SENDING:
            is_first = f"0x{keccak(hexstr=params[0]).hex()}" in first
            return error(-32000, "not now") if not first or is_first else error(-32003, "insufficient funds")
        if method == _RECEIPT and params[0] in first and shown["receipt"]:
            newest = world.anvil.request("eth_getBlockByNumber", "latest", False)
            said = {"transactionHash": params[0], "blockNumber": newest["number"], "blockHash": newest["hash"]}
            return result({**said, "gasUsed": "0x5208", "status": "0x1", "logs": [], "contractAddress": None})
        return None

    def send(name: str) -> bool:
        done = ends(one, chain.deposit(key.address, TOKEN), name)
        known = journal.named("earlier")
        first.update(f"0x{each.hash.hex()}" for each in (journal.attempts(known) if known else ()))
        return done

    faulty.fault = lie
    assert not send("earlier")
    shown["receipt"] = True
    assert not send("later")
    faulty.fault = lambda method, params: error(-32003, "insufficient funds") if method == _SENDING else None
    shown["receipt"] = False
    assert not send("later")
    assert states(journal, "earlier", "later") == [(nonce, DROPPED), (nonce + 1, DROPPED)]
    faulty.fault = lambda *_: None
    world.anvil.request("anvil_setBalance", key.address, hex(had))
    assert send("later")
    assert states(journal, "later") == [(nonce + 1, MINED)]
    for _ in range(3):
        done = [send("later"), send("earlier"), send("last")]
    assert all(done)
    assert deposits(world, key.address) == 3


def test_what_failed_and_a_reorg_took_back_leaves_no_gap(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    """An honest endpoint: while there is no gas money, a deed that failed is taken back, and a later one was refused."""
    chain, journal = Chain(faulty.url, world.chain.runs.address, timeout=20), begun(world, key)
    world.anvil.request("anvil_mine", "0xa")
    one = Sender(chain, key, journal, SendLimits(deadline=1.5, depth=3))
    fails = chain.deposit(key.address, 1001 * TOKEN)  # more than there is
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Drafts, "gas", lambda *_: 200_000)
        assert not ends(one, fails, "fails")
    faulty.fault = lambda method, _: error(-32003, "insufficient funds") if method == _SENDING else None
    later = chain.deposit(key.address, 2 * TOKEN)
    with pytest.raises(InsufficientFunds):
        one.send(later, name="later")
    world.anvil.request("anvil_reorg", 1, [])
    with pytest.raises(InsufficientFunds):
        one.send(later, name="later")
    faulty.fault = lambda *_: None
    for _ in range(3):
        world.anvil.request("anvil_mine", "0x5")
        done = [ends(one, later, "later"), ends(one, chain.deposit(key.address, 3 * TOKEN), "last")]
    assert all(done)
    assert deposits(world, key.address) == 2


def test_a_nonce_that_a_reorg_gave_back_for_good_is_filled(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    """A wallet with the same key had used it, and does not send again."""
    chain, journal = Chain(faulty.url, world.chain.runs.address, timeout=20), begun(world, key)
    one = Sender(chain, key, journal, SendLimits(deadline=1, depth=3))
    world.anvil.request("anvil_mine", "0x5")
    free = world.chain.ethereum.transaction_count(key.address)
    Sender(world.chain, key).send(world.chain.transfer_tokens(world.owner.key.address, 1))
    one.send(chain.deposit(key.address, TOKEN), name="deed/0")
    world.anvil.request("anvil_reorg", 2, [])
    world.anvil.request("anvil_mine", "0xa")
    world.anvil.request("evm_setAutomine", False)
    try:
        with pytest.raises(DeadlineExceeded, match=f"nothing used nonce {free} before it, which is being filled"):
            one.send(chain.deposit(key.address, TOKEN), name="deed/1")
    finally:
        world.anvil.request("evm_setAutomine", True)
    world.anvil.request("anvil_mine", "0x1")
    for number in (0, 1):
        one.send(chain.deposit(key.address, TOKEN), name=f"deed/{number}")
    assert deposits(world, key.address) == 2
    assert states(journal, f"gap/{free}") == [(free, VOID)], "its nonce is used, and nobody asks by what"


def test_a_filling_gives_way_to_what_used_the_nonce(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    chain, journal = Chain(faulty.url, world.chain.runs.address, timeout=20), begun(world, key)
    one = Sender(chain, key, journal, SendLimits(deadline=5))
    free = one.next_nonce()
    (filling,) = one._gaps.fill(free, free + 1)
    assert (filling.nonce, filling.state) == (free, PENDING)
    Sender(world.chain, key).send(world.chain.transfer_tokens(world.owner.key.address, 1))
    one.send(chain.deposit(key.address, TOKEN), name="deed")
    assert states(journal, f"gap/{free}", "deed") == [(free, VOID), (free + 1, MINED)]


def test_no_gap_is_filled_that_only_one_of_three_shows(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key
) -> None:
    chain = Chain([faulty.url, *(each.url for each in honest)], world.chain.runs.address, timeout=20)
    one = Sender(chain, key, begun(world, key), SendLimits(deadline=5))
    faulty.fault = lambda method, _: result("0x0") if method == "eth_getTransactionCount" else None
    assert one._fill_gaps(one.next_nonce()) == []
    for each in honest:
        each.fault = lambda method, _: error(-32000, "not now") if method == "eth_getTransactionCount" else None
    assert one._fill_gaps(10**6) == [], "nor where too few tell what is used"


def test_a_filling_that_got_lost_is_sent_again_while_a_later_deed_waits_for_it(
    world: World, faulty: FaultyEndpoint, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request of all is dropped."""
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.5)
    chain, journal = Chain(faulty.url, world.chain.runs.address, timeout=20), begun(world, key)
    one = Sender(chain, key, journal, SendLimits(deadline=10))
    faulty.fault = lambda method, _: error(-32003, "insufficient funds") if method == _SENDING else None
    with pytest.raises(InsufficientFunds):
        one.send(chain.deposit(key.address, TOKEN), name="earlier")
    earlier = journal.named("earlier")
    assert earlier is not None
    # the later one has the next nonce, as in test_of_two_that_were_refused...
    draft, attempt = one._draft(chain.deposit(key.address, 2 * TOKEN), "later", earlier.nonce + 1)
    later = journal.begin(draft, attempt)
    journal.finish(later, DROPPED)
    lost = [0]

    def once(method: str, params: Any) -> bytes | None:
        if method == _SENDING:
            lost[0] += 1
            return error(-32000, "not now") if lost[0] == 1 else None
        return None

    faulty.fault = once
    one.send(chain.deposit(key.address, 2 * TOKEN), name="later")
    assert deposits(world, key.address) == 1
