"""What a friend of a cheat can do with cases of its own: list junk beside honest work, or accuse by the wrong row. Neither saves anybody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from node.validator.audit import Votes, audit_votes
from node.validator.service import ValidatorService
from protocol.chain.sync import Book
from protocol.chain.types import Role, State
from protocol.chain.types import Stage as CaseStage
from protocol.errors import Unavailable
from protocol.verdict import Outcome
from tests.node.judging import inflated, past_grace, softly_wrong
from tests.node.stage import Panel, Stage, rounds, until


def finds_sample_one_false(service: ValidatorService, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = service._bench.judge

    def sample_one(*arguments: Any, **options: Any) -> Any:
        return replace(judge(*arguments, **options), outcome=int(Outcome.HARD), samples=format(2, "064x"))

    monkeypatch.setattr(service._bench, "judge", sample_one)


def test_junk_that_is_listed_with_honest_work_is_revoked_all_the_same(stage: Stage, panel: Panel) -> None:
    """One verdict on the whole list would have acquitted it for good, for the bond of one case."""
    node, world = stage.seated(), stage.world
    run, chain = world.run, world.chain
    stage.publish()
    friend, services = stage.validator(), [panel.seat(), panel.seat()]
    world.anvil.advance(2)
    junk = [softly_wrong(stage, node, sequence)[0] for sequence in range(3)]
    good = stage.make(node, 3)
    stage.submit(node, good)
    world.sender(friend).send(chain.challenge(run, [*(m.ref for m in junk), good.ref], b"\x01" * 32))
    past_grace(stage)
    world.sender(node).send(chain.appeal(run, node.address, 1))
    until(lambda: chain.case(run, node.address, 1).stage.closed, *services, what="the votes")
    assert chain.case(run, node.address, 1).stage == CaseStage.SPLIT
    assert [panel.state(m.ref) for m in (*junk, good)] == [State.REVOKED] * 3 + [State.CLEARED]
    policy = chain.policy(run)
    assert chain.account(friend.address).active <= policy.validator_stake - policy.bond + 3 * policy.fee, (
        "and it cost a bond"
    )
    world.anvil.advance(2 * policy.window)
    assert chain.claimable(run, node.address) == (good.units, 0)


def test_a_friends_case_by_an_honest_row_shields_nobody(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jurors find the submission false, and not by that row; then others accuse by the right one."""
    node, world = stage.seated(), stage.world
    run, chain = world.run, world.chain
    stage.publish()
    friend, services = stage.validator(), [panel.seat(fallback_seconds=0.01) for _ in range(3)]
    world.anvil.advance(2)
    made, _ = inflated(stage, node)
    for service in services:
        finds_sample_one_false(service, monkeypatch)
    world.accuse(friend, made.ref, 1)  # sample 0, which is honest; sample 1 is the false one
    world.sender(node).send(chain.appeal(run, node.address, 1))
    until(lambda: chain.case(run, node.address, 1).stage.closed, *services, what="the votes")
    assert (panel.state(made.ref), chain.seat(run, node.address).role) == (State.REVOKED, Role.ACTIVE)
    until(lambda: chain.seat(run, node.address).cases == 2, *services, what="the accusation by the right row")
    assert chain.case(run, node.address, 2).samples == 2
    world.anvil.advance(chain.policy(run).appeal)
    until(lambda: chain.seat(run, node.address).role == Role.BANNED, *services, what="the conviction")


def test_a_friend_whose_case_nobody_decides_in_time_shields_nobody(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, world = stage.seated(), stage.world
    run, chain = world.run, world.chain
    stage.publish()
    friend, service = stage.validator(), panel.seat(fallback_seconds=0.01)
    silent = stage.validator()
    world.anvil.advance(2)
    made, _ = inflated(stage, node)
    finds_sample_one_false(service, monkeypatch)
    world.accuse(friend, made.ref, 1)
    world.sender(node).send(chain.appeal(run, node.address, 1))
    until(lambda: chain.ballots(run, node.address, 1), service, what="the vote of one of two jurors")
    world.anvil.advance(chain.policy(run).vote)
    world.sender(friend).send(chain.settle(run, node.address, 1))
    assert chain.case(run, node.address, 1).stage == CaseStage.UNDECIDED
    assert chain.validator(run, silent.address).locked < chain.policy(run).validator_stake, "silence is charged"
    until(
        lambda: chain.case(run, node.address, 1).again,
        service,
        what="the second challenge, for no second found it hard in time",
    )
    world.anvil.advance(chain.policy(run).appeal)
    until(lambda: panel.state(made.ref) == State.REVOKED, service, what="the verdict")


def test_another_validator_takes_up_what_was_left_undecided(stage: Stage, panel: Panel) -> None:
    node, world = stage.seated(), stage.world
    run, chain = world.run, world.chain
    stage.publish()
    first, _, juror = stage.validator(), stage.validator(), panel.seat()  # one is silent
    world.anvil.advance(2)
    junk = [softly_wrong(stage, node, sequence)[0] for sequence in range(2)]
    past_grace(stage)
    world.sender(first).send(chain.challenge(run, [m.ref for m in junk], b"\x01" * 32))
    world.sender(node).send(chain.appeal(run, node.address, 1))
    until(lambda: chain.ballots(run, node.address, 1), juror, what="one of two votes")
    juror = panel.start(juror._c.key)  # what it found is on disk
    world.anvil.advance(chain.policy(run).vote)
    world.sender(first).send(chain.settle(run, node.address, 1))
    assert {panel.state(m.ref) for m in junk} == {State.UNDECIDED}
    until(lambda: chain.case(run, node.address, 1).again, juror, what="the second challenge")
    assert chain.case(run, node.address, 1).challenger == juror._address
    world.anvil.advance(chain.policy(run).appeal)  # nobody appeals
    until(lambda: {panel.state(m.ref) for m in junk} == {State.REVOKED}, juror, what="the verdict")
    assert not chain.validator(run, juror._address).at_risk


def test_a_juror_without_the_weights_abstains_before_the_time_is_up(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, world, liar = stage.seated(), stage.world, stage.validator()
    stage.publish()
    juror = panel.seat()
    world.anvil.advance(2)
    made = stage.make(node)
    stage.submit(node, made)

    def gone(*_: Any, **__: Any) -> Any:
        raise Unavailable("the weights are gone")

    monkeypatch.setattr(juror._bench, "judge", gone)
    world.accuse(liar, made.ref)
    world.sender(node).send(world.chain.appeal(world.run, node.address, 1))
    rounds(juror, count=10)
    assert not world.chain.voted(world.run, node.address, 1, juror._address)
    world.anvil.advance(world.chain.policy(world.run).vote - 300)
    until(lambda: world.chain.voted(world.run, node.address, 1, juror._address), juror, what="the abstention")
    world.anvil.advance(300)
    world.sender(node).send(world.chain.settle(world.run, node.address, 1))
    policy = world.chain.policy(world.run)
    assert world.chain.validator(world.run, juror._address).locked == policy.validator_stake, "which costs nothing"


def test_a_juror_judges_nothing_again_after_a_restart(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, world, liar = stage.seated(), stage.world, stage.validator()
    stage.publish()
    juror = panel.seat()
    world.anvil.advance(2)
    made = [stage.make(node, sequence) for sequence in range(3)]
    for each in made:
        stage.submit(node, each)
    world.sender(liar).send(world.chain.challenge(world.run, [m.ref for m in made], b"\x01" * 32))
    world.sender(node).send(world.chain.appeal(world.run, node.address, 1))
    name = (node.address, 1)
    monkeypatch.setattr(juror, "_judge_one", lambda: False)
    until(lambda: len(juror._judgements.opinions(name)) == 2, juror, what="two of three")
    juror = panel.start(juror._c.key)
    monkeypatch.setattr(juror, "_judge_one", lambda: False)
    judged: list[bytes] = []
    plain = juror._jury._judge
    monkeypatch.setattr(juror._jury, "_judge", lambda ref, case: judged.append(ref.root) or plain(ref, case))
    until(lambda: panel.state(made[0].ref) == State.CLEARED, juror, what="the vote")
    assert len(judged) == 1


def test_receipts_of_a_vote_are_handed_over_and_missing_ones_are_found(stage: Stage, panel: Panel) -> None:
    node, world, liar = stage.seated(), stage.world, stage.validator()
    run, chain = world.run, world.chain
    stage.publish()
    juror = panel.seat()
    world.anvil.advance(2)
    junk = [softly_wrong(stage, node, sequence)[0] for sequence in range(2)]
    past_grace(stage)
    world.sender(liar).send(chain.challenge(run, [m.ref for m in junk], b"\x01" * 32))
    world.sender(node).send(chain.appeal(run, node.address, 1))
    until(lambda: chain.case(run, node.address, 1).stage.closed, juror, what="the vote")
    until(lambda: len([r for r in panel.all_receipts() if r.validator == juror._address]) == 2, juror, what="receipts")
    book = Book(chain, run)
    book.poll()
    receipts = panel.all_receipts()
    assert audit_votes(receipts, book, chain.domain) == {juror._address: Votes(votes=1, kept=1)}
    assert audit_votes(receipts[1:], book, chain.domain)[juror._address].missing == [f"case 1 against {node.address}"]
    other = [replace(r, details=replace(r.details, time=r.details.time + 1)) for r in receipts]
    assert audit_votes(other, book, chain.domain)[juror._address].kept == 0
