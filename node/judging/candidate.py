"""One submission under judgement, and everything the rules may look at. What is expensive is computed when first asked for."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from node.engine import Verifier
from node.engine.interface import build_of
from node.judging.alternatives import TOKENS_MOST
from node.judging.history import History
from protocol import prefill_sampling, seeds, statistics
from protocol.calibration_notice import CalibrationNotice, spec_in_force
from protocol.environments import TaskSet
from protocol.environments.assignment import AssignedGroup, assign
from protocol.eprocess import Sums
from protocol.rollout import Header, RolloutFile, Sample
from protocol.runspec import RunSpec
from protocol.sandbox import Reading, Sandbox
from protocol.signing import Domain
from protocol.submission import SubmissionRef
from protocol.tokenizer import Tokenizer
from protocol.verdict import Finding

LONG_SECONDS = 30.0
"""What rows take that are judged at once, on this machine's clock: those that take longer get the prefill, whether it was drawn for them or not.
A row that nobody generated may be any program, and the most costly there is. Changing it breaks: nothing, however often it is wrong."""

Examine = Callable[[Sequence[int], Finding | None], Finding | None]
"""What `computation` and `sampling` have against these rows, of which some may have had no prefill yet; otherwise the finding that is given.
Raises what keeps them from being asked where none is given: then nothing further may be run."""


@dataclass(frozen=True)
class RunContext:
    """What is the same for all submissions of a run, and of a version."""

    spec: RunSpec
    domain: Domain
    run: int
    tasks: TaskSet
    sandbox: Sandbox
    notice: CalibrationNotice | None = None
    """What the manifest of the version says that work was done with; submissions of others have another."""

    @cached_property
    def judged_by(self) -> RunSpec:
        """The spec with the limits that are in force for that version."""
        return spec_in_force(self.spec, self.notice)

    @cached_property
    def spec_digest(self) -> bytes:
        return self.spec.digest


@dataclass(frozen=True)
class Commitment:
    """What the chain says about a submission: who committed to which file, when, for which beacon.

    `is_repeated`: whether the same node committed to the same file before; `block_hash` is that of the commitment's block.
    """

    ref: SubmissionRef
    units: int
    beacon: bytes
    hardware: int
    block_hash: bytes
    is_repeated: bool = False


@dataclass(frozen=True)
class PrefillPlan:
    """Which samples get the prefill: a share of them, drawn by the validator's secret so that nobody can foresee it.

    `examined` are groups of rows that get it besides, after the drawn ones and before any program is run: those of an earlier judgement
    that is made again. `by_clock`: whether rows whose programs take long get it too.
    """

    share: float
    secret: bytes
    examined: tuple[tuple[int, ...], ...] = field(default=(), kw_only=True)
    by_clock: bool = field(default=True, kw_only=True)
    alternatives: tuple[str, ...] = field(default=(), kw_only=True)
    """Named alternatives that drawn rows are prefilled with again."""

    def choose(self, submission: bytes, block_hash: bytes, samples: int) -> list[int]:
        """Chosen rows, at least one."""
        return prefill_sampling.rows(self.secret, submission, block_hash, samples, self.share)


@dataclass
class Checked:
    """What got the prefill. Bit i of `samples`: sample i."""

    samples: int = 0
    proofs: int = 0
    tokens: int = 0
    examined: list[tuple[int, ...]] = field(default_factory=list)
    """Rows that got it though nobody drew them, group by group."""
    unexamined: list[tuple[int, ...]] = field(default_factory=list)
    """Rows that should have had it so and could not."""
    other_build: str = ""
    """The build that the file names, where bits would be compared and the engine at hand is of another."""
    near: int = 0
    """Bit i: of sample i something lies nearer to its hard limit than to its soft one (limits.py), hard or not."""
    sums: dict[int, dict[str, Sums]] = field(default_factory=dict)
    """What each row adds to the sums over its seat's work, by row; nothing where the run keeps none."""

    alternatives: list[str] = field(default_factory=list)
    """Those that rows were prefilled with again."""
    history: History | None = None
    """What the seat did before, as it was judged."""
    again: int = 0
    """Tokens of these prefills, and of those with the published weights that they were compared with."""

    @property
    def summed(self) -> dict[str, Sums]:
        """The sums of the rows that were drawn: a row that got the prefill for another reason counts for none."""
        besides = {row for group in self.examined for row in group}
        return statistics.total(of for row, of in sorted(self.sums.items()) if row not in besides)

    def see(self, row: int, tokens: int) -> None:
        """Counts a row once, however often it gets the prefill."""
        if not self.samples >> row & 1:
            self.samples |= 1 << row
            self.tokens += tokens


@dataclass
class Candidate:
    context: RunContext
    commitment: Commitment
    path: Path
    """The rollout file, as it was downloaded."""
    engine: Verifier
    """Holds the weights of the commitment's step."""
    tokenizer: Tokenizer
    plan: PrefillPlan
    checked: Checked = field(default_factory=Checked)
    history: History | None = None
    """What the seat did before, where the run judges by it."""
    alternative: Callable[[str], Verifier] | None = None
    """What computes as a named alternative, good until the next is asked for."""
    sampled: dict[int, Finding | None] = field(default_factory=dict)
    """What `sampling` has found in rows whose hidden states were at hand for `computation`."""

    @property
    def spec(self) -> RunSpec:
        """As it is in force for the version that the work was done with."""
        return self.context.judged_by

    @cached_property
    def submission_id(self) -> bytes:
        return self.commitment.ref.submission_id(self.context.run)

    @cached_property
    def reading(self) -> Reading:
        """The file as the sandbox reads it. Raises Malformed."""
        return self.context.sandbox.read(self.path)

    @property
    def file(self) -> RolloutFile:
        return self.reading.file

    @property
    def samples(self) -> tuple[Sample, ...]:
        return self.reading.file.samples

    @cached_property
    def expected_header(self) -> Header:
        ref, domain = self.commitment.ref, self.context.domain
        return Header(
            proof=self.spec.verification.proof, chain_id=domain.chain_id, contract=domain.contract, run=self.context.run,
            node=ref.node, step=ref.step, sequence=ref.sequence, beacon=self.commitment.beacon.hex(),
            spec=self.context.spec_digest.hex(), hardware=self.commitment.hardware,
        )  # fmt: skip

    @property
    def is_bitwise(self) -> bool:
        """Whether bits are compared: the run asks for it, and the engine at hand is of the build that the file names."""
        if self.spec.verification.bitwise is None:
            return False
        of = self.file.header.build
        return bool(of) and of == build_of(self.engine)

    @property
    def uncovered(self) -> str | None:
        """Why the limits tell nothing certain of this seat's work; None where they do."""
        return uncovered(self.spec, self.commitment.hardware)

    @cached_property
    def assigned(self) -> list[AssignedGroup]:
        """The groups this submission had to consist of."""
        return assign(self.spec, self.context.tasks, submission_seed(self), self.commitment.hardware)

    def key(self, sample: Sample) -> int:
        """The sampling key of a row; rows were found to be in order by then."""
        return self.assigned[sample.group].keys[sample.sample]

    def is_exact(self, row: int) -> bool:
        """Whether the spec declares the environment of a row exact; rows were found to be in order by then."""
        return self.spec.environments[self.assigned[self.samples[row].group].problem.environment].exact

    @cached_property
    def rows(self) -> list[int]:
        """Rows that get the prefill."""
        return self.plan.choose(self.submission_id, self.commitment.block_hash, len(self.samples))

    @cached_property
    def compared(self) -> list[int]:
        """Rows that are prefilled again with each alternative: drawn ones, in an order that nobody foresees, as many as are within what is kept of one submission."""
        drawn = sorted(
            self.rows, key=lambda row: hmac.digest(self.plan.secret, self.submission_id + bytes([row]), "sha256")
        )
        ends = accumulate(len(self.samples[row].completion) for row in drawn)
        return [row for row, end in zip(drawn, ends, strict=True) if end <= TOKENS_MOST]

    def prefilled(self, rows: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """The validator's own hidden states [T, H] of these rows' generated tokens, a batch at a time, of which none is kept.

        The prefill goes over the whole conversation: what the model was given between turns is its context, and no more.

        A large submission's states would not fit into memory: whoever goes through them takes all that anybody needs of them.
        """
        for batch in self.prefilled_by(self.engine, rows):
            for row in batch:
                self.checked.see(row, len(self.samples[row].completion))
            yield batch

    def prefilled_by(self, engine: Verifier, rows: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """As `prefilled`, by another engine."""
        pairs = [(self.samples[row].prompt, self.samples[row].context) for row in rows]
        for batch in engine.prefill_in_batches(pairs):
            yield {rows[i]: _generated(self.samples[rows[i]], hidden) for i, hidden in batch.items()}


def uncovered(spec: RunSpec, hardware: int) -> str | None:
    """Why a run's limits tell nothing certain of work by this hardware class: nobody measured it, or the model is not listed. None where they do."""
    if spec.model.unlisted:
        return "the run's model is not in the list of those that are computed rightly"
    if hardware not in spec.verification.calibrated:
        return f"hardware class {hardware} is not calibrated"
    return None


def _generated(sample: Sample, hidden_TH: Tensor) -> Tensor:
    """Of the states of all tokens after the prompt, those that made generated ones."""
    turns = sample.conversation
    return hidden_TH if len(turns) == 1 else hidden_TH[torch.from_numpy(turns.mask).to(hidden_TH.device)]


def submission_seed(candidate: Candidate) -> bytes:
    ref, domain = candidate.commitment.ref, candidate.context.domain
    return seeds.submission_seed(
        chain_id=domain.chain_id, contract=bytes.fromhex(domain.contract[2:]), run=candidate.context.run,
        beacon=candidate.commitment.beacon, node=bytes.fromhex(ref.node[2:]), step=ref.step, sequence=ref.sequence,
    )  # fmt: skip
