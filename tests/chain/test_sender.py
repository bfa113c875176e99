"""Each transaction lands exactly once, whatever dies, hangs, lies or is reorganised in between."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from swarm.faulty_endpoint import Drop, FaultyEndpoint, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.sender import SendLimits
from protocol.chain.transaction_log import TransactionLog
from protocol.errors import (
    DeadlineExceeded,
    LockHeld,
    RpcUnavailable,
    TransactionReverted,
)
from protocol.identity import Key
from tests.chain.paying import QUICK, deposits, sender


def test_a_named_transaction_is_done_once_however_often_it_is_asked_for(world: World, tmp_path: Path) -> None:
    key = Key.generate()
    first = sender(world, key, journal=TransactionLog(tmp_path / "j.sqlite"))
    sent = first.send(first.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert first.send(first.chain.deposit(key.address, TOKEN), name="deposit/1") == sent
    first.close()
    later = Sender(world.chain, key, TransactionLog(tmp_path / "j.sqlite"))
    assert later.send(world.chain.deposit(key.address, TOKEN), name="deposit/1") == sent
    later.send(world.chain.deposit(key.address, TOKEN), name="deposit/2")
    assert deposits(world, key.address) == 2


def test_many_threads_lose_no_transaction(world: World) -> None:
    key = Key.generate()
    one = sender(world, key)
    threads = [threading.Thread(target=lambda: one.send(one.chain.deposit(key.address, TOKEN))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert deposits(world, key.address) == 20


def test_a_call_that_would_revert_is_never_sent(world: World) -> None:
    key = Key.generate()
    one = sender(world, key)
    before = world.chain.ethereum.transaction_count(key.address)
    with pytest.raises(TransactionReverted):
        one.send(one.chain.enlist(world.run, True))
    assert world.chain.ethereum.transaction_count(key.address) == before
    one.send(one.chain.deposit(key.address, TOKEN))


def test_only_one_process_may_send_for_a_key(tmp_path: Path) -> None:
    first = TransactionLog(tmp_path / "j.sqlite")
    with pytest.raises(LockHeld):
        TransactionLog(tmp_path / "j.sqlite")
    first.close()
    TransactionLog(tmp_path / "j.sqlite").close()


@pytest.mark.parametrize("answer", ["already known", "transaction already imported"])
def test_already_known_is_success(world: World, faulty: FaultyEndpoint, answer: str) -> None:
    key = Key.generate()
    one = sender(world, key, faulty.url)

    def fault(method: str, params: list[str]) -> bytes | None:
        if method == "eth_sendRawTransaction":
            world.anvil.request("eth_sendRawTransaction", *params)
            return error(-32000, answer)
        return None

    faulty.fault = fault
    one.send(one.chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1


def test_an_answer_lost_after_sending_doubles_nothing(world: World, faulty: FaultyEndpoint) -> None:
    key = Key.generate()
    one = sender(world, key, faulty.url, limits=QUICK)
    lost = []

    def fault(method: str, params: list[str]) -> bytes | None:
        if method == "eth_sendRawTransaction" and not lost:
            lost.append(world.anvil.request("eth_sendRawTransaction", *params))
            raise Drop
        return None

    faulty.fault = fault
    sent = one.send(one.chain.deposit(key.address, TOKEN))
    assert "0x" + sent.hash.hex() == lost[0]
    assert deposits(world, key.address) == 1


def test_a_swallowed_transaction_is_sent_again(
    world: World, faulty: FaultyEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.2)
    key = Key.generate()
    one = sender(world, key, faulty.url)
    swallowed: list[str] = []

    def fault(method: str, params: list[str]) -> bytes | None:
        if method == "eth_sendRawTransaction" and len(swallowed) < 2:
            swallowed.append(params[0])
            return error(-32000, "already known")
        return None

    faulty.fault = fault
    one.send(one.chain.deposit(key.address, TOKEN))
    assert swallowed[0] == swallowed[1]
    assert deposits(world, key.address) == 1


def test_a_stuck_transaction_is_replaced_at_a_higher_fee(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.2)
    key = Key.generate()
    journal = TransactionLog()
    one = sender(world, key, journal=journal, limits=QUICK)
    world.anvil.request("evm_setAutomine", False)
    done = threading.Thread(target=lambda: one.send(one.chain.deposit(key.address, TOKEN)))
    try:
        done.start()
        while not journal.pending() or len(journal.attempts(journal.pending()[0])) < 3:
            done.join(0.05)
        fees = [attempt.fee for attempt in journal.attempts(journal.pending()[0])]
        assert fees == sorted(fees)
        assert fees[1] >= 1.1 * fees[0]
    finally:
        world.anvil.request("evm_mine")
        done.join(20)
        world.anvil.request("evm_setAutomine", True)
    assert not done.is_alive()
    assert deposits(world, key.address) == 1


def test_a_nonce_that_something_else_took_is_replaced(world: World, faulty: FaultyEndpoint) -> None:
    key = Key.generate()
    one = sender(world, key, faulty.url, limits=QUICK)
    foreign = []

    def fault(method: str, params: list[str]) -> bytes | None:
        if method == "eth_sendRawTransaction" and not foreign:
            foreign.append(Sender(world.chain, key).send(world.chain.approve_tokens(world.chain.runs.address, 1)))
            world.anvil.request("anvil_mine", 13)
        return None

    faulty.fault = fault
    one.send(one.chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1


@pytest.mark.parametrize("first", ["the one that lies", "one that is busy for once"])
def test_no_endpoint_alone_has_a_deed_done_twice(
    world: World, faulty: FaultyEndpoint, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes the transaction on, calls the nonce used, counts high, and knows no receipt."""
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.1)
    key = Key.generate()
    sender(world, key)
    world.anvil.request("anvil_mine", 32)
    passed_on: list[str] = []
    refusals = iter([b"busy"])

    def lie(method: str, params: list[str]) -> bytes | None:
        if method == "eth_sendRawTransaction" and not passed_on:
            passed_on.append(world.anvil.request("eth_sendRawTransaction", *params))
            return error(-32000, "nonce too low")
        if method == "eth_getTransactionReceipt" and params[0] in passed_on:
            return result(None)
        if method == "eth_getTransactionCount" and params[1] != "latest" and passed_on:
            return result(hex(999))
        return None

    faulty.fault = lie
    with closing(FaultyEndpoint(world.anvil.rpc)) as honest:
        urls = [faulty.url, honest.url]
        if first != "the one that lies":
            urls.reverse()
            honest.fault = lambda method, _: next(refusals, None) if method == "eth_sendRawTransaction" else None
        one = Sender(Chain(urls, world.chain.runs.address, timeout=20), key, limits=QUICK)
        sent = one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert [f"0x{sent.hash.hex()}"] == passed_on, "the receipt that the other shows"
    assert deposits(world, key.address) == 1


def test_who_once_left_out_events_still_gets_the_transactions(world: World, faulty: FaultyEndpoint) -> None:
    """Else a sender is left alone with an endpoint that swallows them."""
    key = Key.generate()
    sender(world, key)
    lies = {"eth_sendRawTransaction": result(f"0x{'11' * 32}"), "eth_getTransactionReceipt": result(None)}
    faulty.fault = lambda method, _: lies.get(method)
    chain = Chain([world.anvil.rpc, faulty.url], world.chain.runs.address, timeout=20)
    chain.provider.pass_over(0, "it left out events", seconds=600)
    one = Sender(chain, key, limits=SendLimits(deadline=2))
    one.send(one.chain.deposit(key.address, TOKEN))
    assert deposits(world, key.address) == 1


def test_a_transaction_costs_no_more_where_every_endpoint_has_left_out_events(
    world: World, faulty: FaultyEndpoint
) -> None:
    key = Key.generate()
    sender(world, key)
    chain = Chain([faulty.url, world.anvil.rpc], world.chain.runs.address, timeout=20)
    one = Sender(chain, key, limits=SendLimits(depth=12))
    one.send(one.chain.deposit(key.address, TOKEN))
    costs = []
    for is_passed_over in (False, True):
        for place in range(2 * is_passed_over):
            chain.provider.pass_over(place, "it left out events", seconds=600)
        world.anvil.request("anvil_mine", hex(12))
        before = faulty.requests
        one.send(one.chain.deposit(key.address, TOKEN))
        costs.append(faulty.requests - before)
    assert costs[0] == costs[1]


def test_a_nonce_counts_as_taken_once_two_endpoints_say_so(
    world: World, faulty: FaultyEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.1)
    key = Key.generate()
    sender(world, key)
    foreign: list[object] = []

    def fault(method: str, params: list[str]) -> bytes | None:
        if method == "eth_sendRawTransaction" and not foreign:
            foreign.append(Sender(world.chain, key).send(world.chain.approve_tokens(world.chain.runs.address, 1)))
            world.anvil.request("anvil_mine", 13)
        return None

    faulty.fault = fault
    with closing(FaultyEndpoint(world.anvil.rpc)) as other:
        chain = Chain([faulty.url, other.url], world.chain.runs.address, timeout=20)
        one = Sender(chain, key, limits=SendLimits(deadline=4))
        other.fault = lambda method, _: error(-32005, "busy") if foreign else None
        with pytest.raises(DeadlineExceeded):
            one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
        other.fault = lambda method, _: None
        one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 1


def test_one_stale_count_and_a_receipt_that_is_gone_repeat_nothing(
    world: World, faulty: FaultyEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.chain.sender._RESEND_SECONDS", 0.1)
    key = Key.generate()
    limits = SendLimits(deadline=6, stuck=0.2)  # a busy machine takes a second for one request
    one = sender(world, key, faulty.url, journal=TransactionLog(tmp_path / "j.sqlite"), limits=limits)
    first = one.send(one.chain.deposit(key.address, 7 * TOKEN), name="deposit/7")
    world.anvil.request("anvil_mine", "0x20")
    stale = iter([result("0x1")])  # of a machine from before the deposit

    def fault(method: str, params: list[str]) -> bytes | None:
        if method == "eth_getTransactionCount" and params[1] == "latest":
            return next(stale, None)
        if method == "eth_getTransactionReceipt" and params[0] == f"0x{first.hash.hex()}":
            return result(None)
        return None

    faulty.fault = fault
    with suppress(DeadlineExceeded):  # on a busy machine it takes a second look to find out that the nonce is used
        one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert next(stale, None) is None
    faulty.fault = lambda *_: None
    one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    one.recover()
    assert world.chain.account(key.address).active == 8 * TOKEN


def test_a_transaction_takes_four_requests_where_blocks_come_at_intervals(world: World, faulty: FaultyEndpoint) -> None:
    key = Key.generate()
    one = sender(world, key, faulty.url)
    world.anvil.request("evm_setAutomine", False)
    world.anvil.request("evm_setIntervalMining", 1)
    counts = []
    try:
        for number in range(6):
            before = faulty.requests
            one.send(one.chain.deposit(key.address, TOKEN), name=f"deposit/{number}")
            counts.append(faulty.requests - before)
    finally:
        world.anvil.request("evm_setIntervalMining", 0)
        world.anvil.request("evm_setAutomine", True)
    assert sum(counts[2:]) <= 4 * len(counts[2:]), counts
    assert deposits(world, key.address) == 6


def deep(world: World, faulty: FaultyEndpoint) -> Callable[[], int]:
    """Sends one more on a chain where twelve blocks make a transaction sure; HTTP requests that took."""
    key = Key.generate()
    one = sender(world, key, faulty.url, limits=SendLimits(depth=12))

    def send() -> int:
        before = faulty.requests
        one.send(one.chain.deposit(key.address, TOKEN))
        return faulty.requests - before

    send()  # finds the contracts
    return send


def test_a_transaction_and_the_look_back_at_the_one_before_take_four_requests(
    world: World, faulty: FaultyEndpoint
) -> None:
    send = deep(world, faulty)
    for _ in range(2):
        world.anvil.request("anvil_mine", hex(12))
        assert send() == 4  # what both ask, the rest of the blocks in between, the transaction, its receipt


def test_what_is_not_deep_enough_is_not_asked_for_once_more(world: World, faulty: FaultyEndpoint) -> None:
    send = deep(world, faulty)
    assert [send(), send()] == [3, 3]
    world.anvil.request("anvil_mine", hex(10))
    assert send() == 4  # the first is; the others have 11 blocks and 10


def test_one_slow_transaction_does_not_slow_down_all_later_ones(world: World) -> None:
    key = Key.generate()
    one = sender(world, key)
    one._usual = 0.4
    for number in range(12):
        one.send(one.chain.deposit(key.address, TOKEN), name=f"deposit/{number}")
    assert one._usual < 0.2  # 0.4 for ever, where each was waited for as long as the last one took to be noticed


def test_an_overdue_transaction_stays_in_the_journal(world: World, tmp_path: Path) -> None:
    key = Key.generate()
    one = sender(world, key, journal=TransactionLog(tmp_path / "j.sqlite"), limits=SendLimits(deadline=0.3))
    world.anvil.request("evm_setAutomine", False)
    try:
        with pytest.raises(DeadlineExceeded):
            one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    finally:
        world.anvil.request("evm_mine")
        world.anvil.request("evm_setAutomine", True)
    one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 1


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_what_a_reorg_took_back_is_sent_again(world: World, depth: int) -> None:
    key = Key.generate()
    one = sender(world, key)
    for number in range(depth):
        one.send(one.chain.deposit(key.address, TOKEN), name=f"deposit/{number}")
    world.anvil.request("anvil_reorg", depth, [])
    assert deposits(world, key.address) == 0
    assert one.recover() == depth
    one.send(one.chain.deposit(key.address, TOKEN), name="deposit/0")
    assert deposits(world, key.address) == depth


def test_an_endpoint_that_forgot_what_was_mined_is_unavailable(world: World, faulty: FaultyEndpoint) -> None:
    key = Key.generate()
    one = sender(world, key, faulty.url)
    one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    faulty.fault = lambda method, params: result(None) if method == "eth_getTransactionReceipt" else None
    with pytest.raises(RpcUnavailable, match="which was mined"):
        one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")


DIES = """
import os, sys
sys.path[:0] = [{root!r}, {scripts!r}]
from pathlib import Path
from protocol.chain import Chain, Sender
from protocol.chain import sender as module
from protocol.chain.transaction_log import TransactionLog
from protocol.identity import Key
from protocol.shell.connection import Connection, is_fatal
from protocol.shell.peers import PeerSettings

def die(*args, **kwargs):
    os._exit(9)

place = sys.argv[1]
one = Sender(Chain({rpc!r}, {contract!r}), Key.from_secret({secret!r}), TransactionLog(Path({journal!r})))
if place == "before writing down":
    TransactionLog.begin = die
elif place == "before sending":
    Sender._push = die
elif place == "after sending":
    push = Sender._push
    Sender._push = lambda self, *given, **also: (push(self, *given, **also), die())
elif place == "before noting the receipt":
    TransactionLog.finish = die
one.send(one.chain.deposit(one.key.address, 10**18), name="deposit/1")
"""


@pytest.mark.parametrize(
    "place", ["before writing down", "before sending", "after sending", "before noting the receipt", "nowhere"]
)
def test_killed_at_any_point_exactly_one_transaction_lands(world: World, tmp_path: Path, place: str) -> None:
    key = Key.generate()
    sender(world, key)
    root = Path(__file__).parent.parent.parent
    program = textwrap.dedent(DIES).format(
        root=str(root), scripts=str(root / "scripts"), rpc=world.anvil.rpc, contract=world.chain.runs.address,
        secret="0x" + key.secret.hex(), journal=str(tmp_path / "j.sqlite"),
    )  # fmt: skip
    code = subprocess.run(
        [sys.executable, "-c", program, place], env={**os.environ}, timeout=60, check=False
    ).returncode
    assert code == (0 if place == "nowhere" else 9)
    survivor = Sender(world.chain, key, TransactionLog(tmp_path / "j.sqlite"))
    survivor.send(world.chain.deposit(key.address, TOKEN), name="deposit/1")
    assert deposits(world, key.address) == 1


def test_a_journal_of_an_earlier_version_is_gone_on_with(world: World, tmp_path: Path) -> None:
    key = Key.generate()
    one = sender(world, key, journal=TransactionLog(tmp_path / "j.sqlite"))
    sent = one.send(one.chain.deposit(key.address, TOKEN), name="deposit/1")
    one.close()
    with closing(sqlite3.connect(tmp_path / "j.sqlite")) as old:
        for table, column in (("transactions", "value"), ("transactions", "room"), ("attempts", "gas")):
            old.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    later = Sender(world.chain, key, TransactionLog(tmp_path / "j.sqlite"))
    assert later.send(world.chain.deposit(key.address, TOKEN), name="deposit/1") == sent
    later.send(world.chain.deposit(key.address, TOKEN), name="deposit/2")
    assert deposits(world, key.address) == 2
