"""Transactions that the endpoints refused for want of gas money, and that may land all the same.

Who refuses signed bytes has them, and may publish them once there is money, or lied when it refused. So a dropped transaction is not
forgotten until something else has used its nonce for good. The nonce itself is free again: of all that is signed with it one lands.
Asked for again, the deed is done with the same nonce (sender.py), so that it is not done twice.
"""

from __future__ import annotations

import logging

from protocol.chain.finality import LONG_AGO, Finality
from protocol.chain.transaction_log import DROPPED, UNKNOWN, VOID, Transaction, TransactionLog

log = logging.getLogger(__name__)

_LOOKED_AT = 4  # nonces, per call


class DroppedTransactions:
    def __init__(self, journal: TransactionLog, finality: Finality) -> None:
        self._journal = journal
        self._finality = finality

    def look(self, used: int) -> None:
        """Finds out what became of those whose nonce is below `used`: one that has landed is pending again, for its receipt to be found; one of which
        nobody can tell any more is told as such when it is asked for."""
        past = [each for each in self._journal.dropped() if each.nonce < used]
        for nonce in sorted({each.nonce for each in past})[:_LOOKED_AT]:
            self._look_at([each for each in past if each.nonce == nonce])

    def _look_at(self, alike: list[Transaction]) -> None:
        """At those of one nonce."""
        is_lost = any(self._journal.lost_its_nonce(each) for each in alike)
        nonce = alike[0].nonce
        ours = set[bytes]().union(*map(self._journal.hashes, alike))
        user = LONG_AGO if is_lost else self._finality.user(nonce, ours, self._journal.signed_with(nonce))
        for dropped in alike if user is not None else ():
            if user in self._journal.hashes(dropped):
                self.landed(dropped)
            else:
                self._journal.finish(dropped, UNKNOWN if user == LONG_AGO and not is_lost else VOID)

    def using(self, transaction_hash: bytes) -> Transaction | None:
        """The dropped one of this hash, which used a nonce, now pending again; None where it is none of them."""
        found = self._journal.of(transaction_hash)
        return self.landed(found) if found is not None and found.state == DROPPED else None

    def landed(self, dropped: Transaction) -> Transaction:
        """Makes one that has landed pending again, and says so."""
        log.warning("%s: refused for want of gas money, and it is in the chain all the same", dropped.doing)
        return self._journal.reopen(dropped)
