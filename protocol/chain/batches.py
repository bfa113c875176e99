"""Several JSON-RPC requests as one of HTTP, for endpoints that are limited or paid by the request.

Nothing hangs on it: what a batch does not answer is asked for one by one, with all that endpoints.py knows of failures. An endpoint
that refuses batches, or answers one wrongly, gets none for a while; one that is too busy for some of a batch is asked for those alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from protocol.chain import transport
from protocol.chain.multicall import Multicall
from protocol.chain.transport import Failed, Request
from protocol.clock import Clock
from protocol.retry import Backoff

log = logging.getLogger(__name__)

BATCH_MOST = 10
"""Requests in a batch; public endpoints take no more, Base's own among them."""
_REST_SECONDS, _REST_SECONDS_MAX = 60.0, 3_600.0  # without batches, after one that failed

Answer = dict[str, Any]


class Fetched(NamedTuple):
    answer: Answer
    begun: float
    """Monotonic seconds when its request went out."""


class RpcBatches:
    """Of all endpoints of a chain."""

    def __init__(self, clock: Clock) -> None:
        self._refused = Backoff(_REST_SECONDS, _REST_SECONDS_MAX, clock=clock)
        self._multicall = Multicall(clock)
        self._clock = clock

    def ask(self, url: str, asked: Sequence[Request], post: Callable[[object], Any]) -> list[Fetched | None]:
        """An answer for each request, None where it is to be asked for by itself; `post` sends a body to the endpoint."""
        found: list[Fetched | None] = [None] * len(asked)
        planned = self._multicall.plan(url, asked)
        for start in range(0, len(planned), BATCH_MOST):
            part = planned[start : start + BATCH_MOST]
            begun = self._clock.monotonic()
            answers = self._ask(url, [request for request, _ in part], post)
            for (_, places), answer in zip(part, answers, strict=True):
                if answer is not None:
                    for place, one in zip(places, self._multicall.answers(url, places, answer), strict=True):
                        found[place] = None if one is None else Fetched(one, begun)
        return found

    def _ask(self, url: str, asked: Sequence[Request], post: Callable[[object], Any]) -> list[Answer | None]:
        if url in self._refused:
            return [None] * len(asked)
        try:
            if len(asked) == 1:
                answers = [transport.answer_of(post(transport.one(*asked[0])))]
            else:
                answers = transport.answers_of(post(transport.batch(asked)), len(asked))
        except Failed as error:
            if error.reason == "busy":  # and would not be less so for requests one by one
                return [None] * len(asked)
            rest = self._refused.failed(url)
            log.info("an RPC endpoint does not answer a batch (%s); asking one by one for %g s", error, rest)
            return [None] * len(asked)
        self._refused.succeeded(url)
        return [None if "error" in answer else answer for answer in answers]
