"""Cheats that compute with other weights than the published ones, throughout a submission."""

from __future__ import annotations

from dataclasses import replace

from cheats.catalogue import HARD, SOFT, Make, add, cheat
from cheats.scene import DEMO_LR, PAPER_LR, Age, Scene
from node.engine.degrade import DEGRADATIONS
from node.judging.candidate import Candidate


@cheat("computation")
def smaller_model(scene: Scene, sequence: int) -> Candidate:
    """A smaller model generates and proves."""
    return scene.made_by(scene.smaller(), sequence)


@cheat("sampling")
def smaller_model_proved_by_the_right_one(scene: Scene, sequence: int) -> Candidate:
    """A smaller model generates, the right one prefills: proofs and logprobs are true."""
    made = scene.with_completions(sequence, scene.generate(sequence, engine=scene.smaller()))
    return scene.rewritten(sequence, scene.proved(sequence, made.samples))


@cheat("computation")
def right_model_proved_by_a_smaller_one(scene: Scene, sequence: int) -> Candidate:
    """The text is honest, its proofs are a smaller model's."""
    rows = scene.honest(sequence).file.samples
    cheap = scene.proved(sequence, rows, scene.smaller())
    return scene.rewritten(sequence, [replace(r, proofs=c.proofs) for r, c in zip(rows, cheap, strict=True)])


def _degraded(name: str) -> Make:
    return lambda scene, sequence: scene.made_by(scene.degraded(DEGRADATIONS[name]), sequence)


def _aged(age: Age) -> Make:
    return lambda scene, sequence: scene.made_by(scene.aged(age), sequence)


_BOTH = ("computation", "sampling")
for _name, _what, _outcome, _within in (
    ("int4", "Weights rounded to 4 bits generate and prove.", HARD, 1),
    ("fp8", "Weights rounded to float8 e4m3 generate and prove.", SOFT, 4),
    ("int8", "Weights rounded to 8 bits generate and prove.", SOFT, 8),
    ("5 % noise", "Weights with 5 % of noise generate and prove.", HARD, 1),
    ("1 % noise", "Weights with 1 % of noise generate and prove.", SOFT, 4),
    ("0.1 % noise", "Weights with 0.1 % of noise generate and prove.", SOFT, 0),
):
    add(_degraded(_name), _name, _what, *_BOTH, outcome=_outcome, within=_within)
for _steps in (1, 5, 20, 100):
    _count = "1 step" if _steps == 1 else f"{_steps} steps"
    _what = f"The weights of {_count} before, at the demo's learning rate, generate and prove."
    _age = (_steps, DEMO_LR)
    add(_aged(_age), f"{_count} old", _what, *_BOTH, age=_age)
for _steps in (5, 100):
    _what = f"The weights of {_steps} steps before, at INTELLECT-2's learning rate, generate and prove."
    _age = (_steps, PAPER_LR)
    add(_aged(_age), f"{_steps} steps old at lr 3e-7", _what, *_BOTH, outcome=SOFT, within=0, age=_age)
