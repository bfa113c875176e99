"""The name of a submission within a run: who committed to which file, as which of a step's submissions.

Its id binds all of that (Court.submissionId), so that nobody can take another's file for his own.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress


@dataclass(frozen=True)
class SubmissionRef:
    """Names a submission within a run."""

    node: ChecksumAddress
    step: int
    sequence: int
    root: bytes

    def as_tuple(self) -> tuple[object, ...]:
        return astuple(self)

    def submission_id(self, run: int) -> bytes:
        return submission_id(run, self.node, self.step, self.sequence, self.root)


def submission_id(run: int, node: str, step: int, sequence: int, root: bytes) -> bytes:
    """keccak256(abi.encode(run, node, step, sequence, root)), as Court.submissionId; 32 bytes. Raises ValueError or OverflowError for
    what the contract's types do not hold.

    Packed here and not by eth_abi, which takes ten times as long: a book of the chain does this for every submission.
    """
    from eth_hash.auto import keccak  # here, so that a command's help does not wait for it

    signer = bytes.fromhex(node.removeprefix("0x"))
    if len(signer) != 20 or len(root) != 32:
        raise ValueError("an address has 20 bytes and a root 32")
    words = (run.to_bytes(32, "big"), bytes(12), signer, bytes(28), step.to_bytes(4, "big"), bytes(28),
             sequence.to_bytes(4, "big"), root)  # fmt: skip
    return keccak(b"".join(words))
