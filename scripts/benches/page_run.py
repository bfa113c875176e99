"""A run that never was, as a hub's files have it: book, receipts, the trainer's files. For whoever shows such a run, large or small."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from eth_utils import to_checksum_address
from swarm.tiny_run import run_tables

from protocol import calibration, runspec
from protocol.chain import Chain, book_schema, events
from protocol.chain.book_entries import Entries
from protocol.chain.decoding import Log
from protocol.chain.types import Block, Funds, Role, Status
from protocol.constants import PROTOCOL_VERSION
from protocol.environments.reasoning import EXAMINED_VERSION
from protocol.identity import Key
from protocol.runspec import RunSpec
from protocol.shell.home import write_json
from protocol.submission import SubmissionRef
from protocol.verdict import Details, Outcome, Receipt
from trainer.config import Layout, RunSettings
from trainer.hub.database import Database
from trainer.page.sources import PageSources, RelayTally

RUN = 1
CONTRACT = to_checksum_address("0x" + "c0" * 20)
START = 1_790_000_000
"""Block time of the first block."""
BLOCK_SECONDS = 2
ENVIRONMENTS = ("rotate_matrix", "spiral_matrix", "fractions")
_MUR = 10**18


def address(kind: str, number: int) -> str:
    """A made-up one, the same every time."""
    return str(to_checksum_address(hashlib.sha256(f"{kind} {number}".encode()).digest()[:20]))


def made_spec() -> RunSpec:
    """That no model and no task set stands behind."""
    table = run_tables()["spec"]
    limits = calibration.load(table["verification"]["calibration"], Path())
    table["verification"] |= {
        "calibration": limits.digest, "computation": limits.computation, "sampling": limits.sampling,
    }  # fmt: skip
    table["model"] |= {"config": "0" * 64, "tokenizer": "0" * 64}
    absent = {"package": "reasoning-gym", "version": EXAMINED_VERSION, "head": "0" * 64}
    table["environments"] = [{**absent, **environment} for environment in table["environments"]]
    return runspec.from_table(table)


@dataclass(frozen=True)
class MadeSubmission:
    ref: SubmissionRef
    id: bytes
    units: int
    time: int
    outcome: Outcome | None


class MadeRun:
    """Writes itself into `folder`. One node in ten works falsely now and then, and one in fifty is convicted."""

    def __init__(
        self, folder: Path, *, nodes: int = 30, per_node: int = 20, validators: int = 4, steps: int = 20, seed: int = 0
    ) -> None:
        self.folder = folder
        chain = {"rpc": "http://127.0.0.1:1", "contract": CONTRACT, "chain_id": 31337, "run": RUN}
        settings = RunSettings.model_validate({"chain": chain, "trainer": {"steps": 100}})
        self.layout = Layout(folder / "run.toml", settings)
        self.layout.hub.mkdir(parents=True, exist_ok=True)
        self.book = self.layout.hub / "chain.sqlite"
        self.index = self.layout.hub / "hub.sqlite"
        self.nodes = [address("node", i) for i in range(nodes)]
        self.validators = [address("validator", i) for i in range(validators)]
        self.steps = steps
        self._rng = random.Random(seed)
        self._key = Key.generate()
        self._block, self._log = 100, 0
        self._db = book_schema.connect(self.book)
        self._entries = Entries(self._db, RUN)
        self._database = Database(self.index)
        self._begin()
        self.submissions = list(self._work(per_node))
        self.cases = list(self._court())
        self.end()

    @property
    def now(self) -> int:
        return START + self._block * BLOCK_SECONDS

    @property
    def block(self) -> int:
        return self._block

    # ---- the chain -----------------------------------------------------------------------------------------------------

    def tell(self, *what: tuple[type, tuple[Any, ...]]) -> None:
        """A block with these events."""
        self._block += 1
        hash_ = hashlib.sha256(b"block %d" % self._block).digest()
        logs = [
            Log(self._block, i, hash_, hashlib.sha256(b"tx %d %d" % (self._block, i)).digest(), kind, values)
            for i, (kind, values) in enumerate(what)
        ]
        with self._entries.transaction():
            self._entries.enter(logs)
            self._entries.add_blocks([(self._block, hash_, self.now)], bare=False)

    def take_back(self, block: int) -> None:
        """A reorganisation: what came after that block is gone."""
        with self._entries.transaction():
            self._entries.remove_above(block)
        self._block = block

    def end(self) -> None:
        """The chain's head is the last block that was told."""
        with self._entries.transaction():
            for name, value in (("run", RUN), ("chain_id", 31337), ("contract", CONTRACT), ("identity", b"i" * 16)):
                self._entries.set_fact(name, value)
            self._entries.set_head(Block(self._block, bytes(32), self.now))

    def close(self) -> None:
        self._db.close()
        self._database.close()

    def _begin(self) -> None:
        self.tell((events.Funded, (RUN, 10_000 * _MUR)))
        self.tell(*((events.ValidatorSeated, (RUN, v, True, 0)) for v in self.validators))
        for i in range(0, len(self.nodes), 200):
            joined = (
                (events.Joined, (RUN, node, address("operator", i + j), b"\x00\x25" + bytes(30), j % 3))
                for j, node in enumerate(self.nodes[i : i + 200])
            )
            self.tell(*joined)
        for step in range(self.steps):
            self.tell((events.Published, (RUN, step, bytes([step % 256]) * 32)), (events.Drawn, (RUN, step, bytes(32))))

    def _work(self, per_node: int) -> Iterator[MadeSubmission]:
        for sequence in range(per_node):
            step = sequence * self.steps // per_node
            for start in range(0, len(self.nodes), 100):
                made = [self._submission(n, step, sequence) for n in range(start, min(start + 100, len(self.nodes)))]
                self.tell(*((events.Submitted, (RUN, m.ref.node, m.ref.root, step, sequence, m.units)) for m in made))
                for one in made:
                    self._judge(one)
                yield from made

    def _submission(self, n: int, step: int, sequence: int) -> MadeSubmission:
        root = hashlib.sha256(f"root {n} {sequence}".encode()).digest()
        ref = SubmissionRef(cast(Any, self.nodes[n]), step, sequence, root)
        dice = self._rng.random()
        outcome: Outcome | None = Outcome.ACCEPT
        if n % 10 == 3 and dice < 0.2:
            outcome = Outcome.SOFT
        elif n % 50 == 7 and dice < 0.05:
            outcome = Outcome.HARD
        elif dice > 0.99:
            outcome = None
        return MadeSubmission(
            ref, ref.submission_id(RUN), self._rng.randint(200, 1200), self.now + BLOCK_SECONDS, outcome
        )

    def _judge(self, made: MadeSubmission) -> None:
        if made.outcome is None:
            return
        validator = self.validators[made.id[0] % len(self.validators)]
        rule = {Outcome.ACCEPT: "", Outcome.SOFT: "available", Outcome.HARD: "sampling"}[made.outcome]
        self.add_receipt(made, validator, made.outcome, rule=rule)

    def add_receipt(self, made: MadeSubmission, validator: str, outcome: Outcome, **changes: Any) -> None:
        """As if the hub had taken it."""
        is_false = outcome != Outcome.ACCEPT
        values = {
            "protocol": PROTOCOL_VERSION, "chain_id": 31337, "contract": CONTRACT, "run": RUN, "submission": made.id.hex(),
            "node": made.ref.node, "step": made.ref.step, "sequence": made.ref.sequence, "root": made.ref.root.hex(),
            "units": made.units, "spec": "0" * 64, "outcome": int(outcome), "rule": "", "measured": "9.89068" if is_false else "",
            "threshold": "0.5" if is_false else "", "detail": "row 0, token 1: margin" if is_false else "",
            "samples": "0" * 62 + "ff", "sequences_checked": 8, "proofs_checked": 8, "tokens_checked": made.units, "time": made.time + 6,
        }  # fmt: skip
        receipt = Receipt(Details(**{**values, **changes}), validator, bytes(65))
        self._database.add_receipt(made.id, validator, receipt.encode(), made.time + 8, made.ref.node)

    def _court(self) -> Iterator[tuple[str, int]]:
        """A case for each hard verdict, the first of each seat; every second one is settled."""
        accused: dict[str, MadeSubmission] = {}
        for made in self.submissions:
            if made.outcome == Outcome.HARD:
                accused.setdefault(made.ref.node, made)
        first, second, *jurors = self.validators
        for i, (seat, made) in enumerate(accused.items()):
            r = made.ref
            self.tell(
                (events.Challenged, (RUN, seat, r.root, r.step, r.sequence, first, True, bytes(32), seat, 1)),
                (events.CoSigned, (RUN, seat, 1, second, bytes(32))),
            )
            self.tell((events.Appealed, (RUN, seat, 1, seat)))
            self.tell(*((events.Voted, (RUN, seat, 1, juror, 1, 1, bytes(32))) for juror in jurors[:-1]))
            reason = "my device is off; \x1b[31mred\u202e and turned <script>alert(1)</script>"
            self.tell((events.Abstained, (RUN, seat, 1, jurors[-1], reason)))
            if i % 2 == 0:
                self.tell((events.Settled, (RUN, seat, 1, 3, 1, 0, True, made.units, 70 * _MUR)))
            yield seat, 1
        self.tell(*((events.Claimed, (RUN, node, node, 500, 5 * _MUR)) for node in self.nodes[:3]))

    # ---- the trainer ---------------------------------------------------------------------------------------------------

    def train(self, steps: int | None = None, *, wall: float = START) -> None:
        """What a trainer writes of so many steps, without training anything."""
        steps = self.steps if steps is None else steps
        with self.layout.metrics.open("w") as file:
            for step in range(steps):
                file.write(json.dumps(self._record(step, steps, wall)) + "\n")
                if step % 5 == 0:
                    score = 0.25 + 0.5 * step / steps
                    held_out = {"held_out_score": score, "held_out_by_environment": dict.fromkeys(ENVIRONMENTS, score)}
                    file.write(
                        json.dumps({"step": step, **held_out, "held_out_length_error": 40.0 - step / steps}) + "\n"
                    )
        evaluations = [{"step": 0, "score": 0.25, "problems": 80}, {"step": steps, "score": 0.71, "problems": 80}]
        phase = {"name": "waiting for rollouts", "since": wall, "deadline": 3600.0}
        write_json(self.layout.status, {
            "state": "waiting for rollouts", "waiting": {"groups": 11, "wanted": 16}, "step": steps, "steps": 100,
            "phases": [phase], "seconds": {"training": 36.0, "waiting for rollouts": 121.0, "evaluating": 22.0}, "at": wall,
            "trained_tokens": 116_523, "evaluations": evaluations, "alarms": [], "metrics": self._record(steps, steps, wall),
        })  # fmt: skip
        write_json(self.layout.hub_status, {"bytes_served": 25_700_000, "published": steps - 1, "matrix_challenges": {
            self.nodes[0]: {"outcome": "passed", "operations_per_second": 2 * 10**12, "validator": self.validators[0]},
        }})  # fmt: skip

    def _record(self, step: int, steps: int, wall: float) -> dict[str, Any]:
        rising = 0.2 + 0.5 * step / steps + 0.05 * self._rng.random()
        by_environment = {name: rising - 0.1 * i for i, name in enumerate(ENVIRONMENTS)}
        seconds = {"waiting for rollouts": 2.0 + self._rng.random(), "training": 0.6, "evaluating": 0.4, "saving": 0.05}
        return {
            "step": step, "time": wall + step, "reward": rising, "task_reward": rising + 0.02, "length_error": 60 - 40 * step / steps,
            "completion_length": 14.0, "staleness": 1 + self._rng.random() / 2, "staleness_groups": {"0": 2, "1": 9, "2": 5},
            "entropy": 1.0 - 0.5 * step / steps, "gradient_norm": 0.1, "kl": 0.002, "nodes": 3, "reward_by_environment": by_environment,
            "length_error_by_environment": {}, "seconds": seconds, "dropped_groups": {"low": 1},
        }  # fmt: skip

    def show_samples(self, *texts: tuple[str, str]) -> None:
        """(prompt, completion) of each sample."""
        with self.layout.samples.open("w") as file:
            for i, (prompt, completion) in enumerate(texts):
                sample = {
                    "step": 3,
                    "prompt": prompt,
                    "completion": completion,
                    "tokens": 12,
                    "reward": 0.5 - i,
                    "advantage": 1.0,
                }
                file.write(json.dumps(sample) + "\n")

    def sources(self, chain: Any | None = None, **changes: Any) -> PageSources:
        """As the hub hands them to its page."""
        made: dict[str, Any] = {
            "chain": cast(Chain, chain or QuietChain()), "run": RUN, "spec": made_spec(), "layout": self.layout, "book": self.book,
            "open_index": lambda: Database.reader(self.index),
            "relays": lambda: {"http://10.0.0.5:8460": RelayTally(69_400_000, self.steps - 1, 1_200_000, float(self.now))},
            "promised": lambda validator: 3 * _MUR,
        }  # fmt: skip
        return PageSources(**(made | changes))


class QuietChain:
    """Answers as a chain would, of seats that are all alike; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def _said(self, value: Any) -> Any:
        self.asked += 1
        return value

    def policy(self, run: int) -> Any:
        return self._said(SimpleNamespace(reward=10**15, window=86_400))

    def funds(self, run: int) -> Funds:
        return self._said(Funds(8_000 * _MUR, 1_500 * _MUR))

    def status(self, run: int) -> Status:
        return self._said(Status(0, 0, 0))

    def seat(self, run: int, node: str) -> Any:
        return self._said(SimpleNamespace(locked=100 * _MUR, role=Role.ACTIVE))

    def validator(self, run: int, name: str) -> Any:
        return self._said(SimpleNamespace(locked=500 * _MUR))
