"""`… logs`: what a role has logged and goes on to log, across rotations that real handlers make."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from threading import Event

import pytest

from protocol.errors import PreflightError
from protocol.logs import LoggingSettings, TextFormatter, set_up_logging
from protocol.settings import write_toml
from protocol.shell.log_file import LogFile
from tests.cli.conftest import Console
from tests.clock import VirtualClock
from trainer.presets import demo

FORGED = "nice \x1b[2J\u202egone\x07"


class Role:
    """Logs to a file that is rotated after a few lines."""

    def __init__(self, path: Path, kept: int = 100) -> None:
        self.path, self.count = path, 0
        self._handler = RotatingFileHandler(path, maxBytes=50, backupCount=kept)
        self._handler.setFormatter(logging.Formatter("%(message)s"))

    def write(self, count: int = 1) -> Role:
        for _ in range(count):
            self.count += 1
            self._handler.handle(logging.LogRecord("r", 20, "", 0, f"line {self.count} …", None, None))
        return self

    def close(self) -> None:
        self._handler.close()


@pytest.fixture
def role(tmp_path: Path) -> Iterator[Role]:
    with closing(Role(tmp_path / "role.log")) as made:
        yield made


def named(first: int, last: int) -> list[str]:
    return [f"line {number} …" for number in range(first, last + 1)]


def newest(path: Path, count: int) -> list[str]:
    with closing(LogFile(path)) as file:
        return file.newest(count)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 24, 25, 99])
def test_the_newest_lines_are_found_also_in_files_that_were_put_aside(role: Role, count: int) -> None:
    role.write(25)
    assert len(list(role.path.parent.iterdir())) > 3
    assert newest(role.path, count) == named(max(1, 26 - count), 25)


def follow(path: Path, count: int, *meanwhile: Callable[[], object]) -> list[str]:
    """What is told to somebody who looks once after each of the things that happen."""
    told, ending, clock, happenings = [], Event(), VirtualClock(), iter(meanwhile)
    clock.meanwhile = lambda: next(happenings, ending.set)()
    with closing(LogFile(path)) as file:
        told = file.newest(count, whole=True)
        file.follow(told.append, ending, clock)
    return told


def test_each_line_is_told_once_across_any_number_of_rotations(role: Role) -> None:
    role.write(25)
    bursts = (1, 4, 60, 2, 30)  # some rotate several times between two looks
    told = follow(role.path, 3, *(partial(role.write, burst) for burst in bursts))
    assert told == named(23, 122)


def test_what_is_kept_is_told_where_more_was_rotated_than_is_kept(tmp_path: Path) -> None:
    with closing(Role(tmp_path / "role.log", kept=2)) as role:
        role.write(1)
        told = follow(role.path, 0, partial(role.write, 200))
    kept = newest(role.path, 200)
    assert (told[0], told[-len(kept) :], kept[-1]) == ("line 2 …", kept, "line 201 …")
    assert len(kept) >= 8


def test_a_file_that_is_put_aside_while_it_is_read_is_read_to_its_end(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines may come between the last read and the look whether it is still the same file."""
    look, times = LogFile._after, iter([30, 30, 30])

    def late(file: LogFile) -> object:
        role.write(next(times, 0))
        return look(file)

    role.write(1)
    monkeypatch.setattr(LogFile, "_after", late)
    assert follow(role.path, 1) == named(1, 91)


def test_a_line_is_told_when_it_is_whole_and_an_emptied_file_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "role.log"
    path.write_bytes(b"first\nhal")
    assert newest(path, 5) == ["first", "hal"]

    def add(data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    half = (partial(add, b"f a line \xe2\x80"), partial(add, b"\xa6\n"))
    assert follow(path, 5, half[0]) == ["first"]
    assert follow(path, 5, half[1], partial(path.write_bytes, b"new\n")) == ["first", "half a line …", "new"]


def test_strangers_words_have_no_effect_on_the_terminal_or_in_json(console: Console, tmp_path: Path) -> None:
    home, log = tmp_path / "bootnode", tmp_path / "role.log"
    home.mkdir()
    write_toml(home / "bootnode.toml", {"logging": {"file": str(log)}}, "A bootnode.")
    record = logging.LogRecord("node", 20, "", 0, FORGED, None, None)
    log.write_text(f"{TextFormatter().format(record)}\nwritten by others: {FORGED}\n" + '{"level": "INFO"}\n')
    done = console.murmur("bootnode", "logs", "--home", home)
    assert done.code == 0
    first, second, third = done.out.splitlines()
    assert all(line.endswith(r"nice \x1b[2J\u202egone\x07") for line in (first, second)), done.out
    assert third == '{"level": "INFO"}'
    done = console.murmur("bootnode", "logs", "-n", 2, "--json", "--home", home)
    assert [json.loads(line) for line in done.out.splitlines()] == [
        {"line": f"written by others: {FORGED}"}, {"level": "INFO"},
    ]  # fmt: skip
    assert done.out.isascii()


def test_a_role_that_logs_to_no_file_is_told_where_its_lines_are(console: Console, tmp_path: Path) -> None:
    home = tmp_path / "relay"
    home.mkdir()
    chain = {"rpc": "http://127.0.0.1:9", "contract": "0x" + "ab" * 20, "chain_id": 31337, "run": 1}
    write_toml(home / "relay.toml", {"chain": chain}, "A relay.")
    done = console.murmur("relay", "logs", "-f", "-n", 9, "--home", home)
    assert (done.code, "sets no logging.file" in done.err) == (3, True)
    assert "journalctl -u murmur-relay -n 9 -f" in done.err
    write_toml(home / "relay.toml", {"chain": chain, "logging": {"file": str(tmp_path / "none.log")}}, "A relay.")
    done = console.murmur("relay", "logs", "--home", home)
    assert (done.code, "there is no log" in done.err) == (5, True)


def test_a_log_that_may_not_be_read_names_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)  # root may read anything
    with pytest.raises(PreflightError, match="Permission denied") as told:
        LogFile(tmp_path / "role.log")
    assert "as the user that runs the role" in told.value.hint


@pytest.fixture
def run_toml(tmp_path: Path) -> Path:
    """Of a run that logs to run.log, whose endpoint does not answer."""
    path, log = tmp_path / "run.toml", tmp_path / "run.log"
    chain = {"rpc": "http://127.0.0.1:9", "contract": "0x" + "ab" * 20, "chain_id": 31337, "run": 1}
    write_toml(path, demo() | {"chain": chain, "logging": {"file": str(log)}}, "A run.")
    return path


def test_trainer_hub_and_other_ranks_have_a_log_each(
    console: Console, run_toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that rotate one file lose each other's lines."""

    def stopped(settings: LoggingSettings) -> None:
        set_up_logging(settings)
        raise PreflightError("it is seen what it logs to")

    def made(*words: str) -> set[str]:
        logs = set(run_toml.parent.glob("*.log"))
        assert console.murmur("trainer", *words, f"@{run_toml}").code == 5
        return {log.name for log in set(run_toml.parent.glob("*.log")) - logs}

    monkeypatch.setattr("protocol.logs.set_up_logging", stopped)
    assert made("hub", "start") == {"run-hub.log"}
    assert made("run") == {"run.log"}
    monkeypatch.setenv("RANK", "1")
    assert made("run") == {"run-rank1.log"}
    monkeypatch.setenv("RANK", "2")
    assert made("solo") == {"run-rank2.log"}


def test_the_logs_of_trainer_and_hub_are_printed_each_by_itself(console: Console, run_toml: Path) -> None:
    for name in ("run", "run-hub"):
        run_toml.with_name(f"{name}.log").write_text(f"a line of {name}\n")
    words = ("trainer", "logs", f"@{run_toml}")
    assert console.murmur(*words).out == "a line of run\n"
    assert console.murmur(*words, "--hub").out == "a line of run-hub\n"
    done = console.murmur(*words, "--solo", "--hub")
    assert (done.code, "has no hub" in done.err) == (2, True)
    text = run_toml.read_text()
    run_toml.write_text(text.replace("[logging]\nfile", "[logging]\n# file"))
    assert "journalctl -u murmur-trainer -u murmur-hub -n 50" in console.murmur(*words, "--hub").err


@pytest.mark.parametrize("words", [["node"], ["validator"], ["relay"], ["bootnode"], ["trainer"]])
def test_every_role_has_logs(console: Console, words: list[str]) -> None:
    done = console.murmur(*words, "logs", "--help")
    assert (done.code, "--follow" in done.out, "-n" in done.out) == (0, True, True), done.err
