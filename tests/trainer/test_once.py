"""Nothing is trained on twice: not under another name, after a restart or after a reorg."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from swarm.world import policy_for

from protocol.chain.events import RunCreated
from protocol.identity import Key
from protocol.verdict import Outcome
from tests.trainer.field import (
    UNEQUAL,
    Field,
    both,
    samples,
    submissions,
    usable,
)


def test_nothing_is_used_twice(field: Field, node: Key, validator: Key) -> None:
    ref, source = field.submission(node), field.source()
    field.judge(validator, ref)
    assert usable(source, field.first) == both(field, ref)
    assert usable(source, field.first) == set()


def test_the_very_same_samples_are_used_once_under_whatever_name(field: Field, validator: Key) -> None:
    """Also when the first ones were trained on in an earlier life; and again when they are taken back."""
    one, other = field.desk.nodes(2)
    made = samples([UNEQUAL, UNEQUAL])
    first = field.submit(one, field.file(one, made))
    copied = [made[0], *samples([UNEQUAL, UNEQUAL])[1:4], *made[4:]]  # its first group differs, its second does not
    second = field.submit(other, field.file(other, copied))
    source = field.source()
    for ref in (first, second):
        field.judge(validator, ref)
    source.poll()
    assert source.ready(field.first) == 3
    assert source.counts.duplicate_groups == 1
    source.poll()
    assert source.counts.duplicate_groups == 1
    field.judge(field.desk.validator(), first, Outcome.SOFT)
    assert usable(source, field.first) == both(field, second)

    third = field.desk.node()
    again = field.submit(third, field.file(third, copied))
    field.judge(validator, again)
    resumed = field.source("resumed")
    resumed.restore(source.cursor)
    assert usable(resumed, field.first + 1) & both(field, again) == set()


def test_nothing_is_used_twice_after_a_restore(field: Field, node: Key, validator: Key) -> None:
    first, source = field.submission(node), field.source()
    field.judge(validator, first)
    source.poll()
    taken = submissions(source.take(field.first, 1))
    assert len(taken) == 1
    resumed = field.source("resumed")
    resumed.restore(source.cursor)
    second = field.submission(node, sequence=1)
    field.judge(validator, second)
    assert usable(resumed, field.first) == both(field, first, second) - taken


def test_what_was_counted_before_a_restore_is_counted_once(field: Field, node: Key, validator: Key) -> None:
    """The pool is filled again from the same files."""
    first, source = field.submission(node), field.source()
    field.judge(validator, first)
    source.poll()
    source.take(field.first, 1)
    saved = json.loads(json.dumps(source.counts.for_checkpoint()))
    before = source.counts.as_json()
    resumed = field.source("resumed")
    resumed.restore(source.cursor)
    resumed.counts.go_on_from(saved)
    resumed.poll()
    assert resumed.ready(field.first) == 1
    assert resumed.counts.as_json() == before | {"longest": 0}
    second = field.submission(node, sequence=1)
    field.judge(validator, second)
    resumed.poll()
    assert (resumed.counts.samples, resumed.counts.groups) == (2 * before["samples"], 2 * before["groups"])
    resumed.forget_before(field.first + 3)
    assert resumed.counts.counted == {}


def test_a_checkpoint_remembers_only_what_could_be_met_again(field: Field, node: Key, validator: Key) -> None:
    ref, source = field.submission(node), field.source()
    field.judge(validator, ref)
    source.poll()
    source.take(field.first, 2)
    source.forget_before(field.first + 2)
    assert len(source.cursor) == 2
    resumed = field.source("resumed")
    resumed.restore(source.cursor)
    resumed.forget_before(field.first + 3)  # without ever having seen the work
    assert resumed.cursor == []


def test_a_resumed_source_does_not_fetch_what_is_too_old(field: Field, node: Key, validator: Key) -> None:
    """A long run's whole history lies at the hub."""
    old = field.submission(node)
    field.judge(validator, old)
    field.desk.nodes(0)
    new = field.submission(node)
    field.judge(validator, new)
    source = field.source()
    source.forget_before(field.first + 3)
    assert usable(source, field.first + 3) == both(field, new)
    assert source.counts.samples == 8


def test_a_source_that_starts_looks_at_no_submission_of_before(
    field: Field, node: Key, validator: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sequence in range(3):
        field.submission(node, sequence=sequence)
    field.desk.nodes(0)
    new = field.submission(node)
    source, looked_at = field.source(), []
    source.forget_before(field.first + 3)
    note = source._note
    monkeypatch.setattr(source, "_note", lambda s: looked_at.append(s.ref) or note(s))
    source.poll()
    assert looked_at == [new]
    later = field.submission(node, sequence=1)
    source.poll()
    assert looked_at == [new, later]


def test_a_reorg_takes_back_what_it_took_and_gives_it_again_once(field: Field, node: Key, validator: Key) -> None:
    data = field.file(node, samples([UNEQUAL, UNEQUAL]))
    ref, source = field.submit(node, data), field.source()
    field.judge(validator, ref)
    source.poll()
    assert source.ready(field.first) == 2
    world = field.desk.world
    world.anvil.request("anvil_reorg", 1, [])
    source.poll()
    assert source.ready(field.first) == 0
    assert world.sender(node).recover() == 1  # the same transaction, mined again
    assert usable(source, field.first) == both(field, ref)
    assert usable(source, field.first) == set()


def test_a_reorg_within_one_poll_gives_nothing_twice(field: Field, node: Key, validator: Key) -> None:
    data = field.file(node, samples([UNEQUAL, UNEQUAL]))
    ref, source = field.submit(node, data), field.source()
    field.judge(validator, ref)
    source.poll()
    field.desk.world.anvil.request("anvil_reorg", 1, [])
    assert field.desk.world.sender(node).recover() == 1
    assert usable(source, field.first) == both(field, ref)


def test_a_reorg_in_another_run_changes_nothing_here(field: Field, node: Key, validator: Key) -> None:
    """The same node at the same step and sequence: lines of two runs must not be taken for one another."""
    world = field.desk.world
    ref, source = field.submission(node), field.source()
    policy = policy_for(world.owner.key, world.trainer.key)
    other = world.owner.send(world.chain.create(policy, b"\x09" * 32)).event(RunCreated).run
    elsewhere = replace(world, run=other)
    elsewhere.pretend_jury()
    elsewhere.owner.send(world.chain.fund(other, 10**22))
    elsewhere.seat_node(Key.generate(), node)
    for step in range(field.first + 1):
        elsewhere.publish(step)
    elsewhere.submit(node, field.first, 0, b"\x01" * 32)
    source.poll()
    world.anvil.request("anvil_reorg", 1, [])
    source.poll()
    field.judge(validator, ref)
    assert usable(source, field.first) == both(field, ref)
