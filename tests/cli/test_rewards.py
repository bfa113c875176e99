"""`node rewards`: what can be claimed when, and what a day brings at the present rate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
from swarm.world import TOKEN

from node.contributor import earning, submission_log
from node.contributor.commands.rewards import show, tell
from node.contributor.submission_log import SubmissionLog
from protocol.submission import SubmissionRef
from tests.cli.conftest import Contributor
from tests.cli.test_node import submitted

NOW, DAY, WINDOW = 1_790_000_000, 86_400, 3 * 86_400


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SubmissionLog]:
    with closing(SubmissionLog(tmp_path / "submissions.sqlite")) as made:
        yield made


def work(log: SubmissionLog, *ages: int, state: str = submission_log.ACCEPTED, units: int = 1_000) -> None:
    for age in ages:
        id = SubmissionRef(cast(Any, "0x" + "1a" * 20), age, len(state), bytes(32)).submission_id(7)
        log.add(SubmissionRef(cast(Any, "0x" + "1a" * 20), age, len(state), bytes(32)), id, units, NOW - age)
        log.advance(id, state)


def told(**changes: Any) -> dict[str, Any]:
    """What `node status` tells, as far as rewards go by it."""
    maturing = [
        {"at": NOW + 600, "units": 400, "amount": "400000"},
        {"at": NOW + DAY, "units": 100, "amount": "100000"},
    ]
    return {
        "run": 7, "now": NOW, "operator": "0x" + "2b" * 20, "reward": "1000", "ready_units": 50, "pending_units": 500, "held_units": 0,
        "paid_units": 9_000, "units_most": 10**9, "maturing": maturing, "earning": {"state": earning.EARNING, "why": "well"},
        "forecast": None, "next": "node claim",
    } | changes  # fmt: skip


def test_a_day_brings_what_the_last_one_did(log: SubmissionLog) -> None:
    work(log, 2 * DAY, DAY + 1, 20_000, 10_000)
    work(log, 5_000, state=submission_log.STORED)
    work(log, 6_000, state=submission_log.SOFT)
    work(log, 7_000, state=submission_log.LOST)
    found = earning.forecast(log, told(), WINDOW)
    assert found == earning.Forecast(units=3_000, amount="3000000", seconds=DAY, is_capped=False)


def test_a_node_that_began_some_hours_ago_is_told_by_those(log: SubmissionLog) -> None:
    work(log, DAY // 4, 600)
    found = earning.forecast(log, told(), WINDOW)
    assert found == earning.Forecast(units=8_000, amount="8000000", seconds=DAY // 4, is_capped=False)
    capped = earning.forecast(log, told(units_most=3_600), WINDOW)
    assert capped == earning.Forecast(units=1_000, amount="1000000", seconds=DAY // 4, is_capped=True)


@pytest.mark.parametrize(
    "ages, state", [((600, 60), earning.EARNING), ((3 * DAY,), earning.EARNING), ((DAY // 2,), earning.NOT_EARNING), ((), earning.WAITING)]
)  # fmt: skip
def test_nothing_is_foretold_of_too_little_work_or_of_a_node_that_earns_nothing(
    log: SubmissionLog, ages: tuple[int, ...], state: str
) -> None:
    work(log, *ages)
    assert earning.forecast(log, told(earning={"state": state, "why": ""}), WINDOW) is None


def test_what_matures_is_told_with_what_can_be_claimed_by_then(
    log: SubmissionLog, capsys: pytest.CaptureFixture[str]
) -> None:
    work(log, 10_000, DAY + 10_000)
    work(log, 12_000, state=submission_log.SOFT)
    table = told(reward=str(TOKEN // 100), held_units=20)
    table["forecast"] = asdict(cast(Any, earning.forecast(log, table, WINDOW)))
    found = tell(table, log, WINDOW)
    assert [one["claimable_then"] for one in found["maturing"]] == [str(450 * TOKEN // 100), str(550 * TOKEN // 100)]
    assert all(isinstance(row["amount"], str) for row in [*found["days"], *found["maturing"]])
    show(found)
    said = capsys.readouterr().out
    for line in (
        "now        0.5 MUR (50 units) can be claimed",
        "paid       90 MUR (9,000 units) so far",
        "held       0.2 MUR (20 units) wait for open cases",
        "a day      about 10 MUR at the rate of the last 1 d, where nothing is rejected",
        "(in 10 min)  4 MUR (400 units); 4.5 MUR in all by then",
        "10 MUR accepted (1,000 rejected units); the last of it from",
        "next: node claim",
    ):
        assert line in said, said


def test_rewards_of_a_node_in_its_run(contributor: Contributor) -> None:
    contributor.seat()
    contributor.world.publish(0)
    submitted(contributor)
    found = contributor.run("rewards", "--json").json
    assert (found["claimable"], found["pending"]) == (
        {"units": 0, "amount": "0"},
        {"units": 500, "amount": str(5 * TOKEN)},
    )
    assert [one["claimable_then"] for one in found["maturing"]] == [str(5 * TOKEN)]
    assert found["days"][0]["unjudged"] == 500
    said = contributor.run("rewards").out
    assert "a day      nothing to go by: the node does not run" in said
    contributor.world.anvil.advance(found["maturing"][0]["at"] - found["now"] + 1)
    assert contributor.run("rewards", "--json").json["claimable"]["amount"] == str(5 * TOKEN)
    assert contributor.status()["forecast"] is None
