"""Who may leave which file at the hub, and what becomes of everything else: the right status, a count, and no trace."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from swarm.processes import wait_until

from protocol.chain.sync import Book
from protocol.chain.view import Submission
from protocol.constants import WRITE_LIFETIME_SECONDS
from protocol.hub.wire import ADDRESS, EXPIRY, NONCE, SIGNATURE, Stored
from protocol.identity import Key
from protocol.submission import SubmissionRef
from tests.clock import VirtualClock
from tests.hub.desk import FILE_BYTES_MAX, GRACE, Desk, some_file
from trainer.hub import hub as hub_module
from trainer.hub.hub import Allowance, Hub, Quota


def test_the_committing_node_gets_a_storage_receipt_signed_by_the_hub(desk: Desk, node: Key) -> None:
    data = some_file()
    ref = desk.commit(node, data)
    path = desk.folder / "mine.parquet"
    path.write_bytes(data)
    stored = desk.client(node).upload(desk.submission(ref), ref.root, path, desk.key.address)
    assert (stored.receipt.run, stored.receipt.submission, stored.receipt.root, stored.receipt.size) == (
        desk.world.run, desk.submission(ref), ref.root, len(data),
    )  # fmt: skip
    assert stored.receipt.time <= desk.now()
    assert desk.client().stored(desk.submission(ref), desk.key.address) == stored
    target = desk.folder / "theirs.parquet"
    assert desk.client().download(ref.root, target, cap=FILE_BYTES_MAX)
    assert target.read_bytes() == data
    assert desk.hub.refused.total() == 0


def test_a_second_upload_is_answered_with_the_same_receipt(desk: Desk, node: Key) -> None:
    data = some_file(FILE_BYTES_MAX)
    ref = desk.commit(node, data)
    first = desk.upload(node, ref, data)
    desk.world.anvil.advance(10 * GRACE)  # also long after the grace time, as after a crash of the node
    desk.hub.learn()
    second = desk.upload(node, ref, data)
    assert first.status_code == second.status_code == 200
    assert first.json() == second.json()


def test_a_file_without_its_upload_is_not_found(desk: Desk, node: Key) -> None:
    ref = desk.commit(node, b"never sent")
    assert desk.client().stored(desk.submission(ref), desk.key.address) is None
    assert not desk.client().download(ref.root, desk.folder / "x", cap=10)


# ---- refused -----------------------------------------------------------------------------------------------------------

Attempt = Callable[[Desk, Key, SubmissionRef, bytes], httpx.Response]


def by_another_seated_node(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    other = Key.generate()
    desk.world.seat_node(Key.generate(), other)
    return desk.upload(other, ref, data)


def by_a_stranger(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    return desk.upload(Key.generate(), ref, data)


def by_the_trainer_itself(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    return desk.upload(desk.key, ref, data)


def by_a_stranger_who_says_to_be_the_node(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    headers = desk.headers(Key.generate(), "PUT", desk.submission(ref).hex(), ref.root)
    return desk.put(f"submissions/{desk.submission(ref).hex()}", data, {**headers, ADDRESS: node.address})


def of_other_bytes(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    return desk.upload(node, ref, data[:-1] + bytes([data[-1] ^ 1]))


def of_fewer_bytes(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    return desk.upload(node, ref, data[:-1])


def of_nothing(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    return desk.upload(node, ref, b"")


def declared_too_large(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    return desk.upload(node, ref, data + bytes(FILE_BYTES_MAX))


def too_large_without_declaring_it(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    def parts() -> Iterator[bytes]:
        yield data
        yield from (bytes(1024) for _ in range(FILE_BYTES_MAX // 1024))

    headers = desk.headers(node, "PUT", desk.submission(ref).hex(), ref.root)
    return desk.put(f"submissions/{desk.submission(ref).hex()}", parts(), headers)


def without_a_commitment(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    return desk.upload(node, replace(ref, sequence=1), data)


def in_a_reorganised_block(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    desk.hub.learn()
    desk.world.anvil.request("anvil_reorg", 1, [])
    desk.hub.learn()
    return desk.upload(node, ref, data)


def too_late(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    committed_at = desk.world.chain.submission(desk.world.run, ref).time
    desk.world.anvil.advance_to(committed_at + GRACE + 1)
    desk.hub.learn()
    return desk.upload(node, ref, data)


def signed_long_ago(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    headers = desk.headers(node, "PUT", desk.submission(ref).hex(), ref.root, now=desk.now() - WRITE_LIFETIME_SECONDS)
    return desk.put(f"submissions/{desk.submission(ref).hex()}", data, headers)


def signed_far_ahead(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    headers = desk.headers(node, "PUT", desk.submission(ref).hex(), ref.root, now=desk.now() + WRITE_LIFETIME_SECONDS)
    return desk.put(f"submissions/{desk.submission(ref).hex()}", data, headers)


def signed_for_another_method(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    return desk.put(
        f"submissions/{desk.submission(ref).hex()}",
        data,
        desk.headers(node, "POST", desk.submission(ref).hex(), ref.root),
    )


def signed_for_another_path(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    other = desk.commit(node, b"another", sequence=1)
    return desk.put(
        f"submissions/{desk.submission(ref).hex()}",
        data,
        desk.headers(node, "PUT", desk.submission(other).hex(), ref.root),
    )


def signed_for_another_run(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    headers = desk.headers(node, "PUT", desk.submission(ref).hex(), ref.root, run=desk.world.run + 1)
    return desk.put(f"submissions/{desk.submission(ref).hex()}", data, headers)


def signed_for_another_body(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    body = hashlib.sha256(b"other").digest()
    return desk.put(
        f"submissions/{desk.submission(ref).hex()}", data, desk.headers(node, "PUT", desk.submission(ref).hex(), body)
    )


def unsigned(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    return desk.put(f"submissions/{desk.submission(ref).hex()}", data, {})


def for_no_possible_submission(desk: Desk, node: Key, ref: SubmissionRef, data: bytes) -> httpx.Response:
    return desk.put("submissions/..%2f..%2fetc", data, desk.headers(node, "PUT", "x", ref.root))


REFUSED: list[tuple[Attempt, int, str]] = [
    (by_another_seated_node, 403, "Refused"),
    (by_a_stranger, 403, "Refused"),
    (by_the_trainer_itself, 403, "Refused"),
    (by_a_stranger_who_says_to_be_the_node, 401, "BadSignature"),
    (of_other_bytes, 422, "HashMismatch"),
    (of_fewer_bytes, 422, "HashMismatch"),
    (of_nothing, 422, "HashMismatch"),
    (declared_too_large, 413, "Oversized"),
    (too_large_without_declaring_it, 413, "Oversized"),
    (without_a_commitment, 404, "Refused"),
    (in_a_reorganised_block, 404, "Refused"),
    (too_late, 403, "Refused"),
    (signed_long_ago, 401, "BadSignature"),
    (signed_far_ahead, 401, "BadSignature"),
    (signed_for_another_method, 401, "BadSignature"),
    (signed_for_another_path, 401, "BadSignature"),
    (signed_for_another_run, 401, "BadSignature"),
    (signed_for_another_body, 401, "BadSignature"),
    (unsigned, 401, "BadSignature"),
]


@pytest.mark.parametrize(("attempt", "status", "counted"), REFUSED, ids=[a.__name__ for a, _, _ in REFUSED])
def test_an_upload_is_refused(desk: Desk, node: Key, attempt: Attempt, status: int, counted: str) -> None:
    data = some_file()
    ref = desk.commit(node, data)
    answer = attempt(desk, node, ref, data)
    assert (answer.status_code, dict(desk.hub.refused)) == (status, {counted: 1}), answer.text
    assert desk.new_files() == []
    assert desk.database.stored(desk.submission(ref)) is None


def test_an_upload_to_no_possible_submission_is_refused(desk: Desk, node: Key) -> None:
    ref = desk.commit(node, b"x")
    assert for_no_possible_submission(desk, node, ref, b"x").status_code in (404, 422)
    assert desk.new_files() == []


def test_after_every_refusal_the_honest_upload_still_works(desk: Desk, node: Key) -> None:
    data = some_file()
    ref = desk.commit(node, data)
    for attempt, _, _ in REFUSED:
        if attempt not in (too_late, in_a_reorganised_block):
            attempt(desk, node, ref, data)
    assert desk.upload(node, ref, data).status_code == 200


def test_no_header_can_be_replaced_by_garbage(desk: Desk, node: Key) -> None:
    ref = desk.commit(node, b"x")
    headers = desk.headers(node, "PUT", desk.submission(ref).hex(), ref.root)
    garbage = ["", "zz", "0x" + "00" * 65, "9" * 4000, "-1", "²", "1_0"]
    tried = 0
    for header in (ADDRESS, NONCE, EXPIRY, SIGNATURE):
        for value in garbage:
            changed: dict[str, Any] = {**headers, header: value.encode("latin-1")}
            assert desk.put(f"submissions/{desk.submission(ref).hex()}", b"x", changed).status_code == 401, (
                header,
                value,
            )
            tried += 1
    assert desk.hub.refused == {"BadSignature": tried}


def test_exactly_the_grace_time_is_not_too_late(desk: Desk, node: Key) -> None:
    data = some_file()
    ref = desk.commit(node, data)
    desk.world.anvil.advance_to(desk.world.chain.submission(desk.world.run, ref).time + GRACE)
    desk.hub.learn()
    assert desk.upload(node, ref, data).status_code == 200


def test_exactly_the_cap_is_not_too_large(desk: Desk, node: Key) -> None:
    data = some_file(FILE_BYTES_MAX)
    assert desk.upload(node, desk.commit(node, data), data).status_code == 200


def test_a_replayed_write_is_refused(desk: Desk, node: Key) -> None:
    """Replayed with what it was signed for: after it failed, say, for a wrong body."""
    data = some_file()
    ref = desk.commit(node, data)
    headers = desk.headers(node, "PUT", desk.submission(ref).hex(), ref.root)
    assert desk.put(f"submissions/{desk.submission(ref).hex()}", b"broken", headers).status_code == 422
    replayed = desk.put(f"submissions/{desk.submission(ref).hex()}", data, headers)
    assert (replayed.status_code, replayed.text) == (409, "this write was sent before")
    assert desk.new_files() == []


def test_a_copied_root_gives_the_copier_nothing_to_upload_or_replace(desk: Desk) -> None:
    """The copier commits to somebody else's root: it may upload the very same bytes as its own, and nothing else."""
    node, copier = desk.nodes(2)
    data = some_file()
    ref = desk.commit(node, data)
    copied = desk.commit(copier, data)
    assert desk.upload(node, ref, data).status_code == 200
    assert desk.upload(copier, copied, b"other bytes").status_code == 422
    assert desk.upload(copier, ref, data).status_code == 403
    assert (desk.store.root / "files" / ref.root.hex()).read_bytes() == data
    assert desk.client().stored(desk.submission(copied), desk.key.address) is None


def test_writes_beyond_the_quota_wait_and_others_do_not(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.hub, "_quota", Quota(writes_per_minute=2, bytes_per_hour=1 << 30))
    greedy, modest = desk.nodes(2)
    files = [some_file(10) for _ in range(4)]
    for sequence, data in enumerate(files[:2]):
        assert desk.upload(greedy, desk.commit(greedy, data, sequence=sequence), data).status_code == 200
    third = desk.commit(greedy, files[2], sequence=2)
    desk.mark()
    assert desk.upload(greedy, third, files[2]).status_code == 429
    assert desk.new_files() == []
    assert desk.hub.refused == {"Refused": 1}
    assert desk.upload(modest, desk.commit(modest, files[3]), files[3]).status_code == 200
    desk.hub._allowances[greedy.address].last -= 60  # a minute passes
    assert desk.upload(greedy, third, files[2]).status_code == 200


def test_a_quota_comes_back_as_time_passes() -> None:
    clock = VirtualClock()
    allowance = Allowance(Quota(writes_per_minute=2, bytes_per_hour=3600), clock)
    assert [allowance.spend(0) for _ in range(3)] == [True, True, False]
    clock.advance(29)
    assert not allowance.spend(0)
    clock.advance(1)
    assert allowance.spend(3600)
    clock.advance(60)
    assert not allowance.spend(61)
    assert allowance.spend(60)
    clock.advance(10 * 3600)
    assert not allowance.spend(3601), "what was not used does not add up"


def test_bytes_beyond_the_quota_wait(desk: Desk, node: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.hub, "_quota", Quota(writes_per_minute=600, bytes_per_hour=1500))
    first, second = some_file(1000), some_file(1000)
    assert desk.upload(node, desk.commit(node, first), first).status_code == 200
    ref = desk.commit(node, second, sequence=1)
    assert desk.upload(node, ref, second).status_code == 429
    desk.hub._allowances[node.address].last -= 1800  # half an hour passes
    assert desk.upload(node, ref, second).status_code == 200


# ---- faults of the hub and of the chain never become the node's ----------------------------------------------------------


def test_a_full_disk_is_the_hubs_trouble_and_passes(desk: Desk, node: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    data = some_file()
    ref = desk.commit(node, data)
    with monkeypatch.context() as patch:
        patch.setattr("trainer.hub.store._SPARE", 1 << 60)
        assert desk.upload(node, ref, data).status_code == 507
    assert desk.new_files() == []
    assert desk.upload(node, ref, data).status_code == 200


@pytest.mark.parametrize("fails", ["receive", "put"])
def test_a_disk_that_fails_while_writing_leaves_nothing_and_passes(
    desk: Desk, node: Key, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    data = some_file()
    ref = desk.commit(node, data)
    syncs: list[object] = []

    def sync(sink: object) -> None:
        syncs.append(sink)
        if len(syncs) == (1 if fails == "receive" else 2):
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("trainer.hub.store._sync", sync)
        assert desk.upload(node, ref, data).status_code == 507
    assert desk.database.stored(desk.submission(ref)) is None
    assert not any(name.startswith(("partial", "stored")) for name in desk.new_files())
    assert desk.upload(node, ref, data).status_code == 200


def test_a_chain_that_fails_in_the_middle_of_a_look_loses_no_commitment(
    desk: Desk, node: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    from protocol.errors import RpcUnavailable

    data = some_file()
    ref = desk.commit(node, data)

    def fail(*_: object) -> object:
        raise RpcUnavailable("reading a block: https://provider.example/KEY: no answer")

    with monkeypatch.context() as patch:
        patch.setattr(desk.world.chain, "block_hash", fail)  # which is looked up when the events have been read
        answer = desk.upload(node, ref, data)
        assert answer.status_code == 503  # to be tried again, not a refusal
        assert "provider.example" not in answer.text  # strangers learn nothing of the hub's endpoints
    assert desk.upload(node, ref, data).status_code == 200


def test_an_upload_while_the_hub_reads_the_chain_waits_for_what_it_reads(
    desk: Desk, node: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower is in the middle of a look: the upload does not begin another beside it."""
    data = some_file()
    ref = desk.commit(node, data)
    polled, go_on = threading.Event(), threading.Event()
    book = desk.hub._book
    original = book.poll

    def poll() -> object:
        if not polled.is_set():
            polled.set()
            assert go_on.wait(10)
        return original()

    monkeypatch.setattr(book, "poll", poll)
    follower = threading.Thread(target=desk.hub.learn)
    follower.start()
    assert polled.wait(10)
    answers: list[httpx.Response] = []
    upload = threading.Thread(target=lambda: answers.append(desk.upload(node, ref, data)))
    upload.start()
    wait_until(desk.hub._looks._asking.locked, deadline=10, what="the upload looks at the chain")
    go_on.set()
    upload.join(10)
    follower.join(10)
    assert answers[0].status_code == 200, answers[0].text


def test_a_look_at_the_chain_counts_for_others_only_when_it_has_ended(
    desk: Desk, node: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked before the follower's look began shares it, and so has to wait for its end."""
    ref = desk.commit(node, b"file")
    book = Book(desk.world.chain, desk.world.run)
    hub = Hub(desk.world.chain, desk.world.run, desk.spec, book, desk.store, desk.database, desk.key)
    polled, go_on, original = threading.Event(), threading.Event(), book.poll

    def poll() -> object:
        polled.set()
        assert go_on.wait(10)
        return original()

    monkeypatch.setattr(book, "poll", poll)

    async def ask() -> Submission:
        await hub._looks._asking.acquire()  # somebody else is looking
        asking = asyncio.create_task(hub.commitment(desk.submission(ref)))
        await asyncio.sleep(0)
        follower = asyncio.create_task(asyncio.to_thread(hub.learn))
        await asyncio.to_thread(polled.wait, 10)
        hub._looks._asking.release()
        await asyncio.sleep(0)
        go_on.set()
        await follower
        return await asking

    assert asyncio.run(ask()).root == ref.root


def test_a_sender_that_goes_away_leaves_nothing_and_may_come_back(desk: Desk, node: Key) -> None:
    data = some_file()
    ref = desk.commit(node, data)

    def half() -> Iterator[bytes]:
        yield data[:500]
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        desk.put(
            f"submissions/{desk.submission(ref).hex()}",
            half(),
            desk.headers(node, "PUT", desk.submission(ref).hex(), ref.root),
        )
    wait_until(lambda: desk.hub.refused["Unavailable"] == 1, deadline=10, what="the hub notices")
    assert desk.new_files() == []
    assert desk.upload(node, ref, data).status_code == 200


def test_a_second_upload_beside_a_slow_first_one_is_told_to_try_again(desk: Desk, node: Key) -> None:
    """Not refused: its own first connection may be dead without the hub's knowing, and refused work is lost."""
    data = some_file()
    ref = desk.commit(node, data)
    go_on = threading.Event()

    def slow() -> Iterator[bytes]:
        yield data[:500]
        assert go_on.wait(10)
        yield data[500:]

    answers: list[httpx.Response] = []
    headers = desk.headers(node, "PUT", desk.submission(ref).hex(), ref.root)
    path = f"submissions/{desk.submission(ref).hex()}"
    first = threading.Thread(target=lambda: answers.append(desk.put(path, slow(), headers)))
    first.start()
    wait_until(lambda: bool(desk.hub._writing), deadline=10, what="the first upload is under way")
    assert desk.upload(node, ref, data).status_code == 503
    go_on.set()
    first.join(10)
    assert answers[0].status_code == 200
    assert desk.upload(node, ref, data).json() == answers[0].json()


def test_an_upload_has_a_deadline(desk: Desk, node: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "UPLOAD_SECONDS_MAX", 0.2)
    data = some_file()
    ref = desk.commit(node, data)
    release = threading.Event()

    def never_ending() -> Iterator[bytes]:
        yield data[:500]
        release.wait(10)
        yield data[500:]

    answers: list[httpx.Response] = []
    headers = desk.headers(node, "PUT", desk.submission(ref).hex(), ref.root)
    sender = threading.Thread(
        target=lambda: answers.append(desk.put(f"submissions/{desk.submission(ref).hex()}", never_ending(), headers))
    )
    sender.start()
    wait_until(lambda: desk.hub.refused["Unavailable"] == 1, deadline=10, what="the deadline passes")
    release.set()
    sender.join(10)
    assert answers[0].status_code == 503
    assert desk.new_files() == []


def test_a_storage_receipt_of_anybody_else_does_not_count(desk: Desk, node: Key) -> None:
    from protocol.errors import BadSignature

    data = some_file()
    ref = desk.commit(node, data)
    answer = desk.upload(node, ref, data).json()
    with pytest.raises(BadSignature):
        Stored.parse(answer, desk.world.chain.domain, node.address)
    with pytest.raises(BadSignature):
        Stored.parse({**answer, "size": 1}, desk.world.chain.domain, desk.key.address)
