"""The bench of growth: that it would see growth, and that the run which goes on under it is one that a book can follow."""

from __future__ import annotations

import pytest
from benches import growth
from benches.growth import _FLAT, SIZES, _spec, exponent
from benches.life import Life, Served
from benches.recorded import BATCH, RUN, RUNS

from node.validator import service
from protocol.chain import Chain
from protocol.chain.sync import Book
from protocol.identity import Key


def test_work_that_looks_at_everything_is_seen_and_work_that_does_not_is_not() -> None:
    assert exponent({size: 3e-6 * size for size in SIZES}) == pytest.approx(1)
    assert exponent({size: 0.02 + 1e-6 * size for size in SIZES}) > _FLAT
    assert exponent({size: 0.02 + 0.001 * at for at, size in enumerate(SIZES)}) < _FLAT


@pytest.mark.parametrize("name", growth._PARTS)
def test_every_role_takes_its_turns_in_a_run_that_goes_on(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each asserts in its turns that they do what is measured; what stands in for the judging changes whenever that does."""
    monkeypatch.setattr(service, "Bench", service.Bench)  # the bench puts something in its place
    monkeypatch.setattr(growth, "_TURNS", 1)
    monkeypatch.setattr(growth, "_WARM", 0)
    assert all(growth.measure(growth._PARTS[name], [4 * BATCH, 8 * BATCH]).values())


def test_a_life_goes_on_from_block_to_block() -> None:
    validators = [Key.generate() for _ in range(2)]
    life = Life(2 * BATCH, validators, _spec())
    with Served(life) as served:
        book = Book(Chain(served.url, RUNS), RUN)
        book.poll()
        assert book.ever_validated() == {key.address for key in validators}
        for _ in range(3):
            life.go_on()
            book.poll()
        assert book.count_submissions() == life.events == 5 * BATCH
        assert all(book.submission(life.ref(number).submission_id(RUN)) is not None for number in range(life.events))
        assert len(life.receipts) == 3 * BATCH
        book.close()
