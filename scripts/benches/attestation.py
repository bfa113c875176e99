"""Attestation: what proofs and seeded sampling cost a worker, and how much faster than the work its verification is.

The model of qwen3.py on one thread, the mean entropy of its logits about one nat.

Worker: our engine against the very same loop that draws by softmax and `torch.multinomial` and proves nothing. Both run in
turns; of each token position the fastest round counts, and these are summed, so that a disturbance of one step disturbs
nothing else. "Noise" is how far the peer's slowest round lies above its fastest. Validator: prefill, proofs and
sampling of that same work against the worker that made it, both per CPU second.

On a CPU. A GPU takes a hundredth of the time for a step, and these ratios say nothing about one: that is `scripts/gpu-report`'s.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import torch
from torch import Tensor

from benches import Bench, Cost, Row, in_turns, qwen3
from benches.engine_work import NATS
from node.engine import Completion, EngineSettings, Prompt, noise, row_attention, sampler
from node.engine.proofs import bits
from node.engine.torch_engine import TorchEngine
from protocol import toploc

_PROMPT, _NEW, _ROUNDS = 16, 32, 3
_VOCABULARY: int = qwen3.SHAPE["vocab_size"]
_WITHIN = 1 / 1.05
"""An overhead of at most 5 %, as a ratio of speeds."""


class _Clocked(TorchEngine):
    """Notes the CPU time at each step of decoding."""

    def start(self, model: Any) -> None:
        row_attention.install(model, "sdpa")
        self._model = model
        self.marks: list[float] = []

    def _step(self, state: Any, tokens: Tensor) -> None:
        self.marks.append(time.process_time())
        super()._step(state, tokens)

    def decode(self, prompt: list[int], batch: int, *, prove: bool) -> tuple[list[Completion], list[float], Prompt]:
        """What was made, the CPU seconds of each position, and what was asked."""
        asked = Prompt(prompt, tuple(secrets.randbits(64) for _ in range(batch)))
        self.marks = [time.process_time()]
        made = self.generate([asked], temperature=1.0, max_new_tokens=_NEW, end_tokens=frozenset(), prove=prove)[0]
        self.marks.append(time.process_time())
        return made, [b - a for a, b in zip(self.marks, self.marks[1:], strict=False)], asked


class _ClockedPlain(qwen3.Plain, _Clocked):
    pass


def run() -> Bench:
    ours, plain = (kind("bfloat16", EngineSettings(device="cpu")) for kind in (_Clocked, _ClockedPlain))
    model = qwen3.make()
    ours.start(model)
    plain.start(model)
    prompt = torch.randint(0, _VOCABULARY, (_PROMPT,)).tolist()
    bench = Bench("attestation")
    nats = qwen3.scale(ours, prompt)
    bench.rows.append(Row("entropy of the logits, mean", "nats", nats, None, None, None))
    for batch, goal in ((1, None), (32, 1.5)):
        _measure(bench, ours, plain, prompt, batch, goal)
    _draws(bench, NATS, qwen3.logits(ours, prompt))
    _draws(bench, None, torch.randn(32, _VOCABULARY).mul_(2).bfloat16())
    return bench


def _measure(bench: Bench, ours: _Clocked, plain: _Clocked, prompt: list[int], batch: int, goal: float | None) -> None:
    times: tuple[list[list[float]], list[list[float]]] = ([], [])
    checked = []
    for _ in range(_ROUNDS):
        made, seconds, asked = ours.decode(prompt, batch, prove=True)
        times[0].append(seconds)
        times[1].append(plain.decode(prompt, batch, prove=False)[1])
        checked.append(_verify(ours, asked, made))
    tokens = batch * _NEW
    worker, peer = (tokens / sum(map(min, zip(*rounds, strict=True))) for rounds in times)
    totals = [sum(seconds) for seconds in times[1]]
    bench.rows += [
        Row(f"worker, batch {batch}: proofs and seeded noise", "tokens/CPU s", worker, peer, worker / peer, _WITHIN),
        Row(f"noise of the peer's rounds, batch {batch}", "%", 100 * (max(totals) / min(totals) - 1), None, None, None),
    ]
    validator = tokens / min(checked)
    name = f"validator against worker, batch {batch}"
    bench.rows.append(Row(name, "tokens/CPU s", validator, worker, validator / worker, goal))
    if batch > 1:
        size = sum(len(proof) for completion in made for proof in completion.proofs)
        bench.rows.append(Cost(f"proofs, per token of {_NEW}", "bytes", size / tokens, None, None, 8.1))


def _verify(engine: _Clocked, asked: Prompt, made: list[Completion]) -> float:
    """CPU seconds of all that a validator computes. What it finds must be honest work."""
    started = time.process_time()
    hidden = engine.prefill([(asked.tokens, completion.tokens) for completion in made])
    chunks = toploc.score([bits(states) for states in hidden], [completion.proofs for completion in made])
    scores = [
        engine.score(states, completion.tokens, key=key, temperature=1.0)
        for states, completion, key in zip(hidden, made, asked.keys, strict=True)
    ]
    seconds = time.process_time() - started
    margin = sum(float(found.margins.clip(max=0.5).mean()) for found in scores) / len(scores)
    exponents = sum(chunk.exponents / chunk.k for row in chunks for chunk in row) / len(scores)
    if margin > 0.25 or exponents > 0.2:  # another seed's margin is 0.45 and more
        raise AssertionError(f"what was measured is no honest work: margin {margin:.3f}, exponents {exponents:.3f}")
    return seconds


def _draws(bench: Bench, nats: float | None, logits: Tensor) -> None:
    """Drawing alone, from logits as they leave `lm_head`."""
    keys = torch.tensor([noise.as_signed(secrets.randbits(64)) for _ in range(len(logits))])

    def ours() -> float:
        sampler.draw(logits, keys, torch.zeros_like(keys), temperature=1.0)
        return float(len(logits))

    def peer() -> float:
        torch.multinomial(logits.float().softmax(-1), 1)
        return float(len(logits))

    a, b = in_turns(ours, peer)
    of = f"about {nats:g} nat" if nats else "hardly peaked, the whole vocabulary in reach of the noise"
    bench.rows.append(Row(f"drawing alone, 32 rows, {of}", "tokens/CPU s", a, b, a / b, None))
