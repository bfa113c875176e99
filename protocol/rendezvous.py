"""Which validators a submission is for: rendezvous hashing over the submission and the block that holds its commitment.

Everybody derives the same order. The block hash keeps a node from choosing its judge by trying different files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def order(submission: bytes, block_hash: bytes, validators: Iterable[str]) -> list[str]:
    """Validators by descending claim on the submission; the first ones are assigned, the others stand in, in this order."""
    return sorted(
        validators, key=lambda address: hashlib.sha256(submission + block_hash + bytes.fromhex(address[2:])).digest()
    )
