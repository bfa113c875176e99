"""What nodes make when each knows what the trainer wants and what the others have committed to, and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from node.contributor.wanted import (
    AT_AN_END,
    ENOUGH,
    NOT_OUR_TURN,
    NOT_WANTED,
    Commitments,
    Prospect,
    limit,
    prospect,
)
from protocol.signing import Need

NEED = Need(run=1, step=10, last=60, groups=16, ahead=200, ready=0, settled=0, usable=1000, until=0)
"""Four submissions of four groups make a batch."""
NODES = [f"node-{number}" for number in range(12)]


def most(head: int = 10, **changes: int) -> int:
    return limit(replace(NEED, **changes), head, max_lag=2, groups=4)


def ask(node: str, made: dict[str, int], *, lately: dict[str, int] | None = None, head: int = 10, patient: bool = True,
        **changes: int) -> Prospect:  # fmt: skip
    committed = Commitments(Counter(made), Counter(made if lately is None else lately))
    return prospect(node, replace(NEED, **changes), head, committed, max_lag=2, groups=4, patient=patient)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 8),  # two batches of four submissions
        ({"ahead": 150}, 6),
        ({"ahead": 400}, 12),  # a version goes into three batches at most
        ({"head": 9}, 8),
        ({"head": 8}, 4),  # the batch that is collected is the last that can hold it
        ({"head": 7}, 0),
        ({"ready": 9}, 6),
        ({"ready": 40}, 0),
        ({"settled": 5}, 13),
        ({"settled": 5, "ready": 40}, 5),
        ({"usable": 500}, 16),
        ({"last": 11}, 4),
        ({"last": 10}, 0),
    ],
)
def test_as_much_is_wanted_as_batches_can_still_hold(changes: dict[str, int], expected: int) -> None:
    assert most(**changes) == expected


def test_a_node_begins_while_something_is_wanted_and_says_why_it_does_not() -> None:
    assert ask("a", {}) == Prospect(8, "")
    assert ask("a", {"a": 3, "b": 4}).reason == ""
    assert ask("a", {"a": 4, "b": 4}) == Prospect(0, ENOUGH)
    assert ask("a", {"a": 4, "b": 4}, lately={"a": 4, "b": 5}, settled=1).reason == ""
    assert ask("a", {}, head=7).reason == NOT_WANTED
    assert ask("a", {}, last=10).reason == AT_AN_END


def test_of_many_nodes_that_look_at_once_as_many_begin_as_are_wanted() -> None:
    lately = dict.fromkeys(NODES, 3)
    begun = [node for node in NODES if not ask(node, {}, lately=lately).reason]
    assert len(begun) == 8
    assert {ask(node, {}, lately=lately).reason for node in set(NODES) - set(begun)} == {NOT_OUR_TURN}
    other = [node for node in NODES if not ask(node, {}, lately=lately, head=11, step=11).reason]
    assert begun != other  # turns change with the version


def test_those_who_have_made_least_lately_go_first() -> None:
    lately = {node: 5 for node in NODES} | {"node-7": 4, "node-3": 4}
    begun = [node for node in NODES if not ask(node, {}, lately=lately, ahead=100, ready=8).reason]
    assert begun == ["node-3", "node-7"]


def test_nobody_waits_for_seats_that_make_now_and_then_what_keeps_them_in_the_line() -> None:
    """They would hold everybody up in each round, and get their stakes back in the end."""
    idle = {f"idle-{number}": 1 for number in range(16)}
    working = dict.fromkeys(NODES[:8], 8)
    assert [node for node in working if not ask(node, {}, lately=idle | working).reason] == NODES[:8]

    def begin(of_slow: int) -> list[str]:
        """Where one submission is wanted, and node-0 made so many."""
        lately = idle | working | {"node-0": of_slow}
        return [node for node in working if not ask(node, {}, lately=lately, ahead=25).reason]

    assert begin(4) == ["node-0"], "who makes half as much has its turn"
    assert "node-0" in begin(3)
    assert len(begin(3)) == 2


def test_a_turn_that_nobody_takes_goes_to_whoever_has_waited_long_enough() -> None:
    lately = dict.fromkeys(NODES, 3)
    last = next(node for node in NODES if ask(node, {}, lately=lately).reason)
    assert ask(last, {}, lately=lately, patient=False).reason == ""


def test_what_one_node_makes_too_much_takes_no_turn_from_the_others() -> None:
    assert ask("honest", {"greedy": 9, "honest": 1, "other": 1}).reason == ""
    assert ask("greedy", {"greedy": 9, "honest": 1, "other": 1}).reason == ENOUGH


def test_a_slow_node_is_never_sent_away_for_what_faster_ones_made() -> None:
    assert ask("slow", {"slow": 1, "fast": 4, "faster": 4}).reason == ""


@pytest.mark.parametrize(("seconds", "least"), [([3, 3, 3], 0.9), ([2, 3, 4], 0.8), ([1, 6, 6], 0.3)])
def test_all_that_is_wanted_is_made_and_hardly_more(seconds: list[int], least: float) -> None:
    """Nodes of these speeds, a trainer that needs a second a batch, and nothing lost: by turns of a second."""
    committed: list[tuple[str, int]] = []  # (node, step)
    ready: list[int] = []  # steps of groups that may be trained on
    busy = dict.fromkeys(range(len(seconds)), (0, -1))  # → (until, step)
    step, trained, stale = 0, 0, 0
    for now in range(1, 400):
        for number, (until, of) in busy.items():
            if of >= 0 and until == now:
                committed.append((f"node-{number}", of))
                ready.extend([of] * 4)
                busy[number] = 0, -1
        stale += sum(of < step - 2 for of in ready)
        ready = sorted(of for of in ready if of >= step - 2)
        if len(ready) >= 16:
            ready, step, trained = ready[16:], step + 1, trained + 16
        in_window = Counter(node for node, of in committed if of >= step - 2)
        lately = Counter(node for node, of in committed if of >= step - 18)
        need = replace(
            NEED, step=step, last=1000, ready=len([of for of in ready if of >= step - 2]), settled=in_window.total()
        )
        for number, (_, of) in busy.items():
            node = f"node-{number}"
            if (
                of < 0
                and not prospect(
                    node, need, step, Commitments(in_window, lately), max_lag=2, groups=4, patient=True
                ).reason
            ):
                busy[number] = now + seconds[number], step
    assert trained > 12 * len(committed) * 4 // 13
    assert stale <= 0.1 * trained
    made = Counter(node for node, _ in committed)
    assert min(made.values()) >= least * max(made.values()) * min(seconds) / max(seconds) * 0.9
