"""A run spec through versions of this software: digests stay, and a program that is too old says so by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from swarm.tiny_run import TinyRun

from protocol import canonical, runspec
from protocol.errors import ConfigError, Malformed, VersionMismatch
from protocol.identity import Key
from protocol.runspec import RunSpec
from protocol.shell import runfile


class LaterReward(runspec.RewardSpec):
    bonus: str = "0"


class LaterSpec(RunSpec):
    """A later version of this software, with a field more in two places."""

    reward: LaterReward = LaterReward()
    fewest_turns: int = 0


def later(spec: RunSpec, **changes: Any) -> LaterSpec:
    return LaterSpec.model_validate(json.loads(spec.canonical()) | changes)


def read(data: bytes) -> RunSpec:
    return runspec.from_bytes(data, canonical.digest(json.loads(data)))


def test_a_field_added_later_moves_no_digest_at_its_default(tiny_run: TinyRun) -> None:
    assert later(tiny_run.spec).digest == tiny_run.spec.digest
    assert read(later(tiny_run.spec, fewest_turns=0).canonical()) == tiny_run.spec
    assert later(tiny_run.spec, fewest_turns=1).digest != tiny_run.spec.digest


def test_defaults_are_left_out_and_kinds_and_versions_are_not(tiny_run: TinyRun) -> None:
    table = json.loads(tiny_run.spec.canonical())
    assert table["protocol"] == 1
    assert table["verification"]["proof"] == "toploc/1"
    assert {"prompt_template", "top_k", "top_p"}.isdisjoint(table["sampling"])
    spelt = tiny_run.spec.model_copy(
        update={"sampling": runspec.SamplingSpec.model_validate(table["sampling"] | {"prompt_template": "{prompt}"})}
    )
    assert spelt.digest == tiny_run.spec.digest


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"fewest_turns": 1}, "fewest_turns"),
        ({"reward": {"alpha": "0.001", "bonus": "1"}}, "reward.bonus"),
    ],
    ids=["of the spec", "of a part"],
)
def test_a_program_that_meets_a_later_field_is_too_old_and_names_it(
    tiny_run: TinyRun, tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    data = later(tiny_run.spec, **change).canonical()
    with pytest.raises(VersionMismatch, match=rf"does not know {named} of the run spec") as caught:
        read(data)
    assert caught.value.exit_code == 10
    assert "upgrade" in caught.value.hint
    (tmp_path / runfile.SPEC_FILE).write_bytes(data)
    with pytest.raises(VersionMismatch, match=named):
        runfile.read_spec(tmp_path / "run.toml")


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (("protocol",), 2, "version 2 of the protocol, this program version 1"),
        (("verification", "proof"), "toploc/2", "does not know verification.proof"),
    ],
)
def test_a_later_version_of_a_part_is_refused_by_name(
    tiny_run: TinyRun, place: tuple[str, ...], value: Any, named: str
) -> None:
    table = json.loads(tiny_run.spec.canonical())
    part = table
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    with pytest.raises(VersionMismatch, match=named):
        read(canonical.encode(table))


def test_a_later_field_of_an_environment_is_named_by_its_place(tiny_run: TinyRun) -> None:
    table = json.loads(tiny_run.spec.canonical())
    table["environments"][1]["turns"] = 4
    with pytest.raises(VersionMismatch, match=r"does not know environments\.1\.turns of"):
        read(canonical.encode(table))


def test_a_number_that_may_not_be_is_wrong_and_not_of_a_later_version() -> None:
    """Rows of files have no seeds: `seed` is 0, and no kind or version."""
    vectors = json.loads((Path(__file__).parents[1] / "vectors" / "spec_digests.json").read_text())
    table = vectors[1]["spec"]
    table["environments"][1]["seed"] = 7
    with pytest.raises(Malformed, match="seed"):
        read(canonical.encode(table))


def test_a_typo_in_run_toml_stays_a_config_error_that_names_the_nearest_field(tiny_run: TinyRun) -> None:
    table = json.loads(tiny_run.spec.canonical()) | {"max_lagg": 2}
    with pytest.raises(ConfigError, match="did you mean 'max_lag'"):
        runspec.from_table(table)


@pytest.mark.parametrize(
    "change", [{"max_lag": "2"}, {"reward": {"alpha": "0.001", "budgets": {}}}], ids=["type", "default"]
)
def test_a_spec_that_would_have_two_digests_or_wrong_values_is_malformed(
    tiny_run: TinyRun, change: dict[str, Any]
) -> None:
    """What a spec says in two ways, two parties would hash to two digests: their files would not be each other's."""
    with pytest.raises(Malformed):
        read(canonical.encode(json.loads(tiny_run.spec.canonical()) | change))


def test_a_spec_without_bootnodes_keeps_its_digest_and_one_with_has_another(tiny_run: TinyRun) -> None:
    table = json.loads(tiny_run.spec.canonical())
    assert "bootnodes" not in table
    named = f"/dns4/boot.example.org/tcp/4001/p2p/{Key.generate().peer_id}"
    spec = read(canonical.encode(table | {"bootnodes": [named]}))
    assert spec.bootnodes == [named]
    assert spec.digest != tiny_run.spec.digest


@pytest.mark.parametrize(
    "text", ["boot.example.org:4001", "/dns4/boot.example.org/tcp/4001", "/ip4/192.0.2.7/udp/4001/p2p/" + "1" * 52]
)
def test_what_is_no_bootnode_in_form_stands_in_no_spec(tiny_run: TinyRun, text: str) -> None:
    table = json.loads(tiny_run.spec.canonical())
    with pytest.raises(ConfigError, match="bootnodes"):
        runspec.from_table(table | {"bootnodes": [text]})
    with pytest.raises(Malformed, match="bootnodes"):
        read(canonical.encode(table | {"bootnodes": [text] * 17}))
