"""Whose word makes rollouts training data: that of seated validators, and nobody else's, whatever the hub lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.identity import Key
from protocol.signing import Domain
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome, Receipt
from tests.hub.desk import Desk
from tests.trainer.field import (
    Field,
    both,
    usable,
)

Lie = Callable[[Field, Key, SubmissionRef], bytes]


def by_a_stranger(field: Field, validator: Key, ref: SubmissionRef) -> bytes:
    return field.desk.receipt(Key.generate(), ref)


def by_the_node_itself(field: Field, validator: Key, ref: SubmissionRef) -> bytes:
    node = next(key for key in field.desk.world.senders.values() if key.key.address == ref.node).key
    return field.desk.receipt(node, ref)


def by_the_hub(field: Field, validator: Key, ref: SubmissionRef) -> bytes:
    return field.desk.receipt(field.desk.key, ref)


def by_a_validator_who_left(field: Field, validator: Key, ref: SubmissionRef) -> bytes:
    gone = field.desk.validator()
    field.desk.leave(gone)
    field.desk.pass_span()
    return field.desk.receipt(gone, ref)


def by_a_validator_who_was_dismissed(field: Field, validator: Key, ref: SubmissionRef) -> bytes:
    gone = field.desk.validator()
    field.desk.dismiss(gone)
    field.desk.pass_span()
    return field.desk.receipt(gone, ref)


def forged(field: Field, validator: Key, ref: SubmissionRef) -> bytes:
    false = Receipt.issue(field.desk.details(ref), Key.generate(), field.desk.world.chain.domain)
    return replace(false, validator=validator.address).encode()


def with_another_outcome_than_signed(field: Field, validator: Key, ref: SubmissionRef) -> bytes:
    rejected = field.desk.receipt(validator, ref, Outcome.SOFT)
    return rejected.replace(b'"outcome":2', b'"outcome":1').replace(b'"rule":"reward"', b'"rule":""')


def of_another_run(field: Field, validator: Key, ref: SubmissionRef) -> bytes:
    return field.desk.receipt(validator, ref, run=field.desk.world.run + 1)


def of_another_chain(field: Field, validator: Key, ref: SubmissionRef) -> bytes:
    domain = Domain(8453, field.desk.world.chain.runs.address)
    return Receipt.issue(field.desk.details(ref, chain_id=8453), validator, domain).encode()


def by_the_rules_of_another_spec(field: Field, validator: Key, ref: SubmissionRef) -> bytes:
    return field.desk.receipt(validator, ref, spec="ab" * 32)


def for_another_submission(field: Field, validator: Key, ref: SubmissionRef) -> bytes:
    return field.desk.receipt(validator, ref, submission="ab" * 32)


def no_receipt(field: Field, validator: Key, ref: SubmissionRef) -> bytes:
    return b'{"details":null,"signature":"0x","validator":[]}'


LIES: list[Lie] = [
    by_a_stranger, by_the_node_itself, by_the_hub, by_a_validator_who_left, by_a_validator_who_was_dismissed, forged,
    with_another_outcome_than_signed, of_another_run, of_another_chain, by_the_rules_of_another_spec, for_another_submission,
    no_receipt,
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=[lie.__name__ for lie in LIES])
def test_a_receipt_is_ignored_and_counted_whatever_the_hub_says(
    field: Field, node: Key, validator: Key, lie: Lie
) -> None:
    ref, source = field.submission(node), field.source()
    field.list_at_hub(lie(field, validator, ref))
    assert usable(source, field.first) == set()
    assert source.counts.bad_receipts == 1
    field.judge(validator, ref)  # the honest word still counts
    assert usable(source, field.first) == both(field, ref)


@pytest.mark.parametrize("end", [Desk.leave, Desk.dismiss], ids=["left", "dismissed"])
def test_a_seat_that_ends_takes_its_acceptance_along(field: Field, node: Key, end: Callable[[Desk, Key], None]) -> None:
    """But not before it ends: until then it judges what was submitted while it sat."""
    ref, source, leaving = field.submission(node), field.source(), field.desk.validator()
    end(field.desk, leaving)
    field.judge(leaving, ref)
    source.poll()
    assert source.ready(field.first) == 2
    assert source.counts.bad_receipts == 0
    world = field.desk.world
    until = world.chain.validator(world.run, leaving.address).until
    world.anvil.advance_to(until - 1)
    source.poll()
    assert source.ready(field.first) == 2
    world.anvil.advance_to(until)
    field.desk.hub.learn()
    assert usable(source, field.first) == set()


def test_a_receipt_may_come_before_its_commitment_is_seen(field: Field, node: Key, validator: Key) -> None:
    source = field.source(confirmations=3)
    field.mine(3)
    ref = field.submission(node)
    field.judge(validator, ref)
    assert usable(source, field.first) == set()
    field.mine(3)
    assert usable(source, field.first) == both(field, ref)
    assert source.counts.bad_receipts == 0


def test_a_receipt_may_come_before_its_validators_seat_is_seen(field: Field, node: Key) -> None:
    ref = field.submission(node)
    field.mine(3)
    source = field.source(confirmations=3)
    validator = field.desk.validator()
    field.judge(validator, ref)
    assert usable(source, field.first) == set()
    field.mine(3)
    assert usable(source, field.first) == both(field, ref)
