"""A researcher's first run.toml: a preset, and what its comments say is to be filled in, are all that `murmur run create` needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from swarm.anvil import Anvil
from swarm.world import World

from protocol.chain.events import RunCreated
from protocol.identity import Key
from protocol.shell import runfile
from protocol.shell.runfile import PolicyTable
from tests.cli.conftest import Console
from trainer.config import load_run
from trainer.presets import PRESETS

ROOT = Path(__file__).parents[2]
BOOTNODE = "/ip4/127.0.0.1/tcp/4001/p2p/16Uiu2HAmA4Eet3GaDAhSjxnbQdsWpPqHkbEjhJdPqNgZdrBDMTSS"


def filled_in(text: str, **values: str) -> str:
    """`text` with each line that says FILL IN filled in."""
    for name, value in values.items():
        text, found = re.subn(rf"(?m)^(?:# )?{name} = .*FILL IN.*$", f"{name} = {value}", text)
        assert found == 1, name
    assert "  # FILL IN" not in text
    return text


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_with_its_gaps_filled_in_is_a_run_that_the_contracts_create(
    name: str, anvil: Anvil, console: Console
) -> None:
    world, trainer = World.fresh(anvil), Key.generate()
    printed = console.murmur("trainer", "preset", name).out
    file = console.folder / "run.toml"
    gaps = {
        "rpc": f'"{anvil.rpc}"',
        "chain_id": "31337",
        "public_host": '"hub.example"',
        "contract": f'"{world.chain.runs.address}"',
        "run": "7",
        "bootnodes": f'["{BOOTNODE}"]',
        "trainer": f'"{trainer.address}"',
    }
    if name != "demo":  # whose model is made, and was measured
        gaps["calibration"] = '"calibration.json"'
    file.write_text(filled_in(printed, **gaps))
    settings = load_run(file).value
    assert (settings.chain.run, settings.peers.bootnodes) == (7, (BOOTNODE,))
    policy = runfile.read_policy(file).policy(world.owner.key.address)
    assert policy.trainer == trainer.address
    sampling = runfile.sampling(file)
    assert policy.max_units == sampling.group_size * sampling.groups_per_submission * sampling.max_new_tokens
    created = world.owner.send(world.chain.create(policy, b"\x07" * 32)).event(RunCreated).run
    assert world.chain.policy(created) == policy


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_shows_every_key_of_a_policy(name: str, console: Console) -> None:
    printed = console.murmur("trainer", "preset", name).out
    table = printed.split("[policy]")[1].split("\n[")[0]
    assert set(re.findall(r"(?m)^(?:# )?(\w+) = ", table)) == set(PolicyTable.model_fields)


def test_the_reference_gives_every_key_of_a_policy_and_of_the_spec_a_meaning() -> None:
    text = (ROOT / "docs/reference-config.md").read_text()
    for heading in re.findall(r"(?m)^## `(\[+(?:policy|spec).*\])`$", text):
        section = text.split(f"## `{heading}`\n")[1].split("\n## ")[0]
        rows = re.findall(r"(?m)^\| `(\w+)` \|.*\| (.*) \|$", section)
        assert rows, heading
        assert all(meaning for _, meaning in rows), f"{heading}: {rows}"
        if heading == "[policy]":
            assert {name for name, _ in rows} == set(PolicyTable.model_fields)
