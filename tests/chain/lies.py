"""What an endpoint may lie about, and a role that reads the chain all the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from eth_abi import decode, encode

from protocol.chain import Chain
from protocol.chain.sync import Book
from protocol.errors import RpcUnavailable
from tests.chain.committed import submissions_of
from tests.chain.fake_chain import (
    NODE,
    RUN,
    RUNS,
    SEAT,
    STRANGER,
    Answer,
    FakeChain,
    Lie,
    Silence,
    _selector,
    block,
    log_entry,
    seated,
    submitted,
)

HONEST, LIAR, THIRD = "http://honest", "http://liar", "http://third"
FORGED = 40
"""The block that the lies are about."""


# ---- lies ------------------------------------------------------------------------------------------------------------------


def forging(event: tuple[str, str, tuple[Any, ...]], number: int = FORGED) -> Lie:
    """In a block that is there, with a receipt to show for it."""

    def lie(truth: Answer, method: str, params: Any) -> Any:
        told = truth(method, params)
        of = truth("eth_getBlockByNumber", [hex(number)])
        if of is None:
            return told
        entry = log_entry(of, 7, *event)
        if method == "eth_getLogs":
            is_asked = int(params[0]["fromBlock"], 16) <= number <= int(params[0]["toBlock"], 16)
            return [*told, entry] if is_asked and len(params[0]["topics"]) < 3 else told
        if method == "eth_getTransactionReceipt" and params[0] == entry["transactionHash"]:
            return {"logs": [entry]}
        return told

    return lie


def omitting(name: str) -> Lie:
    """Everything of one kind, in logs and receipts."""

    def lie(truth: Answer, method: str, params: Any) -> Any:
        told = truth(method, params)
        if method == "eth_getLogs":
            return [entry for entry in told if entry["name"] != name]
        return None if method == "eth_getTransactionReceipt" and told and told["logs"][0]["name"] == name else told

    return lie


def empty(truth: Answer, method: str, params: Any) -> Any:
    return [] if method == "eth_getLogs" else truth(method, params)


def ahead(blocks: int) -> Lie:
    def lie(truth: Answer, method: str, params: Any) -> Any:
        newest = truth("eth_getBlockByNumber", ["latest"])
        number = int(newest["number"], 16)
        if method == "eth_blockNumber":
            return hex(number + blocks)
        if method == "eth_getBlockByNumber":
            asked = number + blocks if params[0] == "latest" else int(params[0], 16)
            if number < asked <= number + blocks:
                return block(asked, int(newest["timestamp"], 16), "fork")
        return truth(method, params)

    return lie


def stuck(truth: Answer, method: str, params: Any) -> Any:
    if method == "eth_blockNumber":
        return hex(FORGED)
    if method == "eth_getBlockByNumber" and params[0] == "latest":
        return truth(method, [hex(FORGED)])
    if method == "eth_getBlockByNumber" and int(params[0], 16) > FORGED:
        return None
    return truth(method, params)


def mistimed(seconds: int, *, headers: bool = True) -> Lie:
    def lie(truth: Answer, method: str, params: Any) -> Any:
        told = truth(method, params)
        if method == "eth_getBlockByNumber" and headers and told:
            return {**told, "timestamp": hex(int(told["timestamp"], 16) + seconds)}
        if method == "eth_getLogs":
            return [{**e, "blockTimestamp": hex(int(e["blockTimestamp"], 16) + seconds)} for e in told]
        return told

    return lie


def counting(change: Callable[[int], int]) -> Lie:
    def lie(truth: Answer, method: str, params: Any) -> Any:
        told = truth(method, params)
        if method != "eth_call":
            return told
        if params[0]["data"].startswith(_selector("published(uint256)")):
            return "0x" + encode(["uint32"], [change(int(told, 16))]).hex()
        if params[0]["data"].startswith(_selector("seats(uint256,address)")):
            seat = list(decode([SEAT], bytes.fromhex(told[2:]))[0])
            seat[9] = min((1 << 16) - 1, max(0, change(seat[9])))
            return "0x" + encode([SEAT], [tuple(seat)]).hex()
        return told

    return lie


def no_code(truth: Answer, method: str, params: Any) -> Any:
    return "0x" if method == "eth_call" else truth(method, params)


def once(lie: Lie, wanted: str, after: int) -> Lie:
    """Only in one answer to `wanted`, after so many true ones."""
    left = [after]

    def told(truth: Answer, method: str, params: Any) -> Any:
        if method == wanted:
            left[0] -= 1
            if left[0] == -1:
                return lie(truth, method, params)
        return truth(method, params)

    return told


def another_chain(truth: Answer, method: str, params: Any) -> Any:
    return hex(999) if method == "eth_chainId" else truth(method, params)


def another_hash(truth: Answer, method: str, params: Any) -> Any:
    told = truth(method, params)
    if method == "eth_getBlockByNumber" and told and int(told["number"], 16) >= FORGED:
        return {**told, "hash": block(int(told["number"], 16), 0, "fork")["hash"]}
    return told


def no_top(truth: Answer, method: str, params: Any) -> Any:
    if method == "eth_getBlockByNumber" and params[0] == truth("eth_blockNumber", []):
        return None
    return truth(method, params)


def dead(truth: Answer, method: str, params: Any) -> Any:
    raise Silence


def lies() -> dict[str, Lie]:
    return {
        "forges a validator": forging(seated(STRANGER)),
        "forges a submission": forging(submitted(1_000)),
        "omits a submission": omitting("Submitted"),
        "omits a validator": omitting("ValidatorSeated"),
        "empty logs": empty,
        "8 ahead": ahead(8),
        "10^9 ahead": ahead(10**9),
        "stuck": stuck,
        "times": mistimed(30),
        "times far off": mistimed(10**6),
        "times in logs": mistimed(10**6, headers=False),
        "counter + 1": counting(lambda count: count + 1),
        "counter 2^32": counting(lambda count: (1 << 32) - 1),
        "counter - 1": counting(lambda count: max(0, count - 1)),
        "no code": no_code,
        "no code once": once(no_code, "eth_call", 5),
        "another chain": another_chain,
        "another chain once": once(another_chain, "eth_chainId", 0),
        "another hash": another_hash,
        "another hash once": once(another_hash, "eth_getBlockByNumber", 150),
        "no top": no_top,
        "no top once": once(no_top, "eth_getBlockByNumber", 150),
        "dead": dead,
    }


# ---- the role that reads ---------------------------------------------------------------------------------------------------


class Follower:
    """What a role does with its book: polls, and waits where that is refused. Whatever else is raised ends the test."""

    def __init__(self, chain: FakeChain, urls: list[str], path: Path | None = None) -> None:
        self.chain = chain
        reader = Chain(urls, RUNS, clock=chain.clock)
        reader.expect_blocks(60)
        self.book = Book(reader, RUN, path)
        self.waits = 0
        """Polls in a row that were refused."""
        self.waited = 0

    def live(self, blocks: int, *, pause: int = 0) -> None:
        for _ in range(blocks):
            self.chain.live(1)
            self.chain.clock.advance(pause)
            try:
                self.book.poll()
                self.waits = 0
            except RpcUnavailable:
                self.waits += 1
                self.waited += 1
            assert STRANGER not in self.book.ever_validated()
            for submission in islice(self.book.newest_submissions(), 3):
                with suppress(RpcUnavailable):
                    assert self.book.time(submission) == int(self.chain.blocks[submission.block]["timestamp"], 16)
            twice = int(self.book.fact("read_twice") or 0)
            assert self.told(twice) == self.true(twice)

    def told(self, upto: int) -> set[tuple[int, int]]:
        rows = [
            *self.book.rows("SELECT block, log_index FROM submissions"),
            *self.book.rows("SELECT block, log_index FROM events"),
        ]
        return {place for place in rows if place[0] <= upto}

    def true(self, upto: int) -> set[tuple[int, int]]:
        places = {(int(entry["blockNumber"], 16), int(entry["logIndex"], 16)) for entry in self.chain.logs}
        return {place for place in places if place[0] <= upto}

    def require_all(self) -> None:
        """It is up to date, and whole."""
        top = len(self.chain.blocks) - 1
        assert self.waits == 0
        assert self.book.head is not None
        assert self.book.head.number == top
        assert self.told(top) == self.true(top)
        assert self.book.fact("read_twice") >= top - 12 - 4
        for submission in submissions_of(self.book, NODE, 0):
            assert self.book.time(submission) == int(self.chain.blocks[submission.block]["timestamp"], 16)


def beginning() -> FakeChain:
    chain = FakeChain()
    chain.publish(0)
    chain.live(10)
    return chain
