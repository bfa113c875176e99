"""Which endpoint to believe: what two say alike, or the only one that is left.

Each question goes to one endpoint at a time, so that it is known who answered. An answer that two give stands, and who says
otherwise rests. One against one is EndpointsDisagree: a role waits until that has passed. An endpoint that does not know (yet),
fails or refuses has no voice. Where one endpoint is configured its word is all there is, and nothing here costs a request more.

Covers: one endpoint that lies in whatever it is asked, beside one or more honest ones. Does not cover: two that tell the same lie;
one that lies while the others have been silent for PATIENCE_SECONDS or since this process began.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, TypeVar

from protocol.chain.client import Chain
from protocol.chain.decoding import Log
from protocol.chain.endpoints import LAG_BLOCKS, EndpointsDisagree
from protocol.chain.events import Skipped, Submitted
from protocol.chain.log_reader import LogReader, content
from protocol.chain.types import Block
from protocol.errors import RpcUnavailable, WrongChain

log = logging.getLogger(__name__)

T = TypeVar("T")
_ALONE_BLOCKS = 64
"""How far the chain is followed by one endpoint while another was heard within PATIENCE_SECONDS. Blocks."""
_MINOR = (Submitted, Skipped)
"""Events that give nobody rights at once: they enter on one endpoint's word until they are read a second time."""


@dataclass(frozen=True)
class Footing:
    """What one look at the chain stands on."""

    source: Chain
    """The endpoint that is read."""
    witness: Chain | None
    """Another, which has the same head; None: there is none now."""
    head: Block
    """The newest block that both have."""


class Witnesses:
    def __init__(self, chain: Chain, run: int) -> None:
        self._chain = chain
        self._run = run
        self._shared: Block | None = None  # the last head that two had

    @property
    def are_several(self) -> bool:
        return len(self._chain.singles) > 1

    def reachable(self) -> list[Chain]:
        """The best first; none that rests for its silence, where one does not."""
        best = self._chain.best
        return [one for one in best if not self._is_away(one)] or best

    def _is_away(self, one: Chain) -> bool:
        """Whether it rests for its silence. Who rests for what it said is still asked, after the others."""
        return self._chain.provider.rests(one.place) and self._chain.provider.is_silent(one.place)

    def pass_over(self, one: Chain, why: str) -> None:
        """Another is asked first for a while, where there is one."""
        if self.are_several:
            self._chain.provider.distrust(one.place, why)

    def reader(self, one: Chain) -> LogReader:
        return self._readers[one.place]

    @cached_property
    def _readers(self) -> list[LogReader]:
        court = self.agreed(lambda one: one.court.address, "the address of Court")
        return [LogReader(one, self._run, court) for one in self._chain.singles]

    # ---- where the chain ends ------------------------------------------------------------------------------------------

    def footing(self, known: Block | None = None) -> Footing:
        """Where the chain ends now. While the best endpoint's head is `known` nobody else is asked. Raises RpcUnavailable."""
        if not self.are_several:
            return Footing(self._chain, None, self._chain.block())
        heads: list[tuple[Chain, Block]] = []
        silence = RpcUnavailable(f"reading a block: {self._chain.rpc} did not answer")
        for one in self._chain.best:
            if heads and self._is_away(one):
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
                return self._agree(heads[0][0], one, shared)
        if not heads:
            raise silence
        if len(heads) == 1:
            return self._alone(*heads[0])
        for pair in sorted(combinations(heads, 2), key=lambda pair: -min(head.number for _, head in pair)):
            if (shared := _shared(*pair)) is not None:
                self._distrust_others(heads, shared)
                return self._agree(pair[0][0], pair[1][0], shared)
        said = ", ".join(f"{one.rpc} says {head.number} 0x{head.hash.hex()[:10]}…" for one, head in heads)
        raise EndpointsDisagree(f"the RPC endpoints name different newest blocks: {said}")

    def _agree(self, source: Chain, witness: Chain, shared: Block) -> Footing:
        self._shared = shared
        return Footing(source, witness, shared)

    def _alone(self, one: Chain, head: Block) -> Footing:
        if self._shared is not None and head.number > self._shared.number + _ALONE_BLOCKS and not self._is_only(one):
            raise RpcUnavailable(f"only {one.rpc} is at block {head.number}; waiting for another endpoint")
        return Footing(one, None, head)

    def _is_only(self, one: Chain) -> bool:
        """Whether no other has fallen silent just now, and may be heard again soon."""
        provider = self._chain.provider
        others = [other.place for other in self._chain.singles if other is not one]
        return not any(provider.is_silent(place) and not provider.is_gone(place) for place in others)

    def _distrust_others(self, heads: Sequence[tuple[Chain, Block]], shared: Block) -> None:
        for one, head in heads:
            if head.number >= shared.number and _block(one, shared.number) not in (None, shared):
                self._chain.provider.distrust(one.place, f"others hold another block {shared.number}")

    # ---- questions -----------------------------------------------------------------------------------------------------

    def agreed(self, question: Callable[[Chain], T | None], about: str) -> T | None:
        """What two endpoints answer alike, or the only one that answers. None where nobody knows.

        Raises EndpointsDisagree where no answer has more voices than another, and what was raised where nobody answers.
        """
        if not self.are_several:
            return question(self._chain)
        votes, silence = self.votes(question)
        if not votes:
            if silence is not None:
                raise silence
            return None
        return self._decided(votes, about)

    def _decided(self, votes: dict[T, list[Chain]], about: str) -> T:
        """The answer with most voices; of as many, the one that an endpoint in step gives. The others rest."""
        provider = self._chain.provider

        def weight(vote: tuple[T, list[Chain]]) -> tuple[int, bool]:
            return len(vote[1]), not all(provider.lags(one.place) for one in vote[1])

        ranked = sorted(votes.items(), key=weight, reverse=True)
        if len(ranked) > 1 and weight(ranked[0]) == weight(ranked[1]):
            sides = " against ".join(" and ".join(one.rpc for one in side) for _, side in ranked)
            raise EndpointsDisagree(f"the RPC endpoints disagree on {about}: {sides}")
        for _, side in ranked[1:]:
            for one in side:
                provider.distrust(one.place, f"others contradict it on {about}")
        return ranked[0][0]

    def votes(
        self, question: Callable[[Chain], T | None]
    ) -> tuple[dict[T, list[Chain]], RpcUnavailable | WrongChain | None]:
        """(who says what, a failure where nobody said that it does not know). Two who agree are enough, where nobody differs."""
        votes: dict[T, list[Chain]] = {}
        silence: RpcUnavailable | WrongChain | None = None
        is_unknown = False
        for one in self.reachable():
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

    def block(self, number: int) -> Block | None:
        return self.agreed(lambda one: one.find_block(number), f"block {number}")

    # ---- events --------------------------------------------------------------------------------------------------------

    def confirm(self, found: Sequence[Log], footing: Footing) -> None:
        """Raises RpcUnavailable unless another endpoint shows those of these events that give or take rights, or the others are
        gone."""
        major = [entry for entry in found if entry.kind not in _MINOR]
        if not major or not self.are_several:
            return
        shown: set[tuple[Any, ...]] = set()
        if footing.witness is not None:
            theirs = self.reader(footing.witness).read(major[0].block, major[-1].block)
            shown = {entry[:2] + content(entry) for entry in theirs}
        for entry in major:
            if entry[:2] + content(entry) not in shown and not self.holds(
                entry[:2], content(entry), is_lone_enough=False
            ):
                raise RpcUnavailable(f"only {footing.source.rpc} has a {entry.kind.__name__} in block {entry.block}")

    def holds(self, place: tuple[int, int], wanted: tuple[Any, ...], *, is_lone_enough: bool = True) -> bool:
        """Whether the chain holds an event, `wanted` being its content. With one endpoint: whether its block stands. Raises
        RpcUnavailable, also where one endpoint alone says so, that is not enough, and another was heard just now."""
        block, block_hash = place[0], wanted[0]
        if not self.are_several:
            return self._chain.block_hash(block) == block_hash
        about = f"an event in block {block}"
        votes, silence = self.votes(lambda one: self._shows(one, place, wanted))
        voices = [one for side in votes.values() for one in side]
        if not voices:
            raise silence or RpcUnavailable(f"no endpoint knows block {block}")
        if len(voices) == 1 and not is_lone_enough and not self._is_only(voices[0]):
            raise RpcUnavailable(f"only {voices[0].rpc} tells of {about}; waiting for another endpoint")
        return self._decided(votes, about)

    def _shows(self, one: Chain, place: tuple[int, int], wanted: tuple[Any, ...]) -> bool | None:
        """Whether one endpoint has an event in the transaction's receipt, or, where it has none, in its logs; None where it lacks
        the block."""
        found = one.block_hash(place[0])
        if found != wanted[0]:
            return None if found is None else False
        reader, receipt = self.reader(one), None
        with suppress(RpcUnavailable):
            receipt = reader.of_transaction(wanted[1], place[0])
        return _is_among(reader.read(place[0], place[0]) if receipt is None else receipt, place, wanted)


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
