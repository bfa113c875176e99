"""What follows from a seat's work taken together: who is found, by how much evidence, and whom other validators' lies neither convict nor save."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from swarm.tiny_run import TinyRun

from node.judging import sums
from node.judging.candidate import PrefillPlan
from node.judging.evidence import Evidence
from node.judging.history import CountedReceipt, History
from node.judging.judge import details
from node.judging.replay import compare, replay
from node.validator.attempt import Judged
from node.validator.jury import Opinion, ballot
from node.validator.opinions import Opinions
from protocol import canonical, eprocess, history, statistics
from protocol.chain.types import Case, Role
from protocol.chain.types import Stage as CaseStage
from protocol.constants import SUM_UNIT as UNIT
from protocol.eprocess import Sums
from protocol.errors import HashMismatch
from protocol.identity import Key
from protocol.runspec import HistoryBudget, Limit
from protocol.statistics import MARGINS_HARD, MARGINS_SOFT, TEMPERATURE, SumsByName, proofs_by, tokens_by
from protocol.verdict import HISTORY, Outcome
from tests.node.near_ties import completion
from tests.node.stage import Panel, Stage, rounds, until

BUDGET = HistoryBudget()
NOISE = 0.002
LIMIT = Limit(soft="0.003", hard="0.0064")


def work(noise: float, tokens: int, seed: int) -> SumsByName:
    """What a seat of this logit noise adds with one submission."""
    return sums.of_completion(completion(np.random.default_rng(seed), noise, tokens), LIMIT, 1.0)


def entry(of: SumsByName, *, own: bool = True, number: int = 0) -> CountedReceipt:
    return CountedReceipt(f"{number:064x}", "0x" + "1" * 40, "d" * 64, 2_000, of, own)


def judged(counted: list[CountedReceipt], this: SumsByName) -> Outcome:
    return History(BUDGET, 0, counted).weigh(this).outcome


def gross(tokens: int) -> SumsByName:
    return {
        MARGINS_SOFT: Sums(8 * tokens * UNIT, 64 * tokens * UNIT, UNIT),
        MARGINS_HARD: Sums(8 * tokens * UNIT, 64 * tokens * UNIT, UNIT),
    }


def blameless(tokens: int) -> SumsByName:
    return {name: Sums(0, 0, tokens * UNIT) for name in (MARGINS_SOFT, MARGINS_HARD)}


HONEST = [work(NOISE, 2_000, seed) for seed in range(10)]


@pytest.mark.parametrize(("times", "worst"), [(1.0, Outcome.ACCEPT), (3.0, Outcome.SOFT), (12.0, Outcome.HARD)])
def test_thrice_the_noise_costs_pay_at_most_and_much_more_the_seat(times: float, worst: Outcome) -> None:
    counted: list[CountedReceipt] = []
    found = set()
    for number in range(40):
        this = work(times * NOISE, 2_000, number)
        found.add(judged(counted, this))
        counted.append(entry(this, number=number))
    assert max(found) == worst


def test_liars_among_validators_convict_no_honest_seat() -> None:
    counted = [entry(of) for of in HONEST] + [entry(gross(10**6), own=False)]
    weighed = History(BUDGET, 0, counted).weigh(HONEST[0])
    assert weighed.after.hard > 100 * weighed.bound.hard
    assert weighed.outcome == Outcome.ACCEPT
    assert weighed.clears


def test_a_juror_calls_a_finding_wrong_by_enough_work_that_it_measured_itself_and_by_nothing_else() -> None:
    """Who knows the end of a seat's history, or what liars say of it, only does not find the seat."""

    def clears(counted: list[CountedReceipt], tokens: int = 2_000) -> bool:
        return History(BUDGET, 0, counted).weigh(HONEST[0], tokens).clears

    noisy = [entry(work(2.5 * NOISE, 2_000, seed)) for seed in range(4)]
    silencing = entry(blameless(10**6), own=False)
    assert clears([entry(of) for of in HONEST[1:4]])
    assert not clears([])
    assert not clears([entry(of, own=False) for of in HONEST])
    assert not clears(noisy)
    assert not clears([*noisy, silencing])
    assert not clears([silencing])


def test_accomplices_among_validators_save_no_cheat() -> None:
    cheating = work(12 * NOISE, 2_000, 1)
    alone = [entry(work(12 * NOISE, 2_000, seed)) for seed in range(2, 6)]
    assert judged(alone, cheating) == Outcome.HARD
    assert judged([*alone, entry(blameless(10**6), own=False)], cheating) == Outcome.HARD


def test_what_others_measured_adds_to_what_one_saw_oneself() -> None:
    seen = [work(4 * NOISE, 2_000, seed) for seed in range(12)]
    own, others = [entry(of) for of in seen[1:3]], [entry(of, own=False) for of in seen[3:]]
    assert judged(own, seen[0]) == Outcome.ACCEPT
    assert judged(own + others, seen[0]) == Outcome.SOFT


def test_a_submission_that_speaks_for_its_seat_is_not_rejected_for_what_others_of_it_were() -> None:
    counted = [entry(work(12 * NOISE, 2_000, seed)) for seed in range(5)]
    assert judged(counted, HONEST[0]) == Outcome.ACCEPT
    assert judged(counted, {}) == Outcome.ACCEPT  # nor one that says nothing
    assert judged(counted, work(12 * NOISE, 2_000, 9)) == Outcome.HARD


def test_another_validators_word_cannot_make_a_cheat_s_own_evidence_look_like_a_decline() -> None:
    """One receipt with gross margins outweighs everything: each further submission has less of them, and more of what betrays it."""
    sided = {
        MARGINS_SOFT: Sums(2 * UNIT, 2 * UNIT, UNIT),
        MARGINS_HARD: Sums(UNIT, UNIT, UNIT),
        TEMPERATURE: Sums.of_trials(12, 12),
    }
    counted = [entry(sided) for _ in range(20)]
    assert judged(counted, sided) == Outcome.HARD
    assert judged([*counted, entry(gross(1_000), own=False)], sided) == Outcome.HARD


def test_a_bound_is_the_budget_divided_among_seats_beginnings_and_views() -> None:
    budget = HistoryBudget(soft="0.001", hard="0.00001", seats=500, days=100)
    bounds = history.bounds(budget)
    assert math.exp(bounds.soft) == pytest.approx(500 * 5 * history.VIEWS / 1e-3)
    assert math.exp(bounds.hard) == pytest.approx(500 * 5 * history.VIEWS / 1e-5)
    assert history.begins(250 * 86_400 + 7, budget) == 200 * 86_400


def test_evidence_mixes_statistics_and_takes_the_largest_of_none() -> None:
    sided = {TEMPERATURE: Sums.of_trials(60, 60)}
    assert history.evidence(sided).soft == pytest.approx(
        math.log(49 / 72 + 23 / 72 * math.exp(eprocess.share_either(sided[TEMPERATURE], history.SIDE_SOFT)))
    )
    both = history.combined(sided, blameless(10**6))
    assert both.soft == pytest.approx(history.evidence(sided).soft - math.log(2), abs=1e-6)


def opinion(outcome: Outcome, rule: str, samples: int, *, doubtful: bool = False) -> Opinion:
    details: Any = type("", (), {"outcome": outcome, "rule": rule, "samples": f"{samples:064x}"})
    return Opinion(details, 0, doubtful)


def vote(named: int, *found: Opinion, hard: bool = True) -> tuple[int, int] | None:
    """(false, hard), each a bit for each submission."""
    case: Any = type("", (), {"hard": hard, "samples": named})
    paper = ballot(case, dict(enumerate(found)))
    return None if paper is None else (paper.found_false, paper.found_hard)


@pytest.mark.parametrize(
    ("named", "found", "expected"),
    [
        (0, opinion(Outcome.HARD, HISTORY, 0), (1, 1)),
        (0, opinion(Outcome.SOFT, HISTORY, 0), (1, 0)),  # graver than it finds
        (0, opinion(Outcome.ACCEPT, "", 3), (0, 0)),
        (0, opinion(Outcome.ACCEPT, "", 3, doubtful=True), None),
        (0, opinion(Outcome.HARD, "sampling", 3), (1, 1)),  # a case without rows holds nobody to account
        (3, opinion(Outcome.HARD, HISTORY, 0), (1, 0)),
    ],
)  # fmt: skip
def test_a_juror_finds_sums_for_sums_and_rows_for_rows(
    named: int, found: Opinion, expected: tuple[int, int] | None
) -> None:
    assert vote(named, found) == expected


def test_a_doubtful_juror_leaves_a_soft_case_to_others_where_it_knows_nothing_of_it() -> None:
    doubtful, soft = opinion(Outcome.ACCEPT, "", 3, doubtful=True), opinion(Outcome.SOFT, HISTORY, 0)
    assert vote(0, doubtful, doubtful, hard=False) is None
    assert vote(0, soft, hard=False) == (1, 0)
    assert vote(0, soft, doubtful, opinion(Outcome.ACCEPT, "", 3), hard=False) == (1, 0)


def test_a_juror_that_recounts_slashes_nobody_in_a_class_that_nobody_calibrated(tiny_run: TinyRun) -> None:
    own = tiny_run.with_history("0.002", "0.004", blind=["sampling"])
    budget = own.spec.verification.history
    assert budget is not None
    found = {}
    for hardware in (0, 1):  # the second is not calibrated
        candidate = own.candidate(own.honest(hardware=hardware))
        grossly = History(budget, 0, [entry(gross(200))])
        this = {name: Sums(8 * UNIT, 64 * UNIT, 0) for name in (MARGINS_HARD, MARGINS_SOFT)}
        said = replace(details(own.context, candidate.commitment, None, 0), sums=statistics.encode(this), tokens_checked=1000)  # fmt: skip
        service: Any = SimpleNamespace(
            _recount=SimpleNamespace(of=lambda history, _, again=grossly: again), _bench=SimpleNamespace(context=own.context),
            _c=SimpleNamespace(spec=own.spec),
        )  # fmt: skip
        judged = Judged(candidate.commitment, PrefillPlan(1.0, b"\1" * 32), said, 0, grossly)
        again = Opinions._recounted(service, judged, grossly)
        found[hardware] = vote(0, Opinion(again.details, 0))
    assert found == {0: (1, 1), 1: (1, 0)}


# ---- on a chain ------------------------------------------------------------------------------------------------------


def make_cooler(stage: Stage, temperature: str = "0.8") -> None:
    """From now on what is made is drawn at a lower temperature, told as the run's own, and proved with the run's own weights."""
    honest = stage.context
    sampling = honest.spec.sampling.model_copy(update={"temperature": temperature})
    stage.context = replace(honest, spec=honest.spec.model_copy(update={"sampling": sampling}))
    stage.context.__dict__["spec_digest"] = honest.spec_digest  # cached there


def cases(stage: Stage, node: Key) -> list[Case]:
    chain, run = stage.world.chain, stage.world.run
    return [chain.case(run, node.address, number + 1) for number in range(chain.seat(run, node.address).cases)]


def hard_ones(stage: Stage, node: Key) -> list[Case]:
    return [case for case in cases(stage, node) if case.hard]


@pytest.mark.parametrize(
    "stage", [{"history": ("0.0003", "0.0006"), "max_per_step": 40, "co_signers": 1}], indirect=True
)
def test_a_cooler_temperature_is_convicted_by_its_sums_and_an_honest_seat_beside_it_is_paid(
    stage: Stage, panel: Panel
) -> None:
    honest, cheat = stage.seated(), stage.seated()
    services = [panel.seat() for _ in range(2)]
    stage.publish()
    for sequence in range(6):
        stage.submit(honest, stage.make(honest, sequence))
    make_cooler(stage)
    for sequence in range(16):
        stage.submit(cheat, stage.make(cheat, sequence))
    until(lambda: hard_ones(stage, cheat), *services, within=120, what="an accusation")
    first = hard_ones(stage, cheat)[0]
    assert first.samples == 0
    assert {first.challenger, first.co_signer} == {service._address for service in services}
    kept = [one for service in services for one in service._evidence.all() if one.receipt.details.history]
    assert {one.receipt.details.node for one in kept} == {cheat.address}
    assert {one.receipt.samples for one in kept} == {0}
    found = [one for one in kept if one.receipt.outcome == Outcome.HARD]
    hard = max(found, key=lambda one: len(json.loads((one.folder / "history.json").read_bytes())[1]))
    again = replay(hard, stage.tiny.model)
    assert [row for row in compare(hard.receipt.details, again) if not row["same"]] == []
    rounds(*services)
    stage.world.anvil.advance(services[0]._c.policy.appeal + 1)
    rounds(*services)
    assert stage.world.chain.seat(stage.world.run, cheat.address).role == Role.BANNED
    assert hard_ones(stage, cheat)[0].stage == CaseStage.UPHELD
    assert cases(stage, honest) == []
    table = json.loads((hard.folder / "history.json").read_bytes())
    table[1] = table[1][1:] or [table[1]]  # the first submissions may suffice, of which there is no history yet
    (hard.folder / "history.json").write_bytes(canonical.encode(table))
    with pytest.raises(HashMismatch, match="history"):
        replay(Evidence(hard.folder), stage.tiny.model)


# ---- what a juror looks for --------------------------------------------------------------------------------------------


def juror(said: Any) -> Any:
    """As far as it asks what the challenger has said of a submission."""
    service: Any = SimpleNamespace(
        _receipts=lambda _: {"challenger": SimpleNamespace(details=said)},
        _histories=SimpleNamespace(before=lambda *_: History(BUDGET, 0, [entry(blameless(40), own=False)])),
        _bench=SimpleNamespace(notice=lambda _: None),
    )  # fmt: skip
    service._is_by_sums = lambda submission, case: Opinions._is_by_sums(service, submission, case)
    return service


@pytest.mark.parametrize(("hard", "rule"), [(False, HISTORY), (True, HISTORY), (False, "sampling")])
def test_a_juror_looks_for_the_alternative_that_the_accuser_s_own_receipts_speak_of(hard: bool, rule: str) -> None:
    """Also where the submission in question was the first of which anybody looked for it."""
    sums = {proofs_by("int8"): [130 * UNIT, 130 * UNIT, 156 * UNIT], tokens_by("fp8"): [2 * UNIT, 2 * UNIT, 4 * UNIT]}
    case: Any = SimpleNamespace(hard=hard, samples=0, challenger="challenger")
    submission: Any = SimpleNamespace(id=bytes(32), step=0)
    service = juror(SimpleNamespace(sums=sums, rule=rule))
    found = Opinions._suspected_by(service, submission, case)
    assert found == (("int8",) if rule == HISTORY else ())


@pytest.mark.parametrize(("measured", "by_bits"), [("other bits", True), ("0.5", False)])
def test_only_a_case_about_bits_is_left_to_machines_of_the_build(measured: str, by_bits: bool) -> None:
    case: Any = SimpleNamespace(challenger="challenger")
    assert Opinions._is_by_bits(juror(SimpleNamespace(measured=measured)), bytes(32), case) is by_bits
