"""The trainer's page: what it tells of a real folder, who may see it, what it never tells, and what it costs while nobody looks."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from protocol.page import assets, keeper
from protocol.page.log_tail import LogTail
from protocol.shell.home import Home
from tests.clock import VirtualClock, eventually
from tests.page.made_trainer import BASE, KEY, NOW, RPC, MadeTrainer, ShownTrainer, shown_trainer
from trainer.commands import app as commands
from trainer.config import SoloSettings
from trainer.telemetry.page import app, disk, service, timeline
from trainer.telemetry.page.keeper import PARTS
from trainer.telemetry.page.timeline import Span
from trainer.telemetry.phases import Phases
from trainer.telemetry.report import Report

LIMIT = 300_000


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownTrainer]:
    with shown_trainer(MadeTrainer(tmp_path_factory.mktemp("run")).work(), LogTail()) as page:
        yield page.ready()


# ---- who may see it --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers", [{"host": "evil.example"}, {"x-forwarded-for": "1.2.3.4"}, {"sec-fetch-site": "cross-site"}]
)
def test_nobody_from_elsewhere_sees_it(shown: ShownTrainer, headers: dict[str, str]) -> None:
    assert shown.get("api/v1/trainer", headers).status_code == 403


def test_it_only_reads_and_its_policy_is_strict(shown: ShownTrainer) -> None:
    assert httpx.post(f"{shown.url}api/v1/trainer", timeout=30).status_code == 405
    for path in ("", "api/v1/trainer", "static/trainer.css", "static/page.js"):
        answer = shown.get(path)
        assert answer.status_code == 200 and "default-src 'none'" in answer.headers["content-security-policy"]
    assert shown.server._listener.getsockname()[0] == "127.0.0.1"


# ---- what it tells -----------------------------------------------------------------------------------------------------------


def test_each_part_is_there_and_is_sent_again_only_when_it_is_another(shown: ShownTrainer) -> None:
    for name in PARTS:
        answer = shown.get(f"api/v1/{name}")
        assert answer.status_code == 200, name
        assert shown.get(f"api/v1/{name}", {"if-none-match": answer.headers["etag"]}).status_code == 304, name
    assert shown.get("api/v1/secrets").status_code == 404


def test_it_says_what_the_trainer_does_and_how_it_stands_to_the_base_model(shown: ShownTrainer) -> None:
    front = shown.part("trainer")
    assert front["running"] and front["said"]["state"] == "waiting for rollouts"
    assert front["said"]["waiting"] == {"have": 11, "need": 16, "seconds": 12.4}
    assert (front["base"], front["held_out"]["score"]) == (BASE, 0.64)
    assert front["published"] == 39
    charts = shown.part("charts")
    assert len(charts["loss"]) == len(charts["steps"]) == 40
    assert charts["held_out"]["steps"] == [*range(0, 40, 5)]


def test_an_evaluation_of_later_weights_is_no_base_model(tmp_path: Path) -> None:
    made = MadeTrainer(tmp_path)
    made.say(40, evaluations=[{**BASE, "step": 20}])
    with shown_trainer(made) as page:
        assert page.ready().part("trainer")["base"] is None
        assert page.part("trainer")["held_out"]["step"] == 20


def test_alarms_are_those_of_the_last_step_and_of_steps_that_had_some(tmp_path: Path) -> None:
    made = MadeTrainer(tmp_path).work()
    made.say(40, alarms=[{"step": 39, "signal": "clipped", "value": 0.4, "limit": 0.1}])
    with shown_trainer(made) as page:
        said = page.ready().part("alarms")
    assert [one["signal"] for one in said["now"]] == ["clipped"]
    assert [(one["step"], one["signals"][0]["signal"]) for one in said["before"]] == [
        (31, "zero_advantage_share"),
        (12, "log_ratio"),
    ]
    assert said["before"][1]["signals"] == [
        {"signal": "log_ratio", "value": 0.31, "limit": said["limits"]["log_ratio"]}
    ]


def test_a_checkpoint_without_all_its_files_is_said_not_to_be_whole(tmp_path: Path) -> None:
    made = MadeTrainer(tmp_path).work()
    folder = made.layout.checkpoints
    (folder / "step_35" / "tensors.safetensors").unlink()
    (folder / "step_30" / "digests.json").unlink()
    (folder / "step_20" / "digests.json").write_text("[")
    (folder / ".writing-step_45").mkdir()
    found = disk.checkpoints(made.layout, keep_every=10)
    assert [(one["step"], one["whole"], one["missing"], one["stays"]) for one in found["rows"]] == [
        (40, True, 0, True), (35, False, 1, False), (30, False, None, True), (20, False, 1, True), (10, True, 0, True), (0, True, 0, True),
    ]  # fmt: skip
    assert found["writing"] == 45 and found["rows"][0]["bytes"] > 300_000
    assert found["rows"][0]["at"] == NOW


def test_versions_are_those_of_the_chain_and_those_on_their_way(shown: ShownTrainer) -> None:
    said = shown.part("versions")
    assert [row["step"] for row in said["rows"]] == [*range(39, 31, -1)] and all(
        row["at"] < said["now"] for row in said["rows"]
    )
    assert (said["ready"], said["writing"]) == ([40, 39], None)


def test_before_its_first_word_it_says_that_there_is_nothing(tmp_path: Path) -> None:
    made = MadeTrainer(tmp_path)
    with shown_trainer(made, runs=False) as page:
        front = page.ready().part("trainer")
        assert front["said"] is None and not front["running"] and front["checkpoint"] is None
        assert (
            page.part("timeline") == []
            and page.part("checkpoints")["rows"] == []
            and page.part("versions")["rows"] == []
        )


@pytest.mark.parametrize(("alive", "locked"), [(False, True), (True, False)])
def test_a_trainer_whose_process_or_lock_is_gone_does_not_run(tmp_path: Path, alive: bool, locked: bool) -> None:
    made = MadeTrainer(tmp_path)
    made.say(3, alive=alive)
    with shown_trainer(made, runs=locked) as page:
        assert not page.ready().part("trainer")["running"]
        assert page.part("timeline") == [], "what it said it was doing it does no more"


def test_a_training_on_one_machine_has_one_too(tmp_path: Path) -> None:
    settings = SoloSettings.model_validate({"trainer": {"steps": 10}, "page": {"port": 0}})
    (tmp_path / "run.toml").touch()
    from trainer.config import Outputs

    layout = Outputs(tmp_path / "run.toml", "policy", "solo")
    layout.output.mkdir()
    made = MadeTrainer(tmp_path)
    made.settings, made.layout = settings, layout  # type: ignore[assignment]
    made.say(2, "generating")
    with shown_trainer(made) as page:
        front = page.ready().part("trainer")
        assert front["solo"] and front["run"] is None and front["said"]["state"] == "generating"
        assert page.part("versions")["rows"] == []


# ---- the timeline --------------------------------------------------------------------------------------------------------------


def span(step: int | None, name: str, at: float, seconds: float | None, *, beside: bool = False) -> Span:
    return Span(step, name, at, seconds, seconds or 0.0, beside)


def test_each_step_is_a_row_and_work_beside_it_is_cut_at_its_ends() -> None:
    ended = [
        span(None, "starting", 0, 5), span(0, "waiting for rollouts", 5, 10), span(0, "training", 15, 5),
        span(1, "waiting for rollouts", 20, 4), span(0, "evaluating", 18, 4, beside=True),
    ]  # fmt: skip
    rows = timeline.rows(ended, [span(1, "training", 24, None)])
    assert [(row["step"], row["at"], row["seconds"]) for row in rows] == [(1, 20, None), (0, 5, 15), (None, 0, 5)]
    assert rows[0]["phases"] == [["waiting for rollouts", 0, 4], ["training", 4, None]]
    assert rows[0]["beside"] == [["evaluating", 0, 2]] and rows[1]["beside"] == [["evaluating", 13, 2]]
    assert rows[1]["spent"] == [["waiting for rollouts", 10], ["training", 5], ["evaluating", 4]]


def test_a_step_that_a_later_life_does_again_is_a_row_of_its_own() -> None:
    ended = [
        span(None, "starting", 0, 1),
        span(0, "training", 1, 1),
        span(None, "starting", 100, 1),
        span(0, "training", 101, 1),
    ]
    assert [row["step"] for row in timeline.rows(ended)] == [0, None, 0, None]
    assert [row["seconds"] for row in timeline.rows(ended)] == [1, 1, 1, 1]
    died = [span(None, "starting", 0, 1), span(None, "starting", 100, 1)]
    assert [row["seconds"] for row in timeline.rows(died)] == [1, 1]


def test_phases_are_written_as_they_end_and_read_without_torn_lines(tmp_path: Path) -> None:
    made, clock = MadeTrainer(tmp_path), VirtualClock()
    phases = Phases(clock)
    report = Report(made.settings.trainer, made.layout, phases, clock=clock, page_url="http://127.0.0.1:8500/")
    with phases("starting", 60):
        clock.sleep(3)
        report.say("starting", 0)
    phases.step = 4
    with phases("training", 60):
        with phases("saving", 60):
            clock.sleep(2)
        clock.sleep(1)
    report.say("waiting for rollouts", 5)
    with made.layout.phases.open("a") as file:
        file.write(
            '{"step": null, "name": "torn\n[]\n'
            + json.dumps({"step": 1, "name": "x", "at": float("nan"), "seconds": 1, "net": 1, "beside": False})
            + "\n{"
        )
    found = timeline.read(made.layout.phases)
    assert [(one.step, one.name, one.seconds, one.net, one.beside) for one in found] == [
        (None, "starting", 3, 3, False), (4, "saving", 2, 2, False), (4, "training", 3, 1, False),
    ]  # fmt: skip
    assert json.loads(made.layout.status.read_text())["page_url"] == "http://127.0.0.1:8500/"


def test_of_a_long_file_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "phases.jsonl"
    with path.open("w") as file:
        for step in range(5_000):
            file.write(
                json.dumps({"step": step, "name": "training", "at": step, "seconds": 1, "net": 1, "beside": False})
                + "\n"
            )
    found = timeline.rows(timeline.read(path))
    assert [row["step"] for row in found] == [*range(4_999, 4_999 - timeline.STEPS, -1)]


# ---- what it never tells, what it costs ------------------------------------------------------------------------------------------


def test_no_secret_of_an_endpoint_and_no_place_of_a_key_is_on_it(tmp_path: Path) -> None:
    made, tail = MadeTrainer(tmp_path).work(steps=1), LogTail()
    made.say(1, f"ended: {RPC} answered 429")
    log = logging.getLogger("a trainer")
    log.addHandler(tail)
    log.warning("%s does not answer; opened %s", RPC, made.layout.keystore)
    with shown_trainer(made, tail) as page:
        page.ready()
        texts = {path: page.get(f"api/v1/{path}").text for path in (*PARTS, "parts")}
    assert "rpc.example" in texts["trainer"] and "rpc.example" in texts["log"]
    for path, text in texts.items():
        for secret in (KEY, "hunter2secret", "user:", str(made.layout.keystore)):
            assert secret not in text, (path, secret)


def test_nothing_is_read_nor_served_before_somebody_looks_and_after_they_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MadeTrainer(tmp_path)
    made.say(3)
    monkeypatch.setattr(keeper, "WATCHED_SECONDS", 0.2)
    with shown_trainer(made) as page:
        assert not page.server.is_awake and not page.keeper.content.parts
        page.ready()
        eventually(lambda: not page.keeper.is_watched, what="nobody looks any more")
        mark = page.keeper.content.mark
        made.say(4)
        page.keeper._clock.sleep(0.2)
        assert page.keeper.content.mark == mark


def test_a_page_with_all_its_parts_is_small(tmp_path: Path) -> None:
    made, tail = MadeTrainer(tmp_path).work(steps=400), LogTail()
    for _ in range(200):
        tail.emit(logging.LogRecord("trainer", logging.INFO, "", 0, "x" * 200, (), None))
    with shown_trainer(made, tail) as page:
        page.ready()
        names = [name for name in assets.read_assets(app.FOLDER, "") if not name.endswith((".html", ".LICENSE"))]
        paths = ["", *(f"static/{name}" for name in names), *(f"api/v1/{part}" for part in PARTS)]
        sizes = {path: len(page.get(path).content) for path in paths}
    assert sum(sizes.values()) <= LIMIT, sizes


# ---- how it comes to be served -------------------------------------------------------------------------------------------------------


def test_off_means_that_nothing_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeTrainer(tmp_path, page={"show": "off"})
    monkeypatch.setattr(service, "listen", lambda port: pytest.fail("it listens"))
    with service.page_of_running_trainer(made.layout, made.settings) as url:
        assert url is None


def test_a_trainer_runs_without_its_page_where_every_port_is_taken_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from protocol.page import server

    monkeypatch.setattr(server, "PORTS", 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        made = MadeTrainer(tmp_path, page={"port": taken.getsockname()[1]})
        with service.page_of_running_trainer(made.layout, made.settings) as url:
            assert url is None
    assert "has no page" in caplog.text


def run_toml(made: MadeTrainer) -> str:
    chain = made.settings.chain
    made.layout.file.write_text(
        f'[chain]\nrpc = "{RPC}"\ncontract = "{chain.contract}"\nchain_id = {chain.chain_id}\nrun = 1\n[trainer]\nsteps = 100\n[page]\nport = 0\n'
    )
    return f"@{made.layout.file}"


def test_the_command_names_the_page_of_a_trainer_that_runs(tmp_path: Path) -> None:
    made = MadeTrainer(tmp_path)
    file, url = run_toml(made), "http://127.0.0.1:8500/"
    made.say(3, page_url=url)
    with Home(made.layout.output, "trainer").lock():
        done = CliRunner().invoke(commands, ["page", file])
        assert (done.exit_code, done.stdout) == (0, f"{url}\n")
        assert f"this trainer's page: {url}" in CliRunner().invoke(commands, ["status", file]).stdout
    made.say(3, page_url=url, alive=False)
    assert url not in CliRunner().invoke(commands, ["status", file]).stdout, "its page went with it"


def test_the_command_serves_the_page_of_a_trainer_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MadeTrainer(tmp_path).work(steps=2)
    made.say(2, "stopped", alive=False)
    seen: list[Any] = []

    class Ended:
        def wait(self) -> None:
            seen.append(made.layout)

    from contextlib import contextmanager

    from protocol.shell import signals

    @contextmanager
    def until_looked(*_: object) -> Iterator[Ended]:
        yield Ended()

    monkeypatch.setattr(signals, "until_signalled", until_looked)
    done = CliRunner().invoke(commands, ["page", run_toml(made)])
    assert done.exit_code == 0 and done.stdout.startswith("http://127.0.0.1:") and seen
    assert "Ctrl-C ends it" in done.stderr
