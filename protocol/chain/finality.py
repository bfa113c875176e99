"""What is believed of a transaction: how deep in the chain, and from how many endpoints.

An endpoint may answer from any earlier state of the chain, at every call from another one: behind one URL stand many machines,
which lag, prune and are restored. So nothing follows from a receipt that is not there, nor from a count of transactions. What
decides is a block with `depth` blocks on it, each naming the hash of the one before: however old these answers are, that block
once was as deep, and no reorg reaches it. How deep reorgs reach each network says (networks.py); 0: there are none. Of several
endpoints more than half must show the same, of all that are configured: who is silent may be so for a liar's sake.

Covers: endpoints that lag, forget and contradict themselves; one that lies beside two honest ones. Does not cover: blocks that
most of the endpoints, or the only one, invent.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from protocol.chain.batches import BATCH_MOST
from protocol.chain.client import Chain
from protocol.chain.ethereum import RpcRefusal, data, numbered_block, quantity, receipt_request
from protocol.chain.transport import Request
from protocol.errors import RpcUnavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

LONG_AGO = b"long ago"
"""In place of a hash: something used a nonce so long ago that no endpoint shows what, and no receipt of ours is there (any more)."""
_REFUSED = -1  # in place of a count
_KEPT_BLOCKS = 64  # whose states any node has; most keep 128
_ANSWERS = 4
"""Times the time for one answer that one of several endpoints has for a question that takes many: one that names a head beyond all blocks could else
hold a deed for a hundred answers, each a moment before it is late."""


class Landed(NamedTuple):
    """What became of a transaction for good."""

    succeeded: bool
    block: int


class Finality:
    def __init__(self, chain: Chain, account: str, depth: int) -> None:
        self._chain = chain
        self._account = account.lower()
        self.depth = depth
        self._searches: dict[tuple[int, int], dict[int, int]] = {}
        """Counts of transactions by block, of an endpoint's place and a nonce, where its answers took too long for one look."""

    def is_young(self, block: int, newest: int) -> bool:
        """Whether a block is there that is not deep enough yet, so that nothing can follow from it."""
        return 0 <= newest - block < self.depth

    def requests(self, transaction: bytes, block: int) -> list[Request]:
        """What `outcome` asks first, of a transaction in this block: so much that the rest of it is one batch."""
        blocks = range(block + self.depth, block, -1) or [block]
        asked = [receipt_request(transaction), *map(numbered_block, blocks)]
        return asked[: max(2, len(asked) - BATCH_MOST)]

    def outcome(self, transaction: bytes, block: int) -> Landed | None:
        """What became of a transaction that is in the chain for good. None: it is not (yet), or that cannot be told. `block`: where it
        was seen."""

        def question(one: Chain) -> Landed | None:
            with one.ahead(*self.requests(transaction, block)):
                receipt = one.ethereum.receipt(transaction)
                if receipt is None or self._settled(one, receipt.block) != receipt.block_hash:
                    return None  # it may be in a block of the same number again, and end otherwise there
                return Landed(receipt.succeeded, receipt.block)

        return self._majority(question, "what became of a transaction")

    def is_past(self, block: int) -> bool:
        """Whether `outcome` could be told by now of what is in a block: it is deep enough, or there is none of this number."""

        def question(one: Chain) -> bool | None:
            return self._block(one, block + self.depth) is not None or self._block(one, block) is None or None

        return self._majority(question, f"whether block {block} is past") is True

    def count(self) -> int | None:
        """Transactions of the account, as more than half of the endpoints have them at least; None where too few answer."""
        counts = self._said(
            "how many transactions there are", lambda one: one.ethereum.transaction_count(self._account)
        )
        highest = sorted(counts, reverse=True)
        return next((count for many, count in enumerate(highest, 1) if self._chain.is_majority(many)), None)

    def user(self, nonce: int, ours: Collection[bytes], signed: Collection[bytes] = ()) -> bytes | None:
        """Hash of the transaction that used a nonce of the account for good, LONG_AGO, or None: none has (yet), or it cannot be told.

        Asks for counts of transactions in past blocks, which an endpoint keeps for some 128 blocks at least; where it has them no more, for
        the receipts of `ours` and of `signed`, all that was signed here with this nonce. While one endpoint names one of `ours`, it was not long ago.
        """

        def question(one: Chain) -> bytes | None:
            try:
                number = self._used_in(one, nonce)
            except _Forgotten:
                return self._landed_long_ago(one, {*ours, *signed})
            found = None if number is None else self._block(one, number, full=True)
            if number is None or found is None or self._settled(one, number) != data(found["hash"], 32):
                self._searches.pop((one.place, nonce), None)
                return None
            for each in found["transactions"]:
                if each["from"].lower() == self._account and quantity(each["nonce"]) == nonce:
                    return data(each["hash"], 32)
            self._searches.pop((one.place, nonce), None)  # a count was wrong
            return None

        votes: Counter[bytes] = Counter()
        for user in self._said(f"what used nonce {nonce}", question):
            votes[user] += 1
            if self._chain.is_majority(votes[user]):
                return user
        is_lost = LONG_AGO in votes and not votes.keys() & set(ours)  # the others name what was not signed here
        return LONG_AGO if is_lost and self._chain.is_majority(votes.total()) else None

    def _majority(self, question: Callable[[Chain], T | None], about: str) -> T | None:
        votes: Counter[T] = Counter()
        for answer in self._said(about, question):
            votes[answer] += 1
            if self._chain.is_majority(votes[answer]):
                return answer
        return None

    def _said(self, about: str, question: Callable[[Chain], T | None]) -> Iterator[T]:
        """What each endpoint says that can tell."""
        for one in self._chain.best:
            try:
                with one.errors(f"asking {about}"):
                    answer = question(one)
            except RpcUnavailable as error:
                log.debug("%s", error)
                continue
            if answer is not None:
                yield answer

    def _landed_long_ago(self, one: Chain, ours: Collection[bytes]) -> bytes | None:
        """Which of ours has a receipt, LONG_AGO where none has; None from an endpoint that does not know the blocks of now."""
        newest = one.block_number()
        with one.ahead(numbered_block(newest), *map(receipt_request, ours)):  # together, so that one machine answers
            if self._block(one, newest) is None:
                return None
            return next((each for each in ours if one.ethereum.receipt(each) is not None), LONG_AGO)

    def _settled(self, one: Chain, number: int) -> bytes | None:
        """Hash of a block that `depth` others stand on, as the first of them names it. None where one is missing, or they are not of one
        chain."""
        above = self._block(one, number + self.depth)  # mostly it is the one that is missing
        below = range(number + self.depth - 1, number, -1)
        with one.ahead(*map(numbered_block, below if above is not None else ())):
            for each in below:
                if above is None:
                    return None
                found = self._block(one, each)
                above = found if found is not None and above["parentHash"] == found["hash"] else None
        return None if above is None else data(above["parentHash" if self.depth else "hash"], 32)

    def _block(self, one: Chain, number: int, *, full: bool = False) -> Mapping[str, Any] | None:
        method, params = numbered_block(number, full=full)
        found: Mapping[str, Any] | None = one.ethereum.request(method, *params)
        return found if found is not None and quantity(found["number"]) == number else None

    def _until(self) -> float:
        """Until when one of several endpoints may answer a question that takes many, by the clock of its deadlines."""
        provider = self._chain.provider
        return provider.clock.monotonic() + (
            _ANSWERS * provider.timeout if len(self._chain.singles) > 1 else float("inf")
        )

    def _used_in(self, one: Chain, nonce: int) -> int | None:
        """The block that a nonce was used in, as the counts have it; None where it is not used in any that is deep enough. What it answered is kept:
        where time ends, or it is busy, the next look goes on from there."""
        search = one.place, nonce
        counts, until = self._searches.setdefault(search, {}), self._until()

        def is_used(number: int) -> bool:
            if number not in counts:
                if self._chain.provider.clock.monotonic() > until:
                    raise RpcUnavailable(f"{one.rpc} takes too long to tell")
                try:
                    counts[number] = one.ethereum.transaction_count(self._account, number)
                except RpcRefusal:  # mostly: it does not keep states of so long ago
                    counts[number] = _REFUSED
            return counts[number] > nonce

        last = max(counts) if counts else one.block_number() - self.depth
        if last < 0 or not is_used(last):
            return None
        stride, first = 1, last - 1
        while first >= 0 and is_used(first):  # mostly it was a moment ago
            last, stride, first = first, 2 * stride, first - 2 * stride
        first = max(first, -1)
        while last - first > 1:
            middle = (first + last) // 2
            if is_used(middle):
                last = middle
            else:
                first = middle
        if counts.get(last - 1) == _REFUSED:
            again = self._asked_again(one, last - 1)
            self._searches[search] = {at: found for at, found in counts.items() if found != _REFUSED} | {
                last - 1: again
            }
            raise RpcUnavailable(f"{one.rpc} refused what it answers now")
        return last

    def _asked_again(self, one: Chain, number: int) -> int:
        """The count of a block that an endpoint has refused before. Raises _Forgotten where it answers for newer blocks alone, RpcRefusal where it is
        only busy."""
        try:
            return one.ethereum.transaction_count(self._account, number)
        except RpcRefusal as error:
            newest = one.block_number() - self.depth
            one.ethereum.transaction_count(self._account, newest)
            if newest - number <= _KEPT_BLOCKS:
                raise
            raise _Forgotten from error


class _Forgotten(Exception):
    """A nonce was used, and in which block an endpoint knows no more."""
