"""`node version`: what this program is, and whether a run is for it."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest
from swarm.anvil import Anvil
from swarm.world import World

from protocol import __version__, canonical
from protocol.constants import PROTOCOL_VERSION
from tests.cli.conftest import PASSWORD, SPEC, Console, Contributor, init_options


def test_the_version_is_told_without_a_home(console: Console) -> None:
    said = console.node("version", "--home", console.folder / "none", "--json")
    assert said.json == {"version": __version__, "protocol": PROTOCOL_VERSION}


def test_a_version_that_the_run_is_for_fits(contributor: Contributor) -> None:
    assert f"It fits run {contributor.world.run}.\n" in contributor.run("version", "--check").out


def test_a_run_of_a_later_protocol_asks_for_an_upgrade(
    anvil: Anvil, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    later = canonical.encode(json.loads(SPEC.canonical()) | {"protocol": PROTOCOL_VERSION + 1})
    world, home = World.fresh(anvil, spec_digest=sha256(later).digest()), console.folder / "home"
    assert console.node("init", *init_options(world), "--home", home).code == 0
    (console.folder / "later.json").write_bytes(later)
    done = console.node("version", "--check", "--spec", console.folder / "later.json", "--home", home)
    assert (done.code, done.out) == (10, "")
    assert f"the run speaks version {PROTOCOL_VERSION + 1} of the protocol" in done.err
