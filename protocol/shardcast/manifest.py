"""What a version of the weights consists of, and the trainer's word for it.

A manifest lists flat files with sizes and one BLAKE3 per chunk, so that a single lie is found and blamed at once. The chain
stores the SHA-256 of its canonical JSON; the run's trainer key signs that digest (`protocol.signing.PublishedManifest`). A
manifest from a peer counts only if it carries both, and is not even parsed before. There is no hash of a whole file: sizes and
chunks under a digest on chain fix every byte already, and a second hash cost a client a third of its CPU.

`files` always describes the whole version. One of kind *delta* says besides how its files are made from those of an earlier
version, its *base*: `delta` lists one file (protocol/shardcast/delta.py) for each file that changed. So every version can be
fetched either way, and its bytes are checked alike. The *anchor* is the full version at the end of the chain of bases. A later
form of the manifest, or another kind, is refused by name. Once a run's calibration was replaced, each manifest holds the notice of
it that is in force (protocol/calibration_notice.py): what it says is judged there.

It is not a folder format: it knows nothing of safetensors, and no directories (protocol/model_files.py does).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import local
from typing import Any

from blake3 import blake3
from eth_typing import ChecksumAddress

from protocol import canonical, resources, signing
from protocol.calibration_notice import CalibrationNotice
from protocol.constants import MANIFEST_BYTES_MAX, SHARDCAST_CHUNK_BYTES
from protocol.errors import (
    BadSignature,
    HashMismatch,
    Malformed,
    Oversized,
    PreflightError,
    UsageError,
    VersionMismatch,
)
from protocol.identity import Key

VERSION, WITH_NOTICE = 2, 3
"""Versions of the manifest's form: without a calibration notice, and with one. Changing them breaks: programs that know only earlier ones load no weights."""

FULL, DELTA = "full", "delta"
KINDS = (FULL, DELTA)
"""How a version may be fetched: whole, or by what makes it out of its base as well."""

FILE_NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}"
"""Pattern of the names a file may have: flat, visible, the same on every system and in a URL."""

_NAME = re.compile(FILE_NAME)
_UPGRADE = "upgrade murmuration: the trainer publishes what only a later version of it reads"
_DOWNGRADE = "use the version of murmuration that the run's trainer uses: it publishes what earlier ones read"
_HASH = re.compile(r"[0-9a-f]{64}")
_INTEGER_MAX = (1 << 53) - 1  # the largest integer that RFC 8785 can carry
_STEP_MAX = (1 << 32) - 1  # uint32 in contracts/src/Runs.sol

# The wire form around the manifest has a fixed shape, so the manifest's bytes can be hashed before they are parsed.
_BEFORE = b'{"manifest":'
_AFTER = re.compile(rb',"signature":"0x([0-9a-f]{130})"}')
_AFTER_BYTES = len(b',"signature":"0x"}') + 130


@dataclass(frozen=True)
class ManifestLimits:
    """The most that a party is ready to take from a manifest, whoever signed it."""

    files: int = 4096
    total_bytes: int = 2 << 40


@dataclass(frozen=True)
class FileEntry:
    """One file: `chunks` are the BLAKE3 of each chunk in order, in lower-case hex."""

    name: str
    size: int
    chunks: tuple[str, ...]

    def pieces(self, chunk_bytes: int) -> Iterator[Chunk]:
        """The file's chunks in order of offset."""
        for index, expected in enumerate(self.chunks):
            offset = index * chunk_bytes
            yield Chunk(self, offset, min(chunk_bytes, self.size - offset), expected)


@dataclass(frozen=True)
class Chunk:
    """The unit that is verified: `size` bytes at `offset` of `file` that must hash to `blake3`."""

    file: FileEntry
    offset: int
    size: int
    blake3: str

    def matches(self, content: memoryview) -> bool:
        return blake3(content).hexdigest() == self.blake3


@dataclass(frozen=True)
class Base:
    """What a delta is applied to: an earlier version, and the full one (`anchor`) that this goes back to.

    `manifest` is the SHA-256 of the base's manifest, in lower-case hex: the chain holds it for `step`.
    """

    step: int
    manifest: str
    anchor: int


@dataclass(frozen=True)
class Manifest:
    """`files` are the whole version's, whatever its kind.

    `delta` holds a file for each of them that differs from the base's file of that name, under the same name; `base` and
    `delta` are None exactly where `kind` is full.
    """

    run: int
    step: int
    files: tuple[FileEntry, ...]
    chunk_bytes: int = SHARDCAST_CHUNK_BYTES
    base: Base | None = None
    delta: tuple[FileEntry, ...] | None = None
    notice: CalibrationNotice | None = None
    """What work done with this version is judged by, where that is not the run spec's calibration."""

    def __post_init__(self) -> None:
        if (self.base is None) != (self.delta is None):
            raise UsageError("a delta needs a base, and a base a delta")

    @property
    def kind(self) -> str:
        return FULL if self.base is None else DELTA

    def encode(self) -> bytes:
        base, notice = self.base, self.notice
        return canonical.encode(
            {
                **({} if notice is None else {"notice": notice.table()}),
                "anchor": self.anchor,
                "base": None if base is None else {"manifest": base.manifest, "step": base.step},
                "chunk_bytes": self.chunk_bytes,
                "delta": None if self.delta is None else _listed(self.delta),
                "files": _listed(self.files),
                "kind": self.kind,
                "run": self.run,
                "step": self.step,
                "version": VERSION if notice is None else WITH_NOTICE,
            }
        )

    @property
    def anchor(self) -> int:
        """Step of the full version that this one goes back to: its own, where it is full."""
        return self.step if self.base is None else self.base.anchor

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of `encode()`, 32 bytes: what `Runs.publish` stores."""
        return hashlib.sha256(self.encode()).digest()

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def delta_bytes(self) -> int:
        return sum(file.size for file in self.delta or ())

    def chunks(self) -> Iterator[Chunk]:
        """All chunks, file by file."""
        for file in self.files:
            yield from file.pieces(self.chunk_bytes)

    @cached_property
    def numbers(self) -> dict[tuple[str, int], int]:
        """The number of each chunk, by file and offset."""
        return {(chunk.file.name, chunk.offset): number for number, chunk in enumerate(self.chunks())}

    @classmethod
    def parse(cls, data: bytes, limits: ManifestLimits, *, chunk_bytes: int = SHARDCAST_CHUNK_BYTES) -> Manifest:
        """Reads `encode()`'s bytes from a peer.

        Raises Oversized beyond a cap, VersionMismatch for a form or kind of a later version of this software, Malformed for
        any other departure. `chunk_bytes` is what the manifest must say; only tests expect anything but the constant.
        """
        value = canonical.decode(data, cap=MANIFEST_BYTES_MAX, what="manifest")
        _require_known(value)
        is_full = value["kind"] == FULL
        value = _fields(
            value,
            {
                "anchor": int, "base": type(None) if is_full else dict, "chunk_bytes": int,
                "delta": type(None) if is_full else list, "files": list, "kind": str, "run": int, "step": int, "version": int,
                **({"notice": dict} if value["version"] == WITH_NOTICE else {}),
            },
            "manifest",
        )  # fmt: skip
        if value["chunk_bytes"] != chunk_bytes:
            raise Malformed(f"manifest has chunks of {value['chunk_bytes']} bytes, not {chunk_bytes}")
        run = _within(value["run"], _INTEGER_MAX, "run")
        step = _within(value["step"], _STEP_MAX, "step")
        files = _files(value["files"], "files", limits, chunk_bytes)
        if not files:
            raise Malformed("manifest lists no files")
        base = _base(value, step)
        delta = None if base is None else _files(value["delta"], "delta", limits, chunk_bytes)
        if unknown := {file.name for file in delta or ()} - {file.name for file in files}:
            raise Malformed(f"the delta makes {min(unknown)}, which is no file of the version")
        return cls(run, step, files, chunk_bytes, base, delta, _notice(value, step))


def sign(manifest: Manifest, key: Key, domain: signing.Domain) -> bytes:
    """The wire form: canonical JSON {"manifest": …, "signature": "0x…"}."""
    message = signing.PublishedManifest(manifest.run, manifest.step, manifest.digest)
    signature = message.sign(key, domain).hex().encode()
    return _BEFORE + manifest.encode() + b',"signature":"0x' + signature + b'"}'


@dataclass(frozen=True)
class Expected:
    """What a signed manifest must be to count: `digest` comes from the chain, `trainer` is the run's trainer address."""

    run: int
    step: int
    digest: bytes
    trainer: ChecksumAddress
    domain: signing.Domain
    limits: ManifestLimits
    chunk_bytes: int = SHARDCAST_CHUNK_BYTES
    former: tuple[ChecksumAddress, ...] = ()
    """Keys that were the trainer's before: what they signed is still served, and the digest says that it was published."""

    def open(self, data: bytes) -> Manifest:
        """Checks size, digest and signature of the wire form, and only then parses what is inside.

        Raises Oversized, Malformed, HashMismatch or BadSignature.
        """
        body, signature = _split(data)
        if hashlib.sha256(body).digest() != self.digest:
            raise HashMismatch("manifest does not hash to the digest on chain")
        message = signing.PublishedManifest(self.run, self.step, self.digest)
        signer = message.signer(signature, self.domain)
        message.require(signature, self.domain, signer if signer in self.former else self.trainer, "manifest")
        manifest = Manifest.parse(body, self.limits, chunk_bytes=self.chunk_bytes)
        if (manifest.run, manifest.step) != (self.run, self.step):
            raise Malformed(f"manifest is of run {manifest.run}, step {manifest.step}, not {self.run}, {self.step}")
        return manifest


def stored(data: bytes, *, chunk_bytes: int = SHARDCAST_CHUNK_BYTES) -> Manifest:
    """The manifest in a wire form that was checked when it came. Raises what `Manifest.parse` raises."""
    return Manifest.parse(_split(data)[0], ManifestLimits(), chunk_bytes=chunk_bytes)


def digest_of(data: bytes) -> bytes:
    """The manifest's digest out of a wire form. Raises Malformed; checks no signature."""
    return hashlib.sha256(_split(data)[0]).digest()


def _split(data: bytes) -> tuple[bytes, bytes]:
    if len(data) > MANIFEST_BYTES_MAX:
        raise Oversized(f"signed manifest has {len(data)} bytes, more than {MANIFEST_BYTES_MAX}")
    tail = _AFTER.fullmatch(data[-_AFTER_BYTES:])
    if not data.startswith(_BEFORE) or tail is None:
        if b'"signature"' not in data[-_AFTER_BYTES:]:
            raise BadSignature("manifest is not signed")
        raise Malformed("signed manifest does not have its canonical form")
    return data[len(_BEFORE) : -_AFTER_BYTES], bytes.fromhex(tail.group(1).decode())


def publishable(folder: Path) -> list[Path]:
    """The files of a flat folder, in order of name. Hidden ones are no part of a version.

    Raises UsageError for a sub-folder, a name that cannot travel or an empty folder.
    """
    try:
        paths = sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda path: path.name)
    except OSError as error:
        raise PreflightError(f"cannot read {folder}: {error.strerror}") from error
    for path in paths:
        if not path.is_file() or not _NAME.fullmatch(path.name):
            raise UsageError(f"{path} cannot be published", hint="versions are flat folders of [A-Za-z0-9._-] files")
    if not paths:
        raise UsageError(f"{folder} holds no files to publish")
    if len({path.name.lower() for path in paths}) != len(paths):
        raise UsageError(f"{folder} holds two files whose names differ only in case")
    return paths


def describe(folder: Path, run: int, step: int, *, chunk_bytes: int = SHARDCAST_CHUNK_BYTES) -> Manifest:
    """The manifest of a folder's files. Raises what `publishable` raises, and PreflightError where reading fails."""
    return Manifest(run, step, describe_files(publishable(folder), chunk_bytes), chunk_bytes)


def describe_files(paths: Sequence[Path], chunk_bytes: int = SHARDCAST_CHUNK_BYTES) -> tuple[FileEntry, ...]:
    """These files as a manifest lists them; threads hash, each with room for a chunk. Raises PreflightError where reading fails."""
    with ThreadPoolExecutor(resources.threads(chunk_bytes), thread_name_prefix="hashing") as pool:
        try:
            return tuple(_describe_file(path, chunk_bytes, pool) for path in paths)
        except OSError as error:
            raise PreflightError(f"cannot read {error.filename}: {error.strerror}") from error


def _describe_file(path: Path, chunk_bytes: int, pool: ThreadPoolExecutor) -> FileEntry:
    size = path.stat().st_size
    with path.open("rb", buffering=0) as file:
        fd, rooms = file.fileno(), local()

        def hashed(offset: int) -> str:
            if not hasattr(rooms, "room"):
                rooms.room = memoryview(bytearray(chunk_bytes))
            count = read_at(fd, rooms.room[: min(chunk_bytes, size - offset)], offset, path)
            return blake3(rooms.room[:count]).hexdigest()

        return FileEntry(path.name, size, tuple(pool.map(hashed, range(0, size, chunk_bytes))))


def read_at(fd: int, view: memoryview, offset: int, path: Path) -> int:
    """Fills `view` from a file. Raises PreflightError if the file has become shorter."""
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done:]], offset + done)
        if not count:
            raise PreflightError(f"{path} became shorter while it was read")
        done += count
    return done


def unlisted_files(
    value: dict[str, Any], more: dict[str, type], limits: ManifestLimits, chunk_bytes: int
) -> tuple[tuple[str, int], ...]:
    """Names and sizes of the files of an opening (protocol/shardcast/opening.py), by the rules for those of a manifest: any order, no hashes.
    `more` are the types of what else it must hold. Raises what `Manifest.parse` raises."""
    types = {"chunk_bytes": int, "files": list, "run": int, "step": int}
    value = _fields(value, types | more, "opening")
    if value["chunk_bytes"] != chunk_bytes:
        raise Malformed(f"opening has chunks of {value['chunk_bytes']} bytes, not {chunk_bytes}")
    _within(value["run"], _INTEGER_MAX, "run")
    _within(value["step"], _STEP_MAX, "step")
    files = [_fields(entry, {"name": str, "size": int}, "file entry") for entry in value["files"][: limits.files + 1]]
    if sum(_within(file["size"], _INTEGER_MAX, "size") for file in files) > limits.total_bytes:
        raise Oversized(f"opening lists more than {limits.total_bytes} bytes")
    sized = [file | {"chunks": ["0" * 64] * -(-file["size"] // chunk_bytes)} for file in files]
    if not _files(sorted(sized, key=lambda file: file["name"]), "files", limits, chunk_bytes):
        raise Malformed("opening lists no files")
    return tuple((file["name"], file["size"]) for file in files)


def _listed(files: tuple[FileEntry, ...]) -> list[dict[str, Any]]:
    return [{"chunks": list(file.chunks), "name": file.name, "size": file.size} for file in files]


def _require_known(value: Any) -> None:
    """Raises VersionMismatch for a form or a kind that this program does not know, Malformed where it names none."""
    version = value.get("version") if isinstance(value, dict) else None
    if type(version) is not int:
        raise Malformed("manifest names no version of its form")
    if version not in (VERSION, WITH_NOTICE):
        hint = _UPGRADE if version > VERSION else _DOWNGRADE
        raise VersionMismatch(
            f"the manifest has version {version}, this program reads versions {VERSION} and {WITH_NOTICE}", hint=hint
        )
    kind = value.get("kind")
    if not isinstance(kind, str):
        raise Malformed("manifest names no kind")
    if kind not in KINDS:
        known = ", ".join(KINDS)
        raise VersionMismatch(f"the manifest is of kind {kind[:40]!r}, this program knows {known}", hint=_UPGRADE)


def _base(value: dict[str, Any], step: int) -> Base | None:
    """The base of a manifest whose fields have the right types."""
    anchor = _within(value["anchor"], step, "anchor")
    if value["base"] is None:
        if anchor != step:
            raise Malformed(f"a full version {step} names version {anchor} as its anchor")
        return None
    base = _fields(value["base"], {"manifest": str, "step": int}, "base")
    if not _HASH.fullmatch(base["manifest"]):
        raise Malformed("the base carries something that is no hash")
    return Base(_within(base["step"], step - 1, "base step"), base["manifest"], _within(anchor, base["step"], "anchor"))


def _notice(value: dict[str, Any], step: int) -> CalibrationNotice | None:
    """The calibration notice of a manifest whose fields have the right types."""
    if "notice" not in value:
        return None
    notice = CalibrationNotice.parse(value["notice"])
    if notice.since > step:
        raise Malformed(f"version {step} carries a calibration notice that holds from version {notice.since} on")
    return notice


def _files(entries: list[Any], what: str, limits: ManifestLimits, chunk_bytes: int) -> tuple[FileEntry, ...]:
    if len(entries) > limits.files:
        raise Oversized(f"manifest lists {len(entries)} {what}, more than {limits.files}")
    files = tuple(_file(entry, chunk_bytes) for entry in entries)
    names = [file.name for file in files]
    if names != sorted(names):
        raise Malformed("manifest does not list its files in order of name")
    # Names that differ only in case are one file where the disk ignores case.
    if len({name.lower() for name in names}) != len(names):
        raise Malformed("manifest lists a file twice")
    if (total := sum(file.size for file in files)) > limits.total_bytes:
        raise Oversized(f"manifest lists {total} bytes of {what}, more than {limits.total_bytes}")
    return files


def _file(entry: Any, chunk_bytes: int) -> FileEntry:
    value = _fields(entry, {"chunks": list, "name": str, "size": int}, "file entry")
    name, chunks = value["name"], value["chunks"]
    if not _NAME.fullmatch(name):
        raise Malformed(f"file name {name[:80]!r} is not allowed")
    size = _within(value["size"], _INTEGER_MAX, "size")
    if len(chunks) != -(-size // chunk_bytes):
        raise Malformed(f"file {name} of {size} bytes has {len(chunks)} chunks")
    for text in chunks:
        if not isinstance(text, str) or not _HASH.fullmatch(text):
            raise Malformed(f"file {name} carries something that is no hash")
    return FileEntry(name, size, tuple(chunks))


def _fields(value: Any, types: dict[str, type], what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != types.keys():
        raise Malformed(f"{what} must have exactly the keys {', '.join(types)}")
    for name, kind in types.items():
        if type(value[name]) is not kind:  # not isinstance: a bool is no integer here
            raise Malformed(f"{name} of the {what} is of the wrong type")
    return value


def _within(number: int, most: int, what: str) -> int:
    if not 0 <= number <= most:
        raise Malformed(f"{what} {number} lies outside 0..{most}")
    return number
