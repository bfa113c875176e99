"""`scripts/release`: what is in the wheel, and that one who has no compiler installs it and works with it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder
from swarm.anvil import Anvil
from swarm.world import TOKEN, World

from node.contributor import rule_words
from node.contributor.page import app as page
from protocol import __version__
from tests.cli.conftest import PASSWORD, SPEC, init_options

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / "scripts/release"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def plain(name: str) -> str:
    return re.split(r"[^\w.-]", name)[0].lower().replace("_", "-")


def pinned() -> dict[str, str]:
    lines = (line.partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#")
    return {plain(name): number for name, _, number in lines}


def tracked(*folders: str) -> set[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout.split(
        "\n"
    )
    return {name for name in listed if (ROOT / name).is_file()}


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else() -> None:
    builder = WheelBuilder(str(ROOT))
    assert {file.distribution_path for file in builder.recurse_included_files()} == tracked(
        "node", "protocol", "trainer"
    )


def test_the_wheel_brings_what_a_page_shows_of_the_docs() -> None:
    data: dict[str, str] = WheelBuilder(str(ROOT)).config.shared_data
    assert {str(Path(source).relative_to(ROOT)): place for source, place in data.items()} == {
        rule_words.PAGE: f"{page.DOCUMENTS}/{rule_words.PAGE}"
    }


def test_the_version_is_written_in_one_place() -> None:
    assert "version" not in PROJECT and PROJECT["dynamic"] == ["version"]
    assert WheelBuilder(str(ROOT)).metadata.version == __version__


def test_what_is_installed_and_what_is_built_has_a_tested_version() -> None:
    """Without it a wheelhouse is of one version, and pip looks for another."""
    (built,) = re.findall(r'^without_wheel="(.*)"$', RELEASE.read_text(), re.MULTILINE)
    wanted = {
        plain(name) for name in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["trainer"], *built.split())
    }
    assert wanted - pinned().keys() == set()


def test_the_base_does_not_bring_what_the_trainer_alone_needs() -> None:
    assert {plain(name) for name in PROJECT["dependencies"]}.isdisjoint({"tensorboard"})
    assert {plain(name) for name in PROJECT["optional-dependencies"]["trainer"]} == {"tensorboard"}


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = subprocess.run([RELEASE, "--output", tmp_path], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, [file.name for file in tmp_path.iterdir()]) == (5, ["mine"])
    assert "is not empty" in done.stderr


def can_install() -> bool:
    """Whether pip reaches an index from here."""
    options = ["--no-deps", "--dry-run", "--ignore-installed", "--retries", "0", "--timeout", "5"]
    command = [sys.executable, "-m", "pip", "install", *options, "hatchling"]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_release_is_installed_from_wheels_alone_and_works_on_a_chain_outside(anvil: Anvil, tmp_path: Path) -> None:
    if not can_install():
        pytest.skip("pip reaches no package index from here")
    dist, environment, elsewhere = tmp_path / "dist", tmp_path / "environment", tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [RELEASE, "--uncommitted", "--output", dist, "--environment", environment, "--python", sys.executable]
    subprocess.run(command, check=True, timeout=1700)
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=dist, check=True, timeout=60)
    bill = json.loads((dist / f"murmuration-{__version__}.cdx.json").read_text())
    found = {plain(part["name"]): part["version"] for part in bill["components"]}
    assert bill["metadata"]["component"]["version"] == __version__
    assert {name: number.partition("+")[0] for name, number in found.items()}.items() <= pinned().items()
    assert not list(dist.glob("wheelhouse/*-linux_*")), "portable wheels alone"

    def run(*words: object) -> str:
        path = f"{environment / 'bin'}:/usr/bin:/bin"
        env = {"PATH": path, "HOME": str(elsewhere), "MURMUR_PASSWORD": PASSWORD, "OMP_NUM_THREADS": "1"}
        line = [str(word) for word in words]
        done = subprocess.run(line, cwd=elsewhere, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    where = run("python", "-c", "import node.contributor.page.app as a; print(a.__file__, a._rules_file().is_file())")
    assert where.startswith(str(environment)) and where.endswith(" True\n")
    world, home = World.fresh(anvil, spec_digest=SPEC.digest), ("--home", elsewhere / "home")
    made: dict[str, Any] = json.loads(run("node", "init", *init_options(world), *home, "--json"))
    (elsewhere / "spec.json").write_bytes(SPEC.canonical())
    for address in (made["node"], made["operator"]):
        anvil.give(address, TOKEN)
    world.owner.send(world.chain.transfer_tokens(made["operator"], 200 * TOKEN))
    assert "It fits run" in run("node", "version", "--check", "--spec", elsewhere / "spec.json", *home)
    run("node", "stake", "--spec", elsewhere / "spec.json", "--yes", *home)
    assert "active" in run("node", "status", *home)
    assert json.loads(run("node", "hardware", "--offline", "--json", *home))
    assert "[policy]" in run("murmur", "trainer", "preset", "demo")
