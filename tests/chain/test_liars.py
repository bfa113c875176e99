"""A book that reads two or three endpoints, one of which lies: nothing forged stays, nothing true is lost, the role goes on."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from protocol.chain import completeness
from protocol.chain.log_reader import REREAD_BLOCKS
from protocol.errors import RpcUnavailable
from tests.chain.fake_chain import (
    NODE,
    VALIDATOR,
    Answer,
    Lie,
    Silence,
    log_entry,
    seated,
    serve,
    submitted,
)
from tests.chain.lies import (
    FORGED,
    HONEST,
    LIAR,
    THIRD,
    Follower,
    beginning,
    counting,
    dead,
    forging,
    lies,
    omitting,
)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completeness, "BATCH", 4)


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


HARMLESS = {
    "8 ahead", "10^9 ahead", "times in logs", "counter + 1", "counter 2^32", "counter - 1", "no code once", "another chain once",
    "another hash once", "no top once", "dead", "empty logs",
}  # fmt: skip
"""Lies before which two endpoints suffice to go on; before the others one against one decides nothing, and the role waits."""
