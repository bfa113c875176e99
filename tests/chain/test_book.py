"""The book of the chain, against real contracts: what it answers, how it follows, where it stops and starts again."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from swarm.anvil import Anvil
from swarm.world import DAY, World

from protocol.chain import standing
from protocol.chain.events import Appealed, Claimed, Joined, Published, Submitted, Voted
from protocol.chain.sync import Book
from protocol.chain.types import Stage
from protocol.chain.view import Submission, View
from protocol.errors import ConfigError, IntegrityError, LockHeld, WrongChain
from protocol.identity import Key
from protocol.signing import Join
from protocol.submission import SubmissionRef
from tests.chain.committed import submission_at, submissions_of


def committing(world: World, hardware: int = 0) -> Key:
    node = Key.generate()
    world.seat_node(Key.generate(), node, hardware=hardware)
    world.publish(0)
    return node


def submitting(world: World, node: Key, *sequences: int) -> list[SubmissionRef]:
    return [world.submit(node, 0, sequence, bytes([sequence + 1]) * 32) for sequence in sequences]


def sequences(submissions: list[Submission]) -> list[int]:
    return [submission.sequence for submission in submissions]


def test_it_holds_every_event_of_its_run_as_receipts_are_decoded(world: World, tmp_path: Path) -> None:
    """Nearly every kind of event, from a life of a run."""
    operator, node, validator, juror = (Key.generate() for _ in range(4))
    world.seat_node(operator, node, hardware=3)
    for one in (validator, juror):
        world.seat_validator(one)
    world.publish(0)
    refs = submitting(world, node, 0, 1, 2)
    world.sender(validator).send(world.chain.challenge(world.run, refs[:2], b"\x0e" * 32))
    world.sender(node).send(world.chain.appeal(world.run, node.address, 1))
    world.sender(juror).send(world.chain.vote(world.run, node.address, 1, 0, 0, bytes(32)))
    world.anvil.advance(DAY + DAY // 5 + 1)
    world.sender(operator).send(world.chain.claim(world.run, node.address))
    book = Book(world.chain, world.run, tmp_path / "chain.sqlite")
    head = book.poll()
    changes = book.changes_since(0)
    told = {(e.block, e.log_index): e for e in changes.events}
    expected = [e for e in world.logs(0, head.number) if getattr(e.data, "run", None) == world.run]
    for event in expected:
        if isinstance(event.data, Submitted):
            s = book.submission(
                SubmissionRef(event.data.node, event.data.step, event.data.sequence, event.data.root).submission_id(
                    world.run
                )
            )
            assert s is not None
            assert (s.ref, s.units, s.place, s.block_hash, s.transaction) == (
                SubmissionRef(event.data.node, event.data.step, event.data.sequence, event.data.root), event.data.units,
                (event.block, event.log_index), event.block_hash, event.transaction,
            )  # fmt: skip
        elif type(event.data).__name__ != "RunCreated":  # its policy is a struct
            assert told[event.block, event.log_index] == event
    assert len(changes.submissions) + len(changes.events) == len(expected)
    for kind in (Appealed, Voted, Claimed, Published):
        assert book.events(kind)


def test_each_change_is_told_once_and_in_order(world: World) -> None:
    book = Book(world.chain, world.run)
    book.poll()
    cursor = book.changes_since(0).cursor
    node = committing(world)
    submitting(world, node, 0, 1, 2)
    book.poll()
    changes = book.changes_since(cursor)
    assert sequences(changes.submissions) == [0, 1, 2]
    assert not changes.more
    assert book.poll().hash == world.chain.block().hash
    after = book.changes_since(changes.cursor)
    assert (after.submissions, after.events, after.cursor) == ([], [], changes.cursor)


def test_pages_of_changes_hold_together(world: World) -> None:
    book = Book(world.chain, world.run)
    node = committing(world)
    submitting(world, node, *range(5))
    book.poll()
    whole = book.changes_since(0)
    cursor, submissions, events = 0, [], []
    while (page := book.changes_since(cursor, most=2)).more or page.submissions or page.events:
        submissions += page.submissions
        events += page.events
        cursor = page.cursor
    assert (submissions, events, cursor) == (whole.submissions, whole.events, whole.cursor)


def test_it_answers_about_submissions_as_things_stood_when_they_were_made(world: World) -> None:
    node, other = committing(world, hardware=3), Key.generate()
    world.seat_node(Key.generate(), other, hardware=5)
    world.publish(1)
    first, second = submitting(world, node, 0, 1)
    again = world.submit(node, 0, 2, first.root)
    theirs = world.submit(other, 1, 0, first.root)
    book = Book(world.chain, world.run)
    book.poll()

    def found(ref: SubmissionRef) -> Submission:
        s = book.submission(ref.submission_id(world.run))
        assert s is not None
        assert s.ref == ref
        return s

    assert [book.earlier(found(ref), 9) for ref in (first, second, again, theirs)] == [0, 1, 2, 0]
    assert book.earlier(found(again), 1) == 1
    assert [book.repeats(found(ref)) for ref in (first, second, again, theirs)] == [False, False, True, False]
    assert [book.hardware(found(ref)) for ref in (first, theirs)] == [3, 5]
    assert submission_at(book, node.address, 0, 1) == found(second)
    assert submissions_of(book, node.address, 0) == [found(first), found(second), found(again)]
    assert [s.ref for s in book.newest_submissions()] == [theirs, again, second, first]
    assert book.submission(bytes(32)) is None
    assert book.time(found(first)) == world.chain.block(found(first).block).time


def test_a_seat_that_changed_its_key_and_class_keeps_its_name_and_its_past(world: World) -> None:
    operator, node, new = Key.generate(), Key.generate(), Key.generate()
    world.seat_node(operator, node, hardware=3)
    world.publish(0)
    before = world.submit(node, 0, 0, b"\x01" * 32)

    def signed(key: Key, hardware: int, deadline: int) -> bytes:
        from eth_utils import keccak

        return Join(world.run, operator.address, key.address, keccak(key.peer), hardware, deadline).sign(
            key, world.chain.domain
        )

    deadline = world.chain.block().time + 600
    world.sender(operator).send(
        world.chain.rotate(world.run, node.address, new.address, new.peer, deadline, signed(new, 3, deadline))
    )
    world.sender(new)
    world.publish(1)
    between = world.submit(new, 1, 0, b"\x02" * 32)
    world.sender(operator).send(
        world.chain.join(world.run, new.address, new.peer, 7, deadline, signed(new, 7, deadline))
    )
    world.publish(2)
    after = world.submit(new, 2, 0, b"\x03" * 32)
    book = Book(world.chain, world.run)
    book.poll()
    assert [book.seat(key.address) for key in (node, new)] == [node.address, node.address]
    assert book.keys(node.address) == [node.address, new.address]
    found = [book.submission(ref.submission_id(world.run)) for ref in (before, between, after)]
    assert [book.hardware(s) for s in found if s] == [3, 3, 7]


def test_cases_are_told_with_all_that_was_brought_into_them(world: World) -> None:
    node, one, two = committing(world), Key.generate(), Key.generate()
    for validator in (one, two):
        world.seat_validator(validator)
    world.publish(1)
    refs = [world.submit(node, 1, sequence, bytes([sequence]) * 32) for sequence in range(3)]
    world.sender(one).send(world.chain.challenge(world.run, refs[:2], b"\x0e" * 32))
    world.accuse(two, refs[0])
    book = Book(world.chain, world.run)
    book.poll()
    assert [(case.number, case.hard, case.refs) for case in book.open_cases()] == [
        (1, False, tuple(refs[:2])), (2, True, (refs[0],)),
    ]  # fmt: skip
    assert [case.number for case in book.cases_of(refs[0].submission_id(world.run))] == [1, 2]
    world.sender(node).send(world.chain.appeal(world.run, node.address, 1))
    book.poll()
    assert [case.number for case in book.appeals()] == [1]
    world.anvil.advance(3601)
    cursor = book.changes_since(0).cursor
    world.sender(two).send(world.chain.settle(world.run, node.address, 2))
    book.poll()
    case = book.case(node.address, 2)
    assert case is not None
    assert (case.stage, case.convicts, list(book.convictions())) == (Stage.UPHELD, True, [case])
    assert book.is_convicted(node.address)
    assert case.position > cursor
    assert [c.number for c in book.open_cases(node.address)] == [1]
    world.anvil.request("anvil_reorg", 1, [])
    book.poll()
    undone = book.case(node.address, 2)
    assert undone is not None
    assert undone.is_open


def test_a_removed_validator_judges_until_its_service_ends(world: World) -> None:
    validator = Key.generate()
    world.seat_validator(validator)
    book = Book(world.chain, world.run)
    now = book.poll().time
    assert book.validators(now) == {validator.address}
    world.sender(validator).send(world.chain.enlist(world.run, False))
    now = book.poll().time
    until = world.chain.validator(world.run, validator.address).until
    assert until > now
    assert book.validators(until - 1) == {validator.address} == book.ever_validated()
    assert book.validators(until) == frozenset()


def test_what_a_reorg_took_back_is_told_and_forgotten(world: World) -> None:
    node = committing(world)
    book = Book(world.chain, world.run)
    refs = submitting(world, node, 0, 1)
    book.poll()
    heard, unheard = book.changes_since(0).cursor, 0
    world.anvil.request("anvil_reorg", 1, [])
    book.poll()
    changes = book.changes_since(heard)
    assert (sequences(changes.gone_submissions), sequences(changes.submissions)) == ([1], [])
    assert changes.gone_submissions[0].id == refs[1].submission_id(world.run)
    assert book.submission(refs[1].submission_id(world.run)) is None
    told_late = book.changes_since(unheard)
    assert (sequences(told_late.gone_submissions), sequences(told_late.submissions)) == ([], [0])
    submitting(world, node, 2)  # the sender does again what the reorg undid
    book.poll()
    assert sequences(book.changes_since(changes.cursor).submissions) == [1, 2]


def test_what_comes_back_after_a_reorg_is_forgotten_and_learnt_again(world: World) -> None:
    node = committing(world)
    book = Book(world.chain, world.run)
    (ref,) = submitting(world, node, 0)
    book.poll()
    cursor = book.changes_since(0).cursor
    world.anvil.request("anvil_reorg", 1, [])
    submitting(world, node, 1)  # the sender does again what the reorg undid
    book.poll()
    changes = book.changes_since(cursor)
    assert [s.id for s in changes.gone_submissions] == [ref.submission_id(world.run)]
    assert changes.submissions[0].id == ref.submission_id(world.run)
    assert sequences(submissions_of(book, node.address, 0)) == [0, 1]


def test_a_reorg_within_reach_is_followed_however_few_blocks_were_remembered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "REORG_BLOCKS", 24)
    node = committing(world)
    submitting(world, node, 0)
    world.anvil.request("anvil_mine", "0x40")
    submitting(world, node, 1)
    book = Book(world.chain, world.run)
    for _ in range(10):
        world.anvil.advance(1)
    book.poll()
    world.anvil.request("anvil_reorg", 14, [])
    book.poll()
    assert sequences(submissions_of(book, node.address, 0)) == [0]


def test_a_reorg_below_a_books_first_block_is_no_other_chain(world: World) -> None:
    node = committing(world)
    world.anvil.request("anvil_mine", "0x8")
    book = Book(world.chain, world.run, first_block=world.chain.block_number())
    submitting(world, node, 0)
    book.poll()
    assert sequences(submissions_of(book, node.address, 0)) == [0]
    world.anvil.request("anvil_reorg", 4, [])
    book.poll()
    assert submissions_of(book, node.address, 0) == []
    submitting(world, node, 1)
    book.poll()
    assert sequences(submissions_of(book, node.address, 0)) == [0, 1]


def test_a_chain_that_lost_more_than_a_chain_can_lose_is_refused_and_leaves_the_book_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "REORG_BLOCKS", 8)
    node = committing(world)
    book = Book(world.chain, world.run)
    for sequence in range(12):
        submitting(world, node, sequence)
    book.poll()
    before = book.changes_since(0)
    world.anvil.request("anvil_reorg", 11, [])
    with pytest.raises(WrongChain, match="other blocks"):
        book.poll()
    assert book.changes_since(0) == before


def test_it_goes_on_where_its_file_ends(world: World, tmp_path: Path) -> None:
    node = committing(world)
    submitting(world, node, 0)
    first = Book(world.chain, world.run, tmp_path / "chain.sqlite")
    first.poll()
    cursor = first.changes_since(0).cursor
    first.close()
    submitting(world, node, 1)
    second = Book(world.chain, world.run, tmp_path / "chain.sqlite")
    second.poll()
    assert sequences(second.changes_since(cursor).submissions) == [1]
    assert sequences(submissions_of(second, node.address, 0)) == [0, 1]
    second.close()


def test_a_book_that_is_begun_anew_is_another_one(world: World, tmp_path: Path) -> None:
    """Cursors into it mean nothing in the other: whoever keeps one keeps the identity beside it."""
    file, identities = tmp_path / "chain.sqlite", []
    for begun_anew in (False, False, True):
        if begun_anew:
            for part in tmp_path.glob("chain.sqlite*"):
                part.unlink()
        book = Book(world.chain, world.run, file)
        book.poll()
        identities.append(book.identity)
        book.close()
    assert identities[0] == identities[1] != identities[2]
    assert all(len(identity) == 16 for identity in identities)


def test_one_process_writes_and_any_may_read(world: World, tmp_path: Path) -> None:
    node, path = committing(world), tmp_path / "chain.sqlite"
    with pytest.raises(IntegrityError):
        View.read(path)
    book = Book(world.chain, world.run, path)
    with pytest.raises(LockHeld):
        Book(world.chain, world.run, path)
    submitting(world, node, 0)
    book.poll()
    view = View.read(path)
    assert sequences(submissions_of(view, node.address, 0)) == [0]
    assert (view.run, view.head) == (world.run, book.head)
    with pytest.raises(sqlite3.OperationalError):
        view.rows("DELETE FROM submissions")
    book.close()
    assert sequences(submissions_of(view, node.address, 0)) == [0]
    view.close()


def test_a_book_of_another_run_or_of_a_later_start_is_not_gone_on_with(world: World, tmp_path: Path) -> None:
    path = tmp_path / "chain.sqlite"
    book = Book(world.chain, world.run, path, first_block=3)
    book.poll()
    book.close()
    for run, first_block in ((world.run + 1, 3), (world.run, 2)):
        other = Book(world.chain, run, path, first_block=first_block)
        with pytest.raises(ConfigError):
            other.poll()
        other.close()


def test_two_runs_in_one_contract_are_two_books(world: World) -> None:
    other = World.sharing(world)
    node = committing(world)
    theirs = committing(other)
    submitting(world, node, 0, 1)
    submitting(other, theirs, 0)
    for where, key, count in ((world, node, 2), (other, theirs, 1)):
        book = Book(where.chain, where.run)
        book.poll()
        assert {s.node for s in book.changes_since(0).submissions} == {key.address}
        assert book.count_submissions() == count
        assert {event.data.run for event in book.changes_since(0).events} == {where.run}


_KILLED = """
import os, signal, sys
from pathlib import Path
from protocol.chain import Chain, sync
from protocol.chain.book_entries import Entries

sync._RANGE = 4
entered, pages = Entries.forget_bare, []

def dying(self, before):
    entered(self, before)
    pages.append(before)
    if len(pages) == 5:  # within the transaction of a page
        os.kill(os.getpid(), signal.SIGKILL)

Entries.forget_bare = dying
rpc, contract, run, path = sys.argv[1:]
sync.Book(Chain(rpc, contract), int(run), Path(path)).poll()
"""


def test_a_process_killed_in_mid_sync_leaves_a_book_that_another_goes_on_with(world: World, tmp_path: Path) -> None:
    node, path = committing(world), tmp_path / "chain.sqlite"
    submitting(world, node, *range(12))
    arguments = [world.anvil.rpc, world.chain.runs.address, str(world.run), str(path)]
    killed = subprocess.run([sys.executable, "-c", _KILLED, *arguments], timeout=60, check=False)
    assert killed.returncode == -9
    left = View.read(path)
    assert left.head is None
    ended = left.rows("SELECT max(number) FROM blocks")[0][0]
    assert 0 < ended < world.chain.block_number()
    left.close()
    book = Book(world.chain, world.run, path)
    book.poll()
    assert sequences(submissions_of(book, node.address, 0)) == list(range(12))
    assert len(book.changes_since(0).events) == len(book.events(Published)) + 4  # run, money, seat, beacon
    book.close()


def test_contracts_that_were_deployed_just_now_on_an_old_chain_are_followed(anvil: Anvil) -> None:
    """At the last settled block there is nothing yet at their addresses."""
    anvil.request("anvil_mine", "0x80")
    world = World.another(anvil)
    book = Book(world.chain, world.run)
    node = Key.generate()
    book.poll()
    world.seat_node(Key.generate(), node)
    anvil.request("anvil_mine", "0x80")
    book.poll()
    assert book.settled > 0x80
    assert [event.data.node for event in book.events(Joined)] == [node.address]
    book.close()


def test_a_reader_sees_one_state_of_the_file_whatever_its_writer_commits_meanwhile(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, path = committing(world), tmp_path / "chain.sqlite"
    book = Book(world.chain, world.run, path)
    book.poll()
    view = View.read(path)
    cursor = view.changes_since(0).cursor
    rows = view.rows
    written = iter([True])

    def between(query: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        found = rows(query, parameters)
        if next(written, False):
            submitting(world, node, 0)
            world.publish(1)
            book.poll()
        return found

    monkeypatch.setattr(view, "rows", between)
    learned = []
    for _ in range(3):
        changes = view.changes_since(cursor)
        learned += changes.submissions
        cursor = changes.cursor
    assert sequences(learned) == [0]
    view.close()
    book.close()
