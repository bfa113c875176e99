"""Training data, against a real chain and a real hub: what becomes a batch, and what is left out of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from protocol.identity import Key
from protocol.verdict import Outcome
from tests.clock import VirtualClock
from tests.trainer.field import (
    EQUAL,
    UNEQUAL,
    Field,
    both,
    samples,
    submissions,
    usable,
)


def test_accepted_rollouts_become_groups_with_their_tokens_and_advantages(
    field: Field, node: Key, validator: Key
) -> None:
    made = samples([(0.0, 1.0, 0.0, 1.0), (0.0, 0.0, 0.0, 2.0)])
    ref = field.submit(node, field.file(node, made))
    field.judge(validator, ref)
    source = field.source()
    source.poll()
    first, second = sorted(source.take(field.first, 2) or [], key=lambda group: group.index)
    assert (first.node, first.step, first.submission) == (node.address, field.first, field.desk.submission(ref))
    for group, expected in ((first, made[:4]), (second, made[4:])):
        for sample, of in zip(group.samples, expected, strict=True):
            assert np.array_equal(sample.prompt, of.prompt)
            assert np.array_equal(sample.completion, of.completion)
    assert [s.advantage for s in first.samples] == pytest.approx([-0.866, 0.866, -0.866, 0.866], abs=1e-3)
    assert [s.advantage for s in second.samples] == pytest.approx([-0.5, -0.5, -0.5, 1.5], abs=1e-3)
    assert (source.counts.samples, source.counts.groups, source.counts.reward) == (8, 2, 4.0)
    assert source.trained_nodes == {node.address: 2}
    assert list((field.folder / "incoming").iterdir()) == []


def test_nothing_is_used_without_a_receipt(field: Field, node: Key, validator: Key) -> None:
    field.submission(node)
    assert usable(field.source(), field.first) == set()


def test_as_many_validators_must_accept_as_the_spec_says(field: Field, node: Key, validator: Key) -> None:
    verification = field.desk.spec.verification.model_copy(update={"validators_needed": 2})
    spec = field.desk.spec.model_copy(update={"verification": verification})
    digest, source, other = spec.digest.hex(), field.source(spec=spec), field.desk.validator()
    ref = field.submission(node)
    field.judge(validator, ref, spec=digest)
    field.list_at_hub(field.desk.receipt(validator, ref, spec=digest, tokens_checked=11))  # no second validator's word
    assert usable(source, field.first) == set()
    field.judge(other, ref, spec=digest)
    assert usable(source, field.first) == both(field, ref)


def test_groups_with_equal_rewards_are_dropped_and_counted(field: Field, node: Key, validator: Key) -> None:
    ref, source = field.submission(node, EQUAL, UNEQUAL), field.source()
    field.judge(validator, ref)
    assert usable(source, field.first) == {(field.desk.submission(ref), 1)}
    assert (source.counts.groups, source.counts.zero_advantage_groups) == (2, 1)
    assert source.counts.environments["rotate_matrix"].dropped == {"all_right": 1, "none_right": 0, "equal": 0}


def test_groups_that_differ_in_their_length_penalty_only_are_dropped_and_counted(
    field: Field, node: Key, validator: Key
) -> None:
    """With length budgets total rewards nearly always differ: the filter looks at what the task gave."""
    made = samples([EQUAL, UNEQUAL])
    budgeted = [
        replace(sample, budget=9, length_penalty=0.01 * row, reward=sample.task_reward - 0.01 * row)
        for row, sample in enumerate(made)
    ]
    ref, source = field.submit(node, field.file(node, budgeted)), field.source()
    field.judge(validator, ref)
    assert usable(source, field.desk.step) == {(field.desk.submission(ref), 1)}
    assert (source.counts.groups, source.counts.zero_advantage_groups) == (2, 1)


def test_a_batch_waits_until_it_is_full_and_takes_the_oldest_weights_first(
    field: Field, node: Key, validator: Key
) -> None:
    old, source = field.submission(node), field.source()
    field.judge(validator, old)
    field.desk.nodes(0)  # version 1
    new = field.submission(node)
    source.poll()
    assert source.take(field.first + 1, 3) is None
    assert source.ready(field.first + 1) == 2
    field.judge(validator, new)
    source.poll()
    assert source.take(field.first + 1, 5) is None
    assert submissions(source.take(field.first + 1, 3)) > both(field, old)
    assert source.counts.staleness == {0: 1, 1: 2}
    assert source.ready(field.first + 1) == 1


@pytest.mark.parametrize("forgets", [True, False])
def test_groups_older_than_the_lag_are_dropped_and_counted(
    field: Field, node: Key, validator: Key, forgets: bool
) -> None:
    ref, source = field.submission(node), field.source()
    field.judge(validator, ref)
    source.poll()
    assert source.ready(field.first + 2) == 2  # max_lag
    if forgets:  # as the trainer does after every step
        source.forget_before(field.first + 3)
        source.poll()
    assert source.ready(field.first + 3) == 0
    assert source.counts.stale_groups == 2


def test_groups_that_were_too_old_before_they_were_accepted_are_counted_as_well(
    field: Field, node: Key, validator: Key
) -> None:
    late, other, source = field.submission(node), field.desk.validator(), field.source()
    source.poll()
    source.forget_before(field.first + 3)
    for who in (validator, other):  # they count once
        field.judge(who, late)
        source.poll()
    assert source.counts.stale_groups == field.desk.spec.sampling.groups_per_submission
    assert source.counts.trained_share == 0.0


def test_a_submission_is_settled_once_its_groups_are_known_or_it_is_rejected(field: Field, validator: Key) -> None:
    nodes, source = field.desk.nodes(3), field.source()
    refs = [field.submission(node, EQUAL, UNEQUAL) for node in nodes]
    source.poll()
    assert source.settled(field.first) == 0
    field.judge(validator, refs[0])
    field.judge(validator, refs[1], Outcome.SOFT)
    source.poll()
    assert source.settled(field.first) == source.settled(field.first + 2) == 2
    assert source.settled(field.first + 3) == 0
    assert source.usable == (0.5 + 0) / 2


def test_submissions_that_nobody_judges_are_counted_and_said(
    field: Field, node: Key, validator: Key, caplog: pytest.LogCaptureFixture
) -> None:
    judged, _ = field.submission(node), field.submission(node, sequence=1)
    source = field.source()
    field.judge(validator, judged)
    source.poll()
    for step in range(field.first, field.first + 5):  # as the trainer does after every step
        source.forget_before(step)
    assert source.counts.unjudged_submissions == 1
    assert f"1 submissions of step {field.first} are too old" in caplog.text
    resumed = field.source()
    resumed.forget_before(field.first + 4)
    resumed.poll()
    resumed.forget_before(field.first + 5)
    assert resumed.counts.unjudged_submissions == 0


def filled(field: Field, validator: Key, node: Key, groups: int, sequence: int = 0) -> None:
    """`groups` usable groups of a node, in submissions of two."""
    for number in range(groups // 2):
        field.judge(validator, field.submission(node, sequence=sequence + number))


def test_no_node_supplies_more_than_its_share_while_others_can(field: Field, validator: Key) -> None:
    big, small = field.desk.nodes(2)
    source = field.source(node_share=0.5)
    filled(field, validator, big, 6)
    filled(field, validator, small, 2)
    source.poll()
    assert source.ready(field.first) == 8
    assert source.take(field.first, 6) is None  # three of each
    filled(field, validator, small, 2, sequence=1)
    source.poll()
    batch = source.take(field.first, 6)
    assert batch is not None
    assert Counter(group.node for group in batch) == {big.address: 3, small.address: 3}


def test_when_the_wait_for_others_is_over_the_excess_is_spread_as_evenly_as_it_goes(
    field: Field, validator: Key
) -> None:
    big, small = field.desk.nodes(2)
    source = field.source(node_share=0.5)
    filled(field, validator, big, 8)
    filled(field, validator, small, 2)
    source.poll()
    assert source.take(field.first, 6) is None
    batch = source.take(field.first, 6, uncapped=True)
    assert batch is not None
    assert Counter(group.node for group in batch) == {big.address: 4, small.address: 2}
    assert source.ready(field.first) == 4


def test_a_node_alone_is_not_held_back(field: Field, node: Key, validator: Key) -> None:
    source = field.source(node_share=0.1)
    filled(field, validator, node, 4)
    source.poll()
    assert len(source.take(field.first, 4) or []) == 4


def test_what_came_in_is_told_by_environment(field: Field, node: Key, validator: Key) -> None:
    made = samples([UNEQUAL, EQUAL])
    elsewhere = field.desk.spec.environments[0].size
    made = [replace(sample, problem=elsewhere, budget=8) if sample.group else sample for sample in made]
    source = field.source()
    field.judge(validator, field.submit(node, field.file(node, made)))
    source.poll()
    rotate, spiral = (source.counts.environments[name] for name in ("rotate_matrix", "spiral_matrix"))
    assert (rotate.samples, rotate.mean_reward, rotate.mean_length_error) == (4, 0.5, None)
    assert (spiral.samples, spiral.mean_reward, spiral.mean_length_error) == (4, 1.0, 3.0)


def test_the_chain_is_looked_at_at_its_pace_or_when_a_validator_speaks_of_what_is_unknown(
    field: Field, node: Key, validator: Key
) -> None:
    clock = VirtualClock()
    source = field.source(clock=clock, poll_seconds=15)
    source.poll()
    first = source._book.head
    field.mine()
    clock.advance(14)
    source.poll()
    assert source._book.head == first
    clock.advance(2)
    source.poll()
    assert source._book.head != first
    ref = field.submission(node)
    field.judge(validator, ref)
    source.poll()
    assert usable(source, field.first) == both(field, ref)
