"""Groups that a batch may be made of: each content once, whatever order things come and go in."""

from __future__ import annotations

import random
from typing import Any

from trainer.rollouts.pool import GroupPool, TrainingGroup


def group(submission: int, index: int = 0, *, step: int = 0, content: str = "") -> TrainingGroup:
    name = submission.to_bytes(32, "big")
    return TrainingGroup(name, index, f"node {submission}", step, (), content or f"{submission}/{index}")


def test_a_copy_takes_the_place_of_what_was_taken_back() -> None:
    pool, first, copy = GroupPool(), group(1, content="same"), group(2, content="same")
    assert (pool.add(first), pool.add(copy)) == (True, False)
    assert pool.ready() == [first]
    pool.take_back([first])
    assert pool.ready() == [copy]
    pool.take_back([copy])
    assert not len(pool)


def test_neither_a_group_that_was_trained_on_nor_its_copy_is_ready_again() -> None:
    pool, first, copy = GroupPool(), group(1, content="same"), group(2, content="same")
    pool.add(first)
    pool.add(copy)
    pool.train_on(first)
    assert not len(pool)
    resumed = GroupPool()
    resumed.restore(list(pool.trained))
    assert (resumed.add(copy), resumed.add(first)) == (False, True)
    assert not len(resumed)


def test_what_is_too_old_is_dropped_and_counted_once() -> None:
    pool = GroupPool()
    for submission in range(6):
        pool.add(group(submission, step=submission // 2))
    assert pool.drop_before(2) == 4
    assert pool.drop_before(2) == 0
    assert [g.step for g in pool.ready()] == [2, 2]


def test_it_is_right_after_any_sequence_of_changes() -> None:
    """Against the plain definition: of every content, one usable group, unless one with it was trained on."""
    dice = random.Random(7)
    every = [
        group(submission, index, step=submission % 4, content=f"{dice.randrange(12)}")
        for submission in range(12)
        for index in range(2)
    ]
    for _ in range(200):
        pool, usable, trained = GroupPool(), {}, set()
        for _ in range(30):
            one, what = dice.choice(every), dice.randrange(4)
            if what < 2:
                pool.add(one)
                if one.name not in trained:
                    usable[one.name] = one
            elif what == 2:
                pool.take_back([one])
                usable.pop(one.name, None)
            elif pool.ready():
                taken = dice.choice(pool.ready())
                pool.train_on(taken)
                usable.pop(taken.name)
                trained.add(taken.name)
            spent = {g.content for g in every if g.name in trained}
            ready = pool.ready()
            assert {g.content for g in ready} == {g.content for g in usable.values()} - spent
            assert len({g.content for g in ready}) == len(ready)
            assert all(g.name in usable for g in ready)
        assert _held(pool) == len(usable)


def _held(pool: Any) -> int:
    """Nothing is kept but what is usable."""
    by_step = sum(len(of) for of in pool._by_step.values())
    assert by_step == sum(len(of) for of in pool._by_content.values())
    return by_step
