"""Fetches a version that its trainer is still writing, so that most of it is here when the chain names it.

A relay hears from the origin what is finished, a node from relays, or from the origin where there are none. Each chunk is verified
against a hash that the trainer signed (opening.py), so whoever lies about one is known. Nothing becomes a version here: what was fetched lies in
a draft, and `Client.fetch` begins with it once the chain has the manifest. Chunks that this does not name are thrown away
then, without blame. So is the draft, where the trainer gives it up: its tellers show it no longer, or it has stood still for long. Where
the disk fails the draft is thrown away too, even if it says so only when this is ended.

Where deltas can make the version out of one that is here, they will be far fewer bytes, and nothing is fetched ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from threading import Event
from typing import TYPE_CHECKING

from protocol.errors import MurmurationError, ProtocolViolation, Unavailable, VersionMismatch
from protocol.shardcast.connection import ConnectionPool, NotServed, SourceConnection
from protocol.shardcast.inquiry import Inquiry
from protocol.shardcast.manifest import Chunk
from protocol.shardcast.opened import OpenedVersion
from protocol.shardcast.opening import (
    NO_OPENING,
    TOLD_BYTES_MAX,
    ChunkList,
    OpeningAnswer,
    Trusted,
    opened_file_target,
    opened_holding_target,
    opening_target,
)
from protocol.shardcast.partial import Partial
from protocol.shardcast.schedule import Schedule
from protocol.shardcast.source import Source
from protocol.shardcast.tellers import AT_ONCE, WAIT_SECONDS, Tellers

if TYPE_CHECKING:
    from protocol.shardcast.client import Client

LABEL = "ahead"
"""Of the draft that this fetches into."""

_PAUSE_SECONDS = 1.0  # between looks at a version of which all is here
_AGAIN_SECONDS = 0.25  # before a relay is asked again that did not have a chunk which it had told of
_HIDDEN_SECONDS = 2.0  # for which that is no fault: by then an honest one has told that it shows nothing
_LOOK_SECONDS = 0.5  # longest wait for a teller before it is looked after what lags
_GONE_SECONDS = 15.0  # after which a draft that no teller shows is thrown away
_STALL_SECONDS = 180.0  # after which one is that does not grow


class GivenUp(Unavailable):
    """The version that was fetched ahead will not come, as far as anybody here can tell."""


@dataclass
class Ahead:
    """One attempt to fetch version `step` ahead. `run` blocks; `end` may be called by any thread."""

    client: Client
    step: int
    sources: Sequence[Source]
    clock: Callable[[], float] = time.monotonic
    verified: dict[tuple[str, int], str] = field(default_factory=dict)
    """What lies in the draft for certain: BLAKE3 by file and offset."""
    _ending: Event = field(default_factory=Event)
    _ended: Event = field(default_factory=Event)
    _schedule: Schedule | None = None
    _liars: set[str] = field(default_factory=set)
    _refused: dict[str, float] = field(default_factory=dict)  # since when relays do, that had told of a chunk
    _without: set[str] = field(default_factory=set)  # tellers that knew of nothing when it began

    def __post_init__(self) -> None:
        self._pool = ConnectionPool(self.client.timeouts, self.client.fields)
        self._news = Tellers(self._tellers, self._told_by, self.client.rng, self.clock)

    def run(self) -> bool:
        """Whether there was anything to fetch; returns once it was ended, or at once where nobody knows of such a version. Raises
        GivenUp where the version will not come, PreflightError for a disk that is full or fails: what was fetched is gone then."""
        try:
            return self._run()
        except MurmurationError:
            self.verified.clear()
            raise
        finally:
            self._pool.close()
            self._ended.set()

    @property
    def is_over(self) -> bool:
        return self._ended.is_set()

    def stop(self) -> None:
        """Breaks it off."""
        self._ending.set()
        if self._schedule is not None:
            self._schedule.stop()
        self._pool.close()
        self._news.wake()

    def end(self) -> None:
        """Breaks it off, and waits until its draft is free."""
        self.stop()
        self._ended.wait()  # its sockets are shut, and what it does with them has deadlines of its own

    def hand_over(self) -> dict[tuple[str, int], str]:
        """`verified`, once: it is true of one draft, for whoever takes that over or removes it, and of none that comes after it."""
        verified, self.verified = self.verified, {}
        return verified

    # ---- inside

    def _run(self) -> bool:
        store = self.client.store
        if store.holds(self.step):
            return False
        listing = self._first()
        if listing is None or self._will_have_delta(listing):
            return False
        outline = listing.opening.outline()
        try:
            with (
                store.draft(self.step, LABEL, outline.total_bytes, resumes=False) as folder,
                Partial(folder, outline) as partial,
            ):
                self._follow(listing, partial)
                partial.sync()  # what is handed over is not read again
        except (GivenUp, ProtocolViolation):
            store.drop_draft(self.step, LABEL)
            raise
        return True

    def _follow(self, listing: ChunkList, partial: Partial) -> None:
        client, opening = self.client, listing.opening
        outline = opening.outline()
        fetch = client.attempt(self.step, opening.digest, self.sources, float("inf"))
        relays = [source for source in fetch.sources if source.is_relay and source.name not in fetch.banned]
        schedule = fetch.schedule_of(outline, (), [source.name for source in relays], known=0)
        self._schedule = schedule
        chunks = list(outline.chunks())
        count = len(chunks)

        def inquire_of(relay: Source) -> Inquiry:
            target = self._holding_target(opening.id)
            return Inquiry(schedule, relay, self.step, count, client.timeouts, fetch.deadline, target)

        perform = fetch.performing(
            partial, outline, schedule, lambda step, name: opened_file_target(step, opening.id, name),
            self._passed_over, chunks=chunks, arrived=self._note,
        )  # fmt: skip
        shown = OpenedVersion(listing, partial.reopen, schedule)
        with client.interruptible(schedule):
            if client.relays:
                client.store.show_opened(self.step, shown)
            try:
                self._reveal(listing, 0, chunks, partial, schedule)
                with fetch.crew(schedule, perform, room=client.chunk_bytes, relays=relays, inquire_of=inquire_of):
                    self._listen(listing, chunks, partial, schedule)
            finally:
                client.store.hide_opened(self.step, shown)

    def _listen(self, listing: ChunkList, chunks: list[Chunk], partial: Partial, schedule: Schedule) -> None:
        """Extends the list by what tellers say, until it is ended or given up."""
        grown = heard = self.clock()
        while not self._ending.is_set() and schedule.attend(0.0):
            if listing.is_complete and schedule.stock.is_whole and self._ending.wait(_PAUSE_SECONDS):
                return
            known, shows = listing.count, self._hear(listing)
            now = self.clock()
            if listing.count > known:
                self._reveal(listing, known, chunks, partial, schedule)
                grown = now
            if shows is not False or self._news.has_late:
                heard = now
            if now > heard + _GONE_SECONDS or (not listing.is_complete and now > grown + _STALL_SECONDS):
                raise GivenUp(f"version {self.step} is not written on")

    def _reveal(
        self, listing: ChunkList, first: int, chunks: list[Chunk], partial: Partial, schedule: Schedule
    ) -> None:
        """The chunks from `first` on that are listed by now can be asked for; what an earlier attempt left is not."""
        room = memoryview(bytearray(self.client.chunk_bytes))
        fresh = range(first, listing.count)
        present = []
        for number in fresh:
            chunks[number] = replace(chunks[number], blake3=listing.hash_of(number))
            if partial.holds(chunks[number], room):
                present.append(number)
                self._note(chunks[number])
        schedule.reveal(fresh, present)

    @contextmanager
    def _passed_over(self, source: Source) -> Iterator[None]:
        """Within the block a relay may say that it does not have a chunk: as soon as it knows that the version is whole it shows no more that this
        is being written. Several chunks may be asked for at that moment, and the version itself is fetched by whom they speak well of. One that goes on
        to tell of what it refuses does not only hide it."""
        try:
            yield
        except NotServed as error:
            since = self._refused.setdefault(source.name, self.clock())
            if error.status != HTTPStatus.NOT_FOUND or not source.is_relay or self.clock() > since + _HIDDEN_SECONDS:
                raise
            raise NotServed(error.status, _AGAIN_SECONDS) from error

    def _note(self, chunk: Chunk) -> None:
        self.verified[chunk.file.name, chunk.offset] = chunk.blake3

    def _will_have_delta(self, listing: ChunkList) -> bool:
        opening = listing.opening
        here = self.client.store.steps()
        return opening.anchor < self.step and any(opening.anchor <= step < self.step for step in here)

    # ---- tellers

    def _tellers(self) -> list[Source]:
        """Whom to ask for news: a relay asks the origin alone, so that no two keep something alive for each other."""
        believed = [source for source in self.sources if source.name not in self._liars]
        origins = [source for source in believed if not source.is_relay]
        relays = [source for source in believed if source.is_relay]
        asked = origins if self.client.relays or not relays else relays
        return [source for source in asked if source.name not in self._without]

    def _first(self) -> ChunkList | None:
        while not self._ending.is_set() and len(self._without) < AT_ONCE and self._news.waits:
            heard = self._news.next(NO_OPENING, 0, _LOOK_SECONDS)
            if heard is None:
                continue
            teller, answer = heard
            self._without.add(teller.name)
            try:
                if not isinstance(answer, OpeningAnswer):
                    raise answer
                listing = ChunkList.begun(self.step, answer, self._trusted)
            except ProtocolViolation as violation:
                self._distrust(teller, violation)
            except (OSError, Unavailable, VersionMismatch):
                pass
            else:
                self._without.clear()
                self._news.had_news(teller)
                return listing
        return None

    def _hear(self, listing: ChunkList) -> bool | None:
        """What the next teller says: True where it shows this opening, None where it may still do so but cannot be reached, False
        where it shows it no more, or nobody has answered yet."""
        heard = self._news.next(listing.opening.id, listing.count, _LOOK_SECONDS)
        if heard is None:
            return False
        teller, answer = heard
        try:
            if not isinstance(answer, OpeningAnswer):
                raise answer
            if answer.opening == listing.opening.encode():
                if listing.take(answer, self._trusted):
                    self._news.had_news(teller)
                return True
            ChunkList.begun(self.step, answer, self._trusted)  # another opening that the trainer signed
            if not teller.is_relay:
                raise GivenUp(f"version {self.step} is written anew")
        except GivenUp:
            raise
        except ProtocolViolation as violation:
            self._distrust(teller, violation)
        except NotServed as error:
            return False if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE) else None
        except (OSError, Unavailable, VersionMismatch):
            return None
        return False

    def _distrust(self, teller: Source, violation: ProtocolViolation) -> None:
        self._liars.add(teller.name)
        if self._schedule is not None:
            self._schedule.distrust(teller.name, violation)

    def _told_by(self, teller: Source, of: str, after: int) -> OpeningAnswer:
        deadline = time.monotonic() + 2 * self.client.timeouts.idle
        wait_ms = int(1000 * min(WAIT_SECONDS, self.client.timeouts.idle / 2))
        connection = self._pool.take(teller, deadline, fresh=True)
        try:
            data = _asked(connection, opening_target(self.step, of, after, wait_ms), deadline)
        finally:
            self._pool.drop(connection)
        return OpeningAnswer.parse(data)

    @property
    def _trusted(self) -> Trusted:
        client = self.client
        return Trusted(client.run, client.trainer, client.domain, client.limits, client.chunk_bytes)

    def _holding_target(self, of: str) -> Callable[[int, int, int], str]:
        return lambda step, after, wait_ms: opened_holding_target(step, of, after, wait_ms)


def _asked(connection: SourceConnection, target: str, deadline: float) -> bytes:
    data = bytearray(connection.ask_whole(target, TOLD_BYTES_MAX, deadline))
    connection.read(memoryview(data), deadline)
    return bytes(data)
