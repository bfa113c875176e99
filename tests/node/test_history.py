"""What receipts of a whole run say of each seat together."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from node.validator.history import Histories, SeatHistory, by_seat
from protocol.chain.sync import Book
from protocol.constants import SUM_UNIT
from protocol.eprocess import Sums
from protocol.identity import Key
from protocol.runspec import HistoryBudget
from protocol.statistics import MARGINS_SOFT, TEMPERATURE
from protocol.verdict import Receipt
from tests.node.stage import Panel, Stage, rounds

GROSS = {
    MARGINS_SOFT: [800 * SUM_UNIT, 6400 * SUM_UNIT, 5 * SUM_UNIT],
    TEMPERATURE: [40 * SUM_UNIT, 40 * SUM_UNIT, 40 * SUM_UNIT],
}


def again(stage: Stage, receipt: Receipt, key: Key, **changes: object) -> Receipt:
    """The same said otherwise, and signed."""
    return Receipt.issue(replace(receipt.details, **changes), key, stage.world.chain.domain)  # type: ignore[arg-type]


def test_sums_add_up_by_seat_and_one_receipt_counts_of_each_submission(stage: Stage, panel: Panel) -> None:
    first, second = stage.seated(), stage.seated()
    validators = [panel.seat() for _ in range(2)]
    key, other = (service._c.key for service in validators)
    for node in (first, first, second):
        stage.publish()
        stage.submit(node, stage.make(node))
    rounds(*validators)
    own = {receipt.submission: receipt for receipt in panel.all_receipts()}.values()
    assert len(own) == 3
    honest = {MARGINS_SOFT: [0, 0, 3 * SUM_UNIT]}
    receipts = []
    for receipt in own:
        said = GROSS if receipt.details.node == second.address else honest
        receipts.append(again(stage, receipt, key, sums=said))
        receipts.append(
            again(stage, receipt, other, sums=GROSS, tokens_checked=receipt.details.units + 1)
        )  # of more than there are
        receipts.append(again(stage, receipt, Key.generate(), sums=GROSS))  # of a stranger
    book = Book(stage.world.chain, stage.world.run)
    book.poll()
    found = by_seat(receipts, book)
    assert list(found) == [second.address, first.address]  # the worst first
    assert found[first.address].submissions == 2
    assert found[first.address].sums == {MARGINS_SOFT: Sums(0, 0, 6 * SUM_UNIT)}
    assert found[first.address].evidence.soft < 0
    assert found[second.address].evidence.soft > 30
    assert found[second.address].evidence.hard > 5  # by the sides alone
    assert by_seat(receipts, book, stage.world.chain.block().time + 1) == {}
    assert (found[second.address].higher, found[second.address].mismatches) == (40, 40)


def test_a_seat_without_sums_is_no_evidence() -> None:
    assert (SeatHistory().evidence.soft, SeatHistory().evidence.hard) == (pytest.approx(0), pytest.approx(0))


def test_what_counts_of_a_submission_is_read_again_when_somebody_has_spoken_on_it(stage: Stage, panel: Panel) -> None:
    """A history costs each submission once; a validator's own word goes before others'; nothing after the submission counts, nor anything before the
    sums began."""
    node, service, other = stage.seated(), panel.seat(), Key.generate()
    stage.publish()
    made = [stage.submit(node, stage.make(node, sequence)) for sequence in range(3)]
    rounds(service)
    own = service._c.key
    judged = {receipt.submission: receipt for receipt in panel.all_receipts()}
    said = {made[0]: again(stage, judged[made[0]], other, sums=GROSS)}
    asked: list[bytes] = []

    def receipts(submission: bytes) -> dict[str, Receipt]:
        asked.append(submission)
        return {other.address: said[submission]} if submission in said else {}

    book = service._book
    budget = HistoryBudget(days=1)
    verification = stage.tiny.spec.verification.model_copy(update={"history": budget})
    histories = Histories(
        book,
        verification,
        own.address,
        receipts,
        lambda submission: judged.get(submission) if submission == made[1] else None,
    )
    third = book.submission(made[2])
    assert third is not None
    for _ in range(3):
        history = histories.before(third)
        assert [(one.submission, one.own) for one in history.counted] == [(made[0].hex(), False), (made[1].hex(), True)]
    assert asked == [made[0]]  # of the other there is an own word
    said.clear()
    histories.heard(made[0])
    assert [one.submission for one in histories.before(third).counted] == [made[1].hex()]
    late = replace(third, time=(book.time(third) // 86_400 + 1) * 86_400)
    assert histories.before(late).counted == []
    times: list[bytes] = []
    many = [replace(third, id=bytes([i]), time=i) for i in range(200)]
    stand_in: Any = SimpleNamespace(
        time=lambda of: times.append(of.id) or (10**9 if of is third else 86_400 * 11_574 - 100 + of.time),
        seat=lambda node: node, block_before=lambda time: -1, submissions_of=lambda seat, place, after: many,
    )  # fmt: skip
    Histories(stand_in, verification, own.address, lambda submission: {}, lambda submission: None).before(third)
    assert len(times) < 12
