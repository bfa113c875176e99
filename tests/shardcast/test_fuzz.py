"""Bytes from strangers, mutated from honest ones: each is taken or refused by name, within its caps, and nothing hangs.

Seeded, so that a case that fails is found again by its number.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest

from protocol import canonical
from protocol.errors import ProtocolViolation, Unavailable, VersionMismatch
from protocol.shardcast.connection import SourceConnection, Timeouts
from protocol.shardcast.holding import COMPLETE, Holding
from protocol.shardcast.http1 import HEAD_BYTES_MAX
from protocol.shardcast.manifest import FileEntry, Manifest, ManifestLimits, digest_of
from protocol.shardcast.opening import NO_OPENING, ChunkList, Opening, OpeningAnswer, Trusted
from protocol.shardcast.server import ServerLimits

from .conftest import CHUNK, DEADLINE, Cast, origin_at

PIECES = [
    b"", b"\0", b"\r\n", b"\r\n\r\n", b" ", b":", b",", b"-", b"-1", b"0", b"00", b"1", b"9" * 20, b"1e9", b"null", b"true", b"[]", b"{}",
    b'"', b"\\u0000", b"\xff", b"\xc3", b"..", b"/", b"%2e", b"bytes=0-0", b"bytes=5-1", b"Range: bytes=0-9\r\n", b"Host: x\r\n",
    b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"x" * 300, b"[" * 300,
]  # fmt: skip


def counts(default: int) -> pytest.MarkDecorator:
    long = pytest.param(40 * default, marks=pytest.mark.long)
    return pytest.mark.parametrize("count", [default, long])


def mutated(dice: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4))):
        place = dice.randrange(len(changed) + 1)
        end = min(len(changed), place + dice.choice((0, 1, 1, 8, 64)))
        act = dice.randrange(4)
        if act == 0 and place < len(changed):
            changed[place] ^= 1 << dice.randrange(8)
        elif act == 1:
            changed[place:end] = dice.choice(PIECES)
        elif act == 2:
            changed[place:place] = changed[place:end]
        else:
            del changed[place:end]
    return bytes(changed)


def cases(count: int, seeds: list[bytes]) -> Iterator[bytes]:
    dice = random.Random(len(seeds))
    for _ in range(count):
        yield mutated(dice, dice.choice(seeds))


@counts(2000)
def test_a_mutated_manifest_is_the_same_or_another_or_a_violation(count: int) -> None:
    hashes = tuple(f"{number:064x}" for number in range(3))
    whole = Manifest(3, 7, (FileEntry("a", 0, ()), FileEntry("model", 2 * CHUNK + 1, hashes)), CHUNK)
    taken = 0
    for data in cases(count, [whole.encode()]):
        with suppress(
            ProtocolViolation, VersionMismatch
        ):  # the second is for what the trainer signed, with a hint to upgrade
            manifest = Manifest.parse(data, ManifestLimits(), chunk_bytes=CHUNK)
            assert manifest.encode() == data, "what is taken is canonical"
            assert len(list(manifest.chunks())) == sum(len(file.chunks) for file in manifest.files)
            taken += 1
        with suppress(ProtocolViolation):
            digest_of(data)
        with suppress(ProtocolViolation):
            canonical.decode(data, cap=1 << 20, what="fuzz")
    assert taken, "some mutations only change a number"


@counts(500)
def test_what_is_told_of_an_opening_is_taken_or_a_violation(cast: Cast, count: int) -> None:
    """Taken is only what the trainer signed; the opening is parsed strictly all the same."""
    trusted = Trusted(3, cast.key.address, cast.domain, ManifestLimits(), CHUNK)
    opening = Opening(3, 7, (("a", 0), ("model", 2 * CHUNK + 1)), "ab" * 16, 5, CHUNK)
    listing = ChunkList(opening)
    listing.sign([bytes([number]) * 32 for number in range(3)], cast.key, cast.domain)
    honest = listing.tell(NO_OPENING, 0)
    for data in cases(count // 10, [honest]):
        with suppress(ProtocolViolation):
            taken = ChunkList.begun(7, OpeningAnswer.parse(data), trusted)
            assert taken.tell(NO_OPENING, 0) == honest
    for data in cases(count, [opening.encode()]):
        with suppress(ProtocolViolation, VersionMismatch):
            assert Opening.parse(data, ManifestLimits(), chunk_bytes=CHUNK).encode() == data


@counts(1500)
def test_mutated_bytes_of_a_holding_are_a_holding_or_a_violation(count: int) -> None:
    bits = np.random.default_rng(3).random(77) < 0.5
    for data in cases(count, [Holding(5, bits, ~bits).encode(), COMPLETE]):
        with suppress(ProtocolViolation):
            holding = Holding.parse(data, 77)
            assert len(holding.held) == len(holding.coming) == 77


REQUESTS = [
    b"GET /v/1/manifest HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v/1/files/model HTTP/1.1\r\nHost: x\r\nRange: bytes=3-9\r\nServes: http://127.0.0.1:1\r\n\r\n",
    b"GET /v/1/holding?after=3&wait=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /v/1/delta/holding?after=3&wait=1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v/2/opening?of=" + b"0" * 64 + b"&after=3&wait=1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v/2/opened/" + b"0" * 64 + b"/files/model HTTP/1.1\r\nHost: x\r\nRange: bytes=3-9\r\n\r\n",
]


@counts(750)
def test_a_server_answers_mutated_requests_or_ends_the_connection_and_serves_on(cast: Cast, count: int) -> None:
    content = cast.bytes(100)
    limits = ServerLimits(head=DEADLINE, idle=DEADLINE)
    server = cast.origin({"model": content}, limits=limits)[1]
    answers = {200, 206, 400, 404, 405, 410, 416}

    def converse(data: bytes) -> bytes:
        """Everything that is answered until both sides are through."""
        with socket.create_connection((server.host, server.port), timeout=DEADLINE) as sock:
            with suppress(ConnectionError):
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            told = b""
            with suppress(ConnectionError):
                while piece := sock.recv(1 << 16):
                    told += piece
            return told

    for data in cases(count, REQUESTS):
        told = converse(data)
        assert not told or int(told[9:12]) in answers, (data, told[:80])
        assert told.startswith(b"HTTP/1.1 ") or not told
        assert len(told) < 20 * HEAD_BYTES_MAX
    assert converse(REQUESTS[1]).endswith(content[3:10])


HOLDS = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\nContent-Length: 12\r\n\r\n" + COMPLETE
ANSWERS: list[tuple[bytes, Callable[[SourceConnection, float], object]]] = [
    (HOLDS, lambda source, deadline: source.ask_whole("/v/1/manifest", 64, deadline)),
    (
        b"HTTP/1.1 206 Partial Content\r\nContent-Length: 12\r\nContent-Range: bytes 4-15/99\r\n\r\n" + COMPLETE,
        lambda source, deadline: source.ask_range("/v/1/files/model", 4, 15, 99, deadline),
    ),
    (
        b"HTTP/1.1 503 Busy\r\nRetry-After: 2\r\nRelays: http://a:1 http://b:2\r\nContent-Length: 0\r\n\r\n",
        lambda source, deadline: source.ask_whole("/v/1/manifest", 64, deadline),
    ),
]


@counts(750)
def test_a_mutated_answer_is_taken_or_a_violation_or_a_failure_and_never_more_than_was_asked_for(count: int) -> None:
    dice = random.Random(5)
    for number in range(count):
        honest, ask = dice.choice(ANSWERS)
        near, far = socket.socketpair()
        with far:
            wire = _over(near)
            far.sendall(mutated(dice, honest))
            far.shutdown(socket.SHUT_WR)
            room = bytearray(12)
            try:
                length = ask(wire, 1e12)
                assert length is None or isinstance(length, int)
                assert length is None or length <= 64, number
                wire.read(memoryview(room), 1e12)
            except (ProtocolViolation, Unavailable, OSError):
                pass
            finally:
                wire.close()


def _over(sock: socket.socket) -> SourceConnection:
    """A connection to a source over one end of a pair, which knows no TCP."""

    class Paired(socket.socket):
        def setsockopt(self, *_: object) -> None:  # type: ignore[override]
            pass

        def getpeername(self) -> tuple[str, int]:
            return "127.0.0.1", 1

    paired = Paired(fileno=sock.detach())
    return SourceConnection(origin_at("http://x:1"), paired, Timeouts(idle=DEADLINE), {})
