"""Cheats in how tokens are drawn, or in which work is done: choosing where there is nothing to choose."""

from __future__ import annotations

from dataclasses import replace

from cheats.catalogue import HARD, SOFT, Make, add, cheat
from cheats.drafts import DraftingEngine
from cheats.engines import EarlyEndEngine, NearTieEngine, NucleusEngine, sharing
from cheats.scene import Scene
from node.engine.torch_engine import TorchEngine
from node.judging.candidate import Candidate


def _heated(temperature: float) -> Make:
    return lambda scene, sequence: scene.with_completions(sequence, scene.generate(sequence, temperature=temperature))


for _temperature, _outcome, _within in (
    (0.5, HARD, 1),
    (0.9, SOFT, 4),
    (0.98, SOFT, 0),
    (1.2, SOFT, 4),
):
    _what = f"Drawn at temperature {_temperature:g} in place of the run's 1."
    add(
        _heated(_temperature),
        f"temperature {_temperature:g}",
        _what,
        "sampling",
        outcome=_outcome,
        within=_within,
    )
add(_heated(1e-9), "greedy", "Always the likeliest token.", "sampling")


@cheat("sampling")
def nucleus(scene: Scene, sequence: int) -> Candidate:
    """Drawn from the likeliest 95 % only."""
    engine = sharing(NucleusEngine, scene.run.engine)
    return scene.with_completions(sequence, scene.generate(sequence, engine=engine))


@cheat("sampling")
def wrong_seed(scene: Scene, sequence: int) -> Candidate:
    """Drawn with other keys than the assigned ones."""
    return scene.with_completions(sequence, scene.generate(sequence, keys=lambda key: key ^ 1))


@cheat("sampling")
def best_of_four(scene: Scene, sequence: int) -> Candidate:
    """Each answer is the longest of four, or the likeliest of the longest, drawn with the assigned key and three others: more
    units for the same seat."""
    tries = [scene.generate(sequence, keys=lambda key, n=n: key ^ n) for n in range(4)]  # type: ignore[misc]
    chosen = [max(row, key=lambda c: (len(c.tokens), sum(c.logprobs))) for row in zip(*tries, strict=True)]
    return scene.with_completions(sequence, chosen)


@cheat("sampling", outcome=SOFT, within=0)
def near_ties(scene: Scene, sequence: int) -> Candidate:
    """In each answer the runner-up at one place where it was within 0.04 of the best: a little to choose from."""
    engine: TorchEngine = sharing(NearTieEngine, scene.run.engine)
    return scene.with_completions(sequence, scene.generate(sequence, engine=engine))


@cheat("sampling")
def likely_drafts(scene: Scene, sequence: int) -> Candidate:
    """A draft's token is kept wherever its probability is above 0.1."""
    engine = sharing(DraftingEngine, scene.run.engine)
    engine.likely = 0.1
    return scene.with_completions(sequence, scene.generate(sequence, engine=engine))


@cheat(
    "sampling", outcome=SOFT, within=8
)  # few short answers come so near an end, and one within the hard limit is soft
def early_end(scene: Scene, sequence: int) -> Candidate:
    """Answers end where the end token is within half a logit of the draw: a little sooner than they should."""
    engine = sharing(EarlyEndEngine, scene.run.engine)
    engine.ends = scene.run.tokenizer.end_tokens
    return scene.with_completions(sequence, scene.generate(sequence, engine=engine))


@cheat("assignment")
def cherry_picked_problem(scene: Scene, sequence: int) -> Candidate:
    """One group answers another problem than the assigned one, honestly."""
    mine, other = scene.honest(sequence).file.samples, scene.honest(sequence + 1).file.samples
    size = scene.run.spec.sampling.group_size
    return scene.rewritten(sequence, [*other[:size], *mine[size:]])


@cheat("assignment")
def another_budget(scene: Scene, sequence: int) -> Candidate:
    """The row says that a length was announced that was not, and has the penalty of that."""
    samples = [replace(sample, budget=10) for sample in scene.honest(sequence).file.samples]
    return scene.rewritten(sequence, scene.rescored(samples))
