"""Content-addressed files on disk: what is there is complete and hashes to its name.

files/<sha256>                rollout files          receipts/<sha256>.json    verdict receipts
stored/<submission id>.json   storage receipts       arrivals/<sha256>.json    when a receipt came, in block time
vouchers/<address>.json       validators' vouchers   partial/                  uploads under way, removed at start
packs/<sha256>                small ones of past steps, many together (packs.py)
packs.sqlite                  where in them each lies (catalogue.py)

What is in a pack is there as if it lay in its folder; where it lies there as well, that one counts. archive.py is the same with a bucket
behind it.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from protocol.errors import HashMismatch, MurmurationError, Oversized, PreflightError
from trainer.hub import packs
from trainer.hub.catalogue import Packs
from trainer.hub.packs import Member, Pack

log = logging.getLogger("hub")

CATALOGUE = "packs.sqlite"
KINDS = ("files", "receipts", "stored", "arrivals", "vouchers")
_PACKED = (("files",), ("receipts", "stored", "arrivals"))
"""Kinds that are packed, and which with which."""
_SMALL = 1 << 20  # bytes; a larger file gains nothing in a pack
_LEAST = 64  # objects; fewer are no pack yet
_SPARE = 256 << 20  # bytes that stay free on the disk, so that databases and logs can go on


class Store:
    def __init__(self, root: Path, *, is_whole: bool = True) -> None:
        """`is_whole`: a pack that is not in the folder is nowhere."""
        self.root = root
        shutil.rmtree(root / "partial", ignore_errors=True)
        for name in (*KINDS, "packs", "partial"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self.packs = Packs(root / CATALOGUE)
        self._forget_gone(self.packs.names() if is_whole else self.packs.names_of(files=False))
        for path in (root / "packs").iterdir():
            if self.packs.size(path.name) != path.stat().st_size:
                self._open(path)
        self.packs.sort()

    def close(self) -> None:
        self.packs.close()

    def file(self, root: bytes) -> Path:
        return self.root / "files" / root.hex()

    def holds(self, root: bytes) -> bool:
        return self.file(root).exists() or f"files/{root.hex()}" in self.packs

    async def fetch(self, root: bytes) -> Path | None:
        """Where the file lies on this disk, perhaps taken out of a pack; None when there is none."""
        if not self.file(root).exists() and f"files/{root.hex()}" in self.packs:
            await asyncio.to_thread(self._unpack, root)
        return self.file(root) if self.file(root).exists() else None

    async def link(self, root: bytes, *, near: bool) -> str | None:
        """A URL where anybody can read the file for some minutes, so that this machine need not send it; None where there is none.
        `near`: who asks is in this machine's own network."""
        return None

    async def receive(self, root: bytes, parts: AsyncIterator[bytes], *, cap: int) -> int:
        """Stores a file that must hash to `root`; returns its size. Raises Oversized, HashMismatch or PreflightError."""
        self.require_space(cap)
        hashed, size = hashlib.sha256(), 0
        temporary = NamedTemporaryFile(dir=self.root / "partial", delete=False)  # noqa: SIM115  renamed, not closed, on success
        try:
            with temporary as sink:
                async for part in parts:
                    size += len(part)
                    if size > cap:
                        raise Oversized(f"more than {cap} bytes")
                    hashed.update(part)
                    sink.write(part)
                if hashed.digest() != root:
                    raise HashMismatch("the file is not the committed one")
                await asyncio.to_thread(_sync, sink)
            os.replace(temporary.name, self.file(root))
        except OSError as error:
            raise _full(error) from error
        finally:
            Path(temporary.name).unlink(missing_ok=True)
        return size

    def remove_files_before(self, time: float, is_needed: Callable[[bytes], bool] = lambda root: False) -> set[str]:
        """Forgets rollout files that were stored before `time` (seconds since the epoch), but for what is needed; returns their names.

        Receipts stay: they are small, and say what became of the submission.
        """
        removed = set()
        for path in (self.root / "files").iterdir():
            if path.stat().st_mtime < time and not needs(path.name, is_needed):
                path.unlink()
                removed.add(path.name)
        for name in self.packs.files_before(time):
            pack = self.packs.get(name)
            if pack is None:
                continue
            roots = [member.name.removeprefix("files/") for member in pack.members]
            if not any(needs(root, is_needed) for root in roots):
                self._remove_pack(name)
                removed |= set(roots)
        return {
            root for root in removed if f"files/{root}" not in self.packs and not (self.root / "files" / root).exists()
        }

    def put(self, kind: str, name: str, data: bytes) -> None:
        """Writes a small object atomically. Raises PreflightError when the disk refuses."""
        target = self.root / kind / name
        temporary = self.root / "partial" / name
        try:
            with temporary.open("wb") as sink:
                sink.write(data)
                _sync(sink)
            os.replace(temporary, target)
        except OSError as error:
            raise _full(error) from error
        finally:
            temporary.unlink(missing_ok=True)

    def get(self, kind: str, name: str) -> bytes | None:
        """A small object; None when there is none."""
        try:
            return (self.root / kind / name).read_bytes()
        except FileNotFoundError:
            return self._packed(f"{kind}/{name}")

    def note_arrival(self, receipt: bytes, time: int) -> None:
        """Notes when a receipt came (block time); the first time stands."""
        if self.arrival(receipt) is None:
            self.put("arrivals", _named(receipt), b"%d" % time)

    def arrival(self, receipt: bytes) -> int | None:
        text = self.get("arrivals", _named(receipt))
        return int(text) if text is not None and text.isdigit() else None

    def objects(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """(name, bytes) of all small objects of a kind, oldest first."""
        loose = {path.name: path.stat().st_mtime_ns // 1000 for path in (self.root / kind).iterdir()}
        packed = ((name.partition("/")[2], time) for name, time in self.packs.of_kind(kind))
        older = (one for one in packed if one[0] not in loose)
        for name, _ in heapq.merge(older, sorted(loose.items(), key=itemgetter(1)), key=itemgetter(1)):
            data = self.get(kind, name)
            if data is not None:
                yield name, data

    def lost_receipts(self) -> list[str]:
        """SHA-256 of receipts that came and are gone."""
        packed = (name.partition("/")[2] for name, _ in self.packs.of_kind("arrivals"))
        loose = (path.name for path in (self.root / "arrivals").iterdir())
        lost = {
            name for arrived in (packed, loose) for name in arrived
            if not (self.root / "receipts" / name).exists() and f"receipts/{name}" not in self.packs
        }  # fmt: skip
        return sorted(name.partition(".")[0] for name in lost)

    # ---- packs ---------------------------------------------------------------------------------------------------------

    def pack(self, before: float) -> int:
        """Packs small objects that were stored before `before` (seconds since the epoch); returns how many went into packs. What lies there
        and in a pack, after a crash or for a reader, goes."""
        count = 0
        for kinds in _PACKED:
            found = []
            for kind in kinds:
                for path in (self.root / kind).iterdir():
                    stat = path.stat()
                    if stat.st_mtime >= before or stat.st_size > _SMALL:
                        continue
                    if self._is_packed(f"{kind}/{path.name}", path):
                        path.unlink()
                    else:
                        found.append((f"{kind}/{path.name}", path, stat.st_size, stat.st_mtime_ns))
            found.sort(key=lambda one: one[3])  # what was stored together ends together
            for batch in packs.batches((one[:3] for one in found), _LEAST):
                self._pack(batch)
                count += len(batch)
        return count

    def _pack(self, batch: list[tuple[str, Path]]) -> Pack:
        partial = self.root / "partial" / "pack"
        try:
            self.require_space(sum(path.stat().st_size for _, path in batch))
            pack = packs.write(partial, batch)
            os.replace(partial, self.root / "packs" / pack.name)
            _sync_folder(self.root / "packs")
        except OSError as error:
            raise _full(error) from error
        finally:
            partial.unlink(missing_ok=True)
        self.packs.add(pack)
        for member, (_, path) in zip(pack.members, batch, strict=True):
            if path.stat().st_mtime_ns // 1000 == member.time:  # not stored anew meanwhile
                path.unlink()
        return pack

    def _open(self, path: Path) -> None:
        try:
            self.packs.add(packs.opened(path.name, packs.from_file(path)))
        except MurmurationError as error:
            log.error("%s is no pack that can be read: %s", path, error)
            self.packs.remove(path.name)

    def _forget_gone(self, names: Iterable[str]) -> None:
        """Crosses out packs that are not in the folder."""
        for name in names:
            if not (self.root / "packs" / name).exists():
                self.packs.remove(name)

    def _is_packed(self, name: str, path: Path) -> bool:
        found = self.packs.find(name)
        return found is not None and self._packed(name) == path.read_bytes()

    def _packed(self, name: str) -> bytes | None:
        """Bytes of what is in a pack; None where it is in none, or damaged there."""
        trouble: Exception | None = None
        for _ in range(2):  # the pack may leave the folder just now, and be elsewhere
            found = self.packs.find(name)
            if found is None:
                return None
            try:
                return packs.member_of(found[1], self._read(*found))
            except (OSError, HashMismatch) as error:
                trouble = error
        log.error("%s cannot be read: %s", name, trouble)
        return None

    def _read(self, pack: str, member: Member) -> packs.Read:
        """How to read a pack in which a member is wanted."""
        return packs.from_file(self.root / "packs" / pack)

    def _unpack(self, root: bytes) -> None:
        """Takes a file out for who reads it; `pack` puts it back."""
        data = self._packed(f"files/{root.hex()}")
        if data is None or hashlib.sha256(data).digest() != root:
            return
        try:
            with NamedTemporaryFile(dir=self.root / "partial", delete=False) as sink:
                sink.write(data)
            os.replace(sink.name, self.file(root))
        except OSError as error:
            raise _full(error) from error

    def _remove_pack(self, name: str) -> None:
        self.packs.remove(name)
        (self.root / "packs" / name).unlink(missing_ok=True)

    def require_space(self, needed: int) -> None:
        free = shutil.disk_usage(self.root).free
        if free < needed + _SPARE:
            raise PreflightError(
                f"the hub's disk is full: {free >> 20} MiB left", hint="free some space for the hub's store"
            )


def needs(name: str, is_needed: Callable[[bytes], bool]) -> bool:
    """Of a file by its name; one that is named otherwise is none of a submission."""
    try:
        return is_needed(bytes.fromhex(name))
    except ValueError:
        return False


def _named(data: bytes) -> str:
    return f"{hashlib.sha256(data).hexdigest()}.json"


def _sync(sink: Any) -> None:
    sink.flush()
    os.fsync(sink.fileno())


def _sync_folder(folder: Path) -> None:
    """What was renamed into it is there after a power failure as well."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _full(error: OSError) -> PreflightError:
    return PreflightError(f"the hub cannot store files: {error.strerror}", hint="free some space for the hub's store")
