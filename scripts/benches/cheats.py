"""Cheats: how often each one of the catalogue (tests/cheats) is found in a submission, by which rule, and whether honest
work ever is.

On tiny policies made on the spot, through the real judge with the prefill of all rows. *Short*: the demo's policy and shape,
64 answers of some 8 tokens. *Long*: 16 answers of up to 160 tokens, by the same policy with its end token made rare. `ours` is
the share of submissions found, `peer` the share that TOPLOC (the rule `computation`) finds alone. For what is not told apart,
`needed` says over how many tokens the mean clipped margin would have to be taken to tell it from honest work: falsely in one
of 1e9 honest cases, rightly in 99 of 100. Its honest mean and deviation are those of bfloat16, decoded and prefilled on this
machine: what honest devices differ by, where float32 on one machine hardly differs.
"""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from swarm.settings import SwarmSettings, run_file

from benches import Bench, Cost, Row
from node.engine import TorchEngine, torch_engine
from node.engine.proofs import bits
from node.validator.candidate import Candidate
from node.validator.judge import judge
from protocol import sampling, toploc
from protocol.rollout import Sample
from protocol.sampling import TokenScores
from tests.cheats.catalogue import Cheat, catalogue
from tests.cheats.scene import Scene
from tests.tiny_run import TinyRun
from trainer.tiny import make_policy

HONEST_PROOFS = 20_000
_SHORT, _LONG, _CERTAIN = 16, 6, 4  # submissions of each cheat; the last for those that leave nothing to chance
_MEASURED = ("weights", "drawing")
_FALSE_ALARM, _POWER = 1e-9, 0.99
_TAIL = 0.99  # quantile above which a tail is fitted


@dataclass(frozen=True)
class Rate(Row):
    """`rule` decided most often; `soft` and `hard` are shares of submissions."""

    rule: str = ""
    soft: float = 0.0
    hard: float = 0.0
    submissions: int = 0
    tokens: int = 0
    """Per submission."""
    needed: float | None = None
    """Tokens that would tell it apart; see above."""

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.ours >= self.goal


@dataclass(frozen=True)
class Falsely(Cost):
    """`proofs` of honest work that were judged. `largest` value of each quantity, and the estimated shares of honest chunks
    (`computation`) or answers (`sampling`) above its soft and its hard limit."""

    proofs: int = 0
    largest: dict[str, float] = field(default_factory=dict)
    above_soft: dict[str, float] = field(default_factory=dict)
    above_hard: dict[str, float] = field(default_factory=dict)


def run() -> Bench:
    bench = Bench("cheats")
    with tempfile.TemporaryDirectory() as folder:
        short, long = _scenes(Path(folder))
        try:
            bench.rows.append(_judged_falsely(short))
            margin = _margins_in_bf16(short)
            for cheat in catalogue():
                many = _SHORT if cheat.kind in _MEASURED else _CERTAIN
                bench.rows.append(_rate(cheat, short, "short", many, margin))
                if cheat.kind in _MEASURED:
                    bench.rows.append(_rate(cheat, long, "long", _LONG, margin))
        finally:
            short.run.context.sandbox.close()
            long.run.context.sandbox.close()
    return bench


def _scenes(folder: Path) -> tuple[Scene, Scene]:
    tables = run_file(
        SwarmSettings(), rpc="", contract="0x" + "0" * 40, chain_id=1, run=1, trainer="0x" + "0" * 40, bootnode="", first_block=0
    )  # fmt: skip
    run = TinyRun.create(folder / "short", make_policy, tables, target=0.2)
    ages = {"ages": (1, 5, 20, 100), "paper_ages": (5, 100)}
    short = Scene.create(run, folder / "short-scene", **ages)
    tables["spec"]["sampling"] |= {"group_size": 4, "max_new_tokens": 160}
    other = TinyRun.create(folder / "long", lambda file, policy, **_: _copy(run.model, policy), tables)
    return short, Scene.create(other, folder / "long-scene", **ages, end=0.0)


def _copy(model: Path, folder: Path) -> None:
    shutil.copytree(model, folder)


# ---- cheats ------------------------------------------------------------------------------------------------------------


def _rate(cheat: Cheat, scene: Scene, shape: str, submissions: int, honest: Margins) -> Rate:
    rules: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    alone: list[bool] = []
    margins: list[NDArray[np.float64]] = []
    tokens = 0
    for sequence in range(submissions):
        candidate = cheat.make(scene, sequence)
        finding = judge(candidate)
        if finding is not None:
            rules[finding.rule] += 1
            outcomes[finding.outcome.name] += 1
        if "hidden" in vars(candidate):  # else no rule got as far as the prefill
            tokens += candidate.checked.tokens
            alone.append(judge(candidate, ["computation"]) is not None)
            if not cheat.is_told_apart:
                margins += [scores.margins for _, scores in _scored(candidate)]
    found = sum(rules.values()) / submissions
    peer = sum(alone) / submissions if alone else None
    needed = honest.tokens_needed(_clipped(scene.run, margins)) if margins else None
    return Rate(
        f"{cheat.kind}: {cheat.name}, {shape}", "share found", found, peer, found / peer if peer else None,
        1.0 if cheat.within == 1 else None, rule=rules.most_common(1)[0][0] if rules else "",
        soft=outcomes["SOFT"] / submissions, hard=outcomes["HARD"] / submissions, submissions=submissions,
        tokens=tokens // submissions, needed=needed,
    )  # fmt: skip


def _scored(candidate: Candidate) -> Iterator[tuple[Sample, TokenScores]]:
    """Each prefilled answer, and its tokens against the validator's own logits."""
    for row, hidden in zip(candidate.rows, candidate.hidden, strict=True):
        sample = candidate.samples[row]
        logits = candidate.engine.logits(hidden)
        yield sample, sampling.score(logits, sample.completion, key=candidate.key(sample), temperature=1.0)


def _clipped(run: TinyRun, margins: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.minimum(np.concatenate(list(margins)), float(run.spec.verification.sampling.margin_clip))


@dataclass(frozen=True)
class Margins:
    """Mean and deviation of honest tokens' clipped margins."""

    mean: float
    deviation: float

    def tokens_needed(self, cheats: NDArray[np.float64]) -> float | None:
        """Tokens after which the means of honest and of these margins lie apart; None where they never do."""
        shift = float(cheats.mean()) - self.mean
        if shift <= 0:
            return None
        normal = statistics.NormalDist()
        spread = normal.inv_cdf(1 - _FALSE_ALARM) * self.deviation + normal.inv_cdf(_POWER) * float(cheats.std())
        return math.ceil((spread / shift) ** 2)


# ---- honest work -------------------------------------------------------------------------------------------------------


def _judged_falsely(scene: Scene) -> Falsely:
    """Honest submissions, each judged with small and large prefill batches and both attention implementations."""
    proofs = rejected = sequence = 0
    measured: dict[str, list[float]] = {name: [] for name in _LIMITS}
    prefill_tokens, model = torch_engine._PREFILL_TOKENS, scene.run.engine._model
    try:
        while proofs < HONEST_PROOFS:
            made = scene.run.honest(sequence=sequence)
            sequence += 1
            for attention, batch in (
                ("sdpa", prefill_tokens),
                ("sdpa", 200),
                ("eager", prefill_tokens),
                ("eager", 700),
            ):
                model.set_attn_implementation(attention)
                torch_engine._PREFILL_TOKENS = batch
                candidate = scene.run.candidate(made)
                rejected += judge(candidate) is not None
                proofs += candidate.checked.proofs
                _measure(candidate, measured)
    finally:
        torch_engine._PREFILL_TOKENS = prefill_tokens
        model.set_attn_implementation("sdpa")
    limits = {name: getattr(getattr(scene.run.spec.verification, rule), name) for name, rule in _LIMITS.items()}
    return Falsely(
        "honest submissions rejected", "submissions", rejected, None, None, 0, proofs=proofs,
        largest={name: max(values) for name, values in measured.items()},
        above_soft={name: tail_above(values, float(limits[name].soft)) for name, values in measured.items()},
        above_hard={name: tail_above(values, float(limits[name].hard)) for name, values in measured.items()},
    )  # fmt: skip


_LIMITS = {
    "exponents": "computation", "signs": "computation", "mantissa_mean": "computation", "mantissa_median": "computation",
    "token_margin": "sampling", "mean_margin": "sampling", "logprob_error": "sampling",
}  # fmt: skip
"""Quantities whose tails are estimated, and the rule that has a limit for each."""


def _measure(candidate: Candidate, measured: dict[str, list[float]]) -> None:
    proofs = [candidate.samples[row].proofs for row in candidate.rows]
    for of_row in toploc.score([bits(hidden) for hidden in candidate.hidden], proofs):
        for score in of_row:
            measured["exponents"].append(score.exponents / score.k)
            measured["signs"].append(score.signs / score.k)
            measured["mantissa_mean"].append(score.mantissa_mean)
            measured["mantissa_median"].append(score.mantissa_median)
    for sample, scores in _scored(candidate):
        measured["token_margin"].append(float(scores.margins.max()))
        measured["mean_margin"].append(float(scores.margins.mean()))
        measured["logprob_error"].append(float(np.abs(scores.logprobs - sample.logprobs).max()))


def tail_above(values: Sequence[float], limit: float) -> float:
    """The share of values that lie above `limit`, by a generalised Pareto tail fitted (by moments) to the largest hundredth.

    A shape below 0, which would end the tail somewhere, counts as 0 (exponential). 0 where there is no tail: nearly all
    values are the largest one.
    """
    ordered = np.sort(np.array(values))
    start = float(np.quantile(ordered, _TAIL))
    excess = ordered[ordered > start] - start
    if not len(excess):
        return 0.0
    mean, variance = float(excess.mean()), float(excess.var())
    shape = max(0.0, 0.5 * (1 - mean * mean / variance)) if variance else 0.0
    scale, beyond = mean * (1 - shape), limit - start
    share = math.exp(-beyond / scale) if shape < 1e-9 else (1 + shape * beyond / scale) ** (-1 / shape)
    return len(excess) / len(ordered) * share


def _margins_in_bf16(scene: Scene) -> Margins:
    """What honest tokens differ by where both sides compute in bfloat16, one decoding and one prefilling."""
    engine = TorchEngine("bfloat16")
    engine.load(scene.run.model)
    run = replace(scene.run, engine=engine)
    margins = [scores.margins for s in range(_SHORT) for _, scores in _scored(run.candidate(run.honest(sequence=s)))]
    clipped = _clipped(run, margins)
    return Margins(float(clipped.mean()), float(clipped.std()))
