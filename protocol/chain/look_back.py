"""A look back at what has landed: whether it is in the chain for good by now, or not any more.

By finality.py: a receipt that is not there, or a low count, undoes nothing alone. One that most endpoints would show by now, and do
not, counts as not there.
"""

from __future__ import annotations

import logging

from protocol.chain.client import Chain
from protocol.chain.endpoints import EndpointsDisagree
from protocol.chain.finality import LONG_AGO, Finality
from protocol.chain.landing import Landing
from protocol.chain.transaction_log import FAILED, MINED, SETTLED, Transaction, TransactionLog
from protocol.errors import RpcUnavailable

log = logging.getLogger(__name__)

_LOOKED_AT = 4  # transactions that are not settled yet, per call: as many of the first as of the last, so that none keeps others from it
_OLD_SECONDS = 86_400.0
_DOUBTED = 32  # that seem to have gone again, per call


class LookBack:
    def __init__(self, chain: Chain, journal: TransactionLog, landing: Landing, finality: Finality) -> None:
        self._chain = chain
        self._journal = journal
        self._landing = landing
        self._finality = finality

    def look(self, used: int) -> None:
        """Settles what is deep enough by now, and makes pending again what the chain does not have (any more). `used`: how many transactions
        of the key it seems to have."""
        doubted = self._journal.landed_from(used, _DOUBTED)
        seen = {each.id: each for each in (*self._ripe(), *doubted)}
        for transaction in seen.values():
            with self._chain.ahead(*self._finality.requests(*landing_of(transaction))):
                self.look_at(transaction, is_doubted=transaction in doubted)

    def unsettled(self, most: int) -> list[Transaction]:
        """Those that a reorg might take, the first ones; none where there are no reorgs."""
        return self._journal.mined(most) if self._finality.depth else []

    def _some_unsettled(self) -> list[Transaction]:
        """The first and the last of them."""
        if not self._finality.depth:
            return []
        half = _LOOKED_AT // 2
        found = {each.id: each for each in (*self._journal.mined(half), *self._journal.mined(half, newest=True))}
        return list(found.values())

    def _ripe(self) -> list[Transaction]:
        """Of the unsettled ones those whose block may be deep enough by now; all where the newest block is not to be had."""
        unsettled = self._some_unsettled()
        try:
            newest = self._chain.block().number if unsettled else 0
        except EndpointsDisagree:
            raise
        except RpcUnavailable:  # what was done is told all the same
            return unsettled
        return [each for each in unsettled if not self._finality.is_young(landing_of(each)[1], newest)]

    def look_at(self, transaction: Transaction, *, is_doubted: bool = False) -> None:
        """Settles one where it is deep enough. `is_doubted`: that it is in the chain."""
        receipt = self._landing.anywhere(transaction)
        outcome = None if receipt is None else self._finality.outcome(receipt.hash, receipt.block)
        if receipt is None or (outcome is None and self._finality.is_past(receipt.block)):
            self._look_for(transaction, is_doubted=is_doubted)
        elif outcome is not None:
            state = FAILED if not outcome.succeeded else SETTLED if self._finality.depth else MINED
            if state == FAILED and transaction.state in (MINED, SETTLED):
                log.warning("%s: a reorg took it to another block, and it has failed there", transaction.doing)
            self._journal.finish(transaction, state, receipt.hash, outcome.block)

    def _look_for(self, transaction: Transaction, *, is_doubted: bool) -> None:
        """Makes pending again what had landed and has no receipt, unless it used its nonce for good; where its nonce seems to be used
        (`is_doubted` is False), only if something else did. What landed a day ago, and nobody can tell of any more, is left at that."""
        hashes = self._journal.hashes(transaction)
        user = self._finality.user(transaction.nonce, hashes)
        is_old = self._chain.provider.clock.wall() - transaction.created > _OLD_SECONDS
        if user == LONG_AGO and is_old and not is_doubted and transaction.state == MINED:
            self._journal.finish(transaction, SETTLED, *landing_of(transaction))
        elif is_doubted if user in (None, LONG_AGO) else user not in hashes:
            self._journal.reopen(transaction)
            log.warning(
                "%s: the chain does not have it any more, or the endpoint lags; sending it again", transaction.doing
            )


def landing_of(transaction: Transaction) -> tuple[bytes, int]:
    """(hash, block) of one that has."""
    assert transaction.hash is not None and transaction.block is not None
    return transaction.hash, transaction.block
