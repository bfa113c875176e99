"""Which source is asked, as arithmetic: no sockets, and a clock that stands still unless it is told."""

from __future__ import annotations

import random
from collections import Counter
from queue import Queue
from threading import Thread
from typing import Any

import numpy as np
import pytest

from protocol.errors import DeadlineExceeded, HashMismatch, Malformed, Unavailable
from protocol.shardcast.feed import Feed
from protocol.shardcast.holding import Holding
from protocol.shardcast.schedule import Schedule
from protocol.shardcast.source import Source, Standing, weights
from protocol.shardcast.task import FetchTask, Statistics
from tests.clock import eventually

FAST, SLOW = Source("http://fast:1", "fast", True), Source("http://slow:1", "slow", True)
ORIGIN = Source("http://origin:1", "origin", False)


class Stage:
    """A schedule of `chunks` chunks of 100 bytes in one file, on a clock at `now`."""

    def __init__(self, chunks: int, sources: list[Source], **options: Any) -> None:
        self.now = 1000.0
        self.standings = {source.name: Standing() for source in sources}
        self.banned: set[str] = set()
        self.statistics = Statistics()
        options = {"streams": 2, "files": [0] * chunks} | options
        self.schedule = Schedule(
            [100] * chunks,
            options.pop("files"),
            sources,
            self.standings,
            self.banned,
            self.statistics,
            describe=lambda number: f"chunk {number}",
            rng=random.Random(0),
            clock=lambda: self.now,
            **options,
        )

    def take(self) -> FetchTask:
        task = self.schedule.offer()
        assert task is not None, "there is nothing to do at this moment"
        return task

    def is_at_rest(self) -> bool:
        """Whether there is nothing to do at this moment."""
        return self.schedule.offer() is None

    def finish(self, task: FetchTask, seconds: float = 1.0) -> None:
        for _ in range(len(task.chunks) - task.done):
            self.schedule.arrived(task, seconds)
        self.schedule.finished(task)


def shares(standings: dict[str, Standing], sources: list[Source], now: float = 0.0) -> dict[str, float]:
    parts = weights(sources, standings, now)
    return {source.name: part / sum(parts) for source, part in zip(sources, parts, strict=True)}


def test_the_chance_of_a_source_is_proportional_to_success_times_bandwidth() -> None:
    standings = {"fast": Standing(), "slow": Standing()}
    standings["fast"].delivered(300, 1.0)
    standings["slow"].delivered(100, 1.0)
    assert shares(standings, [FAST, SLOW]) == pytest.approx({"fast": 0.75, "slow": 0.25})
    standings["fast"].failed("down", 0.0)  # success 0.7
    assert shares(standings, [FAST, SLOW]) == pytest.approx({"fast": 2.1 / 3.1, "slow": 1 / 3.1})


def test_tasks_are_drawn_by_these_chances() -> None:
    stage = Stage(1, [FAST, SLOW])
    stage.standings["fast"].bandwidth, stage.standings["slow"].bandwidth = 300.0, 100.0
    drawn: Counter[str] = Counter()
    for _ in range(2000):
        task = stage.take()
        drawn[task.source.name] += 1
        stage.schedule.finished(task)
    assert 0.72 < drawn["fast"] / 2000 < 0.78


def test_a_relay_without_a_task_is_drawn_more_often_than_one_with_several_and_no_other_source_is() -> None:
    new = Source("http://new:1", "new", True)
    stage = Stage(100, [FAST, SLOW, ORIGIN, new], streams=9)
    for name, bandwidth in (("fast", 300.0), ("slow", 100.0), ("origin", 300.0)):
        stage.standings[name].bandwidth = bandwidth
    sources = [FAST, SLOW, ORIGIN, new]
    before = weights(sources, stage.standings, 0.0)
    assert stage.schedule._spread(sources, before) == pytest.approx(before)
    stage.schedule._running += [FetchTask(FAST, [number], stage.now) for number in range(5)]
    after = stage.schedule._spread(sources, before)
    assert after[0] / after[1] == pytest.approx(3 / 6)
    assert (after[0] + after[1], after[2:]) == (pytest.approx(before[0] + before[1]), before[2:])


def test_a_failed_source_heals_with_time() -> None:
    standings = {"fast": Standing(), "slow": Standing()}
    for standing in standings.values():
        standing.delivered(100, 1.0)
    for _ in range(5):
        standings["slow"].failed("down", 0.0)
    assert shares(standings, [FAST, SLOW], 0.0)["slow"] < 0.15
    assert shares(standings, [FAST, SLOW], 60.0)["slow"] > 0.4


def test_an_origin_is_spared_while_relays_work_and_asked_when_they_do_not() -> None:
    standings = {"fast": Standing(), "origin": Standing()}
    for standing in standings.values():
        standing.delivered(100, 1.0)
    assert shares(standings, [FAST, ORIGIN])["origin"] == pytest.approx(1 / 21)
    for _ in range(12):
        standings["fast"].failed("down", 0.0)
    assert shares(standings, [FAST, ORIGIN])["origin"] > 0.7


def test_a_crowd_of_names_that_never_delivered_cannot_drown_those_that_did() -> None:
    crowd = [Source(f"http://crowd:{port}", f"crowd {port}", True) for port in range(1, 1001)]
    standings = {source.name: Standing() for source in [*crowd, FAST, ORIGIN]}
    assert shares(standings, [*crowd, ORIGIN])["origin"] == pytest.approx(0.25)
    standings["fast"].delivered(100, 1.0)
    assert shares(standings, [*crowd, FAST])["fast"] == pytest.approx(0.75)
    assert shares(standings, [*crowd, FAST])["crowd 7"] > 0, "a newcomer gets its chance"


def test_what_a_source_refuses_while_it_rests_already_makes_no_rest_longer() -> None:
    standing = Standing()
    for _ in range(12):  # as many as are under way at once
        standing.rest("busy", 0.0, 0.25)
    assert standing.rests_until == 0.25
    standing.rest("busy", 0.1, 2.0)
    assert standing.rests_until == pytest.approx(2.1), "unless it asks for more"
    standing.rest("busy", 3.0, 0.0)
    assert standing.rests_until == pytest.approx(3.1), "the second time in a row is twice as long as the first"


def test_one_broken_connection_undoes_no_longer_rest_that_was_asked_for() -> None:
    standing = Standing()
    standing.rest("503", 0.0, 30.0)
    standing.failed("reset", 0.1)
    assert standing.rests_until == 30.0


def test_a_failed_source_rests_longer_every_time_but_never_for_long() -> None:
    stage = Stage(1, [FAST])
    rests = []
    for _ in range(12):
        task = stage.take()
        stage.schedule.failed(task, ConnectionRefusedError("refused"))
        assert stage.is_at_rest()
        rests.append(round(stage.standings["fast"].rests_until - stage.now, 3))
        stage.now = stage.standings["fast"].rests_until
    assert rests == sorted(rests)
    assert rests[0] < 0.1
    assert rests[-1] == 5.0


def test_a_fast_source_gets_long_tasks_and_an_unknown_one_a_single_chunk() -> None:
    stage = Stage(100, [FAST], streams=3)
    assert list(stage.take().chunks) == [0]
    stage.standings["fast"].bandwidth = 250.0
    assert list(stage.take().chunks) == [1, 2, 3, 4, 5]
    stage.standings["fast"].bandwidth = 1e9
    assert len(stage.take().chunks) == 16


def test_a_task_never_crosses_files_nor_holds_what_is_there() -> None:
    stage = Stage(10, [FAST], files=[0, 0, 0, 1, 1, 1, 1, 1, 1, 1], present=[0, 5], streams=2)
    stage.standings["fast"].bandwidth = 1e9
    assert [list(stage.take().chunks) for _ in range(2)] == [[1, 2], [3, 4]]


def test_the_end_of_a_fetch_is_divided_among_the_streams() -> None:
    stage = Stage(8, [FAST], streams=4)
    stage.standings["fast"].bandwidth = 1e9
    assert len(stage.take().chunks) == 1


def test_what_a_failed_task_has_not_brought_goes_to_another_source() -> None:
    stage = Stage(8, [FAST, SLOW], streams=1)
    stage.standings["fast"].bandwidth = stage.standings["slow"].bandwidth = 1e9
    task = stage.take()
    assert list(task.chunks) == [0, 1, 2, 3]
    stage.schedule.arrived(task, 1.0)
    stage.schedule.failed(task, ConnectionResetError("gone"))
    again = stage.take()
    assert again.chunks[0] == 1
    assert again.source != task.source
    assert stage.statistics.failovers == 1
    assert stage.statistics.bytes_from == {task.source.name: 100}


def test_a_liar_is_not_asked_again_and_what_it_still_brings_is_not_wanted() -> None:
    stage = Stage(8, [FAST])
    task, other = stage.take(), stage.take()
    assert stage.schedule.is_wanted(other)
    stage.schedule.violated(task, HashMismatch("lie"))
    assert not stage.schedule.is_wanted(other)
    assert stage.is_at_rest()
    assert stage.banned == {"fast"}
    assert stage.statistics.bad_chunks == stage.statistics.violations == {"fast": 1}
    with pytest.raises(Unavailable, match=r"no source is left.*fast: HashMismatch, lie"):
        stage.schedule.wait_for(0, stage.now + 1)


def test_only_wrong_hashes_count_as_bad_chunks() -> None:
    stage = Stage(1, [FAST])
    stage.schedule.violated(stage.take(), Malformed("garbage"))
    assert (stage.statistics.bad_chunks, stage.statistics.violations) == ({}, {"fast": 1})


def take_from(stage: Stage, source: Source) -> FetchTask:
    """The next task, drawn for `source`, whose chunks take it a second as they do the others."""
    for name in stage.standings:
        stage.standings[name].bandwidth = 100.0
        stage.standings[name].rests_until = 0.0 if name == source.name else float("inf")
    task = stage.take()
    for standing in stage.standings.values():
        standing.rests_until = 0.0
    return task


def test_the_last_chunk_of_a_laggard_is_asked_of_another_source() -> None:
    stage = Stage(1, [FAST, SLOW])
    task = take_from(stage, SLOW)
    stage.now += 2.9
    assert stage.is_at_rest()
    stage.now += 0.2
    second = stage.take()
    assert (second.source, list(second.chunks)) == (FAST, [0])
    assert stage.is_at_rest(), "a chunk is asked of two sources at most"
    stage.finish(second)
    assert not stage.schedule.is_wanted(task)
    stage.finish(task)
    assert stage.statistics.bytes_from == {"fast": 100}, "bytes that came twice count once"


def at_the_end(stage: Stage, **bandwidths: float) -> FetchTask:
    """A task of the slow source, when all other chunks are there and each source has such a bandwidth."""
    task = take_from(stage, SLOW)
    while stage.schedule.stock.free.any():
        stage.finish(take_from(stage, FAST))
    for name, bandwidth in bandwidths.items():
        stage.standings[name].bandwidth = bandwidth
    return task


def test_at_the_end_a_fast_relay_is_asked_for_what_a_slow_one_would_take_long_for() -> None:
    stage = Stage(20, [FAST, SLOW, ORIGIN], streams=4)
    task = at_the_end(stage, fast=1000.0, slow=100.0, origin=5000.0)
    again = [stage.take(), stage.take()]
    assert [(each.source, *each.chunks) for each in again] == [(FAST, chunk) for chunk in reversed(task.chunks)]
    assert stage.is_at_rest(), "each is asked for twice, and not three times"
    for each in again:
        stage.finish(each, 0.1)
    assert stage.schedule.stock.is_whole


@pytest.mark.parametrize(
    ("slow", "fast", "waited"),
    [(300.0, 1000.0, 0.0), (100.0, 1000.0, 0.9), (1000.0, 9000.0, 0.0)],
    ids=["hardly later", "about to come", "soon anyway"],
)
def test_what_a_slow_relay_brings_soon_is_not_asked_for_again(slow: float, fast: float, waited: float) -> None:
    stage = Stage(2, [FAST, SLOW], streams=3)
    at_the_end(stage, slow=slow, fast=fast)
    stage.now += waited
    assert stage.is_at_rest()


def test_the_origin_is_not_asked_for_what_a_slow_relay_is_bringing() -> None:
    stage = Stage(2, [SLOW, ORIGIN], streams=3)
    take_from(stage, SLOW)
    stage.finish(take_from(stage, ORIGIN))
    stage.standings["origin"].bandwidth = 5000.0
    assert stage.is_at_rest()


def test_a_source_that_moves_is_no_laggard() -> None:
    stage = Stage(2, [FAST, SLOW])
    stage.standings["fast"].bandwidth = stage.standings["slow"].bandwidth = 10.0  # a chunk takes ten seconds
    task = stage.take()
    stage.take()
    stage.now += 25.0
    assert stage.is_at_rest()
    stage.schedule.arrived(task, 10.0)
    stage.now += 10.0
    assert stage.take()


def test_a_laggard_is_asked_for_nothing_more_meanwhile() -> None:
    stage = Stage(20, [FAST, SLOW], streams=10)
    take_from(stage, SLOW)
    stage.now += 4.0
    assert {stage.take().source for _ in range(10)} == {FAST}


def test_laggards_take_no_streams_from_the_others() -> None:
    """However many tasks hang, as many as there are streams are at work."""
    stage = Stage(40, [FAST, SLOW], files=list(range(40)), streams=2)
    for _ in range(2):
        take_from(stage, SLOW)
    assert stage.is_at_rest()
    stage.now += 4.0
    assert [stage.take().source for _ in range(2)] == [FAST, FAST]
    assert stage.is_at_rest()


def test_the_only_source_never_lags_however_slow() -> None:
    stage = Stage(10, [SLOW], streams=2)
    stage.take()
    stage.now += 1000.0
    assert stage.take().source == SLOW
    assert stage.is_at_rest()


def test_a_chunk_that_two_tasks_hold_comes_back_only_when_both_have_failed() -> None:
    stage = Stage(1, [FAST, SLOW])
    task = take_from(stage, SLOW)
    stage.now += 4.0
    second = stage.take()
    assert second.source == FAST
    stage.schedule.failed(task, OSError("gone"))
    stage.now += 0.5
    assert stage.is_at_rest()
    stage.schedule.failed(second, OSError("gone too"))
    stage.now += 60.0
    assert list(stage.take().chunks) == [0]


def test_the_wait_ends_at_the_deadline_with_what_is_missing_and_why() -> None:
    stage = Stage(6, [FAST, ORIGIN])
    stage.schedule.failed(stage.take(), ConnectionRefusedError("refused"))
    asked = next(name for name, standing in stage.standings.items() if standing.last_failure == "refused")
    with pytest.raises(DeadlineExceeded) as caught:
        stage.schedule.wait_for(0, stage.now)
    assert "6 of 6 missing (chunk 0, chunk 1, chunk 2, chunk 3 and 2 more)" in str(caught.value)
    assert f"{asked}: refused" in str(caught.value)
    assert ": not asked" in str(caught.value)


def test_without_a_source_the_wait_ends_at_once() -> None:
    with pytest.raises(Unavailable, match="No source was given"):
        Stage(1, []).schedule.wait_for(0, 1e9)


def test_after_the_end_nobody_is_blamed() -> None:
    """Connections are cut at the end; what their threads make of it says nothing about the sources."""
    stage = Stage(2, [FAST, SLOW])
    first, second = stage.take(), stage.take()
    stage.schedule.stop()
    stage.schedule.failed(first, OSError("cut"))
    stage.schedule.violated(second, Malformed("cut"))
    assert stage.schedule.take() is None
    assert stage.statistics == Statistics()
    assert not stage.banned
    assert all(standing.success(stage.now) == 1.0 for standing in stage.standings.values())


# ---- relays that have some of it


def holding(held: str, coming: str = "", revision: int = 1) -> Holding:
    """Of ten chunks, those whose digits are named."""
    bits = [np.array([str(chunk) in named for chunk in range(10)], np.bool_) for named in (held, coming)]
    return Holding(revision, *bits)


def test_of_what_a_source_holds_the_rarest_chunk_is_asked_of_it() -> None:
    stage = Stage(10, [FAST, SLOW], watched=["fast", "slow"], streams=10)
    stage.schedule.heard("slow", holding("", coming="0123456"))
    stage.schedule.heard("fast", holding("0123459"))
    taken = [stage.take().chunks[0]]
    stage.schedule.arrived(stage.schedule._running[0], 1.0)
    assert taken == [9], "which no other relay has or will have"
    assert stage.take().chunks[0] in range(6)


def test_nothing_is_asked_of_a_relay_before_it_says_what_it_holds() -> None:
    stage = Stage(10, [FAST], watched=["fast"])
    assert stage.is_at_rest()
    stage.schedule.heard("fast", holding("7"))
    assert list(stage.take().chunks) == [7]
    assert stage.is_at_rest()


def test_the_origin_is_asked_when_the_relay_does_not_begin_in_time_and_left_alone_once_it_does() -> None:
    stage = Stage(10, [FAST, ORIGIN], watched=["fast"], patience=8.0, streams=1)
    stage.schedule.unheard("fast", "status 404", may_come=True)
    stage.now += 7.9
    assert stage.is_at_rest()
    stage.now += 0.2
    task = stage.take()
    assert task.source == ORIGIN
    stage.finish(task)
    stage.schedule.heard("fast", holding("3"))
    assert stage.take().source == FAST


def test_a_busy_relay_keeps_what_it_promised_and_is_waited_for_no_longer_than_before() -> None:
    stage = Stage(10, [FAST, ORIGIN], watched=["fast"], patience=8.0, streams=1)
    stage.schedule.heard("fast", holding("3", coming="4"))
    stage.schedule.busy("fast", "status 503")
    task = stage.take()
    assert (task.source, list(task.chunks)) == (FAST, [3])
    stage.finish(task)
    assert stage.is_at_rest(), "it may bring more soon"
    stage.now += 8.1
    assert stage.take().source == ORIGIN


def test_a_relay_that_is_busy_before_it_promised_anything_is_not_waited_for() -> None:
    stage = Stage(10, [FAST, ORIGIN], watched=["fast"], patience=8.0, streams=1)
    stage.schedule.busy("fast", "status 503")
    assert stage.take().source == ORIGIN


def test_a_relay_asks_the_origin_for_what_no_other_relay_has() -> None:
    stage = Stage(10, [FAST, ORIGIN], watched=["fast"], relays=True, streams=10)
    stage.schedule.heard("fast", holding("01234", coming="56"))
    stage.standings["fast"].rests_until = float("inf")
    stage.standings["origin"].bandwidth = 1e9
    assert {stage.take().chunks[0] for _ in range(2)} < {7, 8, 9}


@pytest.mark.parametrize(
    ("of_relay", "asked"), [(99.0, {"origin"}), (101.0, {"origin", "fast"}), (None, {"origin", "fast"})]
)
def test_a_relay_leaves_the_line_of_a_slower_one_to_nodes_and_tries_one_it_does_not_know(
    of_relay: float | None, asked: set[str]
) -> None:
    stage = Stage(10, [FAST, ORIGIN], watched=["fast"], relays=True, streams=4)
    stage.schedule.heard("fast", holding("0123456789"))
    stage.standings["origin"].bandwidth, stage.standings["fast"].bandwidth = 100.0, of_relay
    taken = [task.source.name for task in iter(stage.schedule.offer, None)]
    assert set(taken) == asked


def test_a_relay_asks_a_slow_one_while_the_origin_rests() -> None:
    stage = Stage(10, [FAST, ORIGIN], watched=["fast"], relays=True)
    stage.schedule.heard("fast", holding("0123456789"))
    stage.standings["origin"].bandwidth, stage.standings["fast"].bandwidth = 100.0, 1.0
    stage.standings["origin"].rests_until = stage.now + 1.0
    assert stage.take().source == FAST


def test_a_relay_that_brings_nothing_new_for_a_while_is_no_longer_waited_for() -> None:
    stage = Stage(10, [FAST, ORIGIN], watched=["fast"], patience=8.0)
    stage.schedule.heard("fast", holding("3"))
    stage.finish(stage.take())
    stage.now += 7.9
    assert stage.is_at_rest()
    stage.now += 0.2
    assert stage.take().source == ORIGIN


@pytest.mark.parametrize("each", [4.0, 0.5])
def test_relays_that_would_take_long_for_the_whole_do_not_keep_a_node_from_the_origin(each: float) -> None:
    """A thousand chunks at one in four seconds are more than an hour; at two a second they are soon here."""
    stage = Stage(1000, [FAST, ORIGIN], watched=["fast"], patience=8.0, streams=1)
    asked = []
    for number in range(int(60 / each)):
        held = np.arange(1000) <= number
        stage.schedule.heard("fast", Holding(number + 1, held, ~held))
        stage.now += each / 2
        while (task := stage.schedule.offer()) is not None:
            asked.append((stage.now, task.source))
            stage.finish(task, 0.01)
            if task.source == ORIGIN:
                break
        stage.now += each / 2
    began = [when - 1000.0 for when, source in asked if source == ORIGIN]
    assert bool(began) == (each > 1), "whatever it promises"
    assert all(when < 20 for when in began[:1])


def test_relays_are_waited_for_again_once_they_are_fast_enough() -> None:
    feed = Feed(6000, 0.0)  # ten bytes a second are enough
    feed.brought(50, 1.0)
    feed.brought(50, 9.0)
    assert feed.is_enough(9.0, 5.0)
    assert not feed.is_enough(11.0, 5.0)
    feed.brought(150, 15.0)
    assert feed.next_look(5.0) == 21.0
    assert feed.is_enough(21.0, 5.0)
    assert not feed.is_enough(25.1, 5.0), "ten seconds without a chunk"
    feed.could_not(40.0)
    assert feed.is_enough(50.0, 5.0)


def test_whoever_asks_is_told_what_is_here_and_what_is_on_its_way() -> None:
    stage = Stage(3, [FAST], streams=1)
    before = stage.schedule.stock.holding(0, 0.0)
    task = stage.take()
    assert stage.schedule.stock.holding(before.revision, 0.0).coming.tolist() == [True, False, False]
    stage.finish(task)
    after = stage.schedule.stock.holding(before.revision, 60.0)
    assert (after.held.tolist(), after.revision > before.revision) == ([True, False, False], True)


# ---- who is woken


def test_what_a_relay_says_wakes_nobody_who_asks_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(10, [FAST], watched=["fast"])
    woken: list[int] = []
    monkeypatch.setattr(stage.schedule.stock._news, "notify_all", lambda: woken.append(1))
    for number in range(9):
        stage.schedule.heard("fast", holding("0123456789"[: number + 1]))
    assert woken == []
    stage.schedule.arrived(stage.take(), 1.0)
    assert woken == [1]


def test_a_word_wakes_as_many_workers_as_there_are_tasks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(10, [FAST], watched=["fast"], streams=3)
    workers = stage.schedule._workers
    monkeypatch.setattr(stage.schedule, "_time_to_next", lambda now: 3600.0)  # nobody wakes by itself
    looked: list[int] = []
    offer = stage.schedule.offer
    monkeypatch.setattr(stage.schedule, "offer", lambda: looked.append(1) or offer())
    taken: Queue[FetchTask | None] = Queue()
    threads = [Thread(target=lambda: taken.put(stage.schedule.take()), daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(looked) == 8, what="all have looked")
    stage.schedule.heard("fast", holding("0123456789"))
    tasks = [taken.get(timeout=10) for _ in range(3)]
    assert all(task is not None and task.source == FAST for task in tasks)
    with workers:
        assert len(looked) <= 8 + 4, "three that found a task, and one that found none"
    stage.schedule.stop()
    assert [taken.get(timeout=10) for _ in range(5)] == [None] * 5


@pytest.mark.parametrize(("crowd", "pause"), [(15, None), (95, 0.08)])
def test_a_crowd_that_asks_what_is_here_is_told_less_often(
    monkeypatch: pytest.MonkeyPatch, crowd: int, pause: float | None
) -> None:
    stock = Stage(3, [FAST]).schedule.stock
    paused: list[float] = []
    monkeypatch.setattr(stock, "_askers", crowd)
    monkeypatch.setattr(stock._closed, "wait", lambda seconds: paused.append(seconds))
    assert stock.holding(0, 0.0).revision == 1
    assert paused == ([] if pause is None else [pytest.approx(pause)])
    assert stock._askers == crowd
