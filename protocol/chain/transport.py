"""JSON-RPC over HTTP to one endpoint: one POST, bounded in time and bytes, and in a word what was wrong with the answer.

Covers: connections, deadlines, sizes, JSON. Which endpoint to ask, and what to believe: endpoints.py, witnesses.py.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from math import isfinite
from traceback import extract_tb
from typing import Any, NamedTuple, cast

import requests
import urllib3
from urllib3 import HTTPConnectionPool

from protocol import canonical
from protocol.chain import bounded
from protocol.errors import Malformed
from protocol.http_url import secrets_of

_HELD_SECONDS_MAX = 600.0  # whatever a Retry-After says
_BUSY = (-32005, -32002, 429)  # JSON-RPC error codes that mean: not now, ask another

Request = tuple[str, Sequence[Any]]
"""(method, params)"""


class Failed(Exception):
    """One endpoint did not answer as it should; `reason` is a word for the metrics. `rest`: seconds for which it asks to be left alone."""

    def __init__(self, message: str, reason: str, *, rest: float = 0.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.rest = rest


@contextmanager
def reading_answer() -> Iterator[None]:
    """Whatever goes wrong within, in making sense of what an endpoint sent, is that endpoint's failure: raises Failed."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Not with its words: the URL may be among them. With its place, for it may be a mistake of ours.
        at = extract_tb(error.__traceback__)[-1]
        place = f"{at.filename.rpartition('/')[2]}:{at.lineno}"
        raise Failed(f"answers nonsense ({type(error).__name__} in {place})", "malformed") from None


class RpcTransport:
    """Safe to share between threads."""

    def __init__(self) -> None:
        self._ways = _Ways()

    def post(self, url: str, body: object, *, seconds: float, cap: int, now: float) -> tuple[Any, float]:
        """(the JSON that an endpoint answers with, whatever it says; the seconds of its Retry-After, 0 without). `now` is Unix time.
        Raises Failed."""
        until = time.monotonic() + seconds
        try:
            with bounded.within(seconds), self._ways.to(url).post(json.dumps(body).encode(), seconds) as response:
                parts, size = [], 0
                for part in response.stream(1 << 16):
                    size += len(part)
                    parts.append(part)
                    if size > cap:
                        raise Failed(f"answers with more than {cap} bytes", "oversized")
                status, rest = response.status, _seconds(response.headers.get("Retry-After"), now)
                if status >= 500 or status in (401, 403, 404, 429):
                    rest = rest if status in (429, 503) else 0.0
                    raise Failed(f"HTTP {status}", "busy" if status == 429 else "refused", rest=rest)
                if 300 <= status < 400:
                    raise Failed(f"HTTP {status}: sends whoever asks elsewhere, and is not followed", "refused")
        # What these libraries raise has the URL in it, and so would a traceback.
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            if _is_late(error) or time.monotonic() >= until:
                raise Failed(f"no answer within {seconds:g} s", "timeout") from None
            from protocol.deadline import why

            raise Failed(f"no answer ({why(error)})", "unreachable") from None
        try:
            return _hushed(canonical.parse(b"".join(parts), "the answer"), url), rest
        except Malformed as error:
            raise Failed(str(error), "malformed") from error


class _Ways(threading.local):
    """To endpoints, by URL. Of one thread, so that a connection to each is enough."""

    def __init__(self) -> None:
        self._of: dict[str, _Way] = {}

    def to(self, url: str) -> _Way:
        return self._of.get(url) or self._of.setdefault(url, _way(url))


class _Way(NamedTuple):
    connections: HTTPConnectionPool
    path: str
    headers: dict[str, str]

    @contextmanager
    def post(self, body: bytes, seconds: float) -> Iterator[urllib3.BaseHTTPResponse]:
        """The answer as it comes."""
        response = self.connections.urlopen(
            "POST", self.path, body=body, headers=self.headers, timeout=seconds, retries=False, redirect=False,
            assert_same_host=False, preload_content=False,
        )  # fmt: skip
        try:
            yield response
        finally:
            response.close()  # what was read to its end has its connection kept


def _way(url: str) -> _Way:
    """What requests makes of a URL, of a user and a password in it, and of what the environment says of proxies and certificates; it would do so
    anew for each request, in twice the time of the rest."""
    session = requests.Session()
    settings = session.merge_environment_settings(url, {}, True, None, None)
    session.trust_env = False
    request = session.prepare_request(requests.Request("POST", url, headers={"Content-Type": "application/json"}))
    proxies, verify = settings["proxies"], settings["verify"]
    adapter = bounded.Adapter(pool_connections=1, pool_maxsize=1)
    connections = cast(HTTPConnectionPool, adapter.get_connection_with_tls_context(request, verify, proxies=proxies))
    adapter.cert_verify(connections, url, verify, None)
    headers = {name: value for name, value in request.headers.items() if name != "Content-Length"}
    return _Way(connections, adapter.request_url(request, proxies), headers)


def _is_late(error: Exception) -> bool:
    """A refused connection is a late one to urllib3."""
    late, unmade = urllib3.exceptions.TimeoutError, urllib3.exceptions.NewConnectionError
    return isinstance(error, late) and not isinstance(error, unmade)


def one(method: str, params: Sequence[Any]) -> dict[str, Any]:
    """The body of a single request."""
    return _numbered(0, method, params)


def batch(asked: Sequence[Request]) -> list[dict[str, Any]]:
    """The body of several requests in one (https://www.jsonrpc.org/specification#batch)."""
    return [_numbered(number, method, params) for number, (method, params) in enumerate(asked)]


def answer_of(said: object) -> dict[str, Any]:
    """The answer to a single request. Raises Failed where it is none, or says that the endpoint is busy."""
    answer = _answer(said)
    if is_busy(answer):
        raise Failed(f"busy: {str(answer['error'].get('message'))[:100]}", "busy")
    return answer


def is_busy(said: object) -> bool:
    """Whether an answer, or one of a batch, says that the endpoint has too much to do."""
    if isinstance(said, list):
        return any(map(is_busy, said))
    refusal = said.get("error") if isinstance(said, dict) else None
    return isinstance(refusal, dict) and refusal.get("code") in _BUSY


def answers_of(said: object, count: int) -> list[dict[str, Any]]:
    """The answers to a batch in the order of its requests; they come in any, and some may say that the endpoint is busy. Raises Failed
    unless each request has exactly one."""
    if not isinstance(said, list):
        answer_of(said)
        raise Failed("takes no batches", "unbatched")
    if len(said) != count:
        raise Failed(f"{len(said)} answers to a batch of {count}", "malformed")
    found: dict[int, dict[str, Any]] = {}
    for each in said:
        answer, number = _answer(each), each.get("id")
        if type(number) is not int or not 0 <= number < count or number in found:
            raise Failed(f"an answer to a batch has the id {str(number)[:20]}, which is none or another's", "malformed")
        found[number] = answer
    return [found[number] for number in range(count)]


def _answer(said: object) -> dict[str, Any]:
    if not isinstance(said, dict) or not ({"result", "error"} & said.keys()):
        raise Failed("the answer is no JSON-RPC", "malformed")
    return said


def _hushed(said: Any, url: str) -> Any:
    """An answer, or a batch of them, in whose refusals nothing of the URL's secrets is repeated: they are shown to people."""
    for each in said if isinstance(said, list) else [said]:
        refusal = each.get("error") if isinstance(each, dict) else None
        if isinstance(refusal, dict):
            each["error"] = {name: _without(secrets_of(url), text) for name, text in refusal.items()}
    return said


def _without(secrets: Sequence[str], said: Any) -> Any:
    if isinstance(said, str) and not said.startswith("0x"):  # what a contract said is no words of the endpoint's
        for secret in secrets:
            said = said.replace(secret, "…")
    return said


def _numbered(number: int, method: str, params: Sequence[Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def _seconds(retry_after: str | None, now: float) -> float:
    """What a Retry-After says, in seconds or as a date; 0 where it says nothing that can be read."""
    try:
        seconds = float(retry_after or 0)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(str(retry_after)).timestamp() - now
        except (ValueError, OverflowError):  # a year or a zone beyond all calendars
            return 0.0
    return min(max(0.0, seconds), _HELD_SECONDS_MAX) if isfinite(seconds) else 0.0
