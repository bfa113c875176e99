"""identity: run, node, step, sequence, beacon and spec digest in the file are those of the chain's event. Soft."""

from __future__ import annotations

from dataclasses import asdict

from node.judging.candidate import Candidate
from protocol.verdict import Finding, Outcome


def check(c: Candidate) -> Finding | None:
    found, expected = asdict(c.file.header), asdict(c.expected_header)
    for name, value in expected.items():
        if found[name] != value:
            return Finding("identity", Outcome.SOFT, str(found[name]), str(value), f"header field {name}")
    return None
