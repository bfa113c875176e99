"""How a juror votes on a hard case, by the rows that it names: what a cheat puts at a limit silences nobody, and what is good is named in no conviction."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from swarm.tiny_run import TinyRun

from node.engine import row_attention
from node.engine.proofs import bits
from node.engine.torch_engine import TorchEngine
from node.judging.candidate import Checked
from node.judging.judge import judge
from node.judging.rules import limits
from node.validator.jury import BallotPaper, Opinion, ballot
from protocol import toploc
from protocol.runspec import Limit
from protocol.verdict import Outcome

ACCEPT, SOFT, HARD = Outcome.ACCEPT, Outcome.SOFT, Outcome.HARD


def opinion(outcome: Outcome, samples: int, near: int = 0, *, doubtful: bool = False) -> Opinion:
    details: Any = SimpleNamespace(outcome=outcome, samples=f"{samples:064x}")
    return Opinion(details, near, doubtful)


def case_of(named: int, *, hard: bool = True) -> Any:
    return SimpleNamespace(hard=hard, samples=named)


def vote(named: int, found: Opinion) -> tuple[int, int] | None:
    """(false, hard) of a hard case that names these samples."""
    paper = ballot(case_of(named), {0: found})
    return None if paper is None else (paper.found_false, paper.found_hard)


@pytest.mark.parametrize(
    ("named", "found", "expected"),
    [
        (0b0001, opinion(HARD, 0b0001), (1, 1)),
        (0b0001, opinion(HARD, 0b0111), (1, 1)),  # more of them is no reason
        (0b0111, opinion(HARD, 0b0001, near=0b0111), (1, 1)),  # the others lie at the limit
        (0b0111, opinion(HARD, 0b0001, near=0b0011), (1, 0)),  # one that is named is good: who accepted it may be impeached
        (0b0110, opinion(HARD, 0b0001, near=0b0111), (1, 0)),  # none that is named is false
        (0b0001, opinion(SOFT, 0b0001, near=0b0001), (1, 0)),
        (0b0001, opinion(ACCEPT, 0b1111), (0, 0)),
        (0b0001, opinion(ACCEPT, 0b1111, doubtful=True), None),
        (0, opinion(HARD, 0), (1, 1)),  # of the seat's sums, which name none
        (0, opinion(ACCEPT, 0b1111, doubtful=True), None),
    ],
)  # fmt: skip
def test_a_juror_convicts_by_a_false_row_that_is_named_and_no_good_one(
    named: int, found: Opinion, expected: tuple[int, int] | None
) -> None:
    assert vote(named, found) == expected


def test_a_vote_is_about_each_submission_and_takes_what_it_does_not_know_for_honest() -> None:
    soft = case_of(0, hard=False)
    found = {0: opinion(SOFT, 1), 2: opinion(ACCEPT, 15), 3: opinion(HARD, 1), 5: opinion(ACCEPT, 15, doubtful=True)}
    assert ballot(soft, found) == BallotPaper(0b001001, 0b001000, (0, 2, 3))
    assert ballot(soft, {5: found[5]}) is None
    assert ballot(soft, {}) is None


def test_a_value_is_near_the_hard_limit_from_half_way_on() -> None:
    limit = Limit(soft="0.03", hard="0.12")

    def near(value: float) -> int | None:
        finding = limits.judge("sampling", 2, value, limit, "")
        return None if finding is None else finding.near

    assert [near(value) for value in (0.03, 0.07, 0.08, 0.2, float("nan"))] == [None, 0, 4, 4, 4]
    both = limits.worst([limits.judge("sampling", row, value, limit, "") for row, value in ((0, 0.2), (1, 0.1), (2, 0.05))])  # fmt: skip
    assert both is not None
    assert (both.outcome, both.samples, both.near) == (HARD, 0b001, 0b011)


def test_rows_at_the_hard_limit_silence_no_juror_that_computes_otherwise(tiny_run: TinyRun) -> None:
    """Row 0 has garbage for proofs. Of each other row one logprob is claimed at the hard limit, between what two attention implementations make of
    it: each finds others of them hard."""
    made = tiny_run.honest()
    file, honest = tiny_run.read(made), tiny_run.candidate(made)
    engines = {}
    for way in row_attention.WAYS:
        engines[way] = TorchEngine("float32")
        engines[way].load(tiny_run.model)
        engines[way].adjust(attention=way, threads=1)
    limit = float(tiny_run.spec.verification.sampling.logprob_error.hard)
    rows = []
    for sample in file.samples:
        own = []
        for engine in engines.values():
            hidden = engine.prefill([(sample.prompt.tolist(), sample.completion.tolist())])[0]
            scores = engine.score(hidden, sample.completion, key=honest.key(sample), temperature=1.0)
            own.append(scores.logprobs.astype(np.float64))
        at = int(np.argmax(np.abs(own[0] - own[-1])))
        claimed = sample.logprobs.copy()
        claimed[at] = np.float32((own[0][at] + own[-1][at]) / 2 + limit)
        rows.append(replace(sample, logprobs=claimed))
    random = torch.Generator().manual_seed(0)
    garbage = torch.randn((len(rows[0].completion), tiny_run.engine.hidden_size), generator=random)
    rows[0] = replace(file.samples[0], proofs=tuple(toploc.prove([bits(garbage)])[0]))
    false = tiny_run.rewrite(made, replace(file, samples=tuple(rows)))
    opinions = {}
    for way, engine in engines.items():
        candidate = replace(false, engine=engine, checked=Checked(), sampled={})
        finding = judge(candidate)
        assert finding is not None
        opinions[way] = opinion(finding.outcome, finding.samples, candidate.checked.near)
    named = [int(one.details.samples, 16) for one in opinions.values()]
    assert len(set(named)) > 1, "they name different rows"
    assert {vote(samples, juror) for samples in named for juror in opinions.values()} == {(1, 1)}
