"""What validators are owed: final judgements that the chain does not contradict, each once, and never less than before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from swarm.anvil import Anvil
from swarm.world import TOKEN

from protocol.chain.view import Submission
from protocol.errors import BadSignature, Malformed, RpcUnavailable
from protocol.identity import Key
from protocol.signing import Domain, Voucher
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome, Receipt
from protocol.voucher import SignedVoucher
from tests.hub.desk import Desk, open_desk, run_settings
from trainer.config import VoucherSettings
from trainer.hub.database import Database
from trainer.hub.service import rebuild
from trainer.hub.vouchers import Ledger


@pytest.fixture
def desk(anvil: Anvil, tmp_path: Any) -> Iterator[Desk]:
    folder = tmp_path / "output/hub"
    folder.mkdir(parents=True)
    with open_desk(anvil, folder) as made:
        yield made


def ledger(desk: Desk, database: Database | None = None, **pay: Any) -> Ledger:
    """The hub's ledger after a restart: one token for each submission, unless told otherwise."""
    settings = VoucherSettings(**{"per_submission": "1", **pay})
    made = Ledger(
        desk.world.chain, desk.world.run, desk.hub._book, desk.store, database or desk.database, desk.key, settings
    )
    while made.turn():
        pass
    return made


def submissions(desk: Desk, count: int) -> list[SubmissionRef]:
    node = desk.node()
    return [desk.commit(node, bytes([sequence]), sequence=sequence) for sequence in range(count)]


def post(desk: Desk, validator: Key, ref: SubmissionRef, outcome: Outcome = Outcome.ACCEPT, **changes: Any) -> None:
    desk.client(validator).post_receipt(desk.receipt(validator, ref, outcome, **changes))


def served(desk: Desk, validator: Key) -> int:
    found = desk.client().voucher(validator.address, desk.key.address)
    return 0 if found is None else found.voucher.total // TOKEN


def settled(desk: Desk, ref: SubmissionRef) -> None:
    """Closes the case on a submission by silence."""
    world = desk.world
    seat, number = world.chain.seat_name(world.run, ref.node), world.chain.submission(world.run, ref).number
    deadline = world.chain.case(world.run, seat, number).deadline
    world.anvil.advance(max(1, deadline - world.chain.block().time))
    world.owner.send(world.chain.settle(world.run, seat, number))


def test_a_judgement_is_paid_once_it_is_final_and_once_only(desk: Desk) -> None:
    validator, (first, second) = desk.validator(), submissions(desk, 2)
    post(desk, validator, first)
    post(desk, validator, first, time=desk.now() + 1, tokens_checked=10**15)
    post(desk, validator, second, Outcome.SOFT)
    ledger(desk)
    assert served(desk, validator) == 0, "cases can still be brought"
    desk.pass_span()
    desk.world.anvil.advance(2)
    desk.hub.learn()
    running = ledger(desk)
    assert served(desk, validator) == 1, (
        "one submission, whatever the receipt claims; a rejection without a case is nothing"
    )
    running.turn()
    assert running.total(validator.address) == TOKEN


def test_who_accepted_what_was_convicted_is_not_paid_and_who_found_it_is(desk: Desk) -> None:
    careless, finder, (ref, good) = desk.validator(), desk.validator(), submissions(desk, 2)
    for submission_id in (ref, good):
        post(desk, careless, submission_id)
    post(desk, finder, ref, Outcome.HARD)
    desk.world.accuse(finder, ref)
    desk.pass_span()
    settled(desk, ref)
    desk.pass_span()
    ledger(desk)
    assert (served(desk, careless), served(desk, finder)) == (1, 1), "for the other submission, and for the conviction"


def test_an_open_case_is_waited_for(desk: Desk) -> None:
    validator, (ref,) = desk.validator(), submissions(desk, 1)
    post(desk, validator, ref, Outcome.HARD)
    desk.world.accuse(validator, ref)
    desk.pass_span()
    desk.pass_span()
    running = ledger(desk)
    assert served(desk, validator) == 0
    settled(desk, ref)
    desk.hub.learn()
    running.turn()
    assert served(desk, validator) == 1


def test_a_receipt_that_came_after_the_window_is_not_paid(desk: Desk) -> None:
    validator, (ref,) = desk.validator(), submissions(desk, 1)
    desk.world.anvil.advance(desk.world.chain.policy(desk.world.run).window + 1)
    desk.hub.learn()
    post(desk, validator, ref, time=0)
    for _ in range(2):
        desk.pass_span()
    ledger(desk)
    assert served(desk, validator) == 0


def test_of_one_step_no_more_is_paid_than_the_cap(desk: Desk) -> None:
    validator, refs = desk.validator(), submissions(desk, 3)
    for ref in refs:
        post(desk, validator, ref)
    desk.pass_span()
    desk.pass_span()
    ledger(desk, submissions_per_step=2)
    assert served(desk, validator) == 2


def test_a_total_never_falls_and_a_rebuilt_hub_owes_the_same(desk: Desk) -> None:
    validator, refs = desk.validator(), submissions(desk, 2)
    for ref in refs:
        post(desk, validator, ref)
    desk.pass_span()
    desk.pass_span()
    before = ledger(desk, per_submission="1.5").total(validator.address)
    assert served(desk, validator) == 3
    ledger(desk, per_submission="0.5")
    assert served(desk, validator) == 3, "a lower rate takes nothing back"
    settings, layout = run_settings(desk.world, desk.folder.parent.parent / "run.toml")
    desk.database.close()
    assert rebuild(settings, layout, desk.spec, desk.key).receipts == 2
    (desk.store.root / "vouchers" / f"{validator.address}.json").unlink()
    database = Database(desk.folder / "hub.sqlite")
    assert ledger(desk, database, per_submission="1.5").total(validator.address) == before
    assert served(desk, validator) == 3
    database.close()


def test_an_endpoint_that_fails_half_way_has_nothing_counted_twice(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    validator, refs = desk.validator(), submissions(desk, 2)
    for ref in refs:
        post(desk, validator, ref)
    running = ledger(desk)
    desk.pass_span()
    desk.pass_span()
    book = desk.hub._book
    real, asked = book.time, []

    def failing(submission: Submission) -> int:
        asked.append(submission)
        if len(asked) == 2:
            raise RpcUnavailable("gone")
        return real(submission)

    monkeypatch.setattr(book, "time", failing)
    with pytest.raises(RpcUnavailable):
        running.turn()
    running.turn()
    assert running.total(validator.address) == 2 * TOKEN


def test_a_restarted_hub_owes_the_same_and_reads_no_receipt_a_second_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    validator, refs = desk.validator(), submissions(desk, 3)
    for ref in refs[:2]:
        post(desk, validator, ref)
    ledger(desk)
    desk.pass_span()
    desk.pass_span()
    post(desk, validator, refs[2])
    before = ledger(desk).total(validator.address)
    read: list[bytes] = []
    original = Receipt.parse
    monkeypatch.setattr(Receipt, "parse", lambda data, *more: read.append(data) or original(data, *more))
    monkeypatch.setattr(desk.store, "arrival", lambda data: read.append(data))
    assert ledger(desk).total(validator.address) == before == 2 * TOKEN
    assert read == []


def test_nobody_is_owed_anything_by_a_name_that_is_none(desk: Desk) -> None:
    assert desk.get(f"vouchers/{Key.generate().address}").status_code == 404
    assert desk.get("vouchers/..%2Freceipts").status_code in (404, 422)
    assert desk.get("vouchers/0x12").status_code == 422


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"total": "2"}, BadSignature), ({"total": 1}, Malformed), ({"total": "-1"}, Malformed), ({"total": "٣"}, Malformed),
        ({"total": "9" * 78}, Malformed), ({"total": "9" * 5000}, Malformed), ({"run": 2}, Malformed),
        ({"validator": "0x" + "1" * 40}, Malformed), ({"signature": "zz" * 65}, Malformed), ({"signature": "00" * 65}, BadSignature),
        ({"signature": "00"}, Malformed), ({"signature": None}, Malformed), ({"more": 1}, Malformed),
    ],
)  # fmt: skip
def test_a_voucher_from_a_hostile_hub_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    validator, trainer, domain = Key.generate().address, Key.generate(), Domain(31337, Key.generate().address)
    told = SignedVoucher.issue(Voucher(1, validator, 1), trainer, domain).as_json()
    assert SignedVoucher.parse(told, domain, 1, validator, trainer.address).voucher.total == 1
    with pytest.raises(error):
        SignedVoucher.parse({**told, **change}, domain, 1, validator, trainer.address)
