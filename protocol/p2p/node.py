"""Connections to peers and streams on them: how many there may be, how much each may open, and when they are cut off.

A stream's other end is always a peer that has proven its key. A handler gets a `Stream` and may raise whatever it likes:
its stream is reset and counted, and nobody else notices.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import islice
from math import inf
from socket import AF_INET, AF_INET6, AF_UNSPEC, getaddrinfo
from typing import Any

import trio

from protocol.errors import Malformed, MurmurationError, Unavailable
from protocol.p2p import negotiation
from protocol.p2p.address import Address, network_of, peer_text
from protocol.p2p.listener import Listener, bind
from protocol.p2p.settings import HostLimits, Timing
from protocol.p2p.stream import Stream
from protocol.p2p.transport import (
    CONNECTION_ERRORS,
    BoundedYamux,
    Identity,
    Upgraded,
    ends_of,
    foreign_errors,
    reason,
    upgrade,
)

log = logging.getLogger(__name__)

_FAMILIES = {"dns": AF_UNSPEC, "dns4": AF_INET, "dns6": AF_INET6}
_IPS_PER_NAME = 4
_LOOKUPS_OF_NAMES = 16  # threads that wait for a name server, which may be a stranger's
_RESET_SECONDS = 1.0
_LASTING_MOST = (
    2  # lasting streams of one connection: a peer opens a new one before we notice that the old one has ended
)


Handler = Callable[[Stream], Awaitable[None]]


class PeerConnection:
    """`remote` is the IP of the other end and `port` its port, `local` the IP of ours; `kept` says that it is not closed
    for being idle."""

    def __init__(self, upgraded: Upgraded, remote: str, port: int, local: str, *, outbound: bool) -> None:
        self.peer = upgraded.peer
        self.muxer: BoundedYamux = upgraded.muxer
        self.remote = remote
        self.port = port
        self.local = local
        self.outbound = outbound
        self.kept = False
        self.identified = False  # the peer has been asked what it speaks
        self.busy = 0
        self.lasting = 0  # streams that stay open, whatever is said on them
        self.used = self.since = trio.current_time()

    def stream(self, raw: Any) -> Stream:
        return Stream(raw, self.peer, self.remote, port=self.port, local=self.local)


class Node:
    """Listens, dials, and hands inbound streams to the handlers of their protocols."""

    def __init__(self, identity: Identity, limits: HostLimits, timing: Timing, *, loopback: bool) -> None:
        """`loopback`: whether addresses of this machine's own interior may be dialled on the word of others."""
        self.identity = identity
        self.limits = limits
        self.timing = timing
        self.counts: Counter[str] = Counter()
        self.welcomed = 0
        """Connections that came in from other machines since the start: whoever has some can be reached."""
        self.wall: Callable[[], float] = time.time
        self.on_lost: Callable[[PeerConnection], None] = lambda connection: None
        self._loopback = loopback
        self._handlers: dict[str, Handler] = {}
        self._lasting: set[str] = set()
        self._connections: defaultdict[bytes, list[PeerConnection]] = defaultdict(list)
        self._listener = Listener(identity, limits, timing, self.counts, self._take_in)
        self._dials: dict[tuple[bytes, Address], trio.Lock] = {}
        self._resolving = trio.CapacityLimiter(_LOOKUPS_OF_NAMES)
        self._nursery: trio.Nursery

    def handle(self, protocol: str, handler: Handler, *, lasting: bool = False) -> None:
        """Streams of a `lasting` protocol have no deadline, and keep no connection from being thinned out."""
        self._handlers[protocol] = handler
        if lasting:
            self._lasting.add(protocol)

    @property
    def protocols(self) -> tuple[str, ...]:
        """What is spoken here."""
        return tuple(self._handlers)

    def connections(self) -> list[PeerConnection]:
        return [connection for group in self._connections.values() for connection in group]

    def connection(self, peer: bytes) -> PeerConnection | None:
        """The newest live connection to `peer`."""
        alive = [connection for connection in self._connections.get(peer, ()) if not connection.muxer.is_dead]
        return alive[-1] if alive else None

    def reached(self, peer: bytes) -> tuple[Address, ...]:
        """Where `peer` was dialled on the connections that stand."""
        alive = (each for each in self._connections.get(peer, ()) if each.outbound and not each.muxer.is_dead)
        places = (Address("ip6" if ":" in each.remote else "ip4", each.remote, each.port) for each in alive)
        return tuple(dict.fromkeys(places))

    def start_soon(self, task: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Runs `task` beside everything else, until the node ends. It must let no error out."""
        self._nursery.start_soon(task, *arguments)

    async def run(self, listen: Address | None, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until cancelled; started with the address it listens on. Raises PreflightError when it cannot listen."""
        socket = await bind(listen) if listen else None
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._close_idle)
                bound = None
                if listen and socket:
                    bound = Address(listen.kind, listen.host, socket.getsockname()[1])
                    self._nursery.start_soon(self._listener.accept, socket, self._nursery)
                task_status.started(bound)
                try:
                    await trio.sleep_forever()
                finally:  # first, so that nothing that is being cancelled waits for a peer
                    for connection in self.connections():
                        connection.muxer.cut()
        finally:
            if socket:
                socket.close()

    async def request(
        self, peer: bytes, addresses: Iterable[Address], protocol: str, *messages: bytes, cap: int, what: str
    ) -> bytes:
        """`messages` there and one of at most `cap` bytes back, on a stream of its own, within the deadline for requests.

        Raises Unavailable, or a ProtocolViolation when the peer answers what is none.
        """
        with trio.move_on_after(self.timing.request):
            before = trio.current_time()
            connection = self.connection(peer)
            if connection:
                try:
                    return await self._exchange(connection, protocol, messages, cap, what)
                except Unavailable:
                    if not connection.muxer.is_dead:
                        raise  # else the peer may have restarted, and the connection was to the one before
                finally:
                    if connection.muxer.heard < before and trio.current_time() - before >= self.timing.request:
                        connection.muxer.cut()
            connection = await self.connect(peer, addresses)
            return await self._exchange(connection, protocol, messages, cap, what)
        raise Unavailable(f"no answer within {self.timing.request:g} s")

    async def connect(self, peer: bytes, addresses: Iterable[Address]) -> PeerConnection:
        """A live connection to `peer`, dialled at all its `addresses` at once if there is none. Raises Unavailable."""
        return self.connection(peer) or await self._dial_any(peer, addresses)

    async def dial(self, peer: bytes, ip: Address) -> PeerConnection:
        """A connection to `peer` at this very address, wherever that lies: a person named it.

        Raises Unavailable, or a ProtocolViolation when something else answers there.
        """
        with trio.move_on_after(self.timing.dial):
            return await self._dial(peer, ip)
        raise Unavailable(f"no answer within {self.timing.dial:g} s")

    @asynccontextmanager
    async def stream(
        self, connection: PeerConnection, protocol: str, *messages: bytes, lasting: bool = False
    ) -> AsyncIterator[Stream]:
        """A stream on which `protocol` was agreed upon and `messages` were said; a `lasting` one does not make its connection busy. Raises
        Unavailable when the peer does not speak it; needs a deadline around it."""
        connection.used = trio.current_time()
        connection.busy += not lasting
        try:
            with foreign_errors("the connection"):
                stream = connection.stream(await connection.muxer.open_stream())
            try:
                await negotiation.propose(stream, protocol, then=b"".join(map(negotiation.message, messages)))
                yield stream
            finally:
                await self._reset(stream)
        finally:
            connection.busy -= not lasting

    # ---- dialling ----

    async def _dial_any(self, peer: bytes, addresses: Iterable[Address]) -> PeerConnection:
        usable = [place for place in addresses if place.is_dialable and (self._loopback or not place.is_loopback)]
        if not usable or peer == self.identity.peer:
            raise Unavailable("it has no address that can be dialled from here")
        made: list[PeerConnection] = []
        problems: list[str] = []

        async def attempt(place: Address) -> None:
            try:
                if place.ip is None:
                    for resolved in await self.resolve(place):
                        nursery.start_soon(attempt, resolved)
                else:
                    made.append(await self._dial_once(peer, place))
                    nursery.cancel_scope.cancel()
            except MurmurationError as error:
                problems.append(f"{place.host}:{place.port}: {error}")

        with trio.move_on_after(self.timing.dial):
            async with trio.open_nursery() as nursery:
                for place in usable:
                    nursery.start_soon(attempt, place)
        if not made:
            where = " or ".join(f"{place.host}:{place.port}" for place in usable)
            raise Unavailable("; ".join(problems) or f"{where}: no answer within {self.timing.dial:g} s")
        return made[0]

    async def resolve(self, place: Address, *, loopback: bool | None = None) -> list[Address]:
        """The IPs behind a DNS name. Raises Unavailable. A name that a stranger gave leads no more into this machine's interior than
        an IP does; one that a person gave may (`loopback`)."""
        try:
            found = await trio.to_thread.run_sync(  # type: ignore[call-arg, unused-ignore]
                lambda: getaddrinfo(place.host, place.port, _FAMILIES[place.kind], trio.socket.SOCK_STREAM),
                abandon_on_cancel=True,
                limiter=self._resolving,
            )
        except (OSError, UnicodeError) as error:
            why = reason(error) if isinstance(error, OSError) else "no name that can be looked up"
            raise Unavailable(f"the name does not resolve: {why}") from error
        ips = dict.fromkeys(str(entry[4][0]) for entry in found if "%" not in str(entry[4][0]))
        behind = [Address("ip6" if ":" in ip else "ip4", ip, place.port) for ip in islice(ips, _IPS_PER_NAME)]
        inside = self._loopback if loopback is None else loopback
        usable = [each for each in behind if each.is_dialable and (inside or not each.is_loopback)]
        if not usable:
            raise Unavailable("no address behind this name can be dialled from here")
        return usable

    async def _dial_once(self, peer: bytes, place: Address) -> PeerConnection:
        """Dials, or waits for whoever dials the same address. Another address of the same peer, which a stranger may have
        made up, holds up nobody."""
        lock = self._dials.setdefault((peer, place), trio.Lock())
        try:
            async with lock:
                return self.connection(peer) or await self._dial(peer, place)
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._dials.pop((peer, place), None)

    async def reach(self, peer: bytes, place: Address) -> None:
        """Dials anew, whatever connections there are, and hangs up once `peer` has proven its key there.

        Raises Unavailable, or a ProtocolViolation when something else answers.
        """
        with trio.move_on_after(self.timing.dial):
            upgraded, _ = await self._upgrade(peer, place)
            upgraded.muxer.cut()
            return
        raise Unavailable(f"no answer within {self.timing.dial:g} s")

    async def _dial(self, peer: bytes, place: Address) -> PeerConnection:
        upgraded, ends = await self._upgrade(peer, place)
        standing = self.connection(peer)
        # Made at another address meanwhile. An inbound one does not count: its end may just be dropping it for ours.
        if standing and standing.outbound:
            upgraded.muxer.cut()
            return standing
        connection = PeerConnection(upgraded, *ends, outbound=True)
        self._adopt(connection)
        return connection

    async def _upgrade(self, peer: bytes, place: Address) -> tuple[Upgraded, tuple[str, int, str]]:
        try:
            socket = await trio.open_tcp_stream(place.host, place.port)
        except OSError as error:
            raise Unavailable(reason(error)) from error
        try:
            with foreign_errors("the connection"):
                ends = ends_of(socket.socket)
            return await upgrade(socket, self.identity, self.limits, self.timing, expected=peer), ends
        except BaseException:
            socket.socket.close()
            raise

    async def _exchange(
        self, connection: PeerConnection, protocol: str, messages: tuple[bytes, ...], cap: int, what: str
    ) -> bytes:
        async with self.stream(connection, protocol, *messages) as stream:
            answer = await stream.read_message(cap, what)
            with suppress(Unavailable):  # the answer is whole, whatever became of the connection after it
                await (
                    stream.finish()
                )  # not before: not every implementation answers one that has (py-libp2p's does not)
                await stream.expect_end()
            return answer

    def _thin_out(self, newest: PeerConnection) -> None:
        """Over the cap, the connection that is missed least goes: one of the address that has most of them, of these an idle one before a
        busy one (a silent stream is enough to look busy) and a visitor's before a resident's. Residents are those who have been here longest, up to their share of the cap: so whoever comes
        to a full house asks what it wants to know, and makes way for the next, and nobody who is settled is sent to dial again.
        Refusing newcomers instead would let an attacker keep others out by being first."""
        connections = self.connections()
        if len(connections) <= self.limits.connections:
            return
        came = sorted((each for each in connections if not each.outbound), key=lambda each: each.since)
        visitors = {id(each) for each in came[round(self.limits.residents * self.limits.connections) :]}
        loose = [each for each in came if not (each.kept or each.muxer.is_dead)]
        crowd = Counter(network_of(each.remote) for each in loose)
        least = min(
            loose,
            key=lambda each: (-crowd[network_of(each.remote)], bool(each.busy), id(each) not in visitors, each.used),
            default=newest,
        )
        least.muxer.cut()
        self.counts["made room"] += 1

    # ---- serving ----

    def _take_in(self, upgraded: Upgraded, ends: tuple[str, int, str]) -> None:
        self._adopt(PeerConnection(upgraded, *ends, outbound=False))

    def _adopt(self, connection: PeerConnection) -> None:
        group = self._connections[connection.peer]
        group.append(connection)
        for oldest in group[: -self.limits.connections_per_peer]:
            oldest.muxer.cut()
        if not connection.outbound:
            self.welcomed += connection.remote != connection.local
            self._thin_out(connection)
        self._nursery.start_soon(self._serve, connection)

    async def _serve(self, connection: PeerConnection) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._accept_streams, connection, nursery)
                try:
                    await connection.muxer.start()
                except Exception as error:  # noqa: BLE001  whatever ends a connection ends only that one
                    if not _is_expected(error):
                        _log_unexpected("a connection", connection.peer, error)
                nursery.cancel_scope.cancel()
        finally:
            self._abandon(connection)

    async def _accept_streams(self, connection: PeerConnection, nursery: trio.Nursery) -> None:
        while True:
            try:
                stream = connection.stream(await connection.muxer.accept_stream())
            except CONNECTION_ERRORS:
                return  # the muxer has ended, and with it all there is to serve
            if connection.busy >= self.limits.streams_per_connection:
                self.counts["refused streams"] += 1
                nursery.start_soon(self._reset, stream)
            else:
                connection.busy += 1
                connection.used = trio.current_time()
                nursery.start_soon(self._serve_stream, stream, connection)

    async def _serve_stream(self, stream: Stream, connection: PeerConnection) -> None:
        try:
            with trio.fail_after(self.timing.stream) as scope:
                protocol = await negotiation.accept(stream, self._handlers)
                if protocol in self._lasting:
                    await self._last(stream, connection, protocol, scope)
                else:
                    await self._handlers[protocol](stream)
                await stream.finish()
                await stream.expect_end()
        except (MurmurationError, trio.TooSlowError) as error:
            self.counts["failed streams"] += 1
            log.debug("a stream of %s failed: %s", peer_text(stream.peer), error)
        except Exception as error:  # noqa: BLE001  a handler's fault ends its stream, never the node
            self.counts["failed streams"] += 1
            _log_unexpected("a stream handler", stream.peer, error)
        finally:
            connection.busy -= 1
            await self._reset(stream)

    async def _last(self, stream: Stream, connection: PeerConnection, protocol: str, scope: trio.CancelScope) -> None:
        """Serves a stream that stays. `scope` has the deadline of others; what comes after is to end in time again."""
        if connection.lasting >= _LASTING_MOST:
            raise Malformed("the peer opens one lasting stream after the other")
        await stream.flush()  # what was agreed upon: nothing may be said here for long
        scope.deadline = inf
        connection.busy -= 1
        connection.lasting += 1
        try:
            await self._handlers[protocol](stream)
        finally:
            connection.busy += 1
            connection.lasting -= 1
            scope.deadline = trio.current_time() + self.timing.stream

    @staticmethod
    async def _reset(stream: Stream) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _RESET_SECONDS):
            try:
                await stream.reset()
            except Unavailable as error:
                log.debug("a stream was gone before its reset: %s", error)

    def _abandon(self, connection: PeerConnection) -> None:
        connection.muxer.cut()
        group = self._connections[connection.peer]
        group.remove(connection)
        if not group:
            del self._connections[connection.peer]
        if not connection.outbound:
            self._listener.leave(connection.remote)
        self.on_lost(connection)

    async def _close_idle(self) -> None:
        while True:
            await trio.sleep(self.timing.idle / 4)
            now = trio.current_time()
            for connection in self.connections():
                unused = connection.outbound and not connection.kept and not connection.busy
                if unused and now - connection.used > self.timing.idle:
                    connection.muxer.cut()


def _is_expected(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_expected(each) for each in error.exceptions)
    return isinstance(error, (MurmurationError, *CONNECTION_ERRORS))


def _log_unexpected(what: str, peer: bytes, error: BaseException) -> None:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    log.error("%s of %s failed: %s: %s", what, peer_text(peer), type(error).__name__, error)
