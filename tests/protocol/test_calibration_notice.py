"""What a calibration notice may say: strictly read, within what the spec allows, never backwards, and paid for out of one budget."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from protocol import history, runspec
from protocol.calibration_notice import CalibrationNotice, changes, in_force, require_allowed, spec_in_force
from protocol.constants import NOTICE_BYTES_MAX
from protocol.errors import ConfigError, Malformed, Oversized, PreflightError
from protocol.notice_book import NoticeBook
from protocol.runspec import RunSpec

LIMITS = json.loads((Path(runspec.__file__).parent / "calibrations/tiny-qwen3-float32-cpu.json").read_text())["limits"]
NOISE = {"soft": "0.01", "hard": "0.02"}


def spec(recalibration: Mapping[str, str] | None, **verification: Any) -> RunSpec:
    table = json.loads((Path(__file__).parents[1] / "vectors/spec_digests.json").read_text())[0]["spec"]
    of = {name: LIMITS[name] for name in ("computation", "sampling")} | {"noise": NOISE, "history": {}} | verification
    table["verification"] |= of if recalibration is None else of | {"recalibration": recalibration}
    return runspec.from_table(table)


def said(changes: Mapping[str, Any] | None = None, number: int = 1, since: int = 5) -> dict[str, Any]:
    """A notice that repeats the spec's limits but for `changes`, by dotted path."""
    value = json.loads(json.dumps({**LIMITS, "noise": NOISE}))
    for path, new in (changes or {}).items():
        *parents, leaf = path.split(".")
        place = value
        for parent in parents:
            place = place.setdefault(parent, {})
        if new is None:
            del place[leaf]
        else:
            place[leaf] = new
    return value | {"number": number, "since": max(number, since) if since else 0, "calibration": f"{number:064x}"}


def notice(changes: Mapping[str, Any] | None = None, number: int = 1, since: int = 5) -> CalibrationNotice:
    return CalibrationNotice.parse(said(changes, number, since))


# ---- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (said() | {"calibrated": [0, 1]}, "calibrated"),
        (said() | {"history": {"soft": "0.01"}}, "history"),
        (said({"sampling.token_margins": {"soft": "1", "hard": "1"}}), "token_margins"),
        (said({"sampling.token_margin": {"soft": "1", "hard": "0.5"}}), "hard must not be below soft"),
        (said({"sampling.token_margin": {"soft": "-1", "hard": "0.5"}}), "not negative"),
        (said({"sampling.token_margin": {"soft": 1, "hard": "0.5"}}), "token_margin"),
        (said({"computation": None}), "computation is not set"),
        (said(number=0), "number"),
        (said(since=0), "since"),
        (said() | {"since": True}, "since"),
        (said() | {"calibration": "ab"}, "64"),
        (said() | {"noise": None}, "writes out what is left out"),
        (said() | {"number": 6}, "notice 6 cannot come with version 5"),
        ([], "notice"),
    ],
)  # fmt: skip
def test_a_notice_of_another_form_is_refused_by_the_place_that_is_wrong(value: Any, named: str) -> None:
    with pytest.raises(Malformed, match=named):
        CalibrationNotice.parse(value)


def test_an_oversized_notice_is_refused_before_it_is_read() -> None:
    with pytest.raises(Oversized, match="notice"):
        CalibrationNotice.parse(said({"sampling.mismatch_above": "0." + "0" * NOTICE_BYTES_MAX + "1"}))


# ---- what the spec allows ----------------------------------------------------------------------------------------------


def test_a_spec_without_bounds_lets_nobody_replace_its_calibration() -> None:
    with pytest.raises(Malformed, match="lets nobody"):
        require_allowed(spec(None), notice())
    assert in_force(spec(None).verification, notice()) == spec(None).verification


MARGIN = "sampling.token_margin"  # 0.125 and 0.5 in the spec


@pytest.mark.parametrize(
    ("bounds", "changed", "refused"),
    [
        ({}, {MARGIN: {"soft": "0.0625", "hard": "0.5"}}, ""),
        ({}, {MARGIN: {"soft": "0.0624", "hard": "0.5"}}, "token_margin.soft would be 0.0624, and must be within 0.0625 and 0.5"),
        ({}, {MARGIN: {"soft": "0.125", "hard": "0.499"}}, "token_margin.hard would be 0.499, and must be within 0.5 and 2"),
        ({"hard_least": "0.5"}, {MARGIN: {"soft": "0.125", "hard": "0.25"}}, ""),
        ({"hard_least": "0.5"}, {MARGIN: {"soft": "0.125", "hard": "0.249"}}, "token_margin.hard"),
        ({}, {MARGIN: {"soft": "0.5", "hard": "2"}}, ""),
        ({}, {MARGIN: {"soft": "0.5", "hard": "2.1"}}, "token_margin.hard"),
        ({"most": "1", "soft_least": "1"}, {}, ""),
        ({"most": "1"}, {MARGIN: {"soft": "0.125", "hard": "0.51"}}, "token_margin.hard"),
        ({}, {"noise": {"soft": "0.01", "hard": "0.019"}}, "noise.hard"),
        ({}, {"noise": None}, "noise has a limit in the spec, and none there"),
        ({}, {"sampling.mean_logprob_error": None}, "mean_logprob_error has a limit in the spec, and none there"),
        ({}, {"sampling.mismatch_above": "0.001"}, "mismatch_above is 0.01 for as long as the run"),
        ({}, {"sampling.margin_clip": "5"}, "margin_clip"),
        ({"most": "1000"}, {"noise": {"soft": "0.01", "hard": "0.3"}}, "at most 0.05 of the range"),
    ],
)  # fmt: skip
def test_limits_move_only_within_the_bounds_of_the_spec(
    bounds: dict[str, str], changed: dict[str, Any], refused: str
) -> None:
    own = spec(bounds)
    if not refused:
        require_allowed(own, notice(changed))
        return
    with pytest.raises(Malformed, match=refused):
        require_allowed(own, notice(changed))


def test_a_notice_adds_no_quantity_that_the_spec_does_not_limit() -> None:
    own = spec(
        {}, noise=None, history=None, sampling={k: v for k, v in LIMITS["sampling"].items() if k != "chunk_mean_margin"}
    )
    with pytest.raises(Malformed, match="chunk_mean_margin has no limit in the spec, and 1 more"):
        require_allowed(own, notice())
    require_allowed(own, notice({"sampling.chunk_mean_margin": None, "noise": None}))


@pytest.mark.parametrize(
    "bounds", [{"hard_least": "1.1"}, {"soft_least": "0"}, {"most": "0.9"}, {"most": "1e9"}, {"least": "1"}]
)
def test_bounds_that_are_none_are_no_spec(bounds: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="recalibration"):
        spec(bounds)


# ---- what is in force --------------------------------------------------------------------------------------------------


def test_the_limits_of_a_notice_are_in_force_and_nothing_else_changes() -> None:
    own = spec({}, calibrated=[0], uncalibrated=[3])
    new = notice({MARGIN: {"soft": "0.2", "hard": "0.8"}})
    found = spec_in_force(own, new)
    assert changes(own.verification, new) == [f"{MARGIN}: soft 0.125 -> 0.2, hard 0.5 -> 0.8"]
    assert found.verification.calibration == new.calibration
    assert found.verification.sampling.token_margin.hard == "0.8"
    assert found.verification.computation == own.verification.computation
    moved = {"calibration", "computation", "sampling", "noise", "history"}
    assert found.verification.model_dump(exclude=moved) == own.verification.model_dump(exclude=moved)
    assert found.model_dump(exclude={"verification"}) == own.model_dump(exclude={"verification"})


def test_however_many_notices_come_the_budget_of_false_verdicts_is_the_spec_s() -> None:
    """Each begins the sums anew, so each is a test more. The probabilities of all together are the spec's, and are nearly used up."""
    own = spec({}).verification
    assert own.history is not None
    for kind in ("soft", "hard"):
        parts = []
        for number in range(2000):
            budget = in_force(own, notice(number=number) if number else None).history
            assert budget is not None
            parts.append(Decimal(getattr(budget, kind)) / Decimal(getattr(own.history, kind)))
        assert Decimal("0.999") < sum(parts) < 1
    (first, later) = (in_force(own, of).history for of in (notice(number=1), notice(number=9)))
    assert first is not None
    assert later is not None
    assert history.bounds(later).hard > history.bounds(first).hard > history.bounds(own.history).hard
    assert in_force(spec(None).verification, None).history == own.history, "who allows none pays nothing"


# ---- what was seen -----------------------------------------------------------------------------------------------------


@pytest.fixture
def book(tmp_path: Path) -> NoticeBook:
    return NoticeBook(tmp_path / "data" / "calibrations.json")


def test_a_book_tells_what_holds_for_each_version_and_outlives_its_process(book: NoticeBook) -> None:
    first, second = notice(since=3), notice(number=2, since=7)
    for step in range(10):
        book.take(step, None if step < 3 else first if step < 7 else second)
    again = NoticeBook(book._path)
    for of in (book, again):
        assert [of.of(step) for step in (0, 2, 3, 6, 7, 99)] == [None, None, first, first, second, second]
        assert (of.newest, of.last) == (second, 9)
    again.take(5, first)  # an old version comes again
    assert again.last == 9


@pytest.mark.parametrize(
    ("step", "later", "refused"),
    [
        (7, notice(number=2, since=6), "reaches backwards: version 6"),
        (7, notice(number=2, since=3), "reaches backwards: version 4"),
        (7, None, "version 7 says nothing of it"),
        (7, notice(number=1, since=7), "notice 1 of the calibration says something else"),
        (7, notice({MARGIN: {"soft": "0.2", "hard": "0.8"}}, since=5), "says something else"),
        (4, notice(number=2, since=4), "reaches backwards"),
        (9, notice(number=5, since=9), "leaves out numbers: with version 6 there had been 1"),
    ],
)
def test_a_manifest_that_contradicts_an_earlier_one_is_refused(
    book: NoticeBook, step: int, later: CalibrationNotice | None, refused: str
) -> None:
    for before in range(7):
        book.take(before, None if before < 5 else notice(since=5))
    with pytest.raises(Malformed, match=refused):
        book.take(step, later)
    book.take(7, notice(number=2, since=7))
    with pytest.raises(Malformed, match="goes back to notice 1"):
        book.take(8, notice(since=5))


def test_a_damaged_book_is_told_and_not_taken_for_an_empty_one(book: NoticeBook) -> None:
    book.take(1, notice(since=1))
    book._path.write_text(book._path.read_text()[:-9])
    with pytest.raises(PreflightError, match="damaged"):
        NoticeBook(book._path)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((10, None), (12, notice(number=12, since=12))),
        ((15, notice(number=1, since=15)), (20, notice(number=9, since=20))),
        ((10, None), (12, notice(since=5))),
        ((6, notice(since=5)), (7, None)),
        ((6, notice(since=5)), (7, notice(since=7))),
    ],
)
def test_what_contradicts_does_in_whichever_order_it_is_read(tmp_path: Path, one: Any, other: Any) -> None:
    for name, first, second in (("a", one, other), ("b", other, one)):
        read = NoticeBook(tmp_path / name / "calibrations.json")
        read.take(*first)
        with pytest.raises(Malformed) as caught:
            read.take(*second)
        assert caught.value.hint is not None and str(read._path) in caught.value.hint, "what to do stands there"


def test_what_agrees_does_in_whichever_order_it_is_read(tmp_path: Path) -> None:
    said = [(10, None), (12, notice(number=2, since=12)), (15, notice(number=3, since=13))]
    for turn in itertools.permutations(said):
        read = NoticeBook(tmp_path / str(hash(str(turn))) / "calibrations.json")
        for each in turn:
            read.take(*each)


@pytest.mark.parametrize(
    "text",
    ['[[null,"x"]]', "", "[[null,5],[null,3]]", "[[null,true]]", "[1]", '{"a":1}', "[[null,-5]]", "[[null,5.5]]", "[" * 100_000],
)  # fmt: skip
def test_notes_that_are_none_are_refused_with_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibrations.json"
    path.write_text(text)
    with pytest.raises(PreflightError, match="damaged") as caught:
        NoticeBook(path)
    assert caught.value.hint is not None and "remove it" in caught.value.hint
