"""Cheap generation that one prefill with the right weights hides: tokens alone betray it, and single ones do not. Found by what a seat does taken together.

The run judges by sums against the noise of float32 between backends; each submission is judged with the seat's earlier ones, all measured by
one validator, which prefills all of them again as what was used, where that is a named alternative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cheats.catalogue import HARD, SOFT, Make, add
from cheats.drafts import DraftingEngine
from cheats.engines import sharing
from cheats.scene import Scene
from node.engine import EngineSettings
from node.engine.degrade import CACHES, DEGRADATIONS
from node.engine.torch_engine import TorchEngine
from node.judging.alternatives import Alternatives
from node.judging.candidate import Candidate
from node.judging.history import CountedReceipt, History
from node.judging.judge import judge

Engine = Callable[[Scene], TorchEngine]

NOISE = "0.000005", "0.0000107"
"""Soft and hard, in shares of the range of logits: the least that a run in float32 is judged by, and the shipped calibration's."""


_ALTERNATIVES = Alternatives(EngineSettings(), "float32")


def judged_with_history(scene: Scene, sequence: int, make: Make, name: str, alternative: str = "") -> Candidate:
    """A submission of a seat that did the same in all its earlier ones; their sums are made once."""

    def made(number: int) -> Candidate:
        candidate = make(scene, number)
        if alternative:
            candidate.plan = replace(candidate.plan, alternatives=(alternative,))
            candidate.alternative = lambda of: _ALTERNATIVES.engine(of, scene.run.model, lambda _: None)
        return candidate

    counted = scene.counted.setdefault(name, [])
    while len(counted) < sequence:
        earlier = made(len(counted))
        judge(earlier)
        counted.append(
            CountedReceipt(
                f"{len(counted):064x}", "", "0" * 64, earlier.checked.tokens, earlier.checked.summed, own=True
            )
        )
    candidate = made(sequence)
    budget = candidate.spec.verification.history
    assert budget is not None
    candidate.history = History(budget, 0, counted[:sequence])
    return candidate


def _hidden(name: str, make: Make, alternative: str) -> Make:
    return lambda scene, sequence: judged_with_history(scene.summing(*NOISE), sequence, make, name, alternative)


def _generated(engine: Engine) -> Make:
    """Generates with another engine; the right one makes proofs and logprobs."""

    def make(scene: Scene, sequence: int) -> Candidate:
        made = scene.with_completions(sequence, scene.generate(sequence, engine=engine(scene)))
        return scene.rewritten(sequence, scene.proved(sequence, made.samples))

    return make


def _degraded(name: str) -> Engine:
    return lambda scene: scene.degraded((DEGRADATIONS | CACHES)[name])


def _bfloat16(scene: Scene) -> TorchEngine:
    engine = TorchEngine("bfloat16")
    engine.load(scene.run.model)
    return engine


def _drafting(**how: float) -> Engine:
    def made(scene: Scene) -> TorchEngine:
        engine = sharing(DraftingEngine, scene.run.engine)
        for name, value in how.items():
            setattr(engine, name, value)
        return engine

    return made


def _cooler(scene: Scene, sequence: int) -> Candidate:
    return scene.with_completions(sequence, scene.generate(sequence, temperature=0.98))


MADE: dict[str, Make] = {}
"""What is hidden, without what finds it: the submissions of a seat one by one."""
# When a cheat is found is the luck of few mismatched tokens, of a policy that each kind of processor trains a little otherwise: one in 800 tokens of bfloat16, in 1,100 of 8-bit weights, in 1,800 of an 8-bit cache.
# With the budget of one seat and one beginning a year, as here, soft takes two of them, hard three; with the default one more each. So `within` is about twice the most that seats took on two instruction sets (docs/measurements.md): at those rates one seat in two thousand has too few in time.
for _name, _make, _what, _alternative, _outcome, _within in (
    ("int8", _generated(_degraded("int8")), "Weights rounded to 8 bits generate, the right ones prove.", "int8", SOFT, 10),
    ("fp8", _generated(_degraded("fp8")), "Weights rounded to float8 e4m3 generate, the right ones prove.", "fp8", HARD, 6),
    ("int4", _generated(_degraded("int4")), "Weights rounded to 4 bits generate, the right ones prove.", "int4", HARD, 3),
    ("int8 cache", _generated(_degraded("kv_int8")), "Keys and values rounded to 8 bits generate, the right ones prove.", "kv_int8", SOFT, 16),
    ("fp8 cache", _generated(_degraded("kv_fp8")), "Keys and values rounded to float8 e4m3 generate, the right ones prove.", "kv_fp8", HARD, 5),
    ("bfloat16", _generated(_bfloat16), "The right weights generate in bfloat16 and prove in float32.", "bfloat16", HARD, 8),
    ("drafts within 0.1", _generated(_drafting(budget=0.1)), "A draft's token is kept within 0.1 logits of the draw.", "", HARD, 3),
    ("drafts within 0.01", _generated(_drafting(budget=0.01)), "A draft's token is kept within 0.01 logits of the draw.", "", HARD, 8),
):  # fmt: skip
    _named = f"{_name}, proved anew"
    MADE[_name] = _make
    add(_hidden(_named, _make, _alternative), _named, _what, "history", "sampling", outcome=_outcome, within=_within)
MADE["temperature 0.98"] = _cooler
add(
    _hidden("temperature 0.98, all along", _cooler, ""), "temperature 0.98, all along",
    "Drawn at temperature 0.98 in place of the run's 1, in every submission.", "history", "sampling", outcome=HARD, within=4,
)  # fmt: skip
