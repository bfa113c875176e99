"""A new calibration in a running run: what the trainer signs of it, what the run spec allows, and the limits that follow.

A notice is part of a version's signed manifest (protocol/shardcast/manifest.py), whose digest is on chain: work done with that version is judged by it. Every
later manifest repeats it until one replaces it, so each version's manifest alone tells its limits, and no later one changes them: never backwards.

A run takes notices where its spec has `verification.recalibration`, and within these bounds. A notice replaces limits that the spec has, and no more: it adds no
quantity, and leaves alone which hardware classes work or may be slashed, the history's budget, rewards and prefill shares.

A new calibration begins the sums over seats' work anew, and each beginning is a test of its own. So that the probabilities of `verification.history` hold however many
notices come, those of number k (0: the spec's own limits) take 1 / ((k + 1)(k + 2)) of them, which together is all. Whoever sends many convicts the less.

Rules: docs/decisions/0023. What a party has seen of them: protocol/notice_book.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError, model_validator

from protocol import canonical
from protocol.complaints import complaints
from protocol.constants import NOTICE_BYTES_MAX
from protocol.errors import Malformed, Oversized
from protocol.runspec_part import HexDigest, Part
from protocol.runspec_verification import (
    ComputationLimits,
    HistoryBudget,
    Limit,
    Recalibration,
    SamplingLimits,
    VerificationSpec,
)

if TYPE_CHECKING:
    from protocol.runspec import RunSpec

_NUMBER_MAX = 1 << 32
_RULES = ("computation", "sampling")
_SAME = ("mismatch_above", "margin_clip")
"""What no notice changes: a lower or higher one tightens other limits unseen."""


class CalibrationNotice(Part):
    """The trainer's word: from version `since` on, work is judged by these limits. Changing its form breaks: programs that know only this one load no weights."""

    number: int = Field(ge=1, lt=_NUMBER_MAX)
    """Counts the run's notices, from 1. A larger one makes the sums' verdicts rarer, so none may be left out."""
    since: int = Field(ge=1, lt=1 << 32)
    """Step of the first version it holds for, the one that it came with."""
    calibration: HexDigest
    """Digest of the calibration that the limits come from."""
    computation: ComputationLimits
    sampling: SamplingLimits
    noise: Limit | None = None

    @model_validator(mode="after")
    def _one_a_version(self) -> CalibrationNotice:
        if self.number > self.since:
            raise ValueError(
                f"notice {self.number} cannot come with version {self.since}: each comes with a version of its own"
            )
        return self

    @classmethod
    def parse(cls, value: Any) -> CalibrationNotice:
        """From a manifest's JSON value. Raises Oversized, or Malformed naming each wrong place."""
        if (size := len(canonical.encode(value))) > NOTICE_BYTES_MAX:
            raise Oversized(f"the calibration notice has {size} bytes, more than {NOTICE_BYTES_MAX}")
        try:
            notice = cls.model_validate(value)
        except ValidationError as error:
            raise Malformed("the calibration notice is wrong:\n" + complaints(error, cls)) from None
        if notice.table() != value:
            raise Malformed("the calibration notice writes out what is left out, and would have two digests")
        return notice

    def table(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    @property
    def content(self) -> dict[str, Any]:
        """What it says, whenever it is said."""
        return {name: value for name, value in self.table().items() if name not in ("number", "since")}

    def __str__(self) -> str:
        return f"calibration {self.calibration[:12]} from version {self.since} on (notice {self.number})"


def in_force(verification: VerificationSpec, notice: CalibrationNotice | None) -> VerificationSpec:
    """What work is judged by that was done with a version whose manifest has this notice, or none."""
    if verification.recalibration is None:
        return verification
    changed: dict[str, Any] = {}
    if verification.history is not None:
        changed["history"] = _share(verification.history, 0 if notice is None else notice.number)
    if notice is not None:
        changed |= {name: getattr(notice, name) for name in ("calibration", *_RULES, "noise")}
    return verification.model_copy(update=changed)


def spec_in_force(spec: RunSpec, notice: CalibrationNotice | None) -> RunSpec:
    """The same of the whole spec. Its digest is not that on chain."""
    return spec.model_copy(update={"verification": in_force(spec.verification, notice)})


def require_allowed(spec: RunSpec, notice: CalibrationNotice) -> None:
    """Raises Malformed, with a sentence for people, for what the run's spec does not allow."""
    bounds = spec.verification.recalibration
    if bounds is None:
        raise Malformed(
            "the trainer replaces the calibration, and the run spec lets nobody (spec.verification.recalibration)"
        )
    if refusals := list(_refused(spec.verification, notice, bounds)):
        more = f", and {len(refusals) - 1} more" if len(refusals) > 1 else ""
        raise Malformed(
            f"calibration {notice.calibration[:12]} is beyond what the run spec allows: {refusals[0]}{more}"
        )
    after = spec_in_force(spec, notice)
    try:
        type(spec).model_validate(after.model_dump())
    except ValidationError as error:
        raise Malformed("the run spec could not have this calibration:\n" + complaints(error, type(spec))) from None


def changes(verification: VerificationSpec, notice: CalibrationNotice) -> list[str]:
    """A line for each limit that the notice changes."""
    return [
        f"{name}: soft {was.soft} -> {new.soft}, hard {was.hard} -> {new.hard}"
        for name, was, new in _pairs(verification, notice)
        if was is not None and new is not None and was != new
    ]


def _refused(verification: VerificationSpec, notice: CalibrationNotice, bounds: Recalibration) -> Iterator[str]:
    for name in _SAME:
        was, new = getattr(verification.sampling, name), getattr(notice.sampling, name)
        if Decimal(was) != Decimal(new):
            yield f"sampling.{name} is {was} for as long as the run, and {new} there"
    for name, limit, of in _pairs(verification, notice):
        if limit is None and of is None:
            continue
        if limit is None or of is None:
            yield f"{name} has {'no limit in the spec' if limit is None else 'a limit in the spec, and none there'}"
            continue
        for kind, least in (("soft", bounds.soft_least), ("hard", bounds.hard_least)):
            own, new = Decimal(getattr(limit, kind)), Decimal(getattr(of, kind))
            low, high = own * Decimal(least), own * Decimal(bounds.most)
            if not low <= new <= high:
                yield f"{name}.{kind} would be {new}, and must be within {low.normalize():f} and {high.normalize():f}"


def _pairs(
    verification: VerificationSpec, notice: CalibrationNotice
) -> Iterator[tuple[str, Limit | None, Limit | None]]:
    """Each limit by name, of the spec and of the notice."""
    for rule in _RULES:
        of_spec, of_notice = getattr(verification, rule), getattr(notice, rule)
        for name in type(of_spec).model_fields:
            if name not in _SAME:
                yield f"{rule}.{name}", getattr(of_spec, name), getattr(of_notice, name)
    yield "noise", verification.noise, notice.noise


def _share(budget: HistoryBudget, number: int) -> HistoryBudget:
    parts = (number + 1) * (number + 2)
    return budget.model_copy(update={kind: str(Decimal(getattr(budget, kind)) / parts) for kind in ("soft", "hard")})
