"""Evidence: what a rejection stands on, kept so that it can be judged again without chain, hub or network.

One folder per rejected submission under data/evidence, named by its submission id:

    rollout.parquet  the file as it was judged (none where it was never served)
    commitment.json  what the chain said of the work, which samples were to be drawn, which got the prefill besides, and as which named alternatives again
    spec.json        the run spec, which hashes to the receipt's digest
    receipt.json     the signed receipt, as it was first found
    manifest.json    the signed manifest of the weights (none where it was judged without them)
    history.json     what the seat's earlier work counted for (only of findings of the rule `history`)

Weights are not kept: `--weights` or the local store provides them, and they must hash to the manifest. A folder may come
from somebody else, so everything is read within caps and checked against the receipt, whose signature is the anchor.
Evidence of open cases is kept for as long as they are open, that of closed ones by number and age.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from node.judging.candidate import Commitment, PrefillPlan
from node.judging.history import History
from protocol import canonical, runspec
from protocol.calibration_notice import CalibrationNotice, in_force, require_allowed
from protocol.constants import RECEIPT_BYTES_MAX, SPEC_BYTES_MAX
from protocol.errors import HashMismatch, IntegrityError, Malformed, ProtocolViolation, UsageError
from protocol.runspec import RunSpec
from protocol.shardcast.manifest import MANIFEST_BYTES_MAX, describe_files, digest_of, stored
from protocol.signing import Domain
from protocol.statistics import ALTERNATIVES
from protocol.verdict import Receipt

ROLLOUT, COMMITMENT, SPEC, RECEIPT, MANIFEST, HISTORY = (
    "rollout.parquet", "commitment.json", "spec.json", "receipt.json", "manifest.json", "history.json",
)  # fmt: skip

_COMMITMENT_BYTES_MAX = 1 << 14
_HISTORY_BYTES_MAX = 1 << 26  # some 350 bytes for each of a seat's submissions
_KINDS = {
    "chain_id": int, "contract": str, "run": int, "units": int, "beacon": str, "hardware": int, "block_hash": str,
    "repeated": bool, "share": str, "secret": str, "manifest": str,
}  # fmt: skip
_LATER = {"examined": list, "alternatives": list}
"""Of evidence kept before there were any there is none."""


@dataclass(frozen=True)
class Evidence:
    """One folder. Its properties raise Malformed, HashMismatch or BadSignature for what does not belong together."""

    folder: Path

    @cached_property
    def _facts(self) -> dict[str, Any]:
        value = canonical.decode(
            self._read(COMMITMENT, _COMMITMENT_BYTES_MAX), cap=_COMMITMENT_BYTES_MAX, what=COMMITMENT
        )
        kinds = _KINDS | _LATER
        if not isinstance(value, dict) or not set(_KINDS) <= set(value) <= set(kinds):
            raise Malformed(f"{COMMITMENT} has other keys than it should")
        if any(type(value[name]) is not kind for name, kind in kinds.items() if name in value):
            raise Malformed(f"{COMMITMENT} holds values of wrong types")
        return value

    @property
    def domain(self) -> Domain:
        return Domain(self._facts["chain_id"], self._facts["contract"])

    @property
    def run(self) -> int:
        return self._facts["run"]

    @cached_property
    def receipt(self) -> Receipt:
        return Receipt.parse(self._read(RECEIPT, RECEIPT_BYTES_MAX), self.domain, self.run)

    @cached_property
    def spec(self) -> RunSpec:
        return runspec.from_bytes(self._read(SPEC, SPEC_BYTES_MAX), bytes.fromhex(self.receipt.details.spec))

    @cached_property
    def commitment(self) -> Commitment:
        facts, ref = self._facts, self.receipt.details.ref
        return Commitment(
            ref,
            facts["units"],
            _bytes(facts["beacon"]),
            facts["hardware"],
            _bytes(facts["block_hash"]),
            facts["repeated"],
        )

    @property
    def plan(self) -> PrefillPlan:
        """What was drawn and what was examined, and nothing by this machine's clock."""
        try:
            share = float(self._facts["share"])
        except ValueError as error:
            raise Malformed(f"{COMMITMENT}: the share of samples is no number") from error
        return PrefillPlan(share, _bytes(self._facts["secret"]), examined=self._examined, by_clock=False, alternatives=self._alternatives)  # fmt: skip

    @property
    def _alternatives(self) -> tuple[str, ...]:
        names = self._facts.get("alternatives", [])
        if any(name not in ALTERNATIVES for name in names) or len(set(names)) < len(names):
            raise Malformed(f"{COMMITMENT}: what was prefilled again are not named alternatives")
        return tuple(names)

    @cached_property
    def _examined(self) -> tuple[tuple[int, ...], ...]:
        groups, rows = self._facts.get("examined", []), set[int]()
        for group in groups:
            if type(group) is not list or not group or any(type(row) is not int for row in group):
                raise Malformed(f"{COMMITMENT}: the rows that were examined are not lists of numbers")
            if group != sorted(set(group)) or not 0 <= group[0] <= group[-1] < self.spec.samples or rows & set(group):
                raise Malformed(f"{COMMITMENT}: the rows that were examined are not in order, or named twice")
            rows.update(group)
        return tuple(tuple(group) for group in groups)

    @cached_property
    def rollout(self) -> Path | None:
        """The rollout file, which hashes to the commitment; None where none was ever served."""
        path = self.folder / ROLLOUT
        if not path.exists():
            return None
        if path.stat().st_size <= self.spec.file_bytes_max:  # the rule `available` refuses larger ones unread
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").digest()
            if found != self.receipt.details.ref.root:
                raise HashMismatch(f"{path} is not the file that was committed to")
        return path

    @cached_property
    def notice(self) -> CalibrationNotice | None:
        """What the manifest says of the calibration that this work was judged by."""
        notice = None if self.judged_without_weights else stored(self._manifest).notice
        if notice is not None:
            require_allowed(self.spec, notice)
        return notice

    @cached_property
    def history(self) -> History | None:
        """What the seat had done before; None where the finding is not about that."""
        named, budget = self.receipt.details.history, in_force(self.spec.verification, self.notice).history
        if not named:
            return None
        if budget is None:
            raise Malformed("the receipt is about the seat's history, by which this run does not judge")
        data = self._read(HISTORY, _HISTORY_BYTES_MAX)
        if hashlib.sha256(data).hexdigest() != named:  # of canonical JSON, so before anything is parsed
            raise HashMismatch(f"{self.folder / HISTORY} is not the history that the receipt names")
        return History.of_table(canonical.decode(data, cap=_HISTORY_BYTES_MAX, what=HISTORY), budget)

    @property
    def judged_without_weights(self) -> bool:
        """Whether only the rules that need no model were asked."""
        return not self._facts["manifest"]

    def require_weights(self, folder: Path) -> None:
        """Raises HashMismatch unless `folder` holds exactly the version that the work was judged with, PreflightError where it
        cannot be read."""
        manifest = stored(self._manifest)
        for entry in manifest.files:
            path = folder / entry.name
            if not path.is_file():
                raise HashMismatch(f"{path} is missing: these are other weights than the work was judged with")
            if describe_files([path], manifest.chunk_bytes) != (entry,):
                raise HashMismatch(f"{path} is of other weights than the work was judged with")

    @cached_property
    def _manifest(self) -> bytes:
        data = self._read(MANIFEST, MANIFEST_BYTES_MAX)
        if digest_of(data).hex() != self._facts["manifest"]:
            raise HashMismatch(f"{self.folder / MANIFEST} is not the manifest on chain")
        return data

    def _read(self, name: str, cap: int) -> bytes:
        try:
            with (self.folder / name).open("rb") as file:
                return file.read(cap + 1)
        except OSError as error:
            raise Malformed(f"{self.folder} is no evidence: {name}: {error.strerror}") from error


class EvidenceStore:
    def __init__(self, folder: Path, most: int, days: float) -> None:
        """Of closed cases, the newest `most` are kept, and none for longer than `days`."""
        self._folder = folder
        self._most = most
        self._days = days

    def keep(
        self, receipt: Receipt, commitment: Commitment, spec: RunSpec, plan: PrefillPlan, domain: Domain, *,
        rollout: Path | None, manifest: bytes | None, history: History | None = None,
    ) -> Evidence:  # fmt: skip
        """Keeps what a rejection stands on; a crash leaves the whole of it or nothing. Raises OSError.

        `plan.examined` are the rows that were examined, whether they were planned or not.
        """
        final = self._folder / receipt.details.submission
        draft = self._folder / f".{receipt.details.submission}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True, mode=0o700)
        facts = {
            "chain_id": domain.chain_id, "contract": domain.contract, "run": receipt.details.run, "units": commitment.units,
            "beacon": commitment.beacon.hex(), "hardware": commitment.hardware, "block_hash": commitment.block_hash.hex(),
            "repeated": commitment.is_repeated, "share": repr(plan.share), "secret": plan.secret.hex(),
            "examined": [list(rows) for rows in plan.examined], "alternatives": list(plan.alternatives),
            "manifest": digest_of(manifest).hex() if manifest else "",
        }  # fmt: skip
        (draft / COMMITMENT).write_bytes(canonical.encode(facts))
        (draft / SPEC).write_bytes(spec.canonical())
        (draft / RECEIPT).write_bytes(receipt.encode())
        if manifest is not None:
            (draft / MANIFEST).write_bytes(manifest)
        if history is not None and receipt.details.history:
            (draft / HISTORY).write_bytes(canonical.encode(history.table()))
        if rollout is not None:
            shutil.copyfile(rollout, draft / ROLLOUT)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(draft, final)
        return Evidence(final)

    def all(self) -> list[Evidence]:
        """Newest judgement first."""
        found = [Evidence(path) for path in self._paths()]
        return sorted(found, key=lambda evidence: evidence.folder.stat().st_mtime, reverse=True)

    def find(self, submission: str) -> Evidence:
        """By submission id or its beginning. Raises UsageError where that names none, or several."""
        found = [path for path in self._paths() if path.name.startswith(submission.removeprefix("0x"))]
        if len(found) != 1:
            known = "no" if not found else "more than one"
            raise UsageError(
                f"there is evidence of {known} rejected submission whose id begins with {submission}",
                hint="murmur validator rejections",
            )
        return Evidence(found[0])

    def of_file(self, root: bytes) -> Evidence | None:
        """That of the rejected file with this SHA-256. What cannot be read is passed over."""
        for evidence in self.all():
            try:
                if evidence.receipt.details.ref.root == root:
                    return evidence
            except (ProtocolViolation, IntegrityError):
                continue
        return None

    def prune(self, is_closed: Callable[[bytes], bool], now: float) -> None:
        """Drops what has been kept for long enough; `now` in wall-clock seconds."""
        closed = [e for e in self.all() if is_closed(bytes.fromhex(e.folder.name))]
        for place, evidence in enumerate(closed):
            if place >= self._most or now - evidence.folder.stat().st_mtime > self._days * 86_400:
                shutil.rmtree(evidence.folder, ignore_errors=True)

    def _paths(self) -> Iterator[Path]:
        if self._folder.is_dir():
            yield from (path for path in self._folder.iterdir() if len(path.name) == 64 and path.is_dir())


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise Malformed(f"{COMMITMENT} holds {text[:80]!r}, which is not hex") from error
