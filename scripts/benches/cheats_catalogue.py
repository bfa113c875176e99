"""The catalogue of cheats (scripts/cheats): how often each one is found in a submission, by which rule, and whether honest work
ever is. A part of `scripts/bench cheats`.

On tiny policies made on the spot, through the real judge with the prefill of all rows. *Short*: the demo's policy and shape,
64 answers of some 8 tokens. *Long*: 16 answers of up to 160 tokens, by the same policy with its end token made rare. `ours` is
the share of submissions found, `peer` the share that TOPLOC (the rule `computation`) finds alone. For what is not told apart,
`needed` says over how many tokens the mean clipped margin would have to be taken to tell it from honest work: falsely in one
of 1e9 honest cases, rightly in 99 of 100. Its honest mean and deviation are those of bfloat16, decoded and prefilled on this
machine: what honest devices differ by, where float32 on one machine hardly differs.
"""

from __future__ import annotations

import itertools
import math
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from cheats.catalogue import Cheat, catalogue
from cheats.scene import Scene
from numpy.typing import NDArray
from swarm.settings import SwarmSettings, demo, run_file
from swarm.tiny_run import TinyRun

from benches import Cost, Row
from node.engine import torch_engine
from node.engine.proofs import bits
from node.engine.torch_engine import TorchEngine
from node.judging.calibration.measure import PER_CHUNK, PER_SEQUENCE
from node.judging.candidate import Candidate
from node.judging.judge import judge
from node.judging.rules import sampling
from protocol import toploc
from protocol.runspec import Limit, VerificationSpec
from protocol.sandbox import Sandbox
from trainer.models.tiny import make_policy

HONEST_PROOFS = 20_000  # different ones: what is judged twice says little more than what is judged once
_SHORT, _LONG, _CERTAIN = 16, 6, 4  # submissions of each cheat; the last for those that leave nothing to chance
_MEASURED = ("weights", "drawing")
_FALSE_ALARM, _POWER = 1e-9, 0.99
_TAIL = 0.99  # quantile above which a tail is fitted
_PATIENCE = 600.0  # seconds for an answer of the reader: a machine that is busy with something else is to end no bench


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
    """Honest work that was judged: `largest` value of each quantity, and the estimated shares of honest chunks (`computation`) or
    answers (`sampling`) above its soft and its hard limit."""

    submissions: int = 0
    proofs: int = 0
    """Different ones. Two samples of a prompt may well be the same answer, with the same proof."""
    judgements: int = 0
    """Of proofs, equal ones included."""
    tokens: int = 0
    largest: dict[str, float] = field(default_factory=dict)
    above_soft: dict[str, float] = field(default_factory=dict)
    above_hard: dict[str, float] = field(default_factory=dict)


def rows(only: str = "") -> Iterator[Row]:
    """Of honest work and of each cheat whose name begins so."""
    for row in _judged(only):
        print(f"{row.name}: {row.ours:g}", file=sys.stderr, flush=True)  # all of it takes half an hour
        yield row


def _judged(only: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        short, long = _scenes(Path(folder))
        try:
            if "honest".startswith(only):
                yield _judged_falsely((short, long), HONEST_PROOFS)
            chosen = [cheat for cheat in catalogue() if cheat.name.startswith(only)]
            margin = _margins_in_bf16(short)
            for cheat in chosen:
                many = _SHORT if cheat.kind in _MEASURED else _CERTAIN
                yield _rate(cheat, short, "short", many, margin)
                if cheat.kind in _MEASURED:
                    yield _rate(cheat, long, "long", _LONG, margin)
        finally:
            short.run.context.sandbox.close()
            long.run.context.sandbox.close()


def _scenes(folder: Path) -> tuple[Scene, Scene]:
    tables = run_file(
        SwarmSettings(), demo()["spec"]["environments"], rpc="", contract="0x" + "0" * 40, chain_id=1, run=1, trainer="0x" + "0" * 40, bootnode="", first_block=0
    )  # fmt: skip
    run = _patient(TinyRun.create(folder / "short", make_policy, tables, target=0.2))
    ages = {"ages": (1, 5, 20, 100), "paper_ages": (5, 100)}
    short = Scene.create(run, folder / "short-scene", **ages)
    tables["spec"]["sampling"] |= {"group_size": 4, "max_new_tokens": 160}
    other = _patient(TinyRun.create(folder / "long", lambda file, policy, **_: _copy(run.model, policy), tables))
    return short, Scene.create(other, folder / "long-scene", **ages, end=0.0)


def _patient(run: TinyRun) -> TinyRun:
    return replace(run, context=replace(run.context, sandbox=Sandbox(run.spec, deadline=_PATIENCE)))


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
        if candidate.checked.samples:  # else no rule got as far as the prefill
            tokens += candidate.checked.tokens
            # Only where the rule after it has decided is there a doubt about what this one found.
            decided = finding is None or finding.rule == "computation"
            alone.append((finding if decided else judge(candidate, ["computation"])) is not None)
            if not cheat.is_told_apart:
                margins += _margins(candidate)
    found = sum(rules.values()) / submissions
    peer = sum(alone) / submissions if alone else None
    needed = honest.tokens_needed(_clipped(scene.run, margins)) if margins else None
    return Rate(
        f"{cheat.kind}: {cheat.name}, {shape}", "share found", found, peer, found / peer if peer else None,
        1.0 if cheat.within == 1 else None, rule=rules.most_common(1)[0][0] if rules else "",
        soft=outcomes["SOFT"] / submissions, hard=outcomes["HARD"] / submissions, submissions=submissions,
        tokens=tokens // submissions, needed=needed,
    )  # fmt: skip


def _margins(candidate: Candidate) -> Iterator[NDArray[np.float64]]:
    """Of each prefilled answer's tokens, against the validator's own logits."""
    for batch in candidate.prefilled(candidate.rows):
        yield from (sampling.scores(candidate, row, hidden).margins for row, hidden in batch.items())


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


_VARIANTS = (
    ("sdpa", torch_engine._PREFILL_TOKENS),
    ("sdpa", 200),
    ("eager", torch_engine._PREFILL_TOKENS),
    ("eager", 700),
)
"""Attention implementations, and tokens of one prefill batch."""


def _judged_falsely(scenes: Sequence[Scene], most: int) -> Falsely:
    """Honest submissions, as many proofs of each scene, until `most` different ones were judged: each submission once, the variants in turns."""
    proofs: set[bytes] = set()
    judgements = rejected = tokens = submissions = 0
    measured: dict[str, list[float]] = {name: [] for name in (*PER_CHUNK, *PER_SEQUENCE)}
    variants = itertools.cycle(_VARIANTS)
    for part, scene in enumerate(scenes, 1):
        for sequence in itertools.count():
            if len(proofs) >= most * part // len(scenes):
                break
            made = scene.run.honest(sequence=sequence)
            with _prefilling(scene.run.engine, *next(variants)):
                candidate = scene.run.candidate(made)
                rejected += judge(candidate) is not None
                _measure(candidate, measured)
            proofs.update(proof for row in candidate.rows for proof in candidate.samples[row].proofs)
            judgements += candidate.checked.proofs
            tokens += candidate.checked.tokens
            submissions += 1
    limits = {name: limit for name in measured if (limit := _limit(scenes[0].run.spec.verification, name)) is not None}
    return Falsely(
        "honest submissions rejected", "submissions", rejected, None, None, 0,
        submissions=submissions, proofs=len(proofs), judgements=judgements, tokens=tokens,
        largest={name: max(values) for name, values in measured.items()},
        above_soft={name: tail_above(measured[name], float(limit.soft)) for name, limit in limits.items()},
        above_hard={name: tail_above(measured[name], float(limit.hard)) for name, limit in limits.items()},
    )  # fmt: skip


@contextmanager
def _prefilling(engine: TorchEngine, attention: str, tokens: int) -> Iterator[None]:
    """Prefills by one of the variants, and afterwards by the usual one again."""
    usual = torch_engine._PREFILL_TOKENS
    engine.adjust(attention=attention, threads=1)
    torch_engine._PREFILL_TOKENS = tokens
    try:
        yield
    finally:
        torch_engine._PREFILL_TOKENS = usual
        engine.adjust(attention="sdpa", threads=1)


def _limit(verification: VerificationSpec, name: str) -> Limit | None:
    found: Limit | None = getattr(verification.computation if name in PER_CHUNK else verification.sampling, name)
    return found


def _measure(candidate: Candidate, measured: dict[str, list[float]]) -> None:
    """Adds every quantity of the prefilled rows, as the rules measure it: one value for each chunk or for each answer."""
    for batch in candidate.prefilled(candidate.rows):
        proofs = [candidate.samples[row].proofs for row in batch]
        chunks = toploc.score([bits(hidden) for hidden in batch.values()], proofs)
        for (row, hidden), of_row in zip(batch.items(), chunks, strict=True):
            for name in PER_CHUNK:
                measured[name] += [chunk.measured[name] for chunk in of_row]
            for name, worst in sampling.measured(candidate, row, hidden).items():
                measured[name].append(worst.value)


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
    margins = [margins for s in range(_SHORT) for margins in _margins(run.candidate(run.honest(sequence=s)))]
    clipped = _clipped(run, margins)
    return Margins(float(clipped.mean()), float(clipped.std()))
