"""Judging one submission: the rules in order, the first finding decides, and the receipt that says so.

Two exceptions. After a soft finding of `conversation`, `reward`, `computation` or `sampling` the rules that follow are asked as well, and a hard one
of theirs counts. A program can be made to say something else tomorrow, and an edited token disturbs a proof just enough to be soft: a
cheat would hide behind either. And after a hard finding of `computation` in rows that got the prefill `sampling` is asked about the same rows.

Invariant: a hard judgement of some of the rows names nothing but rows that a judgement in full names too, which is hard then. Second
validators and jurors judge in full, and a case needs rows that both name. So a rule either judges all rows, which is the same for
everybody, or it is one of the two that judge the drawn ones, and those two add up: whatever either finds hard is named, whatever the
other finds. Else a row with garbage for proofs would hide one that `sampling` alone convicts. `history` names no row, and meets only a second finding that
names none: each validator sums what it knows.

What runs strangers' programs comes last: a node would spend nothing on programs of its own, and its validators hours.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from node.engine import memory
from node.judging.candidate import Candidate, Checked, Commitment, RunContext
from node.judging.history import History
from node.judging.rules import HIDES, INEXACT, RULES, computation, sampling
from node.judging.rules.limits import worst
from protocol import prefill_sampling, statistics
from protocol.constants import PROTOCOL_VERSION
from protocol.errors import MurmurationError
from protocol.verdict import HISTORY, NEEDS_MODEL, Details, Finding, Outcome

log = logging.getLogger(__name__)

_TEXT_MOST = 300  # characters of each text in a receipt


def judge(candidate: Candidate, rules: Iterable[str] = tuple(RULES)) -> Finding | None:
    """The first finding of the named rules, in their order, or a hard one after a soft one that a cheat could hide behind.

    The rule is the first that is hard; the samples are those of `computation` and `sampling` together where both are.

    In a hardware class that nobody calibrated, and of a model that is not listed, nothing is worse than soft. None accepts. Raises
    whatever keeps a rule from running: then there is no verdict. An engine that runs out of memory is Unavailable.
    """
    return capped(_first(candidate, rules), candidate.uncovered)


def capped(finding: Finding | None, uncovered: str | None) -> Finding | None:
    """A run may let classes work, or a model in, whose honest work nobody has measured (`uncovered` says why): it pays for it, and slashes
    nobody."""
    if finding is None or finding.outcome is not Outcome.HARD or uncovered is None:
        return finding
    return replace(finding, outcome=Outcome.SOFT, detail=f"{finding.detail}; {uncovered}")


def _first(candidate: Candidate, rules: Iterable[str]) -> Finding | None:
    wanted = set(rules)
    soft: Finding | None = None
    trouble: MurmurationError | None = None
    for name, check in RULES.items():
        if name not in wanted:
            continue
        try:
            with memory.told():
                finding = check(candidate)
        except MurmurationError as error:
            if soft is None and name not in NEEDS_MODEL:
                raise
            trouble = error
            break
        if name == "computation" and "sampling" in wanted:
            finding = _with_sampling(candidate, finding)
        if finding is None or (soft is not None and finding.outcome is not Outcome.HARD):
            continue
        if finding.outcome is Outcome.HARD or name not in HIDES:
            return finding
        soft = finding
    if trouble is not None:
        if soft is None:
            raise trouble  # it is tried again, and no program is run each time
        log.info("a rule cannot be asked, and %s has found something: %s", soft.rule, trouble)
    return soft or _inexact(candidate, wanted)


def _with_sampling(c: Candidate, finding: Finding | None) -> Finding | None:
    """A hard finding of `computation`, and what `sampling` finds in the rows that got the prefill for it: none where a proof was malformed."""
    if finding is None or finding.outcome is not Outcome.HARD:
        return finding
    return worst([finding, sampling.of_rows(c, [row for row in c.rows if c.checked.samples >> row & 1])])


def _inexact(c: Candidate, wanted: set[str]) -> Finding | None:
    """What the rules find that run strangers' programs. An examination that cannot be made takes no finding of theirs away."""
    examine = partial(_examined, c, wanted >= NEEDS_MODEL)
    trouble: MurmurationError | None = None
    for rows in c.plan.examined:
        try:
            if finding := examine(rows, None):
                return finding
        except MurmurationError as error:
            trouble = trouble or error
    if trouble is not None:
        raise trouble
    for name, inexact in INEXACT.items():
        if name in wanted and (finding := inexact(c, examine)):
            return finding
    return None


def _examined(c: Candidate, has_model: bool, rows: Sequence[int], finding: Finding | None) -> Finding | None:
    """What the model says of rows, as far as it was not asked yet; otherwise `finding`.

    Raises what keeps it from being asked where there is none: the judgement is tried again, and each further program would be run again.
    """
    more = tuple(row for row in rows if not c.checked.samples >> row & 1)
    if not more or not has_model:
        return finding
    checked = c.checked
    before = checked.samples, checked.proofs, checked.tokens
    try:
        with memory.told():
            found = worst([computation.of_rows(c, more), sampling.of_rows(c, more)])
    except MurmurationError as error:
        checked.samples, checked.proofs, checked.tokens = before  # a receipt vouches for rows that were checked
        checked.unexamined.append(more)
        if finding is None:
            raise
        log.info("rows cannot be examined, and %s has found something: %s", finding.rule, error)
        return finding
    checked.examined.append(more)
    return found or finding


def details(
    context: RunContext,
    commitment: Commitment,
    finding: Finding | None,
    time: int,
    checked: Checked | None = None,
    secret: bytes | None = None,
    history: History | None = None,
) -> Details:
    """What the receipt for a judgement says; `time` in block time, `checked` as Candidate counts it, `secret` that of the
    period, which the receipt commits to;
    `history`: that of the seat, which a finding of that rule names."""
    checked = checked or Checked()
    ref, domain = commitment.ref, context.domain
    return Details(
        protocol=PROTOCOL_VERSION, chain_id=domain.chain_id, contract=domain.contract, run=context.run,
        submission=ref.submission_id(context.run).hex(), node=ref.node, step=ref.step, sequence=ref.sequence, root=ref.root.hex(),
        units=commitment.units, spec=context.spec_digest.hex(),
        outcome=int(finding.outcome if finding else Outcome.ACCEPT), rule=finding.rule if finding else "",
        measured=_readable(finding.measured) if finding else "", threshold=_readable(finding.threshold) if finding else "",
        detail=_readable(finding.detail) if finding else "", samples=f"{finding.samples if finding else checked.samples:064x}",
        sequences_checked=checked.samples.bit_count(), proofs_checked=checked.proofs, tokens_checked=checked.tokens, time=time,
        prefill=prefill_sampling.NO_COMMITMENT if secret is None else prefill_sampling.commitment(secret).hex(),
        sums=statistics.encode(checked.summed),
        history=history.digest.hex() if history is not None and finding is not None and finding.rule == HISTORY else "",
    )  # fmt: skip


def _readable(text: str) -> str:
    """A finding may quote the file, that is a stranger: printable, and short enough for any receipt."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown if len(shown) <= _TEXT_MOST else shown[: _TEXT_MOST - 1] + "…"
