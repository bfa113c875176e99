"""Whether a transaction has landed: the receipt of whichever of its attempts was mined, as endpoints have it now.

What follows from a receipt that is not there, or from one of a failure: finality.py.
"""

from __future__ import annotations

from contextlib import suppress

from protocol.chain.client import Chain
from protocol.chain.ethereum import TransactionReceipt
from protocol.chain.transaction_log import Transaction, TransactionLog
from protocol.errors import RpcUnavailable


class Landing:
    def __init__(self, chain: Chain, journal: TransactionLog) -> None:
        self._chain = chain
        self._journal = journal

    def receipt(self, transaction: Transaction) -> TransactionReceipt | None:
        """That of the preferred endpoint; None while no attempt was mined."""
        for attempt in self._journal.attempts(transaction):
            with suppress(RpcUnavailable):
                if (receipt := self._receipt(attempt.hash)) is not None:
                    return receipt
        return None

    def anywhere(self, transaction: Transaction) -> TransactionReceipt | None:
        """As `receipt`, of the other endpoints too: the preferred one may lag, or hide what it knows."""
        attempts = self._journal.attempts(transaction)
        for one in self._chain.best:
            if self._chain.provider.rests(one.place):
                continue
            with suppress(RpcUnavailable), one.errors("reading a receipt"):
                for attempt in attempts:
                    if (receipt := one.ethereum.receipt(attempt.hash)) is not None:
                        return receipt
        return None

    def known(self, transaction: Transaction) -> TransactionReceipt:
        """The receipt of what is noted as mined. Raises RpcUnavailable where the endpoint does not know it (any more)."""
        assert transaction.hash is not None
        receipt = self._receipt(transaction.hash)
        if receipt is None:
            name = f"0x{transaction.hash.hex()}"
            raise RpcUnavailable(f"{transaction.doing}: the endpoint does not know {name}, which was mined")
        return receipt

    def _receipt(self, transaction_hash: bytes) -> TransactionReceipt | None:
        with self._chain.errors("reading a receipt"):
            return self._chain.ethereum.receipt(transaction_hash)
