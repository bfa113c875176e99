"""What the run owes its validators, and the vouchers that say so.

A receipt is paid once it is final and agrees with the chain: the hub took it within the submission's window; window, appeal and
vote are over since the commitment and no case on the submission is open; an accept stands on a submission that no verdict revoked, a
rejection on one that a verdict revoked. One receipt per submission and validator counts, and at most
`submissions_per_step` of a step. Each is worth the same: what a receipt says of its own effort, and the units that a node claims,
could both be made up.

What is decided is kept in the hub's database, so that a turn costs what is new or due, however many receipts there were. A
rebuilt database counts anew from receipts, arrivals and chain, to the same total; the last voucher of each validator is kept,
and no later one promises less, whatever becomes of the rate.
"""

from __future__ import annotations

import json
import logging

from protocol.chain import Chain
from protocol.chain.sync import Book
from protocol.errors import MurmurationError
from protocol.hub.wire import PAGE
from protocol.identity import Key
from protocol.signing import Voucher
from protocol.verdict import Outcome, Receipt
from protocol.voucher import SignedVoucher
from trainer.config import VoucherSettings
from trainer.hub.database import Database
from trainer.hub.store import Store

log = logging.getLogger("hub")


class Ledger:
    """Turned by one thread of the hub."""

    def __init__(
        self, chain: Chain, run: int, book: Book, store: Store, database: Database, key: Key, vouchers: VoucherSettings
    ) -> None:
        self._chain, self._run, self._book = chain, run, book
        self._store, self._db, self._key, self._settings = store, database, key, vouchers
        self._policy = chain.policy(run)
        self._submissions = database.earned(vouchers.submissions_per_step)  # by validator, as many as are paid
        self._owing = set(self._submissions)  # whose total may have grown
        self._promised: dict[str, int] = {}

    def turn(self) -> bool:
        """Takes in new receipts, decides what has become final, signs what is owed; says whether more may be there."""
        page = self._db.receipts(self._db.taken(), PAGE)
        arrived = [(cursor, self._store.arrival(data)) for cursor, data in page]
        if page:
            span = self._policy.span
            self._db.take(page[-1][0], [(cursor, at, at + span) for cursor, at in arrived if at is not None])
        self._decide()
        for validator in list(self._owing):
            self._promise(validator)
            self._owing.discard(validator)
        return len(page) == PAGE

    def total(self, validator: str) -> int:
        """Wei owed for what is final, by the present rate."""
        return self._submissions.get(validator, 0) * self._settings.wei_per_submission

    def _decide(self) -> None:
        """Looks at what is due. A receipt is crossed out and counted in one: a failure in between counts nothing twice."""
        head, after = self._book.head, 0
        while head is not None and (due := self._db.due(head.time, after, PAGE)):
            for cursor, arrived, data in due:
                after = cursor
                receipt = Receipt.parse(data, self._chain.domain, self._run)
                is_earned = self._is_earned(receipt, arrived)
                if is_earned is None:
                    continue
                count = self._db.settle(cursor, receipt.validator, receipt.details.step, is_earned=is_earned)
                if is_earned and count <= self._settings.submissions_per_step:
                    self._submissions[receipt.validator] = self._submissions.get(receipt.validator, 0) + 1
                    self._owing.add(receipt.validator)

    def _is_earned(self, receipt: Receipt, arrived: int) -> bool | None:
        """None while it is not final. All is read from one book: contract and events may stand at different blocks."""
        submission, cases = self._book.submission(receipt.submission), self._book.cases_of(receipt.submission)
        if submission is None:
            return None  # a reorg took the commitment; it may come back
        if any(case.is_open for case in cases):
            return None
        if arrived > self._book.time(submission) + self._policy.window:
            return False
        is_revoked = any(case.is_upheld(submission.ref) for case in cases)
        return is_revoked == (receipt.outcome != Outcome.ACCEPT)

    def _promise(self, validator: str) -> None:
        total = self.total(validator)
        if validator not in self._promised:
            self._promised[validator] = self._kept(validator)
        if total > self._promised[validator]:
            voucher = Voucher(self._run, validator, total)
            signed = SignedVoucher.issue(voucher, self._key, self._chain.domain)
            self._store.put("vouchers", f"{validator}.json", json.dumps(signed.as_json()).encode())
            self._promised[validator] = total
            log.info("%s is owed %d wei in all", validator, total)

    def _kept(self, validator: str) -> int:
        text = self._store.get("vouchers", f"{validator}.json")
        if text is None:
            return 0
        try:
            value = json.loads(text)
            signed = SignedVoucher.parse(value, self._chain.domain, self._run, validator, self._key.address)
        except (ValueError, MurmurationError) as error:
            log.warning("the voucher kept for %s is none (%s); a new one takes its place", validator, error)
            return 0
        return signed.voucher.total
