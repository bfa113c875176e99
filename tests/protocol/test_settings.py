"""Configuration in layers, and errors that name place, origin and the nearest known key."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from protocol.errors import ConfigError, PreflightError
from protocol.settings import Settings, load, read_toml, write_toml


class Inner(Settings):
    rpc: str = "http://default"
    timeout: float = 1.0
    names: tuple[str, ...] = ()


class Outer(Settings):
    run: int
    chain: Inner = Inner()


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "x.toml"
    file.write_text(text)
    return file


def test_command_line_beats_environment_beats_file_beats_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, 'run = 1\n[chain]\nrpc = "file"\ntimeout = 2.0\n')
    assert load(Outer, file).value.chain == Inner(rpc="file", timeout=2.0)
    monkeypatch.setenv("MURMUR_CHAIN__RPC", "environment")
    loaded = load(Outer, file, {"chain.timeout": 3.0, "run": None})
    assert loaded.value == Outer(run=1, chain=Inner(rpc="environment", timeout=3.0))
    origins = {path: origin for path, _, origin in loaded.lines()}
    assert origins["chain.rpc"] == "environment MURMUR_CHAIN__RPC"
    assert origins["chain.timeout"] == "command line"
    assert origins["run"] == str(file)
    assert origins["chain.names"] == "default"


def test_an_unknown_key_names_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'chain.rcp'") as caught:
        load(Outer, written(tmp_path, 'run = 1\n[chain]\nrcp = "x"\n'))
    assert caught.value.hint == "did you mean 'chain.rpc'?"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("MURMUR_CHAIN__RCP", "chain.rpc"), ("MURMUR_CHAIN__TIME_OUT", "chain.timeout"), ("MURMUR_CHAIN__NAMES__X", "chain.names")],
)  # fmt: skip
def test_a_misspelled_variable_of_a_known_section_names_the_nearest_key(
    monkeypatch: pytest.MonkeyPatch, name: str, nearest: str
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=rf"\(environment {name}\)") as caught:
        load(Outer, None, {"run": 1})
    assert caught.value.hint == f"did you mean {nearest!r}?"


@pytest.mark.parametrize(
    "name",
    ["MURMUR_WORK__THREADS", "MURMUR_PASSWORD", "MURMUR_HOME", "MURMUR_CHAINS__RPC", "MURMUR_RUN__X", "MURMUR_RUNS"],
)
def test_variables_of_other_roles_are_ignored(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert load(Outer, None, {"run": 1}).value == Outer(run=1)


def test_a_wrong_value_names_place_and_origin(tmp_path: Path) -> None:
    file = written(tmp_path, 'run = "many"\n')
    with pytest.raises(ConfigError, match=rf"run: .*\({file}\)"):
        load(Outer, file)
    with pytest.raises(ConfigError, match="run is not set"):
        load(Outer, written(tmp_path, ""))


@pytest.mark.parametrize("text", ["run = ", "run = 1\nrun = 2\n", "\x00"])
def test_broken_toml_is_a_config_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(Outer, written(tmp_path, text))


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(Outer, tmp_path / "none.toml")


def test_what_commands_write_can_be_read_back(tmp_path: Path) -> None:
    tables = {
        "top": 1, "chain": {"rpc": 'a "quoted" é', "flag": True, "names": ["x", "y"], "deep": {"n": 2}},
        "list": {"items": [{"a": 1, "config": {"b": 2, "c": "d"}}, {"a": 3}]},
    }  # fmt: skip
    write_toml(tmp_path / "x.toml", tables, "two\nlines")
    assert read_toml(tmp_path / "x.toml") == tables


def test_settings_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.toml"
    write_toml(file, {"run": 1}, "before")
    before, write = file.read_bytes(), Path.write_text

    def fill_the_disk(path: Path, text: str) -> int:
        write(path, text[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fill_the_disk)
    with pytest.raises(PreflightError, match="No space left"):
        write_toml(file, {"run": 2}, "after")
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]
