"""Cheats in what is claimed of honest completions, and in whose they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cheats.catalogue import SOFT, cheat
from cheats.scene import Scene
from node.judging.candidate import Candidate
from protocol.identity import Key
from protocol.rollout import Sample

# ---- what is claimed ---------------------------------------------------------------------------------------------------


@cheat("reward")
def forged_reward(scene: Scene, sequence: int) -> Candidate:
    """Every answer is said to be right."""
    samples = scene.honest(sequence).file.samples
    return scene.rewritten(sequence, [replace(s, task_reward=1.0, reward=1.0 - s.length_penalty) for s in samples])


@cheat("reward")
def forged_reward_of_one(scene: Scene, sequence: int) -> Candidate:
    """One wrong answer is said to be right."""
    samples = scene.honest(sequence).file.samples
    row = next(r for r, s in enumerate(samples) if s.task_reward < 1)
    return scene.with_row(sequence, row, lambda s: replace(s, task_reward=1.0, reward=1.0 - s.length_penalty))


@cheat("sampling")
def forged_logprobs(scene: Scene, sequence: int) -> Candidate:
    """Tokens are said to be likelier than they were."""
    samples = scene.honest(sequence).file.samples
    return scene.rewritten(sequence, [replace(s, logprobs=s.logprobs * np.float32(0.5)) for s in samples])


@cheat("sampling")
def forged_logprob_of_one_token(scene: Scene, sequence: int) -> Candidate:
    """One token's logprob is a whole unit too high."""

    def forged(sample: Sample) -> Sample:
        logprobs = sample.logprobs.copy()
        logprobs[len(logprobs) // 2] += 1
        return replace(sample, logprobs=logprobs)

    return scene.with_row(sequence, scene.longest(sequence), forged)


@cheat("tokens")
def inflated_units(scene: Scene, sequence: int) -> Candidate:
    """More units are claimed on chain than the file has completion tokens."""
    honest = scene.honest(sequence)
    return scene.run.candidate(honest.made, units=honest.made.units * 2)


@cheat("tokens")
def ids_outside_the_vocabulary(scene: Scene, sequence: int) -> Candidate:
    """An answer holds a token that there is not."""

    def changed(sample: Sample) -> Sample:
        completion = sample.completion.copy()
        completion[0] = scene.run.tokenizer.vocabulary
        return replace(sample, completion=completion)

    return scene.with_row(sequence, scene.longest(sequence), changed)


@cheat("schema", outcome=SOFT)
def nan_reward(scene: Scene, sequence: int) -> Candidate:
    """A reward that is no number."""
    return scene.with_row(sequence, 0, lambda sample: replace(sample, reward=float("nan")))


@cheat("schema", outcome=SOFT)
def missing_row(scene: Scene, sequence: int) -> Candidate:
    """The last answer is left out."""
    return scene.rewritten(sequence, scene.honest(sequence).file.samples[:-1])


@cheat("schema", outcome=SOFT)
def extra_row(scene: Scene, sequence: int) -> Candidate:
    """An answer more than was asked for, for more units."""
    samples = scene.honest(sequence).file.samples
    return scene.rewritten(sequence, [*samples, samples[-1]])


# ---- whose and what for ------------------------------------------------------------------------------------------------


@cheat("identity", outcome=SOFT)
def wrong_step(scene: Scene, sequence: int) -> Candidate:
    """The file says it is for another step."""
    return scene.with_header(sequence, step=scene.honest(sequence).file.header.step + 1)


@cheat("identity", outcome=SOFT)
def wrong_spec(scene: Scene, sequence: int) -> Candidate:
    """The file says it is for another run spec."""
    return scene.with_header(sequence, spec="cd" * 32)


@cheat("identity", outcome=SOFT)
def wrong_hardware_class(scene: Scene, sequence: int) -> Candidate:
    """The file says the seat is of another hardware class, with other budgets."""
    return scene.with_header(sequence, hardware=1)


@cheat("available", outcome=SOFT)
def another_file(scene: Scene, sequence: int) -> Candidate:
    """Another file is served than was committed to."""
    mine, other = scene.honest(sequence), scene.honest(sequence + 1)
    return scene.run.candidate(mine.made, path=other.made.path)


@cheat("duplicate", outcome=SOFT)
def replayed_file(scene: Scene, sequence: int) -> Candidate:
    """The node commits a second time to a file that was accepted."""
    made = scene.honest(sequence).made
    return scene.run.candidate(made, is_repeated=True)


@cheat("identity", outcome=SOFT)
def replayed_under_another_sequence(scene: Scene, sequence: int) -> Candidate:
    """The file of an earlier sequence, committed to under the next one."""
    earlier, mine = scene.honest(sequence).made, scene.honest(sequence + 1).made
    return scene.run.candidate(
        replace(mine, units=earlier.units), path=earlier.path, ref=replace(mine.ref, root=earlier.ref.root)
    )


@cheat("assignment")
def replayed_with_another_header(scene: Scene, sequence: int) -> Candidate:
    """The rows of an earlier sequence under the header of the next one."""
    return scene.rewritten(sequence + 1, scene.honest(sequence).file.samples)


@cheat("identity", outcome=SOFT)
def copied_file(scene: Scene, sequence: int) -> Candidate:
    """Another node's file as it is."""
    copier, made = Key.generate().address, scene.honest(sequence).made
    return scene.run.candidate(made, ref=replace(made.ref, node=copier))


@cheat("assignment")
def copied_file_with_own_header(scene: Scene, sequence: int) -> Candidate:
    """Another node's rows under the own header."""
    copier, honest = Key.generate().address, scene.honest(sequence)
    made = replace(honest.made, ref=replace(honest.made.ref, node=copier))
    file = replace(honest.file, header=replace(honest.file.header, node=copier))
    return scene.run.rewrite(made, file)


@cheat("sampling")
def copied_answers(scene: Scene, sequence: int) -> Candidate:
    """Another submission's answers to the own prompts, with proofs and rewards made anew."""
    mine, other = scene.honest(sequence).file.samples, scene.honest(sequence + 1).file.samples
    rows = [replace(m, completion=o.completion) for m, o in zip(mine, other, strict=True)]
    return scene.rewritten(sequence, scene.rescored(scene.proved(sequence, rows)))
