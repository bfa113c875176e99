"""What happens to a node reaches its operator once, by webhook and by command, and a full disk or a dead webhook ends no node."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from node.contributor.alerts import FILE, Alerts
from node.contributor.failures import Failures
from node.contributor.room import PAUSE_BYTES, DiskRoom
from node.contributor.worker import Worker
from node.engine.torch_engine import TorchEngine
from protocol.errors import Banned, DiskFull, IntegrityError, MurmurationError
from protocol.shell import notify as notify_module
from protocol.shell.notify import Notifier, NotifySettings
from tests.clock import VirtualClock, eventually
from tests.node.stage import Stage
from tests.node.working import QUICK, submitted, told

WHO = {"role": "node", "address": "0x71C7656EC7ab88b098defB751B7401B5f6d8976F", "run": "1"}
POLICY: Any = SimpleNamespace(strikes=3, window=1000, reward=10**15)


class Inbox:
    """A webhook on a real socket. It answers with `status`."""

    def __init__(self) -> None:
        self.got: list[dict[str, str]] = []
        self.status = 200
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                inbox.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(inbox.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/services/T0123456789/secret-of-mine"


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()
    yield inbox
    inbox.server.shutdown()
    inbox.server.server_close()


# ---- ways


def test_a_notification_comes_by_webhook_and_by_command(inbox: Inbox, tmp_path: Path) -> None:
    script, out = tmp_path / "tell-me", tmp_path / "out"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\nopen({str(out)!r}, 'w').write(sys.stdin.read() + os.environ['MURMUR_KIND'] + str('MURMUR_PASSWORD' in os.environ))\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    os.environ["MURMUR_PASSWORD"] = "secret"
    try:
        with Notifier(NotifySettings(webhook=inbox.url, command=(str(script),)), WHO) as notifier:
            notifier.tell("case_opened", "a case is open; $(touch /tmp/x)", "node submissions")
    finally:
        del os.environ["MURMUR_PASSWORD"]
    (got,) = inbox.got
    assert (
        got.items()
        >= {**WHO, "kind": "case_opened", "text": "a case is open; $(touch /tmp/x); next: node submissions"}.items()
    )
    assert got["content"] == got["text"]
    assert out.read_text() == json.dumps(got) + "case_openedFalse"


def test_what_is_not_wanted_is_not_told(inbox: Inbox) -> None:
    with Notifier(NotifySettings(webhook=inbox.url, kinds=("slashed",)), WHO) as notifier:
        notifier.tell("disk_low", "the disk is low")
        notifier.tell("slashed", "the seat is banned")
    assert [one["kind"] for one in inbox.got] == ["slashed"]


def test_a_way_that_fails_is_tried_twice_more_and_its_secret_is_in_no_log(
    inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    inbox.status, clock = 500, VirtualClock()
    with Notifier(NotifySettings(webhook=inbox.url), WHO, clock) as notifier:
        notifier.tell("slashed", "the seat is banned")
        eventually(lambda: len(inbox.got) == 3, what="it is tried three times")
    assert clock.waits == [2.0, 10.0]
    assert "was not delivered by http://127.0.0.1" in caplog.text
    assert "it answers 500" in caplog.text
    assert "secret-of-mine" not in caplog.text


@pytest.mark.parametrize("command", [("/nowhere/at/all",), ("false",)])
def test_a_command_that_is_not_there_or_fails_is_said(
    command: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with Notifier(NotifySettings(command=command), WHO, VirtualClock()) as notifier:
        notifier.tell("slashed", "the seat is banned")
    assert f"was not delivered by {command[0]}" in caplog.text


def test_settings_show_no_more_of_a_webhook_than_its_host(inbox: Inbox) -> None:
    from protocol.settings import Loaded

    shown = Loaded(NotifySettings(webhook=inbox.url), {}).table()
    assert "secret" not in json.dumps(shown)


def test_a_webhook_that_drips_holds_nothing_up_for_longer_than_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify_module, "_SECONDS", 0.5)
    sent = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            sock, _ = listener.accept()
            with sock, suppress(OSError):
                sock.sendall(b"HTTP/1.1 200 OK\r\n")
                for _ in range(600):
                    sock.sendall(b"x: y\r\n")
                    sent.append(1)
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        way = next(iter(NotifySettings(webhook=f"http://127.0.0.1:{listener.getsockname()[1]}/x").ways.values()))
        with pytest.raises(httpx.TimeoutException):
            way({"kind": "test", "text": "x"})
    assert len(sent) < 300, "it would drip for a minute"


def test_a_way_that_fails_in_another_way_does_not_end_the_others(
    inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    settings = NotifySettings(webhook=inbox.url, command=("/bin/tr\0ue",))
    with Notifier(settings, WHO, VirtualClock()) as notifier:
        notifier.tell("slashed", "one")
        notifier.tell("slashed", "two")
    assert [one["text"] for one in inbox.got] == ["one", "two"]
    assert caplog.text.count("was not delivered by /bin/tr") == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"webhook": "https://hooks.slack..com/x"},
        {"webhook": f"https://{'a' * 70}.com/x"},
        {"webhook": "ftp://x"},
        {"command": "echo hi | cat"},
    ],
)
def test_settings_that_can_never_work_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"names no host|begins with|it is a list"):
        NotifySettings(**wrong)  # type: ignore[arg-type]


# ---- what is told


class Heard(Notifier):
    def __init__(self) -> None:
        super().__init__(NotifySettings(), WHO)
        self.said: list[tuple[str, str]] = []

    def tell(self, kind: Any, text: str, next_: str = "") -> None:
        self.said.append((kind, text))

    @property
    def kinds(self) -> list[str]:
        kinds, self.said = [kind for kind, _ in self.said], []
        return kinds


def seat(**values: Any) -> Any:
    given = {
        "since": 5,
        "worth": 1000,
        "cases": 0,
        "open_cases": 0,
        "open_hard": 0,
        "strikes": 0,
        "until": None,
    } | values
    return SimpleNamespace(suspended_until=lambda policy, now: given["until"], **given)


def test_each_thing_is_told_once_also_over_a_restart(tmp_path: Path) -> None:
    heard = Heard()
    for round_ in range(3):
        alerts = Alerts(heard, tmp_path / FILE)  # a new life
        for _ in range(2):
            alerts.saw(seat(cases=1, open_cases=1, worth=1000), POLICY, 10)
            alerts.claimable(1500, POLICY)
        assert heard.kinds == (["case_opened", "rewards_claimable"] if not round_ else [])
    alerts.saw(seat(cases=1), POLICY, 10)
    alerts.saw(seat(cases=2, open_cases=1, until=900), POLICY, 10)
    assert heard.kinds == ["case_opened", "suspended"]
    alerts.saw(seat(cases=2, open_cases=1, until=900, worth=900), POLICY, 10)
    assert heard.kinds == ["slashed"]
    alerts.saw(seat(since=50, worth=500, cases=2), POLICY, 60)  # the seat was taken again, with less
    alerts.claimable(0, POLICY)
    assert heard.kinds == []
    alerts.claimable(999, POLICY)
    assert heard.kinds == []
    alerts.claimable(1000, POLICY)
    assert heard.kinds == ["rewards_claimable"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Banned("the seat is banned"), "slashed"),
        (IntegrityError("damaged"), "ended"),
    ],
)
def test_what_ends_a_node_is_told(tmp_path: Path, error: MurmurationError, kind: str) -> None:
    heard = Heard()
    Alerts(heard, tmp_path / FILE).ended(error)
    assert heard.said == [(kind, f"the node ended: {error}")]


# ---- the disk


def test_a_disk_that_is_low_is_warned_of_once_an_hour_and_waited_for_below_a_gibibyte(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, free = VirtualClock(), [3 << 30]
    room = DiskRoom(tmp_path, 5 << 30, clock, lambda folder: free[0])
    assert [room.reason_to_wait() for _ in range(3)] == ["", "", ""]
    assert len(caplog.records) == 1
    clock.advance(3601)
    room.reason_to_wait()
    assert len(caplog.records) == 2
    free[0] = PAUSE_BYTES - 1
    assert "has 1023 MiB free, and work begins with 1024 MiB" in room.reason_to_wait()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), DiskFull("the disk is full")])
def test_a_full_disk_is_waited_for(error: Exception) -> None:
    failures = Failures(1.0, VirtualClock())
    pauses = [failures.failed(error)[1] for _ in range(8)]
    assert pauses[0] == 1 and pauses == sorted(pauses) and pauses[-1] == 60


def test_a_worker_without_room_delivers_waits_and_goes_on_by_itself(stage: Stage) -> None:
    node, clock, heard, free = stage.seated(), VirtualClock(), Heard(), [0]
    stage.publish()
    worker = Worker(
        stage.connection(node), stage.home("node"), QUICK, lambda dtype: TorchEngine(dtype), clock=clock, notifier=heard
    )
    worker._room = DiskRoom(stage.home("node").data, 0, clock, lambda folder: free[0])
    versions = worker._workbench._versions
    folder = versions.folder

    def no_room(*_: object) -> None:
        raise DiskFull("the disk has 5 bytes free, and this version needs more")

    versions.folder, free[0] = no_room, 2 * PAUSE_BYTES  # type: ignore[method-assign, assignment]
    try:
        for _ in range(5):
            worker._try_turn()
        assert heard.kinds == ["disk_low"], "once, however often it is tried"
        versions.folder, free[0] = folder, 0  # type: ignore[method-assign]
        for _ in range(3):
            worker._try_turn()
        assert "MiB free, and work begins with" in str(told(stage)["reason"])
        assert not submitted(stage)
        assert not heard.kinds
        free[0] = 2 * PAUSE_BYTES
        worker._try_turn()
        assert len(submitted(stage)) == 1
        free[0] = 0
        worker._try_turn()
        assert heard.kinds == ["disk_low"], "another time"
    finally:
        worker.close()
