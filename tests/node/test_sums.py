"""Sums over a seat's work: what a judgement of one submission adds to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from swarm.tiny_run import TinyRun

from node.judging import sums
from node.judging.alternatives import sides
from node.judging.candidate import Candidate
from node.judging.judge import details, judge
from node.judging.rules import sampling
from protocol import eprocess, statistics
from protocol.constants import RIVALS, SUM_UNIT
from protocol.eprocess import Sums
from protocol.runspec import Limit
from protocol.sampling import TokenScores
from protocol.verdict import Details

NOISE, MUCH = ("0.0003", "0.0006"), ("0.01", "0.02")


def judged(run: TinyRun, candidate: Candidate) -> Details:
    finding = judge(candidate)
    return details(run.context, candidate.commitment, finding, 0, candidate.checked)


def test_a_receipt_sums_the_drawn_rows_and_no_others(tiny_run: TinyRun) -> None:
    run = tiny_run.with_noise(*MUCH)
    candidate = run.candidate(run.honest(), share=0.4)
    candidate.plan = replace(candidate.plan, examined=((0, 1, 2, 3, 4, 5, 6, 7),))  # looked at, and not drawn
    found = judged(run, candidate)
    assert 0 < len(candidate.rows) < 8
    assert candidate.checked.samples == 0xFF
    expected = []
    for batch in candidate.prefilled(candidate.rows):
        for row, hidden in batch.items():
            expected.append(
                sums.of_completion(sampling.scores(candidate, row, hidden), run.spec.verification.noise, 1.0)
            )
    assert statistics.decode(found.sums) == {
        name: of for name, of in statistics.total(expected).items() if of != Sums()
    }


def test_near_ties_add_to_the_sums(tiny_run: TinyRun) -> None:
    run = tiny_run.with_noise(*MUCH)
    found = [judged(run, run.candidate(run.honest(sequence=at))).sums for at in range(4)]
    assert sum(of["margins_soft"][2] for of in found if "margins_soft" in of) > 0  # a single row may have none


def test_without_noise_in_the_spec_there_are_no_sums(tiny_run: TinyRun) -> None:
    assert judged(tiny_run, tiny_run.candidate(tiny_run.honest())).sums == {}


def test_another_temperature_shows_in_the_sums_and_on_which_side_it_is(tiny_run: TinyRun) -> None:
    own = tiny_run.with_noise(*NOISE)
    cooler = own.spec.sampling.model_copy(update={"temperature": "0.8"})
    spec = own.spec.model_copy(update={"sampling": cooler})
    cheat = replace(own, spec=spec, context=replace(own.context, spec=spec))
    found: dict[bool, list[dict[str, Sums]]] = {True: [], False: []}
    for sequence in range(6):
        for run in (own, cheat):
            candidate = own.candidate(run.honest(sequence=sequence))
            for batch in candidate.prefilled(candidate.rows):
                for row, hidden in batch.items():
                    of_row = sums.of_completion(
                        sampling.scores(candidate, row, hidden), own.spec.verification.noise, 1.0
                    )
                    found[run is own].append(of_row)
    honest, cheated = (statistics.total(found[is_honest]) for is_honest in (True, False))
    assert eprocess.excess(honest[statistics.MARGINS_SOFT]) <= 0
    assert eprocess.excess(cheated[statistics.MARGINS_HARD]) > 20
    sides = cheated[statistics.TEMPERATURE]
    assert sides.total == sides.count > 10 * SUM_UNIT  # always the higher logit


def test_no_side_is_counted_where_honest_rounding_takes_sides() -> None:
    """At the second position the soft noise is wider than an eighth of the temperature; at temperature 0 every mismatch has the lower logit."""
    one, none = np.ones(2), np.zeros(2)
    scores = TokenScores(
        0.01 * one, none, none.astype(np.int64), one, np.full((2, RIVALS), np.inf), np.array([12.0, 15.0])
    )
    noise = Limit(soft="0.01", hard="0.02")
    assert sums.of_completion(scores, noise, 1.0)[statistics.TEMPERATURE] == Sums.of_trials(1, 1)
    assert sums.of_completion(scores, noise, 2.0)[statistics.TEMPERATURE] == Sums.of_trials(2, 2)
    assert sums.of_completion(scores, noise, 0.0)[statistics.TEMPERATURE] == Sums()
    hardly_soft = Limit(soft="0.0001", hard="0.022")  # what a notice may make of it opens no position to a hard verdict
    assert sums.of_completion(scores, hardly_soft, 1.0)[statistics.TEMPERATURE] == Sums.of_trials(1, 1)


def test_a_token_sides_with_the_reference_or_with_the_alternative_where_they_differ() -> None:
    none = np.zeros(6)
    scores = TokenScores(none, none, np.array([1, 1, 1, 1, 1, 1]), none, np.full((6, RIVALS), np.inf), none)
    alternative = np.array([1, 2, 2, 2, 2, 2])
    tokens = np.array([3, 2, 1, 2, 3, 2])  # the first has no say, the fifth sides with neither
    assert sides(scores, tokens, alternative) == Sums.of_trials(3, 4)
