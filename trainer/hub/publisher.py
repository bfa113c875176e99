"""Publishing: hashes and signs what the trainer puts into its outbox, serves it, and puts its hash on chain, in order.

What the trainer has written of the next version is hashed, signed and served while it writes the rest. A version is served before the chain knows it, so that whoever sees the event can fetch at once. A step that the chain knows
already must have the very same manifest; anything else is an IntegrityError, never a second version of a step.

The beacon of a version is made of the hash of the block after its publication. It is drawn once there is one more, unless a submission has drawn
it by then; where everybody missed 256 blocks, drawing names another block first (contracts/src/interfaces/IWeights.sol).

Where the run takes new calibrations, a new version must go on from what the newest one says of them, which others have read. Whoever has lost its own notes learns that from
the newest version's manifest, which the chain has the digest of; until it is found nothing new is published.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from protocol import metrics
from protocol.calibration_notice import CalibrationNotice
from protocol.chain import Sender
from protocol.chain.sync import Book
from protocol.errors import (  # fmt: skip
    FeeTooHigh,
    InsufficientFunds,
    IntegrityError,
    Malformed,
    MurmurationError,
    ProtocolViolation,
    RpcUnavailable,
    TransactionReverted,
    Unavailable,
)
from protocol.gossip.messages import HEAD, MANIFEST
from protocol.model_files import require_nothing_else
from protocol.notice_book import FILE
from protocol.shardcast.manifest import Manifest, digest_of, stored
from protocol.shardcast.origin import Origin
from protocol.shardcast.store import MANIFEST_NAME, version_folder
from trainer.hub.outbox import Outbox
from trainer.hub.recalibration import Recalibrations

log = logging.getLogger("hub")

_PUBLISHED = metrics.gauge("murmur_hub_published_step", "Newest step that was served and put on chain.")


class Publisher:
    def __init__(
        self, sender: Sender, book: Book, origin: Origin, outbox: Outbox, kept: int,
        tell: Callable[[str, int, bytes], object] = lambda kind, step, digest: None,
        recalibrations: Recalibrations | None = None,
        fetch: Callable[[int, bytes], Manifest] | None = None, *, has_workers: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """`has_workers`: whether a node has a seat, which a first version waits for. `recalibrations`: what manifests say of the calibration, where the run spec lets it be replaced; `fetch` asks others for the manifest of a step by its digest, for a hub that has lost its own. `tell` says to peers what has become of a version (protocol/gossip/messages.py): kind, step, digest of the manifest. `book`: the hub's, which somebody else polls and has polled once; `kept`: versions that stay in the outbox, for evaluation and for publishing again after a crash."""
        self._sender = sender
        self._book = book
        self._run = book.run
        self._origin = origin
        self._outbox = outbox
        self._kept = kept
        self._tell = tell
        self._recalibrations = recalibrations
        self._fetch = fetch
        self._has_workers = has_workers
        self._is_waiting = False
        self._has_looked = False
        self.published: int | None = None
        """Newest step that this process has served and the chain knows."""
        self._looked_at = -1  # newest block at which it was looked whether a beacon can be drawn

    def turn(self) -> bool:
        """Publishes the next waiting version, or shows more of the one that is being written; False when there is neither."""
        self._look_at_head()
        self._draw()
        for step in self._outbox.waiting():
            if self.published is not None and step <= self.published:
                continue
            count = self._count()
            if step > count:
                raise IntegrityError(f"version {step} waits to be published, but the chain is at {count}")
            if step == count == 0 and self._waits_for_workers():
                break
            if step < count and step <= max(self._origin.store.steps(), default=0) - self._kept:
                continue  # too old to be served again; a crash kept it from being removed
            folder = self._outbox.folder / str(step)
            require_nothing_else(folder)  # no node would take it
            if step == count:
                self._learn(step - 1)
            manifest = self._origin.publish(folder, step, link=True, remember=True, notice=self._notice(step))
            if step < count and self._digest(step) != manifest.digest:
                raise IntegrityError(f"step {step} is on chain with other weights than these")
            if step < count:
                self._take(step, manifest)
            elif self._recalibrations is not None:
                self._recalibrations.published(step, manifest.notice)
            self._tell(MANIFEST, step, manifest.digest)
            if step == count:
                self._send(step, manifest)
            self._tell(HEAD, step, manifest.digest)
            self.published = step
            _PUBLISHED.set(step)
            self._outbox.remove_before(step + 1 - self._kept)
            return True
        return self._follow()

    def _waits_for_workers(self) -> bool:
        """Whether a first version would be of no use to anybody: seats work on what is published after they were taken."""
        waits = not self._has_workers()
        if waits and not self._is_waiting:
            log.warning(
                "version 0 is published once a node has a seat: seats work on versions that are published later"
            )
        self._is_waiting = waits
        return waits

    # ---- what the manifests say of the calibration -------------------------------------------------------------------------

    def _look_at_head(self) -> None:
        """Once: learns what is in force, where this hub's notes do not have it. Versions that are here may teach it as well."""
        if not self._has_looked:
            self._has_looked = True
            try:
                self._learn(self._count() - 1)
            except Unavailable as error:
                log.warning("%s", error)

    def _learn(self, step: int) -> None:
        """Raises Unavailable where neither notes nor anybody's manifest of version `step` tell which calibration is in force with it."""
        if self._recalibrations is None or step <= self._recalibrations.book.last:
            return
        try:
            manifest = self._manifest(step)
        except Unavailable as error:
            raise Unavailable(
                f"which calibration is in force with version {step} is not known here, and its manifest is not found ({error}): nothing new is published",
                hint=f"start a relay, node or validator that has version {step}, or put its {FILE} into {self._recalibrations.folder}: it is waited for",
            ) from error
        log.info("the manifest of version %d says: %s", step, manifest.notice or "judged by the run spec's calibration")
        self._take(step, manifest)

    def _take(self, step: int, manifest: Manifest) -> None:
        """Notes what a version on chain says. One that contradicts earlier ones is refused by whoever has read those: the next goes on from what they read."""
        if self._recalibrations is not None:
            try:
                self._recalibrations.book.take(step, manifest.notice)
            except Malformed as error:
                log.error("%s", error)

    def _notice(self, step: int) -> CalibrationNotice | None:
        """For the manifest of version `step`, which the chain may know already."""
        if self._recalibrations is None:
            return None
        newest = self._recalibrations.book.newest
        if step < self._count() and not (
            step <= self._recalibrations.book.last and (newest is None or newest.since <= step)
        ):
            with suppress(Unavailable):
                return self._manifest(step).notice
        return self._recalibrations.of(step)

    def _manifest(self, step: int) -> Manifest:
        """That of a version on chain: this machine's own, or somebody's. Raises Unavailable."""
        digest = self._digest(step)
        if digest is None:
            raise Unavailable(f"version {step} is not in this machine's copy of the chain yet")
        for path in (version_folder(self._origin.store.root, step), self._outbox.folder / str(step)):
            with suppress(OSError, ProtocolViolation):
                signed = (path / MANIFEST_NAME).read_bytes()
                if digest_of(signed) == digest:
                    return stored(signed)
        if self._fetch is None:
            raise Unavailable("nobody can be asked")
        return self._fetch(step, digest)

    def _digest(self, step: int) -> bytes | None:
        known = self._book.publication(step)
        return None if known is None else known.data.manifest

    # ---- the chain ---------------------------------------------------------------------------------------------------------

    def _follow(self) -> bool:
        coming, count = self._outbox.coming(), self._count()
        if coming is not None and coming.step == count:
            try:
                return self._origin.follow(coming.folder, coming.step, coming.files, coming.attempt)
            except MurmurationError as error:  # it is published all the same, when it is whole
                log.info("version %d is not shown before it is whole: %s", coming.step, error)
        if count not in self._outbox.waiting():  # it may just have got its name
            self._origin.forget_unpublished()
        return False

    def _draw(self) -> None:
        """Writes down the beacon of the newest version, once it can be known. What fails is tried again in the next turn."""
        step, head = self._count() - 1, self._book.head
        if step < 0 or head is None or head.number == self._looked_at or self._book.beacon(step) is not None:
            return
        self._looked_at = head.number
        chain = self._sender.chain
        try:
            source = chain.beacon_source(self._run, step)
            if head.number <= source or chain.publication(self._run, step).is_drawn:
                return
            self._sender.send(chain.draw(self._run, step), name=f"draw/{self._run}/{step}/{source}")
        except (TransactionReverted, InsufficientFunds, FeeTooHigh, RpcUnavailable, Unavailable) as error:
            # nodes can draw it as well
            log.info("the beacon of version %d is not drawn yet: %s", step, error)

    def _count(self) -> int:
        """Versions on chain: those in the book, and those that this process has put there since. By no single endpoint's word."""
        newest = self._book.newest_publication()
        in_book = 0 if newest is None else int(newest.data.step) + 1
        return max(in_book, 0 if self.published is None else self.published + 1)

    def _send(self, step: int, manifest: Manifest) -> None:
        chain = self._sender.chain
        try:
            self._sender.send(
                chain.publish(self._run, step, manifest.digest),
                name=f"publish/{self._run}/{step}/{manifest.digest.hex()}",
            )
        except TransactionReverted as error:
            if error.reason == "TooFewValidators":
                raise Unavailable(f"{error}: waiting for more validators to take a seat", hint=error.hint) from error
            # One sent before may have been mined after its deadline: then the chain holds what we want it to.
            if chain.published(self._run) <= step or chain.publication(self._run, step).manifest != manifest.digest:
                raise
        log.info("published step %d, %d bytes, delta of %d", step, manifest.total_bytes, manifest.delta_bytes)
