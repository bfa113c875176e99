"""Cheats in conversations: what is said between turns, which calls were made, and who wrote which token.

The tasks of a scene's run reply to nothing; here a small tool replies to all of them (swarm/conversing.py). Proofs, logprobs and
rewards are those of what the file says: each cheat is true but for one thing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from swarm.conversing import Reply, conversed, conversing, count_characters, proved, scored
from swarm.tiny_run import TinyRun, tokens_of, with_sample

from cheats.catalogue import cheat
from cheats.scene import Scene
from node.judging.candidate import Candidate
from protocol.environments.bm25 import Index
from protocol.rollout import Sample, ToolCall, ToolResult

Change = Callable[[TinyRun, Sample, int], Sample]
"""Of a sample of several turns, and the key of its draws."""


def _changed(scene: Scene, sequence: int, change: Change, *, tool: Reply = count_characters) -> Candidate:
    """The submission of a run with a tool, in which one sample is changed: of the most turns, and of these a short one that ended."""
    run = conversing(scene.run, tool)
    made = run.honest(sequence=sequence)
    file, view = run.read(made), run.candidate(made)

    def order(row: int) -> tuple[int, bool, int]:
        sample = file.samples[row]
        return len(sample.turns), run.tokenizer.ended(sample.completion.tolist()), -len(sample.completion)

    row = max(range(len(file.samples)), key=order)
    changed = change(run, file.samples[row], view.key(file.samples[row]))
    return run.rewrite(made, with_sample(file, row, changed))


def _replied(reply: Reply) -> Change:
    """Honestly generated, proved and scored, with another tool."""
    return lambda run, sample, key: conversed(run, sample, key, reply=reply)


@cheat("conversation")
def edited_tool_result(scene: Scene, sequence: int) -> Candidate:
    """A tool is said to have said something else, and the model goes on from there."""

    def told(said: Sequence[str]) -> ToolResult | None:
        reply = count_characters(said)
        return reply and ToolResult("[1] ", (replace(reply.calls[0], result="1"),))

    return _changed(scene, sequence, _replied(told))


_CORPUS = Index(["1 3 5 7 9", "2 4 6 8 0", "a e i o u", "1 2 3", "4 5 6 1 1", "0 0 0 b c d f"])


def _search(said: Sequence[str]) -> ToolResult | None:
    """Documents of a small corpus in which each sign of the turn is searched."""
    if len(said) > 2:
        return None
    found = " ".join(map(str, _CORPUS.search(" ".join(said[-1]), 2)))
    return ToolResult(f"[{found}] ", (ToolCall(len(said) - 1, "search", said[-1], found),))


@cheat("conversation")
def forged_search_result(scene: Scene, sequence: int) -> Candidate:
    """A search is said to have found another document of the corpus, and the model goes on from there."""

    def told(said: Sequence[str]) -> ToolResult | None:
        reply = _search(said)
        return reply and ToolResult("[2 5] ", (replace(reply.calls[0], result="2 5"),))

    return _changed(scene, sequence, _replied(told), tool=_search)


@cheat("conversation")
def call_that_never_happened(scene: Scene, sequence: int) -> Candidate:
    """A tool that was not called is said to have been, and the model goes on from what it is said to have said."""
    return _changed(scene, sequence, _replied(count_characters), tool=lambda said: None)


@cheat("conversation")
def another_call_than_was_made(scene: Scene, sequence: int) -> Candidate:
    """What the model was told is true, and the call that it comes from is not."""

    def relabelled(said: Sequence[str]) -> ToolResult | None:
        reply = count_characters(said)
        return reply and ToolResult(reply.text, (replace(reply.calls[0], arguments="another"),))

    return _changed(scene, sequence, _replied(relabelled))


@cheat("conversation")
def unheard_tool(scene: Scene, sequence: int) -> Candidate:
    """A call is not replied to: the sample ends with it, for the units of a short answer."""
    return _changed(scene, sequence, _replied(lambda said: None))


@cheat("conversation", "termination")
def model_tokens_in_a_tools_turn(scene: Scene, sequence: int) -> Candidate:
    """The first token of a later turn is said to be the tool's: nobody need have drawn it."""

    def hidden(run: TinyRun, sample: Sample, key: int) -> Sample:
        generated, answers = list(sample.conversation.generated), sample.answers.copy()
        ended = [run.tokenizer.ended(turn.tolist()) for turn in sample.conversation.split(sample.completion)]
        turn = max(range(1, len(generated)), key=lambda number: (ended[number], generated[number]))
        start = sum(generated[:turn])
        generated[turn] -= 1
        answers[turn - 1] += 1
        made = replace(
            sample, completion=np.delete(sample.completion, start), logprobs=np.delete(sample.logprobs, start),
            given=np.insert(sample.given, sum(sample.answers[:turn]), sample.completion[start]),
            turns=tokens_of(generated[:-1]), answers=answers,
        )  # fmt: skip
        return scored(run, proved(run, made))

    return _changed(scene, sequence, hidden)


@cheat("termination", "tokens")
def tool_tokens_as_the_models(scene: Scene, sequence: int) -> Candidate:
    """A reply is said to be generated, for its tokens' pay."""

    def claimed(run: TinyRun, sample: Sample, key: int) -> Sample:
        turns, start = sample.conversation, sample.conversation.generated[0]
        first, *rest = turns.answers_in(sample.given)
        completion = np.concatenate([sample.completion[:start], first, sample.completion[start:]])
        made = replace(
            sample, completion=completion, logprobs=np.zeros(len(completion), np.float32),
            given=np.concatenate(rest) if rest else tokens_of([]),
            turns=tokens_of([start + len(first) + turns.generated[1], *turns.generated[2:-1]] if rest else []),
            answers=tokens_of(turns.given[1:]), calls=(),
        )  # fmt: skip
        return scored(run, proved(run, made))

    return _changed(scene, sequence, claimed)


@cheat("sampling")
def draws_anew_with_each_turn(scene: Scene, sequence: int) -> Candidate:
    """Sampling positions begin at 0 again in each turn: the same noise twice."""
    return _changed(
        scene, sequence,
        lambda run, sample, key: conversed(run, sample, key, position=lambda generated, in_turn, in_context: in_turn),
    )  # fmt: skip
