"""The trainer's end: takes a folder of weights, signs what it is, and shows it in the store that a server serves.

It says nothing to the chain or the swarm; `Runs.publish` and gossip follow, with the digest of the manifest given back.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from protocol import signing
from protocol.constants import MANIFEST_BYTES_MAX, SHARDCAST_CHUNK_BYTES
from protocol.errors import IntegrityError, UsageError
from protocol.identity import Key
from protocol.shardcast.manifest import Manifest, describe, digest_of, publishable, sign
from protocol.shardcast.store import VersionStore, disk_errors


class Origin:
    """Publishes versions of `run` into `store`, signed by the run's trainer `key`."""

    def __init__(
        self,
        store: VersionStore,
        key: Key,
        domain: signing.Domain,
        run: int,
        *,
        chunk_bytes: int = SHARDCAST_CHUNK_BYTES,
    ) -> None:
        self.store = store
        self._key, self._domain, self._run, self._chunk_bytes = key, domain, run, chunk_bytes

    def publish(self, folder: Path, step: int, *, link: bool = False) -> Manifest:
        """Makes the files of `folder` visible as version `step`; `digest` of the result belongs on the chain.

        The same bytes again change nothing; other bytes for a published step are an IntegrityError, for the chain may
        know the first. The files are copied, or with `link` hard-linked where that is possible, for a caller that never
        writes to them again.
        """
        if self.store.holds(step):
            return self._require_same(folder, step)
        paths = publishable(folder)
        with disk_errors(folder):
            size = sum(path.stat().st_size for path in paths)
            link = link and all(path.stat().st_dev == self.store.root.stat().st_dev for path in paths)
        with self.store.draft(step, "publishing", 0 if link else size, resumes=False) as draft:
            with disk_errors(draft):
                for left in draft.iterdir():
                    left.unlink()  # of an attempt that a crash ended
                for path in paths:
                    (os.link if link else shutil.copyfile)(path.resolve(), draft / path.name)
            manifest = describe(draft, self._run, step, chunk_bytes=self._chunk_bytes)
            signed = sign(manifest, self._key, self._domain)
            if len(signed) > MANIFEST_BYTES_MAX:
                raise UsageError(f"the manifest of {folder} is larger than {MANIFEST_BYTES_MAX} bytes")
            self.store.commit(step, draft, signed)
        return manifest

    def _require_same(self, folder: Path, step: int) -> Manifest:
        manifest = describe(folder, self._run, step, chunk_bytes=self._chunk_bytes)
        if manifest.digest != digest_of(self.store.manifest(step)):
            raise IntegrityError(
                f"version {step} is published with other bytes than {folder} holds",
                hint="publish the new weights as the next step",
            )
        return manifest
