"""What several endpoints say of a commitment, before a validator rejects by it."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.chain import completeness
from tests.chain.committed import submission_at, submissions_of
from tests.chain.fake_chain import (
    NODE,
    Answer,
    Lie,
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
    dead,
    forging,
)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completeness, "BATCH", 4)


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
