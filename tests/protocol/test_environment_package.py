"""A package with an environment: what docs/environments.md types works as it stands, and a run pins what was installed."""

from __future__ import annotations

import zipfile
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from swarm import devnet

from protocol.environments import content
from protocol.errors import ConfigError, UsageError, VersionMismatch
from protocol.sandbox import EnvironmentSandbox
from protocol.settings import read_toml
from protocol.shell import environment_package, runfile
from tests.machine import Machine, blocks, file_block
from tests.protocol.conftest import ROOT

PAGE = (ROOT / "docs/environments.md").read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_the_page_types_works_as_it_stands(machine: Machine) -> None:
    """But for the devnet, which tests/swarm/test_environment_page.py starts: here its commands are only understood."""
    said = dict[str, str]()
    for commands in blocks(PAGE):
        if any("devnet" in command for command in commands):
            (machine.here / "run.toml").write_text(file_block(PAGE, "run.toml"))
            devnet_understands(machine, commands)
        else:
            said |= {command: machine.type(command) for command in commands}
    words = [command.split()[0] for command in said]
    assert words == ["scripts/setup", "mkdir", "murmur", "pip", "pytest", "murmur", "murmur", "pip", "murmur"]
    needed = read_toml(machine.here / "sums/pyproject.toml")["project"]["dependencies"]
    assert [distribution(name).name for name in needed] == ["murmuration"]
    (wheel,) = (machine.here / "dist").glob("*.whl")
    (published,) = (text for command, text in said.items() if "publish" in command)
    assert content.of_wheel(wheel) in published
    described = machine.type(
        "python -c \"from protocol.environments import registry; print(registry.find('sums').content)\""
    )
    assert described.strip() == content.of_wheel(wheel)


def test_a_devnet_reads_the_file_beside_whoever_types_it_and_no_module_there(machine: Machine) -> None:
    machine.type("mkdir ../environments && cd ../environments")
    (machine.here / "run.toml").write_text("[spec]\n")
    (machine.here / "protocol.py").write_text("raise SystemExit('imported from the folder of a caller')\n")
    said = machine.type("../murmuration/scripts/devnet up --environments run.toml 2>&1 || true")
    assert "run.toml has no environments" in said


def devnet_understands(machine: Machine, commands: list[str]) -> None:
    for command in commands:
        program, *words = command.split()
        if program == "murmur":
            assert str(devnet.FOLDER.relative_to(ROOT)) in words[-1]
            machine.type(f"murmur {' '.join(words[:-1])} --help")
            continue
        assert (machine.here / program).samefile(machine.checkout / "scripts/devnet")
        asked = devnet.parser().parse_args(words)
        if asked.environments is not None:
            listed = devnet._asked(machine.here / asked.environments)["environments"]
            assert [table["package"] for table in listed] == ["sums"]


# ---- content -----------------------------------------------------------------------------------------------------------


def installed(site: Path, code: str) -> Distribution:
    site.mkdir(exist_ok=True)
    (site / "sums.py").write_text(code)
    info = site / "sums-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sums\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[murmuration.environments]\nsums = sums:Sums\n")
    (info / "RECORD").write_text(
        "sums.py,,\nsums-1.0.dist-info/METADATA,,\n__pycache__/sums.cpython-311.pyc,,\n../../../bin/sums,,\n"
    )
    return PathDistribution(info)


def test_a_wheel_and_what_was_installed_of_it_have_one_content(tmp_path: Path) -> None:
    wheel = tmp_path / "sums-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("sums-1.0.dist-info/METADATA", "anything")
        made.writestr("sums.py", "x = 1\n")
    of = content.of_wheel(wheel)
    assert content.of_installed(installed(tmp_path / "a", "x = 1\n")) == of
    assert content.of_installed(installed(tmp_path / "b", "x = 2\n")) != of
    editable = installed(tmp_path / "c", "x = 1\n")
    (tmp_path / "c/sums-1.0.dist-info/direct_url.json").write_text('{"dir_info": {"editable": true}}')
    assert content.of_installed(editable) is None
    (tmp_path / "a/sums.py").unlink()
    with pytest.raises(ConfigError, match=r"sums\.py"):
        content.of_installed(PathDistribution(tmp_path / "a/sums-1.0.dist-info"))


def test_a_run_pins_the_content_and_another_package_is_refused_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = file_block(PAGE, "sums.py")
    site = tmp_path / "site"
    monkeypatch.setenv("PYTHONPATH", f"{site}:{ROOT}")
    distribution = installed(site, code)
    spec = runfile.environment_alone("sums", "any", {}, [])
    assert spec.content == content.of_installed(distribution)
    with EnvironmentSandbox([spec]) as sandbox:
        assert len(sandbox.problems([0, 1])) == 2
    mark = tmp_path / "ran"
    installed(site, f"open({str(mark)!r}, 'w')\n{code}")
    with pytest.raises(VersionMismatch, match="content"), EnvironmentSandbox([spec]) as sandbox:
        sandbox.problems([0])
    assert not mark.exists()


# ---- what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["Sums", "sums_", "../sums", "json", "numpy", "protocol", "1sums", "a" * 61, "-sums", ""]
)
def test_names_that_no_environment_may_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        environment_package.begin(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")
    folder = environment_package.begin("sums", tmp_path)
    with pytest.raises(UsageError, match="there already"):
        environment_package.begin("sums", tmp_path)
    first = environment_package.publish(folder, tmp_path / "dist")
    assert environment_package.publish(folder, tmp_path / "dist") == first
    (folder / "sums/environment.py").open("a").write("\n# another\n")
    with pytest.raises(ConfigError, match="another content by the same version"):
        environment_package.publish(folder, tmp_path / "dist")
    (folder / "pyproject.toml").write_text("[project]\nname = 'sums'\n")
    with pytest.raises(ConfigError, match="registers no environment"):
        environment_package.publish(folder, tmp_path / "dist")
