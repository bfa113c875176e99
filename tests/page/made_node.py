"""A node's home as weeks of work leave it, and its page on a real socket. The chain is the one thing that is made up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx

from node.contributor import earning, submission_log
from node.contributor.page.app import create_page
from node.contributor.page.chain_side import ChainSide
from node.contributor.page.keeper import NodePageKeeper
from node.contributor.settings import NodeSettings
from node.contributor.submission_log import LoggedSubmission, SubmissionLog
from protocol.chain import ring
from protocol.chain.types import Policy
from protocol.constants import PROTOCOL_VERSION
from protocol.errors import RpcUnavailable
from protocol.page import server
from protocol.page.log_tail import LogTail
from protocol.page.server import SleepingServer, listen
from protocol.shell.home import REPORT, Home, holder, write_json
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome
from tests.clock import eventually

NODE, OPERATOR, VALIDATOR = ("0x" + digit * 40 for digit in ("1a", "2b", "3c"))
NODE, OPERATOR, VALIDATOR = NODE[:42], OPERATOR[:42], VALIDATOR[:42]
CONTRACT = "0x" + "c0" * 20
NOW = 1_790_000_000
DAY, WINDOW = 86_400, 3 * 86_400
REWARD = 2 * 10**15
KEY = "k3yOfACustomer42"
RPC = f"https://user:hunter2secret@rpc.example/v2/{KEY}?token=t0kenOfTheirs"
POLICY = cast(Policy, type("MadePolicy", (), {"window": WINDOW, "reward": REWARD})())


class MadeNode:
    def __init__(self, folder: Path) -> None:
        self.place = Home(folder / "node", "node")
        self.settings = NodeSettings.model_validate(
            {"chain": {"rpc": RPC, "contract": CONTRACT, "chain_id": 84532, "run": 7}, "page": {"port": 0}}
        )
        (self.place.path / "keys").mkdir(parents=True)
        write_json(self.place.keystore("node"), {"address": NODE[2:]})
        self.made: list[bytes] = []
        self._running = ExitStack()
        SubmissionLog(self.place.data / submission_log.FILE).close()

    def work(self, days: int = 9, per_day: int = 6) -> MadeNode:
        with closing(SubmissionLog(self.place.data / submission_log.FILE)) as log:
            for number in range(days * per_day):
                age = (days * per_day - number) * DAY // per_day
                self.submit(log, number, NOW - age, _state(age, number))
        return self

    def submit(self, log: SubmissionLog, number: int, time: int, state: str, **receipt: Any) -> bytes:
        ref = SubmissionRef(cast(Any, NODE), number // 4, number % 4, bytes([number % 256]) * 32)
        id = ref.submission_id(7)
        log.add(ref, id, 9_000 + 37 * number, time)
        if state != submission_log.MADE:
            log.advance(id, submission_log.COMMITTED)
        if state in (submission_log.ACCEPTED, submission_log.SOFT, submission_log.HARD):
            log.keep_storage_receipt(id, "{}")
            log.advance(id, state, receipt=json.dumps(self.receipt(id, ref, state, time + 300, **receipt)))
        elif state != submission_log.COMMITTED:
            log.advance(id, state)
        self.made.append(id)
        return id

    def receipt(self, id: bytes, ref: SubmissionRef, state: str, time: int, **changes: Any) -> dict[str, Any]:
        outcome = {"accepted": Outcome.ACCEPT, "soft": Outcome.SOFT, "hard": Outcome.HARD}[state]
        rule = "" if outcome == Outcome.ACCEPT else "sampling" if outcome == Outcome.HARD else "reward"
        details = {
            "protocol": PROTOCOL_VERSION, "chain_id": 84532, "contract": CONTRACT, "run": 7, "submission": id.hex(), "node": NODE,
            "step": ref.step, "sequence": ref.sequence, "root": ref.root.hex(), "units": 9_000, "spec": "00" * 32,
            "outcome": int(outcome), "rule": rule, "measured": "0.75" if rule else "", "threshold": "1.0" if rule else "",
            "detail": "sample 3: the environment gives 1.0" if rule else "", "samples": f"{0b1011:064x}", "sequences_checked": 8,
            "proofs_checked": 120, "tokens_checked": 3_800, "time": time, **changes,
        }  # fmt: skip
        return {"details": details, "validator": VALIDATOR, "signature": "0x" + "11" * 65}

    def run(self, **status: Any) -> MadeNode:
        """As the node would say that it runs; this very process stands in for it."""
        if holder(self.place.lock_file) is None:
            self._running.enter_context(self.place.lock())
        self.place.write_status(
            **({"state": "generating", "step": 13, "sequence": 2, "tokens_per_second": 412.6} | status)
        )
        return self

    def network(self, **changes: Any) -> MadeNode:
        peers = [
            {"peer": f"16Uiu2HAm{n:044d}", "addresses": [f"/ip4/203.0.113.{n}/tcp/4001"], "seen": 1.79e9}
            for n in range(1, 6)
        ]
        said = {
            "pid": 1, "at": 1.79e9, "state": "running", "peer": "16Uiu2HAm" + "7" * 44, "listen": "/ip4/0.0.0.0/tcp/4001", "announced": [],
            "joined": True, "reason": "", "bootnodes": [{"address": "/dns4/boot.example/tcp/4001", "problem": "", "connected": True}],
            "known": 5, "inbound": 2, "outbound": 4, "provides": [], "peers": peers,
        }  # fmt: skip
        write_json(self.place.data / REPORT, said | changes)
        for step in (11, 12, 13):
            folder = self.place.data / "weights" / "complete" / str(step)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "model.safetensors").write_bytes(bytes(100_000))
        return self

    def waits(self) -> tuple[Counter[int], int]:
        """Units by the time from which they can be claimed, and those whose time has come."""
        waits: Counter[int] = Counter()
        with closing(SubmissionLog(self.place.data / submission_log.FILE)) as log:
            for one in log.all(submission_log.COMMITTED, submission_log.STORED, submission_log.ACCEPTED):
                waits[ring.matures_at(one.made_at, WINDOW)] += one.units
        matured = sum(waits.pop(at) for at in list(waits) if at <= NOW)
        return waits, matured

    def told(self, **changes: Any) -> dict[str, Any]:
        """What `node status` would tell."""
        waits, matured = self.waits()
        ready = min(52_000, matured)
        told = {
            "node": NODE, "run": 7, "role": "active", "operator": OPERATOR, "hardware": 1, "open_hard": 0, "shut_until": None,
            "suspended_until": None, "strikes": 0, "cases": [], "units_most": 4_000_000, "penalty_left": str(50 * 10**18),
            "stake": str(250 * 10**18), "locked": str(200 * 10**18), "seat_stake": str(200 * 10**18), "free": str(50 * 10**18),
            "unlocks_at": None, "open_cases": 0, "leaving": "0", "leaving_at": None, "head": 13, "running": True, "doing": {}, "over": False,
            "submissions": {}, "ready_units": ready, "pending_units": sum(waits.values()), "paid_units": matured - ready, "reward": str(REWARD),
            "maturing": [{"at": at, "units": units, "amount": str(units * REWARD)} for at, units in sorted(waits.items())], "held_units": 0, "now": NOW,
            "penalty": str(50 * 10**18), "gas": str(31 * 10**15), "paused": False, "matrix_challenges": None,
            "sums": {
                "submissions": 40, "tokens": 150_000, "soft_share": 0.12, "hard_share": 0.03, "log10_evidence": "0.4", "log10_bound": "3.0",
                "begin_anew": NOW + 5 * DAY, "soft_share_by_statistic": {"temperature": 0.1}, "causes": None,
            },
            "calibration": {"digest": "ab" * 32, "since": 0, "notice": 0}, "recent": {}, "next": "node claim",
        }  # fmt: skip
        told |= changes
        return told | {"earning": vars(earning.earning(told))}


def _state(age: int, number: int) -> str:
    if age < DAY // 4:
        return (submission_log.COMMITTED, submission_log.STORED)[number % 2]
    if number % 17 == 5:
        return submission_log.SOFT
    return submission_log.LOST if number % 29 == 7 else submission_log.ACCEPTED


@dataclass
class MadeChain:
    """Stands where the chain is asked: tells `told`, or is away."""

    told: dict[str, Any] | None
    asked: int = 0

    def policy(self) -> Policy:
        if self.told is None:
            raise RpcUnavailable(f"{RPC} does not answer: connection refused")
        return POLICY

    def tell(self, log: SubmissionLog) -> dict[str, Any]:
        self.asked += 1
        self.policy()
        assert self.told is not None
        return self.told

    def add_story(self, log: SubmissionLog, one: LoggedSubmission, row: dict[str, Any]) -> None:
        self.policy()
        claimable = ring.matures_at(one.made_at, WINDOW)
        row["chain"] = {
            "state": "submitted",
            "case": None,
            "amount": str(one.units * REWARD),
            "claimable_at": claimable,
        }
        row["next"] = "nothing; node claim pays it later"


@dataclass
class ShownNode:
    node: MadeNode
    keeper: NodePageKeeper
    server: SleepingServer
    chain: MadeChain

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def address(self) -> tuple[str, int]:
        return server.HOST, httpx.URL(self.url).port or 0

    @property
    def connections(self) -> set[Any]:
        """That are open."""
        running = self.server._server
        return set() if running is None else running.server_state.connections

    def get(self, path: str, headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", params=query, headers=headers, timeout=30)

    def part(self, name: str, **query: Any) -> Any:
        answer = self.get(f"api/v1/{name}", **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ready(self) -> ShownNode:
        def is_there() -> bool:
            self.keeper.want()
            return "log" in self.keeper.content.parts

        eventually(is_there, what="the page is made")
        return self


@contextmanager
def shown_node(
    node: MadeNode, told: dict[str, Any] | None, tail: LogTail | None = None, *, quiet_seconds: float = 30.0,
    head_seconds: float = server.HEAD_SECONDS,
) -> Iterator[ShownNode]:  # fmt: skip
    chain = MadeChain(told)
    keeper = NodePageKeeper(node.place, node.settings, cast(ChainSide, chain), tail or LogTail(), turn_seconds=0.05)
    listener = listen(0)
    assert listener is not None
    with (
        SleepingServer(listener, partial(create_page, keeper), quiet_seconds, head_seconds=head_seconds) as serving,
        keeper,
    ):
        yield ShownNode(node, keeper, serving, chain)
