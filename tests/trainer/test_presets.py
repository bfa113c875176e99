"""Presets are runs that could be started, and a dry run tells every setting and starts nothing."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from swarm.settings import SwarmSettings, run_file
from swarm.tiny_run import TinyRun
from typer.testing import CliRunner

from protocol.errors import ConfigError
from protocol.settings import toml as as_toml
from protocol.settings import write_toml
from protocol.shell import runfile
from tests.hub.desk import small_spec
from trainer.commands import app
from trainer.config import LossSettings, OptimizerSettings, RunSettings
from trainer.presets import PRESETS, preset

CHAIN = {"contract": "0x" + "00" * 20, "chain_id": 1, "run": 1}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_run_that_could_be_started(name: str) -> None:
    printed = CliRunner().invoke(app, ["preset", name])
    assert printed.exit_code == 0
    tables = tomllib.loads(printed.stdout)
    assert {key: tables[key] for key in ("spec", "trainer")} == json.loads(json.dumps(preset(name)))
    RunSettings.model_validate({"chain": CHAIN, "trainer": tables["trainer"]})
    own = {key: tables["spec"][key] for key in ("sampling", "reward", "max_lag")}
    own["verification"] = {**small_spec().verification.model_dump(), "uncalibrated": []}  # class 0 alone, as the preset
    small_spec(**own)


def test_the_demos_run_is_judged_by_sums_and_by_claimed_logprobs(tmp_path: Path, tiny_run: TinyRun) -> None:
    """By what the shipped calibration has."""
    write_toml(tmp_path / "run.toml", preset("demo"), "The preset.")
    verification = runfile.complete(tmp_path / "run.toml", tiny_run.model).verification
    assert verification.history is not None
    assert verification.noise is not None
    assert 1e-6 < float(verification.noise.soft) < float(verification.noise.hard) < 1e-4, "float32 rounds by 1e-7"
    assert verification.sampling.mean_logprob_error is not None
    assert float(verification.sampling.mean_logprob_error.soft) < 0.029


@pytest.mark.parametrize(
    ("sampling", "is_summed"),
    [({}, True), ({"top_p": "0.9"}, False), ({"top_k": 5}, False), ({"temperature": "0"}, False)],
)
def test_a_devnet_is_judged_by_sums_where_its_tokens_are_drawn_from_the_whole_distribution(
    sampling: dict[str, Any], is_summed: bool, tmp_path: Path, tiny_run: TinyRun
) -> None:
    """Else its spec would be refused."""
    environments = preset("demo")["spec"]["environments"]
    tables = run_file(
        SwarmSettings(sampling=sampling), environments, rpc="", contract="0x" + "00" * 20, chain_id=1, run=1, trainer="0x" + "00" * 20,
        bootnode="", first_block=0,
    )  # fmt: skip
    write_toml(tmp_path / "run.toml", {key: tables[key] for key in ("spec", "trainer")}, "A devnet's.")
    spec = runfile.complete(tmp_path / "run.toml", tiny_run.model)
    assert (spec.verification.history is not None) == is_summed


def test_the_papers_recipe_is_the_default() -> None:
    """So that a table left out of run.toml means the same as the preset's."""
    trainer = preset("intellect2-short")["trainer"]
    assert OptimizerSettings(**trainer["optimizer"]) == OptimizerSettings()
    assert LossSettings(**trainer["loss"]) == LossSettings()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tables: dict[str, Any] = {"chain": CHAIN, "trainer": {"steps": 3, "optimizer": {"lr": 1e-5}}}
    write_toml(tmp_path / "run.toml", tables, "A run that is not started.")
    assert as_toml(tables, "A run that is not started.") == (tmp_path / "run.toml").read_text()
    return tmp_path / "run.toml"


def test_a_dry_run_prints_each_setting_with_its_origin_and_starts_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MURMUR_TRAINER__SEED", "7")
    options = ["run", f"@{file}", "--set", "trainer.steps=50", "--dry-run"]
    lines = CliRunner().invoke(app, options).stdout.splitlines()
    assert "trainer.steps = 50  # command line" in lines
    assert "trainer.seed = 7  # environment MURMUR_TRAINER__SEED" in lines
    assert f"trainer.optimizer.lr = 1e-05  # {file}" in lines
    assert "trainer.optimizer.weight_decay = 0.01  # default" in lines
    assert json.loads(CliRunner().invoke(app, [*options, "--json"]).stdout)["trainer"]["steps"] == 50
    assert [path.name for path in file.parent.iterdir()] == ["run.toml"]


def test_a_setting_that_is_none_is_refused(file: Path) -> None:
    refused = CliRunner().invoke(app, ["run", f"@{file}", "--dry-run", "--set", "trainer.step=50"])
    assert refused.exception is not None
    assert "did you mean 'trainer.steps'" in getattr(refused.exception, "hint", "")


@pytest.mark.parametrize("host", ["http://hub.example", "hub.example:8450", "hub.example/", "hub_1.example", "a b"])
def test_a_public_host_that_nobody_can_be_told_is_refused(file: Path, host: str) -> None:
    def dry(name: str) -> BaseException | None:
        return CliRunner().invoke(app, ["run", f"@{file}", "--dry-run", "--set", f"hub.public_host={name}"]).exception

    refused = dry(host)
    assert isinstance(refused, ConfigError)
    assert "hub.public_host" in str(refused)
    assert "write it as host.example" in str(refused)
    assert not any(map(dry, ("hub.example", "203.0.113.7", "2001:db8::1", "Hub.Example", '"[2001:db8::1]"')))
