"""reward: task reward, length penalty and their difference are what the environment and the run spec say.

Hard only for environments the spec declares exact; soft elsewhere, where a deadline or a float could explain it, and soft
for an answer that no verifier gets to an end with: without a score nobody may earn. The verifiers run in the sandbox, for a
completion is a stranger's text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from node.validator.candidate import Candidate
from protocol.assignment import length_penalty
from protocol.errors import Malformed, Unavailable
from protocol.verdict import Finding, Outcome

_SCORING_SECONDS = 120.0  # for all answers of a work, one by one


def check(c: Candidate) -> Finding | None:
    answers = [(sample.problem, c.tokens.answer(sample.completion.tolist())) for sample in c.samples]
    rewards = _score(c, answers)
    if isinstance(rewards, Finding):
        return rewards
    tolerance = float(c.spec.verification.reward_tolerance)
    for row, (sample, task_reward) in enumerate(zip(c.samples, rewards, strict=True)):
        penalty = length_penalty(c.spec, sample.budget, len(sample.completion))
        expected = (task_reward, penalty, task_reward - penalty)
        found = (sample.task_reward, sample.length_penalty, sample.reward)
        for name, own, claimed in zip(("task_reward", "length_penalty", "reward"), expected, found, strict=True):
            # written so that NaN fails
            if not abs(own - claimed) <= tolerance * max(1.0, abs(own)):
                exact = c.spec.environments[c.assigned[sample.group].problem.environment].exact
                outcome = Outcome.HARD if exact else Outcome.SOFT
                return Finding("reward", outcome, f"{claimed:.6g}", f"{own:.6g}", f"row {row}: {name}", 1 << row)
    return None


def _score(c: Candidate, answers: Sequence[tuple[int, str | None]]) -> list[float] | Finding:
    """Rewards of all answers, or the finding that one of them cannot be scored.

    An answer that breaks a verifier must not keep its work from being judged: such work would be paid. Raises Unavailable
    where the verifiers do not work at all, for that is this validator's own trouble.
    """
    sandbox = c.context.sandbox
    try:
        return sandbox.score(answers)
    except (Malformed, Unavailable):
        sandbox.warm_up()
    rewards: list[float] = []
    until = time.monotonic() + _SCORING_SECONDS
    for row, answer in enumerate(answers):
        try:
            if time.monotonic() > until:
                raise Unavailable(f"the verifiers took longer than {_SCORING_SECONDS:g} s")
            rewards += sandbox.score([answer])
        except (Malformed, Unavailable) as error:
            sandbox.warm_up()
            return Finding("reward", Outcome.SOFT, "no score", "a score", f"row {row}: {error}", 1 << row)
    return rewards
