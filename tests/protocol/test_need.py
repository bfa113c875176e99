"""What a hub says that the trainer needs: read strictly, and only from the run's trainer."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import BadSignature, Malformed
from protocol.hub.need import AHEAD_SECONDS, SignedNeed
from protocol.identity import Key
from protocol.signing import Domain, Need

DOMAIN = Domain(31337, "0x" + "42" * 20)  # type: ignore[arg-type]
TRAINER = Key.generate()
NEED = Need(run=7, step=3, last=60, groups=16, ahead=200, ready=5, settled=9, usable=950, until=1_800_000_000)
SAID = SignedNeed.issue(NEED, TRAINER, DOMAIN).as_json()


def parse(value: Any, run: int = 7, trainer: str = TRAINER.address) -> Need:
    return SignedNeed.parse(value, DOMAIN, run, trainer).need


def test_it_is_read_as_it_was_said() -> None:
    assert parse(SAID) == NEED
    assert SignedNeed.parse(SAID, DOMAIN, 7, TRAINER.address).as_json() == SAID


WRONG: list[Any] = [
    None, [], "need", {}, {**SAID, "more": 1}, {name: value for name, value in SAID.items() if name != "ready"},
    {**SAID, "step": True}, {**SAID, "step": "3"}, {**SAID, "step": 3.0}, {**SAID, "step": -1}, {**SAID, "step": 61},
    {**SAID, "groups": 0}, {**SAID, "usable": 0}, {**SAID, "usable": 1001}, {**SAID, "ahead": 0}, {**SAID, "ready": 1 << 32},
    {**SAID, "settled": None}, {**SAID, "until": 1 << 64}, {**SAID, "run": 8}, {**SAID, "signature": SAID["signature"][:-2]},
    {**SAID, "signature": "zz" * 65}, {**SAID, "signature": 7}, {**SAID, "groups": 10**400},
]  # fmt: skip


@pytest.mark.parametrize("value", WRONG, ids=range(len(WRONG)))
def test_anything_else_is_malformed(value: Any) -> None:
    with pytest.raises(Malformed):
        parse(value)


@pytest.mark.parametrize("name", ["step", "last", "groups", "ahead", "ready", "settled", "usable", "until"])
def test_no_number_can_be_changed_on_the_way(name: str) -> None:
    with pytest.raises(BadSignature):
        parse({**SAID, name: SAID[name] + 1})


def test_it_counts_only_from_the_trainer_and_for_this_run() -> None:
    with pytest.raises(BadSignature):
        parse(SAID, trainer=Key.generate().address)
    with pytest.raises(Malformed):
        parse(SAID, run=8)


def test_it_holds_until_then_and_for_no_longer_than_anybody_may_say() -> None:
    statement, until = SignedNeed.issue(NEED, TRAINER, DOMAIN), NEED.until
    assert [statement.holds(now) for now in (until, until - AHEAD_SECONDS)] == [True, True]
    assert [statement.holds(now) for now in (until + 1, until - AHEAD_SECONDS - 1, 0)] == [False, False, False]
