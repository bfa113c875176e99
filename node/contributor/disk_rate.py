"""What the disk under a folder writes and reads per second: one file, written through to the disk, read back from it, and removed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_PIECE = 4 << 20
_PIECES = 16
_ROUNDS = 3
_SPARE = 1 << 30  # less than this is not measured on: a disk that is nearly full has no room for it


@dataclass(frozen=True)
class DiskRate:
    """Bytes per second, the best of some rounds."""

    write: float
    read: float


def measure(folder: Path, free: int) -> DiskRate | None:
    """None where the disk has too little free. Raises OSError for a folder that cannot be written."""
    if free < _SPARE:
        return None
    path, piece = folder / f".disk-rate-{os.getpid()}", os.urandom(_PIECE)  # noise: some disks compress
    try:
        rounds = [_round(path, piece) for _ in range(_ROUNDS)]
    finally:
        path.unlink(missing_ok=True)
    count = _PIECE * _PIECES
    return DiskRate(count / min(write for write, _ in rounds), count / min(read for _, read in rounds))


def _round(path: Path, piece: bytes) -> tuple[float, float]:
    """Seconds to write and to read."""
    began = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(_PIECES):
            file.write(piece)
        os.fsync(file.fileno())
        written = time.monotonic()
        if hasattr(os, "posix_fadvise"):  # else it is memory that is read
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    opened = time.monotonic()
    with path.open("rb", buffering=0) as file:
        while file.read(_PIECE):
            pass
    return max(written - began, 1e-6), max(time.monotonic() - opened, 1e-6)
