"""Detection in bfloat16: after how many submissions of one seat each cheat is found, across two ways of computing attention. A part of
`scripts/bench cheats`.

The worker computes attention by torch's fused kernel, the validator by products and a softmax. Cheats make proofs and logprobs anew with the published weights, unless
their name says that they prove themselves. Single values are judged by the limits of the shipped calibration, sums against its noise and with the default budget.
What each of a cheat's completions adds is measured once, by the functions that the judge uses; then seats are made of completions drawn from these, with
replacement, in submissions of 2,000 tokens, until the evidence reaches the bound. `ours` is the median of the submissions that takes, `low` and `high` the
5th and 95th percentile; `generated` is the same in tokens of the seat. *Full*: all rows are prefilled, and prefilled again with the alternative that the row names. *A tenth*: a tenth of the rows, and
alternatives as one newly started validator chooses them that watches this seat alone (node/validator/alternatives.py). *Ideal*: what the best bet on the alternative's tokens would need (cheats_ideal.py). `peer` is the share of completions that TOPLOC's published
thresholds reject (90 of 128 exponents, mantissa mean 10, median 8).

Intervals are those of the seat's luck; that of the pool of completions, a few hundred of one tiny policy on one machine, is not in them.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from cheats.drafts import DraftingEngine
from cheats.engines import EditingEngine, NearTieEngine, NucleusEngine, SmallerModelEngine
from cheats.quantisers import grouped_int8
from cheats.scene import PAPER_LR, Scene
from swarm.tiny_run import TinyRun, run_tables

from benches import Row, cheats_ideal
from node.engine import Completion, EngineSettings, Prompt
from node.engine.degrade import CACHES, DEGRADATIONS, Degradation
from node.engine.proofs import bits
from node.engine.torch_engine import TorchEngine
from node.judging import sums
from node.judging.alternatives import Alternatives, nearer, sides
from node.judging.history import CountedReceipt, History
from node.judging.rules import computation, sampling
from node.judging.rules.limits import worst
from node.validator.alternatives import PREFILLS, AlternativePlan
from protocol import history, statistics, toploc
from protocol import sampling as measures
from protocol.runspec import HistoryBudget, VerificationSpec
from protocol.statistics import SumsByName, proofs_by, tokens_by
from protocol.verdict import Outcome
from trainer.models.tiny import make_policy

TOKENS = 2_000
LENGTH = 100
_SEATS = 60
_MOST = 60
"""Submissions after which nobody waits any longer."""
_EXPONENTS, _MEAN, _MEDIAN = 38, 10.0, 8.0
"""TOPLOC's published thresholds: exponents that may differ, of 128, and mantissas."""
_AGES = (1, 4, 5)
_BEFORE = {"before_1": 1, "before_4": 4}

Generate = Callable[[Sequence[Prompt]], list[Completion]]


@dataclass(frozen=True)
class Deed:
    """What a cheat does, and what the table promises: within how many submissions it is found, soft and hard."""

    name: str
    generate: Generate
    alternative: str = ""
    factor: float | None = None
    """Of the temperature, at which the best bet takes it to draw."""
    proves_itself: bool = False
    soft: int | None = None
    hard: int | None = None
    honest: bool = False
    """Then the promise is that nothing is found."""


@dataclass(frozen=True)
class Observed:
    """Of one completion: what it adds, without and with the alternative, and what single values say of it."""

    tokens: int
    alone: SumsByName
    again: SumsByName
    looks: cheats_ideal.Looks | None
    single: Outcome
    by_toploc: bool


@dataclass(frozen=True)
class Quantiles:
    """The median, the 5th and the 95th percentile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], most: float = np.inf) -> Quantiles:
        return cls(*(float(min(most, np.quantile(values, q))) for q in (0.5, 0.05, 0.95)))


@dataclass(frozen=True)
class FirstVerdict:
    """When a seat was found, and by what; one more submission than the most, and nothing, where it was not."""

    submissions: int
    generated: int
    by: str


@dataclass(frozen=True)
class Detection(Row):
    """`ours` in submissions; where not all seats are found within the most that is waited for, that many."""

    found: float = 0.0
    """Share of the simulated seats."""
    low: float = 0.0
    high: float = 0.0
    generated: Quantiles | None = None
    """Tokens of the seat up to there, prefilled or not."""
    tenth: float = 0.0
    """As `ours`, a tenth of the rows prefilled."""
    tenth_found: float = 0.0
    found_by: dict[str, float] = field(default_factory=dict)
    """What found it, with its share of the seats, the most frequent first: a single value, or the statistic with the most evidence."""
    alternative: str = ""
    ideal: float | None = None
    """As `ours`, of the best bet on the alternative; None without one, and where no number of submissions is enough."""
    units: int = 0
    """Completions measured."""
    tokens: int = 0
    """Of them."""
    extra: dict[str, float] = field(default_factory=dict)
    honest: bool = False

    @property
    def met(self) -> bool | None:
        if self.honest:
            return self.found == self.tenth_found == 0
        return None if self.goal is None else self.found > 0.5 and self.ours <= self.goal

    @property
    def remark(self) -> str:
        by = ", ".join(f"{name} {share:.0%}" for name, share in self.found_by.items()) or "nothing"
        tokens = f"{self.generated.median:,.0f} tokens, " if self.generated else ""
        ideal = "" if not self.alternative else f"ideal {'∞' if self.ideal is None else format(self.ideal, '.1f')}; "
        extra = "".join(f"; {name.replace('_', ' ')} {value:.3g}" for name, value in self.extra.items())
        found = f"{self.low:g} to {self.high:g}, {tokens}found {self.found:.0%} by {by}"
        return f"{found}; {ideal}a tenth: {self.tenth:g} (found {self.tenth_found:.0%}){extra}"


def rows(completions: int, only: str = "") -> Iterator[Detection]:
    """Of the cheats whose name begins so, by that many completions of each."""
    with tempfile.TemporaryDirectory() as folder, Stand.made(Path(folder), completions) as stand:
        for deed in stand.deeds():
            if deed.name.startswith(only):
                for row in stand.rows(deed):
                    print(f"{row.name}: {row.ours:g} {row.unit}, {row.remark}", file=sys.stderr, flush=True)
                    yield row


class Stand:
    """A bfloat16 run of one tiny policy, and a validator of it."""

    def __init__(self, scene: Scene, rows: int) -> None:
        self._scene = scene
        self._model = scene.run.model
        self.verification: VerificationSpec = scene.run.spec.verification
        assert self.verification.noise is not None
        self._noise = self.verification.noise
        self._validator = self._engine(attention="eager")
        self._right = self._engine()
        self._alternatives = Alternatives(EngineSettings(attention="eager"), "bfloat16")
        tasks, tokenizer = scene.run.context.tasks, scene.run.tokenizer
        problems = tasks.problems(list(range(rows)))
        self._prompts = [Prompt(tokenizer.encode(p.prompt), (1_000_003 * i + 1,)) for i, p in enumerate(problems)]
        self._ends: frozenset[int] = frozenset()

    @classmethod
    def made(
        cls, folder: Path, rows: int, *, make: Callable[..., Any] = make_policy, ages: Sequence[int] = _AGES
    ) -> Stand:
        """`make` makes the policy; without an age of `_AGES`, cheats with the weights of that many steps before cannot be had."""
        tables = run_tables()
        tables["spec"]["sampling"]["max_new_tokens"] = LENGTH
        tables["spec"]["model"]["compute_dtype"] = "bfloat16"
        tables["spec"]["verification"] |= {
            "calibration": "tiny-qwen3-bfloat16-cpu",
            "uncalibrated": [],
            "history": {"seats": 1000},
        }
        run = TinyRun.create(folder / "run", make, tables, target=0.05)
        return cls(Scene.create(run, folder / "scene", ages=(0,), paper_ages=ages, end=0.0), rows)

    def __enter__(self) -> Stand:
        return self

    def __exit__(self, *_: object) -> None:
        self._scene.run.context.sandbox.close()

    # ---- what cheats do ------------------------------------------------------------------------------------------------

    def deeds(self) -> Iterator[Deed]:
        """Each engine is good until the next deed."""
        drawn = self._drawn
        yield Deed("honest", drawn(self._right), honest=True)
        for name in (*_BEFORE, "colder", "fp8", "int4", "int8", "kv_fp8", "kv_int8", "warmer"):
            yield Deed(
                f"honest, looked for as {name}",
                drawn(self._right),
                name,
                statistics.TEMPERATURES.get(name),
                honest=True,
            )
        yield Deed("smaller model", drawn(self._engine(SmallerModelEngine)), hard=1)
        yield Deed("other seed", drawn(self._right, shift=1), hard=1)
        yield Deed("other prompt", self._of_the_next(drawn(self._right)), hard=1)
        yield Deed("best of four", self._best(4), hard=1)
        yield Deed("one random token in each answer", self._edited(), hard=1)
        honest, smaller = drawn(self._right), drawn(self._engine(SmallerModelEngine))
        yield Deed("one row of ten by a smaller model", _mixed(honest, smaller, 10), hard=2)
        for factor, soft, hard in ((0.9, None, 1), (1.1, None, 1), (0.95, 1, 3), (0.98, 10, None)):
            known = "colder" if factor < 1 else "warmer"
            generate = drawn(self._right, temperature=factor)
            yield Deed(f"temperature {factor:g}", generate, known, factor, soft=soft, hard=hard)
        yield Deed("greedy", drawn(self._right, temperature=1e-6), hard=1)
        yield Deed("nucleus", drawn(self._engine(NucleusEngine)), hard=1)
        goals = {
            "int4": (None, 2),
            "fp8": (1, 3),
            "int8": (25, None),
            "1 % noise": (2, None),
            "0.1 % noise": (None, None),
        }
        for name, (soft, hard) in goals.items():
            known = name if name in statistics.ALTERNATIVES else ""
            yield Deed(name, drawn(self._engine(change=DEGRADATIONS[name])), known, soft=soft, hard=hard)
        yield Deed("int8 in groups of 32, looked for as int8", drawn(self._engine(change=grouped_int8)), "int8")
        for name, soft in (("kv_fp8", 10), ("kv_int8", 25)):
            yield Deed(name, drawn(self._engine(change=CACHES[name])), name, soft=soft)
        for age, soft in ((5, 5), (1, 25)):
            version = self._scene.older(age, PAPER_LR)
            name = "before_4" if age == 5 else "before_1"  # of the fifth before, the nearest that is named
            steps = "1 version" if age == 1 else f"{age} versions"
            yield Deed(
                f"{steps} old, proves itself", drawn(self._engine(folder=version)), name, proves_itself=True, soft=soft
            )
            yield Deed(f"{steps} old", drawn(self._engine(folder=version)), name)
        for budget, soft, hard in ((0.5, None, 2), (0.1, 3, None), (0.05, 10, None)):
            yield Deed(f"drafts within {budget:g}", self._drafting(budget=budget), soft=soft, hard=hard)
        yield Deed("drafts above p 0.1", self._drafting(likely=0.1), hard=2)
        yield Deed("runner-up at one near tie an answer", drawn(self._engine(NearTieEngine)))

    def _engine(
        self, kind: type[TorchEngine] = TorchEngine, *, folder: Path | None = None, change: Degradation | None = None, attention: str = ""
    ) -> Any:  # fmt: skip
        engine = kind("bfloat16", EngineSettings(attention=attention or "sdpa"))  # type: ignore[arg-type]
        engine.load(folder or self._model)
        if change is not None:
            engine.degrade(change)
        return engine

    def _drawn(self, engine: TorchEngine, *, temperature: float = 1.0, shift: int = 0) -> Generate:
        def generate(prompts: Sequence[Prompt]) -> list[Completion]:
            asked = [Prompt(p.tokens, tuple(key + shift for key in p.keys)) for p in prompts]
            made = engine.generate(asked, temperature=temperature, max_new_tokens=LENGTH, end_tokens=self._ends)
            return [one for group in made for one in group]

        return generate

    def _drafting(self, **how: float) -> Generate:
        engine = self._engine(DraftingEngine)
        for name, value in how.items():
            setattr(engine, name, value)
        generate = self._drawn(engine)

        def counted(prompts: Sequence[Prompt]) -> list[Completion]:
            made = generate(prompts)
            self.extra = {"kept": engine.kept / engine.drafted, "kept_honestly": engine.as_drawn / engine.drafted}
            return made

        return counted

    @staticmethod
    def _of_the_next(generate: Generate) -> Generate:
        """Each prompt has the answer to the one after it, drawn with its own keys."""

        def generated(prompts: Sequence[Prompt]) -> list[Completion]:
            others = [*prompts[1:], *prompts[:1]]
            return generate([Prompt(other.tokens, own.keys) for own, other in zip(prompts, others, strict=True)])

        return generated

    def _best(self, of: int) -> Generate:
        """The likeliest of so many, drawn with the assigned key and others."""

        def generated(prompts: Sequence[Prompt]) -> list[Completion]:
            tries = [self._drawn(self._right, shift=shift)(prompts) for shift in range(of)]
            return [max(row, key=lambda one: sum(one.logprobs)) for row in zip(*tries, strict=True)]

        return generated

    def _edited(self) -> Generate:
        engine = self._engine(EditingEngine)
        engine.length = LENGTH
        generate = self._drawn(engine)
        limit = self.verification.sampling.token_margin
        assert limit is not None

        def counted(prompts: Sequence[Prompt]) -> list[Completion]:
            made = generate(prompts)
            within = sum(margin <= float(limit.hard) for margin in engine.margins)
            self.extra = {"edits": float(len(engine.margins)), "within_the_hard_limit": within / len(engine.margins)}
            return made

        return counted

    # ---- what a validator sees -----------------------------------------------------------------------------------------

    def rows(self, deed: Deed) -> Iterator[Detection]:
        """One for each promise; of what nothing is promised, one of the soft bound."""
        self.extra: dict[str, float] = {}
        seen = self._observed(deed)
        by_toploc = float(np.mean([one.by_toploc for one in seen]))
        common = {
            "units": len(seen),
            "tokens": sum(one.tokens for one in seen),
            "extra": self.extra,
            "honest": deed.honest,
            "alternative": deed.alternative,
        }
        budget = HistoryBudget()
        for outcome, goal in ((Outcome.SOFT, deed.soft), (Outcome.HARD, deed.hard)):
            if goal is None and (outcome is Outcome.HARD or deed.hard is not None):
                continue
            full, tenth = (
                [Seat(seen, budget, deed.alternative, seed, share).judged_until(outcome) for seed in range(_SEATS)]
                for share in (1.0, 0.1)
            )
            took, took_tenth = (Quantiles.of([v.submissions for v in verdicts], _MOST) for verdicts in (full, tenth))
            yield Detection(
                f"{deed.name}: {outcome.name.lower()}", "submissions", took.median, by_toploc, None, None if goal is None else float(goal),
                found=_found(full), low=took.low, high=took.high, generated=Quantiles.of([v.generated for v in full]),
                tenth=took_tenth.median, tenth_found=_found(tenth),
                found_by={by: n / _SEATS for by, n in Counter(v.by for v in full if v.by).most_common()},
                ideal=self._ideal(seen, budget, outcome), **common,
            )  # fmt: skip

    def _ideal(self, seen: Sequence[Observed], budget: HistoryBudget, outcome: Outcome) -> float | None:
        looks = [one.looks for one in seen if one.looks is not None]
        if not looks:
            return None
        bounds = history.bounds(budget)
        noise, bound = (self._noise.hard, bounds.hard) if outcome is Outcome.HARD else (self._noise.soft, bounds.soft)
        return cheats_ideal.submissions(looks, float(noise), bound, TOKENS)

    def _observed(self, deed: Deed) -> list[Observed]:
        completions = deed.generate(self._prompts)
        pairs = [(p.tokens, c.tokens) for p, c in zip(self._prompts, completions, strict=True)]
        if not deed.proves_itself:
            proofs = toploc.prove([bits(hidden) for hidden in self._right.prefill(pairs)])
            completions = [replace(one, proofs=list(own)) for one, own in zip(completions, proofs, strict=True)]
        states = self._validator.prefill(pairs)
        points = toploc.points([bits(hidden) for hidden in states], [one.proofs for one in completions])
        scores = toploc.score([bits(hidden) for hidden in states], [one.proofs for one in completions])
        found = []
        alternative = self._alternative(deed.alternative) if deed.alternative else None
        others = [None] * len(pairs) if alternative is None else alternative.prefill(pairs)
        for i, (one, hidden, other) in enumerate(zip(completions, states, others, strict=True)):
            tokens, how = np.array(one.tokens), {"key": self._prompts[i].keys[0], "temperature": 1.0}
            of_tokens = self._validator.score(hidden, tokens, **how)
            again: SumsByName = {}
            looks = None
            if other is not None and alternative is not None:
                chunks = [bits(other)[start : start + 32].reshape(-1) for start in range(0, len(tokens), 32)]
                drawn = alternative.score(other, tokens, **how).drawn
                again = {
                    tokens_by(deed.alternative): sides(of_tokens, tokens, drawn),
                    proofs_by(deed.alternative): nearer(points[i], chunks),
                }
                looks = cheats_ideal.Looks.of(
                    tokens, self._validator.logits(hidden), alternative.logits(other),
                    key=self._prompts[i].keys[0], factor=deed.factor,
                )  # fmt: skip
            limits = self.verification.sampling
            values = measures.measure(
                of_tokens, of_tokens.logprobs.astype(np.float32),
                mismatch_above=float(limits.mismatch_above), margin_clip=float(limits.margin_clip),
            )  # fmt: skip
            single = worst([
                *sampling.judged(limits, 0, values),
                *(computation.of_chunk(self.verification.computation, 0, n, score) for n, score in enumerate(scores[i])),
            ])  # fmt: skip
            by_toploc = any(
                s.exponents > _EXPONENTS or s.mantissa_mean > _MEAN or s.mantissa_median > _MEDIAN for s in scores[i]
            )
            outcome = single.outcome if single else Outcome.ACCEPT
            found.append(
                Observed(len(tokens), sums.of_completion(of_tokens, self._noise, 1.0), again, looks, outcome, by_toploc)
            )
        return found

    def _alternative(self, name: str) -> Any:
        older = self._scene.older(_BEFORE[name], PAPER_LR) if name in _BEFORE else None
        return self._alternatives.engine(name, self._model, lambda _: older)


class Seat:
    """One that draws its completions from those that were observed, judged by one validator."""

    def __init__(
        self, seen: Sequence[Observed], budget: HistoryBudget, alternative: str, seed: int, share: float = 1.0
    ) -> None:
        self._seen = seen
        self._budget = budget
        self._alternative = alternative
        self._rng = np.random.default_rng(seed)
        self._share = share
        self._secret = seed.to_bytes(32, "big")

    def judged_until(self, outcome: Outcome) -> FirstVerdict:
        """A verdict as grave as this."""
        plan = AlternativePlan(self._budget, "bfloat16", lambda _: True)
        bounds = history.bounds(self._budget)
        bound = bounds.hard if outcome is Outcome.HARD else bounds.soft
        total: SumsByName = {}
        generated = 0
        for number in range(1, _MOST + 1):
            submission = list(self._submission())
            generated += sum(one.tokens for one, _ in submission)
            work = [one for one, is_drawn in submission if is_drawn]
            looks_again = self._share == 1
            if not looks_again:
                before = History(self._budget, 0, [_receipt(total)])
                names = plan.names(number.to_bytes(32, "big"), 8, before, self._secret)
                tokens = sum(one.tokens for one in work)
                plan.count(tokens, PREFILLS * tokens * len(names))
                looks_again = self._alternative in names
            if any(one.single >= outcome for one in work):
                return FirstVerdict(number, generated, "a single value")
            added = [one.alone for one in work] + [one.again for one in work if looks_again]
            before_it, total = total, statistics.total([total, *added])
            after = history.evidence(total)  # the validator knows nothing but what it measured itself
            if (after.hard if outcome is Outcome.HARD else after.soft) >= bound and history.adds(
                before_it, total, self._budget
            ):
                return FirstVerdict(number, generated, leading(total))
        return FirstVerdict(_MOST + 1, generated, "")

    def _submission(self) -> Iterator[tuple[Observed, bool]]:
        """Of 2,000 tokens, each completion with whether it is drawn for the prefill."""
        tokens = 0
        while tokens < TOKENS:
            one = self._seen[int(self._rng.integers(len(self._seen)))]
            yield one, tokens == 0 or self._rng.random() < self._share
            tokens += one.tokens


def _mixed(most: Generate, some: Generate, each: int) -> Generate:
    """One of `each` completions is of `some`."""

    def generated(prompts: Sequence[Prompt]) -> list[Completion]:
        made = most(prompts)
        made[::each] = some(prompts[::each])
        return made

    return generated


def _found(verdicts: Sequence[FirstVerdict]) -> float:
    return float(np.mean([bool(verdict.by) for verdict in verdicts]))


def _receipt(total: SumsByName) -> CountedReceipt:
    return CountedReceipt("0" * 64, "", "0" * 64, 0, total, True)


def leading(total: SumsByName) -> str:
    """The statistic, or the alternative, with the most evidence against the soft null."""
    found = history.by_statistic(total)
    return max(found, key=lambda name: found[name])
