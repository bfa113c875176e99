"""Plain JSON-RPC to Anvil, in batches, and what the contracts refuse by its name."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import requests
from eth_utils import keccak
from eth_utils.abi import collapse_if_tuple
from swarm.anvil import Anvil

from protocol.chain import artifacts

OUT_OF_REACH = 256  # blocks back there is no hash any more


class Wire:
    def __init__(self, anvil: Anvil) -> None:
        self._rpc = anvil.rpc
        self._http = requests.Session()
        self._http.trust_env = False  # to look for a proxy each time takes longer than to ask
        self._hashes: dict[int, bytes] = {}

    def ask(self, method: str, *parameters: Any) -> Any:
        return self.batch([(method, parameters)])[0]

    def batch(self, calls: list[tuple[str, Any]]) -> list[Any]:
        answers = self._answers(calls)
        if wrong := [answer["error"] for answer in answers if "error" in answer]:
            raise RuntimeError(f"{calls[0][0]}: {wrong[0]}")
        return [answer["result"] for answer in answers]

    def _answers(self, calls: list[tuple[str, Any]]) -> list[dict[str, Any]]:
        body = [
            {"jsonrpc": "2.0", "id": i, "method": method, "params": list(parameters)}
            for i, (method, parameters) in enumerate(calls)
        ]
        answers = self._http.post(self._rpc, json=body, timeout=30).json()
        return sorted(answers, key=lambda answer: int(answer["id"]))

    def refusal(self, at: int, by: str, to: str, data: str) -> str | None:
        """Name of the error with which the next block, which will have this time, would refuse this; None: it would not."""
        call = {"from": by, "to": to, "data": data}
        answer = self._answers([("evm_setNextBlockTimestamp", [at]), ("eth_call", [call, "pending"])])[1]
        if "error" not in answer:
            return None
        thrown = str(answer["error"].get("data"))[2:10]
        return _error_names().get(thrown, f"{thrown} ({answer['error']['message']})")

    def send(self, by: str, to: str, data: str) -> bool:
        """Whether it succeeded, in a block of its own."""
        call = {"from": by, "to": to, "data": data, "gas": hex(5_000_000)}
        sent, until = self.ask("eth_sendTransaction", call), time.monotonic() + 10
        while (receipt := self.ask("eth_getTransactionReceipt", sent)) is None:  # Anvil mines a moment after it answers
            if time.monotonic() > until:
                raise RuntimeError("Anvil mines nothing")
        return bool(receipt["status"] == "0x1")

    def height(self) -> int:
        return int(self.ask("eth_blockNumber"), 16)

    def hash_of(self, number: int, seen_from: int) -> bytes:
        """What the EVM says in block `seen_from`: zeros for blocks too far back, and for its own and later ones."""
        if not seen_from - OUT_OF_REACH <= number < seen_from:
            return bytes(32)
        if number not in self._hashes:
            self._hashes[number] = bytes.fromhex(self.ask("eth_getBlockByNumber", hex(number), False)["hash"][2:])
        return self._hashes[number]

    def revert(self, snapshot: str) -> None:
        self._hashes.clear()
        if not self.ask("evm_revert", snapshot):
            raise RuntimeError("Anvil has lost its snapshot")


@cache
def _error_names() -> dict[str, str]:
    """By selector."""
    errors = [item for name in artifacts.CONTRACTS for item in artifacts.load(name).abi if item["type"] == "error"]
    return {
        keccak(text=f"{e['name']}({','.join(map(collapse_if_tuple, e['inputs']))})")[:4].hex(): e["name"]
        for e in errors
    }
