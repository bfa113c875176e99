"""Several JSON-RPC requests as one of HTTP, for endpoints that are limited or paid by the request.

Nothing hangs on it: what a batch does not answer is asked for one by one, with all that endpoints.py knows of failures. An endpoint
that refuses batches, or answers one wrongly, gets none for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from protocol.chain import transport
from protocol.chain.transport import Failed, Request
from protocol.clock import Clock
from protocol.retry import Backoff

log = logging.getLogger(__name__)

BATCH_MOST = 10
"""Requests in a batch; public endpoints take no more, Base's own among them."""
_REST_SECONDS, _REST_SECONDS_MAX = 60.0, 3_600.0  # without batches, after one that failed

Answer = dict[str, Any]


class Batches:
    """Of all endpoints of a chain."""

    def __init__(self, clock: Clock) -> None:
        self._refused = Backoff(_REST_SECONDS, _REST_SECONDS_MAX, clock=clock)

    def ask(self, url: str, asked: Sequence[Request], post: Callable[[object], Any]) -> list[Answer | None]:
        """An answer for each request, None where it is to be asked for by itself; `post` sends a body to the endpoint."""
        found: list[Answer | None] = []
        for start in range(0, len(asked), BATCH_MOST):
            found += self._ask(url, asked[start : start + BATCH_MOST], post)
        return found

    def _ask(self, url: str, asked: Sequence[Request], post: Callable[[object], Any]) -> list[Answer | None]:
        if len(asked) < 2 or url in self._refused:
            return [None] * len(asked)
        try:
            answers = transport.answers_of(post(transport.batch(asked)), len(asked))
        except Failed as error:
            rest = self._refused.failed(url)
            log.info("an RPC endpoint does not answer a batch (%s); asking one by one for %g s", error, rest)
            return [None] * len(asked)
        self._refused.succeeded(url)
        return [None if "error" in answer else answer for answer in answers]
