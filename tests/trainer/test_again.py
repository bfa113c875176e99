"""A version that no seat can make more of is followed by the same weights, so that no run stands still for good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from swarm.anvil import Anvil

from protocol.errors import DeadlineExceeded
from protocol.identity import Key
from protocol.shell.signals import Ending
from protocol.signing import Join, keccak
from tests.clock import VirtualClock
from tests.hub.desk import run_settings
from tests.trainer import small
from tests.trainer.field import EQUAL, UNEQUAL, Field, open_field
from trainer.hub.outbox import Outbox
from trainer.learning.checkpoint import Checkpoints
from trainer.learning.learner import Learner
from trainer.learning.ranks import Ranks
from trainer.loop.followers import Lead
from trainer.loop.train import Trainer
from trainer.seats import held_seats, serving_seats

QUIET, WAIT = 10, 25


class Idle:
    """A hub's process that runs."""

    def require_running(self) -> str | None:
        return None


@pytest.fixture
def alone(anvil: Anvil, tmp_path: Path) -> Iterator[Field]:
    """A field whose seats are all this test's; each may make two submissions of a version."""
    with open_field(anvil, tmp_path, max_per_step=2) as made:
        yield made


@dataclass
class Loop:
    """A trainer that wants four groups, on a virtual clock. `said`: its states; `asides`: what happens once it waits, by turn."""

    field: Field
    trainer: Any
    clock: VirtualClock
    said: list[str] = field(default_factory=list)

    def wait(self, *asides: Callable[[], object]) -> Any:
        """Waits for a batch; `asides` happen one by one, each before another look."""
        left, poll = list(asides), self.trainer._source.poll

        def look(wait: int) -> None:
            if left:
                left.pop(0)()
            poll()
            self.clock.advance(wait)

        self.trainer._source.poll = look
        try:
            return self.trainer._wait_for_batch()
        finally:
            self.trainer._source.poll = poll
            assert not left

    def publish(self) -> None:
        """What the hub does with a version that was handed over."""
        self.trainer._publishing.finish()
        self.field.desk.step += 1
        assert self.trainer._outbox.waiting()[-1] == self.field.desk.step
        self.field.desk.world.publish(self.field.desk.step)

    def handed_over(self) -> list[int]:
        self.trainer._publishing.finish()
        return self.trainer._outbox.waiting()


@pytest.fixture
def loop(alone: Field, tmp_path: Path, model: Path, new_learner: Callable[..., Learner]) -> Loop:
    settings, layout = run_settings(alone.desk.world, tmp_path / "run.toml")
    layout.model.symlink_to(model)
    layout.output.mkdir()
    changed = settings.trainer.model_copy(update={
        "steps": 100, "groups_per_step": 4, "optimizer_steps": 1, "rollout_quiet_seconds": QUIET, "rollout_wait_seconds": WAIT,
        "checkpoint_every": 1000, "evaluate_every": 1000,
    })  # fmt: skip
    clock = VirtualClock()
    trainer: Any = Trainer(
        settings.model_copy(update={"trainer": changed}), layout, alone.desk.spec, Idle(), Ending(), Ranks.alone(), clock=clock
    )  # type: ignore[arg-type]  # fmt: skip
    trainer._outbox, trainer._lead, trainer._evaluator = (
        Outbox(layout.outgoing, layout.model),
        Lead(new_learner()),
        None,
    )
    trainer._source = alone.source(clock=clock, node_share=0.5)
    trainer._checkpoints = Checkpoints(layout.checkpoints, keep=2)
    made = Loop(alone, trainer, clock)
    say = trainer._say

    def note(state: str, **waiting: Any) -> None:
        made.said.append(state)
        say(state, **waiting)

    trainer._say = note
    trainer._publish()
    trainer._publishing.finish()
    return made


Group = tuple[float, ...]


def joined(loop: Loop) -> Key:
    node = Key.generate()
    loop.field.desk.world.seat_node(Key.generate(), node)
    return node


def works(loop: Loop, node: Key, validator: Key, *submissions: tuple[Group, Group]) -> None:
    """All of them are accepted."""
    for sequence, rewards in enumerate(submissions):
        loop.field.judge(validator, loop.field.submission(node, *rewards, sequence=sequence))


def test_where_all_seats_were_taken_after_a_version_the_same_weights_are_the_next(loop: Loop) -> None:
    loop.publish()
    node, validator = joined(loop), loop.field.desk.validator()
    two = (UNEQUAL, UNEQUAL)
    batch = loop.wait(lambda: None, loop.publish, lambda: works(loop, node, validator, two, two))
    assert {group.step for group in batch} == {1}
    assert loop.handed_over() == [0, 1]
    first, second = (small.stored(loop.trainer._outbox.folder / str(step)) for step in (0, 1))
    assert small.equal(first, second)
    assert loop.trainer.step == 1
    assert "no more can come of version 0: waiting for rollouts of the same weights as version 1" in loop.said


def test_where_nobody_has_a_seat_no_version_is_published_again(loop: Loop) -> None:
    loop.publish()
    loop.wait(*[lambda: None] * 3 * WAIT, loop.trainer._stop.set)  # for longer than it would wait for rollouts
    assert loop.handed_over() == [0]
    assert set(loop.said) == {"waiting for a node to take a seat"}


def test_where_all_seats_have_made_all_they_may_groups_of_the_same_weights_fill_the_batch_at_once(loop: Loop) -> None:
    node, validator = joined(loop), loop.field.desk.validator()
    loop.publish()
    batch = loop.wait(
        lambda: works(loop, node, validator, (EQUAL, EQUAL), (EQUAL, UNEQUAL)),
        loop.publish,
        lambda: works(loop, node, validator, (UNEQUAL, UNEQUAL), (UNEQUAL, EQUAL)),
    )
    assert sorted(group.step for group in batch) == [0, 1, 1, 1]
    assert loop.clock.monotonic() < 1000 + QUIET


def test_a_batch_that_is_large_enough_is_taken_at_once_when_no_more_can_come(loop: Loop) -> None:
    node, validator = joined(loop), loop.field.desk.validator()
    loop.publish()
    batch = loop.wait(lambda: works(loop, node, validator, (EQUAL, UNEQUAL), (EQUAL, UNEQUAL)))
    assert len(batch) == 2
    assert loop.handed_over() == [0]


def test_nobody_waits_for_the_part_of_nodes_that_can_make_no_more(loop: Loop) -> None:
    one, other, validator = joined(loop), joined(loop), loop.field.desk.validator()
    loop.publish()

    def work() -> None:
        works(loop, one, validator, (UNEQUAL, UNEQUAL), (UNEQUAL, EQUAL))
        works(loop, other, validator, (UNEQUAL, EQUAL), (EQUAL, EQUAL))

    batch = loop.wait(work)
    assert Counter(group.node for group in batch) == {one.address: 3, other.address: 1}
    assert "waiting for other nodes" not in loop.said


def test_work_that_nobody_has_judged_is_waited_for_a_while(loop: Loop) -> None:
    node, found = joined(loop), list[int]()
    loop.publish()
    for sequence in range(2):
        loop.field.submission(node, sequence=sequence)
    with pytest.raises(DeadlineExceeded):
        loop.wait(*[lambda: None] * (QUIET - 1), lambda: found.extend(loop.handed_over()))
    assert found == [0]
    assert loop.handed_over() == [0, 1]


def test_a_seat_that_may_work_is_given_time_before_those_that_wait_get_the_next_version(loop: Loop) -> None:
    joined(loop)  # and makes nothing
    loop.publish()
    began: list[float] = []
    with pytest.raises(DeadlineExceeded):
        loop.wait(
            lambda: None,
            lambda: joined(loop),
            *[lambda: None] * (QUIET - 3),
            lambda: began.append(len(loop.handed_over())),
        )
    assert began == [1]
    assert loop.handed_over() == [0, 1]


def test_a_seat_that_may_work_and_does_not_gets_no_version_more(loop: Loop) -> None:
    joined(loop)
    loop.publish()
    with pytest.raises(DeadlineExceeded, match="only 0 of 4 groups"):
        loop.wait()
    assert loop.handed_over() == [0]


def test_the_last_version_is_no_repetition(loop: Loop) -> None:
    """Nobody could work on it, and the run would end with nothing learned."""
    loop.trainer._t = loop.trainer._t.model_copy(update={"steps": 1})
    loop.publish()
    joined(loop)
    with pytest.raises(DeadlineExceeded):
        loop.wait()
    assert loop.handed_over() == [0]


def rotated(loop: Loop, operator: Key, node: Key) -> Key:
    """The node, with another key."""
    world, new = loop.field.desk.world, Key.generate()
    deadline = world.chain.block().time + 600
    join = Join(world.run, operator.address, new.address, keccak(new.peer), 0, deadline)
    call = world.chain.rotate(
        world.run, node.address, new.address, new.peer, deadline, join.sign(new, world.chain.domain)
    )
    world.sender(operator).send(call)
    return new


def test_a_seat_that_takes_another_key_each_time_has_few_versions_published_again(loop: Loop) -> None:
    """It may work on none of them, and it alone is there."""
    operator, node = Key.generate(), Key.generate()
    loop.field.desk.world.seat_node(operator, node)
    loop.trainer._t = loop.trainer._t.model_copy(update={"rollout_wait_seconds": 20 * QUIET})
    loop.publish()
    out = [0]

    def rotate() -> None:
        nonlocal node
        for _ in range(len(loop.handed_over()) - len(out)):
            loop.publish()
            out.append(1)
        node = rotated(loop, operator, node)

    most = loop.field.desk.spec.max_lag + 1
    with pytest.raises(DeadlineExceeded):
        loop.wait(*[rotate] * 3 * QUIET)
    assert 0 < len(loop.handed_over()) - 1 <= most


def test_where_nothing_teaches_few_versions_are_published_again_and_one_more_for_each_newcomer(loop: Loop) -> None:
    node, validator = joined(loop), loop.field.desk.validator()
    loop.trainer._t = loop.trainer._t.model_copy(update={"rollout_wait_seconds": 20 * QUIET})
    loop.publish()
    began, out = loop.clock.monotonic(), [0]

    def work() -> None:
        for _ in range(len(loop.handed_over()) - len(out)):
            loop.publish()
            out.append(1)
        if len(out) > len(done):
            done.append(1)
            works(loop, node, validator, (EQUAL, EQUAL), (EQUAL, EQUAL))

    done: list[int] = []
    most = loop.field.desk.spec.max_lag + 1
    late = [lambda: None] * (QUIET * (most + 2))
    with pytest.raises(DeadlineExceeded):
        loop.wait(*[work] * len(late), lambda: joined(loop), *[work] * 2 * QUIET)
    assert len(loop.handed_over()) - 1 == most + 1
    assert loop.clock.monotonic() - began > (most - 1) * QUIET, "all at once"


def test_a_commitment_without_a_file_keeps_nobody_waiting_for_good(loop: Loop) -> None:
    node, validator = joined(loop), loop.field.desk.validator()
    loop.publish()
    two = (UNEQUAL, UNEQUAL)
    loop.field.submission(node)  # of which nothing comes
    late = joined(loop)
    loop.trainer._t = loop.trainer._t.model_copy(update={"rollout_wait_seconds": 5 * QUIET})
    batch = loop.wait(*[lambda: None] * (QUIET + 1), loop.publish, lambda: works(loop, late, validator, two, two))
    assert {group.node for group in batch} == {late.address}


def test_seats_are_followed_through_new_keys_and_new_hands_to_their_end(loop: Loop) -> None:
    world, operator, buyer = loop.field.desk.world, Key.generate(), Key.generate()
    node, new = Key.generate(), Key.generate()
    world.seat_node(operator, node)
    source = loop.trainer._source
    book = source._book

    def seat() -> tuple[str, bool, int]:
        book.poll()
        (held,) = held_seats(book)
        assert held.since == world.chain.seat(world.run, node.address).since
        return held.node, bool(serving_seats(book)), held.since

    assert seat()[:2] == (node.address, True)
    deadline = world.chain.block().time + 600
    consent = Join(world.run, operator.address, new.address, keccak(new.peer), 0, deadline).sign(
        new, world.chain.domain
    )
    world.sender(operator).send(world.chain.rotate(world.run, node.address, new.address, new.peer, deadline, consent))
    assert seat()[:2] == (new.address, True)
    before = seat()[2]
    world.sender(operator).send(world.chain.offer(world.run, node.address, buyer.address, deadline))
    world.sender(buyer).send(world.chain.accept(world.run, node.address))
    assert seat()[2] > before
    world.sender(buyer).send(world.chain.leave(world.run, node.address))
    assert seat()[:2] == (new.address, False)
    source.poll()
    assert not source.has_seats
