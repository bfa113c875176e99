"""The comparison of staleness: its arithmetic, what it says of a swarm's trainer, and that it runs."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from benches import asynchrony, waiting
from benches.asynchrony import Curve, Difference, learning, times, waits
from benches.curves import draw
from swarm.processes import ROOT

from protocol.errors import PreflightError


def curves(finals: dict[int, Sequence[float]], answers: int = 1000) -> list[Curve]:
    return [
        Curve(
            staleness,
            seed,
            [0.2, 0.4],
            {0: 0.2, 2: final},
            final,
            answers,
            gap=0.1 * staleness,
            generating=0.6,
            training=0.2,
        )
        for staleness, of in finals.items()
        for seed, final in enumerate(of)
    ]


def staleness_two(finals: dict[int, Sequence[float]], answers: int = 1000) -> Difference:
    (row,) = (row for row in learning(curves(finals, answers)) if row.name == "accuracy lost or won by staleness 2")
    assert isinstance(row, Difference)
    return row


def test_a_loss_beyond_the_noise_is_found() -> None:
    row = staleness_two({0: [0.70, 0.72, 0.68], 2: [0.60, 0.63, 0.57]})
    assert row.difference == pytest.approx(-0.1)
    assert row.met is False


def test_a_difference_within_the_spread_of_seeds_is_none() -> None:
    row = staleness_two({0: [0.70, 0.60, 0.65], 2: [0.64, 0.66, 0.61]}, answers=100_000)
    assert row.standard_error == pytest.approx(0.06429 / math.sqrt(3), abs=1e-4)
    assert row.met is True


def test_seeds_that_agree_by_chance_do_not_hide_the_dice_of_the_evaluation() -> None:
    """Three pairs of a thousand answers each: √(6 · 0.21 / 1000) / 3, whatever the seeds say."""
    row = staleness_two({0: [0.70, 0.70, 0.70], 2: [0.70, 0.70, 0.70]})
    assert row.standard_error == pytest.approx(math.sqrt(6 * 0.21 / 1000) / 3)
    assert (row.ours, row.met) == (0.0, True)


def test_one_seed_has_no_spread_but_still_an_error() -> None:
    assert staleness_two({0: [0.5], 2: [0.4]}).standard_error == pytest.approx(math.sqrt((0.25 + 0.24) / 1000))


def test_a_step_takes_the_longer_half_where_they_overlap() -> None:
    *_, row = times(curves({0: [0.5], 2: [0.5]}))
    assert (row.ours, row.peer, row.ratio) == (pytest.approx(600), pytest.approx(800), pytest.approx(4 / 3))


# ---- a swarm's trainer -------------------------------------------------------------------------------------------------


def metrics(folder: Path, *records: dict[str, object]) -> Path:
    path = folder / "output/metrics.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_waiting_is_a_share_of_the_time_since_the_first_step(tmp_path: Path) -> None:
    path = metrics(
        tmp_path,
        {"step": 0, "time": 100.0, "seconds": {"starting": 90.0, "waiting for rollouts": 9.0, "training": 1.0}},
        {"step": 1, "time": 110.0, "seconds": {"waiting for rollouts": 6.0, "training": 4.0, "publishing": 8.0}},
        {"step": 1, "held_out_score": 0.5},
        {"step": 2, "time": 120.0, "seconds": {"waiting for publishing": 0.5, "snapshot": 0.1, "training": 5.0}},
    )
    shares = waiting.shares(path)
    assert shares["waiting for rollouts"] == pytest.approx(0.3)
    assert shares["training"] == pytest.approx(0.45)
    assert "starting" not in shares
    rows = {row.name: row for row in waits(shares)}
    assert set(rows) == {"swarm: training", "swarm: waiting for rollouts", "swarm: handing over weights"}
    assert rows["swarm: handing over weights"].ours == pytest.approx(0.03)
    assert rows["swarm: handing over weights"].met is False


def test_a_folder_without_steps_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="no two steps"):
        waiting.shares(tmp_path / "output/metrics.jsonl")
    with pytest.raises(PreflightError, match="no two steps"):
        waiting.shares(metrics(tmp_path, {"step": 0, "time": 1.0, "seconds": {"training": 1.0}}))


# ---- for real ----------------------------------------------------------------------------------------------------------


def test_the_smallest_comparison_runs_and_is_drawn(run_file: Path, tmp_path: Path) -> None:
    made = [asynchrony.curve(run_file, tmp_path / str(staleness), staleness, seed=0, steps=2) for staleness in (0, 2)]
    assert made[0].accuracies[0] == made[1].accuracies[0]
    assert [len(curve.rewards) for curve in made] == [2, 2]
    assert made[1].gap > made[0].gap
    assert min(min(curve.generating, curve.training) for curve in made) > 0
    draw(tmp_path / "plots/curves.png", asynchrony.panels(made))
    assert (tmp_path / "plots/curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_lag_learns(tmp_path: Path) -> None:
    """The whole bench with fewer steps and one seed; the swarm's part reads a file."""
    seconds = {"training": 5.0, "waiting for rollouts": 5.0}
    metrics(tmp_path, *({"step": i, "time": 10.0 * i, "seconds": seconds} for i in range(3)))
    command = [
        sys.executable, "-m", "benches", "asynchrony", "--json", "--steps", "25", "--seeds", "1",
        "--plot", str(tmp_path / "asynchrony.png"), "--swarm", str(tmp_path),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=800, check=True)
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    before = rows["held-out accuracy before training"]["ours"]
    for staleness in (0, 1, 2, 4):
        assert rows[f"held-out accuracy, staleness {staleness}"]["ours"] > before + 0.1
    assert rows["swarm: training"]["ours"] == pytest.approx(0.5)
    assert rows["swarm: handing over weights"]["met"] is True
    assert (tmp_path / "asynchrony.png").exists()
