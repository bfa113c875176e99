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


@contextmanager
def interrupted(*_: Any, **__: Any) -> Iterator[Any]:
    signal.raise_signal(signal.SIGTERM)
    yield SimpleNamespace(join_gossip=lambda: None)


@contextmanager
def interrupted_in_gossip(*_: Any, **__: Any) -> Iterator[Any]:
    yield SimpleNamespace(join_gossip=lambda: signal.raise_signal(signal.SIGTERM))


@pytest.mark.parametrize("connect", [interrupted, interrupted_in_gossip])
def test_a_signal_before_a_role_is_up_ends_it_like_any_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, connect: Any
) -> None:
    place: Any = SimpleNamespace(
        role="node", path=tmp_path, data=tmp_path, lock=nullcontext, open_key=lambda *_: Key.generate()
    )
    settings: Any = SimpleNamespace(
        logging=None,
        chain=SimpleNamespace(chain_id=1),
        metrics=SimpleNamespace(progress_seconds=1.0),
        peers=SimpleNamespace(gossip=True),
    )
    exporter = SimpleNamespace(url=None, progress=lambda: None)
    monkeypatch.setattr(role_module, "set_up_logging", lambda *_: None)
    monkeypatch.setattr(role_module, "only_here", lambda *_: nullcontext())
    monkeypatch.setattr(role_module, "Exporter", lambda *_: nullcontext(exporter))
    monkeypatch.setattr(role_module, "connect", connect)
    with pytest.raises(SystemExit) as ended, role_module.role(place, settings, None, what="a turn"):
        raise AssertionError("it is not up")
    assert ended.value.code == 0
