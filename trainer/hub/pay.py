"""What the run owes its validators, and the vouchers that say so.

A receipt is paid once it is final and agrees with the chain: the hub took it within the work's window; window, appeal and
vote are over since the commitment and no case on the work is open; an accept stands on a work that no verdict revoked, a
rejection on one that a case revoked (also one without a quorum). One receipt per work and validator counts, and at most
`works_per_step` of a step. Each is worth the same: what a receipt says of its own effort, and the units that a node claims,
could both be made up.

The total is counted anew from receipts, arrivals and chain at every start, so `hub rebuild` changes nothing; the last voucher
of each validator is kept, and no later one promises less, whatever becomes of the rate.
"""

from __future__ import annotations

import json
import logging
from collections import Counter

from protocol.chain import Chain
from protocol.chain.events import Challenged, Settled
from protocol.chain.index import EventIndex
from protocol.chain.types import Stage
from protocol.errors import MurmurationError
from protocol.hub.wire import PAGE
from protocol.identity import Key
from protocol.signing import Voucher
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome, Receipt
from protocol.voucher import SignedVoucher
from trainer.config import PaySettings
from trainer.hub.database import Database
from trainer.hub.store import Store

log = logging.getLogger("hub")


class Ledger:
    """Turned by one thread of the hub."""

    def __init__(
        self, chain: Chain, run: int, index: EventIndex, store: Store, database: Database, key: Key, pay: PaySettings
    ) -> None:
        self._chain, self._run, self._index = chain, run, index
        self._store, self._db, self._key, self._pay = store, database, key, pay
        self._policy = chain.policy(run)
        self._cursor = 0
        self._waiting: list[tuple[Receipt, int]] = []  # and when each arrived
        self._earned: Counter[tuple[str, int]] = Counter()  # receipts by validator and step
        self._promised: dict[str, int] = {}

    def turn(self) -> bool:
        """Takes in new receipts, decides what has become final, signs what is owed; says whether more may be there."""
        page = self._db.receipts(self._cursor, PAGE)
        for cursor, data in page:
            receipt, arrived = Receipt.parse(data, self._chain.domain, self._run), self._store.arrival(data)
            if arrived is not None:
                self._waiting.append((receipt, arrived))
            self._cursor = cursor
        self._decide()
        for validator in {validator for validator, _ in self._earned}:
            self._promise(validator)
        return len(page) == PAGE

    def total(self, validator: str) -> int:
        """Wei owed for what is final, by the present rate."""
        most = self._pay.works_per_step
        works = sum(min(count, most) for (who, _), count in self._earned.items() if who == validator)
        return works * self._pay.wei_per_work

    def _decide(self) -> None:
        if not self._waiting or self._index.head is None:
            return
        now, verdicts = self._index.head.time, self._verdicts()
        still: list[tuple[Receipt, int]] = []
        earned: Counter[tuple[str, int]] = Counter()
        for receipt, arrived in self._waiting:
            decided = self._is_earned(receipt, arrived, now, verdicts.get(receipt.work, []))
            if decided is None:
                still.append((receipt, arrived))
            earned[receipt.validator, receipt.details.step] += decided or 0
        self._waiting = still  # only now: an endpoint that fails half-way must not have anything counted twice
        self._earned += earned

    def _is_earned(self, receipt: Receipt, arrived: int, now: int, verdicts: list[Settled | None]) -> bool | None:
        """None while it is not final. `verdicts` of the cases on the work, oldest first; None: open."""
        if now <= arrived + self._policy.span or None in verdicts:
            return None
        work = self._chain.work(self._run, receipt.details.ref)
        if not work.time:
            return None  # a reorg took the commitment; it may come back
        if arrived > work.time + self._policy.window:
            return False
        convicted = any(v.hard and v.verdict == Stage.UPHELD for v in verdicts if v is not None)
        last = Stage.UPHELD if convicted else Stage(verdicts[-1].verdict) if verdicts and verdicts[-1] else Stage.NONE
        if receipt.outcome == Outcome.ACCEPT:
            return last != Stage.UPHELD
        return last in (Stage.UPHELD, Stage.UNDECIDED)

    def _verdicts(self) -> dict[bytes, list[Settled | None]]:
        """By work, of each of its cases. Read from events alone: contract and index may stand at different blocks."""
        settled = {(s.seat, s.number): s for _, s in self._index.events(Settled) if s.run == self._run}
        found: dict[bytes, list[Settled | None]] = {}
        for _, c in self._index.events(Challenged):
            if c.run == self._run:
                work = SubmissionRef(c.node, c.step, c.sequence, c.root).work_id(c.run)
                found.setdefault(work, []).append(settled.get((c.seat, c.number)))
        return found

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
