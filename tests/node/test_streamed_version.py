"""A version reaches a relay and a node of a real run while its trainer still writes it, and is a version for them once the chain names it."""

from __future__ import annotations

import shutil

import pytest

from node.contributor.prefetch import Prefetch
from node.versions import Versions
from protocol.errors import MurmurationError
from protocol.identity import Key
from protocol.shardcast.source import Source
from tests.clock import eventually
from tests.node.stage import Stage, running
from tests.node.test_relay import Serving


def test_it_is_here_before_the_chain_names_it_and_counts_only_then(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1 adds to version 0 what no delta holds; the node knows the relay alone."""
    monkeypatch.setattr(stage.origin, "_anchor_every", 1)
    first = stage.publish()
    relay = Serving(stage)
    with running(relay) as ended:
        eventually(lambda: relay.has(0) or ended.error, what="version 0 at the relay")
        assert ended.error is None
        connection = stage.connection(Key.generate())
        versions = Versions(
            connection, stage.folder / "node", sources=lambda: [Source(relay.url, "relay", is_relay=True)]
        )
        versions.folder(first)
        prefetch, requests = Prefetch(connection, versions), stage.server.counts
        writing = stage.folder / "writing"
        writing.mkdir()
        whole = stage.variant(0.5)
        sizes = [(path.name, path.stat().st_size) for path in sorted(whole.iterdir())]
        try:
            with prefetch.beside(0):
                for name, _ in sizes:
                    shutil.copyfile(whole / name, writing / name)
                    while stage.origin.follow(writing, 1, sizes, "ab" * 16):
                        pass
                eventually(lambda: _ahead(versions) == len(sizes), what="all of it, ahead, at the node")
                assert versions.store.steps() == (0,)
                assert relay.has(0), "nobody has version 1 yet"
                with pytest.raises(MurmurationError):
                    versions.store.folder(1)
                served = requests.bytes_served
                publication = stage.publish(writing)
                eventually(lambda: versions.store.holds(1) and relay.has(0, 1), what="version 1 everywhere")
            folder = versions.folder(publication)
            assert {name: (folder / name).read_bytes() for name, _ in sizes} == {
                path.name: path.read_bytes() for path in whole.iterdir()
            }
            assert requests.bytes_served == served, "the origin sent nothing twice"
        finally:
            prefetch.close()
            versions.close()


def _ahead(versions: Versions) -> int:
    """Chunks of what is fetched ahead that are here; each of these files is one."""
    ahead = versions._client._ahead
    return 0 if ahead is None else len(ahead.verified)
