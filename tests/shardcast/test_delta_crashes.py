"""A crash leaves nothing of a delta that is taken for a version."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.shardcast import delta as codec
from protocol.shardcast.manifest import describe_files
from protocol.shardcast.store import VersionStore

from .conftest import CHUNK, DEADLINE, Cast
from .deltas import MODEL, SHARD, Run, received

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


class Crash(BaseException):
    """The end of the process at this very place."""


@pytest.mark.parametrize("after", range(3))
def test_what_a_crash_left_of_a_delta_is_used_or_replaced(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Before anything is applied, between two files, and before the result is visible."""
    run = Run(cast, 2)
    client = run.holder(0)
    apply, calls = codec.apply, []

    def crash(*arguments: object, **options: object) -> None:
        if len(calls) == after:
            raise Crash
        calls.append(arguments)
        apply(*arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(codec, "apply", crash)
        if after == 2:
            patch.setattr(VersionStore, "commit", lambda *_: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            client.fetch(2, run.manifests[2].digest, [run.source], DEADLINE)
    assert client.store.steps() == (0,)
    client.statistics.bytes_from.clear()
    again = cast.client(client.store)
    run.fetch(again, 2)
    assert received(again) < run.manifests[2].total_bytes / 10
    assert client.store.steps() == (0, 1, 2)
    for step in (1, 2):
        deltas = client.store.folder(step) / ".delta"
        if deltas.exists():
            assert describe_files(sorted(deltas.iterdir()), CHUNK) == run.manifests[step].delta


def test_a_version_in_use_stays_while_another_is_made_out_of_it(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store keeps one version, and its base is the one that leaves."""
    run = Run(cast, 1)
    client = cast.client(cast.store("one", keep=1))
    run.fetch(client, 0)
    apply, seen = codec.apply, []

    def watch(delta: Path, base: Path, *rest: object, **options: object) -> None:
        client.store.retire()
        seen.append(base.exists())
        apply(delta, base, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(codec, "apply", watch)
    run.fetch(client, 1)
    assert seen == [True, True]
    assert client.store.steps() == (1,)


def test_a_delta_leaves_with_its_version(cast: Cast) -> None:
    run = Run(cast, 2)
    client = cast.client(cast.store("one", keep=1))
    for step in range(3):
        run.fetch(client, step)
    left = [path for path in client.store.root.rglob("*") if path.is_file() and MODEL in path.name]
    assert {path.parent for path in left} == {client.store.folder(2), client.store.folder(2) / ".delta"}


def test_an_origin_that_ends_a_crashed_attempt_leaves_nothing_of_it_in_the_version(cast: Cast) -> None:
    run = Run(cast)
    with pytest.raises(Crash), run.store.draft(1, "publishing", 0) as draft:
        (draft / ".delta").mkdir()
        (draft / ".delta" / "stale").write_bytes(b"x")
        raise Crash
    run.step()
    assert {path.name for path in (run.store.folder(1) / ".delta").iterdir()} == {MODEL, SHARD}
