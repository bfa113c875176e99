"""A deed without a name is done once until somebody is told that it was done; the same is another deed then."""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from swarm.faulty_endpoint import FaultyEndpoint, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender, transaction_log
from protocol.chain.command import CommandSender, open_sender
from protocol.chain.sender import SendLimits
from protocol.chain.transaction_log import TransactionLog
from protocol.chain.vouchers import Vouchers
from protocol.errors import InsufficientFunds, PreflightError, RpcUnavailable
from protocol.identity import Key
from tests.chain.paying import deposits

Opened = Callable[..., CommandSender]


class Killed(BaseException):
    pass


def die(*_: object, **__: object) -> None:
    raise Killed


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.1)


@pytest.fixture
def opened(world: World, faulty: FaultyEndpoint, key: Key, tmp_path: Path) -> Opened:
    """Begins a command, for a home."""
    chain = Chain(faulty.url, world.chain.runs.address, timeout=20)
    return lambda asker="home": open_sender(chain, key, tmp_path / "key.json", SendLimits(), asker)


def killed(one: Sender, place: str, amount: int = TOKEN) -> None:
    """A deposit of a command that is killed here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sender, place, die)
        with pytest.raises(Killed):
            one.send(one.chain.deposit(one.key.address, amount))
    one.close()


@pytest.mark.parametrize("place", ["_finish", "_result"])
def test_a_command_killed_again_and_again_does_it_once(world: World, opened: Opened, key: Key, place: str) -> None:
    """Before anything is sent, and when it has landed and the command has said nothing."""
    killed(opened(), place)
    for _ in range(2):  # killed before it asks for what the first one began
        two = opened()
        assert two.is_done(two.chain.deposit(key.address, TOKEN))
        two.close()
    three = opened()
    three.send(three.chain.deposit(key.address, TOKEN))
    three.close()  # killed before its output was read
    four = opened()
    four.send(four.chain.deposit(key.address, TOKEN))
    four.tell()
    four.close()
    assert deposits(world, key.address) == 1


def test_once_told_the_same_is_another_deed(world: World, opened: Opened, key: Key) -> None:
    for number in range(1, 4):
        one = opened()
        one.send(one.chain.deposit(key.address, TOKEN))
        one.tell()
        one.close()
        assert deposits(world, key.address) == number


def test_within_a_command_the_same_is_another_deed(world: World, opened: Opened, key: Key) -> None:
    one = opened()
    for _ in range(2):
        one.send(one.chain.deposit(key.address, TOKEN))
    one.close()
    assert deposits(world, key.address) == 2
    two = opened()
    for _ in range(3):  # of which the first command has done two
        two.send(two.chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 3


def test_an_equal_deed_for_another_home_is_another_deed(
    world: World, opened: Opened, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    killed(opened(), "_finish")
    other = opened("another home")
    assert "an earlier command was interrupted while depositing stake" in caplog.text
    assert not other.is_done(other.chain.deposit(key.address, TOKEN))
    other.send(other.chain.deposit(key.address, TOKEN))
    other.tell()
    other.close()
    assert deposits(world, key.address) == 2
    again = opened()
    again.send(again.chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 2


def test_after_a_day_the_same_is_another_deed(
    world: World, faulty: FaultyEndpoint, opened: Opened, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this machine's clock, which may have been set, and by the chain's: not what only lands now, however long ago it was signed."""

    def again(expected: int) -> None:
        one = opened()
        one.send(one.chain.deposit(key.address, TOKEN))
        one.tell()
        one.close()
        assert deposits(world, key.address) == expected

    for place, expected in (("_result", 1), ("_finish", 2)):
        with monkeypatch.context() as patch:
            patch.setattr("protocol.chain.transaction_log.time.time", lambda: 1.0)
            killed(opened(), place)
        again(expected)
    with monkeypatch.context() as patch:
        patch.setattr("protocol.chain.transaction_log.time.time", lambda: 1.0)
        killed(opened(), "_result")

    def a_day_later(method: str, params: list[str]) -> bytes | None:
        if method != "eth_getBlockByNumber" or params[0] != "latest":
            return None
        newest = world.anvil.request(method, *params)
        return result({**newest, "timestamp": hex(int(newest["timestamp"], 16) + 86_401)})

    faulty.fault = a_day_later
    again(4)


def test_a_command_that_ended_well_has_told_of_what_it_asked_for_alone(world: World, opened: Opened, key: Key) -> None:
    killed(opened(), "_result")
    other = opened()
    other.send(other.chain.transfer_tokens(world.owner.key.address, 1))
    other.tell()
    other.close()
    one = opened()
    assert one.is_done(one.chain.deposit(key.address, TOKEN))
    one.let_go("depositing stake")
    assert not one.is_done(one.chain.deposit(key.address, TOKEN))
    one.tell()
    one.close()
    again = opened()
    assert not again.is_done(again.chain.deposit(key.address, TOKEN))
    again.close()
    assert deposits(world, key.address) == 1


def test_a_state_that_was_set_back_is_set_again(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after it had landed; then the opposite, by a command that ended well."""

    def command() -> CommandSender:
        return open_sender(world.chain, world.owner.key, tmp_path / "key.json", SendLimits(), "home")

    first = command()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Sender, "_result", die)
        first.send(world.chain.pause(world.run, True))
    first.close()
    for on in (False, True):
        one = command()
        one.send(world.chain.pause(world.run, on))
        one.tell()
        one.close()
    assert world.chain.status(world.run).paused_from


@pytest.mark.parametrize("place", ["_result", "_finish"])
@pytest.mark.parametrize("other", ["home", "another home"])
def test_a_state_that_other_commands_have_set_back_is_not_told_as_set(
    world: World, tmp_path: Path, place: str, other: str
) -> None:
    """Pausing killed, resuming killed, or ended well for another configuration; then pausing again."""

    def command(asker: str) -> CommandSender:
        return open_sender(world.chain, world.owner.key, tmp_path / "key.json", SendLimits(), asker)

    def pause(asker: str, on: bool, *, is_killed: bool) -> None:
        one = command(asker)
        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            if is_killed:
                patch.setattr(Sender, place, die)
            one.send(world.chain.pause(world.run, on))
            one.tell()
        one.close()

    pause("home", True, is_killed=True)
    pause(other, False, is_killed=other == "home")
    pause("home", True, is_killed=False)
    try:
        assert world.chain.status(world.run).paused_from
    finally:
        world.owner.send(world.chain.pause(world.run, False))


def test_of_what_the_contract_refuses_a_second_time_the_earlier_deed_is_told(world: World, tmp_path: Path) -> None:
    def command() -> CommandSender:
        return open_sender(world.chain, world.owner.key, tmp_path / "key.json", SendLimits(), "home")

    world.seat_node(Key.generate(), node := Key.generate())
    ban, one = world.chain.ban(world.run, node.address), command()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Sender, "_result", die)
        one.send(ban)
    one.close()
    two = command()
    (landed,) = [each.hash for each in two._journal.untold()]
    assert two.send(ban).hash == landed
    two.close()


def test_a_block_that_one_endpoint_has_forgotten_stops_no_command(
    world: World, faulty: FaultyEndpoint, opened: Opened, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("protocol.chain.transaction_log.time.time", lambda: 1.0)
        killed(opened(), "_result")
    landed = hex(world.chain.block_number())
    is_asked = lambda method, params: method == "eth_getBlockByNumber" and params[0] == landed  # noqa: E731
    world.anvil.request("evm_mine")
    faulty.fault = lambda method, params: result(None) if is_asked(method, params) else None
    one = opened()
    assert one.is_done(one.chain.deposit(key.address, TOKEN))
    one.close()


def test_what_adds_up_is_known(world: World) -> None:
    """Else a command in between would tell of a payment, which is then made twice."""
    chain, who = world.chain, world.owner.key.address
    policy = chain.policy(world.run)
    adding = [
        chain.deposit(who, 1), chain.unbond(1), chain.rebond(1), chain.fund(world.run, 1), chain.reinforce(world.run, 1),
        chain.transfer_tokens(who, 1), chain.transfer_ether(who, 1), chain.create(policy, bytes(32)),
        Vouchers(chain, world.vouchers).fund(world.run, 1),
    ]  # fmt: skip
    assert all(call.adds for call in adding)
    setting = [
        chain.pause(world.run, True),
        chain.enlist(world.run, True),
        chain.leave(world.run, who),
        chain.withdraw(),
    ]
    assert not any(call.adds for call in setting)


def test_a_keystore_by_another_path_has_the_same_journal(
    world: World, opened: Opened, key: Key, tmp_path: Path
) -> None:
    killed(opened(), "_result")
    (tmp_path / "key.json").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/key.json").symlink_to(tmp_path / "key.json")
    one = open_sender(world.chain, key, tmp_path / "elsewhere/key.json", SendLimits(), "home")
    assert one.is_done(one.chain.deposit(key.address, TOKEN))
    one.close()


def test_a_deed_that_a_reorg_took_back_swallows_no_other(world: World, opened: Opened, key: Key) -> None:
    one = opened()
    one.send(one.chain.deposit(key.address, TOKEN))
    one.tell()
    one.close()
    world.anvil.request("anvil_reorg", 1, [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sender, "_push", die)  # another command, killed while it ends the first
        with pytest.raises(Killed):
            opened()
    two = opened()
    assert not two.is_done(two.chain.deposit(key.address, TOKEN))
    two.send(two.chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 2


@pytest.mark.parametrize("kind", ["command", "service"])
def test_what_was_refused_and_landed_unseen_is_not_done_again(
    world: World, opened: Opened, faulty: FaultyEndpoint, key: Key, tmp_path: Path, kind: str
) -> None:
    """Also where another deed came between, in whose time it was found."""
    kept: list[str] = []

    def fault(method: str, params: list[str]) -> bytes | None:
        if method != "eth_sendRawTransaction":
            return None
        kept.append(params[0])
        return error(-32003, "upfront cost exceeds account balance")  # as Besu says it

    def begin() -> Sender:
        if kind == "command":
            return opened()
        chain = Chain(faulty.url, world.chain.runs.address, timeout=20)
        return Sender(chain, key, TransactionLog(tmp_path / "service.sqlite"))

    faulty.fault = fault
    one = begin()
    with pytest.raises(InsufficientFunds):
        one.send(one.chain.deposit(key.address, TOKEN))
    one.close()
    world.anvil.request("eth_sendRawTransaction", kept[0])
    faulty.fault = lambda *_: None
    two = begin()
    two.send(two.chain.transfer_tokens(world.owner.key.address, 1))
    two.close()
    three = begin()
    three.send(three.chain.deposit(key.address, TOKEN))
    three.close()
    assert deposits(world, key.address) == 1


def test_a_named_deed_is_no_unnamed_one(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    one = Sender(Chain(faulty.url, world.chain.runs.address, timeout=20), key)
    faulty.fault = lambda method, _: error(-32003, "insufficient funds") if "sendRaw" in method else None
    with pytest.raises(InsufficientFunds):
        one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    faulty.fault = lambda *_: None
    one.send(one.chain.deposit(key.address, TOKEN))
    one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 2


def test_a_journal_of_before_knows_what_was_under_way(world: World, opened: Opened, key: Key, tmp_path: Path) -> None:
    one = opened()
    one.send(one.chain.deposit(key.address, 2 * TOKEN))
    killed(one, "_finish")
    (path,) = tmp_path.glob("transactions-*.sqlite")
    with sqlite3.connect(path) as journal:
        journal.execute("DROP INDEX transactions_untold")
        journal.execute("ALTER TABLE transactions DROP COLUMN told")
        journal.execute("UPDATE transactions SET asker = ''")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transaction_log, "_UNTOLD", "SELECT fails")  # killed on the way
        with pytest.raises(PreflightError):
            opened("")
    gc.collect()  # and its lock ends
    two = opened("")
    assert two.is_done(two.chain.deposit(key.address, TOKEN))
    assert not two.is_done(two.chain.deposit(key.address, 2 * TOKEN))


# ---- a nonce that was used long ago --------------------------------------------------------------------------------------


def forgetful(world: World) -> Callable[[str, list[str]], bytes | None]:
    """An endpoint that keeps the states of 128 blocks."""

    def fault(method: str, params: list[str]) -> bytes | None:
        if method == "eth_getTransactionCount" and params[1] != "latest":
            newest = int(world.anvil.request("eth_blockNumber"), 16)
            if int(params[1], 16) < newest - 128:
                return error(-32000, "missing trie node")
        return None

    return fault


@pytest.mark.parametrize("blocks", [100, 200])
def test_a_nonce_that_a_wallet_used_long_ago_stops_the_key_once(
    world: World, opened: Opened, faulty: FaultyEndpoint, key: Key, blocks: int
) -> None:
    """While its block is found another nonce is taken; later it is not known what became of the deed, and nobody repeats it unasked."""
    world.anvil.request("anvil_mine", hex(blocks))
    killed(opened(), "_finish")
    Sender(world.chain, key).send(world.chain.transfer_tokens(world.owner.key.address, 1))  # the same key in a wallet
    world.anvil.request("anvil_mine", hex(blocks))
    faulty.fault = forgetful(world)
    if blocks > 128:
        one = opened()
        with pytest.raises(RpcUnavailable, match=r"depositing stake: nonce \d+ was used long ago"):
            one.send(one.chain.deposit(key.address, TOKEN))
        one.close()
        assert deposits(world, key.address) == 0
    two = opened()
    two.send(two.chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1


def test_one_that_landed_long_ago_is_found_by_its_receipt(
    world: World, opened: Opened, faulty: FaultyEndpoint, key: Key
) -> None:
    one = opened()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionLog, "finish", die)
        with pytest.raises(Killed):
            one.send(one.chain.deposit(key.address, TOKEN))
    one.close()
    world.anvil.request("anvil_mine", hex(200))
    faulty.fault = forgetful(world)
    two = opened()
    two.send(two.chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1


def test_a_service_goes_on_beside_a_deed_of_which_nothing_is_known(
    world: World, faulty: FaultyEndpoint, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    world.anvil.request("anvil_mine", hex(200))
    chain, journal = Chain(faulty.url, world.chain.runs.address, timeout=20), TransactionLog()
    one = Sender(chain, key, journal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sender, "_finish", die)
        with pytest.raises(Killed):
            one.send(chain.deposit(key.address, TOKEN), name="deposit/1")
    Sender(world.chain, key).send(world.chain.transfer_tokens(world.owner.key.address, 1))
    world.anvil.request("anvil_mine", hex(200))
    faulty.fault = forgetful(world)
    one.send(chain.deposit(key.address, 2 * TOKEN), name="deposit/2")
    assert "was used long ago" in caplog.text
    assert deposits(world, key.address) == 1


def test_an_invented_receipt_of_what_is_noted_as_done_is_not_told(
    world: World, faulty: FaultyEndpoint, key: Key
) -> None:
    """Its events would be anything."""

    def fault(method: str, params: list[str]) -> bytes | None:
        if "Receipt" not in method:
            return None
        shown = world.anvil.request(method, *params)
        return result(shown and {**shown, "logs": []})

    other = world.anvil.rpc.replace("127.0.0.1", "localhost")
    chain = Chain([faulty.url, world.anvil.rpc, other], world.chain.runs.address, timeout=20)
    one = Sender(chain, key)
    done = one.send(chain.deposit(key.address, TOKEN), name="deposit/1")
    faulty.fault = fault
    assert one.send(chain.deposit(key.address, TOKEN), name="deposit/1").events == done.events
