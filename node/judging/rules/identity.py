"""identity: run, node, step, sequence, beacon and spec digest in the file are those of the chain's event, and the seat is of a
hardware class that the run lists. Soft."""

from __future__ import annotations

from dataclasses import asdict

from node.judging.candidate import Candidate
from protocol.verdict import Finding, Outcome


def check(c: Candidate) -> Finding | None:
    hardware, listed = c.commitment.hardware, c.spec.verification.hardware
    if hardware not in listed:
        classes = ", ".join(map(str, listed))
        return Finding("identity", Outcome.SOFT, str(hardware), classes, "the run lists no such hardware class")
    found, expected = asdict(c.file.header), asdict(c.expected_header)
    for name, value in expected.items():
        if found[name] != value:
            return Finding("identity", Outcome.SOFT, str(found[name]), str(value), f"header field {name}")
    return None
