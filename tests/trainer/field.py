"""Rollouts on a real chain and at a real hub, with rewards as a test wants them, and the source that reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from swarm.anvil import Anvil

from protocol import rollout
from protocol.chain.sync import Book
from protocol.clock import SYSTEM, Clock
from protocol.hub.listing import Mark
from protocol.identity import Key
from protocol.rollout import Header, RolloutFile, Sample
from protocol.runspec import RunSpec
from protocol.sandbox import Sandbox
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome
from tests.hub.desk import Desk, open_desk, small_spec
from trainer.rollouts.data import RolloutSource
from trainer.rollouts.files import Bounds
from trainer.rollouts.pool import TrainingGroup

VOCABULARY, CONTEXT = 50, 64
UNEQUAL, EQUAL = (0.0, 1.0, 0.0, 1.0), (1.0, 1.0, 1.0, 1.0)
_serial = itertools.count(1)


def samples(rewards: Sequence[Sequence[float]]) -> list[Sample]:
    """One group per row of `rewards`; no two completions anywhere are the same."""
    made = []
    for group, row in enumerate(rewards):
        prompt = np.array([3 + group, 4, 5], np.int32)
        for number, reward in enumerate(row):
            serial = next(_serial)
            completion = np.array([serial // 40**2 % 40, serial // 40 % 40, serial % 40, number + 40, 1], np.int32)
            logprobs = np.full(len(completion), -1.0, np.float32)
            made.append(
                Sample(group, number, group, 0, prompt, completion, logprobs, (bytes(258),), reward, 0.0, reward)
            )
    return made


@dataclass
class Field:
    """One deployment for many tests: each works on steps of its own, from `first` on."""

    desk: Desk
    sandbox: Sandbox
    folder: Path
    first: int = 0
    receipts_before: int = 0

    def begin(self) -> None:
        """From here on `source` knows nothing of what was there before."""
        self.first = self.desk.step + 1
        newest = self.desk.database._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'receipts'").fetchone()
        self.receipts_before = newest[0]

    def node(self) -> Key:
        return self.desk.node()

    def file(self, node: Key, made: Sequence[Sample], *, sequence: int = 0) -> bytes:
        domain = self.desk.world.chain.domain
        header = Header(
            "toploc/1", domain.chain_id, domain.contract, self.desk.world.run, node.address, self.desk.step, sequence,
            "be" * 32, self.desk.spec.digest.hex(), 0,
        )  # fmt: skip
        path = self.folder / "made.parquet"
        rollout.write(RolloutFile(header, tuple(made)), path)
        return path.read_bytes()

    def submit(self, node: Key, data: bytes, *, sequence: int = 0) -> SubmissionRef:
        """Committed and uploaded."""
        ref = self.desk.commit(node, data, sequence=sequence)
        answer = self.desk.upload(node, ref, data)
        assert answer.status_code == 200, answer.text
        return ref

    def submission(self, node: Key, *rewards: Sequence[float], sequence: int = 0) -> SubmissionRef:
        """A submission of two groups, both unequal where nothing else is said."""
        made = samples(rewards or (UNEQUAL, UNEQUAL))
        return self.submit(node, self.file(node, made, sequence=sequence), sequence=sequence)

    def judge(self, validator: Key, ref: SubmissionRef, outcome: Outcome = Outcome.ACCEPT, **changes: Any) -> None:
        self.desk.client(validator).post_receipt(self.desk.receipt(validator, ref, outcome, **changes))

    def list_at_hub(self, receipt: bytes) -> None:
        """What a lying hub lists, which ours would refuse."""
        number = next(_serial)
        assert self.desk.database.add_receipt(number.to_bytes(32, "big"), "liar", receipt, self.desk.now())

    def source(
        self, name: str = "incoming", *, spec: RunSpec | None = None, node_share: float = 1.0, clock: Clock = SYSTEM,
        poll_seconds: float = 0.0, **index: Any,
    ) -> RolloutSource:  # fmt: skip
        d = self.desk
        made = RolloutSource(
            d.world.chain, d.world.run, spec or d.spec, Book(d.world.chain, d.world.run, **index), d.client(), self.sandbox,
            self.folder / name, Bounds(VOCABULARY, CONTEXT), end_tokens=[1], node_share=node_share, clock=clock,
            poll_seconds=poll_seconds,
        )  # fmt: skip
        made.forget_before(self.first + d.spec.max_lag)
        made._receipts.mark = Mark(self.receipts_before)
        return made

    def mine(self, blocks: int = 1) -> None:
        self.desk.world.anvil.request("anvil_mine", hex(blocks))


@contextmanager
def open_field(anvil: Anvil, folder: Path, **policy: Any) -> Iterator[Field]:
    (folder / "hub").mkdir()
    with Sandbox(small_spec()) as sandbox, open_desk(anvil, folder / "hub", policy=policy) as desk:
        yield Field(desk, sandbox, folder)


def submissions(groups: Sequence[TrainingGroup] | None) -> set[tuple[bytes, int]]:
    assert groups is not None
    found = [(group.submission, group.index) for group in groups]
    assert len(found) == len(set(found))
    return set(found)


def both(field: Field, *refs: SubmissionRef) -> set[tuple[bytes, int]]:
    """Both groups of each submission."""
    return {(field.desk.submission(ref), index) for ref in refs for index in (0, 1)}


def changed(made: Sequence[Sample], row: int, **values: Any) -> list[Sample]:
    return [replace(sample, **values) if i == row else sample for i, sample in enumerate(made)]


def usable(source: RolloutSource, step: int) -> set[tuple[bytes, int]]:
    """Groups a batch for `step` could take, after one more poll."""
    source.poll()
    count = source.ready(step)
    return submissions(source.take(step, count)) if count else set()
