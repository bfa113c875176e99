"""A run as the chain would show it to gossip, without a chain: who trains it, who judges, how far it is."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from protocol.chain.types import Role
from protocol.errors import RpcUnavailable
from protocol.gossip.authority import Authority
from protocol.gossip.checks import Checks
from protocol.gossip.messages import NeedWord, VerdictWord, VersionWord
from protocol.hub.need import NEED_SECONDS, SignedNeed
from protocol.identity import Key
from protocol.p2p import Ruling
from protocol.signing import Domain, Need, Verdict
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome
from tests.clock import VirtualClock

RUN, HEAD, NOW = 3, 20, 1_700_000_000
STAKE = 10**18


class FakeChain:
    """Answers what `Authority` asks."""

    def __init__(self, trainer: Key) -> None:
        self.trainer_key = trainer
        self.domain = Domain(31337, "0x" + "Ab" * 20)  # type: ignore[arg-type]
        self.head_step, self.time = HEAD, NOW
        self.validators: dict[str, Any] = {}
        self.nodes: dict[str, Any] = {}
        self.is_down = False
        self.asked: list[str] = []

    def policy(self, run: int) -> Any:
        return SimpleNamespace(validator_stake=STAKE, node_stake=STAKE)

    def turns(self) -> Any:
        return SimpleNamespace(turn=nullcontext)

    def trainer(self, run: int) -> str:
        return self.trainer_key.address

    def head(self, run: int) -> Any:
        self._require_up()
        return SimpleNamespace(step=self.head_step)

    def block(self) -> Any:
        self._require_up()
        return SimpleNamespace(time=self.time)

    def validator(self, run: int, address: str) -> Any:
        self._require_up()
        self.asked.append(address)
        return self.validators.get(address, SimpleNamespace(since=0, locked=0, serves=lambda now: False))

    def seat(self, run: int, address: str) -> Any:
        return self.nodes.get(address, SimpleNamespace(role=Role.NONE, locked=0))

    def seat_validator(self, key: Key, *, stakes: int = 1, serves: bool = True) -> Key:
        seat = SimpleNamespace(since=1, locked=stakes * STAKE, serves=lambda now: serves)
        self.validators[key.address] = seat
        return key

    def seat_node(self, key: Key) -> Key:
        self.nodes[key.address] = SimpleNamespace(role=Role.ACTIVE, locked=STAKE)
        return key

    def _require_up(self) -> None:
        if self.is_down:
            raise RpcUnavailable("no endpoint answers")


class GossipRun:
    """One node's view of the run, and words of everybody."""

    def __init__(self) -> None:
        self.trainer, self.validator, self.node = Key.generate(), Key.generate(), Key.generate()
        self.chain = FakeChain(self.trainer)
        self.chain.seat_validator(self.validator)
        self.chain.seat_node(self.node)
        self.clock = VirtualClock()
        self.authority = Authority(self.chain, RUN, lambda: 2, self.clock)  # type: ignore[arg-type]
        self.authority.refresh()
        self.checks = Checks(RUN, self.chain.domain, self.authority, self.clock)

    def rule(self, data: bytes) -> Ruling:
        """After the chain was asked, where that is wanted."""
        ruling = self.checks.rule(data)
        if ruling.about:
            self.authority.look_up(ruling.about)
            ruling = self.checks.rule(data)
        return ruling

    def version(
        self, step: int = HEAD, *, kind: str = "head", key: Key | None = None, digest: bytes = b"d" * 32
    ) -> bytes:
        return VersionWord.sign(kind, RUN, step, digest, key or self.trainer, self.chain.domain).encode()

    def need(
        self, step: int = HEAD, *, until: int = NOW + NEED_SECONDS, key: Key | None = None, **changes: int
    ) -> bytes:
        said = {"last": 60, "groups": 16, "ahead": 200, "ready": 5, "settled": 9, "usable": 950} | changes
        need = Need(run=RUN, step=step, **said, until=until)
        return NeedWord(SignedNeed.issue(need, key or self.trainer, self.chain.domain)).encode()

    def verdict(self, step: int = HEAD, *, key: Key | None = None, sequence: int = 0) -> bytes:
        ref = SubmissionRef(self.node.address, step, sequence, b"r" * 32)
        found = Verdict(RUN, ref.submission_id(RUN), Outcome.ACCEPT, 2**256 - 1, b"d" * 32)
        return VerdictWord(ref, found, found.sign(key or self.validator, self.chain.domain)).encode()
