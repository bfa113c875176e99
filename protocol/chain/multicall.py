"""Many eth_calls as of one block as a single one, by the contract Multicall3, where a chain has it: providers bill the single one.

The contract lies at the same address on Base and most other chains (https://www.multicall3.com). It is used where exactly its
code is there; an endpoint could lie about that as about each call by itself. Its answers are the calls' own: what reverts, and
what does not come out whole, is asked for by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError
from eth_utils import keccak

from protocol.chain.transport import Request
from protocol.clock import Clock
from protocol.retry import Backoff

ADDRESS = "0xcA11bde05977b3631167028862bE2a173976CA11"
CODE_HASH = bytes.fromhex("d5c15df687b16f2ff992fc8d767b4216323184a2bbc6ee2f9c398c318e770891")
"""Keccak-256 of the runtime code there."""
_SELECTOR = keccak(text="aggregate3((address,bool,bytes)[])")[:4]

_AGAIN_SECONDS = 600.0
"""Until the code is asked for once more: a backend that is still syncing answers as if it were not there."""

Answer = dict[str, Any]
Places = tuple[int, ...]
"""Among the requests that were to be asked."""


class Multicall:
    """What is known of each endpoint's chain."""

    def __init__(self, clock: Clock) -> None:
        self._is_there: set[str] = set()  # URLs
        self._missing = Backoff(_AGAIN_SECONDS, clock=clock)  # by URL

    def plan(self, url: str, asked: Sequence[Request]) -> list[tuple[Request, Places]]:
        """What to ask instead, each with whose answers it brings: one, several of an aggregate, none for the contract's code."""
        groups: dict[str, list[int]] = {}
        for place, (method, params) in enumerate(asked):
            if method == "eth_call" and params[0].keys() == {"to", "data"}:
                groups.setdefault(params[1], []).append(place)
        groups = {block: places for block, places in groups.items() if len(places) > 1}
        alone = [(request, (place,)) for place, request in enumerate(asked)]
        if not groups or url in self._missing:
            return [*alone]
        if url not in self._is_there:
            return [*alone, (("eth_getCode", (ADDRESS, "latest")), ())]
        joined = {place for places in groups.values() for place in places}
        return [
            *(each for each in alone if each[1][0] not in joined),
            *((_aggregate([asked[p] for p in places], block), tuple(places)) for block, places in groups.items()),
        ]

    def answers(self, url: str, places: Places, answer: Answer) -> list[Answer | None]:
        """What the answer to something planned says to each of the requests."""
        if not places:
            if _hash_of(answer) == CODE_HASH:
                self._is_there.add(url)
            else:
                self._missing.failed(url)
            return []
        if len(places) == 1:
            return [answer]
        try:
            (found,) = decode(["(bool,bytes)[]"], bytes.fromhex(str(answer["result"])[2:]))
        except (DecodingError, ValueError, OverflowError):
            found = ()
        if len(found) != len(places):
            return [None] * len(places)
        return [{"result": f"0x{returned.hex()}"} if is_made else None for is_made, returned in found]


def _aggregate(asked: Sequence[Request], block: str) -> Request:
    calls = [(params[0]["to"], True, bytes.fromhex(params[0]["data"][2:])) for _, params in asked]
    data = _SELECTOR + encode(["(address,bool,bytes)[]"], [calls])
    return "eth_call", ({"to": ADDRESS, "data": f"0x{data.hex()}"}, block)


def _hash_of(answer: Answer) -> bytes:
    try:
        return keccak(hexstr=str(answer["result"]))
    except ValueError:
        return b""
