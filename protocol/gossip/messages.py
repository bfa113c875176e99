"""The messages: canonical JSON with a `kind`, 4 KiB at most.

    manifest  the trainer serves version `step`, whose manifest has this digest: origin and relays have it, or soon will
    head      the same, and the chain knows it: signed for itself, so that nobody makes it out of a manifest before its time
    need      what the trainer still wants (protocol/hub/need.py, as the hub says it)
    verdict   what a validator found of one submission: its receipt (protocol/verdict.py) without the details

Gossip has no signatures of its own. A version is signed as in its manifest (`PublishedManifest`), a head by the same key (`PublishedHead`), a verdict as in its receipt (`Verdict`);
the submission that a verdict is about is named by what its id is made of, so that nobody can hang another node or step on it.

What is to say more than these fields is another kind: who does not know a kind passes it over, and blames nobody.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from eth_utils import is_checksum_address

from protocol import canonical
from protocol.constants import SAMPLES_MAX
from protocol.errors import Malformed
from protocol.hub.need import SignedNeed
from protocol.identity import Key
from protocol.p2p import MESSAGE_BYTES_MAX
from protocol.signing import Domain, PublishedHead, PublishedManifest, Verdict, signature_of
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome, Receipt

MANIFEST, HEAD, NEED, VERDICT = "manifest", "head", "need", "verdict"
KINDS = (MANIFEST, HEAD, NEED, VERDICT)

_KIND: Final = re.compile(r"[a-z][a-z-]{0,31}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_SAMPLES: Final = re.compile(rf"0|[1-9a-f][0-9a-f]{{0,{SAMPLES_MAX // 4 - 1}}}")


_SIGNED: Final[dict[str, type[PublishedManifest] | type[PublishedHead]]] = {
    MANIFEST: PublishedManifest,
    HEAD: PublishedHead,
}


class UnknownKind(Malformed):
    """A message of a kind that a later version may know."""


@dataclass(frozen=True)
class VersionWord:
    """Of kind manifest or head. `digest` is the manifest's, as the chain has it."""

    kind: str
    published: PublishedManifest | PublishedHead
    signature: bytes

    @classmethod
    def sign(cls, kind: str, run: int, step: int, digest: bytes, key: Key, domain: Domain) -> VersionWord:
        published = _SIGNED[kind](run, step, digest)
        return cls(kind, published, published.sign(key, domain))

    @property
    def step(self) -> int:
        return self.published.step

    def signer(self, domain: Domain) -> str:
        """Raises BadSignature for a signature that nobody can have made."""
        return self.published.signer(self.signature, domain)

    def encode(self) -> bytes:
        said = self.published
        fields = {"kind": self.kind, "run": said.run, "step": said.step, "digest": said.digest.hex()}
        return canonical.encode({**fields, "signature": self.signature.hex()})


@dataclass(frozen=True)
class NeedWord:
    """Of kind need."""

    signed: SignedNeed
    kind: str = NEED

    @property
    def step(self) -> int:
        return self.signed.need.step

    def signer(self, domain: Domain) -> str:
        """Raises BadSignature for a signature that nobody can have made."""
        return self.signed.need.signer(self.signed.signature, domain)

    def encode(self) -> bytes:
        return canonical.encode({"kind": NEED, **self.signed.as_json()})


@dataclass(frozen=True)
class VerdictWord:
    """Of kind verdict. `details` is the SHA-256 of the receipt's details."""

    ref: SubmissionRef
    verdict: Verdict
    signature: bytes
    kind: str = VERDICT

    @classmethod
    def of(cls, receipt: Receipt) -> VerdictWord:
        details = receipt.details
        _, samples, digest, signature = receipt.on_chain()
        verdict = Verdict(details.run, receipt.submission, details.outcome, samples, digest)  # type: ignore[arg-type]
        return cls(details.ref, verdict, signature)  # type: ignore[arg-type]

    @property
    def step(self) -> int:
        return self.ref.step

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.verdict.outcome)

    def signer(self, domain: Domain) -> str:
        """Raises BadSignature for a signature that nobody can have made."""
        return self.verdict.signer(self.signature, domain)

    def encode(self) -> bytes:
        ref, said = self.ref, self.verdict
        of = {"node": ref.node, "step": ref.step, "sequence": ref.sequence, "root": ref.root.hex()}
        found = {"outcome": said.outcome, "samples": f"{said.samples:x}", "details": said.details.hex()}
        return canonical.encode(
            {"kind": VERDICT, "run": said.run, **of, **found, "signature": self.signature.hex()}
        )  # fmt: skip


Word = VersionWord | NeedWord | VerdictWord


def parse(data: bytes, run: int) -> Word:
    """The form only: who signed, the word says itself, and whether that counts is checks.py's to say. Raises Malformed or Oversized for
    anything `encode` would not have made for this run, UnknownKind where only the kind is another."""
    value = canonical.decode(data, cap=MESSAGE_BYTES_MAX, what="gossip message")
    kind = value.pop("kind", None) if isinstance(value, dict) else None
    if kind in (MANIFEST, HEAD):
        return _version(kind, value, run)
    if kind == NEED:
        return NeedWord(SignedNeed.read(value, run))
    if kind == VERDICT:
        return _verdict(value, run)
    if isinstance(kind, str) and _KIND.fullmatch(kind):
        raise UnknownKind("gossip message of a kind that is not known here")
    raise Malformed("gossip message of no kind")


def _version(kind: str, value: dict[str, Any], run: int) -> VersionWord:
    _require_fields(value, {"run", "step", "digest", "signature"}, run)
    step, digest = _number(value["step"], 2**32), _hash(value["digest"])
    return VersionWord(kind, _SIGNED[kind](run, step, digest), signature_of(value["signature"], "a version"))


def _verdict(value: dict[str, Any], run: int) -> VerdictWord:
    names = {"run", "node", "step", "sequence", "root", "outcome", "samples", "details", "signature"}
    _require_fields(value, names, run)
    node, outcome, samples = value["node"], value["outcome"], value["samples"]
    if not isinstance(node, str) or not is_checksum_address(node):
        raise Malformed("gossip message about no node")
    if type(outcome) is not int or outcome not in tuple(Outcome):
        raise Malformed("gossip message with no outcome")
    if not isinstance(samples, str) or not _SAMPLES.fullmatch(samples):
        raise Malformed("gossip message about no samples")
    ref = SubmissionRef(
        node, _number(value["step"], 2**32), _number(value["sequence"], 2**32), _hash(value["root"])  # type: ignore[arg-type]
    )  # fmt: skip
    verdict = Verdict(run, ref.submission_id(run), outcome, int(samples, 16), _hash(value["details"]))
    return VerdictWord(ref, verdict, signature_of(value["signature"], "a verdict"))


def _require_fields(value: dict[str, Any], names: set[str], run: int) -> None:
    if value.keys() != names:
        raise Malformed("gossip message with other fields than it should have")
    if type(value["run"]) is not int or value["run"] != run:
        raise Malformed("gossip message of another run")


def _number(value: Any, below: int) -> int:
    if type(value) is not int or not 0 <= value < below:
        raise Malformed("gossip message with a number out of range")
    return value


def _hash(value: Any) -> bytes:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise Malformed("gossip message with a hash that is none")
    return bytes.fromhex(value)
