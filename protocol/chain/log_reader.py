"""Reading a run's events off an endpoint in bounded answers."""

from __future__ import annotations

import logging
from typing import Any

from protocol.chain.client import Chain
from protocol.chain.decoding import Decoder, Log
from protocol.errors import Malformed, RpcUnavailable

log = logging.getLogger(__name__)

ANSWER_BYTES = 16 << 20  # of events in one answer; some 20,000 of them
_MANY = 1_000
"""Providers cut answers at round numbers, and some do not say so."""


class LogReader:
    """Events of one run. Every answer is checked before anything of it is used."""

    def __init__(self, chain: Chain, run: int) -> None:
        self._chain = chain
        self._decoder = Decoder(run, {chain.runs.address: "Runs", chain.court.address: "Court"})

    def read(self, first: int, last: int, *, topics: tuple[Any, ...] = (), turn: int = 0) -> list[Log]:
        """Events in blocks first … last, in order. `topics` narrow down what follows the run; `turn` says with which endpoint
        to begin. Raises RpcUnavailable, also where the answer is refused, too long or suspiciously round.
        """
        query = {
            "address": list(self._decoder.addresses),
            "fromBlock": hex(first),
            "toBlock": hex(last),
            "topics": [None, self._decoder.topic, *topics],
        }
        for more in range(len(self._chain.endpoints)):
            answer = self._chain.ask("eth_getLogs", [query], turn=turn + more, cap=ANSWER_BYTES)
            try:
                logs = self._decoder.decode(answer, first, last)
            except Malformed as error:
                log.warning("an endpoint answered with events that are none: %s", error)
                problem = str(error)
                continue
            if last > first and len(answer) >= _MANY and len(answer) % _MANY == 0:
                raise RpcUnavailable(f"reading events: an answer of exactly {len(answer)} may be cut short")
            return logs
        raise RpcUnavailable(f"reading events: {self._chain.rpc} answered nonsense: {problem}")
