"""The trainer's end: takes a folder of weights, signs what it is, and shows it in the store that a server serves.

With a version goes what makes it out of the one before, where that is here and the difference is small. Every version can be
had whole as well; an anchor, now and then, can be had only so, which bounds how far back anybody looks.

It says nothing to the chain or the swarm; `Runs.publish` and gossip follow, with the digest of the manifest given back.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from protocol import signing
from protocol.calibration_notice import CalibrationNotice
from protocol.constants import MANIFEST_BYTES_MAX, SHARDCAST_CHUNK_BYTES
from protocol.errors import IntegrityError, MurmurationError, ProtocolViolation, UsageError, VersionMismatch
from protocol.identity import Key
from protocol.shardcast.manifest import (
    Base,
    Expected,
    FileEntry,
    Manifest,
    ManifestLimits,
    describe_files,
    digest_of,
    publishable,
    sign,
    stored,
)
from protocol.shardcast.opening import Opening
from protocol.shardcast.store import DELTA_FOLDER, MANIFEST_NAME, VersionStore, disk_errors
from protocol.shardcast.stream import VersionStream

log = logging.getLogger("weights")

_DELTA_SHARE = 0.5  # of a version's bytes: a larger delta saves too little for what it costs to apply


class Origin:
    """Publishes versions of `run` into `store`, signed by the run's trainer `key`; every `anchor_every` of them without a delta."""

    def __init__(
        self,
        store: VersionStore,
        key: Key,
        domain: signing.Domain,
        run: int,
        *,
        anchor_every: int,
        chunk_bytes: int = SHARDCAST_CHUNK_BYTES,
    ) -> None:
        self.store = store
        self._key, self._domain, self._run, self._chunk_bytes = key, domain, run, chunk_bytes
        self._anchor_every = anchor_every
        self._stream: VersionStream | None = None
        self._deltas_are_small = True
        self._bases: dict[int, int] = {}  # anchor of the version that a delta would start from, by its step

    def follow(self, folder: Path, step: int, files: Sequence[tuple[str, int]], attempt: str) -> bool:
        """Shows as much of version `step` as somebody has written into `folder` so far, from front to back in this order of files and with
        these sizes; whether that was anything new. To be called again and again, until `publish` or `forget`; 32 hex digits tell one
        `attempt` to write the version from another. What is shown so is no version: nobody loads it before the chain names
        its manifest.

        Raises PreflightError for a disk that fails.
        """
        opening = Opening(self._run, step, tuple(files), attempt, self._anchor(step), self._chunk_bytes)
        if self._stream is None or self._stream.opening != opening:
            self.forget()
            self._stream = VersionStream(self.store, folder, opening, self._key, self._domain)
        with disk_errors(folder):
            return self._stream.advance()

    def forget_unpublished(self) -> None:
        """Whoever wrote what is followed has given it up."""
        if self._stream is not None and not self.store.holds(self._stream.step):
            self.forget()

    def forget(self) -> None:
        """What is followed is shown no longer."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def publish(
        self,
        folder: Path,
        step: int,
        *,
        link: bool = False,
        remember: bool = False,
        notice: CalibrationNotice | None = None,
    ) -> Manifest:
        """Makes the files of `folder` visible as version `step`; `digest` of the result belongs on the chain.

        The same bytes again change nothing; other bytes for a published step are an IntegrityError, for the chain may
        know the first. The files are copied, or with `link` hard-linked where that is possible, for a caller that never
        writes to them again and has synced them: what a disk has lost of them nothing here would notice. With `remember` the
        signed manifest is left in `folder`, hidden: a store that was lost may lack the base of a delta, and could not give the
        same digest again. `notice` goes into the manifest of a version that is new.
        """
        if self.store.holds(step):
            manifest = self._require_same(folder, step)
        else:
            manifest = self._take(folder, step, link, notice)
        if remember:
            with disk_errors(folder):
                (folder / MANIFEST_NAME).write_bytes(self.store.manifest(step))
        return manifest

    def _take(self, folder: Path, step: int, link: bool, notice: CalibrationNotice | None) -> Manifest:
        paths = publishable(folder)
        with disk_errors(folder):
            size = sum(path.stat().st_size for path in paths)
            link = link and all(path.stat().st_dev == self.store.root.stat().st_dev for path in paths)
        with self.store.draft(step, "publishing", 0 if link else size, resumes=False) as draft:
            with disk_errors(draft):
                for left in draft.iterdir():  # of an attempt that a crash ended
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
                for path in paths:
                    (os.link if link else shutil.copyfile)(path.resolve(), draft / path.name)
            manifest = self._with_delta(replace(self._described(draft, step), notice=notice), draft)
            signed = sign(manifest, self._key, self._domain)
            if (before := self._remembered(folder, manifest)) is not None and before != signed:
                shutil.rmtree(draft / DELTA_FOLDER, ignore_errors=True)
                signed, manifest = before, stored(before, chunk_bytes=self._chunk_bytes)
            if len(signed) > MANIFEST_BYTES_MAX:
                raise UsageError(f"the manifest of {folder} is larger than {MANIFEST_BYTES_MAX} bytes")
            self.store.commit(step, draft, signed)
        return manifest

    def _described(self, draft: Path, step: int) -> Manifest:
        """The manifest of what is in `draft`; what was hashed while it was written is not hashed again."""
        known, paths = {}, publishable(draft)
        if self._stream is not None and self._stream.step == step:
            with disk_errors(draft):
                while self._stream.advance():
                    pass
                known = self._stream.entries(draft)
            if len(known) < len(paths):
                self.forget()  # it became another version
        rest = describe_files([path for path in paths if path.name not in known], self._chunk_bytes)
        entries = known | {entry.name: entry for entry in rest}
        return Manifest(self._run, step, tuple(entries[path.name] for path in paths), self._chunk_bytes)

    def _anchor(self, step: int) -> int:
        """Where the chain of deltas to a version to come will begin, as far as one can tell."""
        with suppress(MurmurationError):
            if self._anchor_every > 1 and self._deltas_are_small and self.store.holds(step - 1):
                if step - 1 not in self._bases:  # asked for many times a second, and a manifest may have 100,000 hashes
                    base = stored(self.store.manifest(step - 1), chunk_bytes=self._chunk_bytes)
                    self._bases = {step - 1: base.anchor}
                anchor = self._bases[step - 1]
                return step if step - anchor >= self._anchor_every else anchor
        return step

    def _with_delta(self, manifest: Manifest, draft: Path) -> Manifest:
        """The same version, with a delta from the one before put into `draft` where that is worth while."""
        if self._anchor_every == 1 or not self.store.holds(manifest.step - 1):
            return manifest
        deltas = draft / DELTA_FOLDER
        try:
            with self.store.lease(manifest.step - 1) as folder:
                signed = self.store.manifest(manifest.step - 1)
                base = stored(signed, chunk_bytes=self._chunk_bytes)
                is_anchor = manifest.step - base.anchor >= self._anchor_every
                self._deltas_are_small = is_anchor or _write_delta(base, folder, manifest, draft, deltas)
                if not is_anchor and self._deltas_are_small:
                    of = Base(base.step, digest_of(signed).hex(), base.anchor)
                    return replace(manifest, base=of, delta=_described(deltas, self._chunk_bytes))
        except (MurmurationError, OSError) as error:  # it must keep no version from anybody
            log.warning("version %d goes without a delta: %s", manifest.step, error)
        shutil.rmtree(deltas, ignore_errors=True)
        return manifest

    def _remembered(self, folder: Path, manifest: Manifest) -> bytes | None:
        """What was signed for these very files before, if it is there."""
        with suppress(OSError, ProtocolViolation, VersionMismatch):
            signed = (folder / MANIFEST_NAME).read_bytes()
            expected = Expected(
                self._run, manifest.step, digest_of(signed), self._key.address, self._domain, ManifestLimits(), self._chunk_bytes
            )  # fmt: skip
            if expected.open(signed).files == manifest.files:
                return signed
        return None

    def _require_same(self, folder: Path, step: int) -> Manifest:
        manifest = stored(self.store.manifest(step), chunk_bytes=self._chunk_bytes)
        known, paths = {file.name: file for file in manifest.files}, publishable(folder)
        with self.store.lease(
            step
        ) as held:  # a link to what is published needs no look: after a restart there are several versions
            linked = {path.name for path in paths if path.name in known and _is_same_file(path, held / path.name)}
        others = describe_files([path for path in paths if path.name not in linked], self._chunk_bytes)
        if known.keys() != {path.name for path in paths} or any(known[file.name] != file for file in others):
            raise IntegrityError(
                f"version {step} is published with other bytes than {folder} holds",
                hint="publish the new weights as the next step",
            )
        return manifest


def _is_same_file(one: Path, other: Path) -> bool:
    with disk_errors(other):
        return one.samefile(other)


def _write_delta(base: Manifest, folder: Path, manifest: Manifest, draft: Path, deltas: Path) -> bool:
    """Writes what makes the files of `draft` out of those of `folder`; False once it is too large to be of use."""
    from protocol.shardcast.delta import encode  # numpy is imported where deltas are used

    deltas.mkdir()
    known = {file.name: file for file in base.files}
    left = int(manifest.total_bytes * _DELTA_SHARE)
    for file in manifest.files:
        if known.get(file.name) != file:
            before = folder / file.name if file.name in known else None
            if not encode(before, draft / file.name, deltas / file.name, most=left):
                return False
            left -= (deltas / file.name).stat().st_size
    return True


def _described(deltas: Path, chunk_bytes: int) -> tuple[FileEntry, ...]:
    return describe_files(sorted(deltas.iterdir(), key=lambda path: path.name), chunk_bytes)
