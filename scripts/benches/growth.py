"""What one turn costs as history grows: validator, trainer's poll, ledger and journals, at 1,000, 10,000 and 100,000 submissions.

A run goes on at a recorded endpoint and hub (life.py). Its past is written straight into the databases as a day of work leaves
it; then, in each turn, one node submits sixteen files and validators speak on them. All of that is real but the judging itself
and the reading of rollout files, whose cost is that of the files. What counts is the exponent of a turn's CPU time over the size
of history, fitted to medians: 0 where a turn costs the same always, 1 where it looks at everything.

The past lies within the verification window and within what may be trained on, so nothing of it is over.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from swarm.tiny_run import run_tables

from benches import Bench, Cost, Row
from benches.life import DOMAIN, Life, Served
from benches.recorded import BATCH, RUN, RUNS
from node.contributor import submission_log
from node.contributor.submission_log import SubmissionLog
from node.judging.candidate import Checked, Commitment, PrefillPlan
from node.judging.judge import details
from node.validator import judgement_log, service
from node.validator.judgement_log import Judgement, JudgementLog
from node.validator.settings import JudgeSettings
from protocol import calibration, rendezvous, runspec
from protocol.chain import Chain, Sender
from protocol.chain.sync import Book
from protocol.chain.transaction_log import FAILED, MINED, PENDING, Attempt, Transaction, TransactionLog
from protocol.chain.types import Policy
from protocol.chain.view import Submission
from protocol.environments.reasoning import EXAMINED_VERSION
from protocol.hub.client import HubClient
from protocol.identity import Key
from protocol.rollout import Sample
from protocol.runspec import RunSpec
from protocol.shell.home import Home
from protocol.verdict import Outcome
from trainer.config import VoucherSettings
from trainer.hub.database import Database
from trainer.hub.store import Store
from trainer.hub.vouchers import Ledger
from trainer.rollouts.data import RolloutSource
from trainer.rollouts.files import Bounds
from trainer.rollouts.pool import TrainingGroup

SIZES = (1_000, 10_000, 100_000)
_TURNS = 15
_WARM = 3  # turns before them, which fill caches
_FLAT = 0.1
_DAY = 86_400
Turn = Callable[[], None]
"""One turn; what happens in it is prepared before it, uncounted."""


def run() -> Bench:
    bench = Bench("growth")
    for name, open_past in _PARTS.items():
        by_size = measure(open_past, SIZES)
        for size, seconds in by_size.items():
            bench.rows.append(Row(f"{name} at {size:,}", "ms CPU", seconds * 1e3, None, None, None))
        bench.rows.append(Cost(f"{name}: growth", "exponent", exponent(by_size), None, None, _FLAT))
    return bench


def exponent(by_size: dict[int, float]) -> float:
    """Slope of the line through log(cost) over log(size), by least squares."""
    x, y = [math.log(size) for size in by_size], [math.log(cost) for cost in by_size.values()]
    middle = statistics.mean(x)
    return sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def measure(open_past: Callable[[_World], Turn], sizes: Sequence[int]) -> dict[int, float]:
    """Median CPU seconds of a turn at histories of so many submissions: one turn of each after the other, so that what else
    the machine does meanwhile meets them all."""
    with ExitStack() as stack:
        spec, validators = _spec(), [Key.generate() for _ in range(4)]
        turns = {}
        for size in sizes:
            life = Life(-(-size // BATCH) * BATCH, validators, spec)
            folder, served = stack.enter_context(tempfile.TemporaryDirectory()), stack.enter_context(Served(life))
            turns[size] = life, open_past(_World(life, served.url, Path(folder), spec, validators[0]))
        seconds: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(_TURNS + _WARM):
            for size, (life, turn) in turns.items():
                life.go_on()
                started = time.thread_time()
                turn()
                seconds[size].append(time.thread_time() - started)
    return {size: statistics.median(found[_WARM:]) for size, found in seconds.items()}


class _World:
    """What a role of the run has in hand."""

    def __init__(self, life: Life, url: str, folder: Path, spec: RunSpec, key: Key) -> None:
        self.life, self.folder, self.spec, self.key = life, folder, spec, key
        self.run = RUN
        self.settings = SimpleNamespace(poll_seconds=0.0)
        nobody = "0x" + "0" * 40
        self.policy = Policy(
            owner=nobody, fee=0, trainer=nobody, reward=1, gate=nobody, notice=60, grace=60, max_units=100_000, bond=1,  # type: ignore[arg-type]
            jury_fee=1, bond_bps=0, finder_bps=2000, co_signers=0, strikes=10, leverage=200, window=_DAY, appeal=3600,
            vote=3600, max_per_step=BATCH, node_stake=1, penalty=1, validator_stake=1, voucher_cap=1,
        )  # fmt: skip
        self.chain = Chain(url, RUNS)
        self.chain.policy = lambda run: self.policy  # type: ignore[method-assign]
        self.hub = HubClient(url, RUN, DOMAIN, key=key, now=lambda: life.time)
        self.trusted = key
        self.trainer, self.former_trainers = nobody, ()
        self.gossip = None  # what is not heard is asked for: nothing less to do

    def book(self, path: Path | None = None) -> Book:
        return Book(self.chain, RUN, path)

    def sender(self, transactions: TransactionLog) -> Sender:
        return Sender(self.chain, self.key, transactions)

    def forget_hub(self) -> None:
        raise AssertionError("the hub failed")

    def past(self, book: Book) -> Iterator[Submission]:
        """Everything that was submitted, read into the book."""
        book.poll()
        cursor, more = 0, True
        while more:
            changes = book.changes_since(cursor)
            yield from changes.submissions
            cursor, more = changes.cursor, changes.more
        self.cursor = cursor


# ---- validator -----------------------------------------------------------------------------------------------------------


class _Accepting:
    """In place of the bench at which files are judged: accepts everything."""

    def __init__(self, world: _World, book: Book, *_: object, **how: object) -> None:
        self._book = book
        self.context: Any = SimpleNamespace(domain=DOMAIN, run=RUN, spec=world.spec, spec_digest=world.spec.digest)

    def hold(self, steps: object, *, fetch: bool) -> None:
        pass

    def room(self) -> int:
        return 0

    def sweep(self, awaited: object) -> None:
        pass

    def fetch(self, root: bytes) -> Path:
        return Path()

    def commitment(self, s: Submission) -> Commitment:
        self._book.hardware(s)
        return Commitment(s.ref, s.units, bytes(32), 0, s.block_hash, self._book.repeats(s))

    def plan(self, *, in_full: bool, time: int, alternatives: tuple[str, ...] = ()) -> PrefillPlan:
        return PrefillPlan(1.0 if in_full else 0.1, bytes(32))

    def judge(
        self,
        commitment: Commitment,
        path: Path,
        plan: PrefillPlan,
        time: int,
        checked: Checked | None = None,
        before: object = None,
    ) -> Any:
        return details(self.context, commitment, None, time, Checked(255, 8, 8), bytes(32))

    def discard(self, root: bytes) -> None:
        pass


def _validator(world: _World) -> Turn:
    """Everything was judged: by this validator what was its to judge, the rest by the others."""
    home, world.life.silent = Home(world.folder, "validator"), world.key.address
    book, judgements = world.book(home.data / "chain.sqlite"), JudgementLog(home.data / "judgements.sqlite")
    own, theirs = [], []
    for s in world.past(book):
        first = rendezvous.order(s.id, s.block_hash, book.ever_validated())[0]
        if first == world.key.address:
            own.append(
                Judgement(s.id, s.node, 1, bytes(1000), judgement_log.CLOSED, judgement_log.POSTED, 900, s.time or 0)
            )
        else:
            theirs.append((hashlib.sha256(s.id).digest(), s.id, first, book.time(s), bytes(1000)))
    judgements.put(*own)
    judgements.begin(book.identity)
    judgements.note_pending([], [], world.cursor)
    judgements.close()
    book.close()
    service.Bench = _Accepting  # type: ignore[misc,assignment]
    validator = service.ValidatorService(world, home, JudgeSettings(batch_seconds=0))  # type: ignore[arg-type]
    rows = "INSERT INTO receipts (digest, submission, validator, time, receipt) VALUES (?, ?, ?, ?, ?)"
    validator._receipts._db.execute("BEGIN")
    validator._receipts._db.executemany(rows, theirs)
    validator._receipts._db.execute("COMMIT")

    def turn() -> None:
        before = validator._judgements.totals().get(1, 0)
        while validator.turn():
            pass
        assert validator._judgements.totals()[1] > before or len(own) < 100
        assert not len(validator._workload)

    return turn


# ---- trainer -------------------------------------------------------------------------------------------------------------


def _trainer(world: _World) -> Turn:
    """Everything was accepted and read, and may still be trained on."""
    source = _source(world)
    source.poll()
    for submission, state in source._submissions.items():
        source._verdicts[state.event.step, submission][world.trusted.address] = Outcome.ACCEPT
        state.read = True
        state.groups = tuple(
            TrainingGroup(submission, i, state.event.node, state.event.step, (), f"{submission.hex()}{i}")
            for i in (0, 1)
        )
    source._lines.stir_all()
    source._lines.settle()
    tokens, size = np.arange(3, 8, dtype=np.int32), world.spec.sampling.group_size
    samples = [
        Sample(
            i // size,
            i % size,
            i // size,
            0,
            tokens,
            tokens,
            np.zeros(5, np.float32),
            (),
            float(i % 2),
            0.0,
            float(i % 2),
        )
        for i in range(world.spec.samples)
    ]
    read = iter(range(1 << 62))

    def fresh(*_: object) -> tuple[Sample, ...]:
        number = np.int32(next(read))
        return tuple(replace(sample, completion=tokens + number * 8 + i // size) for i, sample in enumerate(samples))

    source._files.read = fresh  # type: ignore[method-assign]

    def turn() -> None:
        before = source.ready(0)
        source.poll()
        assert source.ready(0) > before

    return turn


def _source(world: _World) -> RolloutSource:
    book: Any = world.book(world.folder / "chain.sqlite")
    folder, sandbox = world.folder / "incoming", cast(Any, None)
    return RolloutSource(world.chain, RUN, world.spec, book, world.hub, sandbox, folder, Bounds(50, 64), end_tokens=[1])


# ---- ledger --------------------------------------------------------------------------------------------------------------


def _ledger(world: _World) -> Turn:
    """Every submission has a receipt that waits for its window to pass; in each turn that of sixteen has."""
    book, database, store = (
        world.book(world.folder / "chain.sqlite"),
        Database(world.folder / "hub.sqlite"),
        Store(world.folder),
    )
    life, key = world.life, world.trusted
    waiting, until = [], life.time + _DAY
    for number, s in enumerate(world.past(book)):
        is_due = number < (_TURNS + _WARM + 1) * BATCH
        database.add_receipt(s.id, key.address, life.receipt(key, s.ref) if is_due else bytes(1000), life.time)
        due = life.time + 2 * (number // BATCH) + 1 if is_due else until
        waiting.append((s.id, life.time, due))
    numbered = database.receipts(0, len(waiting))
    cursor = numbered[-1][0]
    database.take(
        cursor, [(number, arrived, due) for (number, _), (_, arrived, due) in zip(numbered, waiting, strict=True)]
    )
    ledger = Ledger(world.chain, RUN, book, store, database, key, VoucherSettings(per_submission="1"))
    heard = 0

    def turn() -> None:
        nonlocal heard
        book.poll()
        for data in life.receipts[heard:]:
            heard += 1
            store.note_arrival(data, life.time)
            database.add_receipt(hashlib.sha256(data).digest(), key.address, data, life.time)
        before = ledger.total(key.address)
        while ledger.turn():
            pass
        assert ledger.total(key.address) > before

    return turn


# ---- journals ------------------------------------------------------------------------------------------------------------


def _journals(world: _World) -> Turn:
    """Everything that a contributor and a validator look up and note for sixteen submissions, in the three that they keep."""
    made, judged = SubmissionLog(world.folder / "made.sqlite"), JudgementLog(world.folder / "judged.sqlite")
    sent = TransactionLog(world.folder / "sent.sqlite")
    past = list(world.past(world.book(world.folder / "chain.sqlite")))
    with made._db:
        made._db.execute("BEGIN")
        for s in past:
            row = (s.id, s.node, s.step, s.sequence, s.root, 900, submission_log.ACCEPTED, s.time or 0, "{}", "{}")
            made._db.execute("INSERT INTO submissions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    judged.put(*(
        Judgement(s.id, s.node, 1, bytes(1000), judgement_log.CLOSED, judgement_log.POSTED, 900, s.time or 0) for s in past
    ))  # fmt: skip
    with sent._db:
        sent._db.execute("BEGIN")
        for number, s in enumerate(past):
            query = "INSERT INTO transactions (id, name, doing, nonce, data, gas, state, hash, block, created) VALUES (?, ?, '', ?, ?, 1, ?, ?, 1, 0)"
            sent._db.execute(query, (number + 1, f"submit/{s.id.hex()}", number, bytes(200), MINED, s.id))
            sent._db.execute(
                "INSERT INTO attempts (tx, hash, raw, fee, tip, signed) VALUES (?, ?, ?, 1, 1, 0)",
                (number + 1, s.id, bytes(300)),
            )
    nonce = len(past)

    def turn() -> None:
        nonlocal nonce
        for number in range(world.life.events - BATCH, world.life.events):
            ref = world.life.ref(number)
            submission = ref.submission_id(RUN)
            made.all(submission_log.MADE, submission_log.COMMITTED)
            made.add(ref, submission, 900, number)
            sent.mined(4)
            assert not sent.landed_from(nonce, 32)
            assert sent.next_nonce() == nonce
            assert sent.named(f"submit/{submission.hex()}") is None
            attempt = Attempt(submission, bytes(300), 1, 1, 0.0)
            name = f"submit/{submission.hex()}"
            draft = Transaction(0, name, "", nonce, None, bytes(200), 1, PENDING, None, None)
            transaction = sent.begin(draft, attempt)
            assert len(sent.pending()) == len(sent.attempts(transaction)) == 1
            sent.finish(transaction, MINED if number else FAILED, submission, 1)
            made.advance(submission, submission_log.STORED)
            made.counts()
            nonce += 1
            judgement = Judgement(
                submission, ref.node, 2, bytes(1000), judgement_log.DECIDED, judgement_log.DUE, 900, number
            )
            judged.put(judgement)
            assert (
                [j.submission for j in judged.decided(2)]
                == [j.submission for j in judged.due((-1, b""), 64)]
                == [submission]
            )
            judged.put(
                replace(
                    judgement, state=judgement_log.CHALLENGED, posting=judgement_log.POSTED, seat=ref.node, number=1
                )
            )
            for name in judged.cases():
                judged.put(*(replace(j, state=judgement_log.CLOSED) for j in judged.in_case(name)))
            judged.waiting()
            judged.totals()
            judged.prune(0)

    return turn


_PARTS: dict[str, Callable[[_World], Turn]] = {
    "validator": _validator, "trainer's poll": _trainer, "ledger": _ledger, "journals": _journals,
}  # fmt: skip


def _spec() -> RunSpec:
    """A spec that no model and no task set stands behind."""
    table = run_tables()["spec"]
    limits = calibration.load(table["verification"]["calibration"], Path())
    table["verification"] |= {
        "calibration": limits.digest,
        "computation": limits.computation,
        "sampling": limits.sampling,
    }
    table["model"] |= {"config": "0" * 64, "tokenizer": "0" * 64}
    absent = {"package": "reasoning-gym", "version": EXAMINED_VERSION, "head": "0" * 64}
    table["environments"] = [{**absent, **environment} for environment in table["environments"]]
    return runspec.from_table({**table, "max_lag": 40})
