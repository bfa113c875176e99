"""How fast a source serves is measured of bytes that are right; one that lies or hangs is told from one that is slow."""

from __future__ import annotations

import pytest

from protocol.errors import HashMismatch, Malformed, Oversized, ProtocolViolation, Unavailable
from protocol.shardcast.rate import Taster

from .conftest import CHUNK, Cast, origin_at, wait_until

FILES = {"config.json": b'{"a": 1}', "model.safetensors": b"\x01" * (3 * CHUNK + 5)}


def test_a_source_is_tried_with_checked_chunks(cast: Cast) -> None:
    manifest, server = cast.origin(FILES)
    taster = Taster(origin_at(server.url), cast.expected(manifest))
    assert taster.manifest() == manifest
    assert taster.read(manifest, "config.json", most=100) == FILES["config.json"]
    assert taster.rate(manifest) > 0
    everything = sum(map(len, FILES.values()))
    wait_until(lambda: server.counts.bytes_served == len(FILES["config.json"]) + everything)  # counts lag behind


def test_no_more_is_fetched_than_asked_for(cast: Cast) -> None:
    manifest, server = cast.origin(FILES)
    taster = Taster(origin_at(server.url), cast.expected(manifest))
    taster.rate(manifest, most=CHUNK)
    assert server.counts.bytes_served <= CHUNK + len(FILES["config.json"])
    with pytest.raises(Oversized):
        taster.read(manifest, "config.json", most=3)
    with pytest.raises(Malformed, match=r"has no tokenizer\.json"):
        taster.read(manifest, "tokenizer.json", most=100)


def test_a_source_with_other_bytes_has_no_rate(cast: Cast) -> None:
    manifest, _ = cast.origin(FILES)
    _, liar = cast.origin({**FILES, "model.safetensors": b"\x02" * (3 * CHUNK + 5)})
    taster = Taster(origin_at(liar.url), cast.expected(manifest))
    with pytest.raises(ProtocolViolation):
        taster.manifest()
    with pytest.raises(HashMismatch):
        taster.rate(manifest)


def test_a_source_without_the_version_or_that_is_gone_has_no_rate(cast: Cast) -> None:
    manifest, _ = cast.origin(FILES)
    _, other = cast.origin(FILES, step=7)
    with pytest.raises(Unavailable):
        Taster(origin_at(other.url), cast.expected(manifest)).manifest()
    other.close()
    with pytest.raises(OSError):
        Taster(origin_at(other.url), cast.expected(manifest)).rate(manifest)
