"""Asking ahead: what a turn is going to ask of the chain, asked for in one request before it begins.

Code reads as if each question went out when it comes up. Within `Endpoints.ahead` an answer that is here already is taken instead,
if the endpoint and the question are the same. Within a `PollRound` that holds for whatever was asked before: a role that decides what
to do now goes by the chain as it was when it began to. What is sent, or two seconds, make all answers old.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from protocol.chain.transport import Request
from protocol.clock import Clock

if TYPE_CHECKING:
    from protocol.chain.endpoints import Endpoints

_FRESH_SECONDS = 2.0  # a block of Base
_OF_THE_NEWEST = ("eth_call", "eth_getBlockByNumber", "eth_blockNumber", "eth_getBalance")

Answer = dict[str, Any]


class AskedAhead:
    """Answers of one endpoint, at `place` in the configuration, for one thread."""

    def __init__(self, place: int, clock: Clock) -> None:
        self.place = place
        self.outer: AskedAhead | None = None
        """What was asked ahead before, and is asked where this knows nothing."""
        self._clock = clock
        self._kept: dict[Hashable, tuple[Answer, float]] = {}

    def keep(self, asked: Request, answer: Answer, begun: float) -> None:
        """`begun`: monotonic seconds when the request went out: the answer may be as old as that."""
        self._kept[_key(asked)] = answer, begun

    def take(self, asked: Request) -> Answer | None:
        """The answer to a request, where it is here and fresh."""
        found = self._kept.get(_key(asked))
        is_fresh = found is not None and self._clock.monotonic() - found[1] < _FRESH_SECONDS
        return found[0] if found is not None and is_fresh else None

    def note(self, asked: Request, answer: Answer, begun: float) -> None:
        """That the endpoint has answered a request within; arguments as of `keep`."""

    def forget(self) -> None:
        self._kept.clear()


class PollRound(AskedAhead):
    """One round of a role, which asks much the same as the round before."""

    def __init__(self, place: int, clock: Clock) -> None:
        super().__init__(place, clock)
        self._asked: dict[Hashable, Request] = {}

    @property
    def asked(self) -> list[Request]:
        """What was asked of the newest block, for the next round."""
        return list(self._asked.values())

    def take(self, asked: Request) -> Answer | None:
        if _is_of_the_newest(asked):
            self._asked[_key(asked)] = asked
        return super().take(asked)

    def note(self, asked: Request, answer: Answer, begun: float) -> None:
        if _is_of_the_newest(asked):
            self.keep(asked, answer, begun)


class PollRounds:
    """The rounds of one loop, one after the other: each asks ahead what the one before has asked."""

    def __init__(self, provider: Endpoints) -> None:
        self._provider = provider
        self._round: PollRound | None = None
        self._last: list[Request] = []

    @contextmanager
    def turn(self, *also: Request) -> Iterator[None]:
        """Within, each question about the newest block is asked once; `also` is asked ahead with them. Raises EndpointsDisagree."""
        self._round = PollRound(self._provider.order()[0], self._provider.clock)
        with self._provider.ahead(self._round, [*self._last, *also]):
            yield
        self._last = self._round.asked

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within, what the last turn was answered is taken while it is fresh."""
        assert self._round is not None
        with self._provider.ahead(self._round, ()):
            yield
        self._last = self._round.asked


def _is_of_the_newest(asked: Request) -> bool:
    method, params = asked
    return method in _OF_THE_NEWEST and (not params or any(each == "latest" for each in params))


def _key(asked: Request) -> Hashable:
    method, params = asked
    key = (method, *params)
    try:
        hash(key)
    except TypeError:  # a call, or a filter
        return json.dumps(key, sort_keys=True)
    return key
