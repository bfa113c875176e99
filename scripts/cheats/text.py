"""Cheats that change what was asked or answered, in one row of an otherwise honest submission."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from swarm.conversing import proved, scored
from swarm.tiny_run import tokens_of

from cheats.catalogue import Make, add, cheat
from cheats.engines import ForcedTokenEngine, sharing
from cheats.scene import Scene
from node.engine import Prompt
from node.judging.candidate import Candidate
from protocol.rollout import Sample

_PHRASE = "buy this"


@cheat("assignment")
def edited_prompt(scene: Scene, sequence: int) -> Candidate:
    """Another prompt than the problem's, honestly answered and proved."""
    honest = scene.honest(sequence)
    prompt = scene.run.tokenizer.encode("What is 1? ")
    key = honest.view.key(honest.file.samples[0])
    made = scene.run.engine.generate(
        [Prompt(prompt, (key,))], temperature=1.0, max_new_tokens=scene.run.spec.sampling.max_new_tokens,
        end_tokens=scene.run.tokenizer.end_tokens,
    )[0][0]  # fmt: skip

    def asked(sample: Sample) -> Sample:
        claimed = [replace(sample, prompt=tokens_of(prompt), completion=tokens_of(made.tokens))]
        return scene.rescored(scene.proved(sequence, claimed))[0]

    return scene.with_row(sequence, 0, asked)


# ---- one token ---------------------------------------------------------------------------------------------------------


def _another(scene: Scene, token: int) -> int:
    """A letter or digit that is not this one, and no end."""
    ends = scene.run.tokenizer.end_tokens
    return next(t for t in range(token % 50 + 3, scene.run.tokenizer.vocabulary) if t != token and t not in ends)


def _edited(place: Callable[[int], int], *, proved: bool) -> Make:
    """One token of the longest completion is another; `place` says which, given how many there are besides an end token."""

    def make(scene: Scene, sequence: int) -> Candidate:
        row = scene.longest(sequence)
        completion = scene.honest(sequence).file.samples[row].completion.tolist()
        at = place(len(completion) - (completion[-1] in scene.run.tokenizer.end_tokens))
        completion[at] = _another(scene, completion[at])
        return scene.with_text(sequence, row, completion, proved=proved)

    return make


def _ended(share: float, *, proved: bool) -> Make:
    """The longest completion ends where the model did not end it."""

    def make(scene: Scene, sequence: int) -> Candidate:
        row = scene.longest(sequence)
        sample = scene.honest(sequence).file.samples[row]
        completion = sample.completion.tolist()
        kept = completion[: int(len(completion) * share)]
        made = scene.with_text(sequence, row, [*kept, min(scene.run.tokenizer.end_tokens)], proved=proved)
        if proved:
            return made
        chunks = -(-(len(kept) + 1) // 32)  # as many proofs and logprobs as there are tokens, of the honest text
        return scene.with_row(
            sequence, row,
            lambda _: replace(made.samples[row], proofs=sample.proofs[:chunks], logprobs=sample.logprobs[: len(kept) + 1]),
        )  # fmt: skip

    return make


for _proved, _how in (
    (False, "proofs and logprobs are the honest text's"),
    (True, "proofs and logprobs are recomputed"),
):
    _suffix = ", proved anew" if _proved else ", old proofs"
    _rules = ("sampling",) if _proved else ("computation", "sampling")
    for _name, _place in (("first", lambda n: 0), ("middle", lambda n: n // 2), ("last", lambda n: n - 1)):
        _what = f"The {_name} token of an answer is another; {_how}."
        add(_edited(_place, proved=_proved), f"{_name} token edited{_suffix}", _what, *_rules)
    _what = f"An answer is ended by an end token that the model did not draw; {_how}."
    add(_ended(0.7, proved=_proved), f"end put in{_suffix}", _what, *_rules)


@cheat("termination")
def end_replaced(scene: Scene, sequence: int) -> Candidate:
    """The end token of an answer is another token."""
    sequence, row = scene.ended(sequence)
    completion = scene.honest(sequence).file.samples[row].completion.tolist()
    return scene.with_text(sequence, row, [*completion[:-1], _another(scene, completion[-1])], proved=True)


@cheat("sampling")
def token_forced_while_generating(scene: Scene, sequence: int) -> Candidate:
    """One token is put into every answer, and the rest is honestly drawn after it; proofs are true."""
    return scene.made_by(sharing(ForcedTokenEngine, scene.run.engine), sequence)


# ---- more of the text --------------------------------------------------------------------------------------------------


@cheat("sampling")
def injected_answer(scene: Scene, sequence: int) -> Candidate:
    """The right answer in place of the model's, with true proofs and a true reward."""
    honest = scene.honest(sequence)
    samples = honest.file.samples
    row = next(r for r, s in enumerate(samples) if s.task_reward < 1)
    answer = str(honest.groups[samples[row].group].problem.answer)
    tokens = [*scene.run.tokenizer.encode(answer), min(scene.run.tokenizer.end_tokens)]
    return scene.with_text(sequence, row, tokens, proved=True)


@cheat("sampling")
def hidden_phrase(scene: Scene, sequence: int) -> Candidate:
    """Eight tokens of a long answer are replaced by a phrase; proofs are true."""
    row = scene.longest(sequence)
    completion = scene.honest(sequence).file.samples[row].completion.tolist()
    phrase = scene.run.tokenizer.encode(_PHRASE)
    start = max(0, len(completion) // 2 - len(phrase))
    completion[start : start + len(phrase)] = phrase
    return scene.with_text(sequence, row, completion, proved=True)


@cheat("termination")
def truncated_answer(scene: Scene, sequence: int) -> Candidate:
    """An answer is cut short, without an end."""
    row = scene.longest(sequence)
    completion = scene.honest(sequence).file.samples[row].completion.tolist()
    return scene.with_text(sequence, row, completion[: len(completion) // 2], proved=True)


@cheat("termination")
def padded_answer(scene: Scene, sequence: int) -> Candidate:
    """The model goes on after its end token: more units for the same answer."""
    sequence, row = scene.ended(sequence)
    completion = scene.honest(sequence).file.samples[row].completion.tolist()
    return scene.with_text(sequence, row, completion + completion[:1], proved=True)


@cheat("tokens")
def told_the_answer(scene: Scene, sequence: int) -> Candidate:
    """Half-way the model is told the answer, as if a tool had said it."""
    run = scene.run
    end, said = min(run.tokenizer.end_tokens), run.tokenizer.encode("The answer is 1. ")

    def claimed(sample: Sample) -> Sample:
        turn = [*sample.completion[: len(sample.completion) // 2].tolist(), end]
        completion = tokens_of([*turn, end])
        made = replace(
            sample, completion=completion, logprobs=np.zeros(len(completion), np.float32), turns=tokens_of([len(turn)]),
            answers=tokens_of([len(said)]), given=tokens_of(said),
        )  # fmt: skip
        return scored(run, proved(run, made))

    return scene.with_row(sequence, scene.longest(sequence), claimed)
