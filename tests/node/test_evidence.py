"""What was rejected can be judged again without chain, hub or network, and the signed receipt compared with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from node.judging.evidence import COMMITMENT, MANIFEST, RECEIPT, ROLLOUT, SPEC, Evidence, EvidenceStore
from node.judging.replay import compare, replay
from protocol import prefill_sampling
from protocol.errors import BadSignature, HashMismatch, Malformed, PreflightError, ProtocolViolation, UsageError
from protocol.sandbox import Sandbox
from protocol.shardcast.store import version_folder
from protocol.verdict import Outcome
from tests.node.judging import inflated, past_grace, softly_wrong
from tests.node.stage import Panel, Stage, rounds, until


@pytest.fixture
def kept(stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> tuple[Evidence, Path]:
    """Evidence of a hard case as a running validator kept it, and its copy of the weights. Afterwards all is shut down."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    _, submission = inflated(stage, node)
    rounds(service)
    assert panel.receipts(submission)[service._address].outcome == Outcome.HARD
    found = service._evidence.find(submission.hex()[:10])
    assert found.receipt == panel.receipts(submission)[service._address]
    stage.hub.stop()
    stage.server.close()
    monkeypatch.setattr("node.judging.equipment.Sandbox", Sandbox)  # a reader of one's own
    return found, version_folder(service._home.data / "weights", 0)


def edit(evidence: Evidence, name: str, old: bytes, new: bytes) -> Evidence:
    path = evidence.folder / name
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    return Evidence(evidence.folder)


def test_a_replay_gives_the_receipt_again(kept: tuple[Evidence, Path]) -> None:
    evidence, weights = kept
    fields = compare(evidence.receipt.details, replay(evidence, weights))
    assert [field for field in fields if not field["same"]] == []
    assert evidence.receipt.details.rule == "tokens"


def test_a_replay_differs_where_the_receipt_is_wrong(kept: tuple[Evidence, Path]) -> None:
    """As after a validator had accused of one token too many where there was none."""
    evidence, weights = kept
    units = evidence.commitment.units
    honest = edit(evidence, COMMITMENT, b'"units":%d' % units, b'"units":%d' % (units - 1))
    different = {f["field"] for f in compare(honest.receipt.details, replay(honest, weights)) if not f["same"]}
    assert {"outcome", "rule", "units"} <= different


def test_only_what_was_judged_is_replayed(kept: tuple[Evidence, Path], tmp_path: Path) -> None:
    evidence, weights = kept
    with pytest.raises(PreflightError, match="weights"):
        replay(evidence, None)
    other = tmp_path / "other"
    other.mkdir()
    for path in weights.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    evidence.require_weights(other)
    tensor_file = next(path for path in other.iterdir() if path.suffix == ".safetensors")
    tensor_file.write_bytes(tensor_file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(HashMismatch, match="other weights"):
        evidence.require_weights(other)
    with (evidence.folder / ROLLOUT).open("ab") as file:
        file.write(b"x")
    with pytest.raises(HashMismatch, match="committed"):
        replay(Evidence(evidence.folder), weights)


def test_evidence_of_a_stranger_is_checked_against_the_receipt(kept: tuple[Evidence, Path]) -> None:
    evidence, _ = kept
    spec = json.loads((evidence.folder / SPEC).read_bytes())["name"].encode()
    with pytest.raises(HashMismatch):
        _ = edit(evidence, SPEC, b'"name":"%s"' % spec, b'"name":"another"').spec
    with pytest.raises(BadSignature):
        _ = edit(evidence, RECEIPT, b'"sequences_checked":', b'"sequences_checked":1').receipt
    for broken in (b"", b"[]", b"{}", b"{" * 100_000, b"\xff"):
        (evidence.folder / COMMITMENT).write_bytes(broken)
        with pytest.raises(ProtocolViolation):
            _ = Evidence(evidence.folder).domain
    (evidence.folder / MANIFEST).unlink()
    with pytest.raises(Malformed):
        evidence.require_weights(evidence.folder)


def test_which_rows_were_examined_is_kept_and_read_strictly(kept: tuple[Evidence, Path], tmp_path: Path) -> None:
    """On another machine other rows take long: a replay takes them from here, and old evidence has none."""
    evidence, _ = kept
    assert evidence.plan.examined == () and not evidence.plan.by_clock
    plan = replace(evidence.plan, examined=((2,), (0, 1)), by_clock=True)
    store = EvidenceStore(tmp_path / "kept", most=2, days=1)
    again = store.keep(
        evidence.receipt, evidence.commitment, evidence.spec, plan, evidence.domain, rollout=None, manifest=None
    )
    assert again.plan == replace(plan, by_clock=False)
    said, good = b'"examined":[[2],[0,1]]', (again.folder / COMMITMENT).read_bytes()
    assert b"," + said in good or said + b"," in good
    most = b"%d" % evidence.spec.samples
    for broken in (
        b"[[]]",
        b"[2]",
        b"[[true]]",
        b'[["2"]]',
        b"[[1,0]]",
        b"[[0,0]]",
        b"[[0],[0]]",
        b"[[-1]]",
        b"[[%s]]" % most,
        b"{}",
    ):
        with pytest.raises(Malformed):
            _ = edit(again, COMMITMENT, said, b'"examined":' + broken).plan
        (again.folder / COMMITMENT).write_bytes(good)
    old = good.replace(b"," + said, b"").replace(said + b",", b"")
    (again.folder / COMMITMENT).write_bytes(old)
    assert Evidence(again.folder).plan == replace(plan, examined=(), by_clock=False)


def test_what_was_never_served_is_kept_without_a_file(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    _, submission = softly_wrong(stage, node)
    past_grace(stage)
    rounds(service)
    evidence = service._evidence.find(submission.hex())
    fields = compare(evidence.receipt.details, replay(evidence, None))
    assert all(field["same"] for field in fields)
    assert evidence.receipt.details.prefill != prefill_sampling.NO_COMMITMENT


def test_what_was_judged_without_its_weights_is_replayed_without_them(stage: Stage, panel: Panel) -> None:
    """Nobody kept that version any more; for its tokenizer any other will do."""
    node = stage.seated()
    stage.publish()
    _, submission = inflated(stage, node)
    for _ in range(stage.tiny.spec.versions_kept + 1):
        stage.publish()
    service = panel.seat()
    until(lambda: panel.receipts(submission), service, what="the verdict")
    evidence = service._evidence.find(submission.hex())
    with pytest.raises(PreflightError, match="weights"):
        replay(evidence, None)
    fields = compare(evidence.receipt.details, replay(evidence, stage.tiny.model))
    assert [field for field in fields if not field["same"]] == []
    assert evidence.receipt.details.rule == "tokens"


def test_closed_cases_are_dropped_by_number_and_age_and_open_ones_never(
    tmp_path: Path, kept: tuple[Evidence, Path]
) -> None:
    evidence, _ = kept
    store = EvidenceStore(tmp_path / "kept", most=2, days=1)
    submissions = []
    for i in range(5):
        receipt = replace(evidence.receipt, details=replace(evidence.receipt.details, submission=f"{i:064x}"))
        store.keep(
            receipt, evidence.commitment, evidence.spec, evidence.plan, evidence.domain, rollout=None, manifest=None
        )
        submissions.append(bytes.fromhex(f"{i:064x}"))
    now = max(e.folder.stat().st_mtime for e in store.all())
    store.prune(lambda submission: False, now + 10 * 86_400)
    assert len(store.all()) == 5, "all are open"
    store.prune(lambda submission: submission != submissions[0], now)
    assert len(store.all()) == 3, "two closed ones and the open one"
    store.prune(lambda submission: submission != submissions[0], now + 2 * 86_400)
    assert [e.folder.name for e in store.all()] == [submissions[0].hex()]
    with pytest.raises(UsageError):
        store.find("ff")


def test_a_validator_that_cannot_keep_evidence_judges_on(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(service._evidence, "keep", full)
    _, submission = inflated(stage, node)
    rounds(service)
    assert panel.receipts(submission)[service._address].outcome == Outcome.HARD
