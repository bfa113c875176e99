"""A request to an endpoint ends in its time, from connecting to the last byte, whatever is sent meanwhile."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from swarm.faulty_endpoint import FaultyEndpoint
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.sender import SendLimits
from protocol.chain.transport import Failed, RpcTransport
from protocol.identity import Key
from tests.chain.paying import begun, deposits

_BODY = b'{"jsonrpc":"2.0","id":0,"result":"0x1"}'
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(_BODY)
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVERY = 0.1


@contextmanager
def served(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The URL of an endpoint that does this with each connection once it has been asked something."""
    server = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(1 << 16)
                answer(connection)
            except OSError:
                pass

    def serve() -> None:
        while True:
            try:
                accepted = server.accept()[0]
            except OSError:
                return
            threading.Thread(target=one, args=(accepted,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    with server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def dripping(at_once: bytes, slowly: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(at_once)
        for each in slowly:
            time.sleep(_EVERY)
            connection.sendall(bytes([each]))

    return answer


@pytest.mark.parametrize(
    ("at_once", "slowly"),
    [
        (b"", _HEAD),
        (_HEAD, b"X-A: 12345678901234567890\r\n"),
        (_HEAD + b"\r\n", _BODY),
        (_CHUNKED, b"27\r\n" + _BODY),
    ],
    ids=["status", "headers", "body", "chunks"],
)
def test_who_sends_a_byte_now_and_then_is_late(at_once: bytes, slowly: bytes) -> None:
    """No byte of the rest is read once the time is over: of some thirty only a few have come by then."""
    sent: list[int] = []

    def answer(connection: socket.socket) -> None:
        connection.sendall(at_once)
        for each in slowly:
            time.sleep(_EVERY)
            connection.sendall(bytes([each]))
            sent.append(each)

    with served(answer) as url, pytest.raises(Failed) as late:
        RpcTransport().post(url, {}, seconds=4 * _EVERY, cap=1 << 20, now=0.0)
    assert late.value.reason == "timeout"
    assert len(sent) < len(slowly) - 5


def test_one_of_three_that_never_ends_an_answer_holds_no_deed(
    world: World, honest: list[FaultyEndpoint], key: Key
) -> None:
    journal = begun(world, key)
    done: list[int] = []
    with served(dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 65536\r\n\r\n", b" " * 65_536)) as url:
        chain = Chain([*(each.url for each in honest), url], world.chain.runs.address, timeout=1)
        one = Sender(chain, key, journal, SendLimits(deadline=20))
        thread = threading.Thread(
            target=lambda: done.append(one.send(chain.deposit(key.address, TOKEN), name="deed").block), daemon=True
        )
        thread.start()
        thread.join(60)
    assert done
    assert deposits(world, key.address) == 1
