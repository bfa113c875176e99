"""What a cheat has at hand: the published weights, older and cheaper ones, its assigned work done honestly, and the means to
change it and commit to it properly. What a validator would hold is made anew for every candidate.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from swarm.tiny_run import TinyRun, tokens_of

from cheats.engines import SmallerModelEngine
from node.contributor.generation import Made
from node.engine import Completion, Prompt
from node.engine.degrade import Degradation
from node.engine.proofs import bits
from node.engine.torch_engine import TorchEngine
from node.engine.weights import save_weights
from node.judging.candidate import Candidate
from node.judging.history import CountedReceipt
from protocol import sampling, toploc
from protocol.environments.assignment import AssignedGroup
from protocol.identity import Key
from protocol.model_files import WEIGHTS
from protocol.rollout import RolloutFile, Sample
from trainer.config import LossSettings, OptimizerSettings, TrainSettings
from trainer.learning import advantage
from trainer.learning.learner import Learner
from trainer.learning.packing import TrainingSample

DEMO_LR, PAPER_LR = 1.5e-4, 3e-7
"""Learning rates of the demo's tiny policy and of INTELLECT-2 (arXiv 2505.07291)."""
Age = tuple[int, float]
"""Steps, and the learning rate they were taken at."""
_PROMPTS, _SAMPLES, _REFRESH = 6, 8, 5


@dataclass(frozen=True)
class Honest:
    """An honest submission and a validator's view of it."""

    made: Made
    file: RolloutFile
    view: Candidate

    @property
    def groups(self) -> list[AssignedGroup]:
        return self.view.assigned


class Scene:
    def __init__(self, run: TinyRun, older: Mapping[Age, Path]) -> None:
        """`run.model` holds the published weights, `older` those of some steps before."""
        self.run = run
        self._older = older
        self._submissions: dict[int, Honest] = {}
        self._spare = TorchEngine("float32")
        self._smaller: SmallerModelEngine | None = None
        self._summing: Scene | None = None
        self.counted: dict[str, list[CountedReceipt]] = {}
        """What was measured of a cheat's submissions, in their order."""

    @classmethod
    def create(
        cls, run: TinyRun, folder: Path, *, ages: Iterable[int], paper_ages: Iterable[int], end: float = 1.0
    ) -> Scene:
        """Trains the run's policy for as many steps as the oldest of `ages` and takes the outcome for the published weights.

        The distance to weights of some steps before is that of as many steps on: `paper_ages` are steps at INTELLECT-2's
        learning rate from there. `end` scales the embedding of the end tokens: the smaller, the longer are answers.
        """
        start = folder / "start"
        shutil.copytree(run.model, start)
        _scale_the_end(start, run.tokenizer.end_tokens, end)
        trained = train(run, start, folder / "trained", ages, DEMO_LR)
        published = trained.pop(0)
        older: dict[Age, Path] = {(age, DEMO_LR): version for age, version in trained.items()}
        for age in paper_ages:
            older[age, PAPER_LR] = train(run, published, folder / f"paper-{age}", [age], PAPER_LR)[0]
        engine = TorchEngine("float32")
        engine.load(published)
        node = Key.from_secret(b"\x07" * 32)  # always the same: whether a cheat is found may depend on what is drawn
        return cls(replace(run, folder=folder, model=published, engine=engine, node=node), older)

    def summing(self, soft: str, hard: str, **budget: Any) -> Scene:
        """The same of a run that judges by sums as well, against this noise, and with this budget the first time."""
        if self._summing is None:
            self._summing = Scene(self.run.with_history(soft, hard, **budget), self._older)
        return self._summing

    # ---- honest work ---------------------------------------------------------------------------------------------------

    def honest(self, sequence: int) -> Honest:
        if sequence not in self._submissions:
            made = self.run.honest(sequence=sequence)
            self._submissions[sequence] = Honest(made, self.run.read(made), self.run.candidate(made))
        return self._submissions[sequence]

    def longest(self, sequence: int) -> int:
        """The row with the longest completion."""
        samples = self.honest(sequence).file.samples
        return max(range(len(samples)), key=lambda row: len(samples[row].completion))

    def ended(self, sequence: int) -> tuple[int, int]:
        """Sequence and row of the next answer that an end token ends."""
        while True:
            for row, sample in enumerate(self.honest(sequence).file.samples):
                if sample.completion[-1] in self.run.tokenizer.end_tokens and len(sample.completion) > 1:
                    return sequence, row
            sequence += 1

    # ---- other weights -------------------------------------------------------------------------------------------------

    def smaller(self) -> TorchEngine:
        """The published model without its upper layers."""
        if self._smaller is None:
            self._smaller = SmallerModelEngine("float32")
            self._smaller.load(self.run.model)
        return self._smaller

    def degraded(self, degradation: Degradation) -> TorchEngine:
        """The published weights, degraded; good until the next call."""
        self._spare.load(self.run.model)
        degradation(self._spare._model)
        return self._spare

    def older(self, steps: int, lr: float) -> Path:
        """The weights of so many steps before, at this learning rate."""
        return self._older[steps, lr]

    def aged(self, age: Age) -> TorchEngine:
        """Weights of that age; good until the next call."""
        self._spare.load(self._older[age])
        return self._spare

    # ---- forging -------------------------------------------------------------------------------------------------------

    def made_by(self, engine: TorchEngine, sequence: int) -> Candidate:
        """The whole submission, made with another engine than the run's."""
        return self.run.candidate(replace(self.run, engine=engine).honest(sequence=sequence))

    def generate(
        self,
        sequence: int,
        *,
        engine: TorchEngine | None = None,
        temperature: float = 1.0,
        keys: Callable[[int], int] = lambda key: key,
    ) -> list[Completion]:
        """Completions of the submission's rows; `keys` says which key is used in place of the assigned one."""
        honest, spec = self.honest(sequence), self.run.spec
        prompts = [
            Prompt(honest.file.samples[g * spec.sampling.group_size].prompt.tolist(), tuple(map(keys, group.keys)))
            for g, group in enumerate(honest.groups)
        ]
        made = (engine or self.run.engine).generate(
            prompts, temperature=temperature, max_new_tokens=spec.sampling.max_new_tokens,
            end_tokens=self.run.tokenizer.end_tokens,
        )  # fmt: skip
        return [completion for group in made for completion in group]

    def with_completions(self, sequence: int, completions: Sequence[Completion]) -> Candidate:
        """The submission with these completions, proofs and logprobs, and the rewards they deserve."""
        honest = self.honest(sequence)
        rows = [
            replace(
                sample,
                completion=tokens_of(c.tokens),
                logprobs=np.array(c.logprobs, np.float32),
                proofs=tuple(c.proofs),
            )
            for sample, c in zip(honest.file.samples, completions, strict=True)
        ]
        return self.rewritten(sequence, self.rescored(rows))

    def rescored(self, samples: Sequence[Sample]) -> list[Sample]:
        """With the rewards that the completions deserve."""
        answers = [(s.problem, self.run.tokenizer.answer(s.completion.tolist())) for s in samples]
        scored = []
        for sample, task_reward in zip(samples, self.run.context.sandbox.score(answers), strict=True):
            penalty = self.run.penalty(sample)
            scored.append(
                replace(sample, task_reward=task_reward, length_penalty=penalty, reward=task_reward - penalty)
            )
        return scored

    def rewritten(self, sequence: int, samples: Iterable[Sample], **changes: object) -> Candidate:
        """The submission with other rows, committed to; `changes` are to what the chain says of it."""
        honest = self.honest(sequence)
        file = RolloutFile(honest.file.header, tuple(samples))
        return self.run.rewrite(honest.made, file, **changes)

    def with_header(self, sequence: int, samples: Iterable[Sample] | None = None, **fields: object) -> Candidate:
        """The submission with another header, and with other rows where some are given."""
        honest = self.honest(sequence)
        header = replace(honest.file.header, **fields)  # type: ignore[arg-type]
        return self.run.rewrite(honest.made, RolloutFile(header, tuple(samples or honest.file.samples)))

    def with_row(self, sequence: int, row: int, change: Callable[[Sample], Sample]) -> Candidate:
        """The submission with one row changed."""
        samples = list(self.honest(sequence).file.samples)
        samples[row] = change(samples[row])
        return self.rewritten(sequence, samples)

    def with_text(self, sequence: int, row: int, completion: Sequence[int], *, proved: bool) -> Candidate:
        """The submission with another completion in one row, and the reward it deserves.

        `proved`: proofs and logprobs are recomputed with the published weights; else they stay those of the honest text.
        """

        def retold(sample: Sample) -> Sample:
            claimed = [replace(sample, completion=tokens_of(completion))]
            return self.rescored(self.proved(sequence, claimed) if proved else claimed)[0]

        return self.with_row(sequence, row, retold)

    def proved(self, sequence: int, samples: Sequence[Sample], engine: TorchEngine | None = None) -> list[Sample]:
        """Rows with proofs and logprobs recomputed, with the published weights where no engine is given: any model can prefill
        any text."""
        engine = engine or self.run.engine
        states = engine.prefill([(s.prompt.tolist(), s.completion.tolist()) for s in samples])
        proofs = toploc.prove([bits(hidden) for hidden in states])
        view, rows = self.honest(sequence).view, []
        for sample, hidden, own in zip(samples, states, proofs, strict=True):
            scores = sampling.score(engine.logits(hidden), sample.completion, key=view.key(sample), temperature=1.0)
            rows.append(replace(sample, logprobs=scores.logprobs.astype(np.float32), proofs=tuple(own)))
        return rows


# ---- weights of earlier steps ------------------------------------------------------------------------------------------


def train(run: TinyRun, start: Path, folder: Path, ages: Iterable[int], lr: float) -> dict[int, Path]:
    """GRPO by the trainer's own learner from `start`; the published (bf16) weights by age in steps, 0 being the newest.

    Rewards are the environments', less a little for a completion longer or shorter than its siblings', so that every group
    teaches something.
    """
    wanted = {0, *ages}
    steps = max(wanted)
    settings = TrainSettings(
        steps=max(1, steps), optimizer_steps=1, pack_tokens=128, rows_per_forward=64,
        optimizer=OptimizerSettings(lr=lr, warmup_steps=0), loss=LossSettings(entropy=0.001),
    )  # fmt: skip
    learner = Learner(start, settings)
    engine = TorchEngine("float32")
    rng, groups, found = random.Random(0), [], {}
    for step in range(steps + 1):
        if steps - step in wanted:
            found[steps - step] = _version(learner, start, folder / f"step-{step}")
        if step == steps:
            break
        if step % _REFRESH == 0:
            engine.load(_version(learner, start, folder / "latest"))
            groups = _rollouts(run, engine, rng)
        learner.learn(groups, step)
    return found


def _version(learner: Learner, start: Path, folder: Path) -> Path:
    shutil.copytree(start, folder, dirs_exist_ok=True)
    save_weights(learner.model, folder / WEIGHTS, torch.bfloat16)
    return folder


def _rollouts(run: TinyRun, engine: TorchEngine, rng: random.Random) -> list[list[TrainingSample]]:
    tasks, tokenizer = run.context.tasks, run.tokenizer
    problems = tasks.problems([rng.randrange(tasks.size) for _ in range(_PROMPTS)])
    prompts = [
        Prompt(tokenizer.encode(p.prompt), tuple(rng.getrandbits(64) for _ in range(_SAMPLES))) for p in problems
    ]
    made = engine.generate(prompts, temperature=1.0, max_new_tokens=16, end_tokens=tokenizer.end_tokens, prove=False)
    groups = []
    for problem, prompt, completions in zip(problems, prompts, made, strict=True):
        lengths = np.array([len(c.tokens) for c in completions])
        scores = np.array(run.context.sandbox.score([(problem.index, tokenizer.answer(c.tokens)) for c in completions]))
        rewards = scores - 0.01 * np.abs(
            lengths - lengths.mean()
        )  # shorter ones no better: else answers come down to one token
        if advantage.has_signal(rewards):
            groups.append(
                [
                    TrainingSample(tokens_of(prompt.tokens), tokens_of(c.tokens), float(a))
                    for c, a in zip(completions, advantage.normalised(rewards), strict=True)
                ]
            )
    return groups or _rollouts(run, engine, rng)


def _scale_the_end(folder: Path, ends: frozenset[int], scale: float) -> None:
    engine = TorchEngine("float32")
    engine.load(folder)
    with torch.no_grad():
        for token in ends:
            engine._model.get_input_embeddings().weight[token].mul_(scale)
    save_weights(engine._model, folder / WEIGHTS, torch.bfloat16)
