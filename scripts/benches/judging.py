"""What judging costs a validator: CPU time to generate a token against CPU time to verify it, by the rules that ask the model.

A Qwen3 of 8 layers × 512 with 32,768 tokens and random weights, its logits scaled to a mean entropy of one nat, on one thread: products with
weights are most of the work. A worker makes completions of 100, 500 and 2,000 tokens, with seeded draw and proofs, one at a time and 32 at a
time, all of them as long as they may be. A validator judges the 32 as one submission, of which all rows get the prefill, or some where those have
16,000 tokens: the rules `computation` and `sampling` themselves, with sums. What they find must be honest work.

"Products alone" is what the multiplications with weights take in blocks of many rows, and nothing else: as long as every logit is computed in
this type, nothing verifies for less, and generation ÷ that is the most there is to reach. The parts of a verified token are the prefill, the
product with `lm_head`, what is made of logits (draw, rivals, normaliser), and the rest (proofs, sums).

On a CPU. A GPU loses more than this in small batches, and these ratios say nothing about one.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from benches import Bench, Row
from benches.engine_work import NATS, entropy, root
from node.engine import Completion, EngineSettings, Prompt
from node.engine.torch_engine import TorchEngine
from node.engine.weights import save_weights
from node.judging.candidate import Candidate, Checked
from node.judging.rules import computation
from protocol import calibration
from protocol.model_files import WEIGHTS
from protocol.rollout import Sample
from protocol.runspec import ComputationLimits, Limit, SamplingLimits
from protocol.sampling import TokenScores

LENGTHS = (100, 500, 2_000)
_GOALS = {1: 20.0, 32: 5.0}
_GROUP, _PROMPT = 16, 32
_UNIT = "µs CPU a token"
_ROUNDS = {100: 3}
"""Of each length, once where nothing is said; the best counts."""
_JUDGED = 16_000  # tokens of a submission that get the prefill
_BLOCK = 4096  # rows of a product where as many as one likes are at hand
_SHAPE: dict[str, Any] = {
    "vocab_size": 32_768, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip


class Clocked(TorchEngine):
    """Adds up the CPU seconds of the parts of verification."""

    def __init__(self, folder: Path, compute_dtype: str) -> None:
        super().__init__(compute_dtype, EngineSettings(device="cpu", threads=1))
        self.seconds = dict.fromkeys(("prefill", "product with lm_head", "the rest of scoring"), 0.0)
        self.compute_dtype = compute_dtype
        self.load(folder)

    def linear_layers(self) -> list[nn.Linear]:
        return [layer for layer in self._model.modules() if isinstance(layer, nn.Linear)]

    def _clocked(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def clocked(*of: Any, **how: Any) -> Any:
            started = time.process_time()
            made = call(*of, **how)
            self.seconds[part] += time.process_time() - started
            return made

        return clocked

    def _prefill(self, sequences: Any) -> dict[int, Tensor]:
        return cast(dict[int, Tensor], self._clocked("prefill", super()._prefill)(sequences))

    def _logits_in_parts(self, hidden_TH: Tensor) -> Iterator[tuple[int, Tensor]]:
        parts = super()._logits_in_parts(hidden_TH)
        following = self._clocked("product with lm_head", lambda: next(parts, None))
        while (part := following()) is not None:
            yield part

    def score(self, *of: Any, **how: Any) -> TokenScores:
        product = self.seconds["product with lm_head"]
        found = self._clocked("the rest of scoring", super().score)(*of, **how)
        self.seconds["the rest of scoring"] -= self.seconds["product with lm_head"] - product
        return cast(TokenScores, found)

    def make(self, prompts: Sequence[Prompt], tokens: int) -> tuple[list[Completion], float]:
        """Completions of so many tokens, and CPU seconds."""
        started = time.process_time()
        made = self.generate(prompts, temperature=1.0, max_new_tokens=tokens, end_tokens=frozenset())
        return [completion for group in made for completion in group], time.process_time() - started


class Submission(Candidate):
    """Completions as a validator has them before it, whose rows all get the prefill; what no rule of the model asks for is not there."""

    def __init__(self, engine: Clocked, prompts: Sequence[Prompt], made: Sequence[Completion]) -> None:
        limits = calibration.load(f"tiny-qwen3-{engine.compute_dtype}-cpu", Path())
        self.engine, self.checked, self.sampled = engine, Checked(), {}
        self.context = SimpleNamespace(judged_by=SimpleNamespace(  # type: ignore[assignment]
            verification=SimpleNamespace(
                computation=ComputationLimits(**limits.computation), sampling=SamplingLimits(**limits.sampling),
                noise=Limit(soft="0.004", hard="0.009"), bitwise=None,
            ),
            sampling=SimpleNamespace(distribution={"temperature": 1.0, "top_k": 0, "top_p": 1.0}),
        ))  # fmt: skip
        asked = [(number, sample) for number, prompt in enumerate(prompts) for sample in range(len(prompt.keys))]
        self._keys = [key for prompt in prompts for key in prompt.keys]
        self._rows = tuple(
            Sample(
                number, sample, 0, 0, np.array(prompts[number].tokens, np.int32), np.array(one.tokens, np.int32),
                np.array(one.logprobs, np.float32), tuple(one.proofs), 0.0, 0.0, 0.0,
            )
            for (number, sample), one in zip(asked, made, strict=True)
        )  # fmt: skip

    @property
    def samples(self) -> tuple[Sample, ...]:
        return self._rows

    def key(self, sample: Sample) -> int:
        return self._keys[sample.group * _GROUP + sample.sample]

    def judge(self, rows: int) -> float:
        """CPU seconds of what the rules ask of the model about so many rows. Raises AssertionError where they find anything."""
        started = time.process_time()
        finding = computation.of_rows(self, range(rows))
        seconds = time.process_time() - started
        if finding is not None or self.checked.tokens != sum(len(sample.completion) for sample in self._rows[:rows]):
            raise AssertionError(f"what was measured is no honest work: {finding}")
        return seconds


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="tokens of a completion")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="that the run computes in")


def run(lengths: Sequence[int] = LENGTHS, dtype: str = "float32") -> Bench:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    bench = Bench("judging")
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        engine = Clocked(Path(folder), dtype)
    measure(engine, 32)  # what is compiled or allocated once
    bare = products_alone(engine)
    bench.rows.append(Row("products alone", _UNIT, bare * 1e6, None, None, None))
    for length in lengths:
        rounds = [measure(engine, length) for _ in range(_ROUNDS.get(length, 1))]
        bench.rows += rows(length, rounds, bare)
        print(f"{length} tokens: {rounds}", file=sys.stderr, flush=True)  # the longest take minutes
    return bench


@dataclass(frozen=True)
class Round:
    """CPU seconds of a token."""

    generated: dict[int, float]
    """By batch."""
    verified: float
    parts: dict[str, float]
    """Of `verified`."""


def measure(engine: Clocked, length: int) -> Round:
    generated = {}
    for batch in _GOALS:
        prompts = _prompts(engine.vocabulary, batch)
        made, seconds = engine.make(prompts, length)
        generated[batch] = seconds / (batch * length)
    engine.seconds = dict.fromkeys(engine.seconds, 0.0)
    chosen = min(batch, max(1, _JUDGED // length))
    verified = Submission(engine, prompts, made).judge(chosen)
    parts = {**engine.seconds, "proofs and sums": verified - sum(engine.seconds.values())}
    tokens = chosen * length
    return Round(generated, verified / tokens, {name: seconds / tokens for name, seconds in parts.items()})


def rows(length: int, rounds: Sequence[Round], bare: float) -> Iterator[Row]:
    best = min(rounds, key=lambda one: one.verified)
    for batch, goal in _GOALS.items():
        generated = min(one.generated[batch] for one in rounds)
        ratio = generated / best.verified
        yield Row(f"{length} tokens, batch {batch}: generated ÷ verified", "×", ratio, None, ratio, goal)
        yield Row(
            f"{length} tokens, batch {batch}: generated ÷ products alone", "×", generated / bare, None, None, None
        )
        yield Row(f"{length} tokens, batch {batch}: generated", _UNIT, generated * 1e6, None, None, None)
    yield Row(f"{length} tokens: verified", _UNIT, best.verified * 1e6, None, None, None)
    for name, seconds in best.parts.items():
        yield Row(f"{length} tokens: {name}", "% of it", 100 * seconds / best.verified, None, None, None)


def _prompts(vocabulary: int, batch: int) -> list[Prompt]:
    return [
        Prompt(
            torch.randint(3, vocabulary, (_PROMPT,)).tolist(),
            tuple(secrets.randbits(64) for _ in range(min(batch, _GROUP))),
        )
        for _ in range(-(-batch // _GROUP))
    ]


@torch.inference_mode()
def products_alone(engine: Clocked) -> float:
    """CPU seconds of a token, by the layers' own products."""
    total = 0.0
    for layer in engine.linear_layers():
        hidden = torch.randn(_BLOCK, layer.in_features, dtype=layer.weight.dtype)
        seconds = []
        for _ in range(3):
            started = time.process_time()
            layer(hidden)
            seconds.append(time.process_time() - started)
        total += min(seconds)
    return total / _BLOCK


@torch.inference_mode()
def write_model(folder: Path) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**_SHAPE)
    config.architectures = ["Qwen3ForCausalLM"]
    model = Qwen3ForCausalLM(config).eval()
    ids = torch.randint(3, config.vocab_size, (4, 32))
    logits = model(ids, use_cache=False).logits.flatten(0, 1)
    model.lm_head.weight.mul_(root(lambda factor: entropy(logits * factor) - NATS, 1e-2, 1e4))
    config.save_pretrained(folder)
    save_weights(model, folder / WEIGHTS, torch.float32)
