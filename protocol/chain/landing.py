"""Whether a transaction has landed: the receipt of whichever of its attempts was mined, as endpoints have it now.

One endpoint may invent a receipt, so a second one confirms it wherever another answers. What follows from a receipt that is not
there, or from one of a failure: finality.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from protocol.chain.client import Chain
from protocol.chain.ethereum import TransactionReceipt, data, numbered_block, receipt_request
from protocol.chain.transaction_log import Transaction, TransactionLog
from protocol.errors import RpcUnavailable

_SILENT_SECONDS = 10.0  # for which an endpoint answers nothing until the others are believed without it


class Landing:
    def __init__(self, chain: Chain, journal: TransactionLog) -> None:
        self._chain = chain
        self._journal = journal

    def confirmed(self, transaction: Transaction, *, anywhere: bool) -> TransactionReceipt | None:
        """A receipt that a second endpoint confirms, where another answers; None while no attempt was mined. `anywhere`: not only that of
        the preferred endpoint, which may lag, or hide what it knows."""
        for one, receipt in self._shown(transaction):
            if receipt is not None and self._is_confirmed(receipt, one):
                return receipt
            if not anywhere:
                return None
        return None

    def anywhere(self, transaction: Transaction) -> TransactionReceipt | None:
        """The first receipt that any endpoint shows, confirmed or not."""
        return next((receipt for _, receipt in self._shown(transaction) if receipt is not None), None)

    def _shown(self, transaction: Transaction) -> Iterator[tuple[Chain, TransactionReceipt | None]]:
        """What each endpoint shows that answers, the preferred one first."""
        hashes = [attempt.hash for attempt in self._journal.attempts(transaction)]
        preferred, *others = self._chain.best
        for one in (preferred, *(other for other in others if not self._chain.provider.rests(other.place))):
            try:
                with one.errors("reading a receipt"), one.ahead(*map(receipt_request, hashes)):
                    found = (one.ethereum.receipt(each) for each in hashes)
                    receipt = next((each for each in found if each is not None and each.hash in hashes), None)
            except RpcUnavailable:
                continue
            yield one, receipt

    def _is_confirmed(self, receipt: TransactionReceipt, by: Chain) -> bool:
        """Whether an endpoint other than `by` has the very same, or none other is there that keeps up. One that refuses is there, and so is one
        that has not answered for some seconds only."""
        is_alone, provider = True, self._chain.provider
        for one in self._chain.best:
            if one.place == by.place or provider.lags(one.place):
                continue
            if not provider.is_away(one.place):
                with suppress(RpcUnavailable), one.errors("confirming a receipt"):
                    if _has(one, receipt):
                        return True
            is_alone = is_alone and provider.is_silent(one.place, _SILENT_SECONDS)
        return is_alone

    def known(self, transaction: Transaction) -> TransactionReceipt:
        """The receipt of what is noted as mined. Raises RpcUnavailable where the endpoints do not know it (any more)."""
        assert transaction.hash is not None
        receipt = self.confirmed(transaction, anywhere=True)
        if receipt is None:
            name = f"0x{transaction.hash.hex()}"
            raise RpcUnavailable(f"{transaction.doing}: the endpoint does not know {name}, which was mined")
        return receipt


def _has(one: Chain, receipt: TransactionReceipt) -> bool:
    """Whether an endpoint shows the same receipt; or none, but its block with the transaction in it, for then it is not the one to be asked how
    that ended. Raises RpcUnavailable where it refuses to say."""
    block = numbered_block(receipt.block)
    with one.ahead(receipt_request(receipt.hash), block):
        found = one.ethereum.receipt(receipt.hash)
        if found is not None:
            return found.says_the_same(receipt)
        method, params = block
        shown = one.ethereum.request(method, *params)
    is_there = shown is not None and data(shown["hash"], 32) == receipt.block_hash
    return is_there and f"0x{receipt.hash.hex()}" in shown["transactions"]
