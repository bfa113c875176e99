"""A peer that behaves as it likes: authenticated connections on which any frame can be sent, and raw sockets."""

from __future__ import annotations

import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import trio
from libp2p.stream_muxer.yamux.yamux import FLAG_SYN, TYPE_DATA, TYPE_WINDOW_UPDATE, YAMUX_HEADER_FORMAT

from protocol.identity import Key
from protocol.p2p import Host, HostLimits, Timing, negotiation
from protocol.p2p.address import PeerAddress
from protocol.p2p.transport import CONNECTION_ERRORS, BoundedYamux, Identity, upgrade

ELSEWHERE = "127.0.0.9"
"""An address of this machine that no honest host of a test uses."""

BOUNDLESS = HostLimits(buffered=1 << 40, frame=1 << 40, receive_burst=1 << 40, frames_burst=1 << 40)
PATIENT = Timing(ping=600, write=60)


class Hostile:
    def __init__(self, muxer: BoundedYamux) -> None:
        self.muxer = muxer

    async def frame(self, kind: int, flags: int, stream: int, length: int, body: bytes = b"") -> None:
        """Also to a connection that was cut off: `muxer.is_dead` tells."""
        await trio.lowlevel.checkpoint()
        with suppress(*CONNECTION_ERRORS):
            await self.muxer.secured_conn.write(struct.pack(YAMUX_HEADER_FORMAT, 0, kind, flags, stream, length) + body)

    async def open(self, stream: int) -> None:
        await self.frame(TYPE_WINDOW_UPDATE, FLAG_SYN, stream, 0)

    async def data(self, stream: int, body: bytes, flags: int = 0) -> None:
        await self.frame(TYPE_DATA, flags, stream, len(body), body)

    async def speak(self, stream: int, protocol: str, body: bytes = b"") -> None:
        """Opens `stream`, proposes `protocol` and goes on with `body` at once."""
        lines = [f"{negotiation.HEADER}\n".encode(), f"{protocol}\n".encode()]
        await self.open(stream)
        await self.data(stream, b"".join(negotiation.message(line) for line in lines) + body)

    async def cut_off(self) -> None:
        """Waits until the other side has had enough."""
        with trio.fail_after(20):
            await self.muxer.event_shutting_down.wait()


@asynccontextmanager
async def hostile(host: Host | str, *, key: Key | None = None, source: str = ELSEWHERE) -> AsyncIterator[Hostile]:
    """An authenticated connection to `host` from the address `source`."""
    known = PeerAddress.parse(host if isinstance(host, str) else host.addresses[0])
    socket = await trio.open_tcp_stream(known.address.host, known.address.port, local_address=source)
    try:
        with trio.fail_after(20):
            upgraded = await upgrade(socket, Identity(key or Key.generate()), BOUNDLESS, PATIENT, expected=known.peer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(upgraded.muxer.start)
            await upgraded.muxer.event_started.wait()
            try:
                yield Hostile(upgraded.muxer)
            finally:
                upgraded.muxer.cut()
                nursery.cancel_scope.cancel()
    finally:
        socket.socket.close()


@contextmanager
def under_attack(attack: Callable[[trio.Event], Awaitable[None]]) -> Iterator[None]:
    """Runs `attack` in a thread while the block runs. The attack sets the event it is given once it is in full swing."""
    swinging, over = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    async def main() -> None:
        started = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attack, started)
            await started.wait()
            swinging.set()
            while not over.is_set():
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:  # noqa: BLE001  shown by the test below
            failed.append(error)
        finally:
            swinging.set()

    thread = threading.Thread(target=run, name="attacker")
    thread.start()
    try:
        assert swinging.wait(30), "the attack did not begin"
        assert not failed, failed
        yield
    finally:
        over.set()
        thread.join(20)
    assert not failed, failed
