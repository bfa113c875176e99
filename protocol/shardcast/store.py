"""Versions of the weights on disk: complete ones are visible, drafts lie apart, old ones are retired.

    <root>/complete/<step>/            the files and, hidden beside them, the signed manifest and what makes them out of
                                       the version before (.delta/), where that was fetched or published
    <root>/drafts/<step>-<label>/      what is still being fetched or copied; survives a crash
    <root>/retired/                    what is being removed

A version becomes visible by one rename, after everything in it has reached the disk. One process owns a store: it holds
a lock on the folder, because leases and drafts are known to that process only. Nothing here looks into the files.

What is fetched may be shown while it grows: a server asks for it beside the complete versions.

Every failure of the disk is a PreflightError that names it: this machine lacks something, no peer is at fault. After one by which
it may have lost what it had taken (DiskFailed) the draft is thrown away as a whole: what is read back comes from memory, and proves nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, Lock
from typing import Final, Protocol

from protocol.errors import (
    DiskFailed,
    DiskFull,
    IntegrityError,
    LockHeld,
    PreflightError,
    ProtocolViolation,
    UsageError,
)
from protocol.shardcast.holding import Holding

MANIFEST_NAME = ".manifest.json"  # hidden: no file of a version may start with a dot
DELTA_FOLDER = ".delta"
RESERVE_BYTES = 1 << 30  # left free for everything else that this machine does

_MORE_SPACE: Final = "free space or take a larger disk; how many versions are kept follows from the run's spec.max_lag: max(5, max_lag + 2)"
_STEP = re.compile(r"0|[1-9][0-9]*", re.ASCII)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FAILED = (
    errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EUCLEAN, errno.ETIMEDOUT, errno.ENOTCONN,
)  # fmt: skip
"""By which a disk, a network's too, says that it may have lost what it had taken. Everything else says nothing against what was written before,
and strangers can bring some of it about: with all files open that this process may open, a relay must not lose what it has fetched."""
_NO_SUCH_SYNC = (errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF)
"""What file systems answer that cannot sync a folder."""


def free_space(folder: Path) -> int:
    return shutil.disk_usage(folder).free


@contextmanager
def disk_errors(where: Path, *, is_sync: bool = False) -> Iterator[None]:
    """Turns what the disk refuses into a PreflightError: into DiskFailed where it may have lost what it had taken, and always where a sync
    fails, for want of space too."""
    try:
        yield
    except OSError as error:
        kind = DiskFailed if is_sync or error.errno in _FAILED else PreflightError
        if error.errno in _FULL:
            raise (DiskFailed if is_sync else DiskFull)(f"the disk of {where} is full", hint=_MORE_SPACE) from error
        raise kind(f"cannot use {error.filename or where}: {error.strerror}") from error


def version_folder(root: Path, step: int) -> Path:
    """Where a store at `root` keeps a complete version, whoever holds the store; it may be gone at any time."""
    return root / "complete" / str(step)


def unneeded(root: Path) -> list[Path]:
    """What no fetch goes on with, in a store that nobody holds: drafts of versions older than the newest that is whole, and what was being
    thrown away. The next fetch would remove it."""
    whole = [int(path.name) for path in (root / "complete").glob("*") if _STEP.fullmatch(path.name)]
    drafts = [path for path in (root / "drafts").glob("*") if _STEP.fullmatch(path.name.partition("-")[0])]
    old = [path for path in drafts if int(path.name.partition("-")[0]) < max(whole, default=0)]
    return [*old, *(root / "retired").glob("*")]


class Growing(Protocol):
    """A version whose verified chunks may be read before it is complete."""

    @property
    def signed(self) -> bytes:
        """Its signed manifest, in the wire form."""

    @property
    def has_delta(self) -> bool:
        """Whether what makes it out of its base is here, or on its way."""

    def open_range(self, name: str, first: int, last: int) -> int | None:
        """A descriptor to read these bytes of a file by, of .delta/ too, if all of them are there. The caller closes it."""

    def holding(self, after: int, seconds: float) -> Holding:
        """What is there, once that is of a later revision than `after` or so many seconds have passed."""

    def delta_holding(self, after: int, seconds: float) -> Holding | None:
        """The same of its delta's chunks; None where there is no delta, and will be none."""


class StillWritten(Protocol):
    """A version that its trainer is still writing, as far as it is here (protocol/shardcast/opening.py)."""

    @property
    def id(self) -> str: ...

    def has_news(self, of: str, after: int, seconds: float) -> bool:
        """Whether there is any for one who knows `after` chunks of `of`, within so many seconds."""

    def tell(self, of: str, after: int) -> bytes:
        """The trainer's signed word on it, without what such a one knows."""

    def size_of(self, name: str) -> int | None:
        """Bytes of a file once it is whole; None if it has none of this name."""

    def open_range(self, name: str, first: int, last: int) -> int | None:
        """As of `Growing`."""

    def holding(self, after: int, seconds: float) -> Holding:
        """As of `Growing`."""


class VersionStore:
    """The newest `keep` versions under `root`; one that is leased or wanted stays as long as it is, whatever its age, and one of the
    `pinned` steps for good.

    `reserve` bytes of the disk are never touched. `free_space` tells the free bytes of the disk that holds a folder.
    """

    def __init__(
        self,
        root: Path,
        keep: int,
        *,
        pinned: Iterable[int] = (),
        reserve: int = RESERVE_BYTES,
        free_space: Callable[[Path], int] = free_space,
    ) -> None:
        if keep < 1:
            raise UsageError("a store keeps at least one version")
        self.root, self._keep, self._reserve, self._free_space = root, keep, reserve, free_space
        self._complete, self._drafts, self._retired = (root / name for name in ("complete", "drafts", "retired"))
        self._pinned = frozenset(pinned)
        self._mutex = Lock()
        self._leases: Counter[int] = Counter()
        self._wanted: frozenset[int] = frozenset()
        self._drafting: set[int] = set()
        self._spoilt: set[Path] = set()  # drafts that are to be thrown away, and could not be yet
        self._growing: dict[int, Growing] = {}
        self._opened: dict[int, StillWritten] = {}
        self._appeared = Condition()  # a version began to grow, or is complete
        with disk_errors(root):
            for folder in (self._complete, self._drafts, self._retired):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise LockHeld(f"another process uses {root}", hint="give each process a folder of its own") from error
        try:
            self._sweep()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._lock)

    def __enter__(self) -> VersionStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- reading

    def steps(self) -> tuple[int, ...]:
        """Complete versions, oldest first."""
        with disk_errors(self._complete):
            return tuple(sorted(int(name) for name in os.listdir(self._complete) if _STEP.fullmatch(name)))

    def holds(self, step: int) -> bool:
        return self._path(step).is_dir()

    def folder(self, step: int) -> Path:
        """Where a complete version lies. Only a lease keeps it there. Raises PreflightError if it is not held."""
        if not self.holds(step):
            raise PreflightError(f"version {step} of the weights is not on this machine", hint="fetch it first")
        return self._path(step)

    def manifest(self, step: int) -> bytes:
        """The signed manifest of a complete version, in its wire form."""
        with disk_errors(self._path(step)):
            return (self.folder(step) / MANIFEST_NAME).read_bytes()

    def open_file(self, step: int, name: str) -> int | None:
        """A descriptor to read one file of a complete version; None if there is no such file. The caller closes it."""
        try:
            return os.open(self._path(step) / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None

    def has_delta(self, step: int) -> bool:
        """Whether a complete version is here with what makes it out of its base."""
        return (self._path(step) / DELTA_FOLDER).is_dir()

    def growing(self, step: int) -> Growing | None:
        """A version that is being fetched and shown meanwhile."""
        with self._appeared:
            return self._growing.get(step)

    def wait_for(self, step: int, seconds: float) -> bool:
        """Waits until a version is complete or grows, or a newer one does, for so many seconds at most; whether there is any of it."""
        with self._appeared:
            self._appeared.wait_for(lambda: step in self._growing or self.holds(step) or self.newest() > step, seconds)
            return step in self._growing or self.holds(step)

    def newest(self) -> int:
        """The newest step that is complete or grows; -1 if there is none."""
        with self._appeared:
            return max([-1, *self._growing, *self.steps()])

    @contextmanager
    def show(self, step: int, growing: Growing) -> Iterator[None]:
        """Lets servers see a version that is being fetched, until the block ends."""
        with self._appeared:
            self._growing[step] = growing
            self._appeared.notify_all()
        try:
            yield
        finally:
            with self._appeared:
                del self._growing[step]

    def opened(self, step: int) -> StillWritten | None:
        """A version that its trainer is still writing."""
        with self._appeared:
            return self._opened.get(step)

    def wait_for_opened(self, step: int, seconds: float) -> StillWritten | None:
        """As `opened`, after waiting for it for so many seconds at most; not once the version is here."""
        with self._appeared:
            self._appeared.wait_for(lambda: step in self._opened or self.newest() >= step, seconds)
            return self._opened.get(step)

    def show_opened(self, step: int, opened: StillWritten) -> None:
        """Lets servers see it, in place of another of its number, until it is hidden."""
        with self._appeared:
            if self._opened.get(step) is not opened:
                self._opened[step] = opened
                self._appeared.notify_all()

    def hide_opened(self, step: int, opened: StillWritten) -> None:
        with self._appeared:
            if self._opened.get(step) is opened:
                del self._opened[step]

    @contextmanager
    def lease(self, step: int) -> Iterator[Path]:
        """The folder of a complete version, which is not retired before the block ends."""
        with self._mutex:
            folder = self.folder(step)
            self._leases[step] += 1
        try:
            yield folder
        finally:
            with self._mutex:
                self._leases[step] -= 1
                self._leases += Counter()  # drops what nobody holds any more
            self.retire()

    def want(self, steps: Iterable[int]) -> None:
        """From now on, versions of these steps are not retired either, those of an earlier call are; until the store is closed."""
        wanted = frozenset(steps)
        if wanted != self._wanted:
            self._wanted = wanted
            self.retire()

    # ---- writing

    @contextmanager
    def draft(self, step: int, label: str, size: int, *, resumes: bool = True) -> Iterator[Path]:
        """A folder apart in which a version of `size` bytes is put together, until `commit` makes it visible.

        The same step and label give the same folder again after a crash. When the block fails, a draft that can never
        become right is removed, and so is every one after DiskFailed; one that was merely not finished stays, one that `resumes` for
        want of space too: what verified in it is not fetched again. An abandoned draft of an older step is removed.

        Raises PreflightError where space is missing or the step is older than everything kept, LockHeld while another
        thread works on the same step, DiskFailed while the disk does not let go of a draft that is to be thrown away.
        """
        folder = self._drafts / f"{step}-{label}"
        with self._mutex:
            if step in self._drafting:
                raise LockHeld(f"version {step} is being written by another thread", hint="wait for it")
            self._drafting.add(step)
        try:
            if folder in self._spoilt:
                self._throw_away(folder)
            with disk_errors(folder):
                self._require_young(step)
                self._drop_abandoned_drafts(step, folder)
                self.retire()
                folder.mkdir(exist_ok=True)
                self._require_space(folder, size)
            yield folder
        except DiskFailed:
            with suppress(PreflightError):  # then it is tried again before anybody works on it
                self._throw_away(folder)
            raise
        except (PreflightError, IntegrityError, ProtocolViolation) as error:
            if not (resumes and isinstance(error, PreflightError)):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            with self._mutex:
                self._drafting.discard(step)

    def adopt(self, step: int, label: str, by: str) -> bool:
        """What was put together under one label is what another draft of the step begins with; whether there was any."""
        source, target = (self._drafts / f"{step}-{each}" for each in (label, by))
        with self._mutex, disk_errors(source):
            if source.is_dir() and source not in self._spoilt and not target.exists():
                source.rename(target)
                return True
        return False

    def drop_draft(self, step: int, label: str) -> None:
        """Forgets a draft that nobody works on."""
        shutil.rmtree(self._drafts / f"{step}-{label}", ignore_errors=True)

    def begin(self, draft: Path, manifest: bytes) -> None:
        """Keeps the signed manifest in a draft, for the attempt that resumes it."""
        with disk_errors(draft):
            (draft / MANIFEST_NAME).write_bytes(manifest)

    def begun(self, step: int, label: str) -> bytes | None:
        """What `begin` was given for this draft, or what a crash left of it; None if there is none."""
        try:
            return (self._drafts / f"{step}-{label}" / MANIFEST_NAME).read_bytes()
        except OSError:
            return None

    def commit(self, step: int, draft: Path, manifest: bytes) -> Path:
        """Makes a finished draft visible with its signed manifest, retires what is now too old, returns its folder."""
        with disk_errors(draft):
            (draft / MANIFEST_NAME).write_bytes(manifest)
            for path in (*draft.rglob("*"), draft):
                _sync(path)
            with self._mutex:
                if self.holds(step):
                    raise IntegrityError(f"version {step} is there already; what was published never changes")
                draft.rename(self._path(step))
            _sync(self._complete)
        with self._appeared:
            self._appeared.notify_all()
        self.retire()
        return self._path(step)

    def discard(self, step: int) -> None:
        """Removes a complete version. Raises LockHeld while it is leased."""
        with self._mutex:
            if self._leases[step]:
                raise LockHeld(f"version {step} is in use", hint="it can be replaced when its user has let go")
            gone = self._set_aside(step)
        shutil.rmtree(gone, ignore_errors=True)

    def retire(self) -> None:
        """Removes all complete versions but the newest `keep`, the leased, the wanted and the pinned."""
        with self._mutex, disk_errors(self._complete):
            stay = self._wanted | self._pinned
            old = [s for s in self.steps()[: -self._keep] if not self._leases[s] and s not in stay]
            gone = [self._set_aside(step) for step in old]
        for folder in gone:
            shutil.rmtree(folder, ignore_errors=True)

    # ---- inside

    def _path(self, step: int) -> Path:
        return version_folder(self.root, step)

    def _set_aside(self, step: int) -> Path:
        """Takes a version out of sight at once; removing its files takes longer than a lock should be held."""
        aside = self._retired / f"{step}-{os.urandom(8).hex()}"
        self._path(step).rename(aside)
        return aside

    def _throw_away(self, draft: Path) -> None:
        """Takes a draft out of everybody's reach in one step, for good: a crash leaves all of it or nothing. Raises PreflightError."""
        self._spoilt.add(draft)
        aside = self._retired / f"{draft.name}-{os.urandom(8).hex()}"
        with disk_errors(draft), suppress(FileNotFoundError):  # it was being made, or had just become visible
            draft.rename(aside)
        self._spoilt.discard(draft)
        with suppress(
            OSError, PreflightError
        ):  # where the system ends before that lasts, so does its memory of the draft
            for folder in (self._drafts, self._retired):
                _sync(folder)
        shutil.rmtree(aside, ignore_errors=True)

    def _sweep(self) -> None:
        """Ends what a crash interrupted. Old versions stay until the next one comes: whoever wants them has yet to say so."""
        with disk_errors(self._retired):
            for folder in self._retired.iterdir():
                shutil.rmtree(folder, ignore_errors=True)

    def _require_young(self, step: int) -> None:
        kept = self.steps()[-self._keep :]
        if len(kept) == self._keep and step < kept[0] and step not in self._pinned:
            raise PreflightError(
                f"version {step} is older than the {self._keep} kept here ({kept[0]} to {kept[-1]})",
                hint="keep more versions",
            )

    def _drop_abandoned_drafts(self, step: int, folder: Path) -> None:
        """Steps go upwards: a draft older than the one begun now would only fill the disk, and so would its twin."""
        with self._mutex:
            for other in self._drafts.iterdir():
                owner = other.name.partition("-")[0]
                is_older = _STEP.fullmatch(owner) and int(owner) < step and int(owner) not in self._drafting
                if is_older or (owner == str(step) and other != folder):
                    shutil.rmtree(other, ignore_errors=True)

    def _require_space(self, folder: Path, size: int) -> None:
        present = sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))
        wanted = max(0, size - present) + self._reserve
        free = self._free_space(self.root)
        if free < wanted:
            raise DiskFull(
                f"{self.root} has {free} bytes free, but this version needs {wanted}, {self._reserve} of them in reserve",
                hint=_MORE_SPACE,
            )


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        with disk_errors(path, is_sync=True):
            try:
                os.fsync(fd)
            except OSError as error:
                if not (error.errno in _NO_SUCH_SYNC and path.is_dir()):
                    raise
    finally:
        os.close(fd)
