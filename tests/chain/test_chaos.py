"""Every deed of every role lands once and is told once, through reorgs, faulty endpoints and kills.

test_sender.py and test_endpoints.py take the parts one by one, on deposits; here whole deeds meet whole faults: Sender with a
journal in a file, Endpoints, Book and the contracts together.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from swarm.faulty_endpoint import Drop, FaultyEndpoint, Hang, error, result
from swarm.processes import free_port, wait_until
from swarm.world import DAY, TOKEN, World

from protocol.chain import Chain, Sender, events
from protocol.chain.calls import Call
from protocol.chain.events import Challenged, Claimed, Event, Published, Submitted
from protocol.chain.sender import SendLimits, Sent
from protocol.chain.sync import Book
from protocol.chain.transaction_log import TransactionLog
from protocol.chain.view import Submission
from protocol.errors import DeadlineExceeded, MurmurationError, RpcUnavailable, TransactionReverted
from protocol.identity import Key
from tests.chain.paying import begun

ROOT = Path(__file__).parent.parent.parent
DEPTH_MAX = 5
TIMEOUT = 4.0  # what hangs costs as much; an Anvil that shares two cores with four tests may need a second
LIMITS = SendLimits(deadline=20, stuck=60)


@dataclass(frozen=True)
class Deed:
    """One transaction, in a form that another process can be told."""

    key: Key
    contract: str
    function: str
    arguments: tuple[Any, ...]
    event: type
    """What the contracts say when it is done."""

    def call(self, chain: Chain) -> Call:
        return Call(self.function, getattr(chain, self.contract).functions[self.function](*self.arguments))


def publish(world: World) -> Deed:
    return Deed(world.trainer.key, "weights", "publish", (world.run, 0, b"\x0a" * 32), Published)


def submit(world: World) -> Deed:
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    beacon = world.publish(0)
    return Deed(node, "runs", "submit", (world.run, b"\x01" * 32, 0, 0, 10, beacon), Submitted)


def _disputed(world: World) -> tuple[Key, tuple[object, ...]]:
    """(a validator, a submission of somebody else)"""
    validator, node = Key.generate(), Key.generate()
    world.seat_validator(validator)
    world.seat_node(Key.generate(), node)
    world.publish(0)
    return validator, world.submit(node, 0, 0, b"\x01" * 32).as_tuple()


def challenge(world: World) -> Deed:
    validator, submission_id = _disputed(world)
    return Deed(validator, "court", "challenge", (world.run, [submission_id], b"\x0e" * 32), Challenged)


def accuse(world: World) -> Deed:
    validator, submission_id = _disputed(world)
    nobody = ("0x" + "0" * 40, 0, bytes(32), b"")
    return Deed(validator, "court", "accuse", (world.run, submission_id, 1, b"\x0e" * 32, nobody), Challenged)


def claim(world: World) -> Deed:
    operator, node = Key.generate(), Key.generate()
    world.seat_node(operator, node)
    world.publish(0)
    world.submit(node, 0, 0, b"\x01" * 32)
    world.anvil.advance(2 * DAY)
    return Deed(operator, "runs", "claim", (world.run, node.address), Claimed)


DEEDS: list[Callable[[World], Deed]] = [publish, submit, challenge, accuse, claim]
deeds = pytest.mark.parametrize(
    "deed",
    [pytest.param(deed, marks=() if deed in (submit, claim) else pytest.mark.long) for deed in DEEDS],
    ids=lambda deed: deed.__name__,
)


class Follower:
    """Somebody who believes what a book reports, and nothing else."""

    def __init__(self, world: World, chain: Chain | None = None) -> None:
        self._first = world.chain.block_number()
        self._world, self._run = world, world.run
        self._book = Book(chain or world.chain, world.run, first_block=self._first)
        self._cursor = 0
        self.believed: Counter[Event] = Counter()

    def poll(self) -> None:
        """Until one poll succeeds."""
        for _ in range(100):
            try:
                self._book.poll()
                break
            except RpcUnavailable:
                continue
        else:
            raise AssertionError("no poll succeeded")
        changes = self._book.changes_since(self._cursor)
        self.believed.subtract([*changes.gone_events, *map(self._event, changes.gone_submissions)])
        self.believed.update([*changes.events, *map(self._event, changes.submissions)])
        self._cursor = changes.cursor

    def require_truth(self) -> None:
        """What it believes is what the chain holds of the run: each event once, in its place."""
        held = [e for e in self._world.logs(self._first) if getattr(e.data, "run", None) == self._run]
        assert {event: times for event, times in self.believed.items() if times} == Counter(held)
        assert [self._event(s) for s in reversed(list(self._book.newest_submissions()))] == [
            event for event in held if isinstance(event.data, Submitted)
        ]

    def _event(self, s: Submission) -> Event:
        data = Submitted(self._run, s.ref.node, s.root, s.step, s.sequence, s.units)
        return Event(data, s.block, s.block_hash, s.log_index, s.transaction)


def times_done(world: World, deed: Deed) -> int:
    """How often the chain says that it was done."""
    return sum(isinstance(event.data, deed.event) for event in world.logs())


def rich(world: World) -> Key:
    """A key with gas, tokens, and an allowance for deposits."""
    key = Key.generate()
    world.anvil.give(key.address, TOKEN)
    world.owner.send(world.chain.transfer_tokens(key.address, 1000 * TOKEN))
    Sender(world.chain, key).send(world.chain.approve_tokens(world.chain.bonds.address, 1000 * TOKEN))
    return key


def insist(sender: Sender, deed: Deed, name: str) -> Sent:
    """As a process does that must get it done: again by the same name, until it is known to have landed."""
    for _ in range(200):
        try:
            return sender.send(deed.call(sender.chain), name=name)
        except (RpcUnavailable, DeadlineExceeded):
            continue
    raise AssertionError("given up")


# ---- reorgs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deed", "depth"),
    [
        pytest.param(deed, depth, marks=() if depth in (1, 5) or deed is submit else pytest.mark.long)
        for deed in DEEDS
        for depth in range(1, DEPTH_MAX + 1)
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_deed_that_a_reorg_took_back_is_done_again_once(
    world: World, tmp_path: Path, deed: Callable[[World], Deed], depth: int
) -> None:
    todo = deed(world)
    world.sender(todo.key)
    world.anvil.request("anvil_mine", hex(DEPTH_MAX))
    before = world.chain.ethereum.transaction_count(todo.key.address)
    one, follower = Sender(world.chain, todo.key, TransactionLog(tmp_path / "j.sqlite")), Follower(world)
    one.send(todo.call(world.chain), name="deed")
    world.anvil.request("anvil_mine", hex(depth - 1)) if depth > 1 else None
    follower.poll()
    follower.require_truth()
    world.anvil.request("anvil_reorg", depth, [])
    assert times_done(world, todo) == 0
    follower.poll()
    follower.require_truth()
    assert one.recover() == 1
    assert one.recover() == 0
    one.send(todo.call(world.chain), name="deed")
    assert times_done(world, todo) == 1
    assert world.chain.ethereum.transaction_count(todo.key.address) == before + 1
    follower.poll()
    follower.require_truth()


def test_work_on_weights_that_a_reorg_took_back_fails_and_costs_no_sequence(world: World, tmp_path: Path) -> None:
    """The beacon is another one afterwards: the old file would be junk, and the chain must not take it."""
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    follower = Follower(world)
    trainer = Sender(world.chain, world.trainer.key, TransactionLog(tmp_path / "trainer.sqlite"))
    worker = Sender(world.chain, node, TransactionLog(tmp_path / "node.sqlite"))
    trainer.send(world.chain.publish(world.run, 0, b"\x0a" * 32), name="publish/0")
    world.anvil.request("anvil_mine", hex(2))
    old = world.chain.beacon(world.run, 0)
    submission = Deed(node, "runs", "submit", (world.run, b"\x01" * 32, 0, 0, 10, old), Submitted)
    worker.send(submission.call(world.chain), name="submit/0/0")
    follower.poll()
    world.anvil.request("anvil_reorg", 4, [])
    trainer.recover()
    world.anvil.request("anvil_mine", hex(2))
    beacon = world.chain.beacon(world.run, 0)
    assert beacon not in (None, old)
    assert worker.recover() == 1
    with pytest.raises(TransactionReverted, match="WrongBeacon"):
        worker.send(submission.call(world.chain), name="submit/0/0")
    assert times_done(world, submission) == 0
    anew = Deed(node, "runs", "submit", (world.run, b"\x02" * 32, 0, 0, 10, beacon), Submitted)
    worker.send(anew.call(world.chain), name="submit/0/0")
    assert times_done(world, anew) == 1
    follower.poll()
    follower.require_truth()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))])
def test_many_deeds_through_many_reorgs_land_once_each(world: World, tmp_path: Path, seed: int) -> None:
    """Reorgs at random, some while a transaction is on its way, over deeds that nothing but the journal keeps from doubling."""
    chance, key = random.Random(seed), rich(world)
    world.anvil.request("anvil_mine", hex(2 * DEPTH_MAX))
    one, follower = Sender(world.chain, key, TransactionLog(tmp_path / "j.sqlite")), Follower(world)
    for number in range(12):
        one.send(world.chain.deposit(key.address, number + 1), name=f"deposit/{number}")
        if chance.random() < 0.5:
            follower.poll()
        if chance.random() < 0.5:
            world.anvil.request("anvil_reorg", chance.randint(1, DEPTH_MAX), [])
    one.recover()
    amounts = [
        event.data.amount
        for event in world.logs()
        if isinstance(event.data, events.Deposited) and event.data.account == key.address
    ]
    assert sorted(amounts) == list(range(1, 13))
    follower.poll()
    follower.require_truth()


# ---- faulty endpoints -----------------------------------------------------------------------------------------------


def hang(*_: object) -> bytes:
    raise Hang


def drop(*_: object) -> bytes:
    raise Drop


FAULTS: dict[str, Callable[..., bytes]] = {
    "hangs": hang,
    "hangs up": drop,
    "garbage": lambda *_: b"\xff{{",
    "null": lambda *_: result(None),
    "busy": lambda *_: error(-32005, "limit exceeded"),
    "internal error": lambda *_: error(-32603, "internal error"),
}


@deeds
def test_a_deed_gets_through_an_endpoint_with_every_fault(
    world: World, faulty: FaultyEndpoint, tmp_path: Path, deed: Callable[[World], Deed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request in three fails, before or after it was carried out; there is no other endpoint."""
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.5)
    todo = deed(world)
    world.sender(todo.key)
    chain = Chain(faulty.url, world.chain.runs.address, timeout=TIMEOUT)
    one, follower = Sender(chain, todo.key, TransactionLog(tmp_path / "j.sqlite"), LIMITS), Follower(world, chain)
    assert chain.chain_id and chain.court and chain.bonds  # read once, before the faults begin
    before = world.chain.ethereum.transaction_count(todo.key.address)
    chance, hangs = random.Random(todo.function), iter(range(3))

    def fault(method: str, params: Any) -> bytes | None:
        # receipts: see test_a_receipt_that_comes_late_doubles_nothing
        if chance.random() < 0.67 or method == "eth_getTransactionReceipt":
            return None
        if method == "eth_sendRawTransaction" and chance.random() < 0.5:
            world.anvil.request("eth_sendRawTransaction", *params)
        name = chance.choice(list(FAULTS))
        if name == "hangs" and next(hangs, None) is None:
            name = "hangs up"
        return FAULTS[name](method, params)

    faulty.fault = fault
    for _ in range(5):
        insist(one, todo, "deed")
    assert times_done(world, todo) == 1
    assert world.chain.ethereum.transaction_count(todo.key.address) == before + 1
    follower.poll()
    faulty.fault = lambda method, params: None
    follower.poll()
    follower.require_truth()


@deeds
def test_a_deed_needs_one_endpoint_that_works(
    world: World, tmp_path: Path, deed: Callable[[World], Deed], monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = deed(world)
    world.sender(todo.key)
    refusing = f"http://127.0.0.1:{free_port()}"
    hanging, garbling = FaultyEndpoint(world.anvil.rpc), FaultyEndpoint(world.anvil.rpc)
    hanging.fault, garbling.fault = hang, FAULTS["garbage"]
    try:
        rpc = [refusing, hanging.url, garbling.url, world.anvil.rpc]
        chain = Chain(rpc, world.chain.runs.address, timeout=TIMEOUT)
        journal = begun(world, todo.key, TransactionLog(tmp_path / "j.sqlite"))
        one, follower = Sender(chain, todo.key, journal, LIMITS), Follower(world, chain)
        monkeypatch.setattr("protocol.chain.endpoints.PATIENCE_SECONDS", 0)  # they have been silent for a minute
        one.send(todo.call(chain), name="deed")
        assert times_done(world, todo) == 1
        follower.poll()
        follower.require_truth()
    finally:
        hanging.close()
        garbling.close()


class Behind:
    """An endpoint as of some blocks ago: it knows no block, event, receipt or nonce of later."""

    def __init__(self, world: World, head: int) -> None:
        self._anvil, self.head = world.anvil, head

    def __call__(self, method: str, params: Any) -> bytes | None:
        if method == "eth_blockNumber":
            return result(hex(self.head))
        if method == "eth_getBlockByNumber":
            number = self.head if params[0] in ("latest", "pending") else int(params[0], 16)
            return self._pass(method, [hex(number), params[1]]) if number <= self.head else result(None)
        if method == "eth_getTransactionCount":
            return self._pass(method, [params[0], hex(self.head)])
        if method == "eth_getTransactionReceipt":
            found = self._anvil.request(method, *params)
            return result(None) if found and int(found["blockNumber"], 16) > self.head else None
        if method == "eth_getLogs":
            query = {**params[0], "toBlock": hex(min(self.head, int(params[0]["toBlock"], 16)))}
            return self._pass(method, [query])
        return None

    def _pass(self, method: str, params: list[Any]) -> bytes:
        return result(self._anvil.request(method, *params))


@deeds
def test_a_head_that_goes_back_and_returns_loses_and_doubles_nothing(
    world: World, faulty: FaultyEndpoint, tmp_path: Path, deed: Callable[[World], Deed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.1)
    todo = deed(world)
    world.sender(todo.key)
    world.anvil.request("anvil_mine", "0x1")
    chain = Chain(faulty.url, world.chain.runs.address, timeout=5)
    limits = SendLimits(deadline=0.5, stuck=60)
    one, follower = Sender(chain, todo.key, TransactionLog(tmp_path / "j.sqlite"), limits), Follower(world, chain)
    before = world.chain.ethereum.transaction_count(todo.key.address)
    sent = one.send(todo.call(chain), name="deed")
    follower.poll()
    faulty.fault = Behind(world, sent.block - 1)
    follower.poll()
    follower.require_truth()  # an endpoint that lags takes nothing back
    with pytest.raises(DeadlineExceeded):
        one.recover()
    faulty.fault = lambda method, params: None
    one.recover()
    assert one.send(todo.call(chain), name="deed") == sent
    assert times_done(world, todo) == 1
    assert world.chain.ethereum.transaction_count(todo.key.address) == before + 1
    follower.poll()
    follower.require_truth()


@pytest.mark.parametrize("fault", ["null", "hangs up"])
def test_a_receipt_that_comes_late_doubles_nothing(
    world: World, faulty: FaultyEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """The endpoint knows that the nonce is used up, but for a while not the receipt, or does not say."""
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.1)
    key = rich(world)
    one = Sender(Chain(faulty.url, world.chain.runs.address), key, TransactionLog(tmp_path / "j.sqlite"), LIMITS)
    late = iter(range(8))

    def withhold(method: str, params: Any) -> bytes | None:
        is_late = method == "eth_getTransactionReceipt" and next(late, None) is not None
        return FAULTS[fault](method, params) if is_late else None

    faulty.fault = withhold
    one.send(one.chain.deposit(key.address, TOKEN), name="deposit")
    assert world.chain.account(key.address).active == TOKEN


def test_a_receipt_that_got_lost_is_an_error_of_our_own(world: World, faulty: FaultyEndpoint, tmp_path: Path) -> None:
    key = rich(world)
    one = Sender(Chain(faulty.url, world.chain.runs.address), key, TransactionLog(tmp_path / "j.sqlite"), LIMITS)
    one.send(one.chain.deposit(key.address, TOKEN), name="deposit")
    faulty.fault = lambda method, _: result(None) if method == "eth_getTransactionReceipt" else None
    with pytest.raises(MurmurationError):
        one.send(one.chain.deposit(key.address, TOKEN), name="deposit")


def test_an_answer_of_the_wrong_kind_is_an_unavailable_endpoint(world: World, faulty: FaultyEndpoint) -> None:
    faulty.fault = lambda method, _: result([{}]) if method == "eth_getBlockByNumber" else None
    with pytest.raises(RpcUnavailable):
        Chain(faulty.url, world.chain.runs.address).block()


# ---- kills ----------------------------------------------------------------------------------------------------------

CHILD = """
import ast, sys
from pathlib import Path
from protocol.chain import Chain, Sender
from protocol.chain.calls import Call
from protocol.chain.transaction_log import TransactionLog
from protocol.identity import Key
rpc, runs, secret, journal, contract, function, arguments = sys.argv[1:]
chain = Chain(rpc, runs)
call = Call(function, getattr(chain, contract).functions[function](*ast.literal_eval(arguments)))
Sender(chain, Key.from_secret(secret), TransactionLog(Path(journal))).send(call, name="deed")
"""
MOMENTS = ["between sign and send", "between send and receipt"]


@pytest.mark.parametrize("moment", MOMENTS)
@deeds
def test_a_process_killed_half_way_and_started_again_does_its_deed_once(
    world: World, faulty: FaultyEndpoint, tmp_path: Path, deed: Callable[[World], Deed], moment: str
) -> None:
    """SIGKILL of a real process, by the endpoint it talks to."""
    todo = deed(world)
    world.sender(todo.key)
    follower = Follower(world)
    before = world.chain.ethereum.transaction_count(todo.key.address)
    secret = "0x" + todo.key.secret.hex()
    journal = tmp_path / "j.sqlite"
    arguments = [faulty.url, world.chain.runs.address, secret, str(journal), todo.contract, todo.function]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments, repr(todo.arguments)], cwd=ROOT, env={**os.environ}
    )

    def kill(method: str, params: Any) -> bytes | None:
        if method == "eth_sendRawTransaction":
            if moment == "between send and receipt":
                sent = world.anvil.request("eth_sendRawTransaction", *params)
                wait_until(
                    lambda: world.anvil.request("eth_getTransactionReceipt", sent), deadline=20, what="it is mined"
                )
            child.send_signal(signal.SIGKILL)
            raise Drop
        return None

    faulty.fault = kill
    assert child.wait(60) == -signal.SIGKILL
    assert times_done(world, todo) == (moment == "between send and receipt")
    again = Sender(world.chain, todo.key, TransactionLog(journal))
    sent = again.send(todo.call(world.chain), name="deed")
    assert isinstance(sent.event(todo.event), todo.event)
    assert times_done(world, todo) == 1
    assert world.chain.ethereum.transaction_count(todo.key.address) == before + 1
    follower.poll()
    follower.require_truth()
