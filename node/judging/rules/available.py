"""available: the file was served, is no larger than the cap, and hashes to the commitment. Soft.

Whether it came within the grace time is the validator's to say (node/validator/service.py), for only it knows when it asked.
"""

from __future__ import annotations

import hashlib

from node.judging.candidate import Candidate
from protocol.verdict import Finding, Outcome


def check(c: Candidate) -> Finding | None:
    size = c.path.stat().st_size
    if size > c.spec.file_bytes_max:
        return Finding(
            "available", Outcome.SOFT, f"{size} bytes", f"{c.spec.file_bytes_max} bytes", "file is too large"
        )
    with c.path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != c.commitment.ref.root.hex():
        return Finding("available", Outcome.SOFT, found, c.commitment.ref.root.hex(), "file is not the committed one")
    return None


def missing(grace: int) -> Finding:
    """The finding for a file nobody could get within the grace time of `grace` seconds."""
    return Finding("available", Outcome.SOFT, "not uploaded", f"within {grace} s", "no file for this commitment")
