"""Reading a run's events off an endpoint in bounded answers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from protocol.chain import events
from protocol.chain.access import Addresses
from protocol.chain.client import Chain
from protocol.chain.decoding import Decoder, Log
from protocol.chain.endpoints import EndpointsDisagree
from protocol.chain.events import Submitted
from protocol.errors import Malformed, RpcUnavailable

log = logging.getLogger(__name__)

ANSWER_BYTES = 16 << 20  # of events in one answer; some 20,000 of them
SOON_SECONDS = 120.0
"""What has happened for so long may be asked for without saying where it ends."""
REREAD_BLOCKS = 16
"""Asked for once more before the new ones: many providers' logs come some blocks later than their headers, and a backend that lags leaves out
what came since its own head. Twice a poll's blocks on Base. Changing it breaks: nothing; fewer lose events to such a backend."""
_NEWEST = 1 << 62  # above all numbers of blocks
_MANY = 1_000
"""Providers cut answers at round numbers, and some do not say so."""


class LogReader:
    """Events of one run. Every answer is checked before anything of it is used."""

    def __init__(
        self, chain: Chain, run: int, places: Addresses | None = None, others: Mapping[str, str] | None = None
    ) -> None:
        """`places`: where the contracts are, where that is known already. `others`: contracts beside them whose events name a run
        first, as address → artifact; no book has those."""
        self._chain = chain
        self._decoder = Decoder(run, {**(places or chain.places).artifacts, **(others or {})})

    def read(self, first: int, last: int, *, topics: tuple[Any, ...] = ()) -> list[Log]:
        """Events in blocks first … last, in order. `topics` narrow down what follows the run. Raises RpcUnavailable, also where
        the answer is refused, too long or suspiciously round."""
        problem = RpcUnavailable(f"reading events: {self._chain.rpc} did not answer")
        for one in self._chain.best_for_logs:
            try:
                answer, logs = self._ask(one, first, last, topics)
            except EndpointsDisagree:
                raise
            except RpcUnavailable as error:
                problem = error
                continue
            except Malformed as error:
                log.warning("%s answered with events that are none: %s", one.rpc, error)
                problem = RpcUnavailable(f"reading events: {one.rpc} answered nonsense: {error}")
                continue
            if last > first and len(answer) >= _MANY and len(answer) % _MANY == 0:
                raise RpcUnavailable(f"reading events: an answer of exactly {len(answer)} may be cut short")
            return logs
        raise problem

    def _ask(self, one: Chain, first: int, last: int, topics: tuple[Any, ...]) -> tuple[list[Any], list[Log]]:
        """(the answer, its events). What was asked ahead ends at the newest block, and may hold some of later ones than `last`."""
        method, params = self.request(first, None, topics)
        ahead = one.known(method, params)
        if ahead is not None:
            return ahead, [log for log in self._decoder.decode(ahead, first, _NEWEST) if log.block <= last]
        method, params = self.request(first, last, topics)
        answer = one.ask(method, params, cap=ANSWER_BYTES)
        return answer, self._decoder.decode(answer, first, last)

    def request(self, first: int, last: int | None = None, topics: tuple[Any, ...] = ()) -> tuple[str, list[Any]]:
        """What `read` asks; `last` None: up to the newest block, to be asked ahead."""
        query = {
            "address": list(self._decoder.addresses),
            "fromBlock": hex(first),
            "toBlock": "latest" if last is None else hex(last),
            "topics": [None, self._decoder.topic, *topics],
        }
        return "eth_getLogs", [query]

    def of_transaction(self, transaction: bytes, block: int) -> list[Log] | None:
        """Events of one transaction by its receipt; None where there is no receipt. Raises RpcUnavailable, also where it is of
        another block."""
        receipt = self._chain.ask("eth_getTransactionReceipt", [f"0x{transaction.hex()}"], cap=ANSWER_BYTES)
        try:
            return None if receipt is None else self._decoder.decode(receipt["logs"], block, block)
        except (Malformed, TypeError, KeyError) as error:
            raise RpcUnavailable(f"reading a receipt: {self._chain.rpc} answered nonsense: {error}") from error


def content(entry: Log) -> tuple[Any, ...]:
    """What two tellings of one event must agree on."""
    if entry.kind is Submitted:
        _, node, root, step, sequence, units = entry.values
        return entry.block_hash, entry.transaction, node, root, step, sequence, units
    return entry.block_hash, entry.transaction, entry.kind.__name__, events.dumps(entry.kind(*entry.values))
