"""ABI and bytecode of the contracts, as scripts/export-artifacts wrote them; a test holds them to the sources."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from eth_utils import keccak

CONTRACTS = (
    "Token", "Bonds", "Bench", "Weights", "Signatures", "Runs", "Policies", "Court", "Vouchers", "Locations", "Faucet",
)  # fmt: skip


@dataclass(frozen=True)
class Artifact:
    contract: str
    abi: list[dict[str, Any]]
    bytecode: str
    runtime: str
    immutables: tuple[tuple[int, int], ...]
    """(start, length) of the places in the runtime code that construction fills in."""

    def is_code(self, code: bytes) -> bool:
        """Whether a contract's code is this."""
        return self.code_hash(code) == self.expected_code_hash

    def code_hash(self, code: bytes) -> bytes:
        """keccak256 of deployed code with all immutable values set to zero."""
        blank = bytearray(code)
        for start, length in self.immutables:
            blank[start : start + length] = bytes(length)
        return keccak(bytes(blank))

    @property
    def expected_code_hash(self) -> bytes:
        return self.code_hash(bytes.fromhex(self.runtime.removeprefix("0x")))


@dataclass(frozen=True)
class Build:
    """What the bytecode was made of. The same compiler makes the same bytes of it again, to the metadata's hash at their end."""

    compiler: str
    """As explorers name it, without the v: `0.8.37+commit.f401782d`."""
    settings: dict[str, Any]
    contracts: dict[str, dict[str, Any]]
    """By name: the file that holds it, and the sources that it is made of."""
    sources: dict[str, str]

    def standard_input(self, contract: str) -> dict[str, Any]:
        """The compiler's standard JSON input that makes this contract."""
        needed = self.contracts[contract]["sources"]
        return {
            "language": "Solidity",
            "sources": {path: {"content": self.sources[path]} for path in needed},
            "settings": {
                **self.settings,
                "outputSelection": {"*": {"*": ["abi", "evm.bytecode", "evm.deployedBytecode"]}},
            },
        }

    def full_name(self, contract: str) -> str:
        """`src/Runs.sol:Runs`"""
        return f"{self.contracts[contract]['file']}:{contract}"


@cache
def build() -> Build:
    return Build(**json.loads((files("protocol.chain") / "abi" / "sources.json").read_text()))


@cache
def load(contract: str) -> Artifact:
    """`contract` is one of CONTRACTS."""
    data = json.loads((files("protocol.chain") / "abi" / f"{contract}.json").read_text())
    return Artifact(**{**data, "immutables": tuple((start, length) for start, length in data["immutables"])})
