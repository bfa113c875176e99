"""Several JSON-RPC endpoints as one: the first that answers in time, within bounds and with a plausible head is used.

An endpoint that refuses, hangs, answers garbage or too much rests for a while, longer each time. One that lags behind the
others or, where that is asked for, behind this machine's clock is passed over while they answer; a newest block that is too
old is given to nobody, for its time is the protocol's clock. When two of them hold different blocks at a depth where a reorg
should be over, one of them lies: that is an error nobody should send transactions past.

Covers: transport and plausibility. Does not cover: an endpoint that lies consistently and alone; give at least two.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import requests

from protocol import canonical, metrics
from protocol.clock import SYSTEM, Clock
from protocol.errors import ChainError, Malformed, RpcUnavailable, StaleHead
from protocol.metrics import host_of
from protocol.retry import Backoff

log = logging.getLogger(__name__)

ANSWER_BYTES_MAX = 64 << 20
_REST_SECONDS, _REST_SECONDS_MAX = 1.0, 60.0
_LAG_BLOCKS = 5  # an endpoint this far behind the newest head is passed over
_WARN_SECONDS = 300.0  # between warnings that a head is still too old
_CHECK_SECONDS = 30.0  # between comparisons of the endpoints' blocks
_BUSY = (-32005, -32002, 429)  # JSON-RPC error codes that mean: not now, ask another
HEAD_SECONDS = 60.0
"""A public chain whose newest block is older than this stands still, or the endpoint lags. Blocks of Base come every 2 s."""
SETTLED_BLOCKS = 12
"""Depth at which honest endpoints agree on a block, and a used nonce has been used for good."""

_CALLS = metrics.counter(
    "murmur_rpc_calls_total", "JSON-RPC calls, by endpoint (host) and method.", "endpoint", "method"
)
_ERRORS = metrics.counter(
    "murmur_rpc_errors_total",
    "Calls that an endpoint did not answer as it should: busy, malformed, oversized, refused, stale head, timeout, unreachable.",
    "endpoint",
    "reason",
)
_SECONDS = metrics.histogram("murmur_rpc_seconds", "Duration of JSON-RPC calls.", "endpoint")
_HEAD = metrics.gauge("murmur_chain_head_block", "Newest block that an endpoint has named.", "endpoint")


class EndpointsDisagree(ChainError):
    default_hint = "one of the configured endpoints lies or is on another fork; remove it"


def shown(url: str) -> str:
    """An endpoint's URL for logs, errors and people: user name, path and query hold the customers' keys of RPC providers."""
    scheme = url.partition("://")[0] if "://" in url else "http"
    host = host_of(url)
    hidden = url.removeprefix(f"{scheme}://").rstrip("/") != host
    return f"{scheme}://{host}{'/…' if hidden else ''}"


@dataclass
class _Endpoint:
    url: str
    settings: dict[str, Any]
    """What the environment says of proxies and certificates, read once and not for every request."""
    head: int = 0
    """Highest block number it has answered with."""
    is_stale: bool = False
    """Whether the newest block that it last answered with was too old."""
    warned: float = float("-inf")
    """Monotonic seconds when its old head was last spoken of."""
    last_error: str = ""

    @property
    def shown(self) -> str:
        return shown(self.url)


class Endpoints:
    """One or more HTTP endpoints as one. Safe to share between threads."""

    def __init__(self, urls: Sequence[str], *, timeout: float, clock: Clock = SYSTEM) -> None:
        """`timeout` in seconds bounds one request to one endpoint, from connecting to the last byte."""
        self._endpoints = [_Endpoint(url, _environment(url)) for url in urls]
        self._timeout = timeout
        self._clock = clock
        self._backoff = Backoff(_REST_SECONDS, _REST_SECONDS_MAX, clock=clock)
        self._local = threading.local()
        self._checked_at = float("-inf")
        self.head_age = 0.0
        """Seconds from which a newest block is too old; 0: none is."""

    def __str__(self) -> str:
        return ", ".join(endpoint.shown for endpoint in self._endpoints)

    def make_request(self, method: str, params: Sequence[Any]) -> dict[str, Any]:
        """The whole JSON-RPC answer of the best endpoint. Raises RpcUnavailable when none gave one, StaleHead when none gave a newest block
        that is fresh enough, EndpointsDisagree."""
        return self.ask(method, params, cap=ANSWER_BYTES_MAX)

    def ask(self, method: str, params: Any, *, turn: int = 0, cap: int = ANSWER_BYTES_MAX) -> dict[str, Any]:
        """As make_request, for an answer of at most `cap` bytes. `turn` counts on among the endpoints that are in step: 0 begins
        with the best of them, 1 with the next."""
        if len(self._endpoints) > 1 and self._clock.monotonic() - self._checked_at > _CHECK_SECONDS:
            self._checked_at = self._clock.monotonic()
            self._compare()
        body = _request(method, params)
        silence: type[RpcUnavailable] = RpcUnavailable
        for endpoint in self._order(turn):
            host = host_of(endpoint.url)
            try:
                with _SECONDS.time(endpoint=host):
                    answer = self._ask(endpoint, body, cap)
            except _Failed as error:
                _ERRORS.add(endpoint=host, reason=error.reason)
                self._note_failure(endpoint, str(error))
                continue
            finally:
                _CALLS.add(endpoint=host, method=method)
            self._backoff.succeeded(endpoint.url)
            self._note_head(endpoint, method, params, answer)
            if endpoint.is_stale and _asks_for_newest(method, params):
                _ERRORS.add(endpoint=host, reason="stale head")
                silence = StaleHead
                continue
            return answer
        raise silence("; ".join(f"{e.shown}: {e.last_error}" for e in self._endpoints))

    # ---- choosing ------------------------------------------------------------------------------------------------------

    def _order(self, turn: int = 0) -> list[_Endpoint]:
        """Awake and in step first, in configured order from `turn` on; the others after them, for then any answer is better
        than none."""
        newest = max(e.head for e in self._endpoints)
        turn %= len(self._endpoints)
        turned = self._endpoints[turn:] + self._endpoints[:turn]
        return sorted(turned, key=lambda e: (e.url in self._backoff, e.is_stale or e.head < newest - _LAG_BLOCKS))

    def _note_failure(self, endpoint: _Endpoint, error: str) -> None:
        endpoint.last_error = error
        rest = self._backoff.failed(endpoint.url)
        if len(self._endpoints) > 1:
            log.warning("RPC endpoint %s failed (%s); resting it for %g s", endpoint.shown, error, rest)

    def _note_head(self, endpoint: _Endpoint, method: str, params: Any, answer: dict[str, Any]) -> None:
        """Learns how far an endpoint is from the answers that pass through."""
        result = answer.get("result")
        if _asks_for_newest(method, params) and isinstance(result, dict):
            self._note_age(endpoint, result)
            result = result.get("number")
        elif method != "eth_blockNumber":
            return
        try:
            number = int(str(result), 16)
        except ValueError:
            return
        newest = max(e.head for e in self._endpoints)
        if number < newest - _LAG_BLOCKS and endpoint.head >= newest - _LAG_BLOCKS:
            log.warning(
                "RPC endpoint %s is at block %d, others were at %d; passing it over", endpoint.shown, number, newest
            )
        endpoint.head = number
        _HEAD.set(number, endpoint=host_of(endpoint.url))

    def _note_age(self, endpoint: _Endpoint, newest: Any) -> None:
        """Learns from its newest block whether an endpoint, or the whole chain, stands still."""
        if not isinstance(newest, dict):
            return
        try:
            age = self._clock.wall() - int(str(newest.get("timestamp")), 16)
        except ValueError:
            return
        endpoint.is_stale = 0 < self.head_age < age
        if not endpoint.is_stale:
            endpoint.warned = float("-inf")
            return
        endpoint.last_error = f"its newest block is {age:.0f} s old"
        if self._clock.monotonic() - endpoint.warned > _WARN_SECONDS:
            endpoint.warned = self._clock.monotonic()
            if all(e.is_stale for e in self._endpoints):
                log.error("the chain stands still: %s says that %s", endpoint.shown, endpoint.last_error)
            else:
                log.warning("RPC endpoint %s lags: %s; passing it over", endpoint.shown, endpoint.last_error)

    def _compare(self) -> None:
        """Asks all endpoints for one settled block. Raises EndpointsDisagree when they hold different ones."""
        heads: dict[str, int] = {}
        for endpoint in self._endpoints:
            try:
                heads[endpoint.url] = endpoint.head = int(self._call(endpoint, "eth_blockNumber", []), 16)
                if self.head_age:
                    self._note_age(endpoint, self._call(endpoint, "eth_getBlockByNumber", ["latest", False]))
            except (_Failed, TypeError, ValueError) as error:
                self._note_failure(endpoint, str(error))
        settled = min(heads.values(), default=0) - SETTLED_BLOCKS
        if len(heads) < 2 or settled < 0:
            return
        hashes: dict[str, str] = {}
        for endpoint in self._endpoints:
            if endpoint.url in heads:
                try:
                    hashes[endpoint.url] = str(
                        self._call(endpoint, "eth_getBlockByNumber", [hex(settled), False])["hash"]
                    )
                except (_Failed, TypeError, KeyError) as error:
                    self._note_failure(endpoint, str(error))
        if len(set(hashes.values())) > 1:
            answers = ", ".join(f"{shown(url)} says {found[:12]}…" for url, found in hashes.items())
            raise EndpointsDisagree(f"the RPC endpoints hold different blocks at {settled}: {answers}")

    # ---- asking --------------------------------------------------------------------------------------------------------

    def _call(self, endpoint: _Endpoint, method: str, params: list[Any]) -> Any:
        return self._ask(endpoint, _request(method, params)).get("result")

    def _ask(self, endpoint: _Endpoint, body: bytes, cap: int = ANSWER_BYTES_MAX) -> dict[str, Any]:
        until = time.monotonic() + self._timeout
        try:
            with self._session().post(
                endpoint.url,
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=self._timeout,
                **endpoint.settings,
            ) as response:
                parts, size = [], 0
                for part in response.iter_content(1 << 16):
                    size += len(part)
                    parts.append(part)
                    if size > cap:
                        raise _Failed(f"answers with more than {cap} bytes", "oversized")
                    if time.monotonic() > until:
                        raise _Failed(f"no whole answer within {self._timeout:g} s", "timeout")
                if response.status_code >= 500 or response.status_code in (401, 403, 404, 429):
                    raise _Failed(f"HTTP {response.status_code}", "refused")
        except requests.exceptions.Timeout as error:
            raise _Failed(f"no answer within {self._timeout:g} s", "timeout") from error
        except (requests.exceptions.RequestException, OSError) as error:
            raise _Failed(f"no answer ({type(error).__name__})", "unreachable") from error
        try:
            answer = canonical.parse(b"".join(parts), "the answer")
        except Malformed as error:
            raise _Failed(str(error), "malformed") from error
        if not isinstance(answer, dict) or not ({"result", "error"} & answer.keys()):
            raise _Failed("the answer is no JSON-RPC", "malformed")
        refusal = answer.get("error")
        if isinstance(refusal, dict) and refusal.get("code") in _BUSY:
            raise _Failed(f"busy: {str(refusal.get('message'))[:100]}", "busy")
        return answer

    def _session(self) -> requests.Session:
        """One per thread: requests' sessions are not safe to share."""
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
            self._local.session.trust_env = False
        session: requests.Session = self._local.session
        return session


def _request(method: str, params: Sequence[Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 0, "method": method, "params": params}).encode()


def _asks_for_newest(method: str, params: Any) -> bool:
    return method == "eth_getBlockByNumber" and bool(params) and params[0] == "latest"


def _environment(url: str) -> dict[str, Any]:
    """Arguments of a streamed request."""
    return dict(requests.Session().merge_environment_settings(url, {}, True, None, None))


class _Failed(Exception):
    """One endpoint did not answer as it should; `reason` is a word for the metrics."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
