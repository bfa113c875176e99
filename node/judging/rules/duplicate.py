"""duplicate: the node committed to the very same file before. Soft.

Only the node's own earlier commitments count: whoever sees a root in the mempool and commits to it first must not hurt its
author. Equal completions in different files are no fault, short answers coincide.
"""

from __future__ import annotations

from node.judging.candidate import Candidate
from protocol.verdict import Finding, Outcome


def check(c: Candidate) -> Finding | None:
    if c.commitment.is_repeated:
        return Finding("duplicate", Outcome.SOFT, "committed twice", "once", f"file {c.commitment.ref.root.hex()}")
    return None
