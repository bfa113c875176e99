"""Training data: validated rollouts only, and only what this process has verified itself.

The hub is believed nothing: commitments and seats come from the trainer's own index of the chain, receipts must carry the
signatures of seated validators, files must hash to their commitments and are read in the sandbox. Of a node's work for a
step only what lies before its first rejected, skipped or missing sequence counts: nobody gains by withholding a submission.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from protocol.chain import Chain
from protocol.chain.events import Submitted, ValidatorApproved, ValidatorSeated
from protocol.chain.index import EventIndex
from protocol.chain.types import Ref
from protocol.errors import Malformed, ProtocolViolation
from protocol.hub import HubClient
from protocol.rollout import Sample
from protocol.runspec import RunSpec
from protocol.sandbox import Sandbox
from protocol.verdict import Outcome, Receipt
from trainer import advantage
from trainer.packing import TrainingSample

log = logging.getLogger("trainer")


@dataclass(frozen=True)
class Group:
    """Samples of one problem that teach something; `work` and `index` name it."""

    work: bytes
    index: int
    node: str
    step: int
    samples: tuple[TrainingSample, ...]


@dataclass
class _Work:
    event: Submitted
    accepted_by: set[str] = field(default_factory=set)
    rejected: bool = False
    taken: bool = False


@dataclass
class DataCounts:
    """What became of rollouts so far."""

    samples: int = 0
    tokens: int = 0
    reward: float = 0.0
    """Sum over samples."""
    groups: int = 0
    equal_groups: int = 0
    """Dropped because all samples got the same reward."""
    stale_groups: int = 0
    """Dropped because they were older than the run's max_lag."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Groups trained on, by steps of age."""


class RolloutSource:
    """Follows chain and hub; call `poll`, then `take`. Not thread-safe."""

    def __init__(
        self, chain: Chain, run: int, spec: RunSpec, index: EventIndex, hub: HubClient, sandbox: Sandbox, folder: Path
    ) -> None:
        self.counts = DataCounts()
        self.trained_nodes: Counter[str] = Counter()
        self._chain = chain
        self._run = run
        self._spec = spec
        self._index = index
        self._hub = hub
        self._sandbox = sandbox
        self._folder = folder
        self._validators: set[str] = set()
        self._works: dict[bytes, _Work] = {}
        self._lines: dict[tuple[str, int], dict[int, bytes]] = defaultdict(dict)  # (node, step) → sequence → work
        self._early: dict[bytes, list[Receipt]] = defaultdict(
            list
        )  # receipts that came before their commitment was seen
        self._cursor = 0
        self._ready: list[Group] = []
        self._consumed: set[tuple[bytes, int]] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def poll(self, *, wait: int = 0) -> None:
        """Learns what is new; with `wait` the hub holds its answer back up to so many seconds until there is something."""
        self._follow_chain()
        for cursor, data in self._hub.receipts(self._cursor, wait=wait):
            self._cursor = cursor
            self._add_receipt(data)
        self._collect()

    def ready(self, step: int) -> int:
        """Groups that a batch for `step` could be made of now."""
        self._drop_stale(step)
        return len(self._ready)

    def take(self, step: int, count: int) -> list[Group] | None:
        """`count` groups for the batch of `step`, of the newest weights first, or None while there are too few."""
        if self.ready(step) < count:
            return None
        self._ready.sort(key=lambda group: -group.step)
        batch, self._ready = self._ready[:count], self._ready[count:]
        for group in batch:
            self._consumed.add((group.work, group.index))
            self.counts.staleness[step - group.step] += 1
            self.trained_nodes[group.node] += 1
        return batch

    def forget_before(self, step: int) -> None:
        """Drops what no batch can use any more."""
        oldest = step - self._spec.max_lag
        gone = {work for work, state in self._works.items() if state.event.step < oldest}
        for work in gone:
            del self._works[work]
        self._lines = defaultdict(dict, {key: line for key, line in self._lines.items() if key[1] >= oldest})
        self._consumed = {(work, index) for work, index in self._consumed if work not in gone}

    @property
    def cursor(self) -> list[list[object]]:
        """What was consumed and could be met again, for a checkpoint."""
        return [[work.hex(), index] for work, index in sorted(self._consumed)]

    def restore(self, cursor: list[list[object]]) -> None:
        self._consumed = {(bytes.fromhex(str(work)), int(str(index))) for work, index in cursor}

    # ---- following -----------------------------------------------------------------------------------------------------

    def _follow_chain(self) -> None:
        changes = self._index.poll()
        for event in changes.removed:
            if isinstance(event.data, Submitted):
                self._works.pop(_work(event.data), None)
                self._lines[event.data.node, event.data.step].pop(event.data.sequence, None)
        for event in changes.added:
            match event.data:
                case Submitted() as s if s.run == self._run:
                    self._add_commitment(s)
                case ValidatorSeated() as v if v.run == self._run:
                    (self._validators.add if v.seated else self._validators.discard)(v.validator)
                case ValidatorApproved(approved=False) as v if v.run == self._run:
                    self._validators.discard(v.validator)

    def _add_commitment(self, s: Submitted) -> None:
        work = _work(s)
        self._works[work] = _Work(s)
        self._lines[s.node, s.step][s.sequence] = work
        for receipt in self._early.pop(work, []):
            self._apply(receipt)

    def _add_receipt(self, data: bytes) -> None:
        try:
            receipt = Receipt.parse(data, self._chain.domain, self._run)
        except ProtocolViolation as error:
            log.warning("the hub lists a receipt that is none: %s", error)
            return
        if receipt.validator not in self._validators:
            log.warning("receipt of %s, who holds no validator seat, is ignored", receipt.validator)
        elif receipt.work in self._works:
            self._apply(receipt)
        else:
            self._early[receipt.work].append(receipt)

    def _apply(self, receipt: Receipt) -> None:
        work = self._works[receipt.work]
        if receipt.outcome == Outcome.ACCEPT:
            work.accepted_by.add(receipt.validator)
        else:
            work.rejected = True

    def _collect(self) -> None:
        """Takes what has become usable, line by line from sequence 0."""
        needed = self._spec.verification.validators_needed
        for line in self._lines.values():
            for sequence in range(len(line)):
                work = line.get(sequence)
                if work is None or self._works[work].rejected or len(self._works[work].accepted_by) < needed:
                    break
                if not self._works[work].taken:
                    self._works[work].taken = True
                    self._read(work, self._works[work].event)

    def _read(self, work: bytes, s: Submitted) -> None:
        path = self._folder / f"{s.root.hex()}.parquet"
        if not self._hub.download(s.root, path, cap=self._spec.file_bytes_max):
            log.warning("the hub has lost the accepted file %s", s.root.hex())
            return
        try:
            reading = self._sandbox.read(path)
        except Malformed as error:
            log.error("validators accepted a file that cannot be read (%s): %s", s.root.hex(), error)
            return
        finally:
            path.unlink(missing_ok=True)
        size = self._spec.sampling.group_size
        samples = reading.file.samples
        self.counts.samples += len(samples)
        self.counts.tokens += sum(len(sample.completion) for sample in samples)
        self.counts.reward += sum(sample.reward for sample in samples)
        for index in range(len(samples) // size):
            self._add_group(work, index, s, samples[index * size : (index + 1) * size])

    def _add_group(self, work: bytes, index: int, s: Submitted, samples: tuple[Sample, ...]) -> None:
        if (work, index) in self._consumed:
            return
        self.counts.groups += 1
        rewards = np.array([sample.reward for sample in samples])
        if not advantage.has_signal(rewards):
            self.counts.equal_groups += 1
            return
        made = tuple(
            TrainingSample(sample.prompt, sample.completion, float(a))
            for sample, a in zip(samples, advantage.normalised(rewards), strict=True)
        )
        self._ready.append(Group(work, index, s.node, s.step, made))

    def _drop_stale(self, step: int) -> None:
        fresh = [group for group in self._ready if step - group.step <= self._spec.max_lag]
        self.counts.stale_groups += len(self._ready) - len(fresh)
        self._ready = fresh


def _work(s: Submitted) -> bytes:
    return Ref(s.node, s.step, s.sequence, s.root).work_id(s.run)
