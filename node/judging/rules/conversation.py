"""conversation: every reply, and the tool calls it stands for, is what the environment says, and it says when the last turn is.

The environment is asked turn by turn. Either it replies: then exactly these tokens stand between this turn and the next. Or it says
nothing, or has no room for it (protocol/replies.py): then this turn is the last. A turn at its limit is the last whatever it would say.
Where a result depends on how fast a machine is, it is enough that another honest machine may have got one that has no room.
Hard where the environment is exact or has no turns; soft elsewhere, because a tool may find something else tomorrow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from node.judging.candidate import LONG_SECONDS, Candidate, Examine
from protocol.errors import Interrupted, Malformed, Unavailable
from protocol.replies import Asked, SoFar, may_follow, tokens_of
from protocol.rollout import Sample, ToolResult
from protocol.verdict import Finding, Outcome

_TRIES = 2


def check(c: Candidate) -> Finding | None:
    """Of the rows that are exact or reply to nothing: the first hard finding, else the first one."""
    first: Finding | None = None
    for row, sample in enumerate(c.samples):
        if not _converses(c, sample):
            if len(sample.answers):
                return _finding(row, f"{len(sample.answers)} replies", "0 replies", "nobody replies here", exact=True)
        elif c.is_exact(row):
            finding = next((one for one in _by_turns(c, row, sample) if one is not None), None)
            if finding is not None and finding.outcome == Outcome.HARD:
                return finding
            first = first or finding
    return first


def check_inexact(c: Candidate, examine: Examine) -> Finding | None:
    """Of the others, the first one: nothing is worse. A row that took long is examined before it is believed, or asked about any further."""
    for row, sample in enumerate(c.samples):
        if not c.is_exact(row) and _converses(c, sample):
            began = time.monotonic()
            for found in _by_turns(c, row, sample):
                is_long = c.plan.by_clock and time.monotonic() - began > LONG_SECONDS
                if finding := (examine([row], found) if is_long else found):
                    return finding
    return None


def _converses(c: Candidate, sample: Sample) -> bool:
    environment = c.assigned[sample.group].problem.environment
    return c.spec.sampling.turns > 1 and c.context.sandbox.converses(environment)


def _by_turns(c: Candidate, row: int, sample: Sample) -> Iterator[Finding | None]:
    """What there is against each turn, the first finding last. The environment is asked about a turn when its finding is asked for: each may
    be a program that costs as much as there may be."""
    texts = [c.tokenizer.answer(turn.tolist()) for turn in sample.conversation.split(sample.completion)]
    given, claims, so_far = list(sample.conversation.answers_in(sample.given)), _claims(sample), SoFar(0, 0, 0)
    for number, generated in enumerate(sample.conversation.generated):
        so_far = SoFar(number + 1, so_far.generated + generated, so_far.given)
        try:
            claim = claims.get(number) if number < len(given) else _unsaid(c, row, sample, so_far)
            reply = _reply(c, sample, texts[: number + 1], so_far, claim)
        except Interrupted:
            raise
        except (Malformed, Unavailable) as error:
            c.context.sandbox.warm_up()  # raises where no environment works: that is this validator's trouble
            yield _finding(row, "no reply", "a reply", str(error), exact=False)
            return
        claimed = given[number].tolist() if number < len(given) else None
        finding = _compare(c, row, sample, so_far, reply, claimed)
        yield finding
        if finding is not None:
            return
        so_far = SoFar(so_far.turns, so_far.generated, so_far.given + len(claimed or ()))


def _reply(
    c: Candidate, sample: Sample, texts: Sequence[str | None], so_far: SoFar, claim: str | None
) -> ToolResult | None:
    """What the environment says to the last of these turns. It is not asked where that did not end by itself, or no turn may follow.

    Raises Interrupted where this machine breaks it off again and again.
    """
    said = [text for text in texts if text is not None]
    if len(said) < len(texts) or not may_follow(c.spec.sampling, so_far):
        return None
    first = len(said) - 1
    asked = [Asked(sample.problem, said, first, [*[None] * first, claim])]
    for _ in range(_TRIES - 1):
        with suppress(Interrupted):  # this machine broke it off, which says nothing of the row
            (replies,) = c.context.sandbox.replies(asked)
            return replies[0] if replies else None
        c.context.sandbox.warm_up()
    (replies,) = c.context.sandbox.replies(asked)
    return replies[0] if replies else None


def _unsaid(c: Candidate, row: int, sample: Sample, so_far: SoFar) -> str | None:
    """What to hold a program against after which a sample is said to have ended, because its result has no room: any result will do that
    an honest machine may have got.

    Where "too slow" has no room either, that is one: as soon as the program takes a quarter of its time. Where it has, the program printed
    something that has none, perhaps on a machine four times as fast.
    """
    if c.is_exact(row) or not may_follow(c.spec.sampling, so_far):
        return None
    slow = c.context.sandbox.too_slow(c.assigned[sample.group].problem.environment)
    if slow is None:
        return None
    return "" if tokens_of(c.spec.sampling, c.tokenizer, ToolResult(slow), so_far) else slow


def _claims(sample: Sample) -> dict[int, str]:
    """By turn, what its first call is said to have given: where a result depends on how fast a machine is, it may stand."""
    found: dict[int, str] = {}
    for call in sample.tool_calls:
        found.setdefault(call.turn, call.result)
    return found


def _compare(
    c: Candidate, row: int, sample: Sample, so_far: SoFar, reply: ToolResult | None, claimed: list[int] | None
) -> Finding | None:
    """One turn: `claimed` are the tokens that are said to have followed, None after the last turn."""
    exact, number = c.is_exact(row), so_far.turns - 1
    own = tokens_of(c.spec.sampling, c.tokenizer, reply, so_far)
    if bool(own) != (claimed is not None):
        said = ("none", f"a reply to turn {number}") if own else (f"a reply to turn {number}", "none")
        return _finding(row, *said, "the environment ends it elsewhere", exact=exact)
    if claimed is None:
        return None
    if claimed != own:
        measured, expected = f"{len(claimed)} tokens", f"{len(own)} tokens"
        return _finding(row, measured, expected, f"reply {number} is another", exact=exact)
    calls = tuple(call for call in sample.tool_calls if call.turn == number)
    if reply is not None and calls != reply.calls:
        measured, expected = f"{len(calls)} calls", f"{len(reply.calls)} calls"
        return _finding(row, measured, expected, f"the calls of turn {number} are others", exact=exact)
    return None


def _finding(row: int, measured: str, threshold: str, detail: str, *, exact: bool) -> Finding:
    outcome = Outcome.HARD if exact else Outcome.SOFT
    return Finding("conversation", outcome, measured, threshold, f"row {row}: {detail}", 1 << row)
