"""Without gas money a deed is told as not done. One that lands all the same is found, and done once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from swarm.faulty_endpoint import Drop, FaultyEndpoint, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.calls import Call
from protocol.chain.command import open_sender
from protocol.chain.drafts import Drafts
from protocol.chain.sender import SendLimits
from protocol.chain.transaction_log import DROPPED, FAILED, MINED, SETTLED, VOID, Attempt, TransactionLog
from protocol.errors import InsufficientFunds, RpcUnavailable
from protocol.identity import Key
from tests.chain.paying import begun, deposits, noted, sender
from tests.chain.test_told import forgetful
from tests.clock import eventually

POOR = error(-32003, "insufficient funds for gas * price + value")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.1)


class Keeping:
    """An endpoint that refuses what it is sent for want of gas money, keeps it, and publishes it when told to."""

    def __init__(self, world: World, endpoint: FaultyEndpoint) -> None:
        self.world = world
        self.kept: list[str] = []
        endpoint.fault = self._fault
        self.is_lying = True
        self.is_about_to_publish = False

    def _fault(self, method: str, params: list[str]) -> bytes | None:
        if method != "eth_sendRawTransaction":
            return None
        if self.is_lying:
            self.kept.append(params[0])
            return POOR
        if self.is_about_to_publish:
            self.publish()
        return None

    def publish(self) -> None:
        self.is_about_to_publish = False
        self.world.anvil.request("eth_sendRawTransaction", self.kept[0])


@pytest.fixture
def keeping(world: World, faulty: FaultyEndpoint) -> Keeping:
    return Keeping(world, faulty)


def refused(one: Sender, call: Call, name: str | None = None) -> None:
    with pytest.raises(InsufficientFunds, match="cannot pay the gas"):
        one.send(call, name=name)


# ---- before anything is signed -------------------------------------------------------------------------------------------


def test_without_gas_money_nothing_stays_behind(world: World) -> None:
    key = Key.generate()
    one = sender(world, key)
    world.anvil.give(key.address, 0)
    with pytest.raises(InsufficientFunds):
        one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    world.anvil.give(key.address, TOKEN)
    one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 1


def test_what_cannot_be_paid_for_is_not_even_signed(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key)
    call = one.chain.deposit(key.address, TOKEN)
    _, most = one.estimate(call)
    world.anvil.give(key.address, most - 1)
    refused(one, call)
    assert faulty.asked["eth_sendRawTransaction"] == 0
    assert one._journal.next_nonce() == 0, "nothing is written down"
    world.anvil.give(key.address, 2 * most)  # the base fee may have moved by a wei
    one.send(call)
    assert deposits(world, key.address) == 1


def test_value_that_goes_along_is_counted_too(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key)
    refused(one, one.chain.transfer_ether(world.owner.key.address, world.chain.balance(key.address)))
    assert faulty.asked["eth_sendRawTransaction"] == 0


def test_one_endpoint_that_shows_no_gas_money_stops_nobody(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    faulty.fault = lambda method, _: result("0x0") if method == "eth_getBalance" else None
    chain = Chain([faulty.url, world.anvil.rpc], world.chain.runs.address, timeout=20)
    Sender(chain, key).send(chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1


# ---- after it was signed -------------------------------------------------------------------------------------------------


def test_one_endpoint_that_refuses_for_want_of_gas_money_is_one_endpoint(
    world: World, keeping: Keeping, faulty: FaultyEndpoint, key: Key
) -> None:
    chain, journal = Chain([faulty.url, world.anvil.rpc], world.chain.runs.address, timeout=20), TransactionLog()
    Sender(chain, key, journal).send(chain.deposit(key.address, TOKEN), name="deposit/1")
    assert len(keeping.kept) == 1
    named = journal.named("deposit/1")
    assert named is not None
    assert named.state == MINED
    assert deposits(world, key.address) == 1


def test_while_one_refuses_and_the_other_says_nothing_it_may_still_land(
    world: World, keeping: Keeping, faulty: FaultyEndpoint, key: Key
) -> None:
    other, journal = FaultyEndpoint(world.anvil.rpc), TransactionLog()
    silent = [True]

    def fault(method: str, params: list[str]) -> None:
        if method == "eth_sendRawTransaction" and silent:
            silent.pop()
            raise Drop

    other.fault = fault
    chain = Chain([faulty.url, other.url], world.chain.runs.address, timeout=20)
    try:
        Sender(chain, key, journal).send(chain.deposit(key.address, TOKEN))
    finally:
        other.close()
    assert not silent
    assert deposits(world, key.address) == 1


@pytest.mark.parametrize("name", ["deposit/1", None])
@pytest.mark.parametrize("when", ["before it is repeated", "while it is repeated", "never"])
def test_what_was_refused_is_done_once_when_it_is_asked_for_again(
    world: World, keeping: Keeping, faulty: FaultyEndpoint, key: Key, name: str | None, when: str
) -> None:
    one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key)
    call = one.chain.deposit(key.address, TOKEN)
    refused(one, call, name)
    keeping.is_lying = False
    if when == "before it is repeated":
        keeping.publish()
    elif when == "while it is repeated":
        keeping.is_about_to_publish = True
        world.anvil.request("anvil_setNextBlockBaseFeePerGas", hex(10**8))  # so that other bytes are signed
        world.anvil.request("evm_mine")
    nonce = one._journal.dropped()[0].nonce
    one.send(call, name=name)
    assert deposits(world, key.address) == 1
    assert world.chain.ethereum.transaction_count(key.address) == nonce + 1
    one.send(one.chain.deposit(key.address, 2 * TOKEN), name=name and "deposit/2")
    assert deposits(world, key.address) == 2


@pytest.mark.parametrize("depth", [0, 12])
def test_what_has_landed_is_not_told_as_what_would_revert_now(
    world: World, keeping: Keeping, faulty: FaultyEndpoint, key: Key, depth: int
) -> None:
    """Where the endpoint has an old count, or no block is deep enough to say who used the nonce."""
    chain = Chain(faulty.url, world.chain.runs.address, timeout=20)
    one = Sender(chain, key, limits=SendLimits(depth=depth))
    call = chain.transfer_tokens(world.owner.key.address, world.chain.token_balance(key.address))
    refused(one, call)
    keeping.publish()
    count = result(hex(one._journal.dropped()[0].nonce))
    faulty.fault = lambda method, _: count if method == "eth_getTransactionCount" and not depth else None
    one.send(call)
    assert world.chain.token_balance(key.address) == 0


def test_a_deed_that_took_its_nonce_finds_it_and_goes_on_with_the_next(
    world: World, keeping: Keeping, faulty: FaultyEndpoint, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    journal = TransactionLog()
    one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key, journal)
    refused(one, one.chain.deposit(key.address, TOKEN), "deposit/1")
    (first,) = journal.dropped()
    keeping.is_lying, keeping.is_about_to_publish = False, True
    one.send(one.chain.deposit(key.address, 2 * TOKEN), name="deposit/2")
    assert journal.again(first).state == MINED
    assert "in the chain all the same" in caplog.text
    one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert world.chain.account(key.address).active == 3 * TOKEN
    assert deposits(world, key.address) == 2


def test_it_is_found_by_whatever_is_sent_next(
    world: World, keeping: Keeping, faulty: FaultyEndpoint, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    journal = TransactionLog()
    one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key, journal)
    refused(one, one.chain.deposit(key.address, TOKEN), "deposit/1")
    (first,) = journal.dropped()
    keeping.publish()
    keeping.is_lying = False
    one.send(one.chain.deposit(key.address, 2 * TOKEN), name="deposit/2")
    assert journal.again(first).state == MINED
    assert "in the chain all the same" in caplog.text
    one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 2


def test_it_gets_another_nonce_once_another_deed_has_its_own_for_good(
    world: World, keeping: Keeping, faulty: FaultyEndpoint, key: Key
) -> None:
    """The journal tells: an endpoint keeps the counts of some minutes alone."""
    world.anvil.request("anvil_mine", hex(20))
    journal = TransactionLog()
    one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key, journal, SendLimits(depth=12))
    refused(one, one.chain.deposit(key.address, TOKEN), "deposit/1")
    (first,) = journal.dropped()
    faulty.fault = lambda method, params: (
        error(-32000, "missing trie node") if "TransactionCount" in method and params[1] != "latest" else None
    )
    one.send(one.chain.deposit(key.address, 2 * TOKEN), name="deposit/2")
    with pytest.raises(RpcUnavailable, match="may still land"):  # where a reorg takes the other out
        one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert not journal.pending()
    world.anvil.request("anvil_mine", hex(12))
    one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert journal.again(first).state == VOID
    assert world.chain.account(key.address).active == 3 * TOKEN


def test_it_is_kept_as_long_as_it_may_land() -> None:
    journal = TransactionLog()
    begun = [noted(journal, str(n), n, Attempt(bytes([n]) * 32, b"", 1, 1, 0.0)) for n in range(3)]
    for transaction, state in zip(begun, (DROPPED, VOID, FAILED), strict=True):
        journal.finish(transaction, state)
    journal.prune(before=float("inf"))
    assert [journal.named(str(n)) is not None for n in range(3)] == [True, False, True]


class Killed(BaseException):
    pass


def die(*_: object, **__: object) -> None:
    raise Killed


KILLS: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "before it is noted as dropped": lambda patch: patch.setattr(TransactionLog, "finish", die),
    "before it is taken up": lambda patch: patch.setattr(TransactionLog, "renew", die),
    "before it is sent again": lambda patch: patch.setattr(Sender, "_push", die),
}


@pytest.mark.parametrize("kill", KILLS.values(), ids=KILLS)
def test_killed_at_any_point_it_lands_once(
    world: World, keeping: Keeping, faulty: FaultyEndpoint, key: Key, tmp_path: Path, kill: Callable[..., object]
) -> None:
    chain = Chain(faulty.url, world.chain.runs.address, timeout=20)
    call = chain.deposit(key.address, TOKEN)
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            journal = TransactionLog(tmp_path / "j.sqlite")
            kill(patch)
            with suppress(InsufficientFunds, Killed):
                Sender(chain, key, journal).send(call, name="deposit/1")
            journal.close()
        with suppress(InsufficientFunds, Killed):
            journal = TransactionLog(tmp_path / "j.sqlite")
            Sender(chain, key, journal).recover()
        journal.close()
    keeping.is_lying = False
    if keeping.kept:
        keeping.publish()
    last = Sender(chain, key, TransactionLog(tmp_path / "j.sqlite"))
    last.send(call, name="deposit/1")
    last.send(call, name="deposit/1")
    assert deposits(world, key.address) == 1


def test_a_command_that_is_repeated_finds_what_was_refused_and_has_landed(
    world: World, keeping: Keeping, faulty: FaultyEndpoint, key: Key, tmp_path: Path
) -> None:
    chain = Chain(faulty.url, world.chain.runs.address, timeout=20)
    call = chain.deposit(key.address, TOKEN)
    one = open_sender(chain, key, tmp_path / "key.json", SendLimits())
    refused(one, call)
    one.close()
    keeping.publish()
    again = open_sender(chain, key, tmp_path / "key.json", SendLimits())
    assert again.is_done(call)
    again.send(call)
    assert deposits(world, key.address) == 1


# ---- what waits behind it ------------------------------------------------------------------------------------------------


def test_an_empty_account_forgets_nothing_that_may_still_land(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    """The first endpoint took it and will pass it on some time; a second deed in its place could then land as well."""
    one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key)
    answers = iter([error(-32000, "already known"), POOR])
    taken: list[str] = []

    def fault(method: str, params: list[str]) -> bytes | None:
        if method != "eth_sendRawTransaction":
            return None
        taken.append(params[0])
        return next(answers, None)

    faulty.fault = fault
    with pytest.raises(InsufficientFunds):
        one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    world.anvil.request("eth_sendRawTransaction", taken[0])  # now it is passed on
    one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 1


def test_what_was_enlarged_and_cannot_be_paid_for_stops_no_other_deed(
    world: World, faulty: FaultyEndpoint, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = TransactionLog()
    one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key, journal, SendLimits(deadline=3))
    dear, cheap = one.chain.deposit(key.address, TOKEN), one.chain.transfer_tokens(world.owner.key.address, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Drafts, "gas", lambda *_: 20_000)
        patch.setattr(Sender, "_finish", die)
        with pytest.raises(Killed):
            one.send(dear, name="dear")
    world.anvil.give(key.address, one.estimate(cheap)[1] + 10**9)  # which does not pay for a deposit
    one.send(cheap, name="cheap")
    assert [each.name for each in journal.dropped()] == ["dear"]
    world.anvil.give(key.address, TOKEN)
    one.send(dear, name="dear")
    assert deposits(world, key.address) == 1
    assert {each.state for name in ("dear", "cheap") if (each := journal.named(name))} <= {MINED, SETTLED}


def test_nothing_is_given_up_that_something_already_waits_behind(
    world: World, faulty: FaultyEndpoint, key: Key
) -> None:
    journal = TransactionLog()
    one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key, journal)
    for number in range(2):
        one.send(one.chain.deposit(key.address, TOKEN), name=f"deposit/{number}")
    world.anvil.request("anvil_reorg", 2, [])
    faulty.fault = lambda method, _: POOR if method == "eth_sendRawTransaction" else None
    with pytest.raises(InsufficientFunds):
        one.recover()
    assert [each.name for each in journal.pending()] == ["deposit/0", "deposit/1"]
    faulty.fault = lambda *_: None
    one.recover()
    assert deposits(world, key.address) == 2


@pytest.mark.parametrize("is_named", [True, False])
def test_what_landed_so_long_ago_that_nobody_can_tell_is_told_once_and_not_repeated_unasked(
    world: World, faulty: FaultyEndpoint, key: Key, is_named: bool
) -> None:
    """States and receipts are pruned at the only endpoint."""
    world.anvil.request("anvil_mine", hex(200))
    keeping = Keeping(world, faulty)
    chain = Chain(faulty.url, world.chain.runs.address, timeout=20)
    one = Sender(chain, key, begun(world, key), SendLimits(deadline=8, depth=12))
    deed, name = chain.deposit(key.address, TOKEN), "deed" if is_named else None
    refused(one, deed, name)
    keeping.publish()
    eventually(lambda: deposits(world, key.address) == 1, what="the deposit in the chain")
    landed = int(world.anvil.request("eth_blockNumber"), 16)
    world.anvil.request("anvil_mine", hex(300))
    forget = forgetful(world)

    def pruned(method: str, params: list[str]) -> bytes | None:
        if method == "eth_getTransactionReceipt":
            found = world.anvil.request(method, *params)
            return result(None) if found and int(found["blockNumber"], 16) <= landed else None
        return forget(method, params)

    faulty.fault = pruned
    one.send(chain.transfer_tokens(world.owner.key.address, 1))  # another deed is not told of it
    with pytest.raises(RpcUnavailable, match="was used long ago"):
        one.send(deed, name=name)
    assert deposits(world, key.address) == 1
    one.send(deed, name=name)  # whoever was told so, and asks again, wants it
    assert deposits(world, key.address) == 2
