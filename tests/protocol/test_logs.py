"""A line of a log is one event, whoever wrote its words, and says which submission it is about."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import PreflightError
from protocol.logs import LoggingSettings, SaidOnce, about, set_up_logging
from tests.clock import VirtualClock

log = logging.getLogger("tester")
SUBMISSION = bytes(range(32))
FORGED = "nice\n12:00:00 CRITICAL node: the stake is gone\r\x1b[2J\u202egone"


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_stranger_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging()
    log.warning("the hub says %s", FORGED)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        r"WARNING tester: the hub says nice\n12:00:00 CRITICAL node: the stake is gone\r\x1b[2J\u202egone"
    )


def test_a_stranger_cannot_forge_a_line_within_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging()
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.exception("this went wrong")
    first, *others = capsys.readouterr().err.splitlines()
    assert first.endswith("ERROR   tester: this went wrong")
    assert others
    assert all(line.startswith("    ") for line in others)


def test_lines_about_a_submission_name_it_wherever_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging()

    def elsewhere() -> None:
        log.info("another thread")

    with about(SUBMISSION):
        log.info("within")
        with about(bytes(32)):
            log.info("another")
        log.info("within again")
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join(10)
    log.info("after")
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "INFO    tester [000102030405]: within",
        "INFO    tester [000000000000]: another",
        "INFO    tester [000102030405]: within again",
        "INFO    tester: another thread",
        "INFO    tester: after",
    ]


def test_json_lines_hold_the_same_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(LoggingSettings(format="json"))
    with about(SUBMISSION):
        log.warning("the hub says %s", FORGED)
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.exception("this went wrong")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "WARNING", "logger": "tester", "message": f"the hub says {FORGED}", "submission": "000102030405",
    }  # fmt: skip
    assert "submission" not in second
    assert second["exception"].startswith("Traceback")


def test_less_grave_lines_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(LoggingSettings(level="WARNING"))
    log.info("nothing to see")
    assert capsys.readouterr().err == ""


def test_a_log_file_is_rotated_by_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "node.log"
    set_up_logging(LoggingSettings(file=str(file), file_megabytes=1, files_kept=2))
    for _ in range(50):
        log.info("x" * 100_000)
    logging.getLogger().handlers[0].close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node.log", "node.log.1", "node.log.2"]
    assert all(path.stat().st_size <= 1 << 20 for path in tmp_path.iterdir())
    assert capsys.readouterr().err == ""


def test_a_log_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="cannot write the log"):
        set_up_logging(LoggingSettings(file=str(tmp_path / "missing" / "node.log")))


def test_what_stays_the_same_is_written_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    said = SaidOnce(log, clock)
    with caplog.at_level("INFO", "tester"):
        for text in ("away", "away", "busy", "busy", "away"):
            said.say(logging.INFO, "hub", text)
        said.say(logging.INFO, "relay", "away")
        clock.advance(3601)
        said.say(logging.INFO, "hub", "away")
        said.over("hub")
        said.say(logging.INFO, "hub", "away")
    assert [r.getMessage() for r in caplog.records] == ["away", "busy", "away", "away", "away", "away"]
