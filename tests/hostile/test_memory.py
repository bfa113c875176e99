"""What judging takes in memory does not grow with the work: hidden states, logits and texts are held for some rows at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from swarm.tiny_run import TinyRun, with_sample

from node.engine import torch_engine
from node.judging.judge import judge
from node.judging.rules import reward
from tests.hostile import large

MIB = 1 << 20


def test_hidden_states_are_not_kept(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """But the one before, until the next is there; and not for the rule that comes second."""
    engine = tiny_run.engine
    prefill, alive, seen = engine.prefill_in_batches, [], 0

    def watched(sequences):  # type: ignore[no-untyped-def]
        nonlocal seen
        for batch in prefill(sequences):
            assert sum(ref() is not None for ref in alive) <= 1  # that of the row before
            alive.extend(weakref.ref(hidden) for hidden in batch.values())
            seen += 1
            yield batch

    monkeypatch.setattr(torch_engine, "_PREFILL_TOKENS", 1)
    monkeypatch.setattr(engine, "prefill_in_batches", watched)
    candidate = tiny_run.candidate(tiny_run.honest())
    assert judge(candidate) is None
    assert seen == tiny_run.spec.samples  # once per row, for both rules
    assert candidate.checked.samples.bit_count() == tiny_run.spec.samples


@pytest.mark.parametrize("portion", [1, 3, 1000])
def test_a_verdict_does_not_depend_on_what_is_held_at_once(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch, portion: int
) -> None:
    monkeypatch.setattr(torch_engine, "_PREFILL_TOKENS", 40 * portion)
    monkeypatch.setattr(torch_engine, "_SCORED_TOKENS", portion)
    monkeypatch.setattr(reward, "_TOKENS_AT_ONCE", 20 * portion)
    made = tiny_run.honest()
    file = tiny_run.read(made)
    assert judge(tiny_run.candidate(made)) is None
    row = max(range(len(file.samples)), key=lambda r: len(file.samples[r].completion))
    logprobs = file.samples[row].logprobs.copy()
    logprobs[-1] -= 5
    sample = file.samples[row]
    forged = tiny_run.rewrite(made, with_sample(file, row, replace(sample, logprobs=logprobs)))
    finding = judge(forged)
    assert finding is not None
    assert (finding.rule, finding.samples) == ("sampling", 1 << row)
    assert f"token {len(logprobs) - 1}: logprob" in finding.detail
    late = len(file.samples) - 1
    overpaid = tiny_run.rewrite(made, with_sample(file, late, replace(file.samples[late], reward=9.0)))
    finding = judge(overpaid)
    assert finding is not None
    assert (finding.rule, finding.samples) == ("reward", 1 << late)


def weighed(tiny_run: TinyRun, folder: Path, *, samples: int, tokens: int, deadline: float) -> dict[str, object]:
    large.make(folder, tiny_run.spec, tiny_run.model, samples=samples, tokens=tokens)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.hostile.large", str(folder), "1"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=deadline).stdout
    print(told)
    return json.loads(told)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_file_of_a_hundred_megabytes_is_judged_within_a_gibibyte(tiny_run: TinyRun, tmp_path: Path) -> None:
    """256 completions of 23,600 tokens, all of which get the prefill: accepted. Reader and judge together, above the model."""
    told = weighed(tiny_run, tmp_path / "large", samples=256, tokens=23_600, deadline=3000)
    assert (tmp_path / "large" / "large.parquet").stat().st_size > 93 * MIB
    assert (told["finding"], told["restarts"], told["tokens"]) == (None, 0, 256 * 23_600)
    assert told["parent"] + told["child"] < 1024 * MIB  # type: ignore[operator]
