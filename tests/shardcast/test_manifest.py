"""A manifest from a stranger counts only as far as chain and trainer vouch for it, and never takes a machine by surprise."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from protocol import calibration, canonical, signing
from protocol.calibration_notice import CalibrationNotice
from protocol.constants import MANIFEST_BYTES_MAX, SHARDCAST_CHUNK_BYTES
from protocol.errors import (
    BadSignature,
    HashMismatch,
    Malformed,
    Oversized,
    ProtocolViolation,
    UsageError,
    VersionMismatch,
)
from protocol.identity import Key
from protocol.shardcast import manifest as manifest_module
from protocol.shardcast.manifest import Base, Expected, FileEntry, Manifest, ManifestLimits, describe, digest_of, sign
from protocol.signing import Domain

from .conftest import CHUNK, RUN, Cast

HASH = "ab" * 32
BASE = {"manifest": HASH, "step": 4}


def entry(
    name: str = "model.safetensors", size: int = 10, chunks: list[Any] | None = None, **more: Any
) -> dict[str, Any]:
    count = -(-size // CHUNK)
    return {"name": name, "size": size, "chunks": [HASH] * count if chunks is None else chunks} | more


DELTA = {"kind": "delta", "step": 5, "base": BASE, "anchor": 3, "delta": [entry(size=3)]}


def manifest_json(files: list[Any], /, **changes: Any) -> bytes:
    whole = {"version": 2, "kind": "full", "base": None, "anchor": 1, "delta": None}
    return canonical.encode({"run": RUN, "step": 1, "chunk_bytes": CHUNK, "files": files, **whole} | changes)


def parse(data: bytes, limits: ManifestLimits | None = None) -> Manifest:
    return Manifest.parse(data, limits or ManifestLimits(), chunk_bytes=CHUNK)


def test_a_described_folder_lists_every_file_with_its_hashes(cast: Cast) -> None:
    content = cast.bytes(CHUNK + 1)
    folder = cast.folder({"b": content, "a": b"", ".hidden": b"x"})
    first, second = describe(folder, RUN, 1, chunk_bytes=CHUNK).files
    assert first == FileEntry("a", 0, ())
    pieces = (blake3(content[:CHUNK]).hexdigest(), blake3(content[CHUNK:]).hexdigest())
    assert second == FileEntry("b", CHUNK + 1, pieces)


def test_as_many_threads_hash_as_the_machine_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * CHUNK
    (tmp_path / "model").write_bytes(content[: 6 * CHUNK])
    barrier = threading.Barrier(3, timeout=20)

    def hashed(data: memoryview) -> Any:
        barrier.wait()  # until three hash at once
        return blake3(data)

    monkeypatch.setattr(manifest_module.resources, "threads", {CHUNK: 3}.__getitem__)
    expected = describe(tmp_path, RUN, 1, chunk_bytes=CHUNK)
    monkeypatch.setattr(manifest_module, "blake3", hashed)
    assert describe(tmp_path, RUN, 1, chunk_bytes=CHUNK) == expected


def test_what_was_encoded_parses_to_the_same_manifest(cast: Cast) -> None:
    manifest = describe(cast.folder({"a": cast.bytes(3 * CHUNK), "b": b""}), RUN, 7, chunk_bytes=CHUNK)
    assert parse(manifest.encode()) == manifest
    assert parse(manifest.encode()).digest == hashlib.sha256(manifest.encode()).digest() == manifest.digest


def test_production_accepts_the_protocols_chunk_size_only() -> None:
    small = manifest_json([entry(size=0)])
    usual = manifest_json([entry(size=0)], chunk_bytes=SHARDCAST_CHUNK_BYTES)
    assert Manifest.parse(usual, ManifestLimits()).chunk_bytes == SHARDCAST_CHUNK_BYTES
    with pytest.raises(Malformed, match="chunks of"):
        Manifest.parse(small, ManifestLimits())


ESCAPING = [
    "../x",
    "..",
    "/etc/passwd",
    "a/b",
    "a\\b",
    ".manifest.json",
    ".hidden",
    "%2e%2e",
    "a:b",
    "~",
    "C:\\x",
    "a/../../x",
    "é",
]


@pytest.mark.parametrize("name", [*ESCAPING, "", "a b", "a\x00b", "a\n", "a" * 256])
def test_a_file_name_that_could_leave_its_folder_is_malformed(name: str) -> None:
    with pytest.raises(Malformed):
        parse(manifest_json([entry(name)]))


@pytest.mark.parametrize(
    "files",
    [
        pytest.param([entry("a"), entry("a")], id="duplicate"),
        pytest.param([entry("A"), entry("a")], id="duplicate on disks that ignore case"),
        pytest.param([entry("b"), entry("a")], id="out of order"),
        pytest.param([], id="no files"),
        pytest.param([entry(size=CHUNK, chunks=[HASH, HASH])], id="one chunk too many"),
        pytest.param([entry(size=CHUNK + 1, chunks=[HASH])], id="one chunk too few"),
        pytest.param([entry(size=0, chunks=[HASH])], id="a chunk of an empty file"),
        pytest.param([entry(size=1 << 50, chunks=[HASH])], id="a huge size with one chunk"),
        pytest.param([entry(size=1 << 50, chunks=[])], id="a huge size without chunks"),
        pytest.param([entry(size=-1, chunks=[])], id="negative size"),
        pytest.param([entry(size=True, chunks=[HASH])], id="a bool for a size"),
        pytest.param([entry(chunks=["AB" * 32])], id="upper-case hash"),
        pytest.param([entry(chunks=["ab" * 31])], id="short hash"),
        pytest.param([entry(chunks=[5])], id="a number for a hash"),
        pytest.param([entry(name=5)], id="a number for a name"),
        pytest.param([entry(more=1)], id="a key too many"),
        pytest.param([{"name": "a"}], id="keys missing"),
        pytest.param(["a"], id="text for a file"),
        pytest.param([None], id="null for a file"),
    ],
)
def test_a_manifest_with_unsound_files_is_malformed(files: list[Any]) -> None:
    with pytest.raises(Malformed):
        parse(manifest_json(files))


@pytest.mark.parametrize(
    "changes",
    [
        {"run": -1},
        {"run": "3"},
        {"step": 1 << 32},
        {"step": None},
        {"files": {}},
        {"chunk_bytes": 1},
        {"extra": 0},
        {"version": None},
        {"version": "1"},
        {"version": True},
        {"kind": None},
        {"kind": 1},
        {"anchor": 0},
        {"anchor": 2},
        {"anchor": None},
        {"base": BASE},
        {"delta": []},
        {"base": []},
        {"base": {}},
    ],
    ids=str,
)
def test_a_manifest_with_wrong_fields_is_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        parse(manifest_json([entry()], **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"base": None}, {"base": {"manifest": HASH, "step": 5}}, {"base": {"manifest": HASH, "step": -1}},
        {"base": {"manifest": HASH, "step": True}}, {"base": {"manifest": HASH[2:], "step": 4}},
        {"base": {"manifest": None, "step": 4}}, {"base": BASE | {"more": 0}}, {"base": {"step": 4}}, {"anchor": 5},
        {"anchor": -1}, {"kind": "full"}, {"delta": None}, {"delta": {}}, {"delta": [entry("of another file")]},
        {"delta": [entry("another.safetensors")]}, {"delta": [entry(), entry()]}, {"delta": [entry(chunks=[])]},
        {"delta": ["model.safetensors"]},
    ],
    ids=str,
)  # fmt: skip
def test_a_delta_without_a_sound_base_and_files_of_its_version_is_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        parse(manifest_json([entry()], **(DELTA | changes)))


def test_a_delta_lists_the_whole_version_and_what_makes_it_out_of_its_base() -> None:
    manifest = parse(manifest_json([entry("config.json"), entry()], **DELTA))
    assert manifest == parse(manifest.encode())
    assert (manifest.kind, manifest.base, manifest.anchor) == ("delta", Base(4, HASH, 3), 3)
    assert (manifest.total_bytes, manifest.delta_bytes) == (20, 3)
    full = parse(manifest_json([entry()]))
    assert (full.kind, full.base, full.anchor, full.delta, full.delta_bytes) == ("full", None, 1, None, 0)
    assert parse(manifest_json([entry()], **(DELTA | {"delta": []}))).delta == (), "nothing changed"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"version": 4}, "version 4, this program reads versions 2 and 3"),
        ({"version": 4, "kind": 7, "holes": []}, "version 4"),
        ({"kind": "adapter"}, "kind 'adapter', this program knows full, delta"),
    ],
    ids=["version", "version with other fields", "kind"],
)
def test_a_later_form_or_kind_is_refused_by_name(cast: Cast, changes: dict[str, Any], named: str) -> None:
    """Signed by the trainer, with its hash on chain: this program is too old, and no peer is to blame."""
    body = manifest_json([entry()], **changes)
    with pytest.raises(VersionMismatch, match=named) as caught:
        parse(body)
    assert "upgrade" in caught.value.hint
    digest = hashlib.sha256(body).digest()
    signature = "0x" + signing.PublishedManifest(RUN, 1, digest).sign(cast.key, cast.domain).hex()
    expected = Expected(RUN, 1, digest, cast.key.address, cast.domain, ManifestLimits(), CHUNK)
    with pytest.raises(VersionMismatch, match=named):
        expected.open(b'{"manifest":' + body + b',"signature":"' + signature.encode() + b'"}')


def test_the_form_of_before_is_refused_by_name() -> None:
    before = [entry(sha256=HASH)]
    with pytest.raises(VersionMismatch, match="version 1, this program reads versions 2 and 3") as caught:
        parse(manifest_json(before, version=1))
    assert "the run's trainer uses" in caught.value.hint


SHIPPED = Path(calibration.__file__).parent / "calibrations/tiny-qwen3-float32-cpu.json"


def notice(**changes: Any) -> dict[str, Any]:
    limits = json.loads(SHIPPED.read_text())["limits"]
    return {**limits, "number": 1, "since": 1, "calibration": HASH, **changes}


def test_a_manifest_carries_the_notice_of_a_calibration_and_its_digest_covers_it(cast: Cast) -> None:
    body = manifest_json([entry()], version=3, notice=notice())
    found = parse(body)
    assert found.notice == CalibrationNotice.parse(notice())
    assert found.encode() == body
    assert found.digest != replace(found, notice=None).digest
    assert replace(found, notice=None).encode() == manifest_json([entry()])  # as every program reads it
    forged = body.replace(b'"hard":"0.5"', b'"hard":"0.6"')
    assert forged != body
    signature = "0x" + signing.PublishedManifest(RUN, 1, found.digest).sign(cast.key, cast.domain).hex()
    expected = Expected(RUN, 1, found.digest, cast.key.address, cast.domain, ManifestLimits(), CHUNK)
    wire = b'{"manifest":%s,"signature":"' + signature.encode() + b'"}'
    assert expected.open(wire % body).notice == found.notice
    with pytest.raises(HashMismatch):
        expected.open(wire % forged)
    stranger = "0x" + signing.PublishedManifest(RUN, 1, found.digest).sign(Key.generate(), cast.domain).hex()
    with pytest.raises(BadSignature):
        expected.open(b'{"manifest":' + body + b',"signature":"' + stranger.encode() + b'"}')


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"version": 2, "notice": notice()}, "exactly the keys"),
        ({"version": 3}, "exactly the keys"),
        ({"version": 3, "notice": None}, "notice of the manifest is of the wrong type"),
        (
            {"version": 3, "notice": notice(since=2)},
            "version 1 carries a calibration notice that holds from version 2 on",
        ),
        ({"version": 3, "notice": notice(penalty="1")}, "penalty"),
    ],
)
def test_a_notice_of_another_form_is_malformed(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(Malformed, match=named):
        parse(manifest_json([entry()], **changes))


def test_a_manifest_that_is_not_canonical_is_malformed() -> None:
    canonical_form = manifest_json([entry()])
    assert parse(canonical_form)
    with pytest.raises(Malformed):
        parse(json.dumps(json.loads(canonical_form), indent=1).encode())


def test_what_exceeds_a_cap_is_oversized() -> None:
    with pytest.raises(Oversized):
        parse(manifest_json([entry("a"), entry("b")]), ManifestLimits(files=1))
    with pytest.raises(Oversized):
        parse(manifest_json([entry("a"), entry("b")]), ManifestLimits(total_bytes=19))
    assert parse(manifest_json([entry("a"), entry("b")]), ManifestLimits(files=2, total_bytes=20))
    with pytest.raises(Oversized, match="of delta"):
        parse(manifest_json([entry()], **(DELTA | {"delta": [entry(size=21)]})), ManifestLimits(total_bytes=20))
    with pytest.raises(Oversized):
        parse(b" " * (MANIFEST_BYTES_MAX + 1))


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["run", "step", "files", "chunk_bytes"]), inner),
).map(lambda value: json.dumps(value, separators=(",", ":"), sort_keys=True).encode()))  # fmt: skip
def test_bytes_from_a_stranger_raise_nothing_but_violations(data: bytes) -> None:
    with suppress(ProtocolViolation):
        parse(data)


def test_a_signed_manifest_opens_for_its_run_step_digest_and_trainer(cast: Cast) -> None:
    manifest = describe(cast.folder({"a": b"x"}), RUN, 1, chunk_bytes=CHUNK)
    signed = sign(manifest, cast.key, cast.domain)
    assert json.loads(signed).keys() == {"manifest", "signature"}
    assert canonical.encode(json.loads(signed)) == signed
    assert cast.expected(manifest).open(signed) == manifest
    assert digest_of(signed) == manifest.digest


def test_a_manifest_with_another_digest_than_the_chains_is_refused_even_when_the_trainer_signed_it(cast: Cast) -> None:
    folder = cast.folder({"a": b"x"})
    manifest, other = (describe(folder, RUN, step, chunk_bytes=CHUNK) for step in (1, 2))
    with pytest.raises(HashMismatch):
        cast.expected(manifest).open(sign(other, cast.key, cast.domain))


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer": Key.from_secret("0x" + "33" * 32).address},
        {"domain": Domain(1, "0x" + "22" * 20)},  # type: ignore[arg-type]
        {"domain": Domain(31337, "0x" + "23" * 20)},  # type: ignore[arg-type]
        {"run": RUN + 1},
        {"step": 2},
    ],
    ids=["another trainer", "another chain", "another contract", "another run", "another step"],
)
def test_a_signature_for_anything_else_does_not_count(cast: Cast, changes: dict[str, Any]) -> None:
    manifest = describe(cast.folder({"a": b"x"}), RUN, 1, chunk_bytes=CHUNK)
    with pytest.raises(BadSignature):
        cast.expected(manifest, **changes).open(sign(manifest, cast.key, cast.domain))


def test_a_manifest_inside_must_be_of_the_run_and_step_it_is_signed_for(cast: Cast) -> None:
    """The trainer's key signs, and the chain holds, a digest whose manifest speaks of another step."""
    manifest = describe(cast.folder({"a": b"x"}), RUN, 1, chunk_bytes=CHUNK)
    posing = Manifest(RUN, 2, manifest.files, CHUNK)
    object.__setattr__(posing, "encode", manifest.encode)
    with pytest.raises(Malformed, match="step 1"):
        cast.expected(manifest, step=2).open(sign(posing, cast.key, cast.domain))


def test_every_unsigned_or_mangled_wire_form_is_a_violation(cast: Cast) -> None:
    manifest = describe(cast.folder({"a": b"x"}), RUN, 1, chunk_bytes=CHUNK)
    signed, body = sign(manifest, cast.key, cast.domain), manifest.encode()
    for wrong in (
        body,
        b"",
        b"{}",
        b'{"manifest":' + body + b"}",
        b'{"manifest":' + body + b',"signature":null}',
        b'{"manifest":' + body + b',"signature":"0x"}',
        signed.replace(b'"signature"', b'"Signature"'),
        signed + b" ",
        b" " + signed,
        signed[:-4] + b'0"}',
        signed[:-3] + b'0"}',
        signed.replace(b'"0x', b'"0X'),
    ):
        with pytest.raises(ProtocolViolation):
            cast.expected(manifest).open(wrong)


def test_an_oversized_wire_form_is_refused_by_its_length(cast: Cast) -> None:
    manifest = describe(cast.folder({"a": b"x"}), RUN, 1, chunk_bytes=CHUNK)
    with pytest.raises(Oversized):
        cast.expected(manifest).open(b" " * (MANIFEST_BYTES_MAX + 1))


def test_the_caps_hold_for_a_manifest_that_the_trainer_signed(cast: Cast) -> None:
    manifest = describe(cast.folder({"a": b"xx"}), RUN, 1, chunk_bytes=CHUNK)
    with pytest.raises(Oversized):
        cast.expected(manifest, limits=ManifestLimits(total_bytes=1)).open(sign(manifest, cast.key, cast.domain))


def test_a_folder_that_could_not_travel_is_not_described(cast: Cast, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no files"):
        describe(cast.folder({}, "empty"), RUN, 1)
    with pytest.raises(UsageError, match="cannot be published"):
        describe(cast.folder({"a b": b""}, "spaces"), RUN, 1)
    with pytest.raises(UsageError, match="case"):
        describe(cast.folder({"a": b"", "A": b""}, "cases"), RUN, 1)
    (tmp_path / "nested" / "inner").mkdir(parents=True)
    with pytest.raises(UsageError, match="cannot be published"):
        describe(tmp_path / "nested", RUN, 1)
