"""Attestation: what proofs and seeded sampling cost a worker, and how much faster than the work its verification is.

A model of Qwen3-0.6B's shape (28 layers, hidden size 1024, vocabulary 151,936, tied embeddings) with random weights, in
bfloat16 on one thread. Random logits are nearly uniform, which no policy's are: the final norm is scaled, and `lm_head`'s
output with it, until their mean entropy over the model's own completions is about one nat.

Worker: our engine against the very same loop that draws by softmax and `torch.multinomial` and proves nothing. Both run in
turns; of each token position the fastest round counts, and these are summed, so that a disturbance of one step disturbs
nothing else. "Noise" is how far the peer's slowest round lies above its fastest. Validator: prefill, proofs and
sampling of that same work against the worker that made it, both per CPU second.

Measured without a GPU, where a step takes a hundredth of the time: the ratios say nothing about one.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import torch
from torch import Tensor

from benches import Bench, Cost, Row, in_turns
from benches.engine_work import entropy, root
from node.engine import Completion, Prompt, noise, row_attention, sampler
from node.engine.proofs import bits
from node.engine.torch_engine import TorchEngine
from protocol import toploc

_VOCABULARY, _PROMPT, _NEW, _ROUNDS = 151_936, 16, 32, 3
_NATS = 1.0
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


class _Plain(_Clocked):
    """The peer: draws as everybody does."""

    def _sample(self, hidden: Tensor, keys: Tensor, positions: Tensor, *distribution: Any) -> tuple[Tensor, Tensor]:
        probabilities = self._model.lm_head(hidden).float().softmax(-1)
        tokens = torch.multinomial(probabilities, 1)
        return tokens.squeeze(1), probabilities.gather(1, tokens).squeeze(1).log()


def run() -> Bench:
    ours, plain = _Clocked("bfloat16"), _Plain("bfloat16")
    model = _model()
    ours.start(model)
    plain.start(model)
    prompt = torch.randint(0, _VOCABULARY, (_PROMPT,)).tolist()
    bench = Bench("attestation")
    nats = _scale(ours, prompt)
    bench.rows.append(Row("entropy of the logits, mean", "nats", nats, None, None, None))
    for batch, goal in ((1, None), (32, 1.5)):
        _measure(bench, ours, plain, prompt, batch, goal)
    _draws(bench, _NATS, _logits(model, ours, prompt))
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


def _model() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=_VOCABULARY, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, max_position_embeddings=4096,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    try:
        return Qwen3ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)


@torch.inference_mode()
def _logits(model: Any, engine: _Clocked, prompt: list[int]) -> Tensor:
    """Logits at the last positions of fresh completions, 32 rows."""
    made, _, asked = engine.decode(prompt, 8, prove=False)
    hidden = engine.prefill([(asked.tokens, completion.tokens) for completion in made])
    return model.lm_head(torch.cat([states[-4:] for states in hidden]))


def _scale(engine: _Clocked, prompt: list[int]) -> float:
    """Scales the final norm until completions have the entropy wanted; the mean of what they have then."""
    weight = engine._model.base_model.norm.weight
    weight.data.mul_(12)  # not far off
    for _ in range(2):
        logits = _logits(engine._model, engine, prompt).float()
        weight.data.mul_(root(lambda factor, logits=logits: entropy(logits * factor) - _NATS))  # type: ignore[misc]
    return entropy(_logits(engine._model, engine, prompt).float())
