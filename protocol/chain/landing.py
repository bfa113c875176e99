"""Whether a transaction has landed: the receipt of whichever of its attempts was mined, as endpoints have it now.

One endpoint may invent a receipt, so more than half of all that are configured must have it, or all that are not silent or behind. What
follows from a receipt that is not there, or from one of a failure: finality.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum, auto

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
        """A receipt that enough endpoints have; None while no attempt was mined. `anywhere`: not only that of the preferred endpoint, which may
        lag, or hide what it knows."""
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
        """Whether more than half of the endpoints have the very same receipt; or all that count have it, or its block. One that refuses counts, and
        so does one that has not answered for some seconds only."""
        said: Counter[_Word | None] = Counter({_Word.SAME: 1})
        for one in self._chain.best:
            if one.place != by.place:
                said[self._word(one, receipt)] += 1
            if self._chain.is_majority(said[_Word.SAME]):
                return True
        return not said[_Word.OTHER] and not said[_Word.NONE]

    def _word(self, one: Chain, receipt: TransactionReceipt) -> _Word | None:
        """None from an endpoint that does not count: it has been silent for long, also to this very question, or lags."""
        provider, word, has_answered = self._chain.provider, _Word.NONE, False
        provider.give_time(one.place)
        if not provider.is_held(one.place):
            with suppress(RpcUnavailable), one.errors("confirming a receipt"):
                word, has_answered = _word_of(one, receipt), True
        if word is _Word.NONE and has_answered and provider.is_late(one.place):
            with suppress(RpcUnavailable):
                one.block()  # it counts as late also where nobody has asked it lately
        does_not_count = provider.is_late(one.place) or provider.is_silent(one.place, _SILENT_SECONDS)
        return None if word is _Word.NONE and does_not_count else word

    def known(self, transaction: Transaction) -> TransactionReceipt:
        """The receipt of what is noted as mined. Raises RpcUnavailable where the endpoints do not know it (any more)."""
        assert transaction.hash is not None
        receipt = self.confirmed(transaction, anywhere=True)
        if receipt is None:
            name = f"0x{transaction.hash.hex()}"
            raise RpcUnavailable(f"{transaction.doing}: the endpoint does not know {name}, which was mined")
        return receipt


class _Word(Enum):
    """What an endpoint says to a receipt."""

    SAME = auto()
    BLOCK = auto()
    """It has none, but the block with the transaction in it, so it is not the one to be asked how that ended."""
    OTHER = auto()
    """A receipt that says something else."""
    NONE = auto()
    """Nothing."""


def _word_of(one: Chain, receipt: TransactionReceipt) -> _Word:
    """Raises RpcUnavailable where it refuses to say."""
    block = numbered_block(receipt.block)
    with one.ahead(receipt_request(receipt.hash), block):
        found = one.ethereum.receipt(receipt.hash)
        if found is not None:
            return _Word.SAME if found.says_the_same(receipt) else _Word.OTHER
        method, params = block
        shown = one.ethereum.request(method, *params)
    is_there = shown is not None and data(shown["hash"], 32) == receipt.block_hash
    return _Word.BLOCK if is_there and f"0x{receipt.hash.hex()}" in shown["transactions"] else _Word.NONE
