"""Files and weights that are not there: a verdict where that is the node's fault, patience where it is not."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from node.validator import bench
from protocol.chain.types import State
from protocol.constants import UPLOAD_SECONDS_MAX
from protocol.errors import DeadlineExceeded
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome
from tests.node.stage import Panel, Stage, rounds, until


def test_a_missing_file_is_soft_after_the_grace_time_and_not_before(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    made = stage.make(node)
    submission = stage.commit(node, made.ref, made.units)
    rounds(service)
    stage.world.anvil.advance(stage.tiny.spec.upload_grace_seconds + 5)
    rounds(service)
    assert not panel.all_receipts(), "an upload that began in time may still go on"
    stage.world.anvil.advance(UPLOAD_SECONDS_MAX)
    until(lambda: panel.receipts(submission), service, what="the verdict")
    receipt = panel.receipts(submission)[service._address]
    assert (receipt.outcome, receipt.details.rule) == (Outcome.SOFT, "available")
    assert (panel.state(made.ref), panel.case(made.ref).hard) == (State.CHALLENGED, False)


def test_a_file_that_the_hub_holds_is_never_called_missing(stage: Stage, panel: Panel) -> None:
    """The hub cannot serve it just now: that is no fault of the node, however long it takes."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    made = stage.make(node)
    submission = stage.submit(node, made)
    stage.hub.fault = lambda method, path: PlainTextResponse("", 404) if "/files/" in path else None
    stage.world.anvil.advance(stage.tiny.spec.upload_grace_seconds + UPLOAD_SECONDS_MAX + 100)
    rounds(service)
    assert not panel.all_receipts()
    assert panel.state(made.ref) == State.SUBMITTED
    stage.hub.fault = lambda method, path: None
    until(lambda: panel.receipts(submission), service, what="the verdict")
    assert panel.receipts(submission)[service._address].outcome == Outcome.ACCEPT


def test_a_file_that_comes_at_the_last_moment_is_judged_though_its_version_is_gone(stage: Stage, panel: Panel) -> None:
    """Withholding the file until nobody keeps the weights any more must not save a submission from its verdict."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    made = stage.make(node)
    submission = stage.commit(node, made.ref, made.units + 1)  # inflated
    rounds(service)
    for _ in range(stage.tiny.spec.versions_kept + 1):
        stage.publish()
        rounds(service, count=1)
    stage.upload(node, made.ref, made.path)
    until(lambda: panel.receipts(submission), service, what="the verdict")
    assert panel.receipts(submission)[service._address].details.rule == "tokens"


def test_a_submission_whose_version_is_gone_does_not_hold_up_the_others(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    old = stage.submit(node, stage.make(node))
    for _ in range(stage.tiny.spec.versions_kept + 1):
        stage.publish()
    service = panel.seat()  # it was not there in time
    new = stage.submit(node, stage.make(node))
    until(lambda: panel.receipts(new), service, within=10, what="the verdict on the new one")
    assert not panel.receipts(old)
    assert panel.receipts(new)[service._address].outcome == Outcome.ACCEPT


def test_a_submission_whose_version_is_gone_is_held_to_the_rules_that_need_no_weights(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a long outage its window may still be open. Only what is found is said: nothing is accepted."""
    node, key = stage.seated(), stage.validator()
    stage.publish()
    made = stage.make(node)
    inflated = stage.commit(node, made.ref, made.units + 1)
    stage.upload(node, made.ref, made.path)
    honest = stage.make(node, 1)
    stage.submit(node, honest)
    for _ in range(stage.tiny.spec.versions_kept + 1):
        stage.publish()
    judged: list[SubmissionRef] = []

    def judge(candidate: Any, *rules: Any) -> Any:
        judged.append(candidate.commitment.ref)
        return judging(candidate, *rules)

    judging = bench.judge
    monkeypatch.setattr(bench, "judge", judge)
    service = panel.start(key)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, service, what="the challenge")
    rounds(service, count=20)
    assert panel.case(made.ref).hard
    assert [(r.submission, r.outcome, r.details.rule) for r in panel.all_receipts()] == [
        (inflated, Outcome.HARD, "tokens")
    ]
    assert judged.count(honest.ref) == 1, "asking the same rules again would find the same"


def test_a_soft_finding_that_could_be_worse_with_the_weights_waits_until_they_are_past(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cheat can make its own reward soft: decided early, that would hide what `computation` and `sampling` find."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    broken, inflated = stage.make(node), stage.make(node, 1)
    of_broken = {sample.problem for sample in stage.context.sandbox.read(broken.path).file.samples}
    asked, scored = [], service._bench.context.sandbox.bounds

    def breaking(items: Any, claims: Any, *tolerance: float) -> list[Any]:
        if any(problem in of_broken for problem, _ in items):
            asked.append(items)
            raise DeadlineExceeded("the sandbox failed twice: it ended")
        return scored(items, claims, *tolerance)

    monkeypatch.setattr(service._bench.context.sandbox, "bounds", breaking)
    monkeypatch.setattr(service._bench, "_load", lambda step: False)  # the weights are on their way
    soft = stage.submit(node, broken)
    hard = stage.commit(node, inflated.ref, inflated.units + 1)
    stage.upload(node, inflated.ref, inflated.path)
    until(lambda: panel.receipts(hard), service, what="what no weights can make worse is said at once")
    assert panel.receipts(hard)[service._address].details.rule == "tokens"
    rounds(service, count=20)
    assert not panel.receipts(soft) and not asked
    for _ in range(stage.tiny.spec.versions_kept):
        stage.publish()
    until(lambda: panel.receipts(soft), service, what="the verdict, once nobody keeps the weights")
    receipt = panel.receipts(soft)[service._address]
    assert (receipt.outcome, receipt.details.rule) == (Outcome.SOFT, "reward")
