"""A run small enough for tests: a spec, a tiny policy made on the spot, and honest rollout files with the means to tamper.

Nothing here touches a chain or a network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from node.contributor.generation import Made, Place, make
from node.engine import EngineSettings
from node.engine.proofs import bits
from node.engine.torch_engine import TorchEngine
from node.judging.candidate import Candidate, Commitment, PrefillPlan, RunContext
from protocol import length_rewards, rollout, sampling, toploc
from protocol.environments import TaskSet
from protocol.identity import Key
from protocol.rollout import RolloutFile, Sample
from protocol.runspec import BitwiseSpec, HistoryBudget, Limit, Recalibration, RewardSpec, RunSpec
from protocol.sandbox import Sandbox
from protocol.settings import write_toml
from protocol.shell import runfile
from protocol.signing import Domain
from protocol.tokenizer import Tokenizer

BEACON = bytes.fromhex("be" * 32)
CONTRACT = "0x5FbDB2315678afecb367f032d93F642f64180aa3"


def run_tables() -> dict[str, Any]:
    """[spec] and [trainer] of a run.toml: two tasks, two groups of four samples, completions long enough for two proofs."""
    environment = {
        "seed": 1_000_000_000, "size": 1_000_000, "exact": True, "held_out_seed": 77_000_000, "held_out_size": 20,
    }  # fmt: skip
    return {
        "spec": {
            "name": "test",
            "max_lag": 2,
            "upload_grace_seconds": 60,
            "file_bytes_max": 1 << 20,
            "sampling": {"group_size": 4, "groups_per_submission": 2, "temperature": "1", "max_new_tokens": 40},
            "reward": {"alpha": "0.001"},
            "verification": {"validators_needed": 1, "calibration": "tiny-qwen3-float32-cpu", "uncalibrated": [1]},
            "model": {"compute_dtype": "float32"},
            "environments": [
                {"dataset": "rotate_matrix", "config": {"min_n": 2, "max_n": 2}, **environment},
                {"dataset": "spiral_matrix", "config": {"min_n": 2, "max_n": 2}, **environment},
            ],
        },
        "trainer": {"model": "policy", "steps": 1},
    }


@dataclass
class TinyRun:
    """Everything a worker or validator has in hand, without chain and network."""

    folder: Path
    model: Path
    spec: RunSpec
    context: RunContext
    engine: TorchEngine
    tokenizer: Tokenizer
    node: Key

    @classmethod
    def create(
        cls, folder: Path, make_policy: Callable[..., Any], tables: dict[str, Any] | None = None, *, target: float = 0.0
    ) -> TinyRun:
        """`tables` in place of `run_tables()`; `target` is the score that the policy's warm-up ends at."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "run.toml"
        write_toml(file, tables or run_tables(), "A run for tests.")
        make_policy(file, folder / "policy", target=target, seed=0)
        spec = without_sums(runfile.complete(file, folder / "policy"))
        sandbox = Sandbox(spec)
        tasks = TaskSet(spec.environments, sandbox)
        context = RunContext(spec, Domain(31337, CONTRACT), 1, tasks, sandbox)  # type: ignore[arg-type]
        engine = TorchEngine("float32")
        engine.load(folder / "policy")
        return cls(folder, folder / "policy", spec, context, engine, Tokenizer(folder / "policy"), Key.generate())

    def with_budgets(self, length: str = "exact") -> TinyRun:
        """The same run with length budgets, others for each hardware class."""
        update = {"budgets": {"0": [10, 20], "1": [15, 30]}, "length": length}
        return self.with_reward(self.spec.reward.model_copy(update=update))

    def with_reward(self, reward: RewardSpec, *own: RewardSpec | None) -> TinyRun:
        """The same run with this length reward, and each environment's own."""
        pairs = zip_longest(self.spec.environments, own)
        environments = [one.model_copy(update={"reward": of}) for one, of in pairs]
        spec = self.spec.model_copy(update={"reward": reward, "environments": environments})
        return replace(self, spec=spec, context=replace(self.context, spec=spec))

    def with_noise(self, soft: str, hard: str) -> TinyRun:
        """The same run, whose receipts carry sums."""
        noise = Limit(soft=soft, hard=hard)
        verification = self.spec.verification.model_copy(update={"noise": noise})
        spec = self.spec.model_copy(update={"verification": verification})
        return replace(self, spec=spec, context=replace(self.context, spec=spec))

    def with_history(
        self, soft: str, hard: str, *, blind: Sequence[str] = (), never_hard: bool = False, **budget: Any
    ) -> TinyRun:
        """One that judges by sums against this noise, of a single seat and with one beginning a year; `blind`: rules that find no single value; `budget`: more of how."""
        if never_hard:
            budget["hard"] = "1e-300"
        run = self.with_noise(soft, hard)
        update: dict[str, Any] = {"history": HistoryBudget(**{"seats": 1, "days": 366, **budget})}
        for rule in blind:
            limits = getattr(run.spec.verification, rule)
            all_of_them = {name: Limit(soft="90", hard="99") for name, of in limits if isinstance(of, Limit)}
            update[rule] = limits.model_copy(update=all_of_them)
        spec = run.spec.model_copy(update={"verification": run.spec.verification.model_copy(update=update)})
        return replace(run, spec=spec, context=replace(run.context, spec=spec))

    def with_recalibration(self, **bounds: str) -> TinyRun:
        """The same run, whose trainer may replace the calibration within these bounds."""
        verification = self.spec.verification.model_copy(update={"recalibration": Recalibration(**bounds)})
        spec = self.spec.model_copy(update={"verification": verification})
        return replace(self, spec=spec, context=replace(self.context, spec=spec))

    def with_bits(self, *builds: str) -> TinyRun:
        """The same run, whose parties compute in fixed shapes and whose files name a build: one of these, where there are any."""
        verification = self.spec.verification.model_copy(update={"bitwise": BitwiseSpec(builds=list(builds))})
        model = self.spec.model.model_copy(update={"batch_invariant": True})
        spec = self.spec.model_copy(update={"verification": verification, "model": model})
        engine = TorchEngine(model.compute_dtype, EngineSettings(device="cpu").of_run(model))
        engine.load(self.model)
        return replace(self, spec=spec, context=replace(self.context, spec=spec), engine=engine)

    def honest(self, step: int = 0, sequence: int = 0, hardware: int = 0) -> Made:
        """An honest submission on disk."""
        place = Place(self.node.address, step, sequence, BEACON, hardware)
        return make(self.context, self.engine, self.tokenizer, place, self.folder / "rollouts")

    def candidate(self, made: Made, path: Path | None = None, share: float = 1.0, **changes: Any) -> Candidate:
        """A validator's view of a submission; `changes` are to what the chain says of it."""
        commitment = replace(made.commitment(), **changes)
        return Candidate(
            self.context, commitment, path or made.path, self.engine, self.tokenizer, PrefillPlan(share, b"secret")
        )

    def read(self, made: Made) -> RolloutFile:
        return self.context.sandbox.read(made.path).file

    def rewrite(self, made: Made, file: RolloutFile, **changes: Any) -> Candidate:
        """A validator's view of another file of the same place, properly committed to."""
        path = self.folder / "tampered.parquet"
        rollout.write(file, path)
        return self.committed(made, path, units=file.units, **changes)

    def committed(self, made: Made, path: Path, **changes: Any) -> Candidate:
        """A validator's view of the bytes at `path`, properly committed to."""
        root = hashlib.sha256(path.read_bytes()).digest()
        final = path.with_name(f"{root.hex()}.parquet")
        path.replace(final)
        changes = {"ref": replace(made.ref, root=root), **changes}
        return self.candidate(made, final, **changes)

    def penalty(self, sample: Sample) -> float:
        """What its length costs a sample."""
        reward = self.spec.reward_of(self.context.tasks.problem(sample.problem).environment)
        return length_rewards.penalty(reward, sample.budget, len(sample.completion))

    # ---- tampering: what a careful cheat would make consistent again ---------------------------------------------------

    def consistent(self, candidate_of: Candidate, sample: Sample, *, prove: bool = True) -> Sample:
        """Recomputes proofs, logprobs and rewards of a sample whose tokens were changed."""
        hidden = self.engine.prefill([(sample.prompt.tolist(), sample.completion.tolist())])[0]
        scores = sampling.score(
            self.engine.logits(hidden), sample.completion, key=candidate_of.key(sample), temperature=1.0
        )
        answer = self.tokenizer.answer(sample.completion.tolist())
        task_reward = self.context.sandbox.score([(sample.problem, answer)])[0]
        return replace(
            sample,
            logprobs=scores.logprobs.astype(np.float32),
            proofs=tuple(toploc.prove([bits(hidden)])[0]) if prove else sample.proofs,
            task_reward=task_reward,
            reward=task_reward - sample.length_penalty,
        )


def without_sums(spec: RunSpec) -> RunSpec:
    """The same without the noise of its calibration, where nothing decides by it: who wants sums says which (`with_noise`, `with_history`)."""
    if spec.verification.history is not None:
        return spec
    return spec.model_copy(update={"verification": spec.verification.model_copy(update={"noise": None})})


def with_sample(file: RolloutFile, row: int, sample: Sample) -> RolloutFile:
    samples = list(file.samples)
    samples[row] = sample
    return RolloutFile(file.header, tuple(samples))


def longest(file: RolloutFile, at_least: int = 2) -> int:
    """The row with the longest completion."""
    row = max(range(len(file.samples)), key=lambda r: len(file.samples[r].completion))
    assert len(file.samples[row].completion) >= at_least
    return row


def tokens_of(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int32)


__all__ = ["BEACON", "Commitment", "TinyRun", "longest", "run_tables", "tokens_of", "with_sample", "without_sums"]
