"""conversation: every reply, and the tool calls it stands for, is what the environment says, and it says when the last turn is.

The environment is asked turn by turn. Either it replies: then exactly these tokens stand between this turn and the next. Or it says
nothing, or has no room for it (protocol/replies.py): then this turn is the last. A turn at its limit is the last whatever it would say.
Hard where the environment is exact or has no turns; soft elsewhere, because a tool may find something else tomorrow.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from node.judging.candidate import LONG_SECONDS, Candidate, Examine
from protocol.errors import Malformed, Unavailable
from protocol.replies import Asked, SoFar, tokens_of
from protocol.rollout import Sample, ToolResult
from protocol.verdict import Finding, Outcome


def check(c: Candidate) -> Finding | None:
    """Of the rows that are exact or reply to nothing: the first hard finding, else the first one."""
    first: Finding | None = None
    for row, sample in enumerate(c.samples):
        if not _converses(c, sample):
            if len(sample.answers):
                return _finding(row, f"{len(sample.answers)} replies", "0 replies", "nobody replies here", exact=True)
        elif c.is_exact(row):
            finding = _of_row(c, row, sample)
            if finding is not None and finding.outcome == Outcome.HARD:
                return finding
            first = first or finding
    return first


def check_inexact(c: Candidate, examine: Examine) -> Finding | None:
    """Of the others, the first one: nothing is worse. A row that took long is examined before it is believed."""
    for row, sample in enumerate(c.samples):
        if not c.is_exact(row) and _converses(c, sample):
            began = time.monotonic()
            finding = _of_row(c, row, sample)
            if c.plan.by_clock and time.monotonic() - began > LONG_SECONDS:
                finding = examine([row]) or finding
            if finding is not None:
                return finding
    return None


def _converses(c: Candidate, sample: Sample) -> bool:
    environment = c.assigned[sample.group].problem.environment
    return c.spec.sampling.turns > 1 and c.context.sandbox.converses(environment)


def _of_row(c: Candidate, row: int, sample: Sample) -> Finding | None:
    try:
        (replies,) = c.context.sandbox.replies([Asked(sample.problem, said(c, sample), 0, _claims(sample))])
    except (Malformed, Unavailable) as error:
        c.context.sandbox.warm_up()  # raises where no environment works: that is this validator's trouble
        return _finding(row, "no reply", "a reply", str(error), exact=False)
    return _compare(row, sample, c, replies, exact=c.is_exact(row))


def said(c: Candidate, sample: Sample) -> list[str]:
    """The text of each turn that ended by itself: all but perhaps the last."""
    texts = [c.tokenizer.answer(turn.tolist()) for turn in sample.conversation.split(sample.completion)]
    return [text for text in texts if text is not None]


def _claims(sample: Sample) -> list[str | None]:
    """What the first call of each turn is said to have given: where a result depends on how fast a machine is, it may stand."""
    found: dict[int, str] = {}
    for call in sample.tool_calls:
        found.setdefault(call.turn, call.result)
    return [found.get(turn) for turn in range(len(sample.answers))]


def _compare(row: int, sample: Sample, c: Candidate, replies: Sequence[ToolResult], *, exact: bool) -> Finding | None:
    turns = sample.conversation
    given, so_far = list(turns.answers_in(sample.given)), SoFar(0, 0, 0)
    for number, generated in enumerate(turns.generated):
        so_far = SoFar(number + 1, so_far.generated + generated, so_far.given)
        reply = replies[number] if number < len(replies) else None
        own, claimed = tokens_of(c.spec.sampling, c.tokenizer, reply, so_far), number < len(given)
        if bool(own) != claimed:
            said = (f"a reply to turn {number}", "none") if claimed else ("none", f"a reply to turn {number}")
            return _finding(row, *said, "the environment ends it elsewhere", exact=exact)
        if not claimed:
            continue
        if given[number].tolist() != own:
            measured, expected = f"{len(given[number])} tokens", f"{len(own)} tokens"
            return _finding(row, measured, expected, f"reply {number} is another", exact=exact)
        calls = tuple(call for call in sample.tool_calls if call.turn == number)
        if reply is not None and calls != reply.calls:
            measured, expected = f"{len(calls)} calls", f"{len(reply.calls)} calls"
            return _finding(row, measured, expected, f"the calls of turn {number} are others", exact=exact)
        so_far = SoFar(so_far.turns, so_far.generated, so_far.given + len(own))
    return None


def _finding(row: int, measured: str, threshold: str, detail: str, *, exact: bool) -> Finding:
    outcome = Outcome.HARD if exact else Outcome.SOFT
    return Finding("conversation", outcome, measured, threshold, f"row {row}: {detail}", 1 << row)
