"""Many small objects of past steps in one: on a disk an inode less for each, in a bucket an object less to list and to bring back.

    magic · length of the index (4 bytes) · index, canonical JSON · the members' bytes, one after another

The index names each member with size, time and SHA-256, and a pack's own name is the SHA-256 of its index: so a pack is found out
when it is opened, a member when it is read, and any of them is read by its range alone. A pack is written once, whole, and is durable
before anything that is in it goes from elsewhere (store.py).
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protocol import canonical
from protocol.errors import HashMismatch, Malformed

MEMBERS_MAX = 4096
BYTES_MAX = 64 << 20
"""Of a pack's members together."""
_MAGIC = b"MURMPK1\n"
_HEAD = struct.Struct(f">{len(_MAGIC)}sI")
_INDEX_BYTES_MAX = MEMBERS_MAX * 512
_NAME = re.compile(r"(files|receipts|stored|arrivals)/[0-9A-Za-z]{1,128}(\.json)?")
_FIELDS = ("name", "size", "time", "sha256")

Read = Callable[[int, int], bytes]
"""Bytes of a pack from one place to before another; fewer where it ends sooner."""


@dataclass(frozen=True)
class Member:
    """`name`: kind and name, as "files/…"; `time`: microseconds since the epoch at which it was stored."""

    name: str
    size: int
    time: int
    sha256: str
    start: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Pack:
    name: str
    members: tuple[Member, ...]

    @property
    def holds_files(self) -> bool:
        """Rollout files: these leave one day, all together; what else is packed stays."""
        return self.members[0].name.startswith("files/")

    @property
    def newest(self) -> float:
        """Seconds since the epoch."""
        return max(member.time for member in self.members) / 1e6


def write(partial: Path, sources: Sequence[tuple[str, Path]]) -> Pack:
    """Writes a pack to `partial`, on the disk when this returns. Raises OSError."""
    members = []
    for name, path in sources:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        stat = path.stat()
        members.append(Member(name, stat.st_size, stat.st_mtime_ns // 1000, digest))
    index = canonical.encode({"members": [{name: getattr(one, name) for name in _FIELDS} for one in members]})
    pack = Pack(hashlib.sha256(index).hexdigest(), _placed(members, _HEAD.size + len(index)))
    with partial.open("wb") as sink:
        sink.write(_HEAD.pack(_MAGIC, len(index)) + index)
        for member, (_, path) in zip(pack.members, sources, strict=True):
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() != member.sha256:
                raise OSError(f"{path} changed while it was packed")
            sink.write(data)
        sink.flush()
        os.fsync(sink.fileno())
    return pack


def opened(name: str, read: Read) -> Pack:
    """A pack by its index. Raises Malformed or HashMismatch for what is none, or another."""
    head = read(0, _HEAD.size)
    if len(head) != _HEAD.size:
        raise Malformed("a pack is cut short")
    magic, size = _HEAD.unpack(head)
    if magic != _MAGIC or size > _INDEX_BYTES_MAX:
        raise Malformed("this is no pack")
    index = read(_HEAD.size, _HEAD.size + size)
    if hashlib.sha256(index).hexdigest() != name:
        raise HashMismatch("a pack's index is not the one that its name says")
    try:
        entries = canonical.decode(index, cap=size, what="pack")["members"]
        members = [Member(*(entry[name] for name in _FIELDS)) for entry in entries if set(entry) == set(_FIELDS)]
        if len(members) != len(entries):
            raise Malformed("a pack's index makes no sense")
        placed = _placed(members, _HEAD.size + size)
    except (TypeError, KeyError) as error:
        raise Malformed("a pack's index makes no sense") from error
    if not placed or len(placed) > MEMBERS_MAX or sum(member.size for member in placed) > BYTES_MAX:
        raise Malformed("a pack is empty or too large")
    return Pack(name, placed)


def member_of(member: Member, read: Read) -> bytes:
    """Raises HashMismatch for other bytes than were packed."""
    data = read(member.start, member.start + member.size)
    if hashlib.sha256(data).hexdigest() != member.sha256:
        raise HashMismatch(f"{member.name} is damaged in its pack")
    return data


def from_file(path: Path) -> Read:
    def read(start: int, end: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    return read


def batches(found: Iterable[tuple[str, Path, int]], least: int) -> list[list[tuple[str, Path]]]:
    """(name, path, size) in the order given, as many to a pack as it takes; fewer than `least` wait for more."""
    made: list[list[tuple[str, Path]]] = []
    total = 0
    for name, path, size in found:
        if not made or len(made[-1]) >= MEMBERS_MAX or total + size > BYTES_MAX:
            made.append([])
            total = 0
        made[-1].append((name, path))
        total += size
    return [batch for batch in made if len(batch) >= least]


def _placed(members: Iterable[Member], start: int) -> tuple[Member, ...]:
    """Members with where they begin. Raises TypeError or Malformed for nonsense."""
    placed, names = [], set()
    for member in members:
        if (
            not isinstance(member.name, str) or not _NAME.fullmatch(member.name) or member.name in names
            or not isinstance(member.sha256, str)
            or not all(type(number) is int and 0 <= number < 1 << 53 for number in (member.size, member.time))
        ):  # fmt: skip
            raise Malformed("a pack's index makes no sense")
        names.add(member.name)
        placed.append(Member(member.name, member.size, member.time, member.sha256, start))
        start += member.size
    if len({name.startswith("files/") for name in names}) > 1:
        raise Malformed("a pack holds files or other things, not both")
    return tuple(placed)
