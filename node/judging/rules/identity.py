"""identity: run, node, step, sequence, beacon and spec digest in the file are those of the chain's event, and the seat is of a
hardware class that the run lists. A build is named only where the run compares bits, and is one that it lists, where it lists any. Soft."""

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
        if name != "build" and found[name] != value:
            return Finding("identity", Outcome.SOFT, str(found[name]), str(value), f"header field {name}")
    bitwise, build = c.spec.verification.bitwise, c.file.header.build
    if bitwise is None and build:
        return Finding("identity", Outcome.SOFT, build, "none", "header field build, in a run that compares no bits")
    if bitwise is not None and bitwise.builds and build not in bitwise.builds:
        return Finding("identity", Outcome.SOFT, build or "none", "; ".join(bitwise.builds), "header field build")
    return None
