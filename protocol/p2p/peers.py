"""What a host remembers over restarts: peers, a second way in when all bootnodes are gone, and the notices of the providers it followed.
Hints only; whoever is dialled must prove itself.

Canonical JSON, {"notices": […], "peers": [multiaddr, …]}; a list of multiaddrs alone, as earlier versions wrote it, is read too.
It is written whole and renamed into place; a file that is broken is ignored and replaced, because losing it costs nothing that the
bootnodes do not give back.
"""

from __future__ import annotations

import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol import canonical
from protocol.errors import ProtocolViolation
from protocol.p2p.address import PeerAddress
from protocol.p2p.notices import NOTICE_BYTES_MAX, Notice

FILE_BYTES_MAX: Final = 256 << 10

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Memory:
    peers: tuple[PeerAddress, ...] = ()
    notices: tuple[Notice, ...] = ()


def load(path: Path, *, most: int) -> Memory:
    """At most `most` peers and notices; none when there is no file, or none that can be read."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Memory()
    except OSError as error:
        log.warning("cannot read the saved peers in %s (%s); going on without them", path, error.strerror)
        return Memory()
    try:
        value = canonical.decode(data, cap=FILE_BYTES_MAX, what="saved peer list")
        if isinstance(value, list):
            value = {"notices": [], "peers": value}
        if not isinstance(value, dict) or value.keys() != {"notices", "peers"}:
            raise ValueError("not peers and notices")
        texts, notices = value["peers"], value["notices"]
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError("not a list of addresses")
        if not isinstance(notices, list):
            raise ValueError("not a list of notices")
        return Memory(tuple(map(PeerAddress.parse, texts[:most])), tuple(map(Notice.parse, notices[:most])))
    except (ProtocolViolation, ValueError) as error:
        log.warning("the saved peers in %s are not readable (%s); going on without them", path, error)
        return Memory()


def save(path: Path, memory: Memory) -> None:
    """Replaces the file atomically. A failure is logged: the list is a convenience."""
    notices = [canonical.decode(notice.encode(), cap=NOTICE_BYTES_MAX, what="notice") for notice in memory.notices]
    data = canonical.encode({"notices": notices, "peers": [str(peer) for peer in memory.peers]})
    replace(path, data, "the peer list")


def replace(path: Path, data: bytes, what: str) -> None:
    """Writes `data` whole or not at all. A failure is logged: nothing that is saved here is needed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        log.warning("cannot save %s to %s (%s)", what, path, error.strerror)
