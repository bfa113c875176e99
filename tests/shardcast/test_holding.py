"""What a source says it holds, as bytes."""

from __future__ import annotations

import itertools

import httpx
import numpy as np
import pytest

from protocol.constants import MANIFEST_BYTES_MAX
from protocol.errors import Malformed
from protocol.shardcast.connection import ConnectionPool
from protocol.shardcast.holding import COMPLETE, REVISION_COMPLETE, Holding, encoded_bytes, holding_target
from protocol.shardcast.inquiry import Inquiry
from protocol.shardcast.schedule import Schedule
from protocol.shardcast.source import Source, Standing
from protocol.shardcast.task import Statistics
from protocol.shardcast.uplink import SMALL_BYTES_MAX

from .conftest import QUICK, Cast, relay_at
from .faults import Request


def some(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(count) < 0.5


@pytest.mark.parametrize("chunks", [1, 7, 8, 9, 16_384])
def test_it_comes_back_as_it_was_told(chunks: int) -> None:
    held, coming = some(chunks, 1), some(chunks, 2)
    held[0] = False  # else one of a single chunk is complete
    data = Holding(41, held, coming).encode()
    back = Holding.parse(data, chunks)
    assert len(data) == encoded_bytes(chunks)
    assert (back.revision, back.held.tolist(), back.coming.tolist()) == (41, held.tolist(), coming.tolist())
    assert not back.is_complete


def test_what_is_complete_is_told_in_a_few_bytes_and_needs_no_count() -> None:
    assert Holding(9, np.ones(5, np.bool_), np.zeros(5, np.bool_)).encode() == COMPLETE
    assert Holding.parse(COMPLETE, 1234).held.sum() == 1234


def test_its_bytes_are_these() -> None:
    told = Holding(258, np.array([1, 0, 0, 0, 0, 0, 0, 0, 1], np.bool_), np.array([0, 1] + 7 * [0], np.bool_))
    assert told.encode().hex() == "02010000000000000900000001010200"


@pytest.mark.parametrize("change", ["shorter", "longer", "another count", "a bit too many"])
def test_anything_else_is_malformed(change: str) -> None:
    data = Holding(1, some(9, 1), np.zeros(9, np.bool_)).encode()
    broken = {
        "shorter": data[:-1],
        "longer": data + b"\0",
        "another count": data[:8] + bytes([10]) + data[9:],
        "a bit too many": data[:-1] + bytes([2]),
    }[change]
    with pytest.raises(Malformed):
        Holding.parse(broken, 9)


def test_nobody_waits_for_news_after_the_last_there_can_be(cast: Cast) -> None:
    """It would be answered at once for ever, and asked again at once for ever, while a version is committed."""
    server = cast.serve(cast.store("any"))
    for after, status in ((REVISION_COMPLETE, 400), ((1 << 64) + 5, 400), (REVISION_COMPLETE - 1, 404)):
        assert httpx.get(f"{server.url}{holding_target(1, after, 0)}").status_code == status


def test_of_the_largest_version_it_is_still_a_small_answer() -> None:
    chunks = MANIFEST_BYTES_MAX // len(f'"{"0" * 64}",')
    assert encoded_bytes(chunks) <= SMALL_BYTES_MAX


class Rested(Schedule):
    """A schedule of which is known how long who inquires rests; it is over after so many times."""

    def __init__(self, relay: Source, times: int) -> None:
        super().__init__(
            [100] * 4, [0] * 4, [relay], {relay.name: Standing()}, set(), Statistics(),
            streams=1, describe=str, watched=[relay.name], patience=8.0,
        )  # fmt: skip
        self.times, self.rests = times, list[float]()

    def rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        if len(self.rests) == self.times:
            self.stop()


def test_a_relay_that_is_busy_is_asked_again_when_it_says_and_what_it_told_before_stands(cast: Cast) -> None:
    told = Holding(7, np.array([1, 0, 1, 0], np.bool_), np.array([0, 1, 0, 0], np.bool_))

    def tell(request: Request) -> None:
        if "after=0" in request.target:
            body = told.encode()
            request.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        else:
            request.send(b"HTTP/1.1 503 Busy\r\nRetry-After: 2\r\nContent-Length: 0\r\n\r\n")

    relay = relay_at(cast.scripted(b"", holding=tell).url, "busy")
    schedule, pool = Rested(relay, 2), ConnectionPool(QUICK)
    Inquiry(schedule, relay, 1, 4, QUICK, float("inf")).run(pool)
    pool.close()
    held = schedule._promises.held("busy")
    assert held is not None
    assert held.tolist() == told.held.tolist()
    assert schedule.rests == [2.0, 2.0]


def test_a_relay_that_has_no_news_is_not_asked_again_at_once_whatever_its_revision(cast: Cast) -> None:
    revisions = itertools.count(7)

    def tell(request: Request) -> None:
        held = np.array([1, 0, 1, 0], np.bool_)
        body = Holding(next(revisions), held, ~held).encode()
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    relay = relay_at(cast.scripted(b"", holding=tell).url, "busy")
    schedule, pool = Rested(relay, 3), ConnectionPool(QUICK)
    Inquiry(schedule, relay, 1, 4, QUICK, float("inf")).run(pool)
    pool.close()
    assert next(revisions) == 7 + 4, "the first had news, and after each of the others it rests"
    assert min(schedule.rests) >= 0.1


def test_a_relay_that_begins_anew_is_asked_for_what_is_new_since_then(cast: Cast) -> None:
    """Each attempt of a relay counts from one. Whoever asked for news after the last attempt's would hear of none for long."""
    asked: list[str] = []
    answers = iter([(500, [1, 0, 1, 0]), (2, [1, 0, 0, 0]), (3, [1, 1, 0, 0]), (4, [1, 1, 0, 0])])

    def tell(request: Request) -> None:
        asked.append(request.target.partition("after=")[2].partition("&")[0])
        revision, held = next(answers)
        body = Holding(revision, np.array(held, np.bool_), np.zeros(4, np.bool_)).encode()
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    relay = relay_at(cast.scripted(b"", holding=tell).url, "busy")
    schedule, pool = Rested(relay, 3), ConnectionPool(QUICK)
    Inquiry(schedule, relay, 1, 4, QUICK, float("inf")).run(pool)
    pool.close()
    assert asked == ["0", "500", "2", "3"]
    assert schedule.rests == [0.2, 0.2, 0.4], "on its way back it is asked at equal pauses"


@pytest.mark.parametrize(
    "told",
    [
        [(5, [1, 1, 0, 0]), (1, [0, 0, 0, 0])],
        [(5, [1, 1, 0, 0]), (1, [1, 1, 0, 0])],
        [(1, [0, 0, 0, 0]), (2, [1, 0, 0, 0]), (3, [1, 1, 0, 0])],
        [(1, [1, 0, 0, 0]), (1, [0, 0, 0, 0])],
    ],
    ids=["less and more", "an earlier revision alone", "chunk for chunk, again and again", "the same revision"],
)
def test_a_relay_that_begins_anew_again_and_again_is_asked_ever_less_often(
    cast: Cast, told: list[tuple[int, list[int]]]
) -> None:
    """It answers at once, and in the end nothing is new."""
    asked: list[str] = []
    answers = itertools.cycle(told)

    def tell(request: Request) -> None:
        asked.append(request.target)
        revision, held = next(answers)
        body = Holding(revision, np.array(held, np.bool_), np.zeros(4, np.bool_)).encode()
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    relay = relay_at(cast.scripted(b"", holding=tell).url, "busy")
    schedule, pool = Rested(relay, 30), ConnectionPool(QUICK)
    Inquiry(schedule, relay, 1, 4, QUICK, float("inf")).run(pool)
    pool.close()
    assert len(asked) <= 30 + 3, "at once only where it had more than ever before"
    assert schedule.rests[-1] == 4.0


def test_a_relay_whose_revision_grows_and_nothing_else_is_asked_ever_less_often(cast: Cast) -> None:
    revisions = itertools.count(7)

    def tell(request: Request) -> None:
        body = Holding(next(revisions), np.array([1, 0, 1, 0], np.bool_), np.zeros(4, np.bool_)).encode()
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    relay = relay_at(cast.scripted(b"", holding=tell).url, "busy")
    schedule, pool = Rested(relay, 8), ConnectionPool(QUICK)
    Inquiry(schedule, relay, 1, 4, QUICK, float("inf")).run(pool)
    pool.close()
    assert schedule.rests[-1] == 4.0
