"""Nonces that nothing uses, below one that is signed: nothing above them lands, so something has to use them.

A reorg took back what another program had sent with the key, and nobody sent it again; or of two deeds that were refused for want of gas money the
later one is asked for first. A gap is filled by a transaction that moves nothing, noted as any other, and sent until its nonce is used; by what, is of no
interest. An endpoint that lags shows a gap where there is none: so only the first nonce is filled that the chain seems not to have used, once a later
one is late, and those that are known to be free.
"""

from __future__ import annotations

import logging

from protocol.chain.signer import Signer
from protocol.chain.transaction_log import DROPPED, PENDING, VOID, Transaction, TransactionLog

log = logging.getLogger(__name__)

NOTHING_GAS = 21_000
_NAME = "gap/"


class NonceGaps:
    def __init__(self, journal: TransactionLog, signer: Signer, account: str) -> None:
        self._journal = journal
        self._signer = signer
        self._account = account

    def fill(self, used: int, nonce: int) -> list[Transaction]:
        """Signs and notes what fills the first nonce that the chain has not used, and those of what was refused for want of gas money, from there on
        and below `nonce`, where nothing holds them. `used`: transactions in the chain. Raises FeeTooHigh or RpcUnavailable."""
        free = {used, *(each.nonce for each in self._journal.dropped())}
        gaps = [each for each in sorted(free) if used <= each < nonce and not self._journal.holds(each)]
        return [self._filling(each) for each in gaps]

    def is_needed(self, filling: Transaction, used: int) -> bool:
        """Whether a nonce is still to be used; else its filling is given up, whether it was that or something else that used it."""
        if filling.nonce >= used:
            return True
        self._journal.finish(filling, VOID)
        return False

    def _filling(self, nonce: int) -> Transaction:
        log.warning(
            "nothing uses nonce %d, and later ones are signed: filling it with a transaction that moves nothing", nonce
        )
        draft = Transaction(
            0, f"{_NAME}{nonce}", f"filling nonce {nonce}", nonce, self._account, b"", NOTHING_GAS, PENDING, None, None, room=0
        )  # fmt: skip
        attempt = self._signer.sign(draft, self._signer.fee(of_most=True))
        known = self._journal.named(f"{_NAME}{nonce}")
        if known is None or known.state != DROPPED:
            return self._journal.begin(draft, attempt)
        self._journal.renew(known, attempt)
        return self._journal.again(known)


def is_filling(transaction: Transaction) -> bool:
    return transaction.name is not None and transaction.name.startswith(_NAME)
