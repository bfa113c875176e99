"""Cases against a node: it judges its submission once more and appeals where it finds nothing wrong."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest

from node.contributor.generation import Made
from node.contributor.submission_log import LoggedSubmission
from node.contributor.worker import Worker
from protocol.chain import cases
from protocol.chain.types import Stage as CaseStage
from protocol.chain.types import State
from protocol.identity import Key
from protocol.submission import SubmissionRef
from protocol.verdict import Finding, Outcome
from tests.clock import eventually
from tests.node.stage import Stage, running
from tests.node.working import a_worker, stored, submitted, waits_because


def test_it_appeals_by_itself_against_a_false_accusation(stage: Stage) -> None:
    node, liar, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    with running(a_worker(stage, node)) as ended:
        eventually(lambda: stored(stage, node) >= 1, what="it works")
        ref = submitted(stage)[0].ref
        world.accuse(liar, ref)
        eventually(lambda: world.chain.state(world.run, ref) == State.APPEALED, what="it appeals")
        assert not ended.event.is_set()


def inflating(stage: Stage, node: Key) -> tuple[Worker, Made]:
    """A node, not started yet, that has committed to more units than its file has."""
    worker = a_worker(stage, node)
    made = stage.make(node)
    submission = stage.commit(node, made.ref, made.units + 1)
    worker.submissions.add(made.ref, submission, made.units + 1, 0)
    (stage.home("node").data / "rollouts").mkdir(exist_ok=True)
    shutil.copy(made.path, stage.home("node").data / "rollouts" / made.path.name)
    return worker, made


def test_it_does_not_appeal_for_what_it_finds_false_itself(stage: Stage) -> None:
    """Somebody else used the node's key; or its disk changed the file."""
    node, validator, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    worker, made = inflating(stage, node)
    world.accuse(validator, made.ref)
    with running(worker):
        eventually(waits_because(stage, "hard case"), what="the status says so")
        eventually(lambda: worker._defence._done, what="it has looked")
        assert world.chain.state(world.run, made.ref) == State.CHALLENGED


def test_it_appeals_a_hard_case_on_what_it_finds_merely_false(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence would convict it of cheating; what a class without calibration finds is never more than that."""
    node, liar, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    worker, made = inflating(stage, node)
    judge = worker._defence._judge

    def judge_softly(one: LoggedSubmission) -> Finding | None:
        found = judge(one)
        return found and replace(found, outcome=Outcome.SOFT)

    monkeypatch.setattr(worker._defence, "_judge", judge_softly)
    world.accuse(liar, made.ref)
    with running(worker):
        eventually(lambda: world.chain.state(world.run, made.ref) == State.APPEALED, what="it appeals")


def worked(stage: Stage, node: Key) -> SubmissionRef:
    """A submission of a node that is down now."""
    with running(a_worker(stage, node)):
        eventually(lambda: stored(stage, node) >= 1, what="it works")
    return submitted(stage)[0].ref


def stage_of(stage: Stage, node: Key, number: int) -> CaseStage:
    return stage.world.chain.case(stage.world.run, node.address, number).stage


def test_it_appeals_against_every_case_about_the_same_submission(stage: Stage) -> None:
    """Two liars that accuse the same submission one after the other; silence in either case would convict."""
    node, liars, world = stage.seated(), (stage.validator(), stage.validator()), stage.world
    stage.publish()
    ref = worked(stage, node)
    for liar in liars:
        world.accuse(liar, ref)
    assert world.chain.submission(world.run, ref).number == 2, "the first case has lost its submission's number"
    with running(a_worker(stage, node)):
        for number in (1, 2):
            eventually(
                lambda n=number: stage_of(stage, node, n) == CaseStage.APPEALED, what=f"it appeals case {number}"
            )


def test_it_appeals_against_a_hard_case_about_a_submission_that_a_soft_one_has_revoked(stage: Stage) -> None:
    node, liar, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    ref = worked(stage, node)
    world.sender(liar).send(world.chain.challenge(world.run, [ref], b"\x0e" * 32))
    world.anvil.advance(world.chain.policy(world.run).appeal)
    world.sender(liar).send(world.chain.settle(world.run, node.address, 1))
    world.accuse(liar, ref)
    assert world.chain.submission(world.run, ref).number == 1, "the submission's number stays with the soft case"
    with running(a_worker(stage, node)):
        eventually(lambda: stage_of(stage, node, 2) == CaseStage.APPEALED, what="it appeals")


def test_it_asks_again_while_an_endpoint_does_not_know_a_case_s_events(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, liar, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    ref = worked(stage, node)
    world.accuse(liar, ref)
    asked: list[Any] = []
    with running(worker := a_worker(stage, node)):
        with monkeypatch.context() as patch:
            patch.setattr(cases.LogReader, "read", lambda _, first, last: asked.append((first, last)) or [])
            eventually(lambda: len(asked) > 1, what="it asks again")
            assert not worker._defence._done
        eventually(lambda: world.chain.state(world.run, ref) == State.APPEALED, what="it appeals")


def test_it_does_not_give_up_on_submissions_that_its_log_lacks(stage: Stage) -> None:
    node, liar, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    made = stage.make(node)
    submission = stage.submit(node, made)
    world.accuse(liar, made.ref)
    worker = a_worker(stage, node)
    shutil.copytree(made.path.parent, stage.home("node").data / "rollouts", dirs_exist_ok=True)
    with running(worker):
        eventually(lambda: 1 in worker._defence._backoff._pauses, what="it has looked")
        worker.submissions.add(made.ref, submission, made.units, 0)
        eventually(lambda: world.chain.state(world.run, made.ref) == State.APPEALED, what="it appeals")


def test_it_appeals_after_a_restart_though_nobody_keeps_the_version_any_more(stage: Stage) -> None:
    """A hard case keeps it from working, and so from loading any version."""
    node, liar, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    ref = worked(stage, node)
    for _ in range(stage.tiny.spec.versions_kept + 1):
        stage.publish()
    shutil.rmtree(stage.home("node").data / "weights")
    world.accuse(liar, ref)
    with running(a_worker(stage, node)):
        eventually(lambda: world.chain.state(world.run, ref) == State.APPEALED, what="it appeals")


def test_one_false_submission_does_not_give_up_the_others_of_a_case(stage: Stage) -> None:
    """Somebody who finds one real fault could take everything else of a node with it."""
    node, liar, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    worker = a_worker(stage, node)
    makes = [stage.make(node, sequence) for sequence in (0, 1)]
    for made, excess in zip(makes, (1, 0), strict=True):
        submission = stage.commit(node, made.ref, made.units + excess)
        worker.submissions.add(made.ref, submission, made.units + excess, 0)
        (stage.home("node").data / "rollouts").mkdir(exist_ok=True)
        shutil.copy(made.path, stage.home("node").data / "rollouts" / made.path.name)
    world.sender(liar).send(world.chain.challenge(world.run, [made.ref for made in makes], b"\x0e" * 32))
    with running(worker):
        eventually(lambda: stage_of(stage, node, 1) == CaseStage.APPEALED, what="it stands by the good one")
