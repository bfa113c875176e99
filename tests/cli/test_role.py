"""A role between being started and being up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.identity import Key
from protocol.shell import role as role_module
from protocol.shell.home import Home


@contextmanager
def interrupted(*_: Any, **__: Any) -> Iterator[Any]:
    signal.raise_signal(signal.SIGTERM)
    yield SimpleNamespace(join_gossip=lambda: None)


@contextmanager
def interrupted_in_gossip(*_: Any, **__: Any) -> Iterator[Any]:
    yield SimpleNamespace(join_gossip=lambda: signal.raise_signal(signal.SIGTERM))


def ready(monkeypatch: pytest.MonkeyPatch, connect: Any) -> Any:
    """Settings of a role that comes up with this connection, in a process without chain and peers."""
    exporter = SimpleNamespace(url=None, progress=lambda: None)
    monkeypatch.setattr(role_module, "set_up_logging", lambda *_: None)
    monkeypatch.setattr(role_module, "only_here", lambda *_: nullcontext())
    monkeypatch.setattr(role_module, "Exporter", lambda *_, **__: nullcontext(exporter))
    monkeypatch.setattr(role_module, "connect", connect)
    return SimpleNamespace(
        logging=None,
        chain=SimpleNamespace(chain_id=1),
        metrics=SimpleNamespace(progress_seconds=1.0),
        peers=SimpleNamespace(gossip=True),
    )


@pytest.mark.parametrize("connect", [interrupted, interrupted_in_gossip])
def test_a_signal_before_a_role_is_up_ends_it_like_any_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, connect: Any
) -> None:
    place: Any = SimpleNamespace(
        role="node", path=tmp_path, data=tmp_path, lock=nullcontext, open_key=lambda *_: Key.generate()
    )
    settings = ready(monkeypatch, connect)
    with pytest.raises(SystemExit) as ended, role_module.role(place, settings, None, what="a turn"):
        raise AssertionError("it is not up")
    assert ended.value.code == 0


def test_a_role_that_stops_leaves_word_that_the_run_is_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its contributor asks when the node runs no more, and the trainer neither."""
    monkeypatch.setattr(Home, "open_key", lambda *_: Key.generate())
    place = Home(tmp_path, "node")
    settings = ready(monkeypatch, lambda *_, **__: nullcontext(SimpleNamespace(join_gossip=lambda: None)))
    for over in (False, True):
        with role_module.role(place, settings, None, what="a turn"):
            place.write_status(state="waiting", last_step=9, **({"over": True} if over else {}))
        status = place.read_status()
        assert status is not None
        assert (status["state"], status.get("over", False), status["last_step"]) == ("stopped", over, 9)
