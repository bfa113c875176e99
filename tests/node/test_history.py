"""What receipts of a whole run say of each seat together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.validator.history import SeatHistory, by_seat
from protocol.chain.sync import Book
from protocol.constants import SUM_UNIT
from protocol.eprocess import Sums
from protocol.identity import Key
from protocol.statistics import MARGINS_HARD, MARGINS_SOFT, TEMPERATURE
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
        receipts.append(again(stage, receipt, other, sums=GROSS, tokens_checked=receipt.details.tokens_checked - 1))
        receipts.append(again(stage, receipt, Key.generate(), sums=GROSS, tokens_checked=10**6))  # of a stranger
    book = Book(stage.world.chain, stage.world.run)
    book.poll()
    found = by_seat(receipts, book)
    assert list(found) == [second.address, first.address]  # the worst first
    assert found[first.address].submissions == 2
    assert found[first.address].sums == {MARGINS_SOFT: Sums(0, 0, 6 * SUM_UNIT)}
    assert found[first.address].evidence[MARGINS_SOFT] < 0
    assert found[second.address].evidence[MARGINS_SOFT] > 30
    assert found[second.address].evidence[TEMPERATURE] > 15
    assert (found[second.address].higher, found[second.address].mismatches) == (40, 40)


def test_a_seat_without_sums_is_no_evidence() -> None:
    assert SeatHistory().evidence == {
        MARGINS_SOFT: pytest.approx(0),
        MARGINS_HARD: pytest.approx(0),
        TEMPERATURE: pytest.approx(0),
    }
