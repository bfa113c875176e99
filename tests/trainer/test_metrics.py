"""What a step tells reaches every sink, what fails to be told ends nothing, and the signals of a collapse raise alarms."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from rich.console import Console

from protocol.errors import ConfigError
from protocol.exporter import Exporter, Health
from protocol.metrics import REGISTRY, MetricsSettings
from protocol.rollout import Sample
from protocol.runspec import RewardSpec
from protocol.shell.home import write_json
from tests.trainer import small
from trainer.config import AlarmSettings, Layout, MetricSettings, RunSettings, TrainSettings
from trainer.evaluation.evaluate import Evaluation
from trainer.learning.learner import StepMetrics
from trainer.rollouts.counts import DataCounts, names_of
from trainer.rollouts.pool import TrainingGroup
from trainer.telemetry.alarms import Alarms
from trainer.telemetry.metrics import Metrics
from trainer.telemetry.phases import Phases
from trainer.telemetry.record import NUMBERS
from trainer.telemetry.report import Report
from trainer.telemetry.samples import Shown, choose, newest, table
from trainer.telemetry.status import read_status, status_lines


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "output").mkdir()
    chain = {"contract": "0x", "chain_id": 1, "run": 1}
    return Layout(tmp_path / "run.toml", RunSettings.model_validate({"chain": chain, "trainer": {"steps": 9}}))


@pytest.fixture(autouse=True)
def no_gauges_are_left() -> Iterator[None]:
    """They are the process's, and some tests here close nothing."""
    before = list(REGISTRY)
    yield
    for metric in [metric for metric in REGISTRY if metric not in before]:
        REGISTRY.remove(metric)


RECORD = {"loss": 0.5, "reward": None, "reward_by_environment": {"rotate_matrix": 0.25, "spiral_matrix": None}}


# ---- sinks -------------------------------------------------------------------------------------------------------------


def test_numbers_of_a_step_are_among_the_trainers_metrics(layout: Layout) -> None:
    metrics = Metrics(MetricSettings(tensorboard=False), layout, step=0)
    metrics.write(7, RECORD)
    with Exporter(MetricsSettings(port=0), Health("a phase", 600)) as exporter:
        text = httpx.get(f"{exporter.url}/metrics", timeout=60).text
        metrics.close()
        assert "murmur_trainer_loss" not in httpx.get(f"{exporter.url}/metrics", timeout=60).text
    assert "murmur_trainer_step 7.0" in text
    assert "murmur_trainer_loss 0.5" in text
    assert 'murmur_trainer_reward_by_environment{of="rotate_matrix"} 0.25' in text
    assert "spiral_matrix" not in text


def test_numbers_can_be_read_with_tensorboard(layout: Layout) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    metrics = Metrics(MetricSettings(), layout, step=0)
    for step in (6, 7):
        metrics.write(step, RECORD)
    metrics.close()
    read = events.EventAccumulator(str(layout.tensorboard)).Reload()
    assert read.Tags()["scalars"] == ["loss", "reward_by_environment/rotate_matrix"]
    assert [(event.step, event.value) for event in read.Scalars("loss")] == [(6, 0.5), (7, 0.5)]


def test_a_resumed_training_tells_of_no_step_twice(layout: Layout, caplog: pytest.LogCaptureFixture) -> None:
    first = Metrics(MetricSettings(tensorboard=False), layout, step=0)
    for step in (0, 1, 2, 3):
        first.write(step, RECORD)
        first.show(step, [SAID, SAID])
    first.write(1, {"held_out_score": 0.5})  # evaluations come later than the steps they are of
    first.close()
    with layout.metrics.open("a") as file:
        file.write('{"step": 1, "los')
    second = Metrics(MetricSettings(tensorboard=False), layout, step=2)
    second.write(2, {"loss": 0.25})
    second.close()
    told = [json.loads(line) for line in layout.metrics.read_text().splitlines()]
    assert [(one["step"], one.get("loss")) for one in told] == [(0, 0.5), (1, 0.5), (1, None), (2, 0.25)]
    shown = [json.loads(line)["step"] for line in layout.samples.read_text().splitlines()]
    assert shown == [0, 0, 1, 1]
    assert sorted(path.name for path in layout.output.iterdir()) == ["metrics.jsonl", "samples.jsonl"]
    assert not caplog.messages


def test_a_full_disk_leaves_what_was_told_as_it_was(
    layout: Layout, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Metrics(MetricSettings(tensorboard=False), layout, step=0).write(3, {})
    written = layout.metrics.read_text()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("trainer.telemetry.metrics.os.fsync", full)
    Metrics(MetricSettings(tensorboard=False), layout, step=2)
    Metrics(MetricSettings(tensorboard=False), layout, step=4)  # needs no room
    assert len(caplog.messages) == 1
    assert layout.metrics.read_text() == written
    assert "metrics.jsonl may tell of steps from 2 on twice: No space left" in caplog.text
    assert [path.name for path in layout.output.iterdir()] == ["metrics.jsonl"]


def test_weights_and_biases_is_missed_only_where_it_was_asked_for(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ConfigError, match="wandb"):
        Metrics(MetricSettings(tensorboard=False, wandb_project="mine"), layout, step=0)


@pytest.fixture(params=["a stand-in", "wandb itself, offline"])
def wandb(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the sink said, as a list of (arguments of init, whatever was logged); with the package itself only that it takes it."""
    if request.param == "a stand-in":
        stand_in = StandIn()
        monkeypatch.setitem(sys.modules, "wandb", stand_in)  # type: ignore[arg-type]
        return stand_in
    found = pytest.importorskip("wandb", reason="the package wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    return found


class StandIn:
    """As much of the package as the sink uses; refuses what the package would."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.finished = 0

    def init(self, *, project: str, dir: str, id: str, resume: str) -> StandIn:
        assert resume == "allow"
        self.begun.append({"project": project, "dir": dir, "id": id})
        return self

    def define_metric(self, name: str, *, step_metric: str) -> None:
        assert (name, step_metric) == ("*", "train_step")

    def Table(self, *, columns: list[str], data: list[list[Any]]) -> tuple[list[str], list[list[Any]]]:
        assert all(len(row) == len(columns) for row in data)
        return columns, data

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.finished += 1


SAID = Shown("1 + 1 = ?", "\x1b[2Jtwo\n[red]", 3, 1.0, 0.5)


def test_weights_and_biases_gets_numbers_and_a_table_of_samples(
    wandb: Any, layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (7, 8):  # the second process goes on with the first one's run
        metrics = Metrics(MetricSettings(tensorboard=False, wandb_project="mine"), layout, step=step)
        metrics.write(step, RECORD)
        metrics.show(step, [SAID])
        metrics.close()
    assert "Weights & Biases" not in caplog.text
    if not isinstance(wandb, StandIn):
        assert len(list((layout.output / "wandb").glob("offline-run-*"))) == 2
        return
    first, second = wandb.begun
    assert first == second
    assert (first["project"], first["dir"]) == ("mine", str(layout.output))
    assert wandb.logged[0] == {"train_step": 7, "loss": 0.5, "reward_by_environment/rotate_matrix": 0.25}
    assert wandb.logged[3] == {
        "train_step": 8,
        "samples": (
            ["step", "prompt", "completion", "tokens", "reward", "advantage"],
            [[8, "1 + 1 = ?", "\\x1b[2Jtwo\\n[red]", 3, 1.0, 0.5]],
        ),
    }
    assert wandb.finished == 2


def test_weights_and_biases_that_fails_ends_nothing(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", stand_in)  # type: ignore[arg-type]
    monkeypatch.setattr(stand_in, "init", lambda **_: 1 / 0)
    metrics = Metrics(MetricSettings(tensorboard=False, wandb_project="mine"), layout, step=0)
    metrics.write(0, RECORD)
    assert "Weights & Biases" in caplog.text
    assert layout.metrics.exists()


# ---- samples -----------------------------------------------------------------------------------------------------------


def letters(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def test_samples_are_the_best_and_the_worst_of_some_groups() -> None:
    groups = [replace(group(0), rewards=(0.5, 1.0, 0.0, 0.25)), replace(group(0), rewards=(1.0, 1.0, 1.0, 0.5))]
    shown = choose(groups, letters, 3)
    assert [sample.reward for sample in shown] == [1.0, 0.0, 1.0]
    of = group(0).samples
    assert (shown[1].prompt, shown[1].completion) == (letters(of[2].prompt), letters(of[2].completion))
    assert (shown[1].advantage, shown[1].tokens) == (of[2].advantage, len(of[2].completion))
    assert choose(groups, letters, 0) == []


def test_samples_of_the_last_step_are_found_again_and_shown_without_doing_anything(layout: Layout) -> None:
    metrics = Metrics(MetricSettings(tensorboard=False), layout, step=0)
    metrics.show(3, [Shown("old", "old", 1, 0.0, 0.0)])
    metrics.show(4, [SAID, Shown("long " * 1000, "x" * 4000, 4000, 0.0, -0.5)])
    with layout.samples.open("a") as file:
        file.write('{"step": 5, "prompt": "torn')
    found = newest(layout.samples)
    assert found is not None
    assert (found[0], found[1][0], len(found[1])) == (4, SAID, 2)
    assert "\x1b" not in layout.samples.read_text()
    console = Console(file=StringIO(), width=120, force_terminal=True, color_system="truecolor")
    console.print(table(*found))
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[2J" not in written
    assert "\\x1b[2Jtwo\\n[red]" in written
    assert "…" in written
    assert newest(layout.output / "nothing.jsonl") is None


def test_samples_of_strangers_are_code_to_tensorboard(layout: Layout) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    metrics = Metrics(MetricSettings(), layout, step=0)
    metrics.show(4, [Shown("![](http://x)", "a\n# b", 2, 1.0, 0.5)])
    metrics.close()
    (event,) = events.EventAccumulator(str(layout.tensorboard)).Reload().Tensors("samples/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert "    completion: a\\n# b" in text.splitlines()
    assert all(line.startswith("    ") for line in text.splitlines())


def test_a_sink_that_fails_is_warned_of_once_and_stops_no_other(
    layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        name = "a broken sink"

        def write(self, step: int, record: object) -> None:
            raise RuntimeError("the disk is full")

        def close(self) -> None:
            raise AssertionError("it was given up")

    metrics = Metrics(MetricSettings(tensorboard=False), layout, step=0)
    metrics._sinks.insert(0, Broken())
    for step in (0, 1):
        metrics.write(step, RECORD)
    metrics.close()
    assert [json.loads(line)["step"] for line in layout.metrics.read_text().splitlines()] == [0, 1]
    assert caplog.text.count("a broken sink") == 1


# ---- a step's record ---------------------------------------------------------------------------------------------------


def sample(reward: float, *, budget: int = 0, length: int = 4) -> Sample:
    tokens = np.ones(length, np.int32)
    penalty = 0.1 * abs(budget - length) if budget else 0.0
    return Sample(0, 0, 0, budget, tokens, tokens, tokens.astype(np.float32), (), reward, penalty, reward - penalty)


def group(step: int, node: str = "a") -> TrainingGroup:
    return TrainingGroup(b"w", 0, node, step, small.group(0))


LEARNT = StepMetrics(
    loss=0.1, entropy=2.0, clipped=0.02, clipped_positive=0.01, clipped_negative=0.03, log_ratio=0.01, behaviour_gap=0.02, kl=0.0,
    gradient_norm=0.5, tokens=40, skipped=0, learning_rate=3e-4,
)  # fmt: skip


@pytest.fixture
def report(layout: Layout) -> Iterator[Report]:
    settings = TrainSettings(steps=9, metrics=MetricSettings(tensorboard=False, peak_tflops=1e-6))
    made = Report(settings, layout, Phases())
    made.open(0)
    yield made
    made.close()


def records(layout: Layout) -> list[dict[str, object]]:
    return [json.loads(line) for line in layout.metrics.read_text().splitlines()]


def test_a_record_tells_what_came_in_since_the_step_before(report: Report, layout: Layout) -> None:
    counts = DataCounts(groups=4, bad_groups=2)
    counts.drop("spiral", "all_right")
    counts.add("rotate", [sample(1.0, length=7), sample(0.0)], [1], RewardSpec())
    counts.add("spiral", [sample(1.0, budget=6, length=4)], [2], RewardSpec())
    report.step(3, [group(3), group(1), group(1, "b")], LEARNT, counts)
    first = records(layout)[-1]
    assert first["reward"] == pytest.approx((1 + 0 + 0.8) / 3)
    assert first["task_reward"] == pytest.approx(2 / 3)
    assert first["length_penalty"] == pytest.approx(0.2 / 3)
    assert first["reward_deviation"] == pytest.approx(np.std([1, 0, 0.8]))
    assert first["length_error"] == 2
    assert (first["completion_length"], first["completion_length_max"]) == (5, 7)
    assert first["truncated_share"] == pytest.approx(
        1 / 3
    )  # its last token is no end token of that environment's policy
    assert first["learning_rate"] == 3e-4
    assert first["reward_by_environment"] == {"rotate": 0.5, "spiral": pytest.approx(0.8)}
    assert first["task_reward_by_environment"] == {"rotate": 0.5, "spiral": 1}
    assert first["length_error_by_environment"] == {"spiral": 2}
    assert first["zero_advantage_share"] == 0.25
    assert first["bad_groups"] == 2
    assert first["staleness_groups"] == {"0": 1, "2": 2}
    assert (first["staleness"], first["nodes"]) == (pytest.approx(4 / 3), 2)
    counts.groups += 2
    counts.add("rotate", [sample(0.0)], [1], RewardSpec())
    counts.drop("rotate", "none_right")
    counts.stale_groups += 3
    report.step(4, [group(4)], LEARNT, counts)
    second = records(layout)[-1]
    assert (second["reward"], second["reward_deviation"]) == (0, 0)
    assert (second["completion_length"], second["completion_length_max"], second["truncated_share"]) == (4, 4, 0)
    assert second["reward_by_environment"] == {"rotate": 0, "spiral": None}
    assert second["task_reward_by_environment"] == {"rotate": 0, "spiral": None}
    assert second["length_error_by_environment"] == {}
    assert second["zero_advantage_share"] == 0.5
    nothing = {"all_right": 0, "none_right": 0, "equal": 0, "stale": 0, "duplicate": 0, "bad": 0}
    assert first["dropped_groups"] == nothing | {"all_right": 1, "bad": 2}
    assert first["zero_advantage_by_environment"] == {"rotate": 0, "spiral": 1}
    assert second["dropped_groups"] == nothing | {"none_right": 1, "stale": 3}
    assert second["zero_advantage_by_environment"] == {"rotate": 1, "spiral": 0}
    report.say("training", 4)
    assert "4 groups dropped (1 none right, 3 stale)" in "\n".join(status_lines(read_status(layout)))


def test_every_number_of_a_record_has_a_unit_and_a_meaning(report: Report, layout: Layout) -> None:
    report.step(3, [group(3)], LEARNT, DataCounts())
    report.evaluated(3, Evaluation(0.5, {"sums": 0.5}, 4, 8))
    told = {name for record in records(layout) for name in record} - {"blamed"}
    assert told == {number.name for number in NUMBERS}
    help_texts = {metric.name: metric.text for metric in REGISTRY if metric.name.startswith("murmur_trainer_")}
    assert help_texts["murmur_trainer_log_ratio"] == "Mean absolute log-ratio of new to old logprobs."


def test_steps_that_are_left_are_measured(report: Report) -> None:
    report.say("training", 4)
    assert REGISTRY["murmur_trainer_steps_left"].values() == {(): 5}


def test_how_far_answers_are_off_is_told_as_far_as_it_costs() -> None:
    counts = DataCounts()
    counts.add("met", [sample(1.0, budget=6, length=4)], [1], RewardSpec())
    counts.add(
        "not passed",
        [sample(1.0, budget=6, length=4), sample(1.0, budget=6, length=9)],
        [1],
        RewardSpec(length="maximum"),
    )
    assert [of.length_error for of in counts.environments.values()] == [2, 3]


def test_speed_counts_the_time_of_training_alone(report: Report, layout: Layout) -> None:
    report.operations = 6000
    report._phases._seconds.update({"training": 2.0, "waiting for rollouts": 50.0})
    report.step(0, [group(0)], LEARNT, DataCounts())
    told = records(layout)[-1]
    tokens = sum(len(one) for one in small.group(0))
    assert told["tokens_per_second"] == tokens / 2
    assert told["mfu"] == pytest.approx(6 * 1000 * tokens / (2 * 1e6))
    assert told["seconds"] == {"training": 2.0, "waiting for rollouts": 50.0}


def test_status_says_what_is_waited_for_and_until_when(report: Report, layout: Layout) -> None:
    with report._phases("waiting for rollouts", 3600):
        report.say("waiting for rollouts", 5, have=3, need=16)
    report.step(5, [group(5)], replace(LEARNT, log_ratio=0.4), DataCounts())
    report.say("training", 6)
    assert "ALARM at step 5: log_ratio 0.400, limit 0.100" in "\n".join(status_lines(read_status(layout)))
    with report._phases("waiting for rollouts", 3600):
        report.say("waiting for rollouts", 6, have=3, need=16)
    lines = list(status_lines(read_status(layout)))
    assert lines[0] == "step 6 of 9: waiting for rollouts have 3, need 16"
    assert lines[1] == "  waiting for rollouts for 0 s of at most 3600 s"


def test_status_shows_the_runs_page_and_what_validators_told_the_hub_of_challenges(
    report: Report, layout: Layout
) -> None:
    report.say("training", 6)
    assert "matrix_challenges" not in read_status(layout)
    last = {"outcome": "passed", "operations_per_second": 10**12, "validator": "0xBB"}
    layout.hub_status.parent.mkdir(parents=True, exist_ok=True)
    page = "http://127.0.0.1:8450/run/1/"
    write_json(layout.hub_status, {"matrix_challenges": {"0xAA": last}, "page": page})
    assert f"  to look at: {page}" in list(status_lines(read_status(layout)))
    assert read_status(layout)["matrix_challenges"] == {"0xAA": last}
    assert "  matrix challenge of 0xAA: passed, 1 int8 TOPS, says 0xBB" in list(status_lines(read_status(layout)))


def test_status_shows_the_held_out_score_of_each_environment_where_there_are_several(
    report: Report, layout: Layout
) -> None:
    report.evaluated(0, Evaluation(0.5, {"sums": 0.5}, 4, 8))
    report.evaluated(5, Evaluation(0.5, {"sums": 0.75, "programs": 0.25}, 8, 16))
    report.say("training", 6)
    lines = list(status_lines(read_status(layout)))
    assert not any("reward" in line for line in lines), "there was no step yet"
    assert "  held-out score 0.500 at step 0 (4 problems)" in lines
    assert "  held-out score 0.500 at step 5 (8 problems): sums 0.750, programs 0.250" in lines


def test_status_shows_the_reward_of_the_last_step_and_of_each_environment_where_there_are_several(
    report: Report, layout: Layout
) -> None:
    counts = DataCounts(groups=2)
    counts.add("rotate", [sample(1.0), sample(0.0)], [1], RewardSpec())
    report.step(3, [group(3)], LEARNT, counts)
    report.say("training", 4)
    assert "  reward 0.500 at step 3" in list(status_lines(read_status(layout)))
    counts.add("spiral", [sample(1.0)], [2], RewardSpec())
    report.step(4, [group(4)], LEARNT, counts)
    report.say("training", 5)
    assert "  reward 1.000 at step 4: rotate –, spiral 1.000" in list(status_lines(read_status(layout)))
    report.step(5, [group(5)], LEARNT, counts)
    report.say("training", 6)
    assert not any("reward" in line for line in status_lines(read_status(layout))), "nothing came in"


def test_environments_of_the_same_dataset_have_names_of_their_own() -> None:
    assert names_of(["a", "b", "a"]) == ["a", "b", "a-2"]


# ---- alarms ------------------------------------------------------------------------------------------------------------


def step(**values: float | None) -> dict[str, float | None]:
    return {"log_ratio": 0.01, "clipped": 0.01, "zero_advantage_share": 0.2, **values}


def test_each_signal_of_a_collapse_raises_its_alarm() -> None:
    alarms = Alarms(AlarmSettings())
    for _ in range(10):
        assert alarms.check(step()) == []
    assert [a.signal for a in alarms.check(step(log_ratio=0.11))] == ["log_ratio"]
    assert [a.signal for a in alarms.check(step(clipped=0.11))] == ["clipped"]
    assert [a.signal for a in alarms.check(step(zero_advantage_share=0.5))] == ["zero_advantage_share"]
    assert alarms.check(step(zero_advantage_share=0.4)) == []
    assert alarms.check(step(zero_advantage_share=None, log_ratio=None)) == []


def test_a_share_that_rises_slowly_as_the_policy_learns_is_no_surge() -> None:
    alarms = Alarms(AlarmSettings())
    assert [alarms.check(step(zero_advantage_share=0.01 * i)) for i in range(80)] == [[]] * 80


def test_a_run_may_begin_with_many_groups_that_teach_nothing() -> None:
    alarms = Alarms(AlarmSettings())
    assert [alarms.check(step(zero_advantage_share=share)) for share in (0.9, 0.2, 0.9, 0.5, 0.9)] == [[]] * 5
