"""Which endpoint to believe. One rule says who may decide what, and everything that asks several endpoints goes by it:

- An answer stands that two of the configured endpoints give, and more than give another. Who says otherwise rests. As many
  against as many are EndpointsDisagree: a role waits until that has passed.
- One voice is enough for what lasts only while all others are gone: silent for PATIENCE_SECONDS whatever they are asked, or, where
  events are asked for, without logs for as long. Silence that is shorter, a refusal and "I do not know that block" are no voice
  and no absence: the role waits (Lone.IF_GONE).
- One voice is never enough for what is final: what moves `read_twice`, and what changes the book up to there (Lone.NOTHING).
- Blocks that one endpoint alone has told (above the book's fact `agreed`) are provisional. While any other answers they end
  _ALONE_BLOCKS above the last block that two had, and they go as soon as two have a shorter or another chain (sync.py).

Each question goes to one endpoint at a time, so that it is known who answered. Where one endpoint is configured its word is all
there is, and nothing here costs a request more.

Covers: one endpoint that lies in whatever it is asked, beside one or more honest ones that may fail, lag or refuse. Does not
cover: two that tell the same lie; what is entered while the others are gone, until they are back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from typing import Any, Generic, TypeVar

from protocol.chain.access import Addresses
from protocol.chain.client import Chain
from protocol.chain.decoding import Log
from protocol.chain.endpoints import LAG_BLOCKS, PATIENCE_SECONDS, EndpointsDisagree
from protocol.chain.events import Skipped, Submitted
from protocol.chain.log_reader import LogReader, content
from protocol.chain.transport import Request
from protocol.chain.types import Block
from protocol.errors import RpcUnavailable, WrongChain

log = logging.getLogger(__name__)

T = TypeVar("T")
_ALONE_BLOCKS = 64
"""How far the chain is followed by one endpoint while another answers, or did within PATIENCE_SECONDS. Blocks."""
_MINOR = (Submitted, Skipped)
"""Events that give nobody rights at once: they enter on one endpoint's word until they are read a second time."""


class Lone(Enum):
    """What one voice decides where several endpoints are configured."""

    NOTHING = "nothing"
    IF_GONE = "as much as two, while all others are gone"
    ENOUGH = "as much as two"


@dataclass(frozen=True)
class Footing:
    """What one look at the chain stands on."""

    source: Chain
    """The endpoint that is read."""
    witness: Chain | None
    """Another, which has the same head; None: there is none now."""
    head: Block
    """The newest block that both have."""


@dataclass(frozen=True)
class Said(Generic[T]):
    """What endpoints answered."""

    answer: T
    is_sure: bool
    """Whether two said it, or the only one that is configured."""


class Witnesses:
    def __init__(self, chain: Chain, run: int) -> None:
        self._chain = chain
        self._run = run
        self._places: tuple[Said[Addresses], float] | None = None  # of the contracts, and when they were asked for
        self._readers: dict[Addresses, list[LogReader]] = {}  # by these addresses, in configured order
        self._without_logs: dict[int, float] = {}  # place → monotonic seconds since when it gives no logs

    @property
    def are_several(self) -> bool:
        return len(self._chain.singles) > 1

    @property
    def has_one_left(self) -> bool:
        """Whether all but one endpoint are gone, or give no logs for as long."""
        return any(self._is_only(one, of_logs=True) for one in self._chain.singles)

    def reachable(self) -> list[Chain]:
        """The best first; none that rests for its silence, where one does not."""
        best = self._chain.best_for_logs
        return [one for one in best if not self._chain.provider.is_away(one.place)] or best

    def pass_over(self, one: Chain, why: str, *, seconds: float = 0.0) -> None:
        """Another is asked for events first for a while, `seconds` at least, where there is one."""
        if self.are_several:
            self._chain.provider.pass_over(one.place, why, seconds=seconds)

    def others(self, one: Chain) -> str:
        """The others' names, for people."""
        return ", ".join(other.rpc for other in self._chain.singles if other is not one)

    def _is_only(self, one: Chain, *, of_logs: bool = False) -> bool:
        """Whether all others are gone; `of_logs`: or give no logs for as long."""
        places = [other.place for other in self._chain.singles if other is not one]
        return all(self._chain.provider.is_gone(place) or (of_logs and self._lacks_logs(place)) for place in places)

    # ---- logs ----------------------------------------------------------------------------------------------------------

    def read(self, one: Chain, first: int, last: int, *, topics: tuple[Any, ...] = ()) -> list[Log]:
        """As LogReader.read of one endpoint; notes whether it gives logs at all."""
        reader = self._reader(one)
        try:
            found = reader.read(first, last, topics=topics)
        except EndpointsDisagree:
            raise
        except RpcUnavailable:
            self._without_logs.setdefault(one.place, self._chain.provider.clock.monotonic())
            raise
        self._without_logs.pop(one.place, None)
        return found

    def reading(self, one: Chain, first: int) -> Request:
        """The request for all events of one endpoint from block `first` on."""
        return self._reader(one).request(first)

    def _lacks_logs(self, place: int) -> bool:
        """Whether every reading of its logs has failed for PATIENCE_SECONDS."""
        since = self._without_logs.get(place)
        return since is not None and self._chain.provider.clock.monotonic() - since >= PATIENCE_SECONDS

    def _reader(self, one: Chain) -> LogReader:
        places = self._find_places()
        if places not in self._readers:
            self._readers[places] = [LogReader(each, self._run, places) for each in self._chain.singles]
        return self._readers[places][one.place]

    def _find_places(self) -> Addresses:
        """Where the contracts are. What one endpoint alone has said is asked again after a while; what two have, is not."""
        now = self._chain.provider.clock.monotonic()
        if self._places is None or not (self._places[0].is_sure or now - self._places[1] < PATIENCE_SECONDS):
            said = self.said(lambda one: one.ask_places(), "where the contracts are")
            if said is None:
                raise RpcUnavailable("no endpoint names the addresses of the contracts")
            self._places = said, now
        return self._places[0].answer

    # ---- where the chain ends ------------------------------------------------------------------------------------------

    def footing(self, known: Block | None, agreed: int) -> Footing:
        """Where the chain ends now. While the best endpoint's head is `known` nobody else is asked. `agreed`: the newest block of the
        book that two have told. Raises RpcUnavailable."""
        if not self.are_several:
            return Footing(self._chain, None, self._chain.block())
        heads: list[tuple[Chain, Block]] = []
        silence = RpcUnavailable(f"reading a block: {self._chain.rpc} did not answer")
        for one in self._chain.best_for_logs:
            if heads and self._chain.provider.is_away(one.place):
                continue
            try:
                newest = one.block()
            except EndpointsDisagree:
                raise
            except RpcUnavailable as error:
                silence = error
                continue
            if not heads and known is not None and newest == known:
                return Footing(one, None, newest)
            if heads and self._chain.provider.lags(one.place):
                continue
            heads.append((one, newest))
            if (
                len(heads) == 2
                and abs(heads[0][1].number - newest.number) <= LAG_BLOCKS
                and (shared := _shared(*heads))
            ):
                return self._pair(heads[0][0], one, shared)
        if not heads:
            raise silence
        if len(heads) == 1:
            return self._alone(*heads[0], agreed)
        for pair in sorted(combinations(heads, 2), key=lambda pair: -min(head.number for _, head in pair)):
            if (shared := _shared(*pair)) is not None:
                self._distrust_others(heads, shared)
                return self._pair(pair[0][0], pair[1][0], shared)
        said = ", ".join(f"{one.rpc} says {head.number} 0x{head.hash.hex()[:10]}…" for one, head in heads)
        raise EndpointsDisagree(f"the RPC endpoints name different newest blocks: {said}")

    def _pair(self, one: Chain, other: Chain, shared: Block) -> Footing:
        """The first is read, where it gives logs."""
        if one.place in self._without_logs and other.place not in self._without_logs:
            one, other = other, one
        return Footing(one, other, shared)

    def _alone(self, one: Chain, head: Block, agreed: int) -> Footing:
        if head.number > agreed + _ALONE_BLOCKS and not self._is_only(one):
            raise RpcUnavailable(
                f"only {one.rpc} is at block {head.number}, {self.others(one)} not, and block {agreed} is the last that two had",
                hint="if this stays, one of them stands still or lies: remove it, or add a third one",
            )
        return Footing(one, None, head)

    def _distrust_others(self, heads: Sequence[tuple[Chain, Block]], shared: Block) -> None:
        for one, head in heads:
            if head.number >= shared.number and _block(one, shared.number) not in (None, shared):
                self._chain.provider.distrust(one.place, f"others hold another block {shared.number}")

    # ---- questions -----------------------------------------------------------------------------------------------------

    def said(
        self,
        question: Callable[[Chain], T | None],
        about: str,
        lone: Lone = Lone.IF_GONE,
        *,
        of_logs: bool = False,
    ) -> Said[T] | None:
        """What the rule above makes of the answers; `of_logs`: the question is one about events. None where nobody knows.

        Raises EndpointsDisagree; RpcUnavailable where one says so whose word is not enough; what was raised where nobody answers.
        """
        if not self.are_several:
            found = question(self._chain)
            return None if found is None else Said(found, True)
        votes, silence = self._votes(question)
        if not votes:
            if silence is not None:
                raise silence
            return None
        ranked = sorted(votes.items(), key=lambda vote: -len(vote[1]))
        answer, voices = ranked[0]
        if len(ranked) > 1 and len(ranked[1][1]) == len(voices):
            sides = " against ".join(" and ".join(one.rpc for one in side) for _, side in ranked)
            raise EndpointsDisagree(f"the RPC endpoints disagree on {about}: {sides}")
        if len(voices) == 1 and (
            lone is Lone.NOTHING or (lone is Lone.IF_GONE and not self._is_only(voices[0], of_logs=of_logs))
        ):
            raise RpcUnavailable(
                f"only {voices[0].rpc} tells of {about}; waiting for {self.others(voices[0])}",
                hint="a running role waits; a command that is in a hurry is given only endpoints that answer (--rpc)",
            )
        for _, side in ranked[1:]:
            for one in side:
                self._chain.provider.distrust(one.place, f"others contradict it on {about}")
        return Said(answer, len(voices) > 1)

    def agreed(self, question: Callable[[Chain], T | None], about: str, lone: Lone = Lone.IF_GONE) -> T | None:
        said = self.said(question, about, lone)
        return None if said is None else said.answer

    def _votes(
        self, question: Callable[[Chain], T | None]
    ) -> tuple[dict[T, list[Chain]], RpcUnavailable | WrongChain | None]:
        """(who says what, a failure where nobody said that it does not know). Two who agree are enough, where nobody differs; who rests
        in silence is asked where the others differ."""
        votes: dict[T, list[Chain]] = {}
        silence: RpcUnavailable | WrongChain | None = None
        is_unknown = False
        near = self.reachable()
        for one in (*near, *(far for far in self._chain.best if far not in near)):
            if one not in near and len(votes) < 2:
                break
            try:
                answer = question(one)
            except EndpointsDisagree:
                raise
            except (RpcUnavailable, WrongChain) as error:
                silence = error
                continue
            if answer is None:
                is_unknown = True
                continue
            votes.setdefault(answer, []).append(one)
            if len(votes) == 1 and len(votes[answer]) == 2:
                break
        return votes, None if is_unknown else silence

    def block(self, number: int, lone: Lone = Lone.IF_GONE) -> Block | None:
        return self.agreed(lambda one: one.find_block(number), f"block {number}", lone)

    # ---- events --------------------------------------------------------------------------------------------------------

    def confirm(self, found: Sequence[Log], footing: Footing) -> None:
        """Raises RpcUnavailable unless another endpoint shows those of these events that give or take rights, or the others are
        gone."""
        major = [entry for entry in found if entry.kind not in _MINOR]
        if not major or not self.are_several:
            return
        shown: set[tuple[Any, ...]] = set()
        if footing.witness is not None:
            with suppress(RpcUnavailable):  # its receipts may say it
                theirs = self.read(footing.witness, major[0].block, major[-1].block)
                shown = {entry[:2] + content(entry) for entry in theirs}
        for entry in major:
            if entry[:2] + content(entry) not in shown and not self.holds(entry[:2], content(entry), Lone.IF_GONE):
                problem = f"has a {entry.kind.__name__} in block {entry.block}"
                self.pass_over(footing.source, f"it alone {problem}")
                raise RpcUnavailable(f"only {footing.source.rpc} {problem}")

    def holds(self, place: tuple[int, int], wanted: tuple[Any, ...], lone: Lone) -> bool:
        """Whether the chain holds an event, `wanted` being its content. With one endpoint: whether its block stands. Raises
        RpcUnavailable, EndpointsDisagree."""
        return self.said_of(place, wanted, lone).answer

    def said_of(self, place: tuple[int, int], wanted: tuple[Any, ...], lone: Lone) -> Said[bool]:
        """As `holds`, and whether that is sure."""
        block, block_hash = place[0], wanted[0]
        if not self.are_several:
            return Said(self._chain.block_hash(block) == block_hash, True)
        said = self.said(lambda one: self._shows(one, place, wanted), f"an event in block {block}", lone, of_logs=True)
        if said is None:
            raise RpcUnavailable(f"no endpoint knows block {block}")
        return said

    def _shows(self, one: Chain, place: tuple[int, int], wanted: tuple[Any, ...]) -> bool | None:
        """Whether one endpoint has an event in the transaction's receipt, or, where it has none, in its logs; None where it lacks
        the block."""
        found = one.block_hash(place[0])
        if found != wanted[0]:
            return None if found is None else False
        receipt = None
        with suppress(RpcUnavailable):
            receipt = self._reader(one).of_transaction(wanted[1], place[0])
        return _is_among(self.read(one, place[0], place[0]) if receipt is None else receipt, place, wanted)


def _is_among(entries: Sequence[Log], place: tuple[int, int], wanted: tuple[Any, ...]) -> bool:
    return any(entry[:2] == place and content(entry) == wanted for entry in entries)


def _shared(one: tuple[Chain, Block], other: tuple[Chain, Block]) -> Block | None:
    """The newest block that both have; None where they hold different ones at that height."""
    low, high = sorted((one, other), key=lambda pair: pair[1].number)
    theirs = high[1] if high[1].number == low[1].number else _block(high[0], low[1].number)
    return low[1] if low[1] == theirs else None


def _block(one: Chain, number: int) -> Block | None:
    try:
        return one.find_block(number)
    except EndpointsDisagree:
        raise
    except RpcUnavailable:
        return None
