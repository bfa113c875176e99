"""How much gas a transaction gets, and what it may cost: estimates that cannot be true, and caps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from swarm.faulty_endpoint import FaultyEndpoint, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.drafts import Drafts
from protocol.chain.gas import intrinsic
from protocol.chain.sender import SendLimits
from protocol.chain.settings import ChainSettings
from protocol.chain.transaction_log import TransactionLog
from protocol.errors import FeeTooHigh, RpcUnavailable, TransactionReverted
from protocol.identity import Key
from protocol.shell.connection import Connection, is_fatal
from protocol.shell.peers import PeerSettings
from tests.chain.paying import deposits, sender


@contextmanager
def base_fee(world: World, wei: int) -> Iterator[None]:
    """A block whose gas costs this much; afterwards it is cheap again."""
    world.anvil.request("anvil_setNextBlockBaseFeePerGas", hex(wei))
    world.anvil.request("evm_mine")
    try:
        yield
    finally:
        world.anvil.request("anvil_setNextBlockBaseFeePerGas", hex(10**6))
        world.anvil.request("evm_mine")


def test_the_first_attempt_offers_no_more_than_the_cap(world: World) -> None:
    key = Key.generate()
    one = sender(world, key, limits=SendLimits(fee=3 * 10**9))
    with base_fee(world, 2 * 10**9):
        sent = one.send(one.chain.deposit(key.address, TOKEN))
    offered = world.anvil.request("eth_getTransactionByHash", "0x" + sent.hash.hex())["maxFeePerGas"]
    assert int(offered, 16) == 3 * 10**9, "twice the base fee is what it would like to offer"


def test_while_gas_is_dearer_than_the_cap_nothing_is_sent(world: World) -> None:
    key, journal = Key.generate(), TransactionLog()
    one = sender(world, key, journal=journal, limits=SendLimits(fee=10**9))
    before = world.chain.ethereum.transaction_count(key.address)
    with base_fee(world, 2 * 10**9):
        for attempt in (one.send, one.estimate):
            with pytest.raises(FeeTooHigh, match="gwei per gas now, and 1 is the most") as caught:
                attempt(one.chain.deposit(key.address, TOKEN))
            assert "chain.fee_max_gwei" in caught.value.hint
            assert not is_fatal(caught.value), "a role waits for it"
    assert not journal.pending()
    assert world.chain.ethereum.transaction_count(key.address) == before
    one.send(one.chain.deposit(key.address, TOKEN))


def test_a_call_that_needs_more_gas_than_the_cap_is_refused(world: World) -> None:
    one = sender(world, Key.generate(), limits=SendLimits(gas=21_000))
    with pytest.raises(TransactionReverted, match="cap of 21000") as caught:
        one.send(one.chain.deposit(one.key.address, TOKEN))
    assert "chain.gas_max" in caught.value.hint


def test_a_role_sends_within_its_settings(world: World) -> None:
    key = Key.generate()
    world.anvil.give(key.address, TOKEN)
    where = {"rpc": world.anvil.rpc, "contract": world.chain.runs.address, "chain_id": 31337, "run": world.run}
    for bound, refused in (({"gas_max": 21_000}, TransactionReverted), ({"fee_max_gwei": 1e-9}, FeeTooHigh)):
        settings = ChainSettings.model_validate(where | bound)
        role = Connection(settings.open(), settings, PeerSettings(), key, None)  # type: ignore[arg-type]
        with pytest.raises(refused):
            role.sender().send(world.chain.approve_tokens(world.chain.bonds.address, 1))


def test_a_gas_estimate_is_not_made_before_what_is_pending_has_landed(world: World, faulty: FaultyEndpoint) -> None:
    key = Key.generate()
    one = sender(world, key, faulty.url, limits=SendLimits(deadline=0.3))
    faulty.fault = lambda method, params: result(None) if "Receipt" in method else None
    with pytest.raises(RpcUnavailable):
        one.send(one.chain.deposit(key.address, TOKEN))
    asked: list[str] = []
    faulty.fault = lambda method, params: asked.append(method)
    one.send(one.chain.deposit(key.address, 2 * TOKEN))
    assert asked.index("eth_getTransactionReceipt") < asked.index("eth_estimateGas")


@pytest.mark.parametrize("said", ["0x0", "0x1", "0x-5", "0x520a"])
def test_a_gas_estimate_that_no_such_call_can_keep_to_is_asked_of_another_endpoint(
    world: World, faulty: FaultyEndpoint, said: str
) -> None:
    key, journal = Key.generate(), TransactionLog()
    sender(world, key)
    faulty.fault = lambda method, _: result(said) if method == "eth_estimateGas" else None
    chain = Chain([faulty.url, world.anvil.rpc], world.chain.runs.address, timeout=20)
    Sender(chain, key).send(chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1
    alone = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key, journal)
    with suppress(RpcUnavailable):  # no estimate, or too little gas for all that the call does
        alone.send(chain.deposit(key.address, TOKEN))
    assert not journal.pending(), "nothing waits behind it"


def test_on_a_chain_that_asks_less_the_least_is_signed_with(world: World, faulty: FaultyEndpoint) -> None:
    """One without EIP-7623, for instance: all endpoints estimate less than we think the least."""
    key = Key.generate()
    sender(world, key)
    faulty.fault = lambda method, _: result("0x5208") if method == "eth_estimateGas" else None
    one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key)
    call = one.chain.deposit(key.address, TOKEN)
    target, data, _ = one.encode(call)
    assert one.estimate(call)[0] == int(1.25 * intrinsic(target, data)) + call.room


CALLDATA = {"none": b"", "zeros": bytes(5_000), "words": b"\xaa" * 5_000, "both": bytes(3_000) + b"\x01" * 200}


@pytest.mark.parametrize("data", CALLDATA.values(), ids=CALLDATA)
def test_a_transaction_takes_no_less_gas_than_the_chain_says_before_anything_is_carried_out(
    world: World, data: bytes
) -> None:
    least = intrinsic(f"0x{'11' * 20}", data)
    fields = {"from": world.owner.key.address, "to": f"0x{'11' * 20}", "data": f"0x{data.hex()}"}
    assert least <= int(world.anvil.request("eth_estimateGas", fields), 16) < 1.03 * least
    code = b"\x00" + data
    fields = {"from": world.owner.key.address, "data": f"0x{code.hex()}"}
    assert (
        intrinsic(None, code) <= int(world.anvil.request("eth_estimateGas", fields), 16) < 1.03 * intrinsic(None, code)
    )


@pytest.mark.parametrize("would_revert", [False, True])
def test_what_was_signed_with_too_little_gas_is_signed_anew_with_the_same_nonce(
    world: World, monkeypatch: pytest.MonkeyPatch, would_revert: bool
) -> None:
    """One false estimate once stopped a key for good: nothing with a later nonce can land before it."""
    key, journal = Key.generate(), TransactionLog()
    one = sender(world, key, journal=journal, limits=SendLimits(deadline=5, depth=0))
    monkeypatch.setattr(Drafts, "gas", lambda *_: 20_000)
    monkeypatch.setattr(Sender, "_finish", lambda *_, **__: None)
    call = one.chain.enlist(world.run, True) if would_revert else one.chain.deposit(key.address, TOKEN)
    one.send(call, name="first")
    monkeypatch.undo()
    (stuck,) = journal.pending()
    sent = one.send(one.chain.deposit(key.address, TOKEN), name="second")
    assert not journal.pending()
    assert deposits(world, key.address) == (1 if would_revert else 2)
    assert int(world.anvil.request("eth_getTransactionByHash", f"0x{sent.hash.hex()}")["nonce"], 16) == stuck.nonce + 1


@pytest.mark.parametrize("other", ["none", "one that says too little"])
def test_an_estimate_above_the_cap_is_one_endpoints_word(world: World, faulty: FaultyEndpoint, other: str) -> None:
    key, journal = Key.generate(), TransactionLog()
    sender(world, key)
    faulty.fault = lambda method, _: result("0x1000000") if method == "eth_estimateGas" else None
    low = FaultyEndpoint(world.anvil.rpc)
    low.fault = lambda method, _: result("0x5208") if method == "eth_estimateGas" else None
    alone = Chain([faulty.url] + [low.url] * (other != "none"), world.chain.runs.address, timeout=20)
    with pytest.raises(TransactionReverted, match="more than the cap"):
        Sender(alone, key, journal).send(alone.deposit(key.address, TOKEN))
    low.close()
    assert journal.next_nonce() == 0
    chain = Chain([faulty.url, world.anvil.rpc], world.chain.runs.address, timeout=20)
    Sender(chain, key).send(chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1


def test_what_is_signed_anew_keeps_the_room_that_its_call_asked_for(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, room = Key.generate(), 777_777
    one = sender(world, key, journal=TransactionLog(tmp_path / "j.sqlite"))
    call = replace(one.chain.deposit(key.address, TOKEN), room=room)
    with monkeypatch.context() as patch:
        patch.setattr(Drafts, "gas", lambda *_: 20_000)
        patch.setattr(Sender, "_finish", lambda *_, **__: None)
        one.send(call, name="deposit/1")
    one.close()
    sent = Sender(world.chain, key, TransactionLog(tmp_path / "j.sqlite")).send(call, name="deposit/1")
    given = world.anvil.request("eth_getTransactionByHash", f"0x{sent.hash.hex()}")["gas"]
    assert int(given, 16) > room


def test_an_older_attempt_that_ran_out_of_its_gas_is_told_as_that(
    world: World, faulty: FaultyEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before the last, which has more."""
    key = Key.generate()
    one = sender(world, key, faulty.url, limits=SendLimits(deadline=10))
    call = one.chain.deposit(key.address, TOKEN)
    target, data, _ = one.encode(call)

    def mine_and_deny(method: str, params: list[str]) -> bytes | None:
        if method != "eth_sendRawTransaction":
            return None
        faulty.fault = lambda *_: None
        world.anvil.request("eth_sendRawTransaction", *params)
        return error(-32000, "intrinsic gas too low")

    monkeypatch.setattr(Drafts, "gas", lambda *_: intrinsic(target, data) + 2_000)
    faulty.fault = mine_and_deny
    with pytest.raises(RpcUnavailable, match="ran out of gas"):
        one.send(call)
