"""How a node stands in the sums over its work: what it is told before they cost it anything, and when it does not go to court over them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from node.contributor import standing, submission_log
from node.contributor.submission_log import SubmissionLog
from protocol.chain.types import State
from protocol.constants import SUM_UNIT as UNIT
from protocol.identity import Key
from protocol.runspec import HistoryBudget
from protocol.signing import Domain
from protocol.statistics import MARGINS_HARD, MARGINS_SOFT, tokens_by
from protocol.submission import SubmissionRef
from protocol.verdict import Details, Outcome, Receipt
from tests.clock import eventually
from tests.node.stage import Stage, running
from tests.node.working import a_worker, waits_because

DOMAIN = Domain(31337, "0x5FbDB2315678afecb367f032d93F642f64180aa3")
VALIDATOR = Key.generate()
BUDGET = HistoryBudget(days=10)
DAY = 86_400
GROSS = {name: [8 * 40 * UNIT, 64 * 40 * UNIT, UNIT] for name in (MARGINS_HARD, MARGINS_SOFT)}
BLAMELESS = {name: [0, 0, 40 * UNIT] for name in (MARGINS_HARD, MARGINS_SOFT)}


def receipt(
    ref: SubmissionRef,
    sums: dict[str, list[int]],
    domain: Domain = DOMAIN,
    run: int = 1,
    signer: Key = VALIDATOR,
    **changes: object,
) -> str:
    details = Details(
        protocol=1, chain_id=domain.chain_id, contract=domain.contract, run=run, submission=ref.submission_id(run).hex(), node=ref.node,
        step=ref.step, sequence=ref.sequence, root=ref.root.hex(), units=77, spec="00" * 32, outcome=int(Outcome.ACCEPT), rule="",
        measured="", threshold="", detail="", samples="1".zfill(64), sequences_checked=1, proofs_checked=2, tokens_checked=1000, time=0, sums=sums,
    )  # fmt: skip
    return Receipt.issue(replace(details, **changes), signer, domain).encode().decode()  # type: ignore[arg-type]


@pytest.fixture
def log(tmp_path: Path) -> SubmissionLog:
    return SubmissionLog(tmp_path / "submissions.sqlite")


def note(log: SubmissionLog, sequence: int, time: int, sums: dict[str, list[int]]) -> SubmissionRef:
    ref = SubmissionRef(VALIDATOR.address, 0, sequence, bytes([sequence]) * 32)
    log.add(ref, ref.submission_id(1), 77, time)
    log.advance(ref.submission_id(1), submission_log.ACCEPTED, receipt=receipt(ref, sums))
    return ref


def test_work_that_speaks_for_the_node_has_no_share_of_a_bound(log: SubmissionLog) -> None:
    found = standing.standing(log, BUDGET, 0)
    assert (found.submissions, found.tokens, found.soft_share, found.hard_share) == (0, 0, 0.0, 0.0)
    for sequence in range(3):
        note(log, sequence, sequence, BLAMELESS)
    found = standing.standing(log, BUDGET, DAY)
    assert (found.submissions, found.tokens, found.soft_share) == (3, 3000, 0.0)


def test_the_share_grows_with_evidence_and_begins_anew(log: SubmissionLog) -> None:
    shares = []
    for sequence in range(3):
        note(log, sequence, 9 * DAY, GROSS)
        shares.append(standing.standing(log, BUDGET, 9 * DAY).soft_share)
    assert 0 < shares[0] < shares[1] < shares[2]
    assert shares[2] > standing.WARN
    assert standing.standing(log, BUDGET, 10 * DAY).submissions == 0


def test_only_what_was_before_a_submission_counts_against_it(log: SubmissionLog) -> None:
    refs = [note(log, sequence, DAY, GROSS if sequence else BLAMELESS) for sequence in range(4)]
    of = [log.get(ref.submission_id(1)) for ref in refs]
    assert of[2] is not None
    found = standing.up_to(log, of[2], BUDGET)
    assert found.submissions == 3
    assert found.soft_share < standing.standing(log, BUDGET, DAY).soft_share
    nothing = standing.up_to(log, of[2], BUDGET, without=[VALIDATOR.address])
    assert (nothing.submissions, nothing.soft_share) == (0, 0.0)


@pytest.mark.parametrize("stage", [{"history": ("0.0003", "0.0006")}], indirect=True)
@pytest.mark.parametrize("case", ["noisy", "blameless", "said by the accuser alone"])
def test_a_node_found_by_its_sums_appeals_unless_they_say_the_same_to_it(stage: Stage, case: str) -> None:
    """An accuser's own receipts are no reason not to appeal: it may have made them up."""
    node, validator, world = stage.seated(), stage.validator(), stage.world
    is_noisy, signer = case != "blameless", validator if "accuser" in case else VALIDATOR
    stage.publish()
    worker = a_worker(stage, node)
    made = stage.make(node)
    submission = stage.submit(node, made)
    shutil.copytree(made.path.parent, stage.home("node").data / "rollouts", dirs_exist_ok=True)
    domain, now = world.chain.domain, world.chain.block().time
    for sequence in range(1, 8):
        earlier = SubmissionRef(node.address, 0, 100 + sequence, bytes([sequence]) * 32)
        worker.submissions.add(earlier, earlier.submission_id(world.run), 1, now - 1)
        told = receipt(earlier, GROSS if is_noisy else BLAMELESS, domain, world.run, signer=signer)
        worker.submissions.advance(earlier.submission_id(world.run), submission_log.ACCEPTED, receipt=told)
    worker.submissions.add(made.ref, submission, made.units, now)
    found = {"outcome": int(Outcome.HARD), "rule": "history", "samples": "0" * 64, "history": "a" * 64}
    told = receipt(made.ref, GROSS, domain, world.run, signer=signer, **found)
    worker.submissions.advance(submission, submission_log.HARD, receipt=told)
    world.accuse(validator, made.ref)
    with running(worker):
        eventually(waits_because(stage, "hard case"), what="the status says so")
        eventually(lambda: worker._defence._done, what="it has looked")
        expected = State.CHALLENGED if case == "noisy" else State.APPEALED
        assert world.chain.state(world.run, made.ref) == expected


@pytest.mark.parametrize(
    ("stage", "kept"),
    [({}, False), ({"history": ("0.0003", "0.0006")}, True)],
    indirect=["stage"],
    ids=["without sums", "by sums"],
)
def test_a_node_keeps_what_it_is_judged_by(stage: Stage, kept: bool) -> None:
    """Validators sum for longer than a submission can be disputed."""
    node, world = stage.seated(), stage.world
    stage.publish()
    worker = a_worker(stage, node)
    policy, now = worker._c.policy, world.chain.block().time
    old = SubmissionRef(node.address, 0, 0, b"\x01" * 32)
    worker.submissions.add(old, old.submission_id(world.run), 1, now - policy.window - policy.span - 60)
    told = receipt(old, BLAMELESS, world.chain.domain, world.run)
    worker.submissions.advance(old.submission_id(world.run), submission_log.ACCEPTED, receipt=told)
    worker._tidy(world.chain.seat(world.run, node.address))
    assert (worker.submissions.get(old.submission_id(world.run)) is not None) == kept
    worker.close()


def test_a_warning_names_the_cause_that_the_statistic_tells(log: SubmissionLog) -> None:
    note(log, 1, 3, {tokens_by("kv_fp8"): [60 * UNIT, 60 * UNIT, 60 * UNIT], **BLAMELESS})
    found = standing.standing(log, BUDGET, DAY)
    assert found.soft_share > standing.WARN
    assert found.causes == "a cache of keys and values in float8"
    assert max(found.shares, key=lambda name: found.shares[name]) == "kv_fp8"
    assert found.shares["margins"] == 0.0
    note(log, 2, 4, {name: [value * 100 for value in of] for name, of in GROSS.items()})
    assert standing.standing(log, BUDGET, DAY).causes == standing.CAUSES
