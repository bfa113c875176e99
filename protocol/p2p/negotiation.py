"""multistream-select 1.0, both sides, and length-prefixed messages: how two nodes agree on what to speak.

The library's own reads any length a stranger names, dies of a name that is not UTF-8, and waits a round trip per line.
Here a line has at most 256 bytes, and the dialler says both its lines at once, which the specification allows.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, Protocol

from protocol.errors import Malformed, Oversized, Unavailable

HEADER: Final = "/multistream/1.0.0"
_LINE_MAX: Final = 256
_ATTEMPTS_MAX: Final = 8
_REFUSED: Final = "na"


class Channel(Protocol):
    """What is needed of a connection or stream."""

    async def read(self, count: int, /) -> bytes:
        """At most `count` bytes, none at the end."""

    async def write(self, data: bytes, /) -> None: ...


async def propose(channel: Channel, protocol: str, then: bytes = b"") -> None:
    """The dialler's side; `then` follows in the same write. Raises Unavailable when the peer does not speak `protocol`."""
    await channel.write(_line(HEADER) + _line(protocol) + then)
    await _expect_header(channel)
    answer = await _read_line(channel)
    if answer == _REFUSED:
        raise Unavailable(f"the peer does not speak {protocol}")
    if answer != protocol:
        raise Malformed(f"proposed {protocol}, the peer answered {answer!r}")


async def accept(channel: Channel, protocols: Container[str]) -> str:
    """The listener's side: which of `protocols` is to be spoken. Raises Malformed after a few that are unknown."""
    await channel.write(_line(HEADER))
    await _expect_header(channel)
    for _ in range(_ATTEMPTS_MAX):
        proposed = await _read_line(channel)
        if proposed in protocols:
            await channel.write(_line(proposed))
            return proposed
        await channel.write(_line(_REFUSED))
    raise Malformed("the peer proposes nothing that is known")


async def read_exactly(channel: Channel, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = await channel.read(count - len(data))
        if not chunk:
            raise Malformed(f"ended after {len(data)} of {count} bytes")
        data += chunk
    return data


async def read_message(channel: Channel, cap: int, what: str) -> bytes:
    """One length-prefixed message. Raises Oversized before reading one of more than `cap` bytes."""
    length = 0
    for shift in range(0, 63, 7):
        byte = (await read_exactly(channel, 1))[0]
        length |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
    else:
        raise Malformed(f"{what} has a length prefix without end")
    if length > cap:
        raise Oversized(f"{what} of {length} bytes, more than {cap}")
    return await read_exactly(channel, length)


def message(data: bytes) -> bytes:
    """`data` behind its length."""
    prefix, length = bytearray(), len(data)
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(prefix) + bytes([length]) + data


def _line(text: str) -> bytes:
    return message(text.encode() + b"\n")


async def _read_line(channel: Channel) -> str:
    raw = await read_message(channel, _LINE_MAX, "negotiation line")
    if not raw.endswith(b"\n") or not raw.isascii():
        raise Malformed("the peer negotiates in something else than lines")
    return raw[:-1].decode()


async def _expect_header(channel: Channel) -> None:
    if await _read_line(channel) != HEADER:
        raise Malformed("the peer does not speak multistream-select")
