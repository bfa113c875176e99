"""What nobody can tell of any more, for states and receipts are pruned: whoever asks for it is told so before it is done again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from swarm.faulty_endpoint import FaultyEndpoint, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.calls import Call
from protocol.chain.command import open_sender
from protocol.chain.sender import SendLimits
from protocol.chain.transaction_log import Transaction, TransactionLog
from protocol.errors import InsufficientFunds, MurmurationError, RpcUnavailable
from protocol.identity import Key
from tests.chain.paying import begun, deposits
from tests.chain.test_told import Killed, die, forgetful

LIMITS = SendLimits(deadline=8, depth=12)


@pytest.fixture
def chain(world: World, faulty: FaultyEndpoint) -> Chain:
    world.anvil.request("anvil_mine", hex(200))
    return Chain(faulty.url, world.chain.runs.address, timeout=20)


def landed_unseen(world: World, faulty: FaultyEndpoint, send: Callable[[], object]) -> None:
    """The process dies when its deed has landed, and the endpoint forgets all about it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sender, "_close", die)
        with suppress(Killed):
            send()
    landed = int(world.anvil.request("eth_blockNumber"), 16)
    world.anvil.request("anvil_mine", hex(300))
    forget = forgetful(world)

    def pruned(method: str, params: list[str]) -> bytes | None:
        if method == "eth_getTransactionReceipt":
            found = world.anvil.request(method, *params)
            return result(None) if found and int(found["blockNumber"], 16) <= landed else None
        return forget(method, params)

    faulty.fault = pruned


def is_told(one: Sender, deed: Call, name: str | None = None) -> None:
    with pytest.raises(RpcUnavailable, match="was used long ago"):
        one.send(deed, name=name)


@pytest.mark.parametrize("is_asked", [True, False])
def test_who_is_killed_while_it_is_given_up_is_told_in_the_next_life(
    world: World, faulty: FaultyEndpoint, chain: Chain, key: Key, tmp_path: Path, is_asked: bool
) -> None:
    path, deed = tmp_path / "journal.sqlite", chain.deposit(key.address, TOKEN)
    journal = begun(world, key, TransactionLog(path))
    landed_unseen(world, faulty, lambda: Sender(chain, key, journal, LIMITS).send(deed, name="deed"))
    finish = TransactionLog.finish

    def and_dies(self: TransactionLog, transaction: Transaction, state: str) -> None:
        finish(self, transaction, state)
        if transaction.name == "deed":
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(TransactionLog, "finish", and_dies)
        one = Sender(chain, key, journal, LIMITS)
        if is_asked:
            one.send(deed, name="deed")
        else:
            one.send(chain.transfer_tokens(world.owner.key.address, 1))
    journal.close()
    is_told(Sender(chain, key, TransactionLog(path), LIMITS), deed, "deed")
    assert deposits(world, key.address) == 1


def test_a_command_for_another_home_goes_on_and_tells_nobody_of_it(
    world: World, faulty: FaultyEndpoint, chain: Chain, key: Key, tmp_path: Path
) -> None:
    keystore, deed = tmp_path / "key.json", chain.deposit(key.address, TOKEN)
    one = open_sender(chain, key, keystore, LIMITS, "home a")
    landed_unseen(world, faulty, lambda: one.send(deed))
    one.close()
    other = open_sender(chain, key, keystore, LIMITS, "home b")
    other.send(chain.transfer_tokens(world.owner.key.address, 1))
    other.tell()
    other.close()
    again = open_sender(chain, key, keystore, LIMITS, "home a")
    is_told(again, deed)
    assert deposits(world, key.address) == 1
    again.send(deed)
    again.close()
    assert deposits(world, key.address) == 2


def test_what_a_filling_of_ours_displaced_is_none_of_these(
    world: World, faulty: FaultyEndpoint, chain: Chain, key: Key
) -> None:
    """The endpoint keeps receipts, of which it is asked for the filling's as well."""
    journal = begun(world, key)
    one = Sender(chain, key, journal, LIMITS)
    poor = error(-32003, "insufficient funds")
    faulty.fault = lambda method, _: poor if method == "eth_sendRawTransaction" else None
    with pytest.raises(InsufficientFunds):
        one.send(chain.deposit(key.address, TOKEN), name="deed")
    faulty.fault = lambda *_: None
    deed = journal.named("deed")
    assert deed is not None
    assert [each.nonce for each in one._fill_gaps(deed.nonce + 1)] == [deed.nonce]
    world.anvil.request("anvil_mine", hex(300))
    faulty.fault = forgetful(world)
    one.send(chain.deposit(key.address, TOKEN), name="deed")
    assert deposits(world, key.address) == 1


def test_what_a_filling_displaced_is_told_though_one_of_three_is_away(
    world: World, faulty: FaultyEndpoint, honest: list[FaultyEndpoint], key: Key
) -> None:
    """Of the two others one keeps everything, and one, as a full node of reth, neither states nor receipts of so long ago."""
    world.anvil.request("anvil_mine", hex(200))
    chain = Chain([faulty.url, *(each.url for each in honest)], world.chain.runs.address, timeout=20)
    journal = begun(world, key)
    one = Sender(chain, key, journal, SendLimits(deadline=8, depth=12))
    for each in (faulty, *honest):
        each.fault = lambda method, _: (
            error(-32003, "insufficient funds") if method == "eth_sendRawTransaction" else None
        )
    with pytest.raises(InsufficientFunds):
        one.send(chain.deposit(key.address, TOKEN), name="deed")
    for each in (faulty, *honest):
        each.fault = lambda *_: None
    deed = journal.named("deed")
    assert deed is not None
    assert one._fill_gaps(deed.nonce + 1)
    landed = int(world.anvil.request("eth_blockNumber"), 16)
    world.anvil.request("anvil_mine", hex(300))
    forget = forgetful(world)

    def pruned(method: str, params: Any) -> bytes | None:
        if method == "eth_getTransactionReceipt":
            found = world.anvil.request(method, *params)
            return result(None) if found and int(found["blockNumber"], 16) <= landed else None
        return forget(method, params)

    honest[1].fault = pruned
    faulty.close()  # for good
    said = []
    for _ in range(4):
        try:
            one.send(chain.deposit(key.address, TOKEN), name="deed")
        except MurmurationError as problem:
            said.append(str(problem))
    assert deposits(world, key.address) == 1, said


def test_a_deed_whose_nonce_an_earlier_one_of_ours_used_is_not_told_as_unknown(
    world: World, faulty: FaultyEndpoint, key: Key
) -> None:
    """The endpoint keeps receipts; it is not asked for that of the earlier one."""
    world.anvil.request("anvil_mine", hex(200))
    chain, journal = Chain(faulty.url, world.chain.runs.address, timeout=20), begun(world, key)
    limits = SendLimits(deadline=8, depth=12)
    kept: list[str] = []

    def poor(method: str, params: Any) -> bytes | None:
        if method != "eth_sendRawTransaction":
            return None
        kept.append(params[0])
        return error(-32003, "insufficient funds")

    one = Sender(chain, key, journal, limits)
    faulty.fault = poor
    with pytest.raises(InsufficientFunds):
        one.send(chain.transfer_tokens(world.owner.key.address, 1), name="earlier")
    faulty.fault = lambda *_: None
    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(Sender, "_finish", die)
        one.send(chain.deposit(key.address, TOKEN), name="deed")
    world.anvil.request("eth_sendRawTransaction", kept[0])  # it had kept it
    world.anvil.request("anvil_mine", hex(300))
    faulty.fault = forgetful(world)
    two = Sender(chain, key, journal, limits)
    two.send(chain.deposit(key.address, TOKEN), name="deed")
    assert deposits(world, key.address) == 1
