"""Whether this validator is the only copy of its kind: what stands under it at the hub and on chain must be known to this validator's own logs.

Two copies of a validator with one key would contradict each other: a receipt that accepts and an accusation cost a bond. On one
machine a lock keeps the second out (protocol/shell/home.py); elsewhere receipts and cases tell, for what is noted before it is
posted or sent is known, also after a kill. They are looked at before anything is judged. A data folder that was lost or
restored looks like another copy: whoever knows that there is none says so once, and the log keeps it. What was said until then
is taken up, so that nothing is judged a second time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from node.validator.judgement_log import JudgementLog
from protocol.chain.events import Abstained, Challenged, ChallengedAgain, Event, Voted
from protocol.chain.transaction_log import TransactionLog
from protocol.chain.types import Block
from protocol.errors import LockHeld
from protocol.verdict import Receipt

log = logging.getLogger("validator")


class OnlyCopy:
    def __init__(
        self,
        address: str,
        judgements: JudgementLog,
        transactions: TransactionLog,
        take_up: Callable[[Receipt], None],
        span: int,
        time_of: Callable[[Event], int],
    ) -> None:
        """`take_up` makes a receipt of a lost log a judgement again. What is older than `span` seconds binds to nothing new, and the
        logs may have forgotten it. `time_of`: block time of an event."""
        self._address = address
        self._judgements = judgements
        self._transactions = transactions
        self._take_up = take_up
        self._span = span
        self._time_of = time_of

    def adopt(self, head: Block) -> None:
        """Takes everything under this key up to this block for this validator's own, for good."""
        self._judgements.adopt(head.number, head.time)

    def see(self, event: Event, now: int) -> None:
        """`now` in block time. Raises LockHeld where somebody else has brought a case or voted with this key."""
        data = event.data
        if isinstance(data, Challenged | ChallengedAgain) and data.challenger == self._address:
            deed = f"brought case {data.number} against {data.seat}"
        elif isinstance(data, Voted | Abstained) and data.validator == self._address:
            deed = f"voted on case {data.number} against {data.seat}"
        else:
            return
        if event.block <= self._judgements.adopted[0] or self._transactions.knows(event.transaction):
            return
        if self._time_of(event) >= now - self._span:
            raise self._elsewhere(f"a validator with the key {self._address} {deed}")

    def hear(self, receipt: Receipt, now: int) -> None:
        """Raises LockHeld for a receipt of this key that was not signed here."""
        judgement = self._judgements.get(receipt.submission)
        if judgement is not None and judgement.receipt == receipt.encode():
            return
        if receipt.details.time < now - self._span:
            return
        if receipt.details.time > self._judgements.adopted[1]:
            raise self._elsewhere(
                f"a validator with the key {self._address} signed a receipt for {receipt.submission.hex()[:12]}"
            )
        if judgement is not None:
            log.warning("the hub has another receipt of this validator for %s", receipt.submission.hex()[:12])
        else:
            self._take_up(receipt)

    @staticmethod
    def _elsewhere(deed: str) -> LockHeld:
        return LockHeld(
            f"{deed}, and it was not this one: another copy of this validator runs",
            hint="stop the other copy. Where there is none, because this data folder was lost or restored from a backup: "
            "murmur validator start --no-other-copy-runs",
        )
