"""Whether validators looked at the samples they drew: what the hub's receipts and the chain show to anyone (protocol/prefill_sampling.py).

It does not judge submissions again, and what it finds has no consequence on chain: a receipt that lacks a drawn sample vouches for
less than it should, and whoever runs the run decides about its validators. A hub may keep receipts to itself: what is found
broken is, what is not found may be hidden.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations

from protocol import prefill_sampling
from protocol.chain.events import Voted
from protocol.chain.view import View
from protocol.errors import HashMismatch, Oversized, ProtocolViolation
from protocol.runspec import RunSpec
from protocol.shell.connection import Connection
from protocol.signing import Domain
from protocol.verdict import Details, Outcome, Receipt, evidence_of

log = logging.getLogger("validator")

_LEFT_OUT_MOST = 12  # receipts of which parts are tried too: 2¹² digests at the most


@dataclass
class Votes:
    """What one juror's votes show."""

    votes: int = 0
    """On cases that are over."""
    kept: int = 0
    """Whose receipts are at the hub, hash to what the vote said, and agree with it."""
    otherwise: list[str] = field(default_factory=list)
    """Where the juror's first word on a submission was another than its vote; a look at all samples may find more than one at some."""
    missing: list[str] = field(default_factory=list)
    """Where receipts are missing or do not hash to what the vote said."""


UNSEEN_MOST = 1 << 14
"""Receipts that a hub may list of submissions newer than the blocks that were read: these lie some confirmations behind."""


@dataclass(frozen=True)
class Broken:
    """A receipt that breaks a promise, and which."""

    submission: str
    time: int
    reason: str


@dataclass
class Audited:
    """What one validator's receipts show; counts of receipts."""

    receipts: int = 0
    kept: int = 0
    """Accepts that vouch for every sample their secret drew."""
    waiting: int = 0
    """Accepts whose secret nobody can know yet: their validator has signed nothing in a later period."""
    unknown: int = 0
    """Accepts of submissions whose commitment is not in the book, or not yet."""
    broken: list[Broken] = field(default_factory=list)


def read_receipts(connection: Connection, most: int) -> list[Receipt]:
    """What the hub lists, without what is no receipt. Raises Oversized above `most` entries: a listing may never end."""
    found: list[Receipt] = []
    cursor = seen = 0
    while page := list(connection.hub.receipts(cursor)):
        cursor, seen = page[-1][0], seen + len(page)
        if seen > most:
            raise Oversized(f"the hub lists more than the {most} receipts that there can be")
        for _, data in page:
            try:
                found.append(Receipt.parse(data, connection.chain.domain, connection.run))
            except ProtocolViolation as error:
                log.warning("the hub lists a receipt that is none: %s", error)
    return found


def audit(receipts: Iterable[Receipt], view: View, spec: RunSpec, window: int) -> dict[str, Audited]:
    """By validator, of all that ever had a seat in the run; `window` in seconds, as the run's policy has it."""
    details_of: dict[str, list[Details]] = defaultdict(list)
    known = view.ever_validated()
    for receipt in receipts:
        if receipt.validator in known:
            details_of[receipt.validator].append(receipt.details)
    return {
        validator: _audit(sorted(details_of[validator], key=lambda d: d.time), view, spec, window)
        for validator in sorted(details_of)
    }


def audit_votes(receipts: Iterable[Receipt], view: View, domain: Domain) -> dict[str, Votes]:
    """By juror: whether the receipts that its votes stand on were handed over after the close (node/validator/jury.py)."""
    said: dict[tuple[str, bytes], Receipt] = {}
    for receipt in receipts:
        said.setdefault((receipt.validator, receipt.submission), receipt)
    found: dict[str, Votes] = defaultdict(Votes)
    for event in view.events(Voted):
        vote: Voted = event.data
        case = view.case(vote.seat, vote.number)
        if case is None or case.is_open:
            continue
        one, name = found[vote.validator], f"case {vote.number} against {vote.seat}"
        one.votes += 1
        own = [said.get((vote.validator, ref.submission_id(view.run))) for ref in case.refs]
        bits = [bool(vote.found_false >> i & 1) for i in range(len(own))]
        if any(r is not None and (r.outcome != Outcome.ACCEPT) != bit for r, bit in zip(own, bits, strict=True)):
            one.otherwise.append(name)
        elif _replays(vote.receipts, [r for r in own if r is not None], domain):
            one.kept += 1
        else:
            one.missing.append(name)
    return dict(found)


def _replays(digest: bytes, receipts: list[Receipt], domain: Domain) -> bool:
    """Whether these are what a vote said; a juror leaves out submissions that it did not know, and of those that had left the case it need
    not have spoken."""
    if evidence_of(receipts, domain) == digest:
        return True
    many = len(receipts)
    return many <= _LEFT_OUT_MOST and any(
        evidence_of(list(part), domain) == digest for size in range(1, many) for part in combinations(receipts, size)
    )


def _audit(details: list[Details], view: View, spec: RunSpec, window: int) -> Audited:
    found = Audited(receipts=len(details))
    for chained in _chains([d for d in details if d.prefill != prefill_sampling.NO_COMMITMENT], window, found):
        for d in chained:
            if d.outcome != Outcome.ACCEPT:
                continue
            submission = view.submission(bytes.fromhex(d.submission))
            if submission is None:
                found.unknown += 1
                continue
            newcomer = spec.verification.newcomer_submissions
            is_newcomer = view.earlier(submission, newcomer) < newcomer
            share = 1.0 if is_newcomer else float(spec.verification.prefill_share)
            secret = prefill_sampling.revealed(d, chained[-1], window)
            try:
                if share >= 1:
                    prefill_sampling.require_vouched(d, range(spec.samples))
                elif secret is None:
                    found.waiting += 1
                    continue
                else:
                    prefill_sampling.require_drawn(d, secret, submission.block_hash, spec.samples, share)
            except ProtocolViolation as error:
                found.broken.append(Broken(d.submission, d.time, str(error)))
            else:
                found.kept += 1
    return found


def _chains(details: list[Details], window: int, found: Audited) -> Iterator[list[Details]]:
    """One validator's receipts, oldest first, cut where a secret is not of the chain before it; cuts are `broken`."""
    chained: list[Details] = []
    for d in details:
        if chained:
            try:
                prefill_sampling.require_chained(chained[-1], d, window)
            except HashMismatch as error:
                found.broken.append(Broken(d.submission, d.time, str(error)))
            except ProtocolViolation:  # the next chain of its master secret, which begins every PERIODS
                pass
            else:
                chained.append(d)
                continue
            yield chained
        chained = [d]
    if chained:
        yield chained
