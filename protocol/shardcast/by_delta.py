"""Makes a version out of one that is here, where the deltas between them are fewer bytes than what is missing.

What comes out is verified as if it had been fetched, and whatever is wrong with a delta, the version is fetched whole.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial as partial_of
from http import HTTPStatus
from pathlib import Path

import numpy as np

from protocol.errors import (
    DeadlineExceeded,
    DiskFailed,
    HashMismatch,
    IntegrityError,
    Malformed,
    MurmurationError,
    PreflightError,
    ProtocolViolation,
)
from protocol.shardcast.arriving import Arriving
from protocol.shardcast.fetch import Fetch, closed
from protocol.shardcast.holding import delta_holding_target
from protocol.shardcast.http1 import delta_target
from protocol.shardcast.inquiry import Inquiry
from protocol.shardcast.manifest import Manifest, digest_of, stored
from protocol.shardcast.partial import Partial
from protocol.shardcast.schedule import Schedule
from protocol.shardcast.source import Source
from protocol.shardcast.store import DELTA_FOLDER, VersionStore, disk_errors

log = logging.getLogger("weights")

_CHAIN_MAX = 16  # deltas that are applied one after the other rather than fetching the whole
_APPLIED_RATE = 150e6  # bytes of weights a second that are made by a delta, until that was measured here
_ALONE_SECONDS = 60.0  # that a chain may take of this machine, whatever the lines bring meanwhile
_DELTA_SHARE = 0.5  # of a fetch's time, after which what deltas did not bring is fetched whole


@dataclass(frozen=True)
class MadeByDelta:
    """The chunks that came out right, and what they were made with; without it, those that are right after it has failed."""

    present: list[int]
    delta: Arriving | None


def make(
    fetch: Fetch, partial: Partial, manifest: Manifest, signed: bytes, present: Sequence[int], kept: ExitStack
) -> MadeByDelta | None:
    """Makes the files of `partial` out of a version that is here, where the deltas are fewer bytes than what is missing.

    None where they are not. Whatever fails here is told in the log, and the version is fetched whole; all of it anew, where the disk has
    failed: what was here before would come from memory.
    """
    client = fetch.client
    sizes = [chunk.size for chunk in manifest.chunks()]
    missing = sum(sizes) - sum(sizes[number] for number in present)
    if manifest.base is None or manifest.digest in client.whole_only:
        return None
    in_time = replace(
        fetch, deadline=time.monotonic() + _DELTA_SHARE * (fetch.deadline - time.monotonic()), seconds_alone=0.0
    )
    try:
        chain = _chain(in_time, manifest, missing)
        for earlier_signed, earlier in chain or ():
            _bring(in_time, earlier, earlier_signed)
        return None if chain is None else _apply(in_time, partial, manifest, signed, kept)
    except (MurmurationError, OSError) as error:
        if client.is_closed:
            raise
        log.warning("version %d is fetched whole: its delta failed (%s)", manifest.step, error)
        if isinstance(
            error, DeadlineExceeded
        ):  # nothing was written yet, and the next attempt, which has more time, may have it
            return MadeByDelta(list(present), None)
        client.whole_only.append(manifest.digest)
        if isinstance(error, DiskFailed):
            partial.begin_anew()
            drop_delta(partial.folder)
            return MadeByDelta([], None)
    finally:
        fetch.put_off(in_time.seconds_alone)
    # It may have written over chunks that were there before: of those, only what still verifies is.
    return MadeByDelta(fetch.present(partial, manifest) if present else [], None)


def _chain(fetch: Fetch, manifest: Manifest, most: int) -> list[tuple[bytes, Manifest]] | None:
    """Versions to be made before this one out of one that is here, the oldest first; None where fetching the whole,
    `most` bytes, costs no more."""
    chain: list[tuple[bytes, Manifest]] = []
    cost = 0
    if not any(manifest.anchor <= step < manifest.step for step in fetch.client.store.steps()):
        return None
    lenient = replace(fetch, banned=set(fetch.banned))  # whoever has another version of a base's number may be honest
    while (base := manifest.base) is not None:
        cost += manifest.delta_bytes
        if cost >= most or len(chain) == _CHAIN_MAX or _takes_longer(fetch, len(chain) + 1, manifest.total_bytes, most):
            return None
        digest = bytes.fromhex(base.manifest)
        if _is_here(fetch.client.store, base.step, digest):
            return chain
        expected = replace(fetch.expected, step=base.step, digest=digest)
        signed, manifest = lenient.fetch_manifest(expected, patient=False)
        chain.insert(0, (signed, manifest))
    return None


def _takes_longer(fetch: Fetch, deltas: int, total: int, most: int) -> bool:
    """Whether so many deltas, each of which is read, written and hashed as a whole version, keep this machine for longer than the lines
    take to bring the whole. One delta never does: what it spares is everybody's."""
    lines = sorted((standing.bandwidth for standing in fetch.standings.values() if standing.bandwidth), reverse=True)
    best = lines[: fetch.client.streams]
    if deltas == 1 or not best:
        return False
    seconds = deltas * total / (fetch.client.applied_rate or _APPLIED_RATE)
    return seconds > max(_ALONE_SECONDS, most / (sum(best) / len(best) * fetch.client.streams))


def _is_here(store: VersionStore, step: int, digest: bytes) -> bool:
    with suppress(ProtocolViolation, PreflightError):  # damaged on disk, or retired meanwhile
        return store.holds(step) and digest_of(store.manifest(step)) == digest
    return False


def _bring(fetch: Fetch, manifest: Manifest, signed: bytes) -> None:
    """Makes a version between the one that is here and the one that is wanted. Raises HashMismatch where it comes out wrong."""
    store = fetch.client.store
    size = manifest.total_bytes + manifest.delta_bytes
    with (
        store.draft(manifest.step, manifest.digest.hex(), size) as draft,
        Partial(draft, manifest) as partial,
        ExitStack() as kept,
    ):
        made = _apply(fetch, partial, manifest, signed, kept)
        if len(made.present) < len(manifest.numbers):
            raise HashMismatch(f"the delta of version {manifest.step} makes other bytes than that version's")
        store.commit(manifest.step, draft, signed)


def _apply(fetch: Fetch, partial: Partial, manifest: Manifest, signed: bytes, kept: ExitStack) -> MadeByDelta:
    """Fetches the delta of `manifest`, whose base is here, and writes what it makes over the files of `partial`. Meanwhile
    the delta is shown to others; its files stay open in `kept`."""
    store, base = fetch.client.store, manifest.base
    assert base is not None and manifest.delta is not None
    deltas = partial.folder / DELTA_FOLDER
    with disk_errors(deltas):
        deltas.mkdir(exist_ok=True)
    files = replace(manifest, files=manifest.delta, base=None, delta=None)
    with store.lease(base.step) as folder:
        signed_before = store.manifest(base.step)
        if digest_of(signed_before).hex() != base.manifest:
            raise IntegrityError(f"version {base.step} was replaced")
        before = stored(signed_before, chunk_bytes=manifest.chunk_bytes)
        of_delta = kept.enter_context(Partial(deltas, files))
        relays, present = fetch.relays(), fetch.present(of_delta, files)
        schedule = fetch.schedule_of(files, present, relays)
        nothing = np.zeros(len(manifest.numbers), np.bool_)
        arriving = Arriving(signed, of_delta, schedule, files.numbers, fetch.client.chunk_bytes, nothing=nothing)
        with fetch.client.interruptible(schedule), store.show(manifest.step, arriving):
            since = time.monotonic()
            perform = fetch.performing(
                of_delta, files, schedule, delta_target, lambda source: fetch.passed_over(schedule, source, since)
            )
            inquire_of = partial_of(_inquiry, fetch, schedule, files, since)
            if len(present) < len(files.numbers):
                with fetch.crew(
                    schedule, perform, room=fetch.client.chunk_bytes, relays=relays.values(), inquire_of=inquire_of
                ):
                    for number in range(len(files.numbers)):
                        schedule.wait_for(number, fetch.deadline)
            before_it = fetch.seconds_alone
            with fetch.alone():
                _write(fetch, partial.folder, manifest, folder, before)
            present = fetch.present(partial, manifest)
            fetch.client.applied_rate = manifest.total_bytes / max(1e-6, fetch.seconds_alone - before_it)
    log.info(
        "version %d is made out of version %d: %d bytes instead of %d",
        manifest.step, base.step, manifest.delta_bytes, manifest.total_bytes,
    )  # fmt: skip
    return MadeByDelta(present, arriving)


def _inquiry(fetch: Fetch, schedule: Schedule, delta: Manifest, since: float, relay: Source) -> Inquiry:
    """What a relay holds of the delta. One that says there will be none lacks it, and so does one that had nothing to say of it for long."""

    def may_lack(status: int) -> bool:
        waited = time.monotonic() - since
        return status == HTTPStatus.GONE or (status == HTTPStatus.NOT_FOUND and waited > fetch.client.patience)

    timeouts, target = fetch.client.timeouts, delta_holding_target
    return Inquiry(schedule, relay, delta.step, len(delta.numbers), timeouts, fetch.deadline, target, may_lack)


def _write(fetch: Fetch, draft: Path, manifest: Manifest, folder: Path, before: Manifest) -> None:
    """Writes the files of `draft` out of its delta and the base in `folder`."""
    known = {file.name: file for file in before.files}
    changed = {file.name for file in manifest.delta or ()}
    for file in manifest.files:
        if fetch.client.is_closed:
            raise closed()
        if file.name in changed:
            old = folder / file.name if file.name in known else None
            _write_changed(draft / DELTA_FOLDER / file.name, old, draft / file.name, file.size)
        elif known.get(file.name) == file:
            with disk_errors(draft):
                shutil.copyfile(folder / file.name, draft / file.name)
        else:
            raise Malformed(f"the delta of version {manifest.step} leaves out {file.name}, which changed")


def drop_delta(draft: Path) -> None:
    """What may not be whole must not be served, and was of no use here."""
    with disk_errors(draft), suppress(FileNotFoundError):
        shutil.rmtree(draft / DELTA_FOLDER)


def _write_changed(delta: Path, base: Path | None, target: Path, size: int) -> None:
    from protocol.shardcast.delta import apply  # pyarrow is imported where deltas are used

    with disk_errors(target):
        fd = os.open(target, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            apply(delta, base, fd, size)
        finally:
            os.close(fd)
