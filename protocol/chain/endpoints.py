"""Several JSON-RPC endpoints: as one, of which the best answers, or each by itself, by its place in the configuration.

An endpoint that refuses, hangs, answers garbage or too much rests for a while, longer each time; one that names a time after which
to come back (429 or 503 with Retry-After) is asked nothing before. One that lags is passed over
while others answer. It lags where its newest block is too old, or from the future, by this machine's clock (where that is asked
for); where it is behind a block that two endpoints know; where its head stands still for a minute while another's moves on. A
higher number that one endpoint claims demotes nobody. A newest block of a wrong time is given to nobody, for its time is the
protocol's clock. When endpoints hold different blocks at a depth where a reorg should be over, the minority rests; one
against one is an error nobody should send transactions past, and it is raised until it has passed.

Covers: transport and plausibility. Which of two answers is true: witnesses.py.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from protocol import metrics
from protocol.chain import transport
from protocol.chain.ahead import AskedAhead
from protocol.chain.batches import RpcBatches
from protocol.chain.endpoint import RpcEndpoint
from protocol.chain.ethereum import newest_block, numbered_block, quantity
from protocol.chain.networks import SETTLED_BLOCKS
from protocol.chain.transport import Failed, Request, RpcTransport, reading_answer
from protocol.clock import SYSTEM, Clock
from protocol.errors import RpcUnavailable, StaleHead
from protocol.metrics import host_of
from protocol.retry import Backoff

log = logging.getLogger(__name__)

ANSWER_BYTES_MAX = 64 << 20
_REST_SECONDS, _REST_SECONDS_MAX = 1.0, 60.0
LAG_BLOCKS = 5
"""An endpoint this far behind a head that two know is passed over. Blocks."""
_STALE = "stale head"
_CONTRADICTED = "contradicted"
_SENDING = "eth_sendRawTransaction"  # may have been taken though no answer came: not sent again from here
_SLOW = ("timeout", "oversized")  # not asked for again at once
_CHECK_SECONDS = 60.0  # between comparisons of the endpoints' blocks
PATIENCE_SECONDS = 60.0
"""How long an endpoint may stand still, or be silent after it has answered, before the others go on without it."""
_TRIES, _PAUSE_SECONDS = 3, 0.25
"""How often one endpoint is asked one question when it refuses at once, and the pause between. For questions that go to it by name."""
_SILENT_SECONDS = 2.0
"""How long an endpoint may take that has lately taken the whole time in vain, while another answers."""
_HUNG_SECONDS = 300.0  # after which it is given the whole time again, which may have been too short once only
HEAD_SECONDS = 60.0
"""A public chain whose newest block is older than this stands still, or the endpoint lags. Blocks of Base come every 2 s."""

_CALLS = metrics.counter(
    "murmur_rpc_calls_total", "JSON-RPC calls, by endpoint (host) and method.", "endpoint", "method"
)
_ERRORS = metrics.counter(
    "murmur_rpc_errors_total",
    "Calls that an endpoint did not answer as it should: busy, malformed, oversized, refused, stale head, contradicted, timeout, unreachable.",
    "endpoint",
    "reason",
)
_SECONDS = metrics.histogram("murmur_rpc_seconds", "Duration of JSON-RPC calls.", "endpoint")


class EndpointsDisagree(RpcUnavailable):
    """Nobody can be believed now. A running role waits: it may pass, and nothing enters meanwhile."""

    default_hint = "one of the configured endpoints lies or is on another fork; remove it, or add a third one"


class Endpoints:
    """One or more HTTP endpoints as one. Safe to share between threads."""

    def __init__(self, urls: Sequence[str], *, timeout: float, clock: Clock = SYSTEM) -> None:
        """`timeout` in seconds bounds one request to one endpoint, from connecting to the last byte."""
        self._endpoints = [RpcEndpoint(url, moved=clock.monotonic()) for url in urls]
        for url in urls:
            _ERRORS.add(0, endpoint=host_of(url), reason=_CONTRADICTED)
        self.timeout = timeout
        self.clock = clock
        self._backoff = Backoff(_REST_SECONDS, _REST_SECONDS_MAX, clock=clock)
        self._doubts = Backoff(
            _REST_SECONDS, _REST_SECONDS_MAX, clock=clock
        )  # that it answers again says nothing for it
        self._hiding = Backoff(_REST_SECONDS, _REST_SECONDS_MAX, clock=clock)  # asked for events after the others
        self._held = Backoff(_REST_SECONDS, clock=clock)  # that said when to come back
        self._transport = RpcTransport()
        self._batches = RpcBatches(clock)
        self._threads = threading.local()
        self._checked_at = float("-inf")
        self._confirmed = 0  # the newest block that two endpoints know
        self.head_age = 0.0
        """Seconds from which a newest block is too old, or too far in the future; 0: none is."""

    def __str__(self) -> str:
        return ", ".join(endpoint.shown for endpoint in self._endpoints)

    def make_request(self, method: str, params: Sequence[Any]) -> dict[str, Any]:
        """The whole JSON-RPC answer of the best endpoint. Raises RpcUnavailable when none gave one, StaleHead when none gave a newest block
        that is fresh enough, EndpointsDisagree."""
        return self.ask(method, params, cap=ANSWER_BYTES_MAX)

    def ask(self, method: str, params: Any, *, cap: int = ANSWER_BYTES_MAX) -> dict[str, Any]:
        """As make_request, for an answer of at most `cap` bytes."""
        if (known := self.known(None, method, params)) is not None:
            return known
        self._compare_sometimes()
        silence: type[RpcUnavailable] = RpcUnavailable
        for place in self.order():
            try:
                return self._try(self._endpoints[place], method, params, cap)
            except Failed as error:
                silence = StaleHead if error.reason == _STALE else silence
        raise silence("; ".join(f"{e.shown}: {e.last_error}" for e in self._endpoints))

    def ask_one(self, place: int, method: str, params: Any, *, cap: int = ANSWER_BYTES_MAX) -> dict[str, Any]:
        """As `ask`, of exactly the endpoint at `place`, even where it rests; asked again at once unless it is gone."""
        if (known := self.known(place, method, params)) is not None:
            return known
        self._compare_sometimes()
        endpoint = self._endpoints[place]
        try:
            return self._try(
                endpoint, method, params, cap, tries=1 if method == _SENDING or self.is_gone(place) else _TRIES
            )
        except Failed as error:
            silence = StaleHead if error.reason == _STALE else RpcUnavailable
            raise silence(f"{endpoint.shown}: {endpoint.last_error}") from error

    # ---- asking ahead --------------------------------------------------------------------------------------------------

    @contextmanager
    def ahead(self, ahead: AskedAhead, asked: Sequence[Request], *, cap: int | None = None) -> Iterator[None]:
        """Asks `asked` of one endpoint together; within, this thread's requests take what was answered (ahead.py). What was not is
        asked when it comes up. Raises EndpointsDisagree."""
        outer = self._ahead
        new = [one for one in asked if self.known(ahead.place, *one) is None]
        if len(new) > 1:
            self._compare_sometimes()
            self._fetch(ahead, new, cap or ANSWER_BYTES_MAX)
        ahead.outer, self._threads.ahead = outer, ahead
        try:
            yield
        finally:
            self._threads.ahead = outer

    @property
    def _ahead(self) -> AskedAhead | None:
        """What this thread has asked ahead."""
        return getattr(self._threads, "ahead", None)

    def known(self, place: int | None, method: str, params: Any) -> dict[str, Any] | None:
        """The answer of the endpoint at `place`, None: of any, where it was asked ahead."""
        ahead, found = self._ahead, None
        while ahead is not None and found is None:
            if method == _SENDING:
                ahead.forget()
            elif place in (None, ahead.place):
                found = ahead.take((method, params))
            ahead = ahead.outer
        return found

    def _fetch(self, ahead: AskedAhead, asked: Sequence[Request], cap: int) -> None:
        endpoint = self._endpoints[ahead.place]
        if self.rests(ahead.place):
            return
        host = host_of(endpoint.url)

        def post(body: object) -> Any:
            if endpoint.url in self._held:  # since the part of the list before this one
                raise Failed("asks to be left alone", "busy")
            with _SECONDS.time(endpoint=host), reading_answer():
                return self._post(endpoint, body, cap)

        for request, found in zip(asked, self._batches.ask(endpoint.url, asked, post), strict=True):
            if found is None:
                continue
            answer, begun = found
            _CALLS.add(endpoint=host, method=request[0])
            try:
                with reading_answer():
                    self._note_head(endpoint, *request, answer)
            except Failed as error:
                self._note_failure(endpoint, error)
                continue
            self._note_answer(endpoint)
            if not (endpoint.is_stale and _asks_for_newest(*request)):
                ahead.keep(request, answer, begun)

    # ---- choosing ------------------------------------------------------------------------------------------------------

    def order(self, *, of_logs: bool = False) -> list[int]:
        """Places: awake and in step first, each in configured order; the others after them, for then any answer is better than
        none. `of_logs`: for questions about events, those that are passed over behind their like."""
        return sorted(
            range(len(self._endpoints)),
            key=lambda i: (self.rests(i), self.lags(i), of_logs and self._endpoints[i].url in self._hiding),
        )

    def rests(self, place: int) -> bool:
        url = self._endpoints[place].url
        return url in self._backoff or url in self._doubts or url in self._held

    def lags(self, place: int) -> bool:
        """Whether it is behind, or its newest block too old by this machine's clock."""
        return self._endpoints[place].is_stale or self.is_behind(place)

    def is_behind(self, place: int) -> bool:
        """Whether it is behind the others; what this machine's clock says is no part of it."""
        endpoint, now = self._endpoints[place], self.clock.monotonic()
        ahead = sum(
            other.head > endpoint.head + LAG_BLOCKS and other.moved > endpoint.moved for other in self._endpoints
        )
        is_stuck = now - endpoint.moved >= PATIENCE_SECONDS and ahead >= self._needed
        return endpoint.head < self._confirmed - LAG_BLOCKS or is_stuck

    def is_late(self, place: int) -> bool:
        """Whether it is behind, or its newest block too old, and by so much older than those of others: else it may be this machine's clock that
        is wrong."""
        own = self._endpoints[place]
        newer = sum(
            own.age is not None and each.age is not None and own.age - each.age > self.head_age
            for each in self._endpoints
        )
        return (own.is_stale and newer >= self._needed) or self.is_behind(place)

    @property
    def _needed(self) -> int:
        """How many others make one late: what one of three claims alone does not."""
        return min(2, max(1, len(self._endpoints) - 1))

    def head(self, place: int) -> int:
        """Number of the block that it last called its newest; 0: it has named none."""
        return self._endpoints[place].head

    def is_there(self, place: int) -> bool:
        """Whether it has answered anything, or said that it is busy, so that its silence says nothing."""
        endpoint = self._endpoints[place]
        return endpoint.has_answered or endpoint.is_busy

    def gone(self) -> list[str]:
        """URLs, as people may see them, of those that are."""
        return [each.shown for place, each in enumerate(self._endpoints) if self.is_gone(place)]

    def silent(self) -> list[str]:
        """The same of those that did not answer the last time."""
        return [each.shown for each in self._endpoints if each.silent_since is not None]

    def is_gone(self, place: int) -> bool:
        """Whether it has failed to answer for PATIENCE_SECONDS, whatever it was asked."""
        return self.is_silent(place, PATIENCE_SECONDS)

    def is_silent(self, place: int, seconds: float) -> bool:
        """Whether it has failed to answer for so long; one that only says that it is busy, for PATIENCE_SECONDS at least, and one that may just be
        slow for a third of that, after which it has had its whole time twice."""
        endpoint = self._endpoints[place]
        least = PATIENCE_SECONDS if endpoint.is_busy else PATIENCE_SECONDS / 3 if self._has_hung(endpoint) else 0.0
        least = max(seconds, least)
        return endpoint.silent_since is not None and self.clock.monotonic() - endpoint.silent_since >= least

    def is_busy(self, place: int) -> bool:
        """Whether it said so when it last gave no answer."""
        return self._endpoints[place].is_busy

    def give_time(self, place: int) -> None:
        """Lets an endpoint take the whole time again for its next answer, once in PATIENCE_SECONDS, or three times before it is gone."""
        endpoint, rest = self._endpoints[place], PATIENCE_SECONDS if self.is_gone(place) else PATIENCE_SECONDS / 3
        if self.clock.monotonic() - endpoint.hung >= rest:
            endpoint.hung = float("-inf")

    def is_held(self, place: int) -> bool:
        """Whether it has said when to come back, and it is not time yet."""
        return self._endpoints[place].url in self._held

    def is_away(self, place: int) -> bool:
        """Whether it rests because it did not answer. Who rests for what it said may still be asked."""
        return self._endpoints[place].url in self._backoff

    def distrust(self, place: int, why: str) -> None:
        """Lets an endpoint rest whose answer nothing can be done with, or that the others contradict."""
        endpoint = self._note_lie(place, why)
        rest = self._doubts.failed(endpoint.url)
        log.warning("RPC endpoint %s is not believed (%s); resting it for %g s", endpoint.shown, why, rest)

    def pass_over(self, place: int, why: str, *, seconds: float = 0.0) -> None:
        """Asks an endpoint for events after the others, for `seconds` at least. For transactions and all else it counts as before: who is
        left without it may be left to a liar."""
        endpoint = self._note_lie(place, why)
        rest = max(seconds, self._hiding.left(endpoint.url), self._hiding.failed(endpoint.url))
        self._hiding.hold(endpoint.url, rest)
        log.warning("RPC endpoint %s is asked for events after the others for %g s (%s)", endpoint.shown, rest, why)

    def _note_lie(self, place: int, why: str) -> RpcEndpoint:
        endpoint = self._endpoints[place]
        endpoint.last_error = why
        _ERRORS.add(endpoint=host_of(endpoint.url), reason=_CONTRADICTED)
        return endpoint

    def _try(self, endpoint: RpcEndpoint, method: str, params: Any, cap: int, *, tries: int = 1) -> dict[str, Any]:
        """The answer of one, and what can be learned from it. Raises Failed, which is noted already."""
        host = host_of(endpoint.url)
        for left in reversed(range(tries)):
            self._wait_for(endpoint)
            begun = self.clock.monotonic()
            try:
                with _SECONDS.time(endpoint=host), reading_answer():
                    answer = self._ask(endpoint, method, params, cap)
                    self._note_head(endpoint, method, params, answer)
                break
            except Failed as error:
                _ERRORS.add(endpoint=host, reason=error.reason)
                if not left or error.reason in _SLOW:
                    self._note_failure(endpoint, error)
                    raise
            finally:
                _CALLS.add(endpoint=host, method=method)
            self.clock.sleep(_PAUSE_SECONDS)
        self._note_answer(endpoint)
        if endpoint.is_stale and _asks_for_newest(method, params):
            _ERRORS.add(endpoint=host, reason=_STALE)
            raise Failed(endpoint.last_error, _STALE)
        if (ahead := self._ahead) is not None and self._endpoints[ahead.place] is endpoint:
            ahead.note((method, params), answer, begun)
        return answer

    def _wait_for(self, endpoint: RpcEndpoint) -> None:
        """Waits until an endpoint may be asked again that said when. Raises Failed where that is longer than an answer may take."""
        seconds = self._held.left(endpoint.url)
        if seconds > self.timeout:
            endpoint.last_error, endpoint.is_busy = f"asks to be left alone for {seconds:.0f} s more", True
            if endpoint.silent_since is None:  # it may have answered a part of what it was asked last
                endpoint.silent_since = self.clock.monotonic()
            raise Failed(endpoint.last_error, "busy")
        if seconds:
            self.clock.sleep(seconds)

    def _note_answer(self, endpoint: RpcEndpoint) -> None:
        self._backoff.succeeded(endpoint.url)
        endpoint.silent_since = None
        endpoint.has_answered, endpoint.is_busy = True, False

    def _note_failure(self, endpoint: RpcEndpoint, error: Failed) -> None:
        endpoint.last_error, endpoint.is_busy = str(error), error.reason == "busy"
        if error.reason == "timeout" and self._patience(endpoint) == self.timeout:
            endpoint.hung = self.clock.monotonic()
        if endpoint.silent_since is None:
            endpoint.silent_since = self.clock.monotonic()
        rest = self._backoff.failed(endpoint.url)
        if len(self._endpoints) > 1:
            log.warning("RPC endpoint %s failed (%s); resting it for %g s", endpoint.shown, error, rest)

    def _note_head(self, endpoint: RpcEndpoint, method: str, params: Any, answer: dict[str, Any]) -> None:
        """Learns how far an endpoint is from the answers that pass through. Raises ValueError for what is no head."""
        result = answer.get("result")
        if _asks_for_newest(method, params) and isinstance(result, dict):
            self._note_age(endpoint, result)
            result = result.get("number")
        elif method != "eth_blockNumber":
            return
        if result is not None:
            self._note_number(endpoint, quantity(result))

    def _note_number(self, endpoint: RpcEndpoint, number: int) -> None:
        endpoint.note_number(number, self._confirmed - LAG_BLOCKS, self.clock.monotonic())

    def _note_age(self, endpoint: RpcEndpoint, newest: Any) -> None:
        endpoint.note_age(newest, self.head_age, self.clock, lambda: all(each.is_stale for each in self._endpoints))

    # ---- comparing -----------------------------------------------------------------------------------------------------

    def _compare_sometimes(self) -> None:
        if len(self._endpoints) > 1 and self.clock.monotonic() - self._checked_at > _CHECK_SECONDS:
            self._checked_at = self.clock.monotonic()
            try:
                self._compare()
            except EndpointsDisagree:
                self._checked_at = float("-inf")  # looked at anew before anything else is asked
                raise

    def _compare(self) -> None:
        """Asks all endpoints that do not rest for a failure for their heads and for one settled block. Raises EndpointsDisagree when they hold different ones and
        no majority says which."""
        heads: dict[int, int] = {}
        in_step = [endpoint.head for place, endpoint in enumerate(self._endpoints) if not self.lags(place)]
        likely = (
            min(in_step, default=0) - SETTLED_BLOCKS
        )  # as of the last look, so that it can be asked for in the same request
        for place, endpoint in enumerate(self._endpoints):
            if endpoint.url in self._backoff or endpoint.url in self._held:
                continue
            try:
                with reading_answer():
                    heads[place] = self._look_at(endpoint, likely)
            except Failed as error:
                self._note_failure(endpoint, error)
        if len(heads) < 2:
            return
        self._confirm(heads)
        for is_last in (False, True):  # one false answer is no lie yet
            in_step = [place for place in heads if not self.lags(place)]
            newest = min((heads[place] for place in in_step), default=0) - SETTLED_BLOCKS
            settled = likely if 0 <= likely <= newest else newest
            hashes = self._hashes(in_step, settled) if settled >= 0 else {}
            counted = Counter(hashes.values()).most_common()
            if len(counted) < 2:
                return
            if counted[0][1] > counted[1][1]:
                for place, found in hashes.items():
                    if found != counted[0][0]:
                        self.distrust(place, f"it holds another block {settled}")
                return
            if is_last:
                said = ", ".join(f"{self._endpoints[i].shown} says {found[:12]}…" for i, found in hashes.items())
                raise EndpointsDisagree(f"the RPC endpoints hold different blocks at {settled}: {said}")

    def _look_at(self, endpoint: RpcEndpoint, likely: int) -> int:
        """An endpoint's head, noted; asked for together with what is likely to be compared."""
        asked: list[Request] = [("eth_blockNumber", []), *([newest_block()] if self.head_age else [])]
        endpoint.said.clear()
        if likely >= 0:
            together = [*asked, numbered_block(likely)]
            answers = self._batches.ask(
                endpoint.url, together, lambda body: self._post(endpoint, body, ANSWER_BYTES_MAX)
            )
            endpoint.said.update(
                (str(one), found.answer) for one, found in zip(together, answers, strict=True) if found
            )
        number, *newest = (self._call(endpoint, *one) for one in asked)
        head = quantity(number)
        self._note_answer(endpoint)
        self._note_number(endpoint, head)
        if newest:
            self._note_age(endpoint, newest[0])
        return head

    def _confirm(self, heads: dict[int, int]) -> None:
        """Finds the newest block that two endpoints know; one that only one of them claims must be shown by another as well."""
        ranked = sorted(heads, key=lambda place: -heads[place])
        newest, self._confirmed = heads[ranked[0]], heads[ranked[1]]
        if newest > self._confirmed + LAG_BLOCKS:
            known = Counter(self._hashes(ranked, newest).values()).most_common(1)
            if known and known[0][1] > 1:
                self._confirmed = newest

    def _hashes(self, places: Sequence[int], number: int) -> dict[int, str]:
        """What each holds as a block; who does not know it is left out."""
        hashes: dict[int, str] = {}
        for place in places:
            try:
                with reading_answer():
                    block = self._call(self._endpoints[place], *numbered_block(number))
                    if block is not None:
                        hashes[place] = str(block["hash"])
            except Failed as error:
                self._note_failure(self._endpoints[place], error)
        return hashes

    # ---- asking --------------------------------------------------------------------------------------------------------

    def _call(self, endpoint: RpcEndpoint, method: str, params: Sequence[Any]) -> Any:
        said = endpoint.said.pop(str((method, params)), None)
        return (self._ask(endpoint, method, params) if said is None else said).get("result")

    def _ask(self, endpoint: RpcEndpoint, method: str, params: Sequence[Any], cap: int | None = None) -> dict[str, Any]:
        return transport.answer_of(self._post(endpoint, transport.one(method, params), cap or ANSWER_BYTES_MAX))

    def _post(self, endpoint: RpcEndpoint, body: object, cap: int) -> Any:
        """The JSON that one endpoint answers with. Raises Failed."""
        seconds, now = self._patience(endpoint), self.clock.wall()
        try:
            said, rest = self._transport.post(endpoint.url, body, seconds=seconds, cap=cap, now=now)
            if rest and transport.is_busy(said):
                self._held.hold(endpoint.url, rest)
            return said
        except Failed as error:
            if error.rest:
                self._held.hold(endpoint.url, error.rest)
            raise

    def _patience(self, endpoint: RpcEndpoint) -> float:
        """Seconds that it may take for an answer."""
        is_needed = not self._has_hung(endpoint) or all(each.silent_since is not None for each in self._endpoints)
        return self.timeout if is_needed else min(self.timeout, _SILENT_SECONDS)

    def _has_hung(self, endpoint: RpcEndpoint) -> bool:
        """Whether it has lately taken the whole time in vain, and answered nothing since."""
        return endpoint.silent_since is not None and self.clock.monotonic() - endpoint.hung < _HUNG_SECONDS


def _asks_for_newest(method: str, params: Any) -> bool:
    return method == "eth_getBlockByNumber" and bool(params) and params[0] == "latest"


class OneEndpoint:
    """One of several endpoints by itself: what is asked here no other answers."""

    def __init__(self, endpoints: Endpoints, place: int) -> None:
        self._endpoints = endpoints
        self._place = place

    def make_request(self, method: str, params: Sequence[Any]) -> dict[str, Any]:
        return self.ask(method, params)

    def ask(self, method: str, params: Any, *, cap: int = ANSWER_BYTES_MAX) -> dict[str, Any]:
        return self._endpoints.ask_one(self._place, method, params, cap=cap)
