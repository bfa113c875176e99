"""A version that its trainer is still writing, signed piece by piece: what lets the first chunk leave before the last is there.

    GET /v/<step>/opening?of=<id>&after=<count>&wait=<milliseconds>

is answered as soon as there is another opening than `of`, or more than `after` chunks of it are listed, or when the time is over.
The body, all integers little-endian:

    u32 bytes of the opening   u32 chunks listed   u32 chunks left out   opening   BLAKE3 of each chunk, 32 bytes   signature, 65 bytes

The opening is canonical JSON: run, step, the files in the order in which they are written, with their sizes. Its SHA-256 is its id.
The trainer signs (protocol.signing.ListedChunks) the id and the list so far, so a chunk is as certain as one of a manifest is: it
is verified before it counts, and a liar is known. Only one thing is open: whether these chunks become a version. Until the
chain says so nothing of it is loaded, counts as a version, or is served under a version's address; and a chunk that the
manifest on chain does not name is thrown away. None but the trainer can have caused that.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Condition

from eth_typing import ChecksumAddress

from protocol import canonical, signing
from protocol.constants import MANIFEST_BYTES_MAX, SHARDCAST_CHUNK_BYTES
from protocol.errors import Malformed, Oversized, VersionMismatch
from protocol.identity import Key
from protocol.shardcast.manifest import FileEntry, Manifest, ManifestLimits, unlisted_files

VERSION = 1
"""Version of the opening's form. Changing it breaks: programs that know only earlier ones wait for the manifest."""

OPENING_BYTES_MAX = 1 << 20
NO_OPENING = "0" * 64
"""Stands for an id where none is known."""

_HEAD = struct.Struct("<III")
_HASH_BYTES, _SIGNATURE_BYTES = 32, 65
_NONCE = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Opening:
    """`files` are names and sizes, in the order in which they are written. `anchor` is the step of the full version that the
    one to come goes back to by deltas, its own where no delta is in the making; `nonce` tells two attempts at a step apart."""

    run: int
    step: int
    files: tuple[tuple[str, int], ...]
    nonce: str
    anchor: int
    chunk_bytes: int = SHARDCAST_CHUNK_BYTES

    def encode(self) -> bytes:
        return canonical.encode(
            {
                "anchor": self.anchor, "chunk_bytes": self.chunk_bytes,
                "files": [{"name": name, "size": size} for name, size in self.files],
                "nonce": self.nonce, "run": self.run, "step": self.step, "version": VERSION,
            }
        )  # fmt: skip

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(self.encode()).digest()

    @property
    def id(self) -> str:
        return self.digest.hex()

    def outline(self) -> Manifest:
        """A manifest of these files whose chunks have no hashes yet. It is no version's."""
        files = tuple(
            FileEntry(name, size, ("",) * -(-size // self.chunk_bytes)) for name, size in self.files
        )  # in the order of writing: so the chunks that are listed come first
        return Manifest(self.run, self.step, files, self.chunk_bytes)

    @classmethod
    def parse(cls, data: bytes, limits: ManifestLimits, *, chunk_bytes: int = SHARDCAST_CHUNK_BYTES) -> Opening:
        """Reads `encode()`'s bytes, whose signature was checked. Raises Oversized, VersionMismatch or Malformed."""
        value = canonical.decode(data, cap=OPENING_BYTES_MAX, what="opening")
        if not isinstance(value, dict) or type(value.get("version")) is not int:
            raise Malformed("an opening names no version of its form")
        if value["version"] != VERSION:
            raise VersionMismatch(f"the opening has version {value['version']}, this program reads version {VERSION}")
        files = unlisted_files(value, {"anchor": int, "nonce": str, "version": int}, limits, chunk_bytes)
        if not _NONCE.fullmatch(value["nonce"]) or not 0 <= value["anchor"] <= value["step"]:
            raise Malformed("an opening carries a nonce or an anchor that is none")
        return cls(value["run"], value["step"], files, value["nonce"], value["anchor"], chunk_bytes)


@dataclass(frozen=True)
class Trusted:
    """Whose word counts, about which run, and how much of it is taken."""

    run: int
    trainer: ChecksumAddress
    domain: signing.Domain
    limits: ManifestLimits
    chunk_bytes: int = SHARDCAST_CHUNK_BYTES


@dataclass
class ChunkList:
    """An opening and the hashes that are signed so far, in the order of its files. One thread extends it, any may read."""

    opening: Opening
    count: int = 0
    _hashes: bytearray = field(default_factory=bytearray)
    _listed: hashlib._Hash = field(default_factory=hashlib.sha256)  # of all these, as it stands after the last
    _signature: bytes = b""
    _changed: Condition = field(default_factory=Condition)

    @classmethod
    def begun(cls, step: int, told: OpeningAnswer, trusted: Trusted) -> ChunkList:
        """The list that a source's answer begins: nothing of it is parsed before its signature is checked. Raises BadSignature,
        Malformed, Oversized, VersionMismatch."""
        if told.after or not told.count:
            raise Malformed("an opening does not begin with its first chunk")
        digest = hashlib.sha256(told.opening).digest()
        listed = hashlib.sha256(told.hashes).digest()
        message = signing.ListedChunks(trusted.run, step, digest, told.count, listed)
        message.require(told.signature, trusted.domain, trusted.trainer, "opening")
        opening = Opening.parse(told.opening, trusted.limits, chunk_bytes=trusted.chunk_bytes)
        if (opening.run, opening.step) != (trusted.run, step):
            raise Malformed(f"opening is of run {opening.run}, step {opening.step}, not {trusted.run}, {step}")
        begun = cls(opening)
        begun._extend(told.hashes, told.signature)
        return begun

    @cached_property
    def chunks(self) -> int:
        return sum(-(-size // self.opening.chunk_bytes) for _, size in self.opening.files)

    @property
    def is_complete(self) -> bool:
        return self.count == self.chunks

    def hash_of(self, chunk: int) -> str:
        return self._hashes[_HASH_BYTES * chunk : _HASH_BYTES * (chunk + 1)].hex()

    def sign(self, hashes: Sequence[bytes], key: Key, domain: signing.Domain) -> None:
        """Lists these as the next chunks, by the trainer's `key`."""
        listed = self._message(b"".join(hashes))
        self._extend(b"".join(hashes), listed.sign(key, domain))

    def take(self, told: OpeningAnswer, trusted: Trusted) -> int:
        """Extends the list by what a source told, and says by how many chunks. Raises BadSignature, Malformed."""
        if told.opening != self.opening.encode() or told.after > self.count:
            raise Malformed("tells of another opening than was asked for")
        if told.count <= self.count:
            return 0
        fresh = told.hashes[_HASH_BYTES * (self.count - told.after) :]
        message = self._message(fresh)
        message.require(told.signature, trusted.domain, trusted.trainer, "list of chunks")
        self._extend(fresh, told.signature)
        return len(fresh) // _HASH_BYTES

    def wait(self, after: int, seconds: float) -> bool:
        """Whether more chunks than `after` are listed, waiting for that for so long at most."""
        with self._changed:
            return self._changed.wait_for(lambda: self.count > after, seconds)

    def tell(self, of: str, after: int) -> bytes:
        """The body of an answer to one who knows `after` chunks of the opening `of`."""
        with self._changed:
            known = min(after, self.count) if of == self.opening.id else 0
            opening = self.opening.encode()
            head = _HEAD.pack(len(opening), self.count, known)
            return head + opening + bytes(self._hashes[_HASH_BYTES * known :]) + self._signature

    def _message(self, fresh: bytes) -> signing.ListedChunks:
        listed = self._listed.copy()
        listed.update(fresh)
        count = self.count + len(fresh) // _HASH_BYTES
        return signing.ListedChunks(self.opening.run, self.opening.step, self.opening.digest, count, listed.digest())

    def _extend(self, fresh: bytes, signature: bytes) -> None:
        """Of hashes that the trainer signed. Raises Malformed for more than there are chunks."""
        count = self.count + len(fresh) // _HASH_BYTES
        if count > self.chunks:
            raise Malformed(f"lists {count} chunks of an opening that has {self.chunks}")
        with self._changed:
            self._hashes += fresh
            self._listed.update(fresh)
            self.count = count
            self._signature = signature
            self._changed.notify_all()


@dataclass(frozen=True)
class OpeningAnswer:
    """What a source says of an opening, taken apart and not yet believed."""

    opening: bytes
    count: int
    after: int
    hashes: bytes
    signature: bytes

    @classmethod
    def parse(cls, data: bytes) -> OpeningAnswer:
        """Raises Malformed, Oversized."""
        if len(data) < _HEAD.size:
            raise Malformed("what is told of an opening ends within its head")
        length, count, after = _HEAD.unpack_from(data)
        if length > OPENING_BYTES_MAX:
            raise Oversized(f"an opening has {length} bytes, more than {OPENING_BYTES_MAX}")
        if after > count or len(data) != _HEAD.size + length + _HASH_BYTES * (count - after) + _SIGNATURE_BYTES:
            raise Malformed(f"what is told of an opening has {len(data)} bytes, which is not what its head says")
        ends = _HEAD.size + length
        return cls(data[_HEAD.size : ends], count, after, data[ends:-_SIGNATURE_BYTES], data[-_SIGNATURE_BYTES:])


TOLD_BYTES_MAX = MANIFEST_BYTES_MAX
"""Most bytes of an answer: a list takes half of what a manifest's does."""


def opening_target(step: int, of: str, after: int, wait_ms: int) -> str:
    return f"/v/{step}/opening?of={of}&after={after}&wait={wait_ms}"


def opened_file_target(step: int, of: str, name: str) -> str:
    return f"/v/{step}/opened/{of}/files/{name}"


def opened_holding_target(step: int, of: str, after: int, wait_ms: int) -> str:
    return f"/v/{step}/opened/{of}/holding?after={after}&wait={wait_ms}"
