"""Whether validators checked what they drew can be seen by anyone, from the receipts at the hub and the chain."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import count

import pytest
from starlette.responses import Response

from node.judging.candidate import PrefillPlan
from node.validator.audit import Audited, audit, read_receipts
from node.validator.service import ValidatorService
from protocol.chain.sync import Book
from protocol.errors import Oversized
from protocol.identity import Key
from protocol.runspec import RunSpec
from protocol.verdict import Receipt
from tests.node.stage import Fault, Panel, Stage, rounds


def sampled(stage: Stage) -> RunSpec:
    """The run's spec, but of every submission only a part has to be checked."""
    verification = stage.tiny.spec.verification.model_copy(update={"newcomer_submissions": 0, "prefill_share": "0.9"})
    return stage.tiny.spec.model_copy(update={"verification": verification})


def audited(stage: Stage, spec: RunSpec, receipts: list[Receipt] | None = None) -> dict[str, Audited]:
    book = Book(stage.world.chain, stage.world.run)
    book.poll()
    found = read_receipts(stage.connection(Key.generate()), 100) if receipts is None else receipts
    return audit(found, book, spec, stage.world.chain.policy(stage.world.run).window)


def judged(stage: Stage, node: Key, service: ValidatorService) -> Receipt:
    """One more honest work, of the next step, as the validator finds it."""
    stage.publish()
    submission = stage.submit(node, stage.make(node))
    rounds(service)
    (receipt,) = [r for r in Panel(stage).all_receipts() if r.submission == submission]
    return receipt


def next_period(stage: Stage) -> None:
    stage.world.anvil.advance(stage.world.chain.policy(stage.world.run).window)


def test_a_draw_can_be_checked_when_its_secret_is_out(stage: Stage, panel: Panel) -> None:
    node, service = stage.seated(), panel.seat()
    judged(stage, node, service)
    assert audited(stage, stage.tiny.spec) == {service._address: Audited(receipts=1, kept=1)}, (
        "nothing was left to a draw"
    )
    assert audited(stage, sampled(stage)) == {service._address: Audited(receipts=1, waiting=1)}
    next_period(stage)
    judged(stage, node, service)
    assert audited(stage, sampled(stage)) == {service._address: Audited(receipts=2, kept=1, waiting=1)}


@pytest.mark.parametrize("drawn", [False, True], ids=["a newcomer's", "drawn"])
def test_who_looks_at_less_than_it_should_is_named(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch, drawn: bool
) -> None:
    node, service = stage.seated(), panel.seat()
    monkeypatch.setattr(PrefillPlan, "choose", lambda self, submission, block_hash, samples: [samples - 1])
    lazy = judged(stage, node, service)
    next_period(stage)
    spec = sampled(stage) if drawn else stage.tiny.spec
    (found,) = audited(stage, spec, [lazy, judged(stage, node, service)]).values()
    expected = [lazy.details.submission] if drawn else [r.details.submission for r in Panel(stage).all_receipts()]
    assert [broken.submission for broken in found.broken] == expected
    assert "drawn and not checked" in found.broken[0].reason


def test_a_secret_of_ones_choice_breaks_with_what_was_committed_to(stage: Stage, panel: Panel) -> None:
    node, service = stage.seated(), panel.seat()
    judged(stage, node, service)
    next_period(stage)
    service._bench._master = os.urandom(32)
    chosen = judged(stage, node, service)
    next_period(stage)
    judged(stage, node, service)
    (found,) = audited(stage, sampled(stage)).values()
    assert [broken.submission for broken in found.broken] == [chosen.details.submission]
    assert "does not commit to" in found.broken[0].reason
    assert (found.kept, found.waiting) == (1, 2), "the first one's secret is never revealed"


def test_strangers_and_submissions_that_nobody_committed_to_are_told_apart(stage: Stage, panel: Panel) -> None:
    node, service = stage.seated(), panel.seat()
    told, domain = judged(stage, node, service).details, stage.world.chain.domain
    stranger = Receipt.issue(told, Key.generate(), domain)
    assert audited(stage, stage.tiny.spec, [stranger]) == {}
    ref = replace(told.ref, sequence=9)
    nowhere = replace(told, sequence=9, submission=ref.submission_id(stage.world.run).hex())
    found = audited(stage, stage.tiny.spec, [Receipt.issue(nowhere, service._c.key, domain)])
    assert found == {service._address: Audited(receipts=1, unknown=1)}


def test_what_is_no_receipt_is_skipped_and_a_listing_without_end_is_left(stage: Stage, panel: Panel) -> None:
    node, service = stage.seated(), panel.seat()
    real = judged(stage, node, service)
    connection = stage.connection(Key.generate())

    def listing(last: int) -> Fault:
        """One entry an answer, the third of them a receipt."""
        numbers = count(1)

        def answer(method: str, path: str) -> Response:
            number = next(numbers)
            value = json.loads(real.encode()) if number == 3 else {"details": number}
            return Response(json.dumps({"entries": [{"id": number, "value": value}] if number <= last else []}))

        return answer

    stage.hub.fault = listing(5)
    assert read_receipts(connection, 100) == [real]
    stage.hub.fault = listing(10_000)
    with pytest.raises(Oversized, match="more than the 20 receipts"):
        read_receipts(connection, 20)
