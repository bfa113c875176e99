"""Assigned groups through an engine, and scored: the samples that a submission consists of.

What a node commits to (node/contributor/generation.py) and what a trainer by itself learns from (trainer/rollouts/local.py) come
about here. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from node.engine.conversing import Respondent, converse, turns_of
from node.engine.interface import Completion, Generator, Prompt
from protocol.environments import Grader, Problem
from protocol.environments.assignment import AssignedGroup
from protocol.length_rewards import penalty as length_penalty
from protocol.rollout import Sample
from protocol.runspec import AnswerSpec
from protocol.tokenizer import Tokenizer


def generated(
    spec: AnswerSpec, engine: Generator, tokenizer: Tokenizer, grader: Grader, groups: Sequence[AssignedGroup], *,
    prove: bool = True,
) -> list[Sample]:  # fmt: skip
    """The samples of these groups, in order, with rewards and penalties; without `prove` they have no proofs.

    Raises ValueError where finite weights compute NaN, and what engine and grader raise.
    """
    prompts = [Prompt(tokenizer.prompt(spec, group.problem, group.budget), group.keys) for group in groups]
    made, respondent = completed(
        spec, engine, tokenizer, grader, prompts, [group.problem for group in groups], prove=prove
    )
    rows = [(g, s, completion) for g, group in enumerate(made) for s, completion in enumerate(group)]
    rewards = grader.score([(groups[g].problem.index, answer(tokenizer, grader, c)) for g, _, c in rows])
    samples = []
    for (g, s, completion), task_reward in zip(rows, rewards, strict=True):
        reward = spec.reward_of(groups[g].problem.environment)
        penalty = length_penalty(reward, groups[g].budget, len(completion.tokens))
        samples.append(
            Sample(
                group=g,
                sample=s,
                problem=groups[g].problem.index,
                budget=groups[g].budget,
                prompt=np.array(prompts[g].tokens, np.int32),
                completion=np.array(completion.tokens, np.int32),
                logprobs=np.array(completion.logprobs, np.float32) if spec.sampling.logprobs else None,
                proofs=tuple(completion.proofs),
                task_reward=task_reward,
                length_penalty=penalty,
                reward=task_reward - penalty,
                turns=np.array(completion.turns, np.int32),
                answers=np.array([len(one) for one in completion.given], np.int32),
                given=np.array([*chain(*completion.given)], np.int32),
                calls=respondent.calls(g, s),
            )
        )
    return samples


def completed(
    spec: AnswerSpec, engine: Generator, tokenizer: Tokenizer, grader: Grader, prompts: Sequence[Prompt],
    problems: Sequence[Problem], *, prove: bool, held_out: bool = False,
) -> tuple[list[list[Completion]], Respondent]:  # fmt: skip
    """Completions of the prompts of these problems, of as many turns as the spec and their environments say; and who replied."""
    sampling = spec.sampling
    respondent = Respondent(sampling, tokenizer, grader, problems, held_out=held_out)
    how: dict[str, Any] = {**sampling.distribution, "max_new_tokens": sampling.max_new_tokens, "prove": prove}
    if sampling.turns == 1 or not any(grader.converses(number) for number in {one.environment for one in problems}):
        return engine.generate(prompts, end_tokens=tokenizer.end_tokens, **how), respondent
    made = converse(
        engine, prompts, respondent, reply_tokens=sampling.reply_tokens, end_tokens=tokenizer.end_tokens, **how
    )
    return made, respondent


def answer(tokenizer: Tokenizer, grader: Grader, completion: Completion) -> str | None:
    """What a grader is given of a completion: the text of its last turn."""
    tokens = turns_of(completion)[-1]
    found = tokenizer.answer(tokens)
    return tokenizer.text(tokens) if found is None and grader.unended else found
