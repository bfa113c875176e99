"""The saved peer list: a second way in when all bootnodes are gone. A hint only; whoever is dialled must prove itself.

Canonical JSON, a list of multiaddrs. It is written whole and renamed into place; a file that is broken is ignored and
replaced, because losing it costs nothing that the bootnodes do not give back.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Final

from protocol import canonical
from protocol.errors import ProtocolViolation
from protocol.p2p.address import PeerAddress

FILE_BYTES_MAX: Final = 64 << 10

log = logging.getLogger(__name__)


def load(path: Path, *, most: int) -> list[PeerAddress]:
    """At most `most` peers; none when there is no file, or none that can be read."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        log.warning("cannot read the saved peers in %s (%s); going on without them", path, error.strerror)
        return []
    try:
        texts = canonical.decode(data, cap=FILE_BYTES_MAX, what="saved peer list")
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError("not a list of addresses")
        return [PeerAddress.parse(text) for text in texts[:most]]
    except (ProtocolViolation, ValueError) as error:
        log.warning("the saved peers in %s are not readable (%s); going on without them", path, error)
        return []


def save(path: Path, peers: list[PeerAddress]) -> None:
    """Replaces the file atomically. A failure is logged: the list is a convenience."""
    replace(path, canonical.encode([str(peer) for peer in peers]), "the peer list")


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
