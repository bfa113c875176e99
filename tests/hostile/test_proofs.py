"""Proofs of any form and content: malformed, found out by `computation`, or as good as the honest ones."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from swarm.tiny_run import TinyRun, tokens_of, with_sample

from node.engine import Prompt
from node.judging.candidate import Candidate
from node.judging.rules import computation
from protocol import toploc
from protocol.constants import TOPLOC_FIELD
from protocol.errors import Malformed
from protocol.sandbox import Reading
from protocol.verdict import Finding, Outcome
from tests.hostile.mutation import bits, rubbish, spliced, truncated

Proofs = tuple[Any, ...]


def broken(rng: random.Random, proofs: Proofs) -> tuple[str, Proofs]:
    """What was done to them, and the proofs: one of them, or their number."""
    i = rng.randrange(len(proofs))
    proof = proofs[i]
    words = np.frombuffer(proof, ">u2").astype(np.int64)
    kind = rng.choice(
        ["bits", "rubbish", "truncated", "spliced", "modulus", "word", "count", "order", "random", "type"]
    )
    match kind:
        case "bits" | "rubbish" | "truncated" | "spliced":
            change = {"bits": bits, "rubbish": rubbish, "truncated": truncated, "spliced": spliced}[kind]
            changed: Any = change(rng, proof)[:100_000]
        case "modulus":
            words[0] = rng.choice(
                [0, 1, 128, 65_000, 65_496, TOPLOC_FIELD, TOPLOC_FIELD + 1, 65_535, rng.randrange(65_536)]
            )
            changed = words.astype(">u2").tobytes()
        case "word":
            for _ in range(rng.choice([1, 2, 50])):
                words[rng.randrange(1, len(words))] = rng.choice(
                    [0, 1, TOPLOC_FIELD - 1, TOPLOC_FIELD, rng.randrange(65_536)]
                )
            changed = words.astype(">u2").tobytes()
        case "count":
            return kind, rng.choice([(), proofs[:-1], (*proofs, proof), proofs * 100, (b"",) * len(proofs)])
        case "order":
            return kind, rng.choice([proofs[::-1], (proof,) * len(proofs)])
        case "random":
            valid = np.array([TOPLOC_FIELD, *(rng.randrange(TOPLOC_FIELD) for _ in words[1:])])
            changed = valid.astype(">u2").tobytes()
        case _:
            changed = rng.choice(
                [None, 7, 1.5, "x" * len(proof), bytearray(proof), memoryview(proof), [1, 2], (proof,)]
            )
    return kind, (*proofs[:i], changed, *proofs[i + 1 :])


def torment(run: TinyRun, *, seed: int, cases: int) -> Counter[str]:
    made, row = run.honest(), 0
    file, key = run.read(made), run.candidate(made).assigned[0].keys[0]
    prompt = Prompt(file.samples[row].prompt.tolist(), (key,))
    ((longer,),) = run.engine.generate([prompt], temperature=1.0, max_new_tokens=40, end_tokens=frozenset())
    tokens, logprobs = tokens_of(longer.tokens), np.array(longer.logprobs, np.float32)
    sample = replace(file.samples[row], completion=tokens, logprobs=logprobs, proofs=tuple(longer.proofs))
    assert len(sample.proofs) == 2
    rng, outcomes = random.Random(seed), Counter[str]()
    for number in range(cases):
        kind, proofs = broken(rng, sample.proofs)
        candidate = run.candidate(made, share=0.0)
        candidate.rows = [row]  # the others stand still
        candidate.reading = Reading(with_sample(file, row, replace(sample, proofs=proofs)), None)
        try:
            outcome = judged(candidate, proofs, sample.proofs)
        except BaseException as error:
            error.add_note(
                f"seed {seed}, case {number} ({kind}): {[p if isinstance(p, bytes) else repr(p) for p in proofs]}"
            )
            raise
        outcomes[outcome] += 1
    return outcomes


def judged(candidate: Candidate, proofs: Proofs, honest: Proofs) -> str:
    finding: Finding | None = computation.check(candidate)
    if finding is None:
        assert close(proofs, honest)
        return "accepted"
    assert finding.samples == 1 << candidate.rows[0]
    if finding.measured == "malformed proof":
        assert finding.outcome is Outcome.HARD
        return "malformed"
    return finding.outcome.name


def close(proofs: Proofs, honest: Proofs) -> bool:
    """Proofs that pass are those of nearly the same activations: no coefficient but the constant one has changed, and that
    one by no more than a few steps of the mantissa; or they are the very same."""
    if len(proofs) != len(honest):
        return False
    for a, b in zip(proofs, honest, strict=True):
        x, y = (np.frombuffer(p, ">u2").astype(np.int64) for p in (a, b))
        if len(x) != len(y) or x[0] != y[0] or (x[2:] != y[2:]).any() or abs(x[1] - y[1]) > 4:
            return False
    return True


def test_a_broken_proof_is_malformed_or_found_out(run: TinyRun) -> None:
    outcomes = torment(run, seed=1, cases=500)
    assert outcomes["malformed"] > 100
    assert outcomes["HARD"] > 100


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_thousand_broken_proofs_are_malformed_or_found_out(run: TinyRun) -> None:
    print(torment(run, seed=2, cases=10_000))


@pytest.mark.parametrize(
    "proof",
    [None, 7, 1.5, "text", bytearray(258), memoryview(bytes(258)), [1], (b"x",)],
    ids=lambda proof: type(proof).__name__,
)
def test_what_is_no_bytes_is_malformed(proof: Any) -> None:
    with pytest.raises(Malformed):
        toploc.parse(proof, 4096)
