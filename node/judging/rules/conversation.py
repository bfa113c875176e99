"""conversation: every answer, and the tool calls it stands for, is what the environment gives, and it says when the last turn is.

The environment is asked turn by turn. Either it answers: then exactly these tokens stand between this turn and the next. Or it says
nothing: then this turn is the last. A turn at its limit is the last whatever it would say. Hard where the environment is
exact or has no turns; soft elsewhere, because a tool may find something else tomorrow.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.judging.candidate import Candidate
from protocol.errors import Malformed, Unavailable
from protocol.rollout import Sample, ToolResult
from protocol.verdict import Finding, Outcome


def check(c: Candidate) -> Finding | None:
    for row, sample in enumerate(c.samples):
        environment = c.assigned[sample.group].problem.environment
        if not c.context.sandbox.converses(environment):
            if finding := _compare(row, sample, c, [], exact=True):
                return finding
            continue
        try:
            (expected,) = c.context.sandbox.answers([(sample.problem, said(c, sample))])
        except (Malformed, Unavailable) as error:
            c.context.sandbox.warm_up()  # raises where no environment works: that is this validator's trouble
            return Finding("conversation", Outcome.SOFT, "no answer", "an answer", f"row {row}: {error}", 1 << row)
        if len(sample.completion) >= c.spec.sampling.max_new_tokens:
            # Its last turn may well end in an end token: an answer to it could be followed by nothing.
            expected = expected[: len(sample.conversation.generated) - 1]
        if finding := _compare(row, sample, c, expected, exact=c.spec.environments[environment].exact):
            return finding
    return None


def said(c: Candidate, sample: Sample) -> list[str]:
    """The text of each turn that ended by itself: all but perhaps the last."""
    texts = [c.tokenizer.answer(turn.tolist()) for turn in sample.conversation.split(sample.completion)]
    return [text for text in texts if text is not None]


def _compare(row: int, sample: Sample, c: Candidate, answers: Sequence[ToolResult], *, exact: bool) -> Finding | None:
    turns = sample.conversation

    def finding(measured: object, threshold: object, detail: str) -> Finding:
        outcome = Outcome.HARD if exact else Outcome.SOFT
        return Finding("conversation", outcome, str(measured), str(threshold), f"row {row}: {detail}", 1 << row)

    if len(turns.given) != len(answers):
        return finding(f"{len(turns.given)} answers", f"{len(answers)} answers", "the environment ends it elsewhere")
    for number, (given, answer) in enumerate(zip(turns.answers_in(sample.given), answers, strict=True)):
        own = c.tokenizer.encode(answer.text)
        if given.tolist() != own:
            return finding(f"{len(given)} tokens", f"{len(own)} tokens", f"answer {number} is another")
        calls = tuple(call for call in sample.tool_calls if call.turn == number)
        if calls != answer.calls:
            return finding(
                f"{len(calls)} calls", f"{len(answer.calls)} calls", f"the calls of turn {number} are others"
            )
    return None
