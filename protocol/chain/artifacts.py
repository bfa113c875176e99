"""ABI and bytecode of the contracts, as scripts/export-artifacts wrote them; a test holds them to the sources.

abi/earlier.json is kept by hand: the hashes of code that earlier versions shipped and that this one still works with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from eth_utils import keccak

CONTRACTS = ("Token", "Bonds", "Runs", "Court", "Vouchers", "Locations")


@dataclass(frozen=True)
class Earlier:
    """Code of a contract that an earlier version shipped. `lacks` says what it does not have."""

    hash: bytes
    immutables: tuple[tuple[int, int], ...]
    lacks: str

    def is_code(self, code: bytes) -> bool:
        return _hash_without(code, self.immutables) == self.hash


@dataclass(frozen=True)
class Artifact:
    contract: str
    abi: list[dict[str, Any]]
    bytecode: str
    runtime: str
    immutables: tuple[tuple[int, int], ...]
    """(start, length) of the places in the runtime code that construction fills in."""
    earlier: tuple[Earlier, ...] = ()

    def is_code(self, code: bytes) -> bool:
        """Whether a contract's code is this, or that of an earlier version which this one works with too."""
        return self.code_hash(code) == self.expected_code_hash or any(each.is_code(code) for each in self.earlier)

    def code_hash(self, code: bytes) -> bytes:
        """keccak256 of deployed code with all immutable values set to zero."""
        return _hash_without(code, self.immutables)

    @property
    def expected_code_hash(self) -> bytes:
        return self.code_hash(bytes.fromhex(self.runtime.removeprefix("0x")))


@cache
def load(contract: str) -> Artifact:
    """`contract` is one of CONTRACTS."""
    folder = files("protocol.chain") / "abi"
    data = json.loads((folder / f"{contract}.json").read_text())
    earlier = json.loads((folder / "earlier.json").read_text()).get(contract, [])
    return Artifact(**{**data, "immutables": _places(data["immutables"]), "earlier": tuple(map(_earlier, earlier))})


def _earlier(entry: dict[str, Any]) -> Earlier:
    return Earlier(bytes.fromhex(entry["hash"]), _places(entry["immutables"]), entry["lacks"])


def _places(pairs: list[list[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((start, length) for start, length in pairs)


def _hash_without(code: bytes, places: tuple[tuple[int, int], ...]) -> bytes:
    """keccak256 of code with zeros at `places`."""
    blank = bytearray(code)
    for start, length in places:
        blank[start : start + length] = bytes(length)
    return keccak(bytes(blank))
