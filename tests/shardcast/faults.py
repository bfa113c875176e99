"""A server that misbehaves on purpose: for every file request it does what its script says.

It answers for the manifest honestly and claims to hold everything, unless told otherwise, so that a client trusts it until
the first chunk.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread

from protocol.shardcast.holding import COMPLETE


@dataclass
class Request:
    """One request and the means to answer it badly."""

    text: str
    sock: socket.socket
    closing: Event
    content: bytes  # of the file that is asked for

    @property
    def target(self) -> str:
        return self.text.split(" ")[1]

    @property
    def range(self) -> tuple[int, int]:
        """First byte and the one after the last."""
        match = re.search(r"Range: bytes=(\d+)-(\d+)", self.text)
        assert match is not None
        return int(match[1]), int(match[2]) + 1

    @property
    def body(self) -> bytes:
        first, end = self.range
        return self.content[first:end]

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def head(self, status: str = "206 Partial Content", **changes: str | None) -> bytes:
        """The honest head of an answer, with fields changed, added or (None) left out."""
        first, end = self.range
        fields: dict[str, str | None] = {
            "Content-Length": str(end - first),
            "Content-Range": f"bytes {first}-{end - 1}/{len(self.content)}",
        }
        fields |= {name.replace("_", "-"): value for name, value in changes.items()}
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items() if value is not None)]
        return "\r\n".join([*lines, "", ""]).encode()

    def serve(self) -> None:
        self.send(self.head() + self.body)


Script = Callable[[Request], None]


def claim_everything(request: Request) -> None:
    request.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(COMPLETE) + COMPLETE)


class Scripted:
    """Listens while the context lasts. A script that returns keeps the connection; one that raises OSError ends it."""

    def __init__(
        self,
        manifest: bytes | Script,
        files: dict[str, bytes] | None = None,
        script: Script | None = None,
        holding: Script | None = None,
    ):
        self._manifest, self._files, self._script = manifest, files or {}, script or Request.serve
        self._holding = holding or claim_everything
        self._closing = Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[Thread] = []
        self._mutex = threading.Lock()
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def file_requests(self) -> list[str]:
        return [target for target in self.requests if "/files/" in target]

    def __enter__(self) -> Scripted:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._closing.set()
        for sock in (self._listener, *self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = Thread(target=target, args=arguments, name="scripted")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._closing.is_set():
                sock = self._listener.accept()[0]
                self._sockets.append(sock)
                self._start(self._answer, sock)

    def _answer(self, sock: socket.socket) -> None:
        with suppress(OSError), sock:
            while (text := _read_request(sock)) is not None:
                request = Request(text, sock, self._closing, self._files.get(text.split(" ")[1].split("/")[-1], b""))
                with self._mutex:
                    self.requests.append(request.target)
                if "/holding?" in request.target:
                    self._holding(request)
                elif not request.target.endswith("/manifest"):
                    self._script(request)
                elif callable(self._manifest):
                    self._manifest(request)
                else:
                    request.send(
                        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self._manifest) + self._manifest
                    )


class Line:
    """A way to a port of this machine that can be cut: connections stay, and nothing passes until it is healed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._threads: list[Thread] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        self._open.set()

    def __enter__(self) -> Line:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.set()
        for sock in list(self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join()
        for sock in self._sockets:
            sock.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = Thread(target=target, args=arguments, name="line")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                self._open.wait()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [near, far]
                self._start(self._pass_on, near, far)
                self._start(self._pass_on, far, near)

    def _pass_on(self, giver: socket.socket, taker: socket.socket) -> None:
        with suppress(OSError):
            while data := giver.recv(1 << 16):
                self._open.wait()
                taker.sendall(data)
        with suppress(OSError):
            taker.shutdown(socket.SHUT_WR)


def _read_request(sock: socket.socket) -> str | None:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        piece = sock.recv(1)
        if not piece:
            return None
        data += piece
    return data.decode()


# ---- what a source may do wrong without lying


def hang(request: Request) -> None:
    request.closing.wait(30)


def drop(request: Request) -> None:
    raise ConnectionAbortedError


def truncate(request: Request) -> None:
    request.send(request.head() + request.body[: len(request.body) // 2])
    raise ConnectionAbortedError


def stall_within_the_body(request: Request) -> None:
    request.send(request.head() + request.body[:100])
    request.closing.wait(30)


def trickle(request: Request) -> None:
    """A byte now and then: never idle, never done."""
    request.send(request.head())
    for position in range(len(request.body)):
        request.send(request.body[position : position + 1])
        if request.closing.wait(0.01):
            return


def trickle_the_head(request: Request) -> None:
    for position in range(1000):
        request.send(request.head()[position % 20 : position % 20 + 1])
        if request.closing.wait(0.01):
            return


def be_busy(request: Request) -> None:
    request.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")


def not_have_it(request: Request) -> None:
    request.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


FAILURES: list[Script] = [
    hang,
    drop,
    truncate,
    stall_within_the_body,
    trickle,
    trickle_the_head,
    be_busy,
    not_have_it,
]


# ---- what breaks the rules


def flip_a_bit(request: Request) -> None:
    body = bytearray(request.body)
    body[len(body) // 2] ^= 1
    request.send(request.head() + body)


def talk_garbage(request: Request) -> None:
    request.send(bytes(range(256)) * 16 + b"\r\n\r\n")


def send_endless_headers(request: Request) -> None:
    request.send(b"HTTP/1.1 206 Partial Content\r\n")
    while True:
        request.send(b"X-More: and more\r\n" * 64)


def send_an_endless_header(request: Request) -> None:
    while True:
        request.send(b"H" * 4096)


def continue_forever(request: Request) -> None:
    while True:
        request.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 64)


def promise_more(request: Request) -> None:
    request.send(request.head(Content_Length=str(1 << 50)) + request.body)


def promise_less(request: Request) -> None:
    request.send(request.head(Content_Length="1") + request.body)


def promise_nonsense(request: Request) -> None:
    request.send(request.head(Content_Length="-5") + request.body)


def promise_twice(request: Request) -> None:
    request.send(request.head(content_length="3") + request.body)


def promise_nothing(request: Request) -> None:
    request.send(request.head(Content_Length=None) + request.body)


def send_everything(request: Request) -> None:
    request.send(request.head("200 OK", Content_Length=str(len(request.content))) + request.content)


def send_another_range(request: Request) -> None:
    request.send(request.head(Content_Range=f"bytes 1-2/{len(request.content)}") + request.body)


def know_another_size(request: Request) -> None:
    request.send(b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n")


def send_in_pieces(request: Request) -> None:
    request.send(request.head(Transfer_Encoding="chunked"))


def compress(request: Request) -> None:
    request.send(request.head(Content_Encoding="gzip") + request.body)


def redirect(request: Request) -> None:
    request.send(request.head("302 Found", Location="http://127.0.0.1:9/elsewhere", Content_Length="0"))


def speak_an_old_language(request: Request) -> None:
    request.send(request.head().replace(b"HTTP/1.1", b"HTTP/1.0") + request.body)


def add_a_surplus(request: Request) -> None:
    """Bytes behind the answer, which would be taken for the next one."""
    request.send(request.head() + request.body + b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\n\r\n")


VIOLATIONS: list[Script] = [
    flip_a_bit,
    talk_garbage,
    send_endless_headers,
    send_an_endless_header,
    continue_forever,
    promise_more,
    promise_less,
    promise_nonsense,
    promise_twice,
    promise_nothing,
    send_everything,
    send_another_range,
    know_another_size,
    send_in_pieces,
    compress,
    redirect,
    speak_an_old_language,
]
