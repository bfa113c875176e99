"""A stream: one question and one answer between two nodes, over a connection on which both have proven who they are."""

from __future__ import annotations

from typing import Any, Final

from protocol.errors import Malformed
from protocol.p2p import negotiation
from protocol.p2p.transport import foreign_errors

_CHUNK: Final = 64 << 10


class Stream:
    """A stream to a proven peer. Every method raises Unavailable when the connection breaks.

    What is written leaves with the next read that has to wait, or with `finish`: an answer then costs one frame, not four.
    """

    def __init__(self, raw: Any, peer: bytes, remote: str, *, port: int = 0, local: str = "") -> None:
        """`raw` is Yamux's stream, `remote` the IP of the other end and `port` its port, `local` the IP of ours."""
        self.peer = peer
        self.remote = remote
        self.port = port
        self.local = local
        self._raw = raw
        self._ahead = b""
        self._behind = b""
        self._received = 0
        self._over = False

    async def read(self, count: int) -> bytes:
        """At most `count` bytes; none when the peer has finished."""
        await self.ended()
        taken, self._ahead = self._ahead[:count], self._ahead[count:]
        return taken

    async def ended(self) -> bool:
        """Waits until the peer says more or has finished; whether it has finished."""
        if not self._ahead and not self._over:
            await self._flush()
            with foreign_errors("the stream"):
                try:
                    self._ahead = await self._receive()
                except EOFError:  # Yamux says so too when the stream was reset and forgotten, or the connection ended
                    if self._raw.conn.is_dead or self._raw.reset_received:
                        raise
            self._over = not self._ahead
        return self._over

    async def write(self, data: bytes) -> None:
        self._behind += data
        if len(self._behind) > _CHUNK:
            await self._flush()

    async def _receive(self) -> bytes:
        if self._received < _CHUNK:  # far from the end of the window, so the peer needs no frame about it
            data = await self._raw.conn.read_stream(self._raw.stream_id, _CHUNK)
        else:
            data = await self._raw.read(_CHUNK)
        self._received += len(data)
        return bytes(data)

    async def flush(self) -> None:
        """Sends what was written, on a stream on which nothing is read."""
        await self._flush()

    async def _flush(self) -> None:
        data, self._behind = self._behind, b""
        if data:
            with foreign_errors("the stream"):
                await self._raw.write(data)

    async def read_message(self, cap: int, what: str) -> bytes:
        return await negotiation.read_message(self, cap, what)

    async def write_message(self, data: bytes) -> None:
        await self.write(negotiation.message(data))

    async def finish(self) -> None:
        """Says that nothing more will be written."""
        await self._flush()
        with foreign_errors("the stream"):
            await self._raw.close()

    async def expect_end(self) -> None:
        """Waits until the peer has finished too. Raises Malformed when it says more instead."""
        if await self.read(1):
            raise Malformed("the peer goes on where its message should end")

    async def reset(self) -> None:
        """Forgets the stream on both sides, unless it ended well."""
        if not (self._raw.closed or self._raw.conn.is_dead):
            with foreign_errors("the stream"):
                await self._raw.reset()
