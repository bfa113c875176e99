"""The worker against a real chain and a real hub: it works through versions and hears its verdicts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, Response

from node.contributor import generation
from node.contributor import submission_log as states
from node.contributor.submission_log import SubmissionLog
from protocol.identity import Key
from protocol.verdict import Details, Outcome, Receipt
from tests.clock import eventually
from tests.node.stage import Stage, Wired, running
from tests.node.working import a_worker, judged, stored, submitted, waits_because


def test_it_works_through_a_version_and_uploads_what_it_committed(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    with running(a_worker(stage, node)):
        eventually(waits_because(stage, "done for this version"), within=40, what="all sequences are used")
        found = [s for s in submitted(stage) if s.node == node.address]
        assert [s.sequence for s in found] == list(range(stage.world.chain.policy(stage.world.run).max_per_step))
        assert stored(stage, node) == len(found)
        for s in found:
            data = (stage.home("node").data / "rollouts" / f"{s.root.hex()}.parquet").read_bytes()
            assert hashlib.sha256(data).digest() == s.root


def test_it_learns_its_verdicts_and_the_gravest_stays(stage: Stage) -> None:
    node, one, two = stage.seated(), stage.validator(), stage.validator()
    stage.publish()
    worker = a_worker(stage, node)
    with running(worker):
        eventually(lambda: len(worker.submissions.all(states.STORED)) >= 3, what="three submissions are stored")
        a, b, c = (s.id for s in reversed(worker.submissions.all()[-3:]))
        judged(stage, one, a, Outcome.ACCEPT)
        judged(stage, one, b, Outcome.SOFT)
        judged(stage, two, b, Outcome.ACCEPT)
        judged(stage, one, c, Outcome.SOFT)
        judged(stage, two, c, Outcome.HARD)
        state = lambda submission: worker.submissions.get(submission).state  # noqa: E731
        eventually(lambda: state(c) == states.HARD, what="the hard verdict is known")
        assert (state(a), state(b)) == (states.ACCEPTED, states.SOFT)
        receipt = json.loads(worker.submissions.get(c).receipt)
        assert receipt["details"]["rule"] == "sampling"
        assert receipt["validator"] == two.address


def test_receipts_of_nobody_in_particular_mean_nothing(stage: Stage) -> None:
    """The hub lists what it likes; only validators with a seat and a signature that fits count."""
    node, validator, stranger = stage.seated(), stage.validator(), Key.generate()
    stage.publish()
    worker = a_worker(stage, node)
    lies: list[str] = []
    asked: list[str] = []

    def lie(method: str, path: str) -> Response | None:
        if method != "GET" or "/nodes/" not in path:
            return None
        asked.extend(lies)
        return PlainTextResponse(_news(lies[0] if lies else '{"entries": []}'))

    stage.hub.fault = lie
    with running(worker):
        eventually(lambda: len(worker.submissions.all(states.STORED)) >= 2, what="two submissions are stored")
        a, b = (s.id for s in reversed(worker.submissions.all()[-2:]))
        lies.append(_forged(stage, stranger, a))
        eventually(lambda: len(asked) > 2, what="the forged receipts were read")
        assert worker.submissions.get(a).state == states.STORED
        stage.hub.fault = lambda method, path: None
        judged(stage, validator, b, Outcome.ACCEPT)
        eventually(lambda: worker.submissions.get(b).state == states.ACCEPTED, what="the real receipt is read")


def _forged(stage: Stage, stranger: Key, submission: bytes) -> str:
    s = next(s for s in submitted(stage) if s.id == submission)
    domain = stage.world.chain.domain
    details = Details(
        protocol=1, chain_id=domain.chain_id, contract=domain.contract, run=stage.world.run, submission=submission.hex(), node=s.node, step=s.step,
        sequence=s.sequence, root=s.root.hex(), units=s.units, spec="00" * 32, outcome=3, rule="sampling", measured="1",
        threshold="0", detail="", samples="0" * 63 + "1", sequences_checked=1, proofs_checked=1, tokens_checked=1, time=1,
    )  # fmt: skip
    value = json.loads(Receipt.issue(details, stranger, domain).encode())
    broken = {**value, "signature": "0x" + "11" * 65}
    odd = {"details": {"node": s.node}, "validator": 7}
    entries = [{"id": i + 1, "value": v} for i, v in enumerate((value, broken, odd))]
    return json.dumps({"entries": entries})


def _news(listing: str) -> str:
    """A node's news, with such a listing of receipts and nothing else."""
    return json.dumps({**json.loads(listing), "from": 0, "since": 0, "challenge": "", "tag": "", "need": None})


NEWS = '"from": 0, "since": 0, "challenge": "", "tag": "", "need": null'
GARBAGE = ["[" * 20_000, '{"entries": [{"id": 1e999, "value": {}}]}', "\xff", '{"entries": 7}', "{}", "",
    f'{{"entries": [], {NEWS.replace("null", "7")}}}', f'{{"entries": [7], {NEWS}}}',
    '{"entries": [], "from": 0}', f'{{"entries": [], {NEWS.replace(chr(34) * 2, "5")}}}',
]  # fmt: skip


def test_garbage_in_the_listing_does_not_keep_it_from_the_verdicts(stage: Stage) -> None:
    node, validator = stage.seated(), stage.validator()
    stage.publish()
    worker = a_worker(stage, node)
    answers = iter(GARBAGE)

    def garble(method: str, path: str) -> Response | None:
        garbage = next(answers, None) if method == "GET" and "/nodes/" in path else None
        return None if garbage is None else PlainTextResponse(garbage)

    stage.hub.fault = garble
    with running(worker):
        eventually(lambda: worker.submissions.all(states.STORED), what="a submission is stored")
        submission = worker.submissions.all(states.STORED)[0].id
        judged(stage, validator, submission, Outcome.ACCEPT)
        eventually(lambda: worker.submissions.get(submission).state == states.ACCEPTED, what="the receipt is read")
        assert next(answers, None) is None


def test_a_verdict_heard_before_the_upload_returned_is_not_forgotten(stage: Stage, tmp_path: Path) -> None:
    kept = SubmissionLog(tmp_path / "submissions.sqlite")
    stage.publish()
    ref = stage.make(stage.seated()).ref
    kept.add(ref, b"w", 3, 1)
    kept.advance(b"w", states.ACCEPTED, receipt="{}")
    kept.advance(b"w", states.STORED)
    assert (kept.get(b"w").state, kept.get(b"w").receipt) == (states.ACCEPTED, "{}")
    kept.add(ref, b"w", 3, 2)
    assert kept.get(b"w").state == states.ACCEPTED
    kept.close()


def test_wired_is_a_connection(stage: Stage) -> None:
    """The tests' connection differs from a real one in look-ups only."""
    assert set(vars(Wired)) & {"retry", "hub", "spec", "policy", "forget_hub"} == set()


def test_the_next_version_is_fetched_while_this_one_is_worked_on(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)
    versions = worker._workbench._versions
    generate = generation.make
    held: list[bool] = []

    def slowly(*arguments: Any) -> Any:
        if not held:
            stage.publish()
            eventually(lambda: versions.store.holds(1), what="version 1 beside the work on version 0")
            held.append(True)
        return generate(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "make", slowly)
        with running(worker):
            eventually(lambda: any(s.step == 1 for s in submitted(stage)), what="work on version 1")
    assert held
