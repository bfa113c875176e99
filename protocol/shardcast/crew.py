"""The threads that carry out a schedule: they take tasks, do them on pooled connections, and sort what goes wrong.

Three kinds of failure are told apart, because only the second is anybody's fault: a source that cannot serve, a source
that breaks the rules, and this machine failing (a full disk), which ends the whole fetch. Where a disk says that it has failed while the
crew is being ended, that is the ending, whatever else was: it says so once, and what was written must not be believed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock, Thread

from protocol.errors import PreflightError, ProtocolViolation, Unavailable
from protocol.shardcast.connection import ConnectionPool, NotServed, SourceConnection, StaleConnection, Timeouts
from protocol.shardcast.inquiry import Inquiry
from protocol.shardcast.schedule import Schedule
from protocol.shardcast.source import Source
from protocol.shardcast.task import FetchTask

Perform = Callable[[FetchTask, SourceConnection, memoryview], None]
"""Carries out a task on a connection, with room for one chunk, and reports what arrived to the schedule."""


_SPARE = 2  # threads per stream: the second half works while tasks of the first half lag


class Crew:
    """Threads for `streams` tasks at once, and for as many that lag, at work while the context lasts.

    Leaving it interrupts them, waits for their end, and raises DiskFailed where one of them has met it, in place of any other error. `room`
    is the size of a chunk in bytes. Each of the `inquiries` has a thread besides, and so has one that `inquire_of` makes for each relay
    that an origin names. `fields` are header fields of every request.
    """

    def __init__(
        self,
        schedule: Schedule,
        perform: Perform,
        timeouts: Timeouts,
        *,
        streams: int,
        room: int,
        deadline: float,
        inquiries: Sequence[Inquiry] = (),
        inquire_of: Callable[[Source], Inquiry] | None = None,
        fields: dict[str, str] | None = None,
    ) -> None:
        self._schedule, self._perform, self._room, self._deadline = schedule, perform, room, deadline
        self._inquire_of, self._mutex = inquire_of, Lock()
        self._rooms: list[memoryview] = []
        self._pool = ConnectionPool(timeouts, fields)
        self._threads = [Thread(target=self._work, name=f"fetch-{n}", daemon=True) for n in range(_SPARE * streams)]
        self._threads += [
            Thread(target=self._inquire, args=(inquiry,), name=f"inquiry-{n}", daemon=True)
            for n, inquiry in enumerate(inquiries)
        ]

    def __enter__(self) -> Crew:
        try:
            for thread in list(self._threads):  # those that run already may add to it
                thread.start()
        except RuntimeError as error:
            self.__exit__()
            raise PreflightError("this system gives no more threads", hint="raise its limit (ulimit -u)") from error
        return self

    def __exit__(self, kind: object = None, ending: BaseException | None = None, *_: object) -> None:
        self._schedule.stop()
        self._pool.close()
        with self._mutex:  # nobody is added after the stop
            threads = list(self._threads)
        for thread in threads:
            if thread.ident is not None:
                thread.join()  # ends: its sockets are shut, and what it does with them has deadlines of its own
        failure = self._schedule.disk_failure
        if failure is not None and failure is not ending and isinstance(ending, Exception | None):
            raise failure

    def _work(self) -> None:
        try:
            while (task := self._schedule.take()) is not None:
                room = self._free_room()
                try:
                    self._attempt(task, room)
                finally:
                    self._rooms.append(room)
        except Exception as error:  # noqa: BLE001  carried to the thread that waits, and raised there
            self._schedule.abort(error)

    def _free_room(self) -> memoryview:
        """The one that was used last: as many take memory as there were tasks at once, not as there are threads."""
        with suppress(IndexError):
            return self._rooms.pop()
        return memoryview(bytearray(self._room))

    def _inquire(self, inquiry: Inquiry) -> None:
        try:
            inquiry.run(self._pool)
        except Exception as error:  # noqa: BLE001  as above
            self._schedule.abort(error)

    def _attempt(self, task: FetchTask, room: memoryview) -> None:
        try:
            self._carry_out(task, room)
        except ProtocolViolation as violation:
            self._schedule.violated(task, violation)
        except NotServed as error:
            for relay in error.instead:
                self._turn_to(relay)
            if error.is_for_good:
                self._schedule.refused(task, error)
            elif self._room and not error.retry_after:
                self._schedule.failed(task, error)  # it says that it holds the chunk
            else:
                self._schedule.put_off(task, error, error.retry_after)
        except (OSError, Unavailable) as error:
            self._schedule.failed(task, error)
        else:
            self._schedule.finished(task)

    def _turn_to(self, relay: Source) -> None:
        """Asks a relay that the origin named what it holds, from now on."""
        if self._inquire_of is None or not self._schedule.add(relay):
            return
        thread = Thread(target=self._inquire, args=(self._inquire_of(relay),), name="inquiry-named", daemon=True)
        with self._mutex:
            try:
                thread.start()
            except RuntimeError:  # this system gives no more threads: nothing is heard of the relay, and nothing asked
                return
            self._threads.append(thread)

    def _carry_out(self, task: FetchTask, room: memoryview) -> None:
        try:
            self._use_connection(task, room, fresh=False)
        except StaleConnection:
            if task.is_cut:
                raise
            self._use_connection(task, room, fresh=True)

    def _use_connection(self, task: FetchTask, room: memoryview, *, fresh: bool) -> None:
        connection = self._pool.take(task.source, self._deadline, fresh=fresh)
        task.cut = connection.shut
        try:
            self._perform(task, connection, room)
        except BaseException:
            self._pool.drop(connection)
            raise
        self._pool.give(connection)
