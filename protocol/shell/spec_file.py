"""The run's spec as a role or command finds it on this machine: given by hand, or kept in the home by one that asked the hub.

What is kept counts where it hashes to the chain's digest: then it is as good as the hub's, and nobody waits for a hub that is away.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from protocol import runspec
from protocol.constants import SPEC_BYTES_MAX
from protocol.p2p.peers import replace
from protocol.runspec import RunSpec
from protocol.shell.home import Home


def path_in(home: Home) -> Path:
    return home.path / "spec.json"


def find(home: Home, digest: bytes | None, given: Path | None) -> RunSpec | None:
    """The spec that hashes to the chain's `digest`: `given`, else the one that is kept; None where neither is there. Without a digest
    any spec will do, which is good for looking at and no more.

    Raises HashMismatch, Malformed or VersionMismatch for another one that was given.
    """
    if given is not None and given.exists():
        data = _read(given)
        return runspec.from_canonical(data) if digest is None else runspec.from_bytes(data, digest)
    if digest is None:
        return runspec.from_canonical(_read(path_in(home))) if path_in(home).exists() else None
    return kept(path_in(home), digest)


def kept(path: Path, digest: bytes) -> RunSpec | None:
    """The spec that `keep` left there, if it hashes to the chain's `digest`. Raises VersionMismatch."""
    try:
        data = _read(path)
    except OSError:
        return None
    return runspec.from_bytes(data, digest) if sha256(data).digest() == digest else None


def keep(path: Path, spec: RunSpec) -> None:
    """Keeps a spec for the next start. A failure is logged: the hub has it too."""
    replace(path, spec.canonical(), "the run spec")


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(SPEC_BYTES_MAX + 1)
