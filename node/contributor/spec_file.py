"""The run's spec as a command finds it on this machine: given by hand, or kept in the home by one that asked the hub."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from protocol import runspec
from protocol.constants import SPEC_BYTES_MAX
from protocol.runspec import RunSpec
from protocol.shell.home import Home


def path_in(home: Home) -> Path:
    return home.path / "spec.json"


def find(home: Home, digest: bytes | None, given: Path | None) -> RunSpec | None:
    """The spec that hashes to the chain's `digest`: `given`, else the one that is kept; None where neither is there. Without a digest
    any spec will do, which is good for looking at and no more.

    Raises HashMismatch, Malformed or VersionMismatch for another one that was given.
    """
    for source in (given, path_in(home)):
        if source is None or not source.exists():
            continue
        with source.open("rb") as file:
            data = file.read(SPEC_BYTES_MAX + 1)
        if source is given or digest is None or sha256(data).digest() == digest:
            return runspec.from_canonical(data) if digest is None else runspec.from_bytes(data, digest)
    return None
