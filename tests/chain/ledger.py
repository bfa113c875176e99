"""A chain in memory that takes the transactions of one key, reorganises, and remembers every state it was in.

Endpoints of it (`serve`) answer each call from any of these states, lose answers, keep what they refuse and publish it later, and kill whoever
asks. No sockets, no contracts: a
schedule of some hundred calls takes milliseconds.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from eth_utils import keccak

from protocol.chain.transport import Failed, RpcTransport
from tests.clock import VirtualClock

CHAIN_ID = 31_337


class Killed(BaseException):
    """The process ends here."""


@dataclass(frozen=True)
class Deed:
    """A transaction: what it does (None: something that is none of ours), and with which nonce."""

    name: str | None
    nonce: int
    fee: int
    hash: str


@dataclass(frozen=True)
class Mined:
    number: int
    hash: str
    parent: str
    transactions: tuple[tuple[Deed, bool], ...]
    """And whether it succeeded."""
    used: int
    """Transactions up to this block."""


State = tuple[Mined, ...]


@dataclass
class Ledger:
    account: str
    chance: random.Random
    depth: int
    """Blocks that a reorg takes at most."""
    clock: VirtualClock = field(default_factory=VirtualClock)
    failing: float = 0.0
    """Share of transactions that revert."""
    foreign: float = 0.0
    """Share of blocks in which another program uses the key."""
    poor: float = 0.1
    """Share of transactions that an endpoint refuses for want of gas money."""
    shaking: float = 0.0
    """Share of blocks that take others back."""

    def __post_init__(self) -> None:
        self.states: list[State] = [(Mined(0, _name(0), _name(0), (), 0),)]
        self.waiting: dict[str, Deed] = {}
        self.kept: dict[str, Deed] = {}
        """Refused, and not forgotten."""
        self._forks = 0
        self._found: dict[str, list[tuple[Mined, bool]]] = {}  # by transaction, in all forks

    @property
    def now(self) -> State:
        return self.states[-1]

    def done(self) -> Counter[str]:
        """How often each deed is done in the chain as it is now."""
        return Counter(deed.name for block in self.now for deed, good in block.transactions if good and deed.name)

    def mine(self) -> None:
        """One block more; now and then of a fork that leaves out some of the last ones, or after something kept was published."""
        if self.kept and self.chance.random() < 0.1:
            self.publish()
        chain = self.now
        if self.chance.random() < self.shaking and len(chain) > self.depth + 1:
            cut = self.chance.randint(0, self.depth)
            lost, chain = chain[len(chain) - cut :], chain[: len(chain) - cut]
            for deed, _ in (each for block in lost for each in block.transactions):
                if deed.name is None or self.chance.random() < 0.8:  # else it is nowhere any more
                    self.waiting[deed.hash] = deed
            for _ in range(cut):
                chain = self._with_block(chain)
        self.states.append(self._with_block(chain))

    def publish(self) -> None:
        """What was refused and kept gets to everybody."""
        self.waiting |= self.kept
        self.kept = {}

    def _with_block(self, chain: State) -> State:
        nonce, taken = chain[-1].used, []
        if self.chance.random() < self.foreign:
            taken.append((Deed(None, nonce, 1, _name(-self._forks % 2**256)), True))
        while self.chance.random() < 0.8:
            ready = [deed for deed in self.waiting.values() if deed.nonce == nonce + len(taken)]
            if not ready:
                break
            deed = max(ready, key=lambda each: each.fee)
            taken.append((deed, deed.name is None or self.chance.random() >= self.failing))
        self.waiting = {key: deed for key, deed in self.waiting.items() if deed.nonce >= nonce + len(taken)}
        self._forks += 1
        number = len(chain)
        name = _name(self._forks)
        block = Mined(number, name, chain[-1].hash, tuple(taken), nonce + len(taken))
        for deed, good in taken:
            self._found.setdefault(deed.hash, []).append((block, good))
        return (*chain, block)

    # ---- as JSON-RPC tells it ------------------------------------------------------------------------------------------

    def answer(self, state: State, method: str, params: Any) -> dict[str, Any]:
        match method:
            case "eth_chainId":
                return {"result": hex(CHAIN_ID)}
            case "eth_blockNumber":
                return {"result": hex(len(state) - 1)}
            case "eth_getBalance":
                return {"result": hex(0 if self.chance.random() < self.poor / 3 else 10**18)}
            case "eth_estimateGas":
                return {"result": hex(50_000)}
            case "eth_call":
                return {"error": {"code": 3, "message": "execution reverted", "data": "0x"}}
            case "eth_getBlockByNumber":
                number = len(state) - 1 if params[0] == "latest" else int(params[0], 16)
                return {"result": self._block(state[number], params[1]) if number < len(state) else None}
            case "eth_getTransactionCount":
                number = len(state) - 1 if params[1] == "latest" else int(params[1], 16)
                if number >= len(state):
                    return {"error": {"code": -32000, "message": "header not found"}}
                return {"result": hex(state[number].used)}
            case "eth_getTransactionReceipt":
                return {"result": self._receipt(state, params[0])}
            case "eth_sendRawTransaction":
                return self._take(state, params[0])
        raise AssertionError(method)

    def _take(self, state: State, raw: str) -> dict[str, Any]:
        fields = json.loads(bytes.fromhex(raw[2:]))
        deed = Deed(fields["name"], fields["nonce"], fields["fee"], "0x" + keccak(hexstr=raw).hex())
        if deed.nonce < state[-1].used:
            return {"error": {"code": -32000, "message": "nonce too low"}}
        if deed.hash in self.waiting and self.chance.random() < 0.5:  # each machine has heard of some
            return {"error": {"code": -32000, "message": "already known"}}
        if self.chance.random() < self.poor:
            self.kept[deed.hash] = deed
            return {"error": {"code": -32000, "message": "insufficient funds for gas * price + value"}}
        if deed.nonce >= self.now[-1].used:  # else the machine that is behind keeps it, and nothing comes of it
            self.waiting[deed.hash] = deed
        return {"result": deed.hash}

    def _block(self, block: Mined, full: bool) -> dict[str, Any]:
        transactions: list[Any] = [deed.hash for deed, _ in block.transactions]
        if full:
            transactions = [
                {"hash": deed.hash, "from": self.account, "nonce": hex(deed.nonce)} for deed, _ in block.transactions
            ]
        return {
            "number": hex(block.number), "hash": block.hash, "parentHash": block.parent, "timestamp": hex(block.number),
            "baseFeePerGas": "0x1", "transactions": transactions,
        }  # fmt: skip

    def _receipt(self, state: State, name: str) -> dict[str, Any] | None:
        for block, good in self._found.get(name, ()):
            if block.number < len(state) and state[block.number] is block:
                return {
                    "transactionHash": name, "blockNumber": hex(block.number), "blockHash": block.hash,
                    "gasUsed": "0x1", "status": hex(good), "logs": [],
                }  # fmt: skip
        return None


@dataclass
class Faults:
    """Of every endpoint, while they last: how often an answer is old, is lost, or the asker dies before or after it."""

    old: float = 0.5
    lost: float = 0.1
    deadly: float = 0.02
    indexing: bool = False
    """Whether none shows a receipt now."""


def serve(monkeypatch: pytest.MonkeyPatch, ledger: Ledger, faults: Faults) -> None:
    """Every endpoint asks this chain from now on; those of a batch one by one, for behind one URL stand many machines."""
    chance = ledger.chance

    def post(_: object, url: str, body: Any, **__: object) -> Any:
        if chance.random() < faults.deadly:
            raise Killed
        if chance.random() < faults.lost / 2:
            raise Failed("no answer", "unreachable")
        asked = body if isinstance(body, list) else [body]
        answers = [{"id": each["id"], **_answer(ledger, faults, each["method"], each["params"])} for each in asked]
        if chance.random() < faults.deadly:
            raise Killed
        if chance.random() < faults.lost / 2:
            raise Failed("no answer", "unreachable")
        return (answers if isinstance(body, list) else answers[0]), 0.0

    monkeypatch.setattr(RpcTransport, "post", post)


def _answer(ledger: Ledger, faults: Faults, method: str, params: Any) -> dict[str, Any]:
    if faults.indexing and method == "eth_getTransactionReceipt":
        return {"error": {"code": -32000, "message": "transaction indexing is in progress"}}
    chance = ledger.chance
    state = chance.choice(ledger.states) if chance.random() < faults.old else ledger.now
    answer = ledger.answer(state, method, params)
    if chance.random() < 0.1:
        ledger.mine()
    return answer


def _name(number: int) -> str:
    """As a hash looks."""
    return f"0x{number:064x}"
