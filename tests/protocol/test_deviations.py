"""The table of deviations without a chain: no money is made of nothing, nothing pays below the printed number, and what pays is said."""

from __future__ import annotations

import itertools
import math
import tomllib
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from protocol.chain.deviations import cheating_pays, deviations, pays_by_bench
from protocol.chain.types import Policy
from protocol.constants import NOBODY
from protocol.shell.policy_warnings import bench_lines, hasty_windows, policy_warnings
from protocol.shell.runfile import PolicyTable
from trainer.presets import run_file

TOKEN = 10**18
PREFILLED, ANSWERS = Fraction(1, 10), 64


def of_preset(name: str) -> Policy:
    table = tomllib.loads(run_file(name))["policy"]
    return PolicyTable.model_validate(table | {"trainer": NOBODY}).policy(NOBODY)


PUBLIC, ALONE = of_preset("intellect2-short"), of_preset("demo")
SINGLE = replace(PUBLIC, co_signers=0, jury_fee=7 * TOKEN, bond_bps=10_000, finder_bps=3333, reward=TOKEN // 7)


def warned(policy: Policy, share: Fraction = PREFILLED) -> list[str]:
    return policy_warnings(policy, share, ANSWERS)


def named(policy: Policy, name: str, validators: int = 5) -> Any:
    return next(each for each in deviations(policy, validators) if each.name == name)


@pytest.mark.parametrize(
    "appeal, vote, poll, named",
    [
        (60, 60, 15.0, []),
        (59, 60, 15.0, ["appeal is 59 s"]),
        (60, 30, 15.0, ["vote is 30 s"]),
        (30, 30, 15.0, ["appeal is 30 s", "vote is 30 s"]),
        (30, 30, 1.0, []),
        (0, 0, 15.0, []),  # verdicts are final at once: nobody appeals
    ],
)
def test_a_window_of_fewer_than_four_looks_at_the_chain_is_warned_of(
    appeal: int, vote: int, poll: float, named: list[str]
) -> None:
    said = hasty_windows(replace(PUBLIC, appeal=appeal, vote=vote), poll)
    assert [text.partition(",")[0] for text in said] == named


@pytest.mark.parametrize("policy", [PUBLIC, SINGLE, ALONE], ids=["public", "single", "alone"])
def test_what_a_deviation_moves_comes_from_somebody(policy: Policy) -> None:
    for validators in range(1, 40):
        for each in deviations(policy, validators):
            for moves in (each.fails, each.succeeds):
                assert sum(move.wei * move.many for move in moves) == 0, each.name
                assert all(move.many > 0 for move in moves), each.name


@pytest.mark.parametrize("policy", [PUBLIC, SINGLE], ids=["public", "single"])
@pytest.mark.parametrize("validators", [3, 4, 5, 6, 7, 8, 15, 16, 254, 255])
def test_nothing_pays_for_as_many_liars_as_a_bench_is_said_to_bear(policy: Policy, validators: int) -> None:
    liars = policy.liars_borne(validators)
    for each in deviations(policy, validators):
        assert each.party == "trainer" or not each.pays(liars), each.name
        if each.party != "trainer" and not each.luck and each.fails and each.name != "copied vote":
            assert each.loses > 0, f"{each.name} costs nothing to try"


@pytest.mark.parametrize("policy", [PUBLIC, SINGLE], ids=["public", "single"])
def test_one_liar_more_than_a_bench_bears_makes_a_bribe_pay_where_jurors_are_even_or_odd(policy: Policy) -> None:
    """So the printed number is no smaller than it has to be."""
    for validators in range(policy.jury, 40):
        assert named(policy, "bribe", validators).needs == policy.liars_borne(validators) + 1
        assert named(policy, "withheld vote", validators).needs == policy.liars_borne(validators) + 1


def test_small_benches_are_warned_of_and_how_many_validators_help() -> None:
    said = warned(PUBLIC)
    assert [line.split(" pays")[0] for line in said] == ["withheld vote", "bribe"]
    for line in said:
        assert "with one liar on a bench of 3 or 4" in line
        assert line.endswith("approve 5 validators or more")
    assert {name: [many for many, _ in found] for name, found in pays_by_bench(PUBLIC, 9).items()} == {
        "withheld vote": [3, 4], "bribe": [3, 4],
    }  # fmt: skip
    framed, *others = warned(replace(PUBLIC, co_signers=0))
    assert framed.startswith("framed validator pays with one liar on a bench of 2:"), "there nobody is left to appeal"
    assert all("on a bench of 2 or 3:" in line for line in others[:2])


def test_final_verdicts_are_warned_of_with_what_they_take() -> None:
    said = warned(ALONE, Fraction(1, 2))
    assert said == [
        "false challenge pays with one liar on any bench: up to 2 MUR (finder_bps of strikes × fee, from each seat in each window)",
        "false accusation pays with one liar on any bench: up to 12 MUR (finder_bps of the penalty, from each seat)",
        "framed validator pays with one liar on any bench: up to 51.95 MUR (finder_bps of a bond for each submission, of each validator that"
        " accepted it (one is counted), less what the conviction costs)",
    ]
    assert "with 2 liars on any bench" in warned(replace(ALONE, co_signers=1))[1]
    assert bench_lines(ALONE) == ["bench     verdicts are final at once, and no validator may lie"]


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"penalty": 0}, "cheating pays with no liar at all: it is worth 2.097152 MUR a submission, and costs nothing"),
        ({"fee": 0}, "junk pays with no liar at all"),
        ({"fee": 10 * TOKEN}, "false challenge of who is away pays with one liar unless 67% of nodes appeal in time: it takes 20 MUR"),
        ({"fee": 10 * TOKEN, "co_signers": 0}, "false challenge of who is away pays with one liar unless 67% of nodes"),
        ({"bond": 5 * TOKEN, "fee": 0}, "false accusation of who is away pays with 2 liars unless 55% of nodes"),
        ({"co_signers": 0}, "false accusation of who is away pays with one liar unless 55% of nodes"),
    ],
)  # fmt: skip
def test_a_policy_that_makes_something_pay_is_warned_of(changes: dict[str, int], expected: str) -> None:
    said = warned(replace(PUBLIC, **changes))  # type: ignore[arg-type]
    assert any(line.startswith(expected) for line in said), said
    assert not any(line.startswith(expected) for line in warned(PUBLIC))


def test_a_penalty_is_too_small_where_few_answers_are_checked() -> None:
    """A cheat in one of 64 answers, found one time in 1,000, risks 60 and the submission for 1/64 of 2.1."""
    seldom = Fraction(1, 1000)
    assert not any(line.startswith("cheating") for line in warned(PUBLIC, seldom))
    small = replace(PUBLIC, penalty=10 * TOKEN)
    assert any(line.startswith("cheating pays with no liar") for line in warned(small, seldom))
    assert not any(line.startswith("cheating") for line in warned(small))


@pytest.mark.parametrize("share", [Fraction(1, 20), Fraction(1, 3), Fraction(9, 10)])
@pytest.mark.parametrize("loss", [1, 500, 4_000, 40_000])
def test_what_a_cheat_expects_is_what_all_ways_to_check_its_answers_give(share: Fraction, loss: int) -> None:
    answers, worth = 4, 4_000
    policy = replace(PUBLIC, reward=4, max_units=1000)
    expected = []
    for false in range(1, answers + 1):
        gains = Fraction(0)
        for checked in itertools.product((True, False), repeat=answers):  # the first `false` answers are false
            chance = math.prod(share if one else 1 - share for one in checked)
            honest = worth * (answers - false) // answers
            gains += chance * (-loss - honest if any(checked[:false]) else worth - honest)
        expected.append(gains)
    assert cheating_pays(policy, loss, share, answers) == (max(expected) > 0)


def test_what_a_loss_and_a_gain_even_out_at_is_a_share() -> None:
    cheating = named(PUBLIC, "cheating")
    assert cheating.even == Fraction(cheating.gains, cheating.gains + cheating.loses)
    found = cheating.even
    assert (1 - found) * cheating.gains == found * cheating.loses
