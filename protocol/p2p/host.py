"""A libp2p node in a thread of its own, and the synchronous face it shows to all other threads.

The node lives in trio; nothing else of the project does. Every call in here takes a deadline and keeps it, whatever state
the thread is in. A fault that reaches the thread's top is logged in one line and the node starts anew, with the same key,
port and announcements; calls that were under way end with Unavailable.

Starting needs no network: a host whose bootnodes are down keeps trying in the background.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from protocol import metrics
from protocol.errors import (
    ConfigError,
    DeadlineExceeded,
    Malformed,
    MurmurationError,
    PreflightError,
    Unavailable,
    UsageError,
)
from protocol.metrics import REGISTRY
from protocol.p2p.address import ADDRESSES_MAX, Address, PeerAddress, peer_text
from protocol.p2p.settings import HostLimits, Setup, Timing
from protocol.retry import Backoff

if TYPE_CHECKING:
    from protocol.identity import Key
    from protocol.p2p.discovery import Discovery
    from protocol.p2p.life import Life
    from protocol.p2p.service import Endpoint, Service
    from protocol.p2p.subject import GossipSubject

log = logging.getLogger(__name__)

T = TypeVar("T")

_PEERS = metrics.gauge("murmur_p2p_peers", "Peers in the routing table.")
_CONNECTIONS = metrics.gauge("murmur_p2p_connections", "Open libp2p connections.")
_RECORDS = metrics.gauge("murmur_p2p_records", "Provider records held for others.")
_GOSSIPING = metrics.gauge("murmur_p2p_gossip_peers", "Peers with whom this role gossips.")
_GOSSIP = metrics.counter(
    "murmur_p2p_gossip_total",
    "Messages and frames of gossip: heard, forwarded, refused and why, peers cut off.",
    "event",
)
_EVENTS = metrics.counter(
    "murmur_p2p_events_total", "Connections, streams and answers that were refused or failed.", "event"
)

_SLACK_SECONDS = 1.0  # the thread keeps a deadline itself; should it be too busy to, its caller does, this much later
_RESTART_SECONDS = (0.5, 30.0)
_HEALTHY_SECONDS = 60.0
_MEASURE_SECONDS = 1.0  # for the host's part of the metrics


@dataclass(frozen=True)
class HostStatus:
    """A glance at a host. `reason` says what is wrong while it has not joined; `counts` what it refused and dropped."""

    joined: bool
    peers: int
    connections: int
    records: int
    reason: str
    counts: dict[str, int]
    gossiping: int
    """Peers with whom it gossips."""
    gossip: dict[str, int]


def read_addresses(
    listen: str | None, bootnodes: Iterable[str], announce: Iterable[str]
) -> tuple[Address | None, tuple[PeerAddress, ...], tuple[Address, ...]]:
    """The addresses of a host as settings have them. Raises ConfigError for what nobody can listen on, dial or be told."""
    try:
        at = Address.parse(listen) if listen else None
        known = tuple(PeerAddress.parse(text) for text in bootnodes)
        announced = tuple(Address.parse(text) for text in announce)
    except Malformed as error:
        raise ConfigError(f"p2p: {error}") from error
    if len(announced) > ADDRESSES_MAX:
        raise ConfigError(f"p2p: at most {ADDRESSES_MAX} addresses can be announced")
    if at and at.ip is None:
        raise ConfigError(f"p2p: {listen} is no address of this machine to listen on; give an IP")
    for address in announced:
        if not address.is_dialable:
            raise ConfigError(f"p2p: nobody can dial {address}; announce the address and port that lead here")
    return at, known, announced


class Host:
    """Starts on entering the context or with `start`, ends on leaving it or with `close`."""

    def __init__(
        self,
        key: Key,
        listen: str | None = "/ip4/127.0.0.1/tcp/0",
        bootnodes: Iterable[str] = (),
        *,
        announce: Iterable[str] = (),
        peers_file: Path | None = None,
        report_file: Path | None = None,
        timing: Timing = Timing(),
        limits: HostLimits = HostLimits(),
    ) -> None:
        """`listen` None makes a host that only asks: it takes no connections and cannot provide anything.

        `announce` are addresses others shall use instead of `listen`, for a machine behind a forwarded port; listening on
        all interfaces (/ip4/0.0.0.0/…) needs none, others then use the address they see. `report_file` is where
        the host says how it does, for commands in other processes. Raises ConfigError.
        """
        at, known, announced = read_addresses(listen, bootnodes, announce)
        self._setup = Setup(
            key=key,
            listen=at,
            bootnodes=known,
            announce=announced,
            peers_file=peers_file,
            report_file=report_file,
            timing=timing,
            limits=limits,
        )
        self._announcements: dict[Service, Endpoint] = {}
        self._state = threading.Condition()
        self._life: Life | None = None
        self._fatal: MurmurationError | None = None
        self._addresses: tuple[str, ...] = ()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._measured = ExitStack()

    def __enter__(self) -> Host:
        self.start()
        self._measured.enter_context(REGISTRY.looking(self._measure))
        return self

    def __exit__(self, *_: object) -> None:
        self._measured.close()
        self.close()

    @property
    def peer_id(self) -> str:
        return self._setup.key.peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs others can give as bootnode, /p2p/PeerID included; none unless it listens."""
        return self._addresses

    def start(self) -> None:
        """Returns once it listens. Raises PreflightError when it cannot, DeadlineExceeded when it takes too long."""
        if self._thread is not None:
            raise UsageError("a p2p host is started once")
        self._thread = threading.Thread(target=self._supervise, name="p2p", daemon=True)
        self._thread.start()
        try:
            self._await_life(time.monotonic() + self._setup.timing.start, "starting the p2p host")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the thread, within its deadline. May be called again, and after a failed start."""
        self._closing.set()
        with self._state:
            life = self._life
            self._state.notify_all()
        if life is not None:
            life.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._setup.timing.close)
            if self._thread.is_alive():
                log.error("the p2p thread did not end within %g s", self._setup.timing.close)

    def join(self, deadline: float) -> None:
        """Waits until other peers are known. Raises Unavailable with the reason after `deadline` seconds."""

        async def joined(discovery: Discovery) -> None:
            await discovery.membership.wait_joined(deadline)

        self.run_inside(joined, deadline=deadline + _SLACK_SECONDS, what="joining the network")

    def status(self, deadline: float = 5.0) -> HostStatus:
        """Raises Unavailable while the host is not running."""

        async def look(discovery: Discovery) -> HostStatus:
            node, membership = discovery.node, discovery.membership
            mesh = discovery.gossip.mesh if discovery.gossip else None
            return HostStatus(
                joined=membership.is_joined,
                peers=len(discovery.dht.table),
                connections=len(node.connections()),
                records=len(discovery.dht.records),
                reason="" if membership.is_joined else membership.reason(),
                counts=dict(node.counts + discovery.dropped),
                gossiping=len(mesh.neighbours) if mesh else 0,
                gossip=dict(mesh.counts) if mesh else {},
            )

        return self.run_inside(look, deadline=deadline, what="the status of the p2p host")

    def _measure(self) -> None:
        """For the metrics. Raises Unavailable while the host is not running."""
        found = self.status(deadline=_MEASURE_SECONDS)
        _PEERS.set(found.peers)
        _CONNECTIONS.set(found.connections)
        _RECORDS.set(found.records)
        for event, count in found.counts.items():
            _EVENTS.reach(count, event=event)
        _GOSSIPING.set(found.gossiping)
        for event, count in found.gossip.items():
            _GOSSIP.reach(count, event=event)

    def provide(self, service: Service, endpoint: Endpoint | None) -> None:
        """Provides `service` from now on, or no longer; used by `Directory`."""
        if self._setup.listen is None:
            raise UsageError("a p2p host that does not listen cannot provide anything")
        with self._state:
            changed = dict(self._announcements)
            if endpoint is None:
                changed.pop(service, None)
            else:
                changed[service] = endpoint
            self._announcements = changed
            life = self._life
        if life is not None:
            life.soon(life.discovery.announce_again)

    def add_bootnodes(self, named: Iterable[PeerAddress]) -> None:
        """Goes to these as well, from now on and over restarts."""
        with self._state:
            fresh = tuple(each for each in dict.fromkeys(named) if each not in self._setup.bootnodes)
            self._setup = replace(self._setup, bootnodes=(*self._setup.bootnodes, *fresh))
            life = self._life
        if life is not None and fresh:
            life.soon(lambda: life.discovery.membership.add(fresh))

    def gossip_about(self, subject: GossipSubject) -> None:
        """From now on, over restarts; about one subject."""
        with self._state:
            self._setup = replace(self._setup, subject=subject)
            life = self._life
        if life is not None:
            life.soon(lambda: life.discovery.gossip_about(subject))

    def publish(self, data: bytes) -> None:
        """Tells those who gossip about the same subject; nobody where there is none now. May be called from any thread, and returns at once."""
        with self._state:
            life = self._life
        if life is not None:
            life.soon(lambda: life.discovery.publish(data))

    def run_inside(self, function: Callable[[Discovery], Awaitable[T]], *, deadline: float, what: str) -> T:
        """Runs `function` in the thread and returns its result.

        Raises what it raises, DeadlineExceeded after `deadline` seconds, and Unavailable when the host stops meanwhile;
        `what` names the wait in these.
        """
        end = time.monotonic() + deadline
        life = self._await_life(end, what)
        left = max(0.0, end - time.monotonic())
        future = life.begin(function, left, what)
        try:
            return cast(T, future.result(timeout=left + _SLACK_SECONDS))
        except FutureTimeout:
            if future.done():
                raise
            raise DeadlineExceeded(f"{what} took longer than {deadline:g} s") from None
        finally:
            future.cancel()

    # ---- the thread ----

    def _await_life(self, end: float, what: str) -> Life:
        with self._state:
            while self._life is None:
                if self._fatal is not None:
                    raise self._fatal
                if self._closing.is_set() or self._thread is None:
                    raise Unavailable(f"{what}: the p2p host is not running")
                if not self._state.wait(max(0.0, end - time.monotonic())):
                    raise DeadlineExceeded(f"{what}: the p2p host did not come up in time")
            return self._life

    def _supervise(self) -> None:
        backoff = Backoff(*_RESTART_SECONDS, jitter=True)
        lived = False
        while not self._closing.is_set():
            began, fault = time.monotonic(), None
            try:
                self._live()
            except Exception as error:  # noqa: BLE001  the supervisor: whatever it was, the node starts anew
                fault = innermost(error)
            lived = self._end_life() or lived
            if fault is None or self._closing.is_set():
                continue
            if not lived:
                self._give_up(fault)
                return
            if time.monotonic() - began > _HEALTHY_SECONDS:
                backoff.succeeded()
            pause = backoff.failed()
            log.error("p2p failed and starts anew in %.1f s: %s: %s", pause, type(fault).__name__, fault)
            self._closing.wait(pause)

    def _live(self) -> None:
        """One life, from listening to its end."""
        import trio

        from protocol.p2p.life import Life

        life = Life(self._setup, lambda: self._announcements)

        def started() -> None:
            discovery = life.discovery
            peer_id = peer_text(self._setup.key.peer)
            with self._state:
                self._life = life
                self._setup = replace(self._setup, listen=discovery.bound)  # the next life keeps the port
                self._addresses = tuple(f"{place}/p2p/{peer_id}" for place in discovery.own)
                subject, bootnodes = self._setup.subject, self._setup.bootnodes
                self._state.notify_all()
            discovery.membership.add(bootnodes)  # named while this life came up
            if subject:  # named while this life came up
                discovery.gossip_about(subject)
            if self._closing.is_set():
                life.stop()

        trio.run(life.run, started)

    def _end_life(self) -> bool:
        """Lets everybody who waits know. False when the life never came to listening."""
        with self._state:
            life, self._life = self._life, None
        if life is None:
            return False
        life.ended()
        return True

    def _give_up(self, cause: BaseException) -> None:
        if not isinstance(cause, MurmurationError):
            log.error("p2p cannot start: %s: %s", type(cause).__name__, cause)
            cause = PreflightError(f"p2p cannot start: {type(cause).__name__}: {cause}")
        with self._state:
            self._fatal = cause
            self._state.notify_all()


def innermost(error: BaseException) -> BaseException:
    """The first fault in what trio and its nurseries have wrapped it into."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif type(error).__name__ == "TrioInternalError" and error.__cause__:
            error = error.__cause__
        else:
            return error
