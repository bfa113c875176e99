"""A version that can be had by its difference from one that is here comes so, byte for byte the same."""

from __future__ import annotations

import errno
from pathlib import Path

import httpx
import pytest

from protocol.errors import PreflightError, Unavailable
from protocol.shardcast import delta as codec
from protocol.shardcast.manifest import Base, describe_files

from .conftest import CHUNK, DEADLINE, Cast, contents, origin_at, relay_at
from .deltas import CONFIG, MODEL, SHARD, TOKENIZER, Run, model_of, received, stepped_by

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


# ---- what an origin publishes


def test_a_version_goes_with_what_makes_it_out_of_the_one_before(cast: Cast) -> None:
    run = Run(cast, 2)
    first, second, third = run.manifests
    assert (first.kind, second.kind, third.kind) == ("full", "delta", "delta")
    assert third.base == Base(1, second.digest.hex(), 0)
    assert [file.name for file in third.delta or ()] == [MODEL, SHARD], "config and tokenizer stayed"
    assert third.delta_bytes < third.total_bytes / 20
    assert describe_files(sorted((run.store.folder(2) / ".delta").iterdir()), CHUNK) == third.delta


def test_an_anchor_goes_without_a_delta_every_so_often(cast: Cast) -> None:
    run = Run(cast, 7, anchor_every=3)
    assert [manifest.kind for manifest in run.manifests] == ["full", "delta", "delta"] * 2 + ["full", "delta"]
    assert [manifest.anchor for manifest in run.manifests] == [0, 0, 0, 3, 3, 3, 6, 6]
    assert [run.store.folder(step).joinpath(".delta").exists() for step in (2, 3)] == [True, False]


def test_anchors_alone_are_published_where_that_is_set(cast: Cast) -> None:
    assert [manifest.kind for manifest in Run(cast, 2, anchor_every=1).manifests] == ["full"] * 3


def test_a_difference_of_half_the_bytes_is_not_worth_a_delta(cast: Cast) -> None:
    run = Run(cast)
    assert run.step(share=1.0, **{TOKENIZER.replace(".", "__"): cast.bytes(12 * CHUNK)}).kind == "full"
    assert not (run.store.folder(1) / ".delta").exists()
    assert run.step().base is not None, "the next one has a delta again"


def test_the_first_version_here_goes_without_a_delta(cast: Cast) -> None:
    publisher = cast.publisher(cast.store("origin"))
    assert publisher.publish(cast.folder({MODEL: model_of(1)}), 7).kind == "full"
    assert publisher.publish(cast.folder({MODEL: model_of(1)}, "later"), 9).kind == "full", "8 is missing"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), PreflightError("the disk is full"), MemoryError()])
def test_a_delta_that_cannot_be_written_keeps_no_version_from_anybody(
    cast: Cast, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    run = Run(cast)

    def fail(base: Path, target: Path, delta: Path, **_: object) -> bool:
        delta.write_bytes(b"some of it")
        raise error

    monkeypatch.setattr(codec, "encode", fail)
    if isinstance(error, MemoryError):
        with pytest.raises(MemoryError):  # nothing here can mend that
            run.step()
        return
    assert run.step().kind == "full"
    assert not (run.store.folder(1) / ".delta").exists()
    run.fetch(cast.client(), 1)


def test_a_store_that_was_lost_is_made_again_with_the_same_digests(cast: Cast) -> None:
    """The chain knows the digest of a delta whose base nobody has any more."""
    digests = []
    folders = [cast.folder({MODEL: stepped_by(model_of(1), 0.01 * n, n)}, f"kept-{n}") for n in range(3)]
    for name in ("before", "after"):
        publisher = cast.publisher(cast.store(name))
        steps = range(3) if name == "before" else (1, 2)
        digests.append([publisher.publish(folders[step], step, link=True, remember=True).digest for step in steps])
    assert digests[1] == digests[0][1:]
    server = cast.serve(publisher.store)
    folder = cast.client().fetch(1, digests[0][1], [origin_at(server.url)], DEADLINE)
    assert contents(folder) == contents(folders[1])


def test_what_is_remembered_counts_for_the_same_files_alone(cast: Cast) -> None:
    folder = cast.folder({MODEL: model_of(1)})
    first = cast.publisher(cast.store("first")).publish(folder, 1, remember=True)
    (folder / MODEL).write_bytes(model_of(2))
    second = cast.publisher(cast.store("second")).publish(folder, 1, remember=True)
    assert second.files != first.files
    (folder / ".manifest.json").write_bytes(b"torn")
    assert cast.publisher(cast.store("third")).publish(folder, 1).digest == second.digest


# ---- what a client fetches


def test_a_version_is_made_out_of_the_one_before(cast: Cast) -> None:
    run = Run(cast, 1)
    client = run.holder(0)
    run.fetch(client, 1)
    assert received(client) == run.manifests[1].delta_bytes
    assert not client.statistics.violations


def test_versions_between_are_made_on_the_way(cast: Cast) -> None:
    run = Run(cast, 4)
    client = run.holder(0)
    run.fetch(client, 4)
    assert received(client) == sum(manifest.delta_bytes for manifest in run.manifests[1:])
    assert client.store.steps() == (0, 1, 2, 3, 4)
    for step in range(4):
        assert contents(client.store.folder(step)) == run.files[step]


def test_only_as_many_versions_as_are_kept_stay_of_those_between(cast: Cast) -> None:
    run = Run(cast, 4)
    client = cast.client(cast.store("small", keep=2))
    run.fetch(client, 0)
    run.fetch(client, 4)
    assert client.store.steps() == (3, 4)
    assert received(client) < run.manifests[0].total_bytes * 1.3


def test_whoever_holds_nothing_fetches_the_whole(cast: Cast) -> None:
    run = Run(cast, 2)
    client = cast.client()
    run.fetch(client, 2)
    assert received(client) == run.manifests[2].total_bytes
    assert client.store.steps() == (2,)
    assert not (client.store.folder(2) / ".delta").exists()


def test_a_chain_that_costs_as_much_as_the_whole_is_not_taken(cast: Cast) -> None:
    run = Run(cast)
    for seed in range(4):
        run.step(**{MODEL.replace(".", "__"): model_of(10 + seed)})
    assert {manifest.kind for manifest in run.manifests[1:]} == {"delta"}
    assert sum(manifest.delta_bytes for manifest in run.manifests[1:]) > run.manifests[4].total_bytes
    client = run.holder(0)
    run.fetch(client, 4)
    assert received(client) == run.manifests[4].total_bytes
    assert client.store.steps() == (0, 4)


def test_files_that_are_new_gone_or_longer_are_right_as_well(cast: Cast) -> None:
    run = Run(cast)
    longer = b"a header that grew" + run.files[0][SHARD][: 2 * CHUNK]
    run.step(**{TOKENIZER.replace(".", "__"): None, "special__json": b"[1]", SHARD.replace(".", "__"): longer})
    assert run.manifests[1].kind == "delta"
    run.fetch(run.holder(0), 1)


def test_a_version_that_changed_nothing_needs_no_byte(cast: Cast) -> None:
    run = Run(cast)
    run.step(share=0.0)
    assert run.manifests[1].delta == ()
    client = run.holder(0)
    run.fetch(client, 1)
    assert received(client) == 0


def test_a_relay_fetches_by_delta_and_serves_both_forms(cast: Cast) -> None:
    run = Run(cast, 1)
    relay = run.holder(0, "relay")
    run.fetch(relay, 1)
    source = relay_at(cast.serve(relay.store).url)
    after, new = run.holder(0, "after"), cast.client(cast.store("new"))
    run.fetch(after, 1, [source])
    assert received(after) == run.manifests[1].delta_bytes
    run.fetch(new, 1, [source])
    assert received(new) == run.manifests[1].total_bytes


def test_what_is_here_already_of_the_whole_is_not_fetched_again_as_a_delta(cast: Cast) -> None:
    """A fetch that was broken off near its end goes on with the few chunks that are missing."""
    run = Run(cast, 1)
    client = run.holder(0)
    with pytest.raises(Unavailable), client.store.draft(1, run.manifests[1].digest.hex(), 0) as draft:
        for name, content in run.files[1].items():
            (draft / name).write_bytes(content if name != CONFIG else b"")
        raise Unavailable("broken off")
    run.fetch(client, 1)
    assert received(client) == len(run.files[1][CONFIG])


# ---- on the wire


def test_a_server_gives_out_delta_files_under_a_name_of_their_own(cast: Cast) -> None:
    run = Run(cast, 1)
    want = run.served(1)[MODEL]
    url = f"{run.server.url}/v/1"
    assert httpx.get(f"{url}/delta/{MODEL}", timeout=DEADLINE).content == want
    part = httpx.get(f"{url}/delta/{MODEL}", headers={"Range": "bytes=3-9"}, timeout=DEADLINE)
    assert (part.status_code, part.content) == (206, want[3:10])
    for missing in ("delta/", "delta", f"files/.delta/{MODEL}", f".delta/{MODEL}", "files/.delta"):
        assert httpx.get(f"{url}/{missing}", timeout=DEADLINE).status_code == 404
    for never in (f"1/delta/{CONFIG}", f"0/delta/{MODEL}"):
        assert httpx.get(f"{run.server.url}/v/{never}", timeout=DEADLINE).status_code == 410
    assert httpx.get(f"{run.server.url}/v/2/delta/{MODEL}", timeout=DEADLINE).status_code == 404, "it may come"
