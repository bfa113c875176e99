"""Appeals: jurors judge again by themselves, vote once, and have kept what they need for it."""

from __future__ import annotations

import pytest
from swarm.world import TOKEN

from node.validator import jury
from protocol.chain.types import Role, State
from protocol.metrics import REGISTRY
from tests.node.judging import inflated, past_grace, softly_wrong
from tests.node.stage import Panel, Stage, rounds, until


def test_a_jury_upholds_what_it_finds_as_well(stage: Stage, panel: Panel) -> None:
    """An appeal against a true verdict costs its bond, and the seat is convicted all the same."""
    node, world = stage.seated(), stage.world
    stage.publish()
    services = panel.seat(), panel.seat(), panel.seat()
    made, _ = inflated(stage, node)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, *services, what="the challenge")
    world.sender(stage.operators[node.address]).send(world.chain.appeal(world.run, node.address, 1))
    until(lambda: panel.state(made.ref) == State.REVOKED, *services, what="the vote")
    assert world.chain.seat(world.run, node.address).role == Role.BANNED
    policy, account = world.chain.policy(world.run), world.chain.account(stage.operators[node.address].address)
    assert account.active == policy.node_stake - policy.penalty - policy.bond


def test_a_jury_clears_the_innocent_and_the_accuser_pays(stage: Stage, panel: Panel) -> None:
    node, world, liar = stage.seated(), stage.world, stage.validator()
    stage.publish()
    juror = panel.seat(fallback_seconds=0.01)
    made = stage.make(node)
    stage.submit(node, made)
    world.accuse(liar, made.ref)
    world.sender(node).send(world.chain.appeal(world.run, node.address, 1))
    until(lambda: panel.state(made.ref) == State.CLEARED, juror, what="the vote")
    assert world.chain.account(liar.address).active == world.chain.policy(world.run).validator_stake - 10 * TOKEN
    assert world.chain.seat(world.run, node.address).role == Role.ACTIVE


def test_a_juror_that_finds_a_hard_case_merely_soft_says_so(stage: Stage, panel: Panel) -> None:
    """The submission earns nothing, the seat loses no bond by its appeal, and who charged too much pays the jury."""
    node, world, zealot = stage.seated(), stage.world, stage.validator()
    stage.publish()
    juror = panel.seat(fallback_seconds=0.01)
    made, _ = softly_wrong(stage, node)
    world.accuse(zealot, made.ref)
    world.sender(stage.operators[node.address]).send(world.chain.appeal(world.run, node.address, 1))
    past_grace(stage)
    until(lambda: panel.state(made.ref) == State.REVOKED, juror, what="the vote")
    seat, policy = world.chain.seat(world.run, node.address), world.chain.policy(world.run)
    assert (seat.role, seat.locked) == (Role.ACTIVE, policy.node_stake - policy.fee)
    assert world.chain.account(zealot.address).active == policy.validator_stake - policy.jury_fee


def test_a_jury_votes_again_after_a_restart_and_once_only(stage: Stage, panel: Panel) -> None:
    node, world, liar = stage.seated(), stage.world, stage.validator()
    stage.publish()
    key = stage.validator()
    made = stage.make(node)
    stage.submit(node, made)
    world.accuse(liar, made.ref)
    juror = panel.start(key)
    rounds(juror)
    world.sender(node).send(world.chain.appeal(world.run, node.address, 1))
    juror = panel.start(key)
    until(lambda: panel.state(made.ref) == State.CLEARED, juror, what="the vote")
    rounds(panel.start(key))
    (ballot,) = world.chain.ballots(world.run, node.address, 1)
    assert (ballot.found_false, ballot.jurors.bit_count()) == (0, 1)


def test_a_late_appeal_finds_jurors_that_have_kept_the_weights(stage: Stage, panel: Panel) -> None:
    """Else whoever waits until the version is retired everywhere would find no quorum, the guilty and the innocent alike."""
    node, world, liar, key = stage.seated(), stage.world, stage.validator(), stage.validator()
    stage.publish()
    juror = panel.start(key)
    made = stage.make(node)
    submission = stage.submit(node, made)
    until(lambda: panel.receipts(submission), juror, panel.start(liar), what="the verdict that it is honest")
    panel.start(liar).stop()
    world.accuse(liar, made.ref)
    for _ in range(stage.tiny.spec.versions_kept + 1):
        rounds(juror, count=1)
        juror._bench._versions.folder(stage.publish())
        juror = panel.start(key)
    world.sender(node).send(world.chain.appeal(world.run, node.address, 1))
    until(lambda: panel.state(made.ref) == State.CLEARED, juror, what="the vote")
    until(lambda: not juror._bench._versions.store.holds(made.ref.step), juror, what="it keeps the version no longer")


def test_a_juror_with_a_queue_of_its_own_votes_all_the_same(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, world, liar = stage.seated(), stage.world, stage.validator()
    stage.publish()
    juror = panel.seat()
    made = stage.make(node)
    stage.submit(node, made)
    world.accuse(liar, made.ref)
    world.sender(node).send(world.chain.appeal(world.run, node.address, 1))
    monkeypatch.setattr(juror, "_judge_one", lambda: True)
    until(lambda: panel.state(made.ref) == State.CLEARED, juror, what="the vote")


def test_what_a_juror_fetched_is_gone_when_the_case_ended_without_it(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or every case that ends while its weights are on their way leaves its files on the disk for good."""
    node, world, liar = stage.seated(), stage.world, stage.validator()
    stage.publish()
    juror = panel.seat(fallback_seconds=0.01)
    made = stage.make(node)
    submission = stage.submit(node, made)
    until(lambda: panel.receipts(submission), juror, what="the verdict")
    world.accuse(liar, made.ref)
    world.sender(node).send(world.chain.appeal(world.run, node.address, 1))
    monkeypatch.setattr(juror._bench, "judge", lambda *_, **__: None)
    until(lambda: juror._bench.judged(made.ref.root), juror, what="the file is here, its weights are not")
    rounds(juror)
    assert juror._bench.judged(made.ref.root), "it is not fetched for each attempt"
    world.anvil.advance(world.chain.policy(world.run).vote)
    world.sender(node).send(world.chain.settle(world.run, node.address, 1))
    until(lambda: not list(juror._bench._files.iterdir()), juror, what="nothing is left of it")


def test_a_juror_that_cannot_pay_for_its_vote_goes_on_and_votes_later(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, world, liar, key = stage.seated(), stage.world, stage.validator(), stage.validator()
    stage.publish()
    monkeypatch.setattr(jury, "_LOOK_SECONDS", 0.01)
    juror = panel.start(key)
    made = stage.make(node)
    stage.submit(node, made)
    world.accuse(liar, made.ref)
    world.sender(node).send(world.chain.appeal(world.run, node.address, 1))
    has = world.chain.balance(key.address)
    world.anvil.give(key.address, 1)
    until(lambda: juror._judgements.opinions((node.address, 1)), juror, what="its opinion")
    rounds(juror)
    assert panel.state(made.ref) == State.APPEALED
    assert REGISTRY["murmur_validator_jury_cases"].values() == {(): 1}
    world.anvil.give(key.address, has)
    until(lambda: panel.state(made.ref) == State.CLEARED, juror, what="the vote")
    assert REGISTRY["murmur_validator_jury_cases"].values() == {(): 0}
