"""Fetching weights beside the turn: a version that nobody brings keeps nobody from court, nor from judging another version.

Each fetch has a thread of its own, a few at once, which touches the store of versions and nothing else of the validator. What
became of it is told to whoever asks for the version next.
"""

from __future__ import annotations

import threading

from node.versions import Version, Versions
from protocol.clock import SYSTEM, Clock
from protocol.errors import Unavailable

_AT_ONCE = 3  # fetches: they share the bandwidth, and one that hangs leaves room for the others
_REMEMBERED = 16  # fetches that have ended and that nobody has come back to
_END_SECONDS = 5.0  # for threads to end in; they are daemons, so a process ends without them


class Fetches:
    """Asked from one thread."""

    def __init__(self, versions: Versions, patience: float, clock: Clock = SYSTEM) -> None:
        """`patience`: seconds for which a fetch that was just begun is waited for, since most are short."""
        self._versions = versions
        self._patience = patience
        self._clock = clock
        self._fetches: dict[int, _InBackground] = {}  # by step: the store takes one version of a step at a time

    def close(self) -> None:
        """Breaks off what is under way; the next attempt, or the next process, goes on from what is there."""
        self._versions.stop()
        for fetch in self._fetches.values():
            fetch.thread.join(_END_SECONDS)

    @property
    def is_idle(self) -> bool:
        return not self._under_way()

    def require(self, publication: Version) -> bool:
        """Whether a version is here. If not, it is on its way now, or will be once fewer others are, and is to be asked for again.

        Raises what Versions.fetch raised since the version was last asked for, Unavailable where this machine has no thread for
        one; the next call begins anew.
        """
        fetch = self._fetches.get(publication.step)
        if fetch is None and not self._versions.holds(publication):
            if self._under_way() >= _AT_ONCE:
                return False
            fetch = self._begin(publication)
            self._clock.wait(fetch.ended, self._patience)
        if fetch is not None:
            if not fetch.ended.is_set():
                return False
            del self._fetches[publication.step]
            if fetch.error is not None and fetch.publication == publication:
                raise fetch.error
        return self._versions.holds(publication)

    def _begin(self, publication: Version) -> _InBackground:
        if len(self._fetches) >= _REMEMBERED:
            self._fetches = {step: fetch for step, fetch in self._fetches.items() if not fetch.ended.is_set()}
        fetch = _InBackground(self._versions, publication)
        try:
            fetch.thread.start()
        except RuntimeError as error:  # "can't start new thread": this machine has as many as it may
            raise Unavailable(f"the fetch of version {publication.step} cannot begin: {error}") from error
        self._fetches[publication.step] = fetch  # only now: what never ran never ends
        return fetch

    def _under_way(self) -> int:
        return sum(not fetch.ended.is_set() for fetch in self._fetches.values())


class _InBackground:
    def __init__(self, versions: Versions, publication: Version) -> None:
        self.publication = publication
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(
            target=self._run, args=[versions], name=f"weights-{publication.step}", daemon=True
        )

    def _run(self, versions: Versions) -> None:
        try:
            versions.fetch(self.publication)
        except BaseException as error:  # noqa: BLE001  raised in the thread that asks for the version
            self.error = error
        finally:
            self.ended.set()
