"""Makes a run's reference probe: what the trainer's device computes of a few problems at version 0 (protocol/probe.py).

    murmur trainer probe @run.toml probe.json

Version 0 is the policy before training, rounded to bfloat16 as it is published. Problems, budgets and keys are drawn from a fixed seed;
completions are generated as nodes do it, and their states computed again by prefill for the likeliest tokens. No limit is made here:
nodes compare by those of the run's calibration.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from node.engine import Adjustable, Completion, Engine, EngineSettings, Prompt, Readable
from node.engine.checked_engine import CheckedEngine
from node.engine.weights import build_model
from protocol import length_rewards, seeds
from protocol.environments import TaskSet
from protocol.errors import ConfigError, PreflightError, UsageError
from protocol.model_files import weight_files
from protocol.probe import SEQUENCES_MAX, TOP, Probe, ProbeSequence, packed
from protocol.runspec import RunSpec
from protocol.sandbox import Sandbox
from protocol.tokenizer import Tokenizer
from trainer.hub.outbox import Outbox
from trainer.learning.snapshot import snapshot

_SEED = hashlib.sha256(b"murmuration/probe/1").digest()
_LOGITS_AT_ONCE = 64  # tokens whose logits are held


def make(spec: RunSpec, policy: Path, settings: EngineSettings, *, prompts: int, tokens: int) -> Probe:
    """`policy` is the folder before training, `prompts` the problems that are answered, by at most `tokens` tokens each.

    Raises ConfigError for an engine that does not show its logits, and what engine and sandbox raise.
    """
    if not 1 <= prompts <= SEQUENCES_MAX or tokens < 1:
        raise UsageError(f"a probe has 1 to {SEQUENCES_MAX} prompts, and one token at least")
    made_here = CheckedEngine.of_run(settings, spec.model)
    engine = made_here.engine
    if not isinstance(engine, Readable):
        raise ConfigError(
            f"the engine {settings.name!r} shows no logits, of which a probe is made", hint='set engine.name to "torch"'
        )
    tokenizer, most = Tokenizer(policy), min(tokens, spec.sampling.max_new_tokens)
    with version_0(policy) as folder:
        made_here.load(folder)
        asked = _prompts(spec, tokenizer, prompts)
        made = engine.generate(
            asked, **spec.sampling.distribution, max_new_tokens=most, end_tokens=tokenizer.end_tokens
        )
        return Probe(
            config=spec.model.config,
            compute_dtype=spec.model.compute_dtype,
            made_on=_made_on(engine, settings),
            sampling=_distribution(spec),
            max_new_tokens=most,
            sequences=_sequences(engine, asked, [completion for (completion,) in made]),
        )


@contextmanager
def version_0(policy: Path) -> Iterator[Path]:
    """A folder with the policy as version 0 will be."""
    if _is_bfloat16(policy):
        yield policy
        return
    with TemporaryDirectory() as made:
        yield Outbox(Path(made), policy).write(snapshot(build_model(policy, torch.float32)), 0)


def _is_bfloat16(folder: Path) -> bool:
    for name in weight_files(folder):
        with safe_open(folder / name, "pt") as file:
            if any(file.get_slice(key).get_dtype() != "BF16" for key in file.keys()):  # noqa: SIM118  no mapping
                return False
    return True


def _prompts(spec: RunSpec, tokenizer: Tokenizer, count: int) -> list[Prompt]:
    """One key each, of problems out of all the run's."""
    with Sandbox(spec) as sandbox:
        tasks = TaskSet(spec.environments, sandbox)
        indices = [seeds.below(seeds.derive(_SEED, "problem", i), tasks.size) for i in range(count)]
        problems = tasks.problems(indices)
    return [
        Prompt(
            tokenizer.prompt(spec, problem, length_rewards.draw(spec.reward_of(problem.environment), _SEED, i)),
            (seeds.sampling_key(seeds.derive(_SEED, "sample", i)),),
        )
        for i, problem in enumerate(problems)
    ]


def _sequences(engine: Engine, asked: Sequence[Prompt], made: Sequence[Completion]) -> list[ProbeSequence]:
    found: dict[int, ProbeSequence] = {}
    pairs = [(prompt.tokens, completion.tokens) for prompt, completion in zip(asked, made, strict=True)]
    for batch in engine.prefill_in_batches(pairs):
        for i, hidden in batch.items():
            ids, logprobs = _likeliest(engine, hidden)
            found[i] = ProbeSequence(
                prompt=asked[i].tokens,
                key=str(asked[i].keys[0]),
                completion=made[i].tokens,
                logprobs=packed(np.array(made[i].logprobs, np.float32)),
                proofs=[base64.b64encode(proof).decode() for proof in made[i].proofs],
                top_tokens=packed(ids),
                top_logprobs=packed(logprobs),
            )
    return [found[i] for i in range(len(asked))]


def _likeliest(engine: Engine, hidden_TH: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Ids int32 [T, K] and logprobs float32 [T, K]."""
    assert isinstance(engine, Readable)
    ids, logprobs = [], []
    for first in range(0, len(hidden_TH), _LOGITS_AT_ONCE):
        logits = torch.from_numpy(engine.logits(hidden_TH[first : first + _LOGITS_AT_ONCE])).double()
        best = logits.log_softmax(-1).topk(min(TOP, logits.shape[1]))
        ids.append(best.indices.numpy().astype(np.int32))
        logprobs.append(best.values.numpy().astype(np.float32))
    return np.concatenate(ids), np.concatenate(logprobs)


def _made_on(engine: Engine, settings: EngineSettings) -> dict[str, str]:
    device = {"device": engine.device} if isinstance(engine, Adjustable) else {}
    return {"engine": settings.name, **device, **{name: version(name) for name in ("torch", "transformers")}}


def _distribution(spec: RunSpec) -> dict[str, str | int]:
    s = spec.sampling
    return {"temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p}


def write(probe: Probe, file: Path) -> str:
    """Its SHA-256. Raises UsageError where the file is there already: a run may have pinned it."""
    data = probe.encode()
    try:
        with file.open("xb") as opened:
            opened.write(data)
    except FileExistsError as error:
        raise UsageError(f"{file} exists already", hint="name a file that does not, or remove it") from error
    except OSError as error:
        raise PreflightError(f"cannot write {file}: {error.strerror}") from error
    return hashlib.sha256(data).hexdigest()
