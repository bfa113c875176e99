"""Judging one work: the rules in order, the first finding decides, and the receipt that says so."""

from __future__ import annotations

from collections.abc import Iterable

from node.validator.candidate import Candidate
from node.validator.rules import RULES
from protocol.constants import PROTOCOL_VERSION
from protocol.verdict import Details, Finding, Outcome


def judge(candidate: Candidate, rules: Iterable[str] = tuple(RULES)) -> Finding | None:
    """The first finding of the named rules, in their order; None accepts.

    Raises whatever keeps a rule from running: then there is no verdict.
    """
    wanted = set(rules)
    for name, check in RULES.items():
        if name in wanted and (finding := check(candidate)) is not None:
            return finding
    return None


def details(candidate: Candidate, finding: Finding | None, time: int) -> Details:
    """What the receipt for this judgement says; `time` in block time."""
    ref, domain = candidate.commitment.ref, candidate.context.domain
    return Details(
        protocol=PROTOCOL_VERSION, chain_id=domain.chain_id, contract=domain.contract, run=candidate.context.run,
        work=candidate.work_id.hex(), node=ref.node, step=ref.step, sequence=ref.sequence, root=ref.root.hex(),
        units=candidate.commitment.units, spec=candidate.context.spec_digest.hex(),
        outcome=int(finding.outcome if finding else Outcome.ACCEPT),
        rule=finding.rule if finding else "", measured=finding.measured if finding else "",
        threshold=finding.threshold if finding else "", detail=finding.detail if finding else "",
        sequences_checked=candidate.checked["sequences"], proofs_checked=candidate.checked["proofs"],
        tokens_checked=candidate.checked["tokens"], time=time,
    )  # fmt: skip
