"""A node's line of work: usable up to its first sequence that is missing, skipped or rejected."""

from __future__ import annotations

from protocol.chain.calls import Call
from protocol.identity import Key
from protocol.verdict import Outcome
from tests.trainer.field import (
    Field,
    both,
    usable,
)


def test_a_line_ends_at_its_first_rejected_sequence(field: Field, node: Key, validator: Key) -> None:
    refs = [field.submission(node, sequence=sequence) for sequence in range(4)]
    for ref, outcome in zip(refs, (Outcome.ACCEPT, Outcome.ACCEPT, Outcome.SOFT, Outcome.ACCEPT), strict=True):
        field.judge(validator, ref, outcome)
    assert usable(field.source(), field.first) == both(field, *refs[:2])


def test_a_line_waits_at_its_first_unjudged_sequence(field: Field, node: Key, validator: Key) -> None:
    refs, source = [field.submission(node, sequence=sequence) for sequence in range(3)], field.source()
    field.judge(validator, refs[2])
    assert usable(source, field.first) == set()
    field.judge(validator, refs[0])
    assert usable(source, field.first) == both(field, refs[0])
    field.judge(validator, refs[1])
    assert usable(source, field.first) == both(field, refs[1], refs[2])


def test_a_line_ends_at_a_skipped_sequence(field: Field, node: Key, validator: Key) -> None:
    world = field.desk.world
    first = field.submission(node)
    beacon = world.chain.publication(world.run, field.first).beacon
    world.sender(node).send(Call("skipping", world.chain.runs.functions.skip(world.run, field.first, 1, beacon)))
    third = field.submission(node, sequence=2)
    for ref in (first, third):
        field.judge(validator, ref)
    assert usable(field.source(), field.first) == both(field, first)


def test_one_rejection_outweighs_any_acceptance(field: Field, node: Key, validator: Key) -> None:
    ref, other = field.submission(node), field.desk.validator()
    field.judge(validator, ref, Outcome.ACCEPT)
    field.judge(other, ref, Outcome.HARD)
    assert usable(field.source(), field.first) == set()


def test_a_rejection_that_comes_later_takes_back_what_was_not_trained_on_yet(
    field: Field, node: Key, validator: Key
) -> None:
    """And all that follows it in the line; what lies before it and other nodes' work stay."""
    other = field.desk.validator()
    refs, source = [field.submission(node, sequence=sequence) for sequence in range(3)], field.source()
    for ref in refs:
        field.judge(validator, ref)
    source.poll()
    assert source.ready(field.first) == 6
    field.judge(other, refs[1], Outcome.SOFT)
    assert usable(source, field.first) == both(field, refs[0])


def test_what_a_verdict_took_back_returns_when_the_verdict_no_longer_counts(
    field: Field, node: Key, validator: Key
) -> None:
    leaving = field.desk.validator()
    ref, source = field.submission(node), field.source()
    field.judge(validator, ref)
    source.poll()
    field.judge(leaving, ref, Outcome.SOFT)
    source.poll()
    assert source.ready(field.first) == 0
    field.desk.leave(leaving)
    field.desk.pass_span()
    field.desk.hub.learn()
    assert usable(source, field.first) == both(field, ref)
    assert source.counts.groups == 2


def test_one_nodes_rejection_is_no_other_nodes_business(field: Field, validator: Key) -> None:
    one, other = field.desk.nodes(2)
    rejected, accepted = field.submission(one), field.submission(other)
    field.judge(validator, rejected, Outcome.HARD)
    field.judge(validator, accepted)
    assert usable(field.source(), field.first) == both(field, accepted)
