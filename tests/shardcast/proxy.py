"""A small reverse proxy that does what nginx does by default: speaks HTTP/1.1 to both, opens a connection for each request and says
`Connection: close` there, passes on every other field, and has its own name for the server. It takes guests at 127.0.0.1, and comes from `own`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from threading import Thread
from typing import Any

_HOP = re.compile(rb"\r\n(?:Connection|Host|Server): [^\r\n]*", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)", re.IGNORECASE)


class Proxy:
    """Serves while the context lasts."""

    def __init__(self, port: int, own: str = "127.0.0.1") -> None:
        self._upstream, self._own = port, own
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="proxy")
        self.passed_on: list[bytes] = []
        """Heads of requests."""

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._host, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(20)

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _host(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await self._pass_on(_with(head, b"Host: weights", b"Connection: close"), writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            pass
        finally:
            writer.close()

    async def _pass_on(self, head: bytes, guest: asyncio.StreamWriter) -> None:
        self.passed_on.append(head)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream, local_addr=(self._own, 0))
        try:
            writer.write(head)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(answer)
            assert length is not None
            guest.write(_with(answer, b"Server: proxy", b"Connection: keep-alive"))
            left = int(length[1])
            while left:
                piece = await reader.read(min(left, 1 << 16))
                if not piece:
                    raise ConnectionAbortedError
                left -= len(piece)
                guest.write(piece)
                await guest.drain()
        finally:
            writer.close()


def _with(head: bytes, *fields: bytes) -> bytes:
    return b"\r\n".join([_HOP.sub(b"", head[:-4]), *fields, b"", b""])
