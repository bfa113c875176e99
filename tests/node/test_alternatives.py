"""Named alternatives: on whose side work is, which work is looked at again, and what follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from swarm.tiny_run import TinyRun

from node.engine import EngineSettings, Prompt
from node.engine.degrade import CACHES, DEGRADATIONS
from node.engine.proofs import bits
from node.engine.torch_engine import TorchEngine
from node.judging.alternatives import Alternatives
from node.judging.candidate import Candidate
from node.judging.history import SUSPECT, CountedReceipt, History, suspected
from node.judging.judge import judge
from node.judging.replay import compare, replay
from node.validator.alternatives import PREFILLS, AlternativePlan
from protocol import history, toploc
from protocol.constants import SUM_UNIT as UNIT
from protocol.eprocess import Sums
from protocol.errors import PreflightError
from protocol.runspec import HistoryBudget
from protocol.statistics import ALTERNATIVES, TEMPERATURES, proofs_by, tokens_by
from protocol.toploc import Points
from protocol.verdict import HISTORY, Outcome
from tests.node.stage import Panel, Stage, rounds, until

BUDGET = HistoryBudget()


def bf16(values: Sequence[float]) -> toploc.Bits:
    return toploc.bf16_bits(np.array(values, np.float32))


# ---- one chunk ---------------------------------------------------------------------------------------------------------

OWN, OTHER = [2.0, -3.0, 4.0, 5.0], [2.0, -3.5, 4.5, 5.5]


def side(claimed: toploc.Bits) -> int:
    return Points(np.arange(4, dtype=np.int32), bf16(OWN), claimed).side(bf16(OTHER))


@pytest.mark.parametrize(
    ("claimed", "found"),
    [
        (OWN, -1),
        (OTHER, 1),
        ([9.0, -3.5, 4.5, 5.0], 1),  # where both say the same, the claim says nothing
        ([2.0, -3.25, 4.25, 5.25], 0),
        ([2.0, -3.5, 4.5, -1e30], 1),  # one point that lies far away on the verifier's side outweighs no two
        ([2.0, -3.0, 4.0, 1e30], -1),
    ],
)
def test_a_claim_is_on_the_side_that_most_of_its_points_are_nearer_to(claimed: list[float], found: int) -> None:
    assert side(bf16(claimed)) == found


@pytest.mark.filterwarnings("error")
def test_points_that_are_no_numbers_count_for_nothing() -> None:
    nothing = np.array([0x7FC0, 0xFF80, 0x7F81, 0xFFFF], np.uint16)
    assert side(nothing) == 0
    claimed = bf16(OTHER)
    claimed[1] = 0x7FC0
    assert side(claimed) == 1


def test_points_are_what_the_score_compares(tiny_run: TinyRun) -> None:
    made = tiny_run.read(tiny_run.honest())
    sample = made.samples[0]
    (hidden,) = tiny_run.engine.prefill([(sample.prompt, sample.completion)])
    (points,) = toploc.points([bits(hidden)], [list(sample.proofs)])
    (scores,) = toploc.score([bits(hidden)], [list(sample.proofs)])
    for one, score in zip(points, scores, strict=True):
        differ = one.own ^ one.claimed
        assert np.count_nonzero(differ & 0x7F80) == score.exponents
        assert np.count_nonzero(differ & 0x8000) == score.signs


def test_noise_put_on_a_proof_does_not_hide_a_small_difference() -> None:
    """Steps of the mantissa are what a cheat may put on all of its points within the limits."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(200):
        own = rng.normal(size=128) * 3
        other = own * (1 + 0.002 * rng.normal(size=128))
        steps = rng.integers(-2, 3, 128).astype(np.int64)
        claimed = (bf16(other.tolist()).astype(np.int64) + steps).astype(np.uint16)
        points = Points(np.arange(128, dtype=np.int32), bf16(own.tolist()), claimed)
        found.append(points.side(bf16(other.tolist())))
    assert found.count(1) > 0.7 * len(found)


def test_work_by_the_judge_s_alternatives_own_engine_is_not_on_the_side_of_what_differs_less_than_engines_do(
    run: TinyRun, alternatives: Alternatives
) -> None:
    """The judge computes in another precision than the worker, whose engine is that of the alternatives."""
    other = TorchEngine("bfloat16")
    other.load(run.model)
    candidate = run.candidate(run.honest(sequence=0))
    candidate.engine = other
    candidate.plan = replace(candidate.plan, alternatives=("before_1",))
    candidate.alternative = lambda of: alternatives.engine(of, run.model, lambda _: run.model)
    judge(candidate)
    assert candidate.checked.alternatives == ["before_1"]
    assert candidate.checked.summed[proofs_by("before_1")].count == 0


# ---- caches ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CACHES))
def test_a_rounded_cache_is_computed_alike_by_decoding_and_prefill_and_loading_again_undoes_it(
    tiny_run: TinyRun, name: str
) -> None:
    engine = TorchEngine("float32")
    engine.load(tiny_run.model)
    prompt = Prompt(tiny_run.tokenizer.encode("3 + 4"), (7,))
    ((made,),) = engine.generate([prompt], temperature=1.0, max_new_tokens=40, end_tokens=frozenset())
    (exact,) = engine.prefill([(prompt.tokens, made.tokens)])
    engine.degrade(CACHES[name])
    ((rounded,),) = engine.generate([prompt], temperature=1.0, max_new_tokens=40, end_tokens=frozenset())
    (prefilled,) = engine.prefill([(prompt.tokens, rounded.tokens)])
    (score, _) = toploc.score([bits(prefilled)], [rounded.proofs])[0]
    assert (score.exponents, score.signs) == (0, 0)
    assert score.mantissa_mean < 0.2
    (degraded,) = engine.prefill([(prompt.tokens, made.tokens)])
    assert not torch.equal(degraded, exact)
    engine.load(tiny_run.model)
    assert torch.equal(engine.prefill([(prompt.tokens, made.tokens)])[0], exact)


# ---- a judgement -------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tiny_run: TinyRun) -> TinyRun:
    return tiny_run.with_history("0.005", "0.01", blind=["sampling", "computation"])


@pytest.fixture
def alternatives() -> Alternatives:
    return Alternatives(EngineSettings(), "float32")


def looked_at(run: TinyRun, alternatives: Alternatives, engine: TorchEngine, sequence: int, name: str) -> Candidate:
    """Work by this engine, judged and prefilled again as the alternative."""
    candidate = run.candidate(replace(run, engine=engine).honest(sequence=sequence))
    candidate.plan = replace(candidate.plan, alternatives=(name,))
    candidate.alternative = lambda of: alternatives.engine(of, run.model, lambda _: None)
    judge(candidate)
    return candidate


def seen(run: TinyRun, alternatives: Alternatives, engine: TorchEngine, name: str) -> tuple[Sums, Sums]:
    """Sums of tokens and of proofs of two submissions."""
    tokens, proofs = Sums(), Sums()
    for sequence in range(2):
        summed = looked_at(run, alternatives, engine, sequence, name).checked.summed
        tokens, proofs = tokens + summed[tokens_by(name)], proofs + summed[proofs_by(name)]
    return tokens, proofs


@pytest.mark.parametrize("name", ["int4", "fp8", "int8", "kv_int8", "kv_fp8", "bfloat16"])
def test_honest_work_is_on_the_reference_s_side_and_a_cheat_s_on_the_alternative_s(
    run: TinyRun, alternatives: Alternatives, name: str
) -> None:
    """The honest worker attends otherwise than the validator."""
    other = TorchEngine("float32", EngineSettings(attention="eager"))
    other.load(run.model)
    tokens, proofs = seen(run, alternatives, other, name)
    assert proofs.count >= 16 * UNIT
    assert proofs.total <= 0.1 * proofs.count
    assert tokens.total <= 0.5 * tokens.count
    cheap = TorchEngine("bfloat16" if name == "bfloat16" else "float32")
    cheap.load(run.model)
    if change := (DEGRADATIONS | CACHES).get(name):
        cheap.degrade(change)
    tokens, proofs = seen(run, alternatives, cheap, name)
    assert (
        proofs.total >= 0.8 * proofs.count
    )  # sixteen signs, of which two of bfloat16's own may fall either way: 14 were seen, 16 mostly
    assert tokens.total >= 0.7 * tokens.count or tokens.count < 4 * UNIT


@pytest.mark.parametrize("name", ["colder", "warmer"])
def test_another_temperature_is_on_the_side_of_its_alternative(
    run: TinyRun, alternatives: Alternatives, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By tokens alone: activations are the same."""
    other = TorchEngine("float32", EngineSettings(attention="eager"))
    other.load(run.model)
    tokens, proofs = seen(run, alternatives, other, name)
    assert (tokens.total, proofs.count) == (0, 0)
    assert tokens.count > 0  # nine on average
    draw = TorchEngine.generate
    monkeypatch.setattr(
        TorchEngine, "generate",
        lambda engine, prompts, *, temperature, **how: draw(engine, prompts, temperature=TEMPERATURES[name] * temperature, **how),
    )  # fmt: skip
    tokens, proofs = seen(run, alternatives, run.engine, name)
    assert proofs.count == 0
    assert tokens.total >= 0.9 * tokens.count > 0


@pytest.mark.parametrize("name", ["colder", "warmer"])
def test_where_noise_is_wide_against_the_temperature_it_takes_no_side_of_another_one(
    run: TinyRun, alternatives: Alternatives, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.judging.sums.SPREAD_OF_TEMPERATURE", 0.0)
    tokens, _ = seen(run, alternatives, run.engine, name)
    assert tokens == Sums()


def test_an_alternative_that_cannot_be_had_is_left_out_whole(run: TinyRun, alternatives: Alternatives) -> None:
    candidate = looked_at(run, alternatives, run.engine, 0, "before_1")
    assert (candidate.checked.alternatives, candidate.checked.samples) == ([], 255)
    assert not any("before" in name for name in candidate.checked.summed)
    with pytest.raises(PreflightError, match="1 steps before"):
        alternatives.engine("before_1", run.model, lambda _: None)


def test_no_more_of_a_submission_is_kept_than_there_is_room_for(
    run: TinyRun, alternatives: Alternatives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.judging.candidate.TOKENS_MOST", 30)
    candidate = looked_at(run, alternatives, run.engine, 0, "int8")
    assert candidate.checked.alternatives == ["int8"]
    assert 0 < candidate.checked.again <= 2 * 30 < 2 * candidate.checked.tokens
    first = {row: len(candidate.samples[row].completion) for row in candidate.rows}
    assert candidate.compared != list(first)[: len(candidate.compared)]  # in an order that nobody foresees


# ---- which work --------------------------------------------------------------------------------------------------------


def entry(of: dict[str, Sums], *, own: bool = True) -> CountedReceipt:
    return CountedReceipt("0" * 64, "0x" + "1" * 40, "d" * 64, 2_000, of, own)


CLEAN = History(BUDGET, 0, [])


def chosen(plan: AlternativePlan, before: History = CLEAN, count: int = 2_000, step: int = 9) -> list[tuple[str, ...]]:
    return [plan.names(number.to_bytes(32, "big"), step, before, b"secret") for number in range(count)]


def test_half_of_the_share_is_drawn_evenly_among_alternatives_that_are_here() -> None:
    found = chosen(AlternativePlan(BUDGET, "float32", lambda step: step > 5))
    drawn = [name for (name,) in filter(None, found)]
    assert 25 < len(drawn) < 80  # 2.5 % of 2,000, each prefilled twice
    assert set(drawn) == set(ALTERNATIVES) - {"before_4"}
    assert "bfloat16" not in {
        name for (name,) in filter(None, chosen(AlternativePlan(BUDGET, "bfloat16", lambda _: True)))
    }


def test_a_seat_that_something_speaks_against_is_prefilled_with_what_leads() -> None:
    plan = AlternativePlan(BUDGET, "float32", lambda _: True)
    plan.count(10_000_000, 0)
    sided = History(BUDGET, 0, [entry({tokens_by("int8"): Sums.of_trials(19, 20)})])
    assert sided.leading == "int8"
    others = [names for names in chosen(plan, sided, 400) if names != ("int8",)]
    assert len(others) < 40
    gross = {"margins_soft": Sums(100 * UNIT, 800 * UNIT, UNIT)}  # noisy, and nobody knows by what
    assert all(chosen(plan, History(BUDGET, 0, [entry(gross)]), 50))
    assert not all(chosen(plan, count=50))


def test_what_others_say_of_an_alternative_is_looked_at_and_a_little_evidence_is_not() -> None:
    said = History(BUDGET, 0, [entry({proofs_by("fp8"): Sums.of_trials(30, 30)}, own=False)])
    assert said.leading == "fp8"
    few = History(BUDGET, 0, [entry({proofs_by("fp8"): Sums.of_trials(8, 8)})])
    assert few.leading is None
    assert max(history.by_alternative(few.counted[0].sums).values()) < SUSPECT * history.bounds(BUDGET).soft


def test_no_more_than_the_share_is_prefilled_again_for_suspects() -> None:
    plan = AlternativePlan(BUDGET.model_copy(update={"again": "0.02"}), "float32", lambda _: True)
    sided = History(BUDGET, 0, [entry({tokens_by("int8"): Sums.of_trials(19, 20)})])
    again = prefilled = 0
    for number in range(2_000):
        names = plan.names(number.to_bytes(32, "big"), 9, sided, b"secret")
        tokens = PREFILLS * 5_000 * len(names)
        again, prefilled = again + tokens, prefilled + 5_000
        plan.count(5_000, tokens)
    assert 0.01 < again / prefilled < 0.04  # drawn ones, and what may be ahead of the share


def test_what_is_drawn_leaves_half_of_the_share_to_suspects_however_long_it_goes_on() -> None:
    """One seat in a hundred is suspect: the share suffices for all of its work."""
    plan = AlternativePlan(BUDGET, "float32", lambda _: True)
    sided = History(BUDGET, 0, [entry({tokens_by("int8"): Sums.of_trials(19, 20)})])
    again, looked_at = 0, []
    for number in range(20_000):
        is_suspect = number % 100 == 0
        names = plan.names(number.to_bytes(32, "big"), 9, sided if is_suspect else CLEAN, b"secret")
        plan.count(1_200, PREFILLS * 1_200 * len(names))
        again += PREFILLS * len(names)
        if is_suspect:
            looked_at.append(bool(names))
    assert all(looked_at)
    assert again / 20_000 < float(BUDGET.again)


def test_a_juror_that_has_not_looked_for_an_alternative_clears_nobody_of_it() -> None:
    """Margins of a rounded cache are those of honest work."""
    found = entry({proofs_by("kv_fp8"): Sums.of_trials(60, 60)}, own=False)
    margins = {name: Sums(0, 0, 40 * UNIT) for name in ("margins_hard", "margins_soft")}
    own = [replace(entry(margins), submission=f"{number:064x}") for number in range(1, 5)]

    def clears(*more: CountedReceipt, by: tuple[str, ...] = ("kv_fp8",)) -> bool:
        return History(BUDGET, 0, [*own, *more]).weigh(margins, 2_000, by).clears

    assert suspected(found.sums, BUDGET) == ("kv_fp8",)
    assert clears(found, by=())
    assert not clears(found)
    assert not clears()  # by the challenger's word on the very submission, which is no part of the history
    assert clears(found, entry({proofs_by("kv_fp8"): Sums.of_trials(3, 40)}))
    assert not clears(found, entry({proofs_by("kv_fp8"): Sums.of_trials(1, 10)}))
    assert not clears(found, entry({proofs_by("kv_fp8"): Sums.of_trials(30, 50)}))
    assert not clears(found, entry({proofs_by("int8"): Sums.of_trials(3, 40)}))


def test_an_alternative_that_takes_too_much_memory_or_runs_out_of_it_keeps_no_verdict_from_being_made(
    run: TinyRun, alternatives: Alternatives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.engine.device.free_bytes", lambda _: 1 << 16)
    candidate = looked_at(run, alternatives, run.engine, 0, "int8")
    assert (candidate.checked.alternatives, candidate.checked.samples) == ([], 255)
    monkeypatch.undo()

    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Alternatives, "engine", exhausted)
    candidate = looked_at(run, alternatives, run.engine, 0, "int8")
    assert (candidate.checked.alternatives, candidate.checked.samples) == ([], 255)


# ---- evidence ----------------------------------------------------------------------------------------------------------


def test_a_lie_about_one_alternative_is_a_36th_of_the_evidence() -> None:
    said = {proofs_by("int8"): Sums.of_trials(1_000, 1_000)}
    (alone,) = history.by_alternative(said).values()
    assert history.evidence(said).soft == pytest.approx(alone + math.log(1 / 36), abs=0.01)
    honest = {tokens_by(name): Sums.of_trials(200, 400) for name in ALTERNATIVES}
    assert history.evidence(honest).soft < 0


# ---- on a chain --------------------------------------------------------------------------------------------------------

OLD: dict[str, Any] = {
    "history": ("0.005", "0.01"), "budget": {"alternatives": ["before_1"], "again": "1", "blind": ["sampling", "computation"]},
    "max_per_step": 60, "co_signers": 1,
}  # fmt: skip


@pytest.mark.parametrize("stage", [OLD], indirect=True)
def test_the_version_before_is_found_by_whose_side_its_proofs_are_on(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blind to every single value: a seat goes on with the weights of the step before, another with those of its step. All work is drawn:
    how often a validator's secret draws a seat's is its luck."""
    monkeypatch.setattr("node.validator.alternatives._DRAWN", 1.0)
    honest, cheat = stage.seated(), stage.seated()
    stage.publish()
    service = panel.seat()
    stage.submit(honest, stage.make(honest))
    rounds(service)  # it has the first version now
    newer = stage.variant(1.01)
    stage.publish(newer)
    for sequence in range(12):
        stage.submit(cheat, stage.make(cheat, sequence))
    stage.tiny.engine.load(newer)
    try:
        for sequence in range(12):
            stage.submit(honest, stage.make(honest, sequence))
    finally:
        stage.tiny.engine.load(stage.tiny.model)
    chain = stage.world.chain
    until(lambda: chain.seat(stage.world.run, cheat.address).cases > 0, service, within=120, what="a case")
    kept = [one for one in service._evidence.all() if one.receipt.details.rule == HISTORY]
    assert {one.receipt.details.node for one in kept} == {cheat.address}
    assert {Outcome(one.receipt.outcome) for one in kept} <= {Outcome.SOFT, Outcome.HARD}
    found = next(one for one in kept if one.plan.alternatives)
    assert proofs_by("before_1") in found.receipt.details.sums
    weights = service._bench._versions.store.folder(1)
    assert [row for row in compare(found.receipt.details, replay(found, weights)) if not row["same"]] == []
    with pytest.raises(PreflightError, match="1 steps before"):
        replay(found, newer)
