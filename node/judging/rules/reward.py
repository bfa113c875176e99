"""reward: task reward, length penalty and their difference are what the environment and the run spec say.

Hard only for environments the spec declares exact; soft elsewhere, where a deadline or a float could explain it, and soft
for an answer that no verifier gets to an end with: without a score nobody may earn. Where a verdict depends on how fast a machine
is, every reward that an honest node may have measured is right (protocol/environments/programs.py). The verifiers run in the sandbox, for a
completion is a stranger's text. Task rewards are canonical (protocol/reward.py), and what it calls `FORGIVEN` is forgiven in every run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from node.judging.candidate import LONG_SECONDS, Candidate, Examine
from protocol.environments.programs import Range
from protocol.errors import Interrupted, Malformed, Unavailable
from protocol.length_rewards import penalty as length_penalty
from protocol.reward import FORGIVEN, agree
from protocol.rollout import Sample
from protocol.verdict import Finding, Outcome

_TRIES = 2
"""How often an answer by itself must end the verifiers before it is to blame, in a fresh child each time, and what this machine may break off."""
_TOKENS_AT_ONCE = 1 << 16  # of the answers that are texts at the same time: one token may be a hundred letters
_INEXACT_AT_ONCE = (
    8  # answers: so many may cost all that they can before the first of them is held against their author
)

Answer = tuple[int, str | None]
"""Index of the problem, and the text that is scored."""


def check(c: Candidate) -> Finding | None:
    """Of the rows that are exact: the first hard finding, else the first one."""
    scorer = _Scorer(c)
    first: Finding | None = None
    for rows in _portions(c, [row for row in range(len(c.samples)) if c.is_exact(row)], len(c.samples)):
        rewards = scorer.score(rows)
        if isinstance(rewards, Finding):
            return first or rewards
        for row, bounds in zip(rows, rewards, strict=True):
            finding = _compare(c, row, bounds)
            if finding is not None and finding.outcome == Outcome.HARD:
                return finding
            first = first or finding
    return first


def check_inexact(c: Candidate, examine: Examine) -> Finding | None:
    """Of the others, the first one: nothing is worse, and no further program is run. Rows that took long are examined before they are believed."""
    scorer = _Scorer(c)
    for rows in _portions(c, [row for row in range(len(c.samples)) if not c.is_exact(row)], _INEXACT_AT_ONCE):
        began = time.monotonic()
        rewards = scorer.score(rows)
        if isinstance(rewards, Finding):
            finding: Finding | None = rewards
        else:
            found = (_compare(c, row, bounds) for row, bounds in zip(rows, rewards, strict=True))
            finding = next((one for one in found if one is not None), None)
        if c.plan.by_clock and time.monotonic() - began > LONG_SECONDS:
            finding = examine(rows, finding)
        if finding is not None:
            return finding
    return None


def _portions(c: Candidate, rows: Sequence[int], most: int) -> Iterator[list[int]]:
    """Rows, in order, whose answers are scored by one request."""
    portion: list[int] = []
    tokens = 0
    for row in rows:
        length = len(c.samples[row].completion)
        if portion and (tokens + length > _TOKENS_AT_ONCE or len(portion) == most):
            yield portion
            portion, tokens = [], 0
        portion.append(row)
        tokens += length
    if portion:
        yield portion


def _compare(c: Candidate, row: int, bounds: Range) -> Finding | None:
    sample, tolerance = c.samples[row], _tolerance(c)
    environment = c.assigned[sample.group].problem.environment
    task_reward = (
        min(max(sample.task_reward, bounds.low), bounds.high) if math.isfinite(sample.task_reward) else bounds.low
    )
    penalty = length_penalty(c.spec.reward_of(environment), sample.budget, len(sample.completion))
    expected = (task_reward, penalty, task_reward - penalty)
    found = (sample.task_reward, sample.length_penalty, sample.reward)
    for name, own, claimed in zip(("task_reward", "length_penalty", "reward"), expected, found, strict=True):
        if not agree(own, claimed, tolerance):
            exact = c.spec.environments[environment].exact
            outcome = Outcome.HARD if exact else Outcome.SOFT
            return Finding("reward", outcome, f"{claimed:.6g}", f"{own:.6g}", f"row {row}: {name}", 1 << row)
    return None


def _tolerance(c: Candidate) -> float:
    return max(float(c.spec.verification.reward_tolerance), FORGIVEN)


class _Scorer:
    """Scores answers of a submission.

    An answer that breaks a verifier must not keep its submission from being judged: it would be paid. Nor may an honest one be blamed for
    what breaks off here: each has the time that its environment's limits give it, however long those before it took, and what ends the
    verifiers from outside is no verdict. Raises Unavailable where the verifiers do not work at all, for that is this validator's own trouble.
    """

    def __init__(self, c: Candidate) -> None:
        self._c = c

    def score(self, rows: Sequence[int]) -> list[Range] | Finding:
        """What may honestly be claimed of the answers of these rows, or the finding that one of them cannot be scored."""
        samples = self._c.samples
        answers = [(samples[row].problem, self._answer(samples[row])) for row in rows]
        claims = [float(samples[row].task_reward) for row in rows]
        if len(rows) > 1 and (found := self._together(answers, claims)) is not None:
            return found
        rewards: list[Range] = []
        for row, answer, claim in zip(rows, answers, claims, strict=True):
            alone = self._alone(row, answer, claim)
            if isinstance(alone, Finding):
                return alone
            rewards += alone
        return rewards

    def _together(self, answers: Sequence[Answer], claims: Sequence[float]) -> list[Range] | None:
        """None where one of them, or all of them, are too much."""
        sandbox = self._c.context.sandbox
        for _ in range(_TRIES):
            try:
                return sandbox.bounds(answers, claims, _tolerance(self._c))
            except Interrupted:
                sandbox.warm_up()
            except (Malformed, Unavailable):
                sandbox.warm_up()
                break
        return None

    def _alone(self, row: int, answer: Answer, claim: float) -> list[Range] | Finding:
        sandbox, broken, interrupted = self._c.context.sandbox, 0, 0
        while True:
            try:
                return sandbox.bounds([answer], [claim], _tolerance(self._c))
            except Interrupted:
                sandbox.warm_up()
                interrupted += 1
                if interrupted == _TRIES:
                    raise
            except (Malformed, Unavailable) as error:
                sandbox.warm_up()
                broken += 1
                if broken == _TRIES:
                    return Finding("reward", Outcome.SOFT, "a score", "none", f"row {row}: {error}", 1 << row)

    def _answer(self, sample: Sample) -> str | None:
        """The text that is scored: that of the last turn, None where it never ended."""
        return self._c.tokenizer.answer(sample.conversation.split(sample.completion)[-1].tolist())
