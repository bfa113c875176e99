"""Assigned groups through an engine, and scored: the samples that a submission consists of.

What a node commits to (node/contributor/generation.py) and what a trainer by itself learns from (trainer/rollouts/local.py) come
about here. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from node.engine.interface import Generator, Prompt
from protocol.environments import Grader
from protocol.environments.assignment import AssignedGroup, length_penalty
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
    prompts = [Prompt(tokenizer.prompt(spec, group.problem.prompt, group.budget), group.keys) for group in groups]
    made = engine.generate(
        prompts, **spec.sampling.distribution, max_new_tokens=spec.sampling.max_new_tokens,
        end_tokens=tokenizer.end_tokens, prove=prove,
    )  # fmt: skip
    rows = [(g, s, completion) for g, group in enumerate(made) for s, completion in enumerate(group)]
    rewards = grader.score([(groups[g].problem.index, answer(tokenizer, grader, c.tokens)) for g, _, c in rows])
    samples = []
    for (g, s, completion), task_reward in zip(rows, rewards, strict=True):
        penalty = length_penalty(spec, groups[g].budget, len(completion.tokens))
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
            )
        )
    return samples


def answer(tokenizer: Tokenizer, grader: Grader, tokens: list[int]) -> str | None:
    """What a grader is given of a completion."""
    found = tokenizer.answer(tokens)
    return tokenizer.text(tokens) if found is None and grader.unended else found
