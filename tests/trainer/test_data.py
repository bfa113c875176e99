"""Training data, against a real chain and a real hub: what is used, what is not, and that nothing stops it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from swarm.anvil import Anvil
from swarm.world import policy_for

from protocol.chain.client import Call
from protocol.chain.events import RunCreated
from protocol.errors import Unavailable
from protocol.identity import Key
from protocol.signing import Domain
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome, Receipt
from tests.hub.desk import Desk
from tests.trainer.field import (
    CONTEXT,
    EQUAL,
    UNEQUAL,
    VOCABULARY,
    Field,
    both,
    changed,
    open_field,
    samples,
    submissions,
)
from trainer.rollouts.data import RolloutSource


@pytest.fixture(scope="module")
def _field(anvil: Anvil, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    with open_field(anvil, tmp_path_factory.mktemp("field")) as made:
        yield made


@pytest.fixture
def field(_field: Field) -> Field:
    _field.begin()
    return _field


@pytest.fixture
def node(field: Field) -> Key:
    """Seated, with a version to work on: the test's first step."""
    return field.node()


@pytest.fixture(scope="module")
def validator(_field: Field) -> Key:
    return _field.desk.validator()


def usable(source: RolloutSource, step: int) -> set[tuple[bytes, int]]:
    """Groups a batch for `step` could take, after one more poll."""
    source.poll()
    count = source.ready(step)
    return submissions(source.take(step, count)) if count else set()


# ---- what is used ------------------------------------------------------------------------------------------------------


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


# ---- the hub is believed nothing ---------------------------------------------------------------------------------------

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


# ---- a node's line of work ---------------------------------------------------------------------------------------------


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


# ---- what is left out of a batch -----------------------------------------------------------------------------------------


def test_groups_with_equal_rewards_are_dropped_and_counted(field: Field, node: Key, validator: Key) -> None:
    ref, source = field.submission(node, EQUAL, UNEQUAL), field.source()
    field.judge(validator, ref)
    assert usable(source, field.first) == {(field.desk.submission(ref), 1)}
    assert (source.counts.groups, source.counts.zero_advantage_groups) == (2, 1)


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


def test_a_batch_waits_until_it_is_full_and_takes_the_newest_weights_first(
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
    assert submissions(source.take(field.first + 1, 3)) > both(field, new)
    assert source.counts.staleness == {0: 2, 1: 1}
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


# ---- nothing twice -----------------------------------------------------------------------------------------------------


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


# ---- bad files -----------------------------------------------------------------------------------------------------------


def row(**values: Any) -> Callable[[Field, Key], bytes]:
    """A file whose sixth sample differs from an honest one."""
    return lambda field, node: field.file(node, changed(samples([UNEQUAL, UNEQUAL]), 5, **values))


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


BAD_FILES: dict[str, Callable[[Field, Key], bytes]] = {
    "no Parquet": lambda field, node: b"PAR1" + bytes(1000) + b"PAR1",
    "nothing": lambda field, node: b"",
    "too few rows": lambda field, node: field.file(node, samples([UNEQUAL])),
    "too many rows": lambda field, node: field.file(node, samples([UNEQUAL] * 3)),
    "a reward that is no number": row(reward=float("nan")),
    "an infinite reward": row(reward=float("inf")),
    "a token beyond the vocabulary": row(completion=ids(3, VOCABULARY)),
    "a prompt beyond the vocabulary": row(prompt=ids(VOCABULARY + 7)),
    "a negative token": row(completion=ids(-1, 1)),
    "an empty prompt": row(prompt=ids()),
    "an empty completion": row(completion=ids()),
    "more tokens than the model takes": row(completion=ids(*[3] * CONTEXT)),
    "a million tokens": row(completion=np.full(10**6, 3, np.int32), logprobs=np.full(10**6, -1, np.float32)),
    "an answer beyond the vocabulary": row(turns=ids(2), answers=ids(1), given=ids(VOCABULARY)),
    "more tokens than the model takes, most of them given": row(
        turns=ids(2), answers=ids(CONTEXT), given=ids(*[3] * CONTEXT)
    ),
    "turns that do not fit together": row(turns=ids(2), answers=ids(2), given=ids(3)),
    "fewer logprobs than tokens": row(logprobs=np.full(2, -1.0, np.float32)),
    "more logprobs than tokens": row(logprobs=np.full(9, -1.0, np.float32)),
    "logprobs above zero": row(logprobs=np.full(5, 5.0, np.float32)),
    "absurd logprobs": row(logprobs=np.full(5, -1e30, np.float32)),
    "a logprob that is no number": row(logprobs=np.array([-1, -1, np.nan, -1, -1], np.float32)),
    "a problem that is not there": row(problem=2**40),
    "a problem below zero": row(problem=-1),
}


def test_accepted_files_that_cannot_be_trained_on_stop_nothing(field: Field, validator: Key) -> None:
    honest, follower, *others = field.desk.nodes(2 + len(BAD_FILES))
    bad = {
        name: field.submit(node, make(field, node))
        for (name, make), node in zip(BAD_FILES.items(), others, strict=True)
    }
    behind = [field.submit(follower, b"PAR1"), field.submission(follower, sequence=1)]
    good = field.submission(honest)
    for ref in (*bad.values(), *behind, good):
        field.judge(validator, ref)
    source = field.source()
    used = usable(source, field.first)
    assert [name for name, ref in bad.items() if used & both(field, ref)] == []
    assert not used & both(field, behind[1])  # a line ends where it cannot be used
    assert used == both(field, good)
    assert source.counts.bad_files == len(bad) + 1
    source.poll()
    assert source.counts.bad_files == len(bad) + 1  # once is enough


def other_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"?")


@pytest.mark.parametrize(
    "harm", [other_bytes, Path.unlink, lambda path: path.write_bytes(bytes(1 << 20))], ids=["changed", "lost", "huge"]
)
def test_a_hub_that_serves_something_else_than_was_committed_stops_nothing(
    field: Field, validator: Key, harm: Callable[[Path], object]
) -> None:
    one, other = field.desk.nodes(2)
    refs = [field.submission(one), field.submission(other)]
    for ref in refs:
        field.judge(validator, ref)
    harm(field.desk.store.file(refs[0].root))
    source = field.source()
    assert usable(source, field.first) == both(field, refs[1])
    assert source.counts.bad_files == 1


def failing(monkeypatch: pytest.MonkeyPatch, field: Field, root: bytes, times: int) -> None:
    """The hub answers with an error the first `times` times it is asked for one file."""
    original, failures = field.desk.hub.file, iter(range(times))

    async def file(asked: bytes, wait: float) -> Any:
        if asked == root and next(failures, None) is not None:
            raise Unavailable("not now")
        return await original(asked, wait)

    monkeypatch.setattr(field.desk.hub, "file", file)


def test_a_file_the_hub_cannot_give_now_is_fetched_later(
    field: Field, node: Key, validator: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, source = field.submission(node), field.source()
    field.judge(validator, ref)
    failing(monkeypatch, field, ref.root, 2)
    for _ in range(2):
        with pytest.raises(Unavailable):
            source.poll()
    assert usable(source, field.first) == both(field, ref)
    assert source.counts.bad_files == 0


def test_a_file_the_hub_can_never_give_does_not_hold_up_the_others(
    field: Field, validator: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = field.desk.nodes(2)
    refs = [field.submission(one), field.submission(other)]
    for ref in refs:
        field.judge(validator, ref)
    failing(monkeypatch, field, refs[0].root, 1000)
    source, polls = field.source(), 0
    while source.ready(field.first) == 0:
        polls += 1
        assert polls < 10
        try:
            source.poll()
        except Unavailable:
            continue
    assert submissions(source.take(field.first, 2)) == both(field, refs[1])
