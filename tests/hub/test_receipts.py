"""Receipts and opinions: only seated validators speak, their first word stands, and whoever waits is told."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from swarm.pace import Patience
from swarm.processes import wait_until

from protocol import canonical
from protocol.constants import RECEIPT_BYTES_MAX
from protocol.errors import Unavailable
from protocol.hub.client import HubClient
from protocol.hub.wire import PAGE, Refused, sign_write
from protocol.identity import Key
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome, Receipt
from tests.hub.desk import Desk


@pytest.fixture(scope="module")
def validator(_desk: Desk) -> Key:
    return _desk.validator()


@pytest.fixture
def ref(desk: Desk, node: Key) -> SubmissionRef:
    """A submission nobody has judged."""
    return desk.commit(node, b"rollouts")


def post(desk: Desk, what: str, data: bytes, key: Key, **changes: Any) -> httpx.Response:
    path = f"/v1/runs/{desk.world.run}/{what}"
    signed = {"method": "POST", "path": path, "body": hashlib.sha256(data).digest(), **changes}
    headers = sign_write(key, desk.world.chain.domain, run=desk.world.run, now=desk.now(), **signed)
    return httpx.post(desk.url + path, content=data, headers=headers, timeout=60)


def of(desk: Desk, ref: SubmissionRef) -> list[Receipt]:
    """Receipts of a submission that the hub lists."""
    domain, run = desk.world.chain.domain, desk.world.run
    parsed = [Receipt.parse(data, domain, run) for _, data in desk.client().receipts(0)]
    return [receipt for receipt in parsed if receipt.submission == desk.submission(ref)]


def test_a_seated_validators_receipt_is_listed_as_it_was_signed(desk: Desk, validator: Key, ref: SubmissionRef) -> None:
    receipt = desk.receipt(validator, ref)
    desk.client(validator).post_receipt(receipt)
    assert [found.encode() for found in of(desk, ref)] == [receipt]
    assert (desk.store.root / "receipts" / f"{hashlib.sha256(receipt).hexdigest()}.json").read_bytes() == receipt


def test_the_first_word_of_a_validator_stands(desk: Desk, validator: Key, ref: SubmissionRef) -> None:
    desk.client(validator).post_receipt(desk.receipt(validator, ref, Outcome.SOFT))
    desk.mark()
    desk.client(validator).post_receipt(desk.receipt(validator, ref, Outcome.ACCEPT))
    assert [found.outcome for found in of(desk, ref)] == [Outcome.SOFT]
    assert desk.new_files() == []


def test_the_same_receipt_may_be_posted_again(desk: Desk, validator: Key, ref: SubmissionRef) -> None:
    receipt = desk.receipt(validator, ref)
    for _ in range(2):  # the first answer was lost, say
        desk.client(validator).post_receipt(receipt)
    assert len(of(desk, ref)) == 1
    assert desk.hub.refused.total() == 0


def test_each_validator_has_a_word_of_its_own(desk: Desk, validator: Key, ref: SubmissionRef) -> None:
    other = desk.validator()
    desk.client(validator).post_receipt(desk.receipt(validator, ref, Outcome.ACCEPT))
    desk.client(other).post_receipt(desk.receipt(other, ref, Outcome.HARD))
    assert {found.validator: found.outcome for found in of(desk, ref)} == {
        validator.address: Outcome.ACCEPT,
        other.address: Outcome.HARD,
    }


@pytest.mark.parametrize("end", [Desk.leave, Desk.dismiss], ids=["left", "dismissed"])
def test_a_validator_is_heard_until_its_service_ends_and_not_a_second_longer(
    desk: Desk, node: Key, end: Callable[[Desk, Key], None]
) -> None:
    """It still owes its verdict on what was submitted while it sat."""
    leaving, refs = desk.validator(), [desk.commit(node, bytes([n]), sequence=n) for n in range(2)]
    end(desk, leaving)
    until = desk.world.chain.validator(desk.world.run, leaving.address).until
    desk.world.anvil.advance_to(until - 1)
    desk.hub.learn()
    desk.client(leaving).post_receipt(desk.receipt(leaving, refs[0]))
    desk.world.anvil.advance_to(until)
    desk.hub.learn()
    with pytest.raises(Refused, match="no validator seat"):
        desk.client(leaving).post_receipt(desk.receipt(leaving, refs[1]))
    assert (len(of(desk, refs[0])), len(of(desk, refs[1]))) == (1, 0)


# ---- refused -----------------------------------------------------------------------------------------------------------


def by_a_stranger(desk: Desk, validator: Key, ref: SubmissionRef) -> httpx.Response:
    stranger = Key.generate()
    return post(desk, "receipts", desk.receipt(stranger, ref), stranger)


def by_the_node_itself(desk: Desk, validator: Key, ref: SubmissionRef) -> httpx.Response:
    node = desk.node()
    own = desk.commit(node, b"own work")
    return post(desk, "receipts", desk.receipt(node, own), node)


def by_a_validator_who_left(desk: Desk, validator: Key, ref: SubmissionRef) -> httpx.Response:
    gone = desk.validator()
    desk.leave(gone)
    desk.pass_span()
    return post(desk, "receipts", desk.receipt(gone, ref), gone)


def by_a_validator_who_was_dismissed(desk: Desk, validator: Key, ref: SubmissionRef) -> httpx.Response:
    gone = desk.validator()
    desk.dismiss(gone)
    desk.pass_span()
    return post(desk, "receipts", desk.receipt(gone, ref), gone)


def of_another_validator(desk: Desk, validator: Key, ref: SubmissionRef) -> httpx.Response:
    return post(desk, "receipts", desk.receipt(desk.validator(), ref), validator)


def forged(desk: Desk, validator: Key, ref: SubmissionRef) -> httpx.Response:
    """Signed by somebody else in the validator's name."""
    false = Receipt.issue(desk.details(ref), Key.generate(), desk.world.chain.domain)
    return post(desk, "receipts", replace(false, validator=validator.address).encode(), validator)


def of_another_run(desk: Desk, validator: Key, ref: SubmissionRef) -> httpx.Response:
    return post(desk, "receipts", desk.receipt(validator, ref, run=desk.world.run + 1), validator)


def of_no_commitment(desk: Desk, validator: Key, ref: SubmissionRef) -> httpx.Response:
    return post(desk, "receipts", desk.receipt(validator, replace(ref, sequence=9)), validator)


def no_receipt_at_all(desk: Desk, validator: Key, ref: SubmissionRef) -> httpx.Response:
    return post(desk, "receipts", b"{}", validator)


def deeply_nested(desk: Desk, validator: Key, ref: SubmissionRef) -> httpx.Response:
    return post(desk, "receipts", b"[" * 5_000, validator)


def too_large(desk: Desk, validator: Key, ref: SubmissionRef) -> httpx.Response:
    return post(desk, "receipts", bytes(RECEIPT_BYTES_MAX + 1), validator)


def signed_for_another_path(desk: Desk, validator: Key, ref: SubmissionRef) -> httpx.Response:
    data = desk.receipt(validator, ref)
    headers = sign_write(
        validator, desk.world.chain.domain, run=desk.world.run, method="POST", now=desk.now(),
        path=f"/v1/runs/{desk.world.run}/opinions", body=hashlib.sha256(data).digest(),
    )  # fmt: skip
    return httpx.post(f"{desk.url}/v1/runs/{desk.world.run}/receipts", content=data, headers=headers, timeout=60)


def signed_for_another_body(desk: Desk, validator: Key, ref: SubmissionRef) -> httpx.Response:
    return post(desk, "receipts", desk.receipt(validator, ref), validator, body=bytes(32))


REFUSED: list[tuple[Any, int, str]] = [
    (by_a_stranger, 403, "Refused"),
    (by_the_node_itself, 403, "Refused"),
    (by_a_validator_who_left, 403, "Refused"),
    (by_a_validator_who_was_dismissed, 403, "Refused"),
    (of_another_validator, 403, "Refused"),
    (forged, 401, "BadSignature"),
    (of_another_run, 422, "Malformed"),
    (of_no_commitment, 404, "Refused"),
    (no_receipt_at_all, 422, "Malformed"),
    (deeply_nested, 422, "Malformed"),
    (too_large, 413, "Oversized"),
    (signed_for_another_path, 401, "BadSignature"),
    (signed_for_another_body, 401, "BadSignature"),
]


@pytest.mark.parametrize(("attempt", "status", "counted"), REFUSED, ids=[a.__name__ for a, _, _ in REFUSED])
def test_a_receipt_is_refused(
    desk: Desk, validator: Key, ref: SubmissionRef, attempt: Any, status: int, counted: str
) -> None:
    listed = list(desk.client().receipts(0))
    answer = attempt(desk, validator, ref)
    assert (answer.status_code, dict(desk.hub.refused)) == (status, {counted: 1}), answer.text
    assert list(desk.client().receipts(0)) == listed
    assert desk.new_files() == []
    desk.client(validator).post_receipt(desk.receipt(validator, ref))  # and nothing stands in the honest one's way
    assert len(of(desk, ref)) == 1


def test_a_replayed_receipt_is_refused(desk: Desk, validator: Key, ref: SubmissionRef) -> None:
    path = f"/v1/runs/{desk.world.run}/receipts"
    data = desk.receipt(validator, ref)
    headers = sign_write(
        validator, desk.world.chain.domain, run=desk.world.run, method="POST", path=path,
        body=hashlib.sha256(data).digest(), now=desk.now(),
    )  # fmt: skip
    sent = [httpx.post(desk.url + path, content=data, headers=headers, timeout=60).status_code for _ in range(2)]
    assert sent == [204, 409]


# ---- opinions ----------------------------------------------------------------------------------------------------------


def test_a_validator_can_ask_for_an_opinion_and_asking_twice_changes_nothing(
    desk: Desk, validator: Key, ref: SubmissionRef
) -> None:
    for _ in range(2):
        desk.client(validator).ask_opinion(desk.submission(ref))
    assert [submission for _, submission in desk.client().opinions(0)].count(desk.submission(ref)) == 1


def test_a_validator_that_asks_about_everything_and_says_nothing_is_stopped(
    desk: Desk, node: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request costs all others a judgement in full, before what they had to judge."""
    monkeypatch.setattr("trainer.hub.hub.OPINIONS_OPEN_MAX", 2)
    idle, other = desk.validator(), desk.validator()
    first, second, third = (desk.commit(node, f"rollouts {i}".encode(), sequence=i) for i in range(3))
    for ref in (first, second):
        desk.client(idle).ask_opinion(desk.submission(ref))
    with pytest.raises(Refused, match="2 submissions without a receipt of its own") as caught:
        desk.client(idle).ask_opinion(desk.submission(third))
    assert caught.value.status == 409
    desk.client(other).ask_opinion(desk.submission(third))
    desk.client(idle).post_receipt(desk.receipt(idle, first, Outcome.HARD))
    desk.client(idle).ask_opinion(desk.submission(third))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"submission":3}',
        b'{"submission":"00"}',
        b'{"more":1,"submission":"' + b"0" * 64 + b'"}',
        bytes(300),
    ],
)
def test_a_malformed_request_for_an_opinion_is_refused(desk: Desk, validator: Key, body: bytes) -> None:
    before = list(desk.client().opinions(0))
    assert post(desk, "opinions", body, validator).status_code in (413, 422)
    assert list(desk.client().opinions(0)) == before


def test_an_opinion_on_what_nobody_committed_to_is_refused(desk: Desk, validator: Key) -> None:
    body = canonical.encode({"submission": "ab" * 32})
    assert post(desk, "opinions", body, validator).status_code == 404


def test_nobody_but_validators_can_ask_for_opinions(desk: Desk, node: Key, ref: SubmissionRef) -> None:
    with pytest.raises(Refused, match="no validator seat"):
        desk.client(node).ask_opinion(desk.submission(ref))


# ---- listing and waiting -------------------------------------------------------------------------------------------------


def test_listings_go_on_after_a_cursor_page_by_page(desk: Desk) -> None:
    """Straight into the database: more than a page of receipts would take thousands of signatures."""
    start = max((cursor for cursor, _ in desk.client().receipts(0)), default=0)
    values = [canonical.encode({"n": n}) for n in range(2 * PAGE + 3)]
    for n, value in enumerate(values):
        desk.database.add_receipt(n.to_bytes(32, "big"), "0x", value, 1)
    found = list(desk.client().receipts(start))
    assert [data for _, data in found] == values
    cursors = [cursor for cursor, _ in found]
    assert cursors == sorted(set(cursors))
    middle = cursors[PAGE]
    assert [data for _, data in desk.client().receipts(middle)] == values[PAGE + 1 :]
    assert len(desk.get("receipts", after=start).json()["entries"]) == PAGE


def waiting(desk: Desk, action: Any) -> tuple[threading.Thread, list[Any]]:
    """Runs `action` in a thread that is known to wait at the hub when this returns."""
    found: list[Any] = []
    waiters = len(desk.hub.bells)
    thread = threading.Thread(target=lambda: found.append(action()))
    thread.start()
    wait_until(lambda: len(desk.hub.bells) > waiters, deadline=10, what="it waits")
    return thread, found


def newest(client: HubClient) -> int:
    return max((cursor for cursor, _ in client.receipts(0)), default=0)


def test_a_waiting_reader_is_answered_as_soon_as_a_receipt_arrives(
    desk: Desk, validator: Key, ref: SubmissionRef
) -> None:
    client = desk.client()
    after = newest(client)
    thread, found = waiting(desk, lambda: list(client.receipts(after, wait=20)))
    desk.client(validator).post_receipt(desk.receipt(validator, ref))
    thread.join(10)
    assert not thread.is_alive()
    assert [Receipt.parse(data, desk.world.chain.domain, desk.world.run).submission for _, data in found[0]] == [
        desk.submission(ref)
    ]


def test_a_waiting_reader_is_answered_as_soon_as_the_file_arrives(desk: Desk, node: Key) -> None:
    ref = desk.commit(node, b"late")
    url = f"{desk.url}/v1/runs/{desk.world.run}/files/{ref.root.hex()}?wait=20"
    thread, found = waiting(desk, lambda: httpx.get(url, timeout=30).content)
    desk.upload(node, ref, b"late")
    thread.join(10)
    assert found == [b"late"]


def test_a_waiting_reader_is_answered_with_nothing_when_its_time_is_up(desk: Desk) -> None:
    client = desk.client()
    started = time.monotonic()
    assert list(client.receipts(newest(client), wait=1)) == []
    assert time.monotonic() - started > 0.9


def test_who_asks_for_what_is_there_does_not_wait(desk: Desk, validator: Key, ref: SubmissionRef) -> None:
    desk.client(validator).post_receipt(desk.receipt(validator, ref))
    patience = Patience(10)
    assert list(desk.client().receipts(newest(desk.client()) - 1, wait=20))
    assert not patience.ended()


def test_many_waiting_readers_keep_nobody_from_writing(desk: Desk, validator: Key, ref: SubmissionRef) -> None:
    after = newest(desk.client())
    waiters = [waiting(desk, lambda: list(desk.client().receipts(after, wait=20))) for _ in range(20)]
    desk.client(validator).post_receipt(desk.receipt(validator, ref))
    for thread, found in waiters:
        thread.join(10)
        assert len(found[0]) == 1


def test_a_client_of_a_dead_hub_gets_unavailable() -> None:
    from protocol.signing import Domain

    domain = Domain(1, Key.generate().address)
    with pytest.raises(Unavailable):
        list(HubClient("http://127.0.0.1:9", 1, domain, timeout=1).receipts(0))
