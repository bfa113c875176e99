"""A book that reads two or three endpoints, one of which lies: nothing forged stays, nothing true is lost, the role goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from eth_abi import decode, encode

from protocol.chain import Chain, completeness
from protocol.chain.endpoints import EndpointsDisagree
from protocol.chain.log_reader import REREAD_BLOCKS
from protocol.chain.sync import Book
from protocol.errors import MurmurationError, RpcUnavailable, WrongChain
from protocol.shell.connection import is_fatal
from tests.chain.committed import submission_at, submissions_of
from tests.chain.fake_chain import (
    BONDS,
    NODE,
    RUN,
    RUNS,
    SEAT,
    STRANGER,
    VALIDATOR,
    Answer,
    FakeChain,
    Lie,
    Silence,
    _selector,
    block,
    log_entry,
    seated,
    serve,
    submitted,
)

HONEST, LIAR, THIRD = "http://honest", "http://liar", "http://third"
FORGED = 40
"""The block that the lies are about."""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completeness, "BATCH", 4)


# ---- lies ------------------------------------------------------------------------------------------------------------------


def forging(event: tuple[str, str, tuple[Any, ...]], number: int = FORGED) -> Lie:
    """In a block that is there, with a receipt to show for it."""

    def lie(truth: Answer, method: str, params: Any) -> Any:
        told = truth(method, params)
        of = truth("eth_getBlockByNumber", [hex(number)])
        if of is None:
            return told
        entry = log_entry(of, 7, *event)
        if method == "eth_getLogs":
            is_asked = int(params[0]["fromBlock"], 16) <= number <= int(params[0]["toBlock"], 16)
            return [*told, entry] if is_asked and len(params[0]["topics"]) < 3 else told
        if method == "eth_getTransactionReceipt" and params[0] == entry["transactionHash"]:
            return {"logs": [entry]}
        return told

    return lie


def omitting(name: str) -> Lie:
    """Everything of one kind, in logs and receipts."""

    def lie(truth: Answer, method: str, params: Any) -> Any:
        told = truth(method, params)
        if method == "eth_getLogs":
            return [entry for entry in told if entry["name"] != name]
        return None if method == "eth_getTransactionReceipt" and told and told["logs"][0]["name"] == name else told

    return lie


def empty(truth: Answer, method: str, params: Any) -> Any:
    return [] if method == "eth_getLogs" else truth(method, params)


def ahead(blocks: int) -> Lie:
    def lie(truth: Answer, method: str, params: Any) -> Any:
        newest = truth("eth_getBlockByNumber", ["latest"])
        number = int(newest["number"], 16)
        if method == "eth_blockNumber":
            return hex(number + blocks)
        if method == "eth_getBlockByNumber":
            asked = number + blocks if params[0] == "latest" else int(params[0], 16)
            if number < asked <= number + blocks:
                return block(asked, int(newest["timestamp"], 16), "fork")
        return truth(method, params)

    return lie


def stuck(truth: Answer, method: str, params: Any) -> Any:
    if method == "eth_blockNumber":
        return hex(FORGED)
    if method == "eth_getBlockByNumber" and params[0] == "latest":
        return truth(method, [hex(FORGED)])
    if method == "eth_getBlockByNumber" and int(params[0], 16) > FORGED:
        return None
    return truth(method, params)


def mistimed(seconds: int, *, headers: bool = True) -> Lie:
    def lie(truth: Answer, method: str, params: Any) -> Any:
        told = truth(method, params)
        if method == "eth_getBlockByNumber" and headers and told:
            return {**told, "timestamp": hex(int(told["timestamp"], 16) + seconds)}
        if method == "eth_getLogs":
            return [{**e, "blockTimestamp": hex(int(e["blockTimestamp"], 16) + seconds)} for e in told]
        return told

    return lie


def counting(change: Callable[[int], int]) -> Lie:
    def lie(truth: Answer, method: str, params: Any) -> Any:
        told = truth(method, params)
        if method != "eth_call":
            return told
        if params[0]["data"].startswith(_selector("published(uint256)")):
            return "0x" + encode(["uint32"], [change(int(told, 16))]).hex()
        if params[0]["data"].startswith(_selector("seats(uint256,address)")):
            seat = list(decode([SEAT], bytes.fromhex(told[2:]))[0])
            seat[9] = min((1 << 16) - 1, max(0, change(seat[9])))
            return "0x" + encode([SEAT], [tuple(seat)]).hex()
        return told

    return lie


def no_code(truth: Answer, method: str, params: Any) -> Any:
    return "0x" if method == "eth_call" else truth(method, params)


def once(lie: Lie, wanted: str, after: int) -> Lie:
    """Only in one answer to `wanted`, after so many true ones."""
    left = [after]

    def told(truth: Answer, method: str, params: Any) -> Any:
        if method == wanted:
            left[0] -= 1
            if left[0] == -1:
                return lie(truth, method, params)
        return truth(method, params)

    return told


def another_chain(truth: Answer, method: str, params: Any) -> Any:
    return hex(999) if method == "eth_chainId" else truth(method, params)


def another_hash(truth: Answer, method: str, params: Any) -> Any:
    told = truth(method, params)
    if method == "eth_getBlockByNumber" and told and int(told["number"], 16) >= FORGED:
        return {**told, "hash": block(int(told["number"], 16), 0, "fork")["hash"]}
    return told


def no_top(truth: Answer, method: str, params: Any) -> Any:
    if method == "eth_getBlockByNumber" and params[0] == truth("eth_blockNumber", []):
        return None
    return truth(method, params)


def dead(truth: Answer, method: str, params: Any) -> Any:
    raise Silence


def lies() -> dict[str, Lie]:
    return {
        "forges a validator": forging(seated(STRANGER)),
        "forges a submission": forging(submitted(1_000)),
        "omits a submission": omitting("Submitted"),
        "omits a validator": omitting("ValidatorSeated"),
        "empty logs": empty,
        "8 ahead": ahead(8),
        "10^9 ahead": ahead(10**9),
        "stuck": stuck,
        "times": mistimed(30),
        "times far off": mistimed(10**6),
        "times in logs": mistimed(10**6, headers=False),
        "counter + 1": counting(lambda count: count + 1),
        "counter 2^32": counting(lambda count: (1 << 32) - 1),
        "counter - 1": counting(lambda count: max(0, count - 1)),
        "no code": no_code,
        "no code once": once(no_code, "eth_call", 5),
        "another chain": another_chain,
        "another chain once": once(another_chain, "eth_chainId", 0),
        "another hash": another_hash,
        "another hash once": once(another_hash, "eth_getBlockByNumber", 150),
        "no top": no_top,
        "no top once": once(no_top, "eth_getBlockByNumber", 150),
        "dead": dead,
    }


# ---- the role that reads ---------------------------------------------------------------------------------------------------


class Follower:
    """What a role does with its book: polls, and waits where that is refused. Whatever else is raised ends the test."""

    def __init__(self, chain: FakeChain, urls: list[str], path: Path | None = None) -> None:
        self.chain = chain
        reader = Chain(urls, RUNS, clock=chain.clock)
        reader.expect_blocks(60)
        self.book = Book(reader, RUN, path)
        self.waits = 0
        """Polls in a row that were refused."""
        self.waited = 0

    def live(self, blocks: int, *, pause: int = 0) -> None:
        for _ in range(blocks):
            self.chain.live(1)
            self.chain.clock.advance(pause)
            try:
                self.book.poll()
                self.waits = 0
            except RpcUnavailable:
                self.waits += 1
                self.waited += 1
            assert STRANGER not in self.book.ever_validated()
            for submission in islice(self.book.newest_submissions(), 3):
                with suppress(RpcUnavailable):
                    assert self.book.time(submission) == int(self.chain.blocks[submission.block]["timestamp"], 16)
            twice = int(self.book.fact("read_twice") or 0)
            assert self.told(twice) == self.true(twice)

    def told(self, upto: int) -> set[tuple[int, int]]:
        rows = [
            *self.book.rows("SELECT block, log_index FROM submissions"),
            *self.book.rows("SELECT block, log_index FROM events"),
        ]
        return {place for place in rows if place[0] <= upto}

    def true(self, upto: int) -> set[tuple[int, int]]:
        places = {(int(entry["blockNumber"], 16), int(entry["logIndex"], 16)) for entry in self.chain.logs}
        return {place for place in places if place[0] <= upto}

    def require_all(self) -> None:
        """It is up to date, and whole."""
        top = len(self.chain.blocks) - 1
        assert self.waits == 0
        assert self.book.head is not None
        assert self.book.head.number == top
        assert self.told(top) == self.true(top)
        assert self.book.fact("read_twice") >= top - 12 - 4
        for submission in submissions_of(self.book, NODE, 0):
            assert self.book.time(submission) == int(self.chain.blocks[submission.block]["timestamp"], 16)


def beginning() -> FakeChain:
    chain = FakeChain()
    chain.publish(0)
    chain.live(10)
    return chain


@pytest.mark.parametrize("name", lies())
@pytest.mark.parametrize("urls", [[LIAR, HONEST], [HONEST, LIAR], [LIAR, HONEST, THIRD], [HONEST, LIAR, THIRD]],
                         ids=lambda urls: " ".join(url[7:] for url in urls))  # fmt: skip
def test_nothing_forged_stays_and_nothing_true_is_lost(
    monkeypatch: pytest.MonkeyPatch, urls: list[str], name: str
) -> None:
    chain, told = beginning(), {LIAR: lies()[name]}
    serve(monkeypatch, chain, told)
    follower = Follower(chain, urls)
    follower.live(20)
    chain.mine(1, seated(VALIDATOR))
    chain.publish(1)
    follower.live(110)
    if len(urls) > 2 or name in HARMLESS:
        follower.live(6)
        assert follower.waits == 0, "one of these endpoints lies alone, and nobody has to wait for it"
        assert follower.book.head is not None
        assert follower.book.head.number >= len(chain.blocks) - 2
        settled = len(chain.blocks) - 20
        assert follower.told(settled) == follower.true(settled)
    del told[LIAR]
    follower.live(60)
    follower.require_all()


@pytest.mark.parametrize("name", ["omits a validator", "forges a submission", "forges a validator", "another hash"])
def test_after_a_restart_who_read_what_is_unknown_and_two_read_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    chain, told = beginning(), {LIAR: lies()[name]}
    serve(monkeypatch, chain, told)
    for _ in range(12):
        follower = Follower(chain, [LIAR, HONEST, THIRD], tmp_path / "book.sqlite")
        if _ == 1:
            chain.mine(1, seated(VALIDATOR))
        follower.live(8)
        follower.book.close()
    follower = Follower(chain, [LIAR, HONEST, THIRD], tmp_path / "book.sqlite")
    follower.live(20)
    follower.require_all()


def test_what_was_read_off_the_only_endpoint_that_answered_is_read_off_the_other_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The preferred one forged a submission while the other was away for long: the book went on, and did not forget."""
    forged = ("Runs", "Submitted", (NODE, b"\x0c" * 32, 0, 0, 7))
    chain, told = beginning(), {HONEST: dead, LIAR: forging(forged)}
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [LIAR, HONEST])
    for _ in range(110):
        chain.live(1)
        with suppress(RpcUnavailable):  # for a minute
            follower.book.poll()
    assert follower.book.settled > FORGED
    assert follower.book.fact("read_twice") == 0
    assert caplog.text.count("from one endpoint alone") == 1
    assert (FORGED, 7) in follower.told(FORGED)
    told[HONEST] = lambda truth, method, params: truth(method, params)
    told[LIAR] = dead
    chain.clock.advance(60)
    follower.live(60)
    del told[LIAR]
    chain.clock.advance(60)
    follower.live(40)
    follower.require_all()


def test_a_late_event_leaves_it_known_who_read_the_other_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, chain := beginning(), {})
    book = Follower(chain, [HONEST, THIRD]).book
    one, other = book._chain.singles
    known = book._completeness
    for first, last, reader in ((1, 9, one), (10, 19, other), (20, 29, one)):
        known.note_reading(first, last, reader)
    assert known.note_late([12, 15], other)
    assert known._readings == [(1, 9, one), (20, 29, one)]
    assert known._other_readers(1, 29, [one, other]) == (9, [other])
    assert known._other_readers(10, 29, [one, other]) == (19, [one, other])


def test_who_gives_no_logs_for_a_minute_has_not_left_out_what_another_then_tells_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without_logs(truth: Answer, method: str, params: Any) -> Any:
        if method == "eth_getLogs":
            raise Silence
        return truth(method, params)

    monkeypatch.setattr(completeness, "BATCH", 48)
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [HONEST, LIAR])
    follower.live(61 - len(chain.blocks))
    follower.book._chain.provider.pass_over(0, "a hiccup", seconds=4)
    follower.live(5)  # the liar is the first to read one or two of them, the honest one the others
    forged = len(chain.blocks) - 1
    follower.live(REREAD_BLOCKS)
    told |= {HONEST: without_logs, LIAR: forging(submitted(1_000), forged)}
    for _ in range(40):
        chain.live(1)
        with suppress(RpcUnavailable):
            follower.book.poll()
    assert (forged, 7) in follower.told(forged), "for now"
    assert "left out" not in caplog.text


def test_an_endpoint_that_was_just_heard_is_waited_for_before_anybody_gets_a_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [LIAR, HONEST])
    follower.live(20)
    told[LIAR], told[HONEST] = lies()["forges a validator"], dead
    follower.live(20)  # 40 s
    assert follower.waits
    assert follower.book.publication(1) is None
    del told[LIAR]
    chain.publish(1)
    follower.live(40)
    assert follower.waits == 0, "who is silent for long is not waited for"
    assert follower.book.publication(1) is not None


def test_one_endpoint_alone_is_not_followed_far_while_another_was_just_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [LIAR, HONEST])
    follower.live(20)
    told[LIAR], told[HONEST] = ahead(10**9), dead
    follower.live(10)
    assert follower.waits == 10
    del told[HONEST]
    follower.live(10)
    follower.require_all()


def test_what_the_contract_does_not_count_is_looked_up_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A book that was written when only a liar answered, in blocks that were read twice."""
    chain = beginning()
    serve(monkeypatch, chain, {})
    follower = Follower(chain, [HONEST, THIRD])
    follower.live(10)
    reader = follower.book._witnesses._reader(follower.book._chain.singles[0])
    forged = [submitted(follower.book.count_submissions()), ("Weights", "Published", (1, b"\x01" * 32))]
    entries = [log_entry(chain.blocks[-1], 7 + index, *event) for index, event in enumerate(forged)]
    follower.book._completeness._corrections.put_right([], reader._decoder.decode(entries, 0, 1 << 40))
    follower.book._entries.set_fact("read_twice", len(chain.blocks) - 1)
    assert follower.book.publication(1) is not None
    follower.waits = 0
    while follower.book.settled < FORGED:
        chain.mine()
        follower.book.poll()
    follower.require_all()


@pytest.mark.parametrize("place", ["behind it", "a block before"])
def test_a_copy_of_a_commitment_is_no_repeat_and_takes_the_true_one_nowhere(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """One endpoint tells of the same commitment twice. Taking the copy back must not take it from whoever follows the book."""

    def lie(truth: Answer, method: str, params: Any) -> Any:
        told = truth(method, params)
        if method != "eth_getLogs":
            return told
        copies = [{**entry, "logIndex": "0x5"} for entry in told if entry["name"] == "Submitted"]
        if place == "a block before":
            for copy in copies:
                before = truth("eth_getBlockByNumber", [hex(int(copy["blockNumber"], 16) - 1)])
                copy |= {"blockNumber": before["number"], "blockHash": before["hash"]}
            copies = [copy for copy in copies if copy["blockNumber"] != hex(int(params[0]["fromBlock"], 16) - 1)]
        return sorted([*told, *copies], key=lambda entry: (int(entry["blockNumber"], 16), int(entry["logIndex"], 16)))

    chain = beginning()
    serve(monkeypatch, chain, {LIAR: lie})
    follower, known, cursor = Follower(chain, [LIAR, HONEST, THIRD]), set[bytes](), 0
    for _ in range(90):
        follower.live(1)
        changes = follower.book.changes_since(cursor)
        known = known - {s.id for s in changes.gone_submissions} | {s.id for s in changes.submissions}
        cursor = changes.cursor
        told = submissions_of(follower.book, NODE, 0)
        assert len({s.id for s in told}) == len(told), "a book has one of each"
        assert not any(map(follower.book.repeats, told))
        assert known == {s.id for s in told}
    assert len(known) == sum(entry["name"] == "Submitted" for entry in chain.logs)


def test_what_one_endpoint_alone_tells_of_a_commitment_is_not_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells of an earlier one of the same file, and of other units."""
    chain = beginning()
    copied = (FORGED + 5) // 3 * 3  # a block with a submission
    sequence = sum(entry["name"] == "Submitted" for entry in chain.logs) + len(range(len(chain.blocks), copied)) // 3
    genuine = ("Runs", "Submitted", (NODE, submitted(sequence)[2][1], 0, 1_000, 7))
    serve(monkeypatch, chain, {LIAR: forging(genuine)})
    follower = Follower(chain, [LIAR, HONEST, THIRD])
    doubted = 0
    for _ in range(60):
        follower.live(1)
        one = submission_at(follower.book, NODE, 0, sequence)
        if one is not None and follower.book.is_sure(one):
            assert not follower.book.repeats(one)
            break
        doubted += one is not None and follower.book.repeats(one)
    assert doubted
    assert one is not None
    assert follower.book.is_sure(one)


def test_a_commitment_is_sure_where_no_other_endpoint_is_left_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    for urls, seconds in (([HONEST], 0), ([HONEST, LIAR], 60)):
        follower = Follower(chain, urls)
        follower.live(20)
        told[LIAR] = dead
        silent_since = chain.clock.monotonic()
        chain.submit(sum(entry["name"] == "Submitted" for entry in chain.logs))
        follower.book.poll()
        newest = next(follower.book.newest_submissions())
        while not follower.book.is_sure(newest):
            assert chain.clock.monotonic() - silent_since < 200
            follower.live(1)
        assert seconds <= chain.clock.monotonic() - silent_since
        told.clear()


def test_a_chain_that_stays_another_ends_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    def foreign(truth: Answer, method: str, params: Any) -> Any:
        told = truth(method, params)
        if method == "eth_getBlockByNumber" and told:
            return {**told, "hash": block(int(told["number"], 16), 0, "fork")["hash"]}
        return another_chain(truth, method, params)

    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [LIAR])
    follower.live(20)
    before = follower.told(1000)
    told[LIAR] = foreign
    ended = 0
    while not ended:
        follower.waits += 1
        with pytest.raises(WrongChain, match="has become chain 999") as caught:
            follower.book.poll()
        ended = is_fatal(caught.value)
    assert follower.waits == 30
    assert follower.told(1000) == before


def test_an_honest_endpoint_that_stands_still_holds_a_second_one_at_64_blocks_and_two_others_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for urls in ([LIAR, HONEST], [HONEST, LIAR], [LIAR, HONEST, THIRD]):
        chain, told = beginning(), {LIAR: stuck}
        serve(monkeypatch, chain, told)
        follower = Follower(chain, urls)
        follower.live(FORGED + 60 - len(chain.blocks))
        assert follower.waits == 0, "it lags, by the clock"
        follower.live(60)
        assert follower.book.head is not None
        assert follower.book.head.number == (FORGED + 64 if len(urls) == 2 else len(chain.blocks) - 1)
        if len(urls) == 2:
            with pytest.raises(RpcUnavailable, match=r"only http://honest is at block .*, http://liar not"):
                follower.book.poll()
        del told[LIAR]
        follower.live(60)
        follower.require_all()


def test_a_head_that_only_one_endpoint_claims_demotes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for blocks in (8, 10**9):
        chain = beginning()
        asked = serve(monkeypatch, chain, {LIAR: ahead(blocks)})
        reader = Chain([HONEST, LIAR], RUNS, clock=chain.clock)
        for _ in range(5):
            chain.live(20)
            assert reader.block().number == len(chain.blocks) - 1
            asked.clear()
            reader.block_number()
            assert {url for url, _ in asked} == {HONEST}


def test_a_counter_of_one_endpoint_takes_no_memory_and_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = beginning()
    asked = serve(monkeypatch, chain, {LIAR: lies()["counter 2^32"]})
    alone = Follower(chain, [LIAR])
    alone.live(30)
    assert alone.waits, "where it is the only endpoint, there is a hole"
    assert len(asked) < 30 * 100
    beside = Follower(chain, [LIAR, HONEST])
    beside.live(30)
    assert beside.waited == 0
    assert beside.book.settled > 20


def test_a_hole_that_two_endpoints_count_stays_a_hole_whatever_a_third_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """All three keep the events to themselves, and one the number as well."""
    chain, hides = beginning(), omitting("Published")
    told = {
        HONEST: hides,
        THIRD: hides,
        LIAR: lambda *asked: counting(lambda _: 0)(partial(hides, asked[0]), *asked[1:]),
    }
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [HONEST, THIRD, LIAR])
    for _ in range(30):
        chain.mine()
        with (
            pytest.raises(RpcUnavailable, match="which the contract counts")
            if follower.chain.blocks[16:]
            else suppress(RpcUnavailable)
        ):
            follower.book.poll()


def test_one_url_whose_backends_lag_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [LIAR])
    follower.live(20)
    top = hex(len(chain.blocks) - 1)
    chain.live(1)
    told[LIAR] = lambda truth, method, params: (
        None if method == "eth_getBlockByNumber" and params[0] == top else truth(method, params)
    )
    follower.live(3)
    assert follower.waits == 3
    assert follower.book.rows("SELECT count(*) FROM removed") == [(0,)]
    del told[LIAR]
    follower.live(20)
    assert follower.told(1000) == follower.true(1000)


@pytest.mark.parametrize("urls", [[LIAR, HONEST], [LIAR, HONEST, THIRD]], ids=len)
def test_a_reorg_that_only_one_endpoint_tells_of_takes_nothing_back(
    monkeypatch: pytest.MonkeyPatch, urls: list[str]
) -> None:
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    follower = Follower(chain, urls)
    follower.live(FORGED + 10 - len(chain.blocks))
    told[LIAR] = lambda truth, method, params: (truth if params[:1] == ["latest"] else partial(another_hash, truth))(
        method, params
    )
    follower.live(3)
    assert follower.book.rows("SELECT count(*) FROM removed") == [(0,)]
    del told[LIAR]
    follower.live(20)
    follower.require_all()


def test_a_submissions_time_is_what_two_headers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    followers = [Follower(chain, urls) for urls in ([LIAR, HONEST], [LIAR, HONEST, THIRD])]
    for follower in followers:
        follower.book.poll()
    told[LIAR] = mistimed(30)
    submission = submissions_of(followers[0].book, NODE, 0)[0]
    with pytest.raises(EndpointsDisagree, match="http://liar against http://honest"):
        followers[0].book.time(submission)
    assert followers[1].book.time(submission) == int(chain.blocks[submission.block]["timestamp"], 16)


def test_two_endpoints_cost_less_than_twice_the_requests_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {}
    for urls in ([HONEST], [HONEST, THIRD]):
        chain = beginning()
        asked = serve(monkeypatch, chain, {})
        follower = Follower(chain, urls)
        follower.live(40)
        asked.clear()
        follower.live(64)
        live = len(asked)
        asked.clear()
        for _ in range(50):
            chain.clock.advance(0.5)
            follower.book.poll()
        costs[len(urls)] = live, len(asked)
    assert costs[2][0] < 1.5 * costs[1][0]
    assert costs[2][1] < 1.5 * costs[1][1]


@pytest.mark.parametrize("lie", [another_chain, no_code, another_hash, no_top], ids=lambda lie: lie.__name__)
def test_a_running_role_waits_for_an_endpoint_that_answers_like_another_chain(
    monkeypatch: pytest.MonkeyPatch, lie: Lie
) -> None:
    """Alone or one of two or three: whatever it raises, no role ends for it."""
    for urls in ([LIAR], [LIAR, HONEST], [LIAR, HONEST, THIRD]):
        chain, told = beginning(), dict[str, Lie]()
        serve(monkeypatch, chain, told)
        follower = Follower(chain, urls)
        follower.live(20)
        told[LIAR] = lie
        for _ in range(20):
            chain.live(1)
            try:
                follower.book.poll()
            except MurmurationError as error:
                assert not is_fatal(error)
        del told[LIAR]
        follower.live(40)
        follower.require_all()


def test_a_contract_that_was_there_and_seems_gone_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    monkeypatch.setattr(Chain, "check_code", lambda *_: None)
    monkeypatch.setattr(Chain, "bonds", SimpleNamespace(address=BONDS))
    one, two = Chain([LIAR], RUNS, clock=chain.clock), Chain([LIAR, HONEST], RUNS, clock=chain.clock)
    told[LIAR] = no_code
    with pytest.raises(WrongChain):
        one.published(RUN)
    del told[LIAR]
    one.check(8_453)
    told[LIAR] = no_code
    with pytest.raises(RpcUnavailable, match="no such contract"):
        one.published(RUN)
    assert two.published(RUN) == 1, "the other one has it"


HARMLESS = {
    "8 ahead", "10^9 ahead", "times in logs", "counter + 1", "counter 2^32", "counter - 1", "no code once", "another chain once",
    "another hash once", "no top once", "dead", "empty logs",
}  # fmt: skip
"""Lies before which two endpoints suffice to go on; before the others one against one decides nothing, and the role waits."""
