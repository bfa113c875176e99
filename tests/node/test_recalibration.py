"""A new calibration in a running run: work is judged by the one of its version, before and after, by everybody; and what is not allowed is not worked under."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from node.contributor import standing, submission_log
from node.contributor.generation import Made, path_of
from node.judging.evidence import Evidence
from node.judging.replay import compare, replay
from node.validator.history import by_seat
from node.validator.service import ValidatorService
from node.versions import notice_of_head
from protocol import rollout
from protocol.calibration_notice import CalibrationNotice, in_force
from protocol.errors import IntegrityError, Malformed
from protocol.identity import Key
from protocol.runspec import HistoryBudget, Limit
from protocol.shardcast.store import version_folder
from protocol.submission import SubmissionRef
from protocol.verdict import HISTORY, Outcome, Receipt
from tests.clock import eventually
from tests.node.stage import Panel, Stage, rounds, running, until
from tests.node.test_history_verdicts import make_cooler
from tests.node.test_standing import GROSS, VALIDATOR
from tests.node.test_standing import receipt as standing_receipt
from tests.node.working import a_worker, stored, waits_because

TWICE = {"logprob_error": Limit(soft="0.06", hard="0.24")}  # 0.03 and 0.12 in the spec


def notice(stage: Stage, since: int, number: int = 1, **sampling: Limit) -> CalibrationNotice:
    """The spec's own limits but for these."""
    own = stage.tiny.spec.verification
    changed = own.sampling.model_copy(update=sampling)
    return CalibrationNotice(
        number=number, since=since, calibration=f"{number:064x}", computation=own.computation, sampling=changed, noise=own.noise
    )  # fmt: skip


def misclaimed(stage: Stage, node: Key, by: float, *, step: int, sequence: int = 0) -> Made:
    """Honest work but for one logprob, which is claimed too low."""
    made = stage.make(node, sequence, step)
    file = stage.context.sandbox.read(made.path).file
    logprobs = file.samples[0].logprobs
    assert logprobs is not None
    logprobs = logprobs.copy()
    logprobs[0] -= by
    samples = (replace(file.samples[0], logprobs=logprobs), *file.samples[1:])
    partial = made.path.with_name("partial")
    rollout.write(replace(file, samples=samples), partial)
    root = hashlib.sha256(partial.read_bytes()).digest()
    path = path_of(made.path.parent, root)
    partial.rename(path)
    return replace(made, ref=replace(made.ref, root=root), path=path)


def verdict(panel: Panel, service: ValidatorService, submission: bytes) -> Receipt:
    until(lambda: panel.receipts(submission), service, what="a verdict")
    return panel.receipts(submission)[service._address]


def outcome(receipt: Receipt) -> tuple[Outcome, str, str]:
    d = receipt.details
    return receipt.outcome, d.rule, d.threshold


def replayed(service: ValidatorService, submission: bytes) -> list[dict[str, Any]]:
    """What a replay of the evidence says otherwise than the receipt."""
    found = Evidence(service._evidence.find(submission.hex()).folder)
    weights = version_folder(service._home.data / "weights", found.receipt.details.step)
    return [field for field in compare(found.receipt.details, replay(found, weights)) if not field["same"]]


@pytest.mark.parametrize("stage", [{"recalibration": {}}], indirect=True)
def test_work_is_judged_by_the_calibration_of_its_version_and_evidence_of_before_replays(
    stage: Stage, panel: Panel
) -> None:
    one, late = stage.seated(), stage.seated()
    service = panel.seat()
    stage.publish()
    before = stage.submit(one, misclaimed(stage, one, 0.05, step=0))
    assert outcome(verdict(panel, service, before)) == (Outcome.SOFT, "sampling", "0.03")
    stage.publish(notice=notice(stage, 1, **TWICE))
    after = stage.submit(one, misclaimed(stage, one, 0.05, step=1))
    assert verdict(panel, service, after).outcome == Outcome.ACCEPT
    beyond = stage.submit(one, misclaimed(stage, one, 0.1, step=1, sequence=1))
    assert outcome(verdict(panel, service, beyond)) == (Outcome.SOFT, "sampling", "0.06")
    superseded = stage.submit(late, misclaimed(stage, late, 0.05, step=0))
    assert outcome(verdict(panel, service, superseded)) == (Outcome.SOFT, "sampling", "0.03"), "never backwards"
    stage.publish(notice=notice(stage, 1, **TWICE))  # repeated
    again = stage.submit(one, misclaimed(stage, one, 0.05, step=2))
    assert verdict(panel, service, again).outcome == Outcome.ACCEPT
    assert [replayed(service, of) for of in (before, beyond, superseded)] == [[], [], []]


@pytest.mark.parametrize("stage", [{"recalibration": {}}], indirect=True)
def test_a_worker_checks_its_own_work_by_the_calibration_of_the_version_it_is_made_with(stage: Stage) -> None:
    node = stage.seated()
    worker = a_worker(stage, node)
    bench = worker._workbench
    assert bench.load(stage.publish())
    made = misclaimed(stage, node, 0.05, step=0)
    bench._self_check_share = 1.0
    with pytest.raises(IntegrityError, match=r"sampling.* against 0\.03"):
        bench.require_passing(made)
    assert bench.load(stage.publish(notice=notice(stage, 1, **TWICE)))
    bench.require_passing(misclaimed(stage, node, 0.05, step=1))
    with pytest.raises(IntegrityError, match=r"sampling.* against 0\.06") as caught:
        bench.require_passing(misclaimed(stage, node, 0.1, step=1, sequence=1))
    assert "from version 1 on (notice 1), its limits may be what changed" in (caught.value.hint or "")
    bench.load(stage.world.chain.publication(stage.world.run, 0))  # as for a case about earlier work
    with pytest.raises(IntegrityError, match=r"sampling.* against 0\.03"):
        bench.require_passing(made)
    assert notice_of_head(stage.connection(node)) == bench.notices.newest == notice(stage, 1, **TWICE)
    worker.close()


HARDER = {"token_margin": Limit(soft="0.1", hard="0.1")}


@pytest.mark.parametrize(
    ("stage", "said", "refused"),
    [
        ({"recalibration": {}}, lambda stage: notice(stage, 2, **HARDER), "token_margin.hard would be 0.1"),
        ({"recalibration": {}}, lambda stage: notice(stage, 1, **TWICE), "reaches backwards: version 1"),
        ({}, lambda stage: notice(stage, 2, **TWICE), "lets nobody"),
    ],
    indirect=["stage"],
    ids=["beyond the bounds", "backwards", "in a run that takes none"],
)
def test_nobody_works_or_judges_under_a_notice_that_is_not_allowed(
    stage: Stage, panel: Panel, said: Any, refused: str
) -> None:
    """Though the trainer has signed it, and its digest is on chain. The node says why it waits, and goes on with the next version that is right."""
    node, other = stage.seated(), stage.seated()
    service = panel.seat()
    for step in range(2):
        stage.publish()
        stage.submit(other, stage.make(other))
        until(lambda count=step + 1: len(panel.all_receipts()) == count, service, what="a verdict")
    worker = a_worker(stage, node)
    with running(worker):
        eventually(lambda: stored(stage, node) > 0, within=60, what="work")
        stage.publish(notice=said(stage))
        eventually(waits_because(stage, refused), within=60, what="the node says why it waits")
        made = stored(stage, node)
        bad = stage.submit(other, stage.make(other))
        rounds(service, count=8)
        assert not panel.receipts(bad)
        with pytest.raises(Malformed, match=refused):
            service._bench._versions.held(stage.world.chain.publication(stage.world.run, 2))
        stage.publish()
        eventually(lambda: stored(stage, node) > made, within=60, what="work goes on")


@pytest.mark.parametrize(
    "stage",
    [{"history": ("0.003", "0.006"), "budget": {"never_hard": True}, "max_per_step": 40, "recalibration": {}}],
    indirect=True,
)
def test_a_new_calibration_begins_a_seat_s_sums_anew(stage: Stage, panel: Panel) -> None:
    node, service = stage.seated(), panel.seat()
    stage.publish()
    make_cooler(stage, "0.95")
    found: list[Outcome] = []
    for sequence in range(30):
        receipt = verdict(panel, service, stage.submit(node, stage.make(node, sequence)))
        found.append(receipt.outcome)
        if len(found) > 2 and found[-2:] == [Outcome.SOFT] * 2:
            break
    assert (receipt.outcome, receipt.details.rule) == (Outcome.SOFT, HISTORY)
    stage.publish()  # a version without a new calibration
    for sequence in range(10):  # one that adds to no statistic is spared
        still = verdict(panel, service, stage.submit(node, stage.make(node, sequence)))
        found.append(still.outcome)
        if still.outcome is Outcome.SOFT:
            break
    many = len(found)
    assert (still.outcome, still.details.rule) == (Outcome.SOFT, HISTORY)
    stage.publish(notice=notice(stage, 2))
    anew = [stage.submit(node, stage.make(node, sequence)) for sequence in range(2)]
    for one in anew:  # of some keys a single one is found, of most none: what is counted tells that the sums began anew
        verdict(panel, service, one)
    book, histories = service._book, service._histories
    assert histories is not None
    last = book.submission(anew[1])
    assert last is not None
    said = service._bench.notice(2)
    history = histories.before(last, said)
    assert [one.submission for one in history.counted] == [anew[0].hex()]
    assert history.since == book.time(book.publication(2))  # type: ignore[arg-type]
    assert history.budget == in_force(stage.tiny.spec.verification, said).history
    late = histories.before(replace(last, step=1))  # of the old calibration, and after work of the new one
    assert {one.submission for one in late.counted}.isdisjoint(one.hex() for one in anew)
    assert len(late.counted) == many
    receipts = panel.all_receipts()
    assert by_seat(receipts, book)[node.address].submissions == many + 2
    assert by_seat(receipts, book, version=2)[node.address].submissions == 2
    assert replayed(service, still.submission) == []


def test_a_node_sees_its_standing_since_the_calibration(tmp_path: Any) -> None:
    log = submission_log.SubmissionLog(tmp_path / "submissions.sqlite")
    for step in range(4):
        ref = SubmissionRef(VALIDATOR.address, step, 0, bytes([step]) * 32)
        log.add(ref, ref.submission_id(1), 77, 5)
        log.advance(ref.submission_id(1), submission_log.ACCEPTED, receipt=standing_receipt(ref, GROSS))
    budget = HistoryBudget()
    assert [standing.standing(log, budget, 9, version).submissions for version in (0, 3, 4)] == [4, 1, 0]
    newest = log.get(ref.submission_id(1))
    assert newest is not None
    assert standing.up_to(log, newest, budget, version=2).submissions == 2
    ref = SubmissionRef(VALIDATOR.address, 1, 1, bytes(32))  # late work of a version before the calibration of 2
    log.add(ref, ref.submission_id(1), 77, 6)
    log.advance(ref.submission_id(1), submission_log.ACCEPTED, receipt=standing_receipt(ref, GROSS))
    late = log.get(ref.submission_id(1))
    assert late is not None
    assert standing.up_to(log, late, budget, version=0).submissions == 3
    assert standing.up_to(log, late, budget).submissions == 5
