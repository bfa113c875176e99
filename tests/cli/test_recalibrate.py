"""`murmur trainer recalibrate`, and where owner and contributor see which calibration is in force."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from swarm.anvil import Anvil
from swarm.world import World

from node.contributor.commands.inspect import _calibration, _notice
from protocol import calibration
from protocol.calibration import Calibration
from protocol.chain.types import Publication
from protocol.notice_book import FILE, NoticeBook
from protocol.runspec import RunSpec, from_table
from protocol.shell.home import Home
from tests.cli.conftest import Console, Contributor
from trainer.hub.recalibration import Recalibrations

SHIPPED = json.loads((Path(calibration.__file__).parent / "calibrations/tiny-qwen3-float32-cpu.json").read_text())


def spec(*, allows: bool = True) -> RunSpec:
    table = json.loads((Path(__file__).parents[1] / "vectors/spec_digests.json").read_text())[0]["spec"]
    table["model"]["compute_dtype"] = "float32"
    table["verification"] |= {**SHIPPED["limits"], "calibration": Calibration(SHIPPED).digest}
    if allows:
        table["verification"]["recalibration"] = {}
    return from_table(table)


@pytest.fixture
def world(anvil: Anvil) -> World:
    return World.fresh(anvil)


@pytest.fixture
def file(world: World, console: Console) -> Path:
    path = console.folder / "run.toml"
    path.write_text(
        f'[chain]\nrpc = "{world.anvil.rpc}"\ncontract = "{world.chain.runs.address}"\nrun = {world.run}\n'
        '[trainer]\noutput = "out"\n'
    )
    (console.folder / "spec.json").write_bytes(spec().canonical())
    (console.folder / "out/hub").mkdir(parents=True)
    return path


def write(folder: Path, **changes: object) -> Path:
    content = json.loads(json.dumps(SHIPPED))
    content["limits"]["sampling"]["token_margin"] = {"soft": "0.2", "hard": "0.8"}
    path = folder / "measured.json"
    path.write_text(json.dumps(content | changes))
    return path


def test_the_owner_asks_sees_it_wait_and_sees_it_in_force(world: World, console: Console, file: Path) -> None:
    for _ in range(2):
        world.publish(world.chain.published(world.run), bytes([9]) * 32)
    measured, run = write(console.folder), f"@{file}"
    digest = Calibration(json.loads(measured.read_text())).digest
    refused = console.murmur("trainer", "recalibrate", run, measured)
    assert (refused.code, "--yes" in refused.err) == (2, True), "nobody sits at a terminal"
    early = console.murmur("trainer", "recalibrate", run, measured, "--from-version", 1, "--yes")
    assert (early.code, "version 1 is published" in early.err, "--from-version 2" in early.err) == (2, True, True)
    told = console.murmur("trainer", "recalibrate", run, measured, "--yes", "--json")
    assert told.json == {
        "calibration": digest, "earliest": 2, "changes": ["sampling.token_margin: soft 0.125 -> 0.2, hard 0.5 -> 0.8"],
    }  # fmt: skip
    shown = console.murmur("trainer", "recalibrate", run).out
    assert f"calibration {SPEC_DIGEST[:12]} of the run spec" in shown
    assert f"waits for version 2: calibration {digest[:12]}" in shown
    assert f"by calibration {SPEC_DIGEST[:12]}, the run spec's" in console.murmur("run", "show", run).out
    hub = Recalibrations(spec(), console.folder / "out/hub")
    notice = hub.of(2)
    hub.published(2, notice)
    world.publish(2, bytes([9]) * 32)
    assert f"by calibration {digest[:12]}, since version 2, notice 1" in console.murmur("run", "show", run).out
    found = console.murmur("trainer", "recalibrate", run, "--json").json
    assert found == {"calibration": digest, "since": 2, "notice": 1, "waiting": None}
    assert "in force already" in console.murmur("trainer", "recalibrate", run, measured, "--yes").err


SPEC_DIGEST = spec().verification.calibration


def test_what_waits_can_be_taken_back(console: Console, file: Path) -> None:
    run = f"@{file}"
    assert console.murmur("trainer", "recalibrate", run, write(console.folder), "--yes").code == 0
    assert console.murmur("trainer", "recalibrate", run, "--off", "--json").json == {"withdrawn": True}
    assert console.murmur("trainer", "recalibrate", run, "--off", "--json").json == {"withdrawn": False}
    assert console.murmur("trainer", "recalibrate", run, "--json").json["waiting"] is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"compute_dtype": "bfloat16"}, "the run computes in float32"),
        ({"hardware": [7]}, "measured hardware class 7, not 0"),
        ({"limits": {**SHIPPED["limits"], "noise": None}}, "noise has a limit in the spec, and none there"),
    ],
)
def test_a_calibration_that_is_not_of_this_run_is_refused(
    console: Console, file: Path, changes: dict[str, object], named: str
) -> None:
    refused = console.murmur("trainer", "recalibrate", f"@{file}", write(console.folder, **changes), "--yes")
    assert (refused.code, named in refused.err) == (3, True), refused.err
    missing = console.murmur("trainer", "recalibrate", f"@{file}", "nowhere.json", "--yes")
    assert (missing.code, "murmur validator calibrate" in missing.err) == (3, True)


def test_a_run_whose_spec_takes_none_says_so(console: Console, file: Path) -> None:
    (console.folder / "spec.json").write_bytes(spec(allows=False).canonical())
    refused = console.murmur("trainer", "recalibrate", f"@{file}", write(console.folder), "--yes")
    assert (refused.code, "[spec.verification.recalibration]" in refused.err) == (3, True)


def test_a_machine_without_the_hub_is_told_where_to_run_it(console: Console, file: Path) -> None:
    (console.folder / "out/hub").rmdir()
    refused = console.murmur("trainer", "recalibrate", f"@{file}", "tiny-qwen3-float32-cpu", "--yes")
    assert (refused.code, "run this on the hub's machine" in refused.err) == (5, True), refused.err
    assert not (console.folder / "out/hub").exists()


def test_a_contributor_sees_which_calibration_its_work_is_judged_by(contributor: Contributor) -> None:
    place, world = Home(contributor.home.path, "node"), contributor.world
    assert "judged by" in contributor.run("status").out
    for step in range(4):
        world.publish(step, bytes([9]) * 32)
    hub = Recalibrations(spec(), contributor.console.folder)
    hub.request(hub.notice(Calibration(json.loads(write(contributor.console.folder).read_text())), 2, 1))
    notice = hub.of(2)
    assert notice is not None
    NoticeBook(place.data / FILE).take(2, notice)
    assert contributor.run("status", "--json").json["calibration"] == {
        "digest": notice.calibration, "since": 2, "notice": 1,
    }  # fmt: skip
    assert (
        f"judged by  calibration {notice.calibration[:12]}, since version 2, notice 1" in contributor.run("status").out
    )
    (place.data / FILE).write_text("")
    damaged = contributor.run("status")
    assert (damaged.code, "damaged" in damaged.err) == (0, True)


def test_what_is_in_force_is_told_as_far_as_versions_were_read(tmp_path: Path) -> None:
    place, head = Home(tmp_path, "node"), Publication(9, bytes(32), bytes(32), 1, 1, 0)
    assert _calibration(spec(), *_notice(place, None), None) == {"digest": SPEC_DIGEST, "since": 0, "notice": 0}
    assert _calibration(spec(), *_notice(place, head), head) is None, "it has read no version"
    NoticeBook(place.data / FILE).take(7, None)
    assert _calibration(spec(), *_notice(place, head), head) == {
        "digest": SPEC_DIGEST, "since": 0, "notice": 0, "as_of_version": 7,
    }  # fmt: skip
    NoticeBook(place.data / FILE).take(9, None)
    assert _calibration(spec(), *_notice(place, head), head) == {"digest": SPEC_DIGEST, "since": 0, "notice": 0}
    (place.data / FILE).write_text("")
    assert _calibration(spec(), *_notice(place, head), head) is None, "its notes are damaged"
