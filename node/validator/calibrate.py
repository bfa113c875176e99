"""Calibration: how far honest work strays from a validator's own computation on this machine, and the limits that follow.

Honest variants only: decoding in batches of several sizes, then prefill in batches of several sizes, with each attention
implementation and number of threads. No cheat takes part. A soft limit lies well above everything measured and never below
a floor, for a run meets devices that this machine is not; a hard limit lies as far again above the soft one.
"""

from __future__ import annotations

import itertools
import platform
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from node.engine import Completion, Prompt, TorchEngine
from node.engine.proofs import bits
from protocol import sampling, toploc
from protocol.environments import TaskSet
from protocol.tokens import Tokens

MARGIN = 4
"""How many times the largest measured value the soft limit is, and the soft limit the hard one."""

FLOORS: dict[str, dict[str, float]] = {
    # Largest honest values seen between engines in bf16 were a token margin of 0.06 and a mean margin of 0.00025.
    "computation": {"exponents": 0.05, "signs": 0.025, "mantissa_mean": 2.0, "mantissa_median": 2.0},
    "sampling": {
        "token_margin": 0.125, "chunk_mismatches": 2.0, "sequence_mismatches": 4.0, "chunk_mean_margin": 0.01, "mean_margin": 0.005,
        "logprob_error": 0.03,
    },
}  # fmt: skip
"""Smallest soft limits."""

MISMATCH_ABOVE, MARGIN_CLIP = 0.01, 0.5
_BATCHES = (1, 4, 16)


@dataclass
class Measured:
    """All values of one quantity."""

    values: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        ordered = np.sort(np.array(self.values))
        quantile = {f"p{q:g}".replace(".", "_"): _text(float(np.quantile(ordered, q / 100))) for q in (50, 99, 99.9)}
        return {"count": len(ordered), **quantile, "max": _text(float(ordered[-1]))}


def calibrate(
    models: Sequence[Path], tasks: TaskSet, dtype: str, *, prompts: int, samples: int, max_new_tokens: int
) -> dict[str, Any]:
    """Measures honest work of the models on the tasks; returns the calibration (protocol/calibration.py)."""
    measured: dict[str, dict[str, Measured]] = {
        rule: {name: Measured() for name in floors} for rule, floors in FLOORS.items()
    }
    counts = {"proofs": 0, "tokens": 0, "sequences": 0}
    for model, threads, batch in itertools.product(models, (1, 2), _BATCHES):
        engine = TorchEngine(dtype, threads=threads)
        engine.load(model)
        tokens = Tokens(model)
        work = list(_generate(engine, tasks, tokens, prompts, samples, batch, max_new_tokens))
        for attention, check_threads, check_batch in itertools.product(("sdpa", "eager"), (1, 2), _BATCHES):
            torch.set_num_threads(check_threads)
            engine._model.set_attn_implementation(attention)
            for start in range(0, len(work), check_batch):
                _compare(engine, work[start : start + check_batch], measured, counts)
    torch.set_num_threads(1)
    return {
        "method": __doc__.split("\n\n")[1].replace("\n", " ") if __doc__ else "",
        "devices": [platform.machine() + " CPU"],
        "compute_dtype": dtype,
        "software": {name: version(name) for name in ("torch", "transformers")},
        "models": len(models),
        "work": counts,
        "measured": {rule: {name: m.summary() for name, m in of.items()} for rule, of in measured.items()},
        "floors": {rule: {name: _text(v) for name, v in of.items()} for rule, of in FLOORS.items()},
        "margin": MARGIN,
        "limits": _limits(measured),
    }


def _generate(
    engine: TorchEngine, tasks: TaskSet, tokens: Tokens, prompts: int, samples: int, batch: int, max_new_tokens: int
) -> Iterator[tuple[list[int], int, Completion]]:
    """(prompt, key, completion) of honest work."""
    for start in range(0, prompts, batch):
        picks = [tasks.problem(secrets.randbelow(tasks.size)) for _ in range(min(batch, prompts - start))]
        asked = [Prompt(tokens.encode(p.prompt), tuple(secrets.randbits(64) for _ in range(samples))) for p in picks]
        made = engine.generate(asked, temperature=1.0, max_new_tokens=max_new_tokens, end_tokens=tokens.end_tokens)
        for prompt, group in zip(asked, made, strict=True):
            yield from ((prompt.tokens, key, completion) for key, completion in zip(prompt.keys, group, strict=True))


def _compare(
    engine: TorchEngine,
    work: Sequence[tuple[list[int], int, Completion]],
    measured: dict[str, dict[str, Measured]],
    counts: dict[str, int],
) -> None:
    hidden = engine.prefill([(prompt, completion.tokens) for prompt, _, completion in work])
    chunks = toploc.score([bits(h) for h in hidden], [completion.proofs for _, _, completion in work])
    computation, sampled = measured["computation"], measured["sampling"]
    for score in itertools.chain.from_iterable(chunks):
        computation["exponents"].values.append(score.exponents / score.k)
        computation["signs"].values.append(score.signs / score.k)
        computation["mantissa_mean"].values.append(score.mantissa_mean)
        computation["mantissa_median"].values.append(score.mantissa_median)
        counts["proofs"] += 1
    for (_, key, completion), states in zip(work, hidden, strict=True):
        scores = engine.score(states, completion.tokens, key=key, temperature=1.0)
        found = sampling.measure(
            scores, np.array(completion.logprobs), mismatch_above=MISMATCH_ABOVE, margin_clip=MARGIN_CLIP
        )
        for name, worst in found.items():
            sampled[name].values.append(worst.value)
        counts["tokens"] += len(completion.tokens)
        counts["sequences"] += 1


def _limits(measured: dict[str, dict[str, Measured]]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for rule, of in measured.items():
        limits[rule] = {}
        for name, values in of.items():
            soft = max(FLOORS[rule][name], MARGIN * max(values.values))
            limits[rule][name] = {"soft": _text(soft), "hard": _text(MARGIN * soft)}
    limits["sampling"] |= {"mismatch_above": _text(MISMATCH_ABOVE), "margin_clip": _text(MARGIN_CLIP)}
    return limits


def _text(value: float) -> str:
    """A decimal for canonical JSON."""
    return np.format_float_positional(value, precision=9, trim="-")
