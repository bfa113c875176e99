"""`scripts/release`: what is in the wheel, and that one who has no compiler installs it and works with it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder
from swarm.anvil import Anvil
from swarm.world import TOKEN, World

from node.contributor import rule_words
from node.contributor.page import app as page
from protocol import __version__, extras
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


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """The folder of a release that holds nothing to install."""
    folder = tmp_path / "release"
    (folder / "wheelhouse").mkdir(parents=True)
    (folder / "install").write_bytes((ROOT / "scripts/install").read_bytes())
    (folder / "constraints.txt").write_text("torch==2.13.0\n")
    sums = subprocess.run(["sha256sum", "constraints.txt", "install"], cwd=folder, capture_output=True, check=True)
    (folder / "SHA256SUMS").write_bytes(sums.stdout)
    return folder


def install(release: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "release/install", *map(str, arguments)]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(release.parent), "PYTHON": sys.executable, **variables}
    return subprocess.run(command, cwd=release.parent, env=env, capture_output=True, text=True, timeout=30, check=False)


def test_a_release_that_is_not_whole_is_not_installed(released: Path) -> None:
    assert "no Python is here" in install(released).stderr, "whole, and without wheels"
    (released / "constraints.txt").write_text("torch==2.13.1\n")
    done = install(released)
    assert (done.returncode, "is not whole" in done.stderr, (released.parent / "murmur").exists()) == (5, True, False)
    (released / "SHA256SUMS").unlink()
    assert install(released).returncode == 5


def test_the_installation_is_helped_and_takes_each_extra(released: Path) -> None:
    told = install(released, "--help").stdout
    assert "sh install [--cpu | --gpu]" in told
    assert install(released, "--exrta", "s3").returncode == 2
    offered = {word.strip(",: ") for word in told.split("the extra needs:")[1].split("\n\n")[0].split() if word != "or"}
    assert offered == PROJECT["optional-dependencies"].keys() - {"dev"}


_PYTHON = """#!/bin/sh
case "$*" in
  *version_info*) echo cp311 ;;
  *"-m venv"*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/murmur" ;;
  *"-m pip"*) echo "$*" >&2 ;;
esac
"""


def test_several_extras_are_installed_together(released: Path) -> None:
    python = released.parent / "python"
    python.write_text(_PYTHON)
    python.chmod(0o755)
    for wheel in ("wheelhouse/fastecdsa-1-cp311-any.whl", "murmuration-1-any.whl"):
        (released / wheel).touch()
    extras = ("--extra", "s3", "--extra", "trainer")
    done = install(released, "--gpu", *extras, released.parent / "there", PYTHON=str(python))
    assert done.returncode == 0 and "--constraint constraints.txt murmuration-1-any.whl[s3,trainer]" in done.stderr
    done = install(released, "--gpu", *extras, "--extra", "vllm", PYTHON=str(python))
    assert "--constraint" not in done.stderr and "murmuration-1-any.whl[s3,trainer,vllm]" in done.stderr


def test_an_extra_is_named_as_this_installation_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    origin: str | None = None
    monkeypatch.setattr(extras, "distribution", lambda _: SimpleNamespace(read_text=lambda _: origin))
    assert extras.how_to_install("s3").endswith(f"sh install --extra s3 {sys.prefix}")
    origin = json.dumps({"url": "file:///release/murmuration.whl", "archive_info": {}})
    assert "sh install --extra s3" in extras.how_to_install("s3")
    origin = json.dumps({"url": "file:///clone", "dir_info": {"editable": True}})
    assert extras.how_to_install("s3").endswith("-m pip install -e '.[s3]'")


def test_no_hint_of_a_role_fits_a_clone_alone() -> None:
    own = ROOT / "protocol/extras.py"
    files = [file for room in ("node", "protocol", "trainer") for file in (ROOT / room).rglob("*.py") if file != own]
    assert not [file for file in files if "pip install -e '" in file.read_text()]


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
    anvil.give(made["operator"], TOKEN)
    world.owner.send(world.chain.transfer_tokens(made["operator"], 200 * TOKEN))
    assert "It fits run" in run("node", "version", "--check", "--spec", elsewhere / "spec.json", *home)
    run("node", "join", "--spec", elsewhere / "spec.json", "--yes", "--wait", "0", *home)
    assert "active" in run("node", "status", *home)
    assert json.loads(run("node", "hardware", "--offline", "--json", *home))
    assert "[policy]" in run("murmur", "trainer", "preset", "demo")
