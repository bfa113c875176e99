"""What a command had signed when it was killed, and whose nonce something else has used: it is done once, and never after what was asked for later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from swarm.faulty_endpoint import FaultyEndpoint, error
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.command import CommandSender, journal_path, open_sender
from protocol.chain.ethereum import nonce_of
from protocol.chain.events import Deposited
from protocol.chain.finality import Finality, Landed
from protocol.chain.sender import SendLimits
from protocol.chain.signer import Signer
from protocol.chain.transaction_log import Transaction, TransactionLog
from protocol.errors import MurmurationError
from protocol.identity import Key
from tests.chain.test_told import Killed, die

_LIMITS = SendLimits(depth=12, deadline=20)
_INDEXING = error(-32000, "transaction indexing is in progress")
_PRUNED = error(-32000, "historical state is not available")


@contextmanager
def blocks(world: World, seconds: float) -> Iterator[None]:
    """Come every so many seconds."""
    ended = threading.Event()

    def mine() -> None:
        while not ended.wait(seconds):
            world.anvil.request("evm_mine")

    thread = threading.Thread(target=mine, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.chain.sender._ALONE_SECONDS", 1.0)
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.3)


@pytest.fixture
def chain(world: World, faulty: FaultyEndpoint) -> Chain:
    world.anvil.request("anvil_mine", hex(40))
    return Chain(faulty.url, world.chain.runs.address, timeout=3)


@pytest.fixture
def command(world: World, chain: Chain, key: Key, tmp_path: Path) -> Iterator[Commands]:
    """Killed when it had signed a deposit of one token; a wallet used its nonce."""
    made = Commands(chain, key, tmp_path / "key.json")
    with pytest.MonkeyPatch.context() as patch, suppress(Killed), made.given() as one:
        patch.setattr(Sender, "_finish", die)
        one.send(chain.deposit(key.address, TOKEN))
    wallet(world, key)
    yield made


def wallet(world: World, key: Key) -> None:
    """Something else sends with the same key."""
    Sender(world.chain, key).send(world.chain.transfer_tokens(world.owner.key.address, 1))


class Commands:
    """Given one after the other, with one keystore."""

    def __init__(self, chain: Chain, key: Key, keystore: Path) -> None:
        self._chain, self._key, self._keystore = chain, key, keystore

    @contextmanager
    def given(self, home: str = "home") -> Iterator[CommandSender]:
        sender = open_sender(self._chain, self._key, self._keystore, _LIMITS, home)
        try:
            yield sender
        finally:
            sender.close()


def done(world: World, key: Key) -> list[int]:
    """Tokens of each deposit, in order."""
    return [
        e.data.amount // TOKEN for e in world.logs() if isinstance(e.data, Deposited) and e.data.account == key.address
    ]


def test_a_command_waits_until_it_is_sure_what_used_its_nonce(
    world: World, command: Commands, chain: Chain, key: Key
) -> None:
    with blocks(world, 0.25), command.given() as two:
        two.send(chain.deposit(key.address, TOKEN))
    assert done(world, key) == [1]


NOT_DONE = "it was not done, for something else used its nonce"


def test_it_is_not_done_for_whoever_asks_for_something_else(
    world: World, command: Commands, chain: Chain, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by the next command either, nor by one that finds nothing to do: the person may have meant the opposite."""
    world.anvil.request("anvil_mine", hex(20))
    with blocks(world, 0.25):
        with command.given() as two:
            assert f"depositing stake, which an earlier command had signed: {NOT_DONE}" in caplog.text
            two.send(chain.deposit(key.address, 2 * TOKEN))
            two.tell()
        caplog.clear()
        with command.given() as three:
            assert NOT_DONE not in caplog.text, "it was said, by a command that ended well"
            three.send(chain.deposit(key.address, 3 * TOKEN))
    assert done(world, key) == [2, 3]


def test_what_was_not_sure_in_time_is_not_done_later(
    world: World, command: Commands, chain: Chain, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    with command.given() as two:
        assert NOT_DONE not in caplog.text
        two.tell()  # after "nothing to do"
    world.anvil.request("anvil_mine", hex(20))
    with blocks(world, 0.25), command.given() as three:
        assert NOT_DONE in caplog.text
        three.send(chain.deposit(key.address, 3 * TOKEN))
    assert done(world, key) == [3]


def test_it_is_said_until_a_command_for_whom_it_was_has_ended_well(
    world: World, command: Commands, chain: Chain, key: Key, caplog: pytest.LogCaptureFixture
) -> None:
    world.anvil.request("anvil_mine", hex(20))
    with blocks(world, 0.25):
        for home in ("home", "another"):  # killed before its end; for another home
            with command.given(home) as sender:
                assert NOT_DONE in caplog.text
                assert ("stake for home, which" in caplog.text) == (home == "another")
                if home == "another":
                    sender.tell()
            caplog.clear()
        for is_said in (True, False):
            with command.given() as sender:
                assert (NOT_DONE in caplog.text) == is_said
                assert sender.unfinished() == []
                sender.tell()
            caplog.clear()


def test_an_equal_deed_of_before_is_none_that_was_done_in_its_place(
    world: World, chain: Chain, key: Key, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A command that pays twice was killed in the second payment."""
    commands, call = Commands(chain, key, tmp_path / "key.json"), chain.deposit(key.address, TOKEN)
    with pytest.MonkeyPatch.context() as patch, suppress(Killed), commands.given() as one:
        one.send(call)
        patch.setattr(Sender, "_finish", die)
        one.send(call)
    wallet(world, key)
    world.anvil.request("anvil_mine", hex(20))
    for _ in range(2):
        caplog.clear()
        with blocks(world, 0.25), commands.given():
            assert NOT_DONE in caplog.text


def test_whoever_asks_for_it_once_more_has_it_done_whatever_came_since(
    world: World, command: Commands, chain: Chain, key: Key
) -> None:
    with command.given() as two:
        two.send(chain.deposit(key.address, 2 * TOKEN))
        two.tell()
    world.anvil.request("anvil_mine", hex(20))
    with blocks(world, 0.25), command.given() as three:
        three.send(chain.deposit(key.address, TOKEN))
        three.tell()
    with command.given():
        pass
    assert done(world, key) == [2, 1]


def test_what_landed_with_another_nonce_is_not_signed_again_for_want_of_a_receipt(
    world: World, faulty: FaultyEndpoint, command: Commands, chain: Chain, key: Key
) -> None:
    world.anvil.request("anvil_mine", hex(20))
    call = chain.deposit(key.address, TOKEN)
    faulty.fault = lambda method, _: _INDEXING if method == "eth_getTransactionReceipt" else None
    with blocks(world, 0.25):
        for _ in range(2):
            with command.given() as sender, suppress(MurmurationError):
                sender.send(call)
        with command.given() as sender:
            assert sender.is_done(call), "else its user would be told to bring as many tokens again"
        faulty.fault = lambda *_: None
        with command.given() as sender:
            sender.send(call)
    assert done(world, key) == [1]


def test_where_nobody_tells_what_used_its_nonce_other_commands_go_on(
    world: World, faulty: FaultyEndpoint, command: Commands, chain: Chain, key: Key
) -> None:
    def pruned(method: str, params: list[str]) -> bytes | None:
        return _PRUNED if method == "eth_getTransactionCount" and params[1] != "latest" else None

    world.anvil.request("anvil_mine", hex(100))
    faulty.fault = pruned
    with blocks(world, 0.25):
        for tokens in (2, 3):
            with command.given() as sender:
                sender.send(chain.deposit(key.address, tokens * TOKEN))
    assert done(world, key) == [2, 3]


def test_one_that_takes_whatever_it_is_sent_keeps_no_other_command_from_going_on(
    world: World, honest: list[FaultyEndpoint], command: Commands, key: Key, tmp_path: Path
) -> None:
    known = error(-32000, "already known")
    honest[1].fault = lambda method, _: known if method == "eth_sendRawTransaction" else None
    world.anvil.request("anvil_mine", hex(20))
    both = Chain([each.url for each in honest], world.chain.runs.address, timeout=3)
    with blocks(world, 0.25), Commands(both, key, tmp_path / "key.json").given() as two:
        two.send(both.deposit(key.address, 2 * TOKEN))
    assert 2 in done(world, key)


def test_what_seems_to_have_failed_is_not_told_as_sent_already(
    world: World, faulty: FaultyEndpoint, chain: Chain, key: Key, tmp_path: Path
) -> None:
    """Its failure is not sure yet."""
    commands = Commands(chain, key, tmp_path / "key.json")
    call = chain.deposit(key.address, 2_000 * TOKEN)  # more than there are
    with pytest.MonkeyPatch.context() as patch, suppress(Killed), commands.given() as one:
        patch.setattr(Signer, "gas_of", lambda *_, **__: 500_000)
        patch.setattr(Sender, "_has_failed", die)
        one.send(call)
    with commands.given() as two:
        assert not two.is_done(call)


def test_what_set_a_state_and_was_told_is_not_done_again_after_what_came_later(
    world: World, chain: Chain, key: Key, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A reorg took both, and a wallet the first one's nonce."""
    commands, bonds = Commands(chain, key, tmp_path / "key.json"), chain.bonds.address
    for tokens in (5, 6):
        with commands.given() as sender:
            sender.send(chain.approve_tokens(bonds, tokens * TOKEN))
            sender.tell()
    world.anvil.request("anvil_reorg", 2, [])
    wallet(world, key)
    world.anvil.request("anvil_mine", hex(20))
    with blocks(world, 0.25), commands.given():
        assert "it is in the chain no more, for something else used its nonce" in caplog.text
    assert world.chain.allowance(key.address, bonds) == 6 * TOKEN


def test_what_set_a_state_before_another_did_is_set_again_for_whoever_asks_once_more(
    world: World, faulty: FaultyEndpoint, chain: Chain, key: Key, tmp_path: Path
) -> None:
    """No endpoint shows that it landed, until whoever asks waits for it."""
    commands, bonds = Commands(chain, key, tmp_path / "key.json"), chain.bonds.address
    hidden: set[str] = set()
    faulty.fault = lambda method, params: (
        _INDEXING if method == "eth_getTransactionReceipt" and params[0] in hidden else None
    )
    sent = Sender._push

    def push(sender: Sender, transaction: Transaction, **how: bool) -> Transaction:
        hidden.update(f"0x{each.hex()}" for each in sender._journal.hashes(transaction))
        sent(sender, transaction, **how)
        raise Killed

    with pytest.MonkeyPatch.context() as patch, suppress(Killed), commands.given() as sender:
        patch.setattr(Sender, "_push", push)
        sender.send(chain.approve_tokens(bonds, 5 * TOKEN))
    with blocks(world, 0.25):
        with commands.given() as sender:
            sender.send(chain.approve_tokens(bonds, 6 * TOKEN))
            sender.tell()
        with commands.given() as sender:
            threading.Timer(3, hidden.clear).start()
            sender.send(chain.approve_tokens(bonds, 5 * TOKEN))
            sender.tell()
    assert world.chain.allowance(key.address, bonds) == 5 * TOKEN


def test_what_was_told_and_failed_after_all_is_told_again(
    chain: Chain, key: Key, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reorg put it behind something else."""
    commands = Commands(chain, key, tmp_path / "key.json")
    with commands.given() as sender:
        sender.send(chain.deposit(key.address, TOKEN))
        sender.tell()
    monkeypatch.setattr(Finality, "is_young", lambda *_: False)
    monkeypatch.setattr(Finality, "outcome", lambda _, __, block: Landed(False, block))
    with commands.given():
        assert "depositing stake: a reorg took it to another block, and it has failed there" in caplog.text


def test_one_that_looks_at_the_money_before_the_nonce_stops_no_command(
    world: World, faulty: FaultyEndpoint, command: Commands, chain: Chain, key: Key
) -> None:
    """Some nodes do. The first could not be paid for any more, and its nonce is used."""
    poor = error(-32000, "insufficient funds for gas * price + value")
    used = world.chain.ethereum.transaction_count(key.address)

    def unpaid(method: str, params: list[str]) -> bytes | None:
        if method == "eth_sendRawTransaction" and nonce_of(bytes.fromhex(params[0][2:])) < used:
            return poor
        return None

    with command.given("another") as two:
        two.send(chain.deposit(key.address, 2 * TOKEN))
    faulty.fault = unpaid
    with command.given() as three:
        three.send(chain.deposit(key.address, 3 * TOKEN))
    assert done(world, key) == [2, 3]


def test_what_was_known_not_to_be_done_stays_so_when_states_are_gone(
    world: World, faulty: FaultyEndpoint, command: Commands, chain: Chain, key: Key
) -> None:
    world.anvil.request("anvil_mine", hex(20))
    with blocks(world, 0.25), command.given():
        pass
    world.anvil.request("anvil_mine", hex(200))
    faulty.fault = lambda method, params: (
        _PRUNED if method == "eth_getTransactionCount" and params[1] != "latest" else None
    )
    with blocks(world, 0.25), command.given() as three:
        three.send(chain.deposit(key.address, TOKEN))
    assert done(world, key) == [1]


def test_on_ctrl_c_what_was_signed_in_place_of_it_is_named(
    world: World, command: Commands, chain: Chain, key: Key
) -> None:
    world.anvil.request("anvil_mine", hex(20))
    with blocks(world, 0.25), command.given() as two, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sender, "_finish", die)
        with suppress(Killed):
            two.send(chain.deposit(key.address, TOKEN))
        assert two.unfinished() == ["depositing stake"]


def test_what_was_told_and_adds_is_done_again_after_a_reorg(
    world: World, chain: Chain, key: Key, tmp_path: Path
) -> None:
    """Leave and deposit, both lost, and a wallet took both nonces."""
    commands, bonds = Commands(chain, key, tmp_path / "key.json"), chain.bonds.address
    with commands.given() as sender:
        sender.send(chain.approve_tokens(bonds, 5 * TOKEN))
        sender.send(chain.deposit(key.address, 5 * TOKEN))
        sender.tell()
    world.anvil.request("anvil_reorg", 2, [])
    wallet(world, key)
    wallet(world, key)
    world.anvil.request("anvil_mine", hex(20))
    with blocks(world, 0.25), commands.given():
        pass
    assert done(world, key) == [5]
    assert world.chain.allowance(key.address, bonds) == 0, "it was given again, and used"


def test_what_landed_after_all_in_a_reorg_beyond_belief_is_not_done_again(
    world: World, command: Commands, chain: Chain, key: Key, tmp_path: Path
) -> None:
    world.anvil.request("anvil_mine", hex(20))
    with blocks(world, 0.25), command.given("another"):
        pass
    journal = TransactionLog(journal_path(chain, key, tmp_path / "key.json"))
    (raw,) = (attempt.raw for each in journal.displaced() for attempt in journal.attempts(each))
    journal.close()
    world.anvil.request("anvil_reorg", world.chain.block_number() - _before(world, key), [])
    world.anvil.request("eth_sendRawTransaction", f"0x{raw.hex()}")
    world.anvil.request("anvil_mine", hex(20))
    with blocks(world, 0.25), command.given() as two:
        two.send(chain.deposit(key.address, TOKEN))
    assert done(world, key) == [1]


def test_a_nonce_that_such_a_reorg_gave_back_stops_no_command(
    world: World, command: Commands, chain: Chain, key: Key
) -> None:
    world.anvil.request("anvil_mine", hex(20))
    with blocks(world, 0.25), command.given("another") as two:
        two.send(chain.deposit(key.address, 2 * TOKEN))
        two.tell()
    world.anvil.request("anvil_reorg", world.chain.block_number() - _before(world, key, 2), [])
    with blocks(world, 0.25):
        with command.given("another") as three, suppress(MurmurationError):
            three.send(chain.deposit(key.address, 3 * TOKEN))
        with command.given("another") as four:
            four.send(chain.deposit(key.address, 3 * TOKEN))
    assert done(world, key) == [2, 3]


def _before(world: World, key: Key, last: int = 1) -> int:
    """The newest block without so many of the key's last transactions."""
    number, used = world.chain.block_number(), world.chain.ethereum.transaction_count(key.address)
    while world.chain.ethereum.transaction_count(key.address, number) > used - last:
        number -= 1
    return number
