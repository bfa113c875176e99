"""A store whose files end up in a bucket: the folder before it takes what comes and keeps what was asked for lately.

An upload is complete when the folder has it, so a bucket that is away costs no node its grace time; `turn` brings everything
into the bucket as soon as that answers. Rollout files leave the folder when they are in the bucket and it grows beyond its
size, and come back, checked against their root, when somebody asks for one. When small objects have gone into a pack and the bucket has
it, they leave the bucket; of a pack of files that is not in the folder, members are read by their range. Receipts and the other small objects stay in the
folder as well, and are brought back into an empty one: all that a hub needs to go on elsewhere is the bucket and the chain.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from protocol.clock import SYSTEM, Clock
from protocol.errors import ConfigError, MurmurationError, PreflightError, Unavailable
from trainer.hub import packs
from trainer.hub.bucket import Bucket, Object
from trainer.hub.packs import Member, Pack
from trainer.hub.store import KINDS, Store, needs

log = logging.getLogger("hub")

_AT_ONCE = 4  # objects on their way to or from the bucket
_BATCH = 256  # objects of one turn
_FETCH_SECONDS = 15.0  # that a request waits for a file; the fetch itself goes on
_LINK_SECONDS = 5.0  # that a request waits for a signature
_IN_USE_SECONDS = 60.0  # a younger file may just be about to be served
_NAME = re.compile(rf"({'|'.join(KINDS)})/[0-9A-Za-z]{{1,128}}(\.json)?|packs/[0-9a-f]{{64}}")


class ArchivedStore(Store):
    """`turn` and `require_open` belong to one thread; everything else may be called as with Store."""

    def __init__(
        self, root: Path, bucket: Bucket, *, cache_bytes: int, links: bool = True, clock: Clock = SYSTEM
    ) -> None:
        """`links`: readers are led to the bucket. Raises ConfigError for a bucket that refuses; one that is away is opened by a later `turn`."""
        super().__init__(root, is_whole=False)
        self._bucket = bucket
        self._cache_bytes = cache_bytes
        self._links = links
        self._clock = clock
        self._lock = threading.Lock()
        self._fetching: dict[bytes, asyncio.Task[Path | None]] = {}
        self._archived: dict[str, Object] = {}  # rollout files, and packs
        self._waiting: set[str] = set()
        self._moving: Counter[str] = Counter()  # on their way into the folder or the bucket: not to be removed
        self._removing: set[str] = set()  # from the bucket: not to be brought there before that has ended
        self._is_open = False
        try:
            self.require_open()
        except Unavailable as error:
            log.warning("%s; going on without what only the bucket has", error)

    def require_open(self) -> None:
        """Learns what the bucket holds, once, and brings back what the folder lacks. Raises ConfigError or Unavailable."""
        if self._is_open:
            return
        self._bucket.require_writable()
        found = {one.name: one for one in self._bucket.objects() if _NAME.fullmatch(one.name)}
        kept = {name: one for name, one in found.items() if name.startswith("packs/") and self._learn_pack(one)}
        self._forget_gone(self.packs.names() - {name.removeprefix("packs/") for name in kept})
        files = {name: one for name, one in found.items() if name.startswith("files/")}
        self._restore([one for name, one in found.items() if not name.startswith(("files/", "packs/"))])
        with self._lock:
            self._archived |= files | kept
            local = {name for name in self._local() if name not in found and name not in self.packs}
            self._waiting |= local | {name for name in self._local() if name.startswith("vouchers/")}
            self._is_open = True
        for name in kept:  # of a hub that was killed before it came to that
            self._replace(name, among=found.keys())

    @property
    def waiting(self) -> int:
        """Objects that are not in the bucket yet."""
        return len(self._waiting)

    # ---- into the bucket -----------------------------------------------------------------------------------------------

    async def receive(self, root: bytes, parts: AsyncIterator[bytes], *, cap: int) -> int:
        name = f"files/{root.hex()}"
        with self._kept(name):  # the root of an old file may be committed to again
            size = await super().receive(root, parts, cap=cap)
            self._await(name)
        return size

    def put(self, kind: str, name: str, data: bytes) -> None:
        super().put(kind, name, data)
        self._await(f"{kind}/{name}")

    def turn(self) -> bool:
        """Brings what waits into the bucket and says whether more does. What fails goes on waiting: raises Unavailable."""
        with _waited_for():
            self.require_open()
        with self._lock:
            waiting = sorted(
                self._waiting, key=lambda name: not name.startswith("files/")
            )  # files before their receipts
        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            with _waited_for():
                list(pool.map(self._archive, waiting[:_BATCH]))
        finally:
            pool.shutdown(cancel_futures=True)
        if waiting:
            self._shrink(self._cache_bytes)
        return len(waiting) > _BATCH

    def _archive(self, name: str) -> None:
        with self._kept(name):
            with self._lock:
                if name in self._removing:
                    return  # it goes on waiting
                self._waiting.discard(name)  # before it is read: what is written meanwhile waits anew
            path = self.root / name
            try:
                size = path.stat().st_size
                self._bucket.put(name, path)
            except FileNotFoundError:
                return  # removed meanwhile, for good
            except BaseException:
                self._await(name)
                raise
            if name.startswith(("files/", "packs/")):
                with self._lock:
                    self._archived[name] = Object(name, size, self._clock.wall())
        if name.startswith("packs/"):
            self._replace(name)

    @contextmanager
    def _kept(self, name: str) -> Iterator[None]:
        """From now on, `remove_files_before` takes this file for a new one. It may be removing an older one already."""
        with self._lock:
            self._moving[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._moving -= Counter([name])  # drops those that are at 0

    def _await(self, name: str) -> None:
        with self._lock:
            self._waiting.add(name)

    def _pack(self, batch: list[tuple[str, Path]]) -> Pack:
        pack = super()._pack(batch)
        self._await(f"packs/{pack.name}")
        return pack

    def _replace(self, name: str, among: Collection[str] | None = None) -> None:
        """Removes from the bucket what is in a pack that it has, of the objects `among` where these are known."""
        pack = self.packs.get(name.removeprefix("packs/"))
        members = set() if pack is None else {member.name for member in pack.members}
        with self._lock:
            gone = members - self._waiting - self._moving.keys()
            gone = gone if among is None else gone & set(among)
            self._removing |= gone
        try:
            self._bucket.delete(sorted(gone))
            with self._lock:
                for member in gone:
                    self._archived.pop(member, None)
        finally:
            with self._lock:
                self._removing -= gone

    # ---- out of the bucket ---------------------------------------------------------------------------------------------

    def holds(self, root: bytes) -> bool:
        return super().holds(root) or f"files/{root.hex()}" in self._archived

    async def fetch(self, root: bytes) -> Path | None:
        """Brings the file into the folder first, once for all who ask. Raises Unavailable while that takes too long."""
        try:
            with _waited_for():
                path = await asyncio.wait_for(super().fetch(root), _FETCH_SECONDS)
        except TimeoutError:
            raise Unavailable("the file is still on its way from the bucket") from None
        if path is None and not self._is_open:
            raise Unavailable("the bucket has not been reached yet")
        if path is not None or not self.holds(root):
            return path
        task = self._fetching.get(root)
        if task is None:
            task = self._fetching[root] = asyncio.create_task(asyncio.to_thread(self._bring, root))
            task.add_done_callback(lambda done: (self._fetching.pop(root), done.cancelled() or done.exception()))
        try:
            with _waited_for():
                return await asyncio.wait_for(asyncio.shield(task), _FETCH_SECONDS)
        except TimeoutError:
            raise Unavailable("the file is still on its way from the bucket") from None

    async def link(self, root: bytes, *, near: bool) -> str | None:
        """Only of what the bucket has; one without encryption is named to neighbours only."""
        name = f"files/{root.hex()}"
        if not self._links or name not in self._archived or not (near or self._bucket.is_encrypted):
            return None
        try:
            return await asyncio.wait_for(asyncio.to_thread(self._bucket.link, name), _LINK_SECONDS)
        except (
            TimeoutError,
            MurmurationError,
        ) as error:  # credentials of the machine's role are asked for now and then
            log.info("no signed URL for %s: %s", name, error)
            return None

    def _bring(self, root: bytes) -> Path | None:
        one = self._archived.get(f"files/{root.hex()}")
        if one is None:
            return None
        self.require_space(one.size)
        partial = self.root / "partial" / f"from-bucket-{root.hex()}"
        try:
            if self._bucket.get(one, partial) and _digest_of(partial) == root:
                os.replace(partial, self.file(root))
                return self.file(root)
        finally:
            partial.unlink(missing_ok=True)
        log.error("%s/%s is lost or damaged; it is not served any more", self._bucket.location, one.name)
        with self._lock:
            self._archived.pop(one.name, None)
        return None

    def _learn_pack(self, one: Object) -> bool:
        """Opens a pack of the bucket that the folder lacks; one of receipts comes back whole. Whether it is one."""
        name = one.name.removeprefix("packs/")
        if self.packs.size(name) is not None:
            return True
        try:
            pack = packs.opened(name, lambda start, end: self._bucket.read(one.name, start, end) or b"")
        except MurmurationError as error:
            if isinstance(error, Unavailable | ConfigError):
                raise
            log.error("%s/%s is no pack that can be read: %s", self._bucket.location, one.name, error)
            return False
        (self.root / one.name).unlink(missing_ok=True)  # one that could not be read
        if not pack.holds_files:
            self._restore_one(one)
        self.packs.add(pack)
        return True

    def _read(self, pack: str, member: Member) -> packs.Read:
        if (self.root / "packs" / pack).exists():
            return super()._read(pack, member)
        return lambda start, end: self._bucket.read(f"packs/{pack}", start, end) or b""

    def _remove_pack(self, pack: str) -> None:
        name = f"packs/{pack}"
        with self._lock:
            if name in self._moving:
                return  # the next time
            self._waiting.discard(name)
        with _waited_for():
            self._bucket.delete([name])
        with self._lock:
            self._archived.pop(name, None)
        super()._remove_pack(pack)

    def _restore(self, small: list[Object]) -> None:
        """Brings small objects back that the folder lacks, with their times: their order is what counts."""
        missing = [one for one in small if one.name not in self.packs and not (self.root / one.name).exists()]
        if missing:
            log.info("bringing %d receipts back from %s", len(missing), self._bucket.location)
        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            list(pool.map(self._restore_one, missing))
        finally:
            pool.shutdown(cancel_futures=True)

    def _restore_one(self, one: Object) -> None:
        partial = self.root / "partial" / one.name.replace("/", "-")
        if self._bucket.get(one, partial):
            os.utime(partial, (one.modified, one.modified))
            os.replace(partial, self.root / one.name)

    # ---- room ----------------------------------------------------------------------------------------------------------

    def remove_files_before(self, time: float, is_needed: Callable[[bytes], bool] = lambda root: False) -> set[str]:
        removed = super().remove_files_before(time, is_needed)
        with self._lock:
            files = {name: one for name, one in self._archived.items() if name.startswith("files/")}
            aged = [name for name, one in files.items() if one.modified < time]
        kept = {
            name for name in aged if needs(name.removeprefix("files/"), is_needed)
        }  # asks the book, perhaps the chain
        with self._lock:
            new = self._waiting | self._moving.keys() | self._removing
            old = {
                name: one
                for name in aged
                if (one := self._archived.get(name)) and one.modified < time and name not in new | kept
            }
            self._removing |= old.keys()
            for name in old:
                del self._archived[name]
                (self.root / name).unlink(missing_ok=True)  # what is received from now on waits for the bucket
        try:
            with _waited_for():
                self._bucket.delete(list(old))
        except BaseException:
            with self._lock:
                self._archived |= old
            raise
        finally:
            with self._lock:
                self._removing -= old.keys()
        return removed | {name.removeprefix("files/") for name in old}

    def require_space(self, needed: int) -> None:
        try:
            super().require_space(needed)
        except PreflightError:
            self._shrink(0)
            super().require_space(needed)

    def _shrink(self, most: int) -> None:
        """Removes rollout files that are in the bucket from the folder, oldest first, until they take `most` bytes."""
        with self._lock:
            safe = self._archived.keys() - self._waiting - self._moving.keys()
            safe -= {f"packs/{name}" for name in self.packs.names_of(files=False)}
        kept = [(path.stat(), path) for path in (self.root / name for name in safe) if path.exists()]
        total = sum(stat.st_size for stat, _ in kept)
        for stat, path in sorted(kept, key=lambda one: one[0].st_mtime):
            if total <= most or stat.st_mtime > self._clock.wall() - _IN_USE_SECONDS:
                return
            path.unlink(missing_ok=True)
            total -= stat.st_size

    def _local(self) -> list[str]:
        return [f"{kind}/{path.name}" for kind in (*KINDS, "packs") for path in (self.root / kind).iterdir()]


@contextmanager
def _waited_for() -> Iterator[None]:
    """A bucket that refuses what it granted when the hub started is waited for: nodes must not pay for what changed."""
    try:
        yield
    except ConfigError as error:
        raise Unavailable(str(error), hint=error.hint) from error


def _digest_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
