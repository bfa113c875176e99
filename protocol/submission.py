"""The name of a submission within a run: who committed to which file, as which of a step's submissions.

Its id binds all of that (Runs.workId), so that nobody can take another's file for his own.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from eth_abi import encode as abi_encode
from eth_typing import ChecksumAddress
from eth_utils import keccak


@dataclass(frozen=True)
class SubmissionRef:
    """Names a work within a run."""

    node: ChecksumAddress
    step: int
    sequence: int
    root: bytes

    def as_tuple(self) -> tuple[object, ...]:
        return astuple(self)

    def work_id(self, run: int) -> bytes:
        """keccak256(abi.encode(run, node, step, sequence, root)), as Runs.workId."""
        kinds = ["uint256", "address", "uint32", "uint32", "bytes32"]
        return keccak(abi_encode(kinds, [run, self.node, self.step, self.sequence, self.root]))
