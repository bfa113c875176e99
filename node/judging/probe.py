"""The reference probe on this machine: does it compute what the trainer's device computed at version 0 (protocol/probe.py)?

Judged with the run's own soft limits, beyond which work earns nothing. The reference's completions go through this machine's prefill: their
proofs by the rule `computation`, their tokens and logprobs by `sampling`, and the logprobs of the likeliest tokens at each position by
the hard limit of a claimed logprob: calibrations measure drawn tokens, and unlikely ones stray further. Then the machine generates by the same prompts and keys, and its own work is judged likewise: prefill and
decoding take different kernels. What is found so would be found by validators as well, at the cost of the seat.

Does not cover: faults that come and go, or only at other lengths and batch sizes than the probe's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from node.engine import Engine, Prompt
from node.engine.proofs import bits
from node.judging.rules import computation, sampling
from node.judging.rules.limits import judge, worst
from protocol import sampling as measures
from protocol import toploc
from protocol.errors import ConfigError, IntegrityError
from protocol.probe import Probe
from protocol.runspec import Limit, RunSpec
from protocol.tokenizer import Tokenizer
from protocol.verdict import Finding

_HINT = (
    "look for faulty memory, overclocking or a modified engine; another build of the engine or another attention kernel should pass,"
    ' and so should `[engine] device = "cpu"`'
)


@dataclass(frozen=True)
class _Work:
    """One completion, the reference's or this machine's own."""

    prompt: Sequence[int]
    key: int
    tokens: Sequence[int]
    logprobs: NDArray[np.floating[Any]]
    proofs: Sequence[bytes]
    top_tokens_TK: NDArray[np.int32] | None = None
    top_logprobs_TK: NDArray[np.float32] | None = None


def require(probe: Probe, spec: RunSpec, engine: Engine, tokenizer: Tokenizer) -> None:
    """Raises IntegrityError where this machine, whose engine holds version 0, lies outside the run's limits; ConfigError for a probe that
    is not of the run's model."""
    if probe.config != spec.model.config or probe.largest_token >= tokenizer.vocabulary:
        raise ConfigError("the run's reference probe is of another model than the run")
    reference = [
        _Work(
            one.prompt, int(one.key), one.completion, one.logprobs_T, one.proof_bytes, one.top_tokens_TK, one.top_logprobs_TK
        )
        for one in probe.sequences
    ]  # fmt: skip
    try:
        found = worst(list(_judged(reference, spec, engine)))
        whose = "this machine computes otherwise than the run's reference"
        if found is None:
            found = worst(list(_judged(_generated(probe, spec, engine, tokenizer), spec, engine)))
            whose = "what this machine generates is not what it computes itself when it checks it"
    except ValueError as error:
        raise IntegrityError(
            f"this machine computes no numbers for the run's reference probe: {error}", hint=_HINT
        ) from error
    if found is not None:
        raise IntegrityError(
            f"{whose}, by the rule {found.rule}: {found.measured} against {found.threshold} ({found.detail}); no work is made",
            hint=_HINT,
        )


def _generated(probe: Probe, spec: RunSpec, engine: Engine, tokenizer: Tokenizer) -> list[_Work]:
    """This machine's own completions of the probe's prompts."""
    made = engine.generate(
        [Prompt(one.prompt, (int(one.key),)) for one in probe.sequences], **spec.sampling.distribution,
        max_new_tokens=probe.max_new_tokens, end_tokens=tokenizer.end_tokens,
    )  # fmt: skip
    return [
        _Work(one.prompt, int(one.key), own.tokens, np.array(own.logprobs, np.float32), own.proofs)
        for one, (own,) in zip(probe.sequences, made, strict=True)
    ]


def _judged(work: Sequence[_Work], spec: RunSpec, engine: Engine) -> Iterator[Finding | None]:
    """The worst of each completion, by this machine's prefill."""
    for batch in engine.prefill_in_batches([(one.prompt, one.tokens) for one in work]):
        for row, hidden in batch.items():
            yield worst([*_chunks(work[row], row, hidden, spec), *_tokens(work[row], row, hidden, spec, engine)])


def _chunks(one: _Work, row: int, hidden_TH: Tensor, spec: RunSpec) -> list[Finding | None]:
    (scores,) = toploc.score([bits(hidden_TH)], [list(one.proofs)])
    return [computation.of_chunk(spec.verification.computation, row, i, score) for i, score in enumerate(scores)]


def _tokens(one: _Work, row: int, hidden_TH: Tensor, spec: RunSpec, engine: Engine) -> list[Finding | None]:
    limits = spec.verification.sampling
    scores = engine.score(hidden_TH, one.tokens, key=one.key, **spec.sampling.distribution)
    measured = measures.measure(
        scores, one.logprobs, mismatch_above=float(limits.mismatch_above), margin_clip=float(limits.margin_clip)
    )
    return [*sampling.judged(limits, row, measured), *_likeliest(one, row, hidden_TH, spec, engine)]


def _likeliest(one: _Work, row: int, hidden_TH: Tensor, spec: RunSpec, engine: Engine) -> Iterator[Finding | None]:
    """Logprobs of the reference's likeliest tokens, a rank at a time: an engine tells those of one token at each position."""
    if one.top_tokens_TK is None or one.top_logprobs_TK is None:
        return
    most = spec.verification.sampling.logprob_error.hard
    limit = Limit(soft=most, hard=most)
    for rank, (tokens, logprobs) in enumerate(zip(one.top_tokens_TK.T, one.top_logprobs_TK.T, strict=True)):
        own = engine.score(hidden_TH, np.ascontiguousarray(tokens), key=one.key, temperature=1.0).logprobs
        errors = np.abs(own - logprobs)
        place = int(errors.argmax())
        yield judge("sampling", row, float(errors[place]), limit, f"token {place}, rank {rank}: logprob")
