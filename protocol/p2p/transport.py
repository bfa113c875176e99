"""One connection: TCP, then Noise, then Yamux; nothing else is offered. py-libp2p's parts, made safe against strangers.

Its Noise, Yamux and PeerIDs are used; its Swarm, BasicHost and KadDHT are not, for reasons a test holds each
(tests/p2p): they accept plaintext identities by default, one bad byte in a stream's negotiation ends the
process' whole host, an accepted connection takes its slot for ever, twelve silent streams shut the DHT, and two hosts
listen on one port without noticing.

What Yamux itself lacks is added here: it trusts the remote to respect flow control, has no limit on what a connection
sends, garbles the encrypted stream when a write is cancelled half-way, and never notices a dead peer.
"""

from __future__ import annotations

import logging
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import trio
from libp2p.crypto.secp256k1 import create_new_key_pair as secp256k1_pair
from libp2p.crypto.x25519 import create_new_key_pair as x25519_pair
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.security.secure_session import SecureSession
from libp2p.stream_muxer.yamux.yamux import FLAG_SYN, TYPE_PING, YAMUX_HEADER_FORMAT, Yamux

from protocol.errors import MurmurationError, Unavailable
from protocol.identity import Key, check_peer
from protocol.p2p import negotiation
from protocol.p2p.address import plain_ip
from protocol.p2p.settings import HostLimits, Timing

NOISE: Final = "/noise"
YAMUX: Final = "/yamux/1.0.0"

_ANSWERED = re.compile(r"remote_peer_id_from_pubkey=([1-9A-HJ-NP-Za-km-z]{1,64})$")  # in what the library's error says
_WHERE = re.compile(r"^error connecting to \(.*?\): ")  # trio's; whoever tells has said where

if not os.environ.get("LIBP2P_DEBUG"):
    # The library sets its loggers up without a handler, so that Python prints its warnings to stderr: a line or a traceback
    # for every stranger that hangs up. What matters of it we log ourselves.
    logging.getLogger("libp2p").addHandler(logging.NullHandler())


class Identity:
    """The node's secp256k1 key as libp2p wants it, and the Noise key that is signed with it."""

    def __init__(self, key: Key) -> None:
        pair = secp256k1_pair(key.secret)
        self.peer = key.peer
        self.public = pair.public_key.serialize()
        self.noise = NoiseTransport(pair, noise_privkey=x25519_pair().private_key)


class StreamBudget:
    """A token bucket: `burst` at once, `rate` per second after that."""

    def __init__(self, burst: float, rate: float) -> None:
        self._burst, self._rate = burst, rate
        self._left, self._since = burst, trio.current_time()

    def spend(self, amount: float) -> bool:
        """Takes `amount`; False when the bucket did not hold it."""
        now = trio.current_time()
        self._left = min(self._burst, self._left + (now - self._since) * self._rate) - amount
        self._since = now
        return self._left >= 0

    @property
    def is_full(self) -> bool:
        return self._left + (trio.current_time() - self._since) * self._rate >= self._burst


class _Socket(TrioTCPStream):  # type: ignore[misc, unused-ignore]
    """py-libp2p asks a hundred times more after the end of a connection; this says it once."""

    async def read(self, n: int | None = None) -> bytes:
        data = await super().read(n)
        if not data and n != 0:
            raise ConnectionClosedError("connection closed")
        return bytes(data)


class Metered:
    """A Noise session whose connection is cut when its remote sends more than it may."""

    def __init__(self, session: SecureSession, socket: trio.SocketStream, limits: HostLimits) -> None:
        self._session = session
        self._socket = socket
        self._frame = limits.frame
        self._bytes = StreamBudget(limits.receive_burst, limits.receive_rate)
        self._frames = StreamBudget(limits.frames_burst, limits.frames_rate)
        self.heard = trio.current_time()

    async def read(self, count: int) -> bytes:
        if count > self._frame or not self._frames.spend(1) or not self._bytes.spend(count):
            self._socket.socket.close()  # an error alone would not do: Yamux logs some and reads on
            raise ConnectionClosedError("connection closed: the peer sends too much")
        data = await self._session.read(count)
        self.heard = trio.current_time()
        return bytes(data)

    async def write(self, data: bytes) -> None:
        await self._session.write(data)

    async def close(self) -> None:
        await self._session.close()


class BoundedYamux(Yamux):  # type: ignore[misc, unused-ignore]
    """Yamux with a cap on unread bytes, writes that are whole or fatal, and a liveness check instead of RTT statistics."""

    def __init__(
        self,
        session: Metered,
        peer: bytes,
        socket: trio.SocketStream,
        limits: HostLimits,
        timing: Timing,
        *,
        outbound: bool,
    ) -> None:
        super().__init__(session, ID(peer), is_initiator=outbound)
        self._session = session
        self._socket = socket
        self._buffered = limits.buffered
        self._timing = timing

    @property
    def heard(self) -> float:
        """When the remote last sent anything, in trio's time."""
        return self._session.heard

    @property
    def is_dead(self) -> bool:
        return bool(self.event_shutting_down.is_set())

    def cut(self) -> None:
        """Ends the connection at once and without a word; everything that waits on it wakes with an error."""
        self.event_shutting_down.set()
        self._socket.socket.close()

    async def _read_data_body(self, length: int) -> bytes:
        if sum(map(len, self.stream_buffers.values())) + length > self._buffered:
            raise trio.TooSlowError  # the one error on which Yamux closes the connection from everywhere it reads bodies
        return bytes(await super()._read_data_body(length))

    async def _write_frame(self, data: bytes) -> None:
        async with self._write_lock:
            # A frame cut off in the middle would garble every later one, so a cancelled caller lets this one finish.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._timing.write) as scope:
                await self.secured_conn.write(data)
            if scope.cancelled_caught:
                self.cut()
                raise ConnectionClosedError("connection closed: the peer does not read")
        await trio.lowlevel.checkpoint()

    async def _measure_rtt_loop(self) -> None:
        while not self.is_dead:
            with trio.move_on_after(self._timing.ping):
                await self.event_shutting_down.wait()
            if self.is_dead or trio.current_time() - self.heard < self._timing.ping:
                continue
            try:
                await self.ping(self._timing.pong)
            except Unavailable:
                self.cut()

    async def ping(self, seconds: float) -> float:
        """Seconds to the other end and back, by Yamux's own ping, which every implementation answers; one at a time.

        Raises Unavailable without an answer within `seconds`.
        """
        self._ping_id += 1
        self._ping_event = trio.Event()
        self._ping_sent_time = began = trio.current_time()
        with trio.move_on_after(seconds), foreign_errors("the connection"):
            await self._write_frame(struct.pack(YAMUX_HEADER_FORMAT, 0, TYPE_PING, FLAG_SYN, 0, self._ping_id))
            await self._ping_event.wait()
            return trio.current_time() - began
        raise Unavailable(f"no answer to a ping within {seconds:g} s")


@dataclass(frozen=True)
class Upgraded:
    """A connection whose other end has proven to hold the key of `peer`."""

    peer: bytes
    muxer: BoundedYamux


async def upgrade(
    socket: trio.SocketStream, identity: Identity, limits: HostLimits, timing: Timing, *, expected: bytes | None
) -> Upgraded:
    """Noise and Yamux over a fresh TCP connection; `expected` is whom we dialled, None when we were dialled.

    Raises a ProtocolViolation, or Unavailable, also when somebody else than `expected` answered. Needs a deadline around it.
    """
    outbound = expected is not None
    raw = RawConnection(_Socket(socket), outbound)
    with foreign_errors("the connection"):
        if expected is not None:
            await negotiation.propose(raw, NOISE)
            with _handshake_errors():
                session = await identity.noise.secure_outbound(raw, ID(expected))
        else:
            await negotiation.accept(raw, (NOISE,))
            with _handshake_errors():
                session = await identity.noise.secure_inbound(raw)
        peer = session.get_remote_peer().to_bytes()
        check_peer(peer)
        metered = Metered(session, socket, limits)
        if outbound:
            await negotiation.propose(metered, YAMUX)
        else:
            await negotiation.accept(metered, (YAMUX,))
    return Upgraded(peer, BoundedYamux(metered, peer, socket, limits, timing, outbound=outbound))


CONNECTION_ERRORS: Final = (BaseLibp2pError, OSError, EOFError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What sockets, trio and libp2p raise when a connection ends."""


@contextmanager
def foreign_errors(what: str) -> Iterator[None]:
    """Maps CONNECTION_ERRORS into Unavailable."""
    try:
        yield
    except CONNECTION_ERRORS as error:
        raise Unavailable(f"{what} broke: {str(error) or type(error).__name__}") from error


@contextmanager
def _handshake_errors() -> Iterator[None]:
    try:
        yield
    except MurmurationError:
        raise
    except Exception as error:  # noise, cryptography, coincurve and protobuf raise many kinds
        if type(error).__name__ == "PeerIDMismatchesPubkey":
            who = _ANSWERED.search(str(error))
            raise Unavailable(
                "somebody else answers there" + (f": {who[1]}" if who else ": the PeerID is another one")
            ) from error
        raise Unavailable(f"the Noise handshake failed: {str(error) or type(error).__name__}") from error


def ends_of(socket: trio.socket.SocketType) -> tuple[str, int, str]:
    """The remote IP and port, and the local IP, of a TCP connection. Raises OSError when it has ended."""
    host, port = socket.getpeername()[:2]
    return plain_ip(host), port, plain_ip(socket.getsockname()[0])


def reason(error: OSError) -> str:
    """Why in a few words; trio wraps the reasons of several attempts."""
    cause: BaseException | None = error
    while isinstance(cause, OSError) and not cause.strerror and (cause.__cause__ or cause.__context__):
        cause = cause.__cause__ or cause.__context__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    text = cause.strerror if isinstance(cause, OSError) else None
    return _WHERE.sub("", (text or str(cause) or type(error).__name__).lower())
