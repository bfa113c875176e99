"""Cheap generation that one prefill with the right weights hides: tokens alone betray it, and single ones do not. Found by what a seat does taken together.

The run judges by sums against the noise of float32 between backends; each submission is judged with the seat's earlier ones, all measured by
one validator.
"""

from __future__ import annotations

from collections.abc import Callable

from cheats.catalogue import HARD, SOFT, Make, add
from cheats.scene import Scene
from node.engine.degrade import DEGRADATIONS
from node.engine.torch_engine import TorchEngine
from node.judging.candidate import Candidate
from node.judging.history import CountedReceipt, History
from node.judging.judge import judge

Engine = Callable[[Scene], TorchEngine]

NOISE = "0.0003", "0.0006"
"""Soft and hard, in logits: some ten times what float32 between attention implementations strays by on tiny models, so that it holds on other CPUs."""


def judged_with_history(scene: Scene, sequence: int, make: Make, name: str) -> Candidate:
    """A submission of a seat that did the same in all its earlier ones; their sums are made once."""
    counted = scene.counted.setdefault(name, [])
    while len(counted) < sequence:
        earlier = make(scene, len(counted))
        judge(earlier)
        counted.append(
            CountedReceipt(
                f"{len(counted):064x}", "", "0" * 64, earlier.checked.tokens, earlier.checked.summed, own=True
            )
        )
    candidate = make(scene, sequence)
    budget = candidate.spec.verification.history
    assert budget is not None
    candidate.history = History(budget, 0, counted[:sequence])
    return candidate


def _hidden(name: str, make: Make) -> Make:
    return lambda scene, sequence: judged_with_history(scene.summing(*NOISE), sequence, make, name)


def _generated(engine: Engine) -> Make:
    """Generates with another engine; the right one makes proofs and logprobs."""

    def make(scene: Scene, sequence: int) -> Candidate:
        made = scene.with_completions(sequence, scene.generate(sequence, engine=engine(scene)))
        return scene.rewritten(sequence, scene.proved(sequence, made.samples))

    return make


def _degraded(name: str) -> Engine:
    return lambda scene: scene.degraded(DEGRADATIONS[name])


def _bfloat16(scene: Scene) -> TorchEngine:
    engine = TorchEngine("bfloat16")
    engine.load(scene.run.model)
    return engine


def _cooler(scene: Scene, sequence: int) -> Candidate:
    return scene.with_completions(sequence, scene.generate(sequence, temperature=0.98))


for _name, _make, _what, _outcome, _within in (
    ("int8, proved anew", _generated(_degraded("int8")), "Weights rounded to 8 bits generate, the right ones prove.", SOFT, 30),
    ("fp8, proved anew", _generated(_degraded("fp8")), "Weights rounded to float8 e4m3 generate, the right ones prove.", HARD, 10),
    ("int4, proved anew", _generated(_degraded("int4")), "Weights rounded to 4 bits generate, the right ones prove.", HARD, 3),
    ("bfloat16, proved anew", _generated(_bfloat16), "The right weights generate in bfloat16 and prove in float32.", SOFT, 8),
    ("temperature 0.98, all along", _cooler, "Drawn at temperature 0.98 in place of the run's 1, in every submission.", HARD, 4),
):  # fmt: skip
    add(_hidden(_name, _make), _name, _what, "history", "sampling", outcome=_outcome, within=_within)
