"""An honest chain in memory, as JSON-RPC tells it, and endpoints that lie about it. No sockets, no Anvil: hundreds of cases take seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from eth_abi import encode
from eth_utils import keccak

from protocol.chain import artifacts
from protocol.chain.endpoints import Endpoints
from protocol.chain.transport import Failed
from protocol.identity import Key
from tests.clock import VirtualClock

RUNS, COURT, BONDS, WEIGHTS, POLICIES, BENCH = ("0x" + digit * 40 for digit in "abcdef")
_PLACES = {"Runs": RUNS, "Court": COURT, "Policies": POLICIES, "Bench": BENCH, "Weights": WEIGHTS}
RUN, CHAIN_ID = 1, 8_453
NODE, VALIDATOR, STRANGER = (Key.from_secret(keccak(text=name)).address for name in ("node", "validator", "stranger"))
_NOBODY = "0x" + "0" * 40

Answer = Callable[[str, Any], Any]
Lie = Callable[[Answer, str, Any], Any]
"""Answers instead of the endpoint: (what the truth is, method, params)."""


class Silence(Exception):
    """Such an endpoint does not answer."""


@dataclass
class FakeChain:
    clock: VirtualClock = field(default_factory=VirtualClock)
    blocks: list[dict[str, Any]] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mine(2)

    def mine(self, count: int = 1, *events: tuple[str, str, tuple[Any, ...]]) -> None:
        """Blocks, two seconds each; `events` (contract, name, values after the run) are in the last."""
        for _ in range(count):
            self.clock.advance(2)
            number = len(self.blocks)
            self.blocks.append(block(number, int(self.clock.wall())))
        for index, (contract, name, values) in enumerate(events):
            self.logs.append(log_entry(self.blocks[-1], index, contract, name, values))

    def publish(self, step: int) -> None:
        self.mine(1, ("Weights", "Published", (step, b"\x0a" * 32)), ("Weights", "Drawn", (step, b"\x0b" * 32)))

    def submit(self, sequence: int) -> None:
        self.mine(1, submitted(sequence))

    def live(self, blocks: int) -> None:
        """Goes on, with a submission in every third block."""
        for _ in range(blocks):
            if len(self.blocks) % 3 == 0:
                self.submit(self._count("Submitted", 1 << 60))
            else:
                self.mine()

    def answer(self, method: str, params: Any) -> Any:
        match method:
            case "eth_chainId":
                return hex(CHAIN_ID)
            case "eth_blockNumber":
                return hex(len(self.blocks) - 1)
            case "eth_getBlockByNumber":
                number = len(self.blocks) - 1 if params[0] == "latest" else int(params[0], 16)
                return self.blocks[number] if number < len(self.blocks) else None
            case "eth_getLogs":
                first, last = (int(params[0][name], 16) for name in ("fromBlock", "toBlock"))
                topics = params[0]["topics"][2] if len(params[0]["topics"]) > 2 else None
                return [
                    entry for entry in self.logs
                    if first <= int(entry["blockNumber"], 16) <= last and (topics is None or entry["topics"][2] in topics)
                ]  # fmt: skip
            case "eth_getTransactionReceipt":
                found = [entry for entry in self.logs if entry["transactionHash"] == params[0]]
                return {"logs": found} if found else None
            case "eth_getCode":
                return "0x"
            case "eth_call":
                return self._call(params[0]["data"], int(params[1], 16) if params[1] != "latest" else 1 << 60)
        raise AssertionError(method)

    def _call(self, data: str, at: int) -> str:
        if data.startswith(_selector("court()")):
            return _words(["address"], [COURT])
        for name, address in (("weights", WEIGHTS), ("policies", POLICIES), ("bench", BENCH)):
            if data.startswith(_selector(f"{name}()")):
                return _words(["address"], [address])
        if data.startswith(_selector("published(uint256)")):
            return _words(["uint32"], [self._count("Published", at)])
        if data.startswith(_selector("seats(uint256,address)")):
            seat = data.endswith(NODE[2:].lower())
            return _words([SEAT], [seat_of(self._count("Submitted", at) if seat else 0)])
        raise AssertionError(data)

    def _count(self, name: str, at: int) -> int:
        return sum(entry["name"] == name and int(entry["blockNumber"], 16) <= at for entry in self.logs)


def block(number: int, time: int, fork: str = "") -> dict[str, Any]:
    return {"number": hex(number), "hash": "0x" + keccak(text=f"{fork}{number}").hex(), "timestamp": hex(time)}


def submitted(sequence: int) -> tuple[str, str, tuple[Any, ...]]:
    return "Runs", "Submitted", (NODE, keccak(text=f"root {sequence}"), 0, sequence, 7)


def seated(validator: str) -> tuple[str, str, tuple[Any, ...]]:
    return "Bench", "ValidatorSeated", (validator, True, 0)


def log_entry(of: dict[str, Any], index: int, contract: str, name: str, values: tuple[Any, ...]) -> dict[str, Any]:
    event = next(e for e in artifacts.load(contract).abi if e["type"] == "event" and e["name"] == name)
    types = [each["type"] for each in event["inputs"]]
    words = ["0x" + encode([kind], [value]).hex() for kind, value in zip(types, (RUN, *values), strict=True)]
    plain = [
        (kind, value)
        for each, kind, value in zip(event["inputs"], types, (RUN, *values), strict=True)
        if not each["indexed"]
    ]
    return {
        "name": name, "address": _PLACES[contract], "blockNumber": of["number"], "blockHash": of["hash"],
        "logIndex": hex(index), "transactionHash": "0x" + keccak(text=f"{name}{values}{of['hash']}").hex(),
        "topics": ["0x" + keccak(text=f"{name}({','.join(types)})").hex(),
                   *(word for word, each in zip(words, event["inputs"], strict=True) if each["indexed"])],
        "data": "0x" + encode([kind for kind, _ in plain], [value for _, value in plain]).hex(),
        "blockTimestamp": of["timestamp"],
    }  # fmt: skip


def _type(contract: str, function: str) -> str:
    output = next(e for e in artifacts.load(contract).abi if e["type"] == "function" and e["name"] == function)[
        "outputs"
    ][0]
    return f"({','.join(each['type'] for each in output['components'])})"


SEAT = _type("Runs", "seats")


def seat_of(count: int) -> tuple[Any, ...]:
    """Of a node that submitted so often for step 0."""
    return (_NOBODY, 1, False, False, 0, 0, 0, 0, 0, count, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, _NOBODY, 0, 0)


def _selector(signature: str) -> str:
    return "0x" + keccak(text=signature)[:4].hex()


def _words(types: list[str], values: list[Any]) -> str:
    return "0x" + encode(types, values).hex()


def answered(chain: FakeChain, body: Any, answer: Answer) -> Any:
    """The JSON of an endpoint that answers a request or a batch, and knows which block is the newest."""
    if isinstance(body, list):
        return [answered(chain, request, answer) for request in body]
    method, params = body["method"], json.loads(json.dumps(body["params"]))
    if method == "eth_getLogs" and params[0]["toBlock"] == "latest":
        params[0]["toBlock"] = hex(len(chain.blocks) - 1)
    return {"id": body["id"], "result": answer(method, params)}


def serve(monkeypatch: pytest.MonkeyPatch, chain: FakeChain, lies: dict[str, Lie]) -> list[tuple[str, str]]:
    """Every Endpoints asks these endpoints from now on; who has no lie tells the truth. Returns (url, method) of all requests."""
    asked: list[tuple[str, str]] = []

    def post(_: Endpoints, endpoint: Any, body: Any, cap: int) -> Any:
        def answer(method: str, params: Any) -> Any:
            asked.append((endpoint.url, method))
            if endpoint.url in lies:
                return lies[endpoint.url](chain.answer, method, params)
            return chain.answer(method, params)

        try:
            return answered(chain, body, answer)
        except Silence as error:
            raise Failed("no answer", "unreachable") from error

    monkeypatch.setattr(Endpoints, "_post", post)
    return asked
