"""What a page counts is what book and receipts hold, whatever order it came in and whatever was taken back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from benches.page_run import RUN, MadeRun, address

from protocol.chain import events
from protocol.chain.types import Role
from protocol.chain.view import View
from protocol.verdict import Outcome
from trainer.hub.database import Database
from trainer.page.tallies import BATCH, RunTallies


@pytest.fixture
def tallies(own_run: MadeRun) -> Iterator[RunTallies]:
    view, index = View.read(own_run.book), Database.reader(own_run.index)
    yield RunTallies(view, index)
    view.close()
    index.close()


def read_on(tallies: RunTallies) -> RunTallies:
    while tallies.follow():
        pass
    return tallies


def test_counts_are_those_of_book_and_receipts(own_run: MadeRun, tallies: RunTallies) -> None:
    read_on(tallies)
    made = own_run.submissions
    assert tallies.submissions == len(made)
    assert tallies.judged == sum(one.outcome is not None for one in made)
    for node in own_run.nodes:
        mine = [one for one in made if one.ref.node == node]
        seat, outcomes = tallies.seats[node], Counter(one.outcome for one in mine)
        assert (seat.submissions, seat.units) == (len(mine), sum(one.units for one in mine))
        expected = outcomes[Outcome.ACCEPT], outcomes[Outcome.SOFT], outcomes[Outcome.HARD]
        assert (seat.accepted, seat.soft, seat.hard) == expected
        assert (seat.last, seat.step) == (mine[-1].time, mine[-1].ref.step)
    for step, version in tallies.versions.items():
        assert version.submissions == sum(one.ref.step == step for one in made)
    assert sum(v.accepted + v.soft + v.hard for v in tallies.validators.values()) == tallies.judged


def test_a_run_is_read_in_batches_and_says_how_far_it_has_come(tmp_path: Path) -> None:
    run = MadeRun(tmp_path, nodes=2 * BATCH // 10, per_node=10, steps=10)
    tallies = RunTallies(View.read(run.book), Database.reader(run.index))
    assert tallies.follow()
    assert 0 < tallies.progress < 1 and not tallies.is_whole
    read_on(tallies)
    assert (tallies.progress, tallies.submissions) == (1, len(run.submissions))


def test_the_gravest_verdict_counts_and_counts_once(own_run: MadeRun, tallies: RunTallies) -> None:
    made = next(one for one in own_run.submissions if one.outcome == Outcome.ACCEPT)
    before = read_on(tallies).seats[made.ref.node]
    counts = before.accepted, before.soft, before.hard
    judged = tallies.judged
    own_run.add_receipt(made, address("validator", 90), Outcome.HARD, rule="sampling")
    own_run.add_receipt(made, address("validator", 91), Outcome.SOFT, rule="available")
    after = read_on(tallies).seats[made.ref.node]
    assert (after.accepted, after.soft, after.hard) == (counts[0] - 1, counts[1], counts[2] + 1)
    assert tallies.judged == judged


def test_what_a_reorganisation_takes_back_is_not_counted(own_run: MadeRun, tallies: RunTallies) -> None:
    node, block = own_run.nodes[0], own_run.block
    before = read_on(tallies).seats[node].submissions, tallies.submissions, tallies.funded, tallies.claimed
    own_run.tell(
        (events.Submitted, (RUN, node, bytes(32), 4, 77, 500)), (events.Funded, (RUN, 1)),
        (events.Claimed, (RUN, node, node, 1, 1)), (events.Left, (RUN, node, int(Role.LEFT), 0)),
    )  # fmt: skip
    read_on(tallies)
    assert (tallies.seats[node].submissions, tallies.submissions) == (before[0] + 1, before[1] + 1)
    assert tallies.seats[node].role == Role.LEFT
    own_run.take_back(block)
    read_on(tallies)
    assert (tallies.seats[node].submissions, tallies.submissions, tallies.funded, tallies.claimed) == before
    assert tallies.seats[node].role == Role.ACTIVE


def test_a_seat_keeps_its_counts_when_its_key_changes(own_run: MadeRun, tallies: RunTallies) -> None:
    node, fresh = own_run.nodes[0], address("fresh", 0)
    before = read_on(tallies).seats[node].submissions
    own_run.tell((events.Rotated, (RUN, fresh, node, bytes(8))))
    own_run.tell((events.Submitted, (RUN, fresh, bytes(32), 4, 78, 500)))
    read_on(tallies)
    assert tallies.seats[node].submissions == before + 1
    assert fresh not in tallies.seats


def test_a_key_that_a_reorganisation_gives_to_another_seat_works_for_that_one(
    own_run: MadeRun, tallies: RunTallies
) -> None:
    first, second, fresh, block = *own_run.nodes[:2], address("fresh", 0), own_run.block
    before = [read_on(tallies).seats[seat].submissions for seat in (first, second)]
    for seat, step in ((first, 78), (second, 79)):
        own_run.take_back(block)
        own_run.tell((events.Rotated, (RUN, fresh, seat, bytes(8))))
        own_run.tell((events.Submitted, (RUN, fresh, bytes(32), 4, step, 500)))
        read_on(tallies)
    assert [tallies.seats[seat].submissions for seat in (first, second)] == [before[0], before[1] + 1]


def test_a_seat_that_was_handed_over_is_shown_with_its_new_operator(own_run: MadeRun, tallies: RunTallies) -> None:
    node, to = own_run.nodes[0], address("buyer", 0)
    assert read_on(tallies).seats[node].operator == address("operator", 0)
    own_run.tell((events.HandedOver, (RUN, node, to, address("operator", 0))))
    assert read_on(tallies).seats[node].operator == to


def test_a_turn_in_which_nothing_came_asks_as_much_of_a_large_book_as_of_a_small_one(tmp_path: Path) -> None:
    asked = []
    for name, nodes in (("small", 4), ("large", 80)):
        run = MadeRun(tmp_path / name, nodes=nodes, per_node=10, steps=10)
        view, index = View.read(run.book), Database.reader(run.index)
        tallies = read_on(RunTallies(view, index))
        queries: list[str] = []
        view._db.set_trace_callback(queries.append)
        tallies.follow()
        asked.append(len(queries))
    assert asked[0] == asked[1] > 0
