"""reward: task reward, length penalty and their difference are what the environment and the run spec say.

Hard only for environments the spec declares exact; soft elsewhere, where a deadline or a float could explain it. The
verifiers run in the sandbox, for a completion is a stranger's text.
"""

from __future__ import annotations

from node.validator.candidate import Candidate
from protocol.assignment import length_penalty
from protocol.verdict import Finding, Outcome


def check(c: Candidate) -> Finding | None:
    tolerance = float(c.spec.verification.reward_tolerance)
    answers = [(sample.problem, c.tokens.answer(sample.completion.tolist())) for sample in c.samples]
    for row, (sample, task_reward) in enumerate(zip(c.samples, c.context.sandbox.score(answers), strict=True)):
        penalty = length_penalty(c.spec, sample.budget, len(sample.completion))
        expected = (task_reward, penalty, task_reward - penalty)
        found = (sample.task_reward, sample.length_penalty, sample.reward)
        for name, own, claimed in zip(("task_reward", "length_penalty", "reward"), expected, found, strict=True):
            # written so that NaN fails
            if not abs(own - claimed) <= tolerance * max(1.0, abs(own)):
                exact = c.spec.environments[c.assigned[sample.group].problem.environment].exact
                outcome = Outcome.HARD if exact else Outcome.SOFT
                return Finding("reward", outcome, f"{claimed:.6g}", f"{own:.6g}", f"row {row}: {name}")
    return None
