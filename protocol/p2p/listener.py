"""Being dialled: which strangers may try to prove their key, how many of a network at once, and who dallies.

A stranger counts for its network (an IPv4 address or an IPv6 /64) from the moment its socket is accepted until its handshake fails or its
connection ends. What becomes of it once it has proven a key is the node's affair (node.py).
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Callable

import trio

from protocol.errors import MurmurationError, PreflightError
from protocol.p2p.address import Address, network_of
from protocol.p2p.settings import HostLimits, Timing
from protocol.p2p.transport import Identity, StreamBudget, Upgraded, ends_of, reason, upgrade

log = logging.getLogger(__name__)

_BACKLOG = 128
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_HUNG_UP = {errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EPERM}


class Listener:
    """`take_in` gets who has proven a key, and the ends of the connection; it sees to it that `leave` is called once that has ended.
    `counts` notes who was refused."""

    def __init__(
        self,
        identity: Identity,
        limits: HostLimits,
        timing: Timing,
        counts: Counter[str],
        take_in: Callable[[Upgraded, tuple[str, int, str]], None],
    ) -> None:
        self._identity = identity
        self._limits = limits
        self._timing = timing
        self._counts = counts
        self._take_in = take_in
        self._networks: Counter[str] = Counter()
        self._accepts: dict[str, StreamBudget] = {}
        self._strangers: dict[trio.SocketStream, None] = {}  # in the middle of a handshake, oldest first

    async def accept(self, listener: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        while True:
            try:
                socket, _ = await listener.accept()
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    log.warning("cannot accept a peer: %s", error.strerror)
                    await trio.sleep(1)
                elif error.errno not in _HUNG_UP:
                    raise
                continue
            try:
                ends = ends_of(socket)
                remote = ends[0]
            except OSError:  # the stranger hung up before we looked
                socket.close()
                continue
            if self.admits(network_of(remote)):
                if len(self._strangers) >= self._limits.handshakes:
                    dallying = next(iter(self._strangers))
                    del self._strangers[dallying]
                    dallying.socket.close()
                stranger = trio.SocketStream(socket)
                self._strangers[stranger] = None
                self._networks[network_of(remote)] += 1
                nursery.start_soon(self._welcome, stranger, ends)
            else:
                self._counts["refused"] += 1
                socket.close()

    def admits(self, network: str) -> bool:
        if len(self._accepts) > self._limits.connections:
            self._accepts = {name: budget for name, budget in self._accepts.items() if not budget.is_full}
        if network not in self._accepts:
            self._accepts[network] = StreamBudget(self._limits.accept_burst, self._limits.accept_rate)
        if not self._accepts[network].spend(1):
            return False
        return self._networks[network] < self._limits.connections_per_address

    async def _welcome(self, socket: trio.SocketStream, ends: tuple[str, int, str]) -> None:
        upgraded, remote = None, ends[0]
        try:
            with trio.move_on_after(self._timing.handshake):
                upgraded = await upgrade(socket, self._identity, self._limits, self._timing, expected=None)
        except MurmurationError as error:
            log.debug("a handshake with %s failed: %s", remote, error)
        except Exception as error:  # noqa: BLE001  a stranger's fault ends its connection, never the node
            log.error("a handshake with %s failed: %s: %s", remote, type(error).__name__, error)
        finally:
            self._strangers.pop(socket, None)
            if upgraded is None:
                self._counts["failed handshakes"] += 1
                self.leave(remote)
                socket.socket.close()
        if upgraded:
            self._take_in(upgraded, ends)

    def leave(self, remote: str) -> None:
        network = network_of(remote)
        self._networks[network] -= 1
        if self._networks[network] <= 0:
            del self._networks[network]


async def bind(place: Address) -> trio.socket.SocketType:
    """A listening socket that shares its port with nobody. Raises PreflightError."""
    socket = trio.socket.socket(trio.socket.AF_INET6 if place.kind == "ip6" else trio.socket.AF_INET)
    try:
        socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
        if place.kind == "ip6":  # "::" is any interface of either kind
            socket.setsockopt(trio.socket.IPPROTO_IPV6, trio.socket.IPV6_V6ONLY, int(place.host != "::"))
        await socket.bind((place.host, place.port))
        socket.listen(_BACKLOG)
    except OSError as error:
        socket.close()
        hint = "stop the other program, or choose another port" if error.errno == errno.EADDRINUSE else ""
        raise PreflightError(
            f"cannot listen on port {place.port} of {place.host}: {reason(error)}", hint=hint
        ) from error
    return socket
