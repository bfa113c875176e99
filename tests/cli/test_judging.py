"""`murmur validator verify|replay|rejections|calibrate`: judging by hand, from what a running validator has kept, with no
chain, hub or network in reach."""

from __future__ import annotations

import json
import math
import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from swarm.tiny_run import TinyRun, run_tables

from node.engine import EngineSettings
from node.judging import calibration
from node.judging.calibration.measure import PER_CHUNK, PER_SEQUENCE, Variant, every_variant
from node.judging.evidence import COMMITMENT, RECEIPT, ROLLOUT, Evidence
from protocol.calibration import load
from protocol.calibration_notice import in_force
from protocol.errors import ConfigError
from protocol.history import bounds
from protocol.settings import write_toml
from protocol.verdict import Outcome
from tests.cli.conftest import PASSWORD, Console, Ended, init_options
from tests.node.conftest import panel, shared_machinery, stage  # noqa: F401  fixtures
from tests.node.judging import inflated
from tests.node.stage import Panel, Stage, rounds
from tests.node.test_recalibration import notice


@dataclass
class Kept:
    """A validator's home with the evidence of one hard case, after everything else was shut down."""

    console: Console
    path: Path
    evidence: Evidence

    @property
    def submission(self) -> str:
        return self.evidence.receipt.details.submission

    def run(self, *arguments: object) -> Ended:
        return self.console.murmur("validator", *arguments, "--home", self.path)

    def edit(self, name: str, old: bytes, new: bytes) -> None:
        file = self.evidence.folder / name
        data = file.read_bytes()
        assert old in data
        file.write_bytes(data.replace(old, new))


@pytest.fixture
def kept(stage: Stage, panel: Panel, console: Console, monkeypatch: pytest.MonkeyPatch) -> Kept:  # noqa: F811
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    path = console.folder / "validator"
    console.murmur("validator", "init", *init_options(stage.world), "--home", path)
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    _, submission = inflated(stage, node)
    rounds(service)
    panel.close()
    panel._open.clear()
    stage.hub.stop()
    stage.server.close()
    shutil.copytree(service._home.data, path / "data", dirs_exist_ok=True)
    config = path / "validator.toml"
    config.write_text(config.read_text().replace(stage.world.anvil.rpc, "http://127.0.0.1:9"))
    return Kept(console, path, Evidence(path / "data/evidence" / submission.hex()))


def test_verify_gives_the_kept_verdict_offline(kept: Kept) -> None:
    file, told = kept.evidence.folder / ROLLOUT, kept.evidence.receipt.details
    found = kept.run("verify", file, "--json")
    assert found.code == 0
    assert (found.json["submission"], found.json["outcome"], found.json["rule"]) == (
        kept.submission,
        Outcome.HARD,
        "tokens",
    )
    assert (found.json["measured"], found.json["threshold"]) == (told.measured, told.threshold)
    shown = kept.run("verify", file).out
    assert shown.startswith(f"hard: step {told.step}, sequence {told.sequence} of {told.node}")
    assert f"rule tokens: measured {told.measured}, threshold {told.threshold}" in shown


def test_verify_takes_evidence_of_that_very_file_only(kept: Kept, tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    other.write_bytes((kept.evidence.folder / ROLLOUT).read_bytes() + b"x")
    refused = kept.run("verify", other, "--evidence", kept.evidence.folder)
    assert (refused.code, refused.out, "evidence of another file" in refused.err) == (2, "", True)
    assert kept.run("verify", other).code == 4, "its commitment would be on chain, and there is none in reach"


def test_replay_gives_the_receipt_again_by_submission_or_folder(kept: Kept) -> None:
    for name in (kept.submission[:10], kept.evidence.folder):
        told = kept.run("replay", name, "--json")
        assert (told.code, told.json["same"], told.json["submission"]) == (0, True, kept.submission)
        assert all(field["same"] for field in told.json["fields"])
    shown = kept.run("replay", kept.submission)
    assert (shown.code, "the replay gives the same receipt" in shown.out, "DIFFERENT" in shown.out) == (0, True, False)
    assert kept.run("replay", "ff" * 32).code == 2


def test_replay_of_changed_evidence_ends_with_the_code_for_integrity(kept: Kept) -> None:
    units = kept.evidence.commitment.units
    kept.edit(COMMITMENT, b'"units":%d' % units, b'"units":%d' % (units - 1))
    told = kept.run("replay", kept.submission, "--json")
    different = {field["field"] for field in told.json["fields"] if not field["same"]}
    assert (told.code, told.json["same"], {"outcome", "rule", "units"} <= different) == (8, False, True)
    shown = kept.run("replay", kept.submission)
    assert (shown.code, f"units              {units} in the receipt, {units - 1} now" in shown.out) == (8, True)
    with (kept.evidence.folder / ROLLOUT).open("ab") as file:
        file.write(b"x")
    refused = kept.run("replay", kept.submission)
    assert (refused.code, refused.out, "committed" in refused.err) == (8, "", True)
    kept.edit(RECEIPT, b'"outcome":3', b'"outcome":2')
    assert kept.run("replay", kept.submission).code == 8, "nobody signed that"


@pytest.fixture
def onlooker(stage: Stage, console: Console, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """The home of somebody without a seat, who signs nothing."""
    path = console.folder / "validator"
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    console.murmur("validator", "init", *init_options(stage.world), "--home", path)
    monkeypatch.delenv("MURMUR_PASSWORD")
    monkeypatch.setattr(
        "protocol.shell.connection.connect", lambda settings, peers, key: nullcontext(stage.connection(key))
    )
    return path


def test_audit_names_receipts_that_break_a_promise_and_ends_with_the_code_for_integrity(
    stage: Stage,  # noqa: F811
    panel: Panel,  # noqa: F811
    console: Console,
    onlooker: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = console.murmur("validator", "audit", "--home", onlooker)
    assert (shown.code, shown.out) == (0, "no validator has signed a receipt yet\n")
    shown = console.murmur("validator", "seats", "--home", onlooker)
    assert (shown.code, shown.out) == (0, "this run keeps no sums: its spec has no verification.noise\n")
    node, service = stage.seated(), panel.seat()
    stage.publish()
    stage.submit(node, stage.make(node))
    rounds(service)
    shown = console.murmur("validator", "audit", "--home", onlooker)
    assert (shown.code, f"{service._address}  receipts 1: 1 kept, 0 waiting, 0 unknown, 0 broken" in shown.out) == (
        0,
        True,
    )
    monkeypatch.setattr("node.judging.candidate.PrefillPlan.choose", lambda *_: [0])
    submission = stage.submit(node, stage.make(node, 1))
    rounds(service)
    shown = console.murmur("validator", "audit", "--home", onlooker)
    assert (shown.code, f"BROKEN  {submission.hex()[:12]}" in shown.out) == (8, True)
    (told,) = console.murmur("validator", "audit", "--home", onlooker, "--json").json["validators"]
    assert (told["validator"], told["kept"], [b["submission"] for b in told["broken"]]) == (
        service._address,
        1,
        [submission.hex()],
    )


@pytest.mark.parametrize("stage", [{"noise": ("0.01", "0.02")}], indirect=True)
def test_seats_shows_what_receipts_say_of_each_together(
    stage: Stage,  # noqa: F811
    panel: Panel,  # noqa: F811
    console: Console,
    onlooker: Path,
) -> None:
    shown = console.murmur("validator", "seats", "--home", onlooker)
    assert (shown.code, shown.out) == (0, "no work has been prefilled yet\n")
    node, service = stage.seated(), panel.seat()
    stage.publish()
    stage.submit(node, stage.make(node))
    rounds(service)
    shown = console.murmur("validator", "seats", "--home", onlooker)
    (told,) = console.murmur("validator", "seats", "--home", onlooker, "--json").json["seats"]
    assert (told["seat"], told["submissions"], told["mismatches"]) == (node.address, 1, 0)
    assert float(told["log10_evidence"]["soft"]) <= 0
    assert f"{node.address}  1 submissions, {told['tokens']} tokens prefilled" in shown.out
    assert "0 of 0 mismatched tokens have the higher logit" in shown.out


@pytest.mark.parametrize("stage", [{"history": ("0.003", "0.006"), "recalibration": {}}], indirect=True)
def test_seats_shows_sums_since_the_calibration_in_force(
    stage: Stage,  # noqa: F811
    panel: Panel,  # noqa: F811
    console: Console,
    onlooker: Path,
) -> None:
    """An onlooker has no weights, and asks for the newest manifest alone."""
    node, service = stage.seated(), panel.seat()
    for said in (None, notice(stage, 1)):
        stage.publish(notice=said)
        stage.submit(node, stage.make(node))
        rounds(service)
    told = console.murmur("validator", "seats", "--home", onlooker, "--json").json
    assert (told["since_version"], told["calibration"]) == (1, notice(stage, 1).calibration)
    assert [seat["submissions"] for seat in told["seats"]] == [1]
    budget = in_force(stage.tiny.spec.verification, notice(stage, 1)).history
    assert budget is not None
    assert float(told["log10_bounds"]["soft"]) == pytest.approx(bounds(budget).soft / math.log(10), abs=0.01)
    shown = console.murmur("validator", "seats", "--home", onlooker).out
    assert f"judged by calibration {notice(stage, 1).calibration[:12]} from version 1 on (notice 1)" in shown


def test_rejections_lists_what_was_found_and_what_became_of_it(kept: Kept) -> None:
    (row,) = kept.run("rejections", "--json").json["rejections"]
    told = kept.evidence.receipt.details
    assert (row["submission"], row["node"], row["step"], row["sequence"]) == (
        told.submission,
        told.node,
        told.step,
        told.sequence,
    )
    assert (row["found"], row["rule"], row["measured"], row["threshold"]) == (
        "hard",
        "tokens",
        told.measured,
        told.threshold,
    )
    assert Path(row["folder"]) == kept.evidence.folder
    assert row["state"], "the log knows it"
    shown = kept.run("rejections")
    assert (shown.code, kept.submission[:12] in shown.out, f"threshold {told.threshold}" in shown.out) == (
        0,
        True,
        True,
    )


@pytest.mark.parametrize(
    "variants",
    [(Variant("sdpa", 1, 1),), pytest.param(every_variant([EngineSettings()]), marks=pytest.mark.long)],
    ids=["one variant", "all variants"],
)
def test_calibrate_writes_a_calibration_that_can_be_loaded_and_a_report(
    console: Console, tiny_run: TinyRun, tmp_path: Path, variants: tuple[Variant, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other variants take their time: with `--long`."""
    monkeypatch.setattr(calibration, "every_variant", lambda engines: variants)
    out, file = tmp_path / "mine.json", tmp_path / "run.toml"
    tables = run_tables()
    tables["spec"]["model"]["compute_dtype"] = "bfloat16"
    write_toml(file, tables, "")
    small = ["--prompts", 1, "--samples", 2, "--max-new-tokens", 4]
    done = console.murmur(
        "validator", "calibrate", f"@{file}", "--model", tiny_run.model, "--out", out, "--hardware", 7, *small,
    )  # fmt: skip
    assert done.code == 0, done.err
    written = json.loads(out.read_text())
    assert written["compute_dtype"] == "bfloat16"  # the run's
    assert written["work"]["sequences"] == 2 * len(variants) ** 2
    assert (written["hardware"], len(written["variants"])) == ([7], len(variants))
    assert f"digest {load('mine.json', tmp_path).digest}" in done.out
    report = tmp_path / "mine-report"
    assert f"report: {report / 'report.md'}" in done.out
    assert {path.stem for path in report.glob("*.svg")} == {*PER_CHUNK, *PER_SEQUENCE}


def test_calibrate_computes_by_the_validators_engine(console: Console, tiny_run: TinyRun, tmp_path: Path) -> None:
    (tmp_path / "validator.toml").write_text(
        f'[chain]\nrpc = "http://127.0.0.1:1"\ncontract = "{"0x" + "11" * 20}"\nrun = 1\nchain_id = 1\n[engine]\nname = "vlm"\n'
    )
    refused = console.murmur(
        "validator", "calibrate", f"@{tiny_run.folder / 'run.toml'}", "--model", tiny_run.model, "--out", tmp_path / "x", "--home", tmp_path
    )  # fmt: skip
    assert (refused.code, "there is no engine 'vlm'" in refused.err) == (ConfigError.exit_code, True), refused.err


def test_calibrate_refuses_nothing_to_measure(console: Console, tiny_run: TinyRun, tmp_path: Path) -> None:
    command = ["validator", "calibrate", f"@{tiny_run.folder / 'run.toml'}", "--model", tiny_run.model]
    refused = console.murmur(*command, "--out", tmp_path / "mine.json", "--prompts", 0)
    assert (refused.code, (tmp_path / "mine.json").exists()) == (2, False)
