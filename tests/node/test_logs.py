"""What roles keep on disk: counts stay right, what is done with goes, and no question is answered by reading everything."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.contributor import submission_log
from node.contributor.submission_log import SubmissionLog
from node.validator import judgement_log as states
from node.validator.findings import Findings
from node.validator.judgement_log import Judgement, JudgementLog
from node.validator.receipt_log import ReceiptLog
from node.validator.settings import JudgeSettings
from protocol.chain.transaction_log import MINED, Attempt, TransactionLog
from protocol.hub.wire import Refused
from protocol.identity import Key
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome
from tests.chain.paying import noted
from tests.clock import VirtualClock

NODE = Key.generate().address


def judgement(number: int, outcome: int = 1, state: str = states.CLOSED, posting: str = states.POSTED) -> Judgement:
    submission = number.to_bytes(32, "big")
    return Judgement(submission, NODE, outcome, b"receipt", state, posting, units=number, judged_at=number)


@contextmanager
def answered_from_indexes(db: sqlite3.Connection) -> Iterator[None]:
    """Fails where a statement within the block reads a table from end to end."""
    statements: list[str] = []
    db.set_trace_callback(statements.append)
    try:
        yield
    finally:
        db.set_trace_callback(None)
    for statement in statements:
        if statement.startswith(("SELECT", "UPDATE", "DELETE", "INSERT")):
            for *_, step in db.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall():
                is_small = any(small in step for small in ("totals", "counts", "cursor", "pending", "CONSTANT ROW"))
                assert "SCAN" not in step or "INDEX" in step or is_small, f"{statement}: {step}"


def test_totals_follow_what_judgements_become_and_outlive_them(tmp_path: Path) -> None:
    log = JudgementLog(tmp_path / "judgements.sqlite")
    hard = judgement(1, Outcome.HARD, states.WAITING, states.SECRET)
    log.put(hard, judgement(2), judgement(3))
    log.put(replace(hard, outcome=int(Outcome.SOFT), state=states.DECIDED, posting=states.DUE))
    log.prune(before=3)
    assert {k: v for k, v in log.totals().items() if v} == {Outcome.ACCEPT: 2, Outcome.SOFT: 1}
    assert [log.get(number.to_bytes(32, "big")) is None for number in (1, 2, 3)] == [False, True, False]
    log.close()


def test_all_that_is_due_is_given_out_in_pages(tmp_path: Path) -> None:
    log = JudgementLog(tmp_path / "judgements.sqlite")
    log.put(*(judgement(number, posting=states.DUE) for number in range(5)))
    first = log.due((-1, b""), 3)
    rest = log.due((first[-1].judged_at, first[-1].submission), 3)
    assert [j.judged_at for j in (*first, *rest)] == [0, 1, 2, 3, 4]
    log.close()


def test_counts_of_submissions_follow_their_states(tmp_path: Path) -> None:
    log = SubmissionLog(tmp_path / "submissions.sqlite")
    refs = [SubmissionRef(NODE, 0, number, bytes(32)) for number in range(3)]
    for ref in refs:
        log.add(ref, ref.submission_id(1), 1, 0)
    log.advance(refs[0].submission_id(1), submission_log.LOST)
    log.advance(refs[1].submission_id(1), submission_log.ACCEPTED)
    assert log.counts() == {"lost": 1, "accepted": 1, "made": 1}
    log.add(refs[0], refs[0].submission_id(1), 1, 0)
    assert log.counts() == {"accepted": 1, "made": 2}
    log.close()


@pytest.mark.parametrize("count", [1_000, 10_000])
def test_a_node_s_logs_keep_what_can_still_be_asked_for_and_no_more(count: int) -> None:
    """One submission a second, and 300 seconds in which something may come of it."""
    made, sent = SubmissionLog(Path(":memory:")), TransactionLog()
    for now in range(count):
        ref = SubmissionRef(NODE, now // 8, now % 8, bytes(32))  # type: ignore[arg-type]
        submission = ref.submission_id(1)
        made.add(ref, submission, 1, now)
        made.advance(submission, submission_log.STORED)
        transaction = noted(sent, str(now), now, Attempt(submission, b"", 1, 1, 0.0))
        sent.finish(transaction, MINED, submission, now)
        sent._db.execute("UPDATE transactions SET created = ? WHERE id = ?", (now, transaction.id))
        made.prune(now - 300, (ref.step, ref.sequence))
        sent.prune(now - 300)
    rows = lambda log, table: log._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: E731
    assert rows(made, "submissions") == rows(sent, "transactions") == rows(sent, "attempts") == 301
    assert made.counts() == {submission_log.STORED: count}, "what is forgotten still counts"
    made.close()
    sent.close()


def test_what_is_owed_and_the_seat_s_last_place_are_never_forgotten() -> None:
    """A run may be paused for months; the node that wakes up still knows itself and what is under way."""
    log = SubmissionLog(Path(":memory:"))
    refs = [SubmissionRef(NODE, step, 0, bytes(32)) for step in range(4)]  # type: ignore[arg-type]
    for ref, state in zip(refs, ("made", "committed", "accepted", "lost"), strict=True):
        log.add(ref, ref.submission_id(1), 1, 0)
        if state != "made":
            log.advance(ref.submission_id(1), state)
        log.adopt(ref.step, 0)
    log.prune(1 << 40, (2, 0))
    assert [s.ref.step for s in reversed(log.all())] == [0, 1, 2]
    assert [step for step in range(4) if log.is_adopted(step, 0)] == [2, 3]
    log.prune(1 << 40, None)
    assert [s.ref.step for s in reversed(log.all())] == [0, 1]
    log.close()


def test_a_transaction_that_may_still_land_is_never_forgotten() -> None:
    sent = TransactionLog()
    transaction = noted(sent, "one", 0, Attempt(bytes(32), b"", 1, 1, 0.0))
    sent.prune(1 << 40)
    assert [t.id for t in sent.pending()] == [transaction.id]
    assert sent.attempts(transaction)
    sent.close()


def test_nothing_that_is_asked_in_a_turn_reads_a_whole_table(tmp_path: Path) -> None:
    judged = JudgementLog(tmp_path / "judgements.sqlite")
    with answered_from_indexes(judged._db):
        judged.get(bytes(32))
        judged.waiting()
        judged.decided(Outcome.HARD)
        judged.decided_nodes(Outcome.SOFT, 5)
        judged.decided_of(NODE, Outcome.SOFT, 5)
        judged.cases()
        judged.in_case((NODE, 1))
        judged.due((0, b""), 5)
        judged.totals()
        judged.prune(5)
        judged.begin(bytes(16))
        judged.note_pending([bytes(32)], [bytes(32)], 5)
    judged.close()

    heard = ReceiptLog(tmp_path / "receipts.sqlite", lambda data: None, lambda validator: True, 5)  # type: ignore[arg-type,return-value]
    with answered_from_indexes(heard._db):
        assert bytes(32) not in heard
        heard.request(bytes(32), 1)
        heard.of(bytes(32))
        heard.validators(bytes(32))
        heard.by(NODE)
        heard.prune(5, 5)
    heard.close()

    made = SubmissionLog(tmp_path / "submissions.sqlite")
    with answered_from_indexes(made._db):
        made.add(SubmissionRef(NODE, 0, 0, bytes(32)), bytes(32), 1, 0)
        made.advance(bytes(32), submission_log.STORED)
        made.get(bytes(32))
        made.all(submission_log.MADE, submission_log.COMMITTED)
        made.all(most=5)
        made.counts()
        made.at(0, 0)
        made.adopt(0, 0)
        made.is_adopted(0, 0)
        made.prune(5, (0, 0))
        made.mark("receipts")
    made.close()

    sent = TransactionLog(tmp_path / "transactions.sqlite")
    with answered_from_indexes(sent._db):
        transaction = noted(sent, "one", 0, Attempt(bytes(32), b"", 1, 1, 0.0))
        sent.attempts(transaction)
        sent.named("one")
        sent.pending()
        sent.finish(transaction, MINED, bytes(32), 1)
        sent.mined(5)
        sent.landed_from(0, 32)
        sent.next_nonce()
        sent.reopen(transaction)
        sent.prune(5.0)
    sent.close()


def test_a_receipt_that_no_hub_takes_is_sent_ever_more_rarely_and_then_forgotten(tmp_path: Path) -> None:
    clock, sent = VirtualClock(), []

    def refuse(receipt: bytes) -> None:
        sent.append(receipt)
        raise Refused("so old a submission is not judged any more", 403)

    hub = SimpleNamespace(post_receipt=refuse)
    connection: Any = SimpleNamespace(
        key=SimpleNamespace(address="0x"), hub=hub, chain=SimpleNamespace(domain=None), run=1
    )
    log = JudgementLog(tmp_path / "judgements.sqlite")
    findings = Findings(connection, None, log, JudgeSettings(), clock=clock)  # type: ignore[arg-type]
    log.put(Judgement(bytes(32), "0x", 1, b"receipt", states.CLOSED, states.DUE, 1, 7))
    for _ in range(1800):  # an hour
        findings.post(1)
        clock.advance(2)
    assert 1 < len(sent) < 100
    log.prune(7)
    assert log.get(bytes(32)) is not None
    log.prune(8)
    assert log.get(bytes(32)) is None
    log.close()
