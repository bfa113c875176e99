"""Samples of several turns, made token by token as a worker would: a scripted environment answers with what a small tool says.

The tool counts the characters of what was said and says how many; after two answers it says nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, takewhile
from typing import Any

import numpy as np

from node.engine.proofs import bits
from protocol import sampling, toploc
from protocol.replies import Asked
from protocol.rollout import Sample, ToolCall, ToolResult
from protocol.sandbox import Sandbox
from protocol.turns import Turns
from swarm.tiny_run import TinyRun, tokens_of

Reply = Callable[[Sequence[str]], ToolResult | None]
Position = Callable[[int, int, int], int]
"""Sampling position of a token, from how many were generated before it in the sample, in its turn, and stand in the context."""


def count_characters(said: Sequence[str]) -> ToolResult | None:
    """What the environment answers to the last of these turns."""
    if len(said) > 2:
        return None
    result = str(len(said[-1]))
    return ToolResult(f"[{result}] ", (ToolCall(len(said) - 1, "count", said[-1], result),))


class ScriptedSandbox:
    """A real sandbox, but all environments reply to turns, by `reply`."""

    def __init__(self, sandbox: Sandbox, reply: Reply = count_characters) -> None:
        self._sandbox, self._reply = sandbox, reply

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    def converses(self, environment: int) -> bool:
        return True

    def replies(self, asked: Sequence[Asked], *, held_out: bool = False) -> list[list[ToolResult]]:
        found = []
        for one in asked:
            said = (self._reply(one.turns[: n + 1]) for n in range(one.first, len(one.turns)))
            found.append([reply for reply in takewhile(lambda reply: reply is not None, said) if reply is not None])
        return found


def conversing(run: TinyRun, reply: Reply = count_characters, *, turns: int = 4) -> TinyRun:
    """The same run with room for replies, and environments that reply so."""
    sampling = run.spec.sampling.model_copy(update={"turns": turns, "reply_tokens": 64})
    spec = run.spec.model_copy(update={"sampling": sampling})
    sandbox: Any = ScriptedSandbox(run.context.sandbox, reply)
    return replace(run, spec=spec, context=replace(run.context, spec=spec, sandbox=sandbox))


def conversed(
    run: TinyRun, sample: Sample, key: int, *, reply: Reply = count_characters,
    position: Position = lambda generated, in_turn, in_context: generated,
) -> Sample:  # fmt: skip
    """`sample`'s prompt, answered in turns by the seeded sampler, with true proofs, logprobs and rewards."""
    tokenizer, most = run.tokenizer, run.spec.sampling.max_new_tokens
    prompt, after = sample.prompt.tolist(), list[int]()
    turns: list[list[int]] = [[]]
    logprobs: list[float] = []
    answers: list[list[int]] = []
    calls: list[ToolCall] = []
    while len(logprobs) < most:
        (hidden,) = run.engine.prefill([(prompt + after, [0])])
        logits = run.engine.logits(hidden)
        at = position(len(logprobs), len(turns[-1]), len(after))
        token = int(sampling.draw(logits, key=key, temperature=1.0, first=at)[0])
        logprobs.append(float(logits[0, token] - np.logaddexp.reduce(logits[0].astype(np.float64))))
        turns[-1].append(token)
        after.append(token)
        if token in tokenizer.end_tokens:
            answer = reply([tokenizer.answer(turn) or "" for turn in turns])
            if answer is None or len(logprobs) == most:
                break
            answers.append(tokenizer.encode(answer.text))
            calls += answer.calls
            after += answers[-1]
            turns.append([])
    made = replace(
        sample, completion=tokens_of([*chain(*turns)]), logprobs=np.array(logprobs, np.float32),
        turns=tokens_of([len(turn) for turn in turns[:-1]]), answers=tokens_of([len(one) for one in answers]),
        given=tokens_of([*chain(*answers)]), calls=tuple(call.encode() for call in calls),
    )  # fmt: skip
    return scored(run, proved(run, made))


def proved(run: TinyRun, sample: Sample, *, turns: Turns | None = None) -> Sample:
    """With true proofs, of chunks that its turns make, or others."""
    (hidden,) = run.engine.prefill([(sample.prompt.tolist(), sample.context.tolist())])
    rows = bits(hidden)[sample.conversation.mask]
    made = toploc.prove((turns or sample.conversation).split(rows))
    return replace(sample, proofs=tuple(proof for of_turn in made for proof in of_turn))


def scored(run: TinyRun, sample: Sample) -> Sample:
    """With the rewards that it deserves."""
    last = sample.conversation.split(sample.completion)[-1]
    reward = run.context.sandbox.score([(sample.problem, run.tokenizer.answer(last.tolist()))])[0]
    penalty = run.penalty(sample)
    return replace(sample, task_reward=reward, length_penalty=penalty, reward=reward - penalty)
