"""Verdicts: what a validator found, as a signed receipt that the contributor and everybody else can read and check.

A receipt is canonical JSON (its *details*) and an EIP-712 signature over (run, submission, outcome, samples, SHA-256 of the
details). It binds: an accept receipt names the samples it vouches for, and who vouched for one that is convicted can be
impeached; a hard one names those found false. Rules and their order: docs/rules.md. On chain, the EIP-712 digest of
the receipt is the challenge's evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

from eth_utils import is_checksum_address, keccak

from protocol import canonical, statistics
from protocol.constants import PROTOCOL_VERSION, RECEIPT_BYTES_MAX, SAMPLES_MAX
from protocol.errors import Malformed
from protocol.identity import Key
from protocol.signing import Domain, Verdict
from protocol.submission import SubmissionRef

RULES = (
    "available",
    "schema",
    "identity",
    "duplicate",
    "assignment",
    "tokens",
    "termination",
    "conversation",
    "reward",
    "computation",
    "sampling",
    "history",
)
"""All rules, in the order they are checked: cheap first; a later one runs only on what passed the earlier ones. Each is a module of
node/judging/rules. Of environments that are not exact, `conversation` and `reward` are asked last: they find nothing worse than soft."""
NEEDS_MODEL = frozenset({"computation", "sampling", "history"})
"""Rules that ask the model itself: a prefill of the submission."""
HISTORY = "history"
"""The rule about a seat's work taken together: what it finds is of no sample by itself."""


_OPTIONAL = ("sums", "history")  # fields of a receipt that are left out where they say nothing

ALL_SAMPLES = 2**SAMPLES_MAX - 1
"""The file as a whole."""


class Outcome(IntEnum):
    ACCEPT = 1
    SOFT = 2
    """The submission earns nothing."""
    HARD = 3
    """Cheating: the seat is slashed and banned."""


@dataclass(frozen=True)
class Finding:
    """What one rule has against a submission. `measured` and `threshold` are decimals or words, for a person to compare.

    Bit i of `samples`: sample i of the file is what the rule has it against.
    """

    rule: str
    outcome: Outcome
    measured: str
    threshold: str
    detail: str
    samples: int = ALL_SAMPLES
    near: int = 0
    """Bit i: something measured of sample i lies nearer to its hard limit than to its soft one, or beyond the hard one."""


def compares(rule: str) -> tuple[str, str]:
    """What `measured` and `threshold` of a rule's finding are, in words."""
    return ("claimed", "the validator's own") if rule == "reward" else ("measured", "threshold")


def compared(rule: str, measured: str, threshold: str) -> str:
    """`measured 0.75, threshold 0.5`."""
    first, second = compares(rule)
    return f"{first} {measured}, {second} {threshold}"


@dataclass(frozen=True)
class Details:
    """Everything a receipt says. `root`, `submission`, `spec`, `samples` and `prefill` are 64 hex digits; `rule` is empty on accept.

    Bit i of `samples` (big-endian): sample i was checked by all rules (accept), or is what the finding is about.
    """

    protocol: int
    chain_id: int
    contract: str
    run: int
    submission: str
    node: str
    step: int
    sequence: int
    root: str
    units: int
    spec: str
    outcome: int
    rule: str
    measured: str
    threshold: str
    detail: str
    samples: str
    sequences_checked: int
    proofs_checked: int
    tokens_checked: int
    time: int
    """Of judgement, in block time."""
    prefill: str = "0" * 64
    """SHA-256 of the secret of that time (protocol/prefill_sampling.py); zeros where no secret was used. 64 hex digits."""
    sums: dict[str, list[int]] = field(default_factory=dict)
    """Of the drawn rows, by statistic (protocol/statistics.py): total, squares and count (protocol/eprocess.py). Left out where there are
    none, so that receipts of runs without them are what they were."""
    history: str = ""
    """Of a finding of `history`: digest of what it was summed over (node/judging/history.py), 64 hex digits. Left out elsewhere."""

    @property
    def ref(self) -> SubmissionRef:
        return SubmissionRef(self.node, self.step, self.sequence, bytes.fromhex(self.root))  # type: ignore[arg-type]

    def table(self) -> dict[str, Any]:
        """As JSON has it, and as it is hashed."""
        table = asdict(self)
        for name in _OPTIONAL:
            if not table[name]:
                del table[name]
        return table

    def encode(self) -> bytes:
        return canonical.encode(self.table())


@dataclass(frozen=True)
class Receipt:
    details: Details
    validator: str
    signature: bytes

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.details.outcome)

    @property
    def submission(self) -> bytes:
        return bytes.fromhex(self.details.submission)

    @classmethod
    def issue(cls, details: Details, key: Key, domain: Domain) -> Receipt:
        return cls(details, key.address, _message(details).sign(key, domain))

    @property
    def samples(self) -> int:
        return int(self.details.samples, 16)

    def on_chain(self) -> tuple[object, ...]:
        """ICourt.Receipt: (validator, samples, details, signature)."""
        return self.validator, self.samples, canonical.digest(self.details.table()), self.signature

    def evidence(self, domain: Domain) -> bytes:
        """The 32 bytes that stand for this receipt on chain."""
        return _message(self.details).signing_hash(domain)

    def encode(self) -> bytes:
        """Wire form: canonical JSON of details, validator and signature."""
        return canonical.encode(
            {"details": self.details.table(), "validator": self.validator, "signature": "0x" + self.signature.hex()}
        )

    @classmethod
    def stored(cls, data: bytes) -> Receipt:
        """One that was checked before it was stored, on this machine's own disk: its signature is not checked again."""
        value = canonical.decode(data, cap=RECEIPT_BYTES_MAX, what="receipt")
        return cls(Details(**value["details"]), value["validator"], bytes.fromhex(value["signature"][2:]))

    @classmethod
    def parse(cls, data: bytes, domain: Domain, run: int) -> Receipt:
        """Parses and checks a peer's receipt: form, chain, run, submission id and signature.

        Whether the validator holds a seat is for the caller to ask the chain. Raises Malformed, Oversized, BadSignature.
        """
        value = canonical.decode(data, cap=RECEIPT_BYTES_MAX, what="receipt")
        if not isinstance(value, dict) or set(value) != {"details", "validator", "signature"}:
            raise Malformed("receipt has other keys than it should")
        details = _details(value["details"])
        if (details.protocol, details.chain_id, details.contract, details.run) != (
            PROTOCOL_VERSION, domain.chain_id, domain.contract, run,
        ):  # fmt: skip
            raise Malformed("receipt is of another protocol, chain, contract or run")
        if details.ref.submission_id(run).hex() != details.submission:
            raise Malformed("receipt names another submission than its fields do")
        try:
            signature = bytes.fromhex(str(value["signature"]).removeprefix("0x"))
        except ValueError as error:
            raise Malformed("receipt's signature is not hex") from error
        receipt = cls(details, str(value["validator"]), signature)
        _message(details).require(signature, domain, receipt.validator, "receipt")  # type: ignore[arg-type]
        return receipt


def evidence_of(receipts: Sequence[Receipt], domain: Domain) -> bytes:
    """The 32 bytes that stand for receipts on chain, in a challenge or a vote: the EIP-712 digest of one, keccak256 of the digests of
    several, in order; zeros for none."""
    digests = [receipt.evidence(domain) for receipt in receipts]
    if len(digests) > 1:
        return keccak(b"".join(digests))
    return digests[0] if digests else bytes(32)


def _is_digest(text: Any) -> bool:
    return isinstance(text, str) and len(text) == 64 and not set(text) - set("0123456789abcdef")


def _message(details: Details) -> Verdict:
    submission, samples = bytes.fromhex(details.submission), int(details.samples, 16)
    return Verdict(details.run, submission, details.outcome, samples, canonical.digest(details.table()))


def _details(value: Any) -> Details:
    kinds = {name: field.type for name, field in Details.__dataclass_fields__.items() if name not in _OPTIONAL}
    if not isinstance(value, dict) or set(value) - set(_OPTIONAL) != set(kinds):
        raise Malformed("receipt details have other keys than they should")
    statistics.require_form(value.get("sums", {}), "sums" in value)
    for name, kind in kinds.items():
        if type(value[name]).__name__ != kind:
            raise Malformed(f"receipt: {name} is {type(value[name]).__name__}, not {kind}")
        if kind == "int" and not 0 <= value[name] < 2**64:
            raise Malformed(f"receipt: {name} is out of range")
    details = Details(**value)
    if details.outcome not in tuple(Outcome) or (details.rule not in RULES) != (details.outcome == Outcome.ACCEPT):
        raise Malformed("receipt's outcome and rule do not belong together")
    for name in ("submission", "root", "spec", "samples", "prefill"):
        if not _is_digest(getattr(details, name)):
            raise Malformed(f"receipt: {name} is not 64 hex digits")
    if not is_checksum_address(details.node) or max(details.step, details.sequence) >= 2**32:
        raise Malformed("receipt names no possible submission")
    if (details.rule == HISTORY) != ("history" in value) or (
        details.rule == HISTORY and not _is_digest(details.history)
    ):
        raise Malformed("receipt's history and rule do not belong together")
    if details.rule == HISTORY and int(details.samples, 16):
        raise Malformed("receipt names samples for what is about all of a seat's work")
    if details.outcome != Outcome.SOFT and details.rule != HISTORY and not int(details.samples, 16):
        raise Malformed("receipt names no sample")
    statistics.require_possible(details.sums, details.tokens_checked)
    return details
