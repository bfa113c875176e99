"""Which submissions are a validator's to judge, and when: its own first, and those of validators that stay silent.

Follows the book and what others say, and keeps no more than what may still have to be judged: a submission that is somebody
else's leaves when enough have spoken on it, and comes back where one of those loses its seat. What is here, and how far the
book was followed, is on disk: a restart reads neither the window nor the hub again. In a book that was read anew, that
place means nothing: it is followed from its beginning, and what was judged stays judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from node.validator.judgement_log import JudgementLog
from node.validator.queue import JudgementTask, Queue
from node.validator.receipt_log import ReceiptLog
from protocol import rendezvous
from protocol.chain.events import Event, ValidatorSeated
from protocol.chain.sync import Book
from protocol.chain.view import Submission
from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError
from protocol.verdict import Receipt


class Workload:
    """Not safe to share between threads."""

    def __init__(
        self, book: Book, judgements: JudgementLog, receipts: ReceiptLog, address: str, *, needed: int, window: int,
        fallback_seconds: float, clock: Clock = SYSTEM,
    ) -> None:  # fmt: skip
        """`address`: the validator's; `needed`: how many have to speak on a submission; `window` in seconds of block time;
        `fallback_seconds`: how long each validator in line may be silent before the next stands in."""
        self._book = book
        self._log = judgements
        self._receipts = receipts
        self._address = address
        self._needed = needed
        self._window = window
        self._fallback_seconds = fallback_seconds
        self._clock = clock
        self._queue = Queue(clock)
        self._serving = book.ever_validated()  # who of them has gone meanwhile is seen when the book is followed
        self._since = self._blocks_of_seats()
        self._cursor: int | None = None  # None: what an earlier life left is not taken up yet

    def __len__(self) -> int:
        return len(self._queue)

    def __contains__(self, submission_id: object) -> bool:
        return submission_id in self._queue

    @property
    def steps(self) -> set[int]:
        """Steps of all that may still have to be judged."""
        return self._queue.steps

    @property
    def roots(self) -> set[bytes]:
        """Roots of all that may still have to be judged."""
        return {task.submission.root for task in self._queue}

    # ---- what happens --------------------------------------------------------------------------------------------------

    def follow(self, now: int) -> Iterator[Event]:
        """Takes in what the book has learned; gives all events but commitments, also those that a reorg took back. `now` in
        block time. What a failure interrupts is taken in again the next time."""
        self._seats(now)
        if self._cursor is None:
            self._cursor = self._resume(now)
        while True:
            changes = self._book.changes_since(self._cursor)
            gone = [submission.id for submission in changes.gone_submissions]
            for submission_id in gone:
                self._queue.remove(submission_id)
            added = [s.id for s in self._open(changes.submissions, now) if self._add(s)]
            yield from changes.gone_events
            yield from changes.events
            if changes.cursor != self._cursor:
                self._log.note_pending(added, gone, changes.cursor)
                self._cursor = changes.cursor
            if not changes.more:
                break

    def _resume(self, now: int) -> int:
        """Takes up what an earlier life left. A book that was read anew tells everything once more."""
        cursor = self._log.begin(self._book.identity)
        for submission_id in self._log.pending():
            submission = self._book.submission(submission_id)
            if submission is not None:
                self._add(submission)
        self.heard(self._receipts.requests(), [], now)
        return cursor

    def expire(self, now: int) -> None:
        """Drops submissions whose window is over."""
        ended = [task.id for task in self._queue.expire(now - self._window)]
        if ended:
            self._log.note_pending([], ended)

    def heard(self, asked: Sequence[bytes], receipts: Sequence[Receipt], now: int) -> None:
        """Somebody has asked about submissions; others have spoken on some."""
        for submission_id in asked:
            self._return(submission_id, now)
        for receipt in receipts:
            task = self._queue.get(receipt.submission)
            if task is not None:
                self._place(task)

    def _open(self, submissions: Sequence[Submission], now: int) -> list[Submission]:
        """Those whose window is not over, in the chain's order. Times of older ones are not asked for."""
        found = []
        for submission in sorted(submissions, key=lambda s: s.place, reverse=True):
            if self._book.time(submission) + self._window <= now:
                break
            found.append(submission)
        return found[::-1]

    def _seats(self, now: int) -> None:
        """Everything is looked at again where a validator has come or gone."""
        serving, before = self._book.validators(now), self._serving
        if serving == before:
            return
        self._serving, self._since = serving, self._blocks_of_seats()
        try:
            self._receipts.greet(now)
            for task in self._queue:
                self._place(task)
            for validator in before - serving:
                for submission_id in self._receipts.by(validator):
                    self._return(submission_id, now)
        except MurmurationError:  # of the endpoint: the next turn does all of it again
            self._serving = before
            raise

    def _return(self, submission_id: bytes, now: int) -> None:
        """A submission may be this validator's to judge after all."""
        task = self._queue.get(submission_id)
        if task is not None:
            self._place(task)
            return
        submission = self._book.submission(submission_id)
        if submission is not None and self._open([submission], now) and self._add(submission):
            self._log.note_pending([submission_id], [])

    def _add(self, submission: Submission) -> bool:
        """Takes a submission in, unless it was judged or is nothing for this validator. Whether it is here now."""
        submission_id = submission.id
        if submission_id in self._queue:
            return True
        if self._log.get(submission_id) is not None:
            return False
        return self._place(JudgementTask(submission, self._book.time(submission), self._clock.monotonic()))

    # ---- the line ------------------------------------------------------------------------------------------------------

    def line(self, submission: Submission) -> tuple[str, ...]:
        """Validators in the order in which a submission is theirs to judge: who took a seat after it was committed stands in last, for it
        is no juror of it, and may find neither its weights nor anything left to do."""
        late = frozenset(v for v in self._serving if not self._was_seated(v, submission))
        first, then = (_line(submission.id, submission.block_hash, part) for part in (self._serving - late, late))
        return first + then

    def was_seated_before(self, submission: Submission) -> bool:
        """Whether this validator was, so that the submission was its to judge from the beginning."""
        return self._address in self._serving and self._was_seated(self._address, submission)

    def _was_seated(self, validator: str, submission: Submission) -> bool:
        """Before the block that it was committed in, as its jurors must be; a seat that is older than the book was."""
        return self._since.get(validator, 0) < submission.block

    def _blocks_of_seats(self) -> dict[str, int]:
        """By validator, the block in which it took its present or last seat."""
        return {event.data.validator: event.block for event in self._book.events(ValidatorSeated) if event.data.seated}

    def _place(self, task: JudgementTask) -> bool:
        """Gives a task its time, or drops it where nothing is left to do. Whether it is here afterwards."""
        task.asked = task.id in self._receipts
        line = self.line(task.submission)
        silent = line.index(self._address) + 1 - self._needed if self._address in line else None
        if not task.asked and (silent is None or silent > 0) and not self._is_open(task.id):
            self.drop(task.id)
            return False
        if task.asked:
            self._queue.put(task, task.not_before)
        elif silent is None:
            self._queue.put(task, None)
        else:
            self._queue.put(task, max(task.not_before, task.seen_at + max(0, silent) * self._fallback_seconds))
        return True

    def _is_open(self, submission_id: bytes) -> bool:
        """Whether too few validators have spoken yet."""
        return len(self._receipts.validators(submission_id) & self._serving) < self._needed

    # ---- judging -------------------------------------------------------------------------------------------------------

    def next(self) -> JudgementTask | None:
        """The most urgent submission that may be tried now. It is out of turn until it is put off or dropped."""
        return self._queue.next()

    def put_off(self, task: JudgementTask, seconds: float) -> None:
        task.not_before = self._clock.monotonic() + seconds
        self._place(task)

    def drop(self, submission_id: bytes) -> None:
        """It is judged, cannot be judged here, or is nobody's to judge any more."""
        if self._queue.remove(submission_id) is not None:
            self._log.note_pending([], [submission_id])


@lru_cache(1 << 12)
def _line(submission_id: bytes, block_hash: bytes, validators: frozenset[str]) -> tuple[str, ...]:
    return tuple(rendezvous.order(submission_id, block_hash, validators))
