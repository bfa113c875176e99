"""Every rule has a file that it alone rejects: with that rule switched off, the file is accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from node.engine import Prompt, TorchEngine
from node.validator.candidate import Candidate
from node.validator.judge import details, judge
from node.validator.rules import RULES
from protocol.errors import MurmurationError, Unavailable
from protocol.verdict import Outcome
from tests.cheats.smaller_model import SmallerModelEngine
from tests.tiny_run import TinyRun, longest, tokens_of, with_sample

Tamper = Callable[[TinyRun], Candidate]
TAMPERED: dict[str, tuple[Tamper, Outcome]] = {}


def rejected_only_by(rule: str, outcome: Outcome) -> Callable[[Tamper], Tamper]:
    def register(tamper: Tamper) -> Tamper:
        TAMPERED[rule] = (tamper, outcome)
        return tamper

    return register


@rejected_only_by("available", Outcome.SOFT)
def another_file_than_committed(run: TinyRun) -> Candidate:
    made = run.honest()
    return run.candidate(made, ref=replace(made.ref, root=b"\x01" * 32))


@rejected_only_by("schema", Outcome.SOFT)
def an_extra_column(run: TinyRun) -> Candidate:
    made = run.honest()
    table = pq.read_table(made.path)
    path = run.folder / "tampered.parquet"
    pq.write_table(table.append_column("extra", pa.array([0] * len(table))), path)
    return run.committed(made, path)


@rejected_only_by("identity", Outcome.SOFT)
def a_header_of_another_step(run: TinyRun) -> Candidate:
    made = run.honest()
    file = run.read(made)
    return run.rewrite(made, replace(file, header=replace(file.header, step=7)))


@rejected_only_by("duplicate", Outcome.SOFT)
def committed_before(run: TinyRun) -> Candidate:
    made = run.honest()
    return run.candidate(made, earlier_roots=frozenset({made.ref.root}))


@rejected_only_by("assignment", Outcome.HARD)
def an_easier_prompt(run: TinyRun) -> Candidate:
    """The assigned problem's number, another prompt, and everything else honestly generated from that prompt."""
    made = run.honest()
    file, honest = run.read(made), run.candidate(made)
    sample = file.samples[0]
    prompt = run.tokens.encode("9 9 9 9")
    generated = run.engine.generate(
        [Prompt(prompt, (honest.key(sample),))], temperature=1.0, max_new_tokens=40, end_tokens=run.tokens.end_tokens
    )[0][0]
    forged = replace(sample, prompt=tokens_of(prompt), completion=tokens_of(generated.tokens))
    return run.rewrite(made, with_sample(file, 0, run.consistent(honest, forged)))


@rejected_only_by("tokens", Outcome.HARD)
def inflated_units(run: TinyRun) -> Candidate:
    made = run.honest()
    return run.candidate(made, units=made.units + 1)


@rejected_only_by("termination", Outcome.HARD)
def a_truncated_answer(run: TinyRun) -> Candidate:
    made = run.honest()
    file, honest = run.read(made), run.candidate(made)
    row = longest(file)
    sample = file.samples[row]
    cut = replace(sample, completion=sample.completion[:-1])
    return run.rewrite(made, with_sample(file, row, run.consistent(honest, cut)))


@rejected_only_by("reward", Outcome.HARD)
def a_forged_reward(run: TinyRun) -> Candidate:
    made = run.honest()
    file = run.read(made)
    row = next(r for r, s in enumerate(file.samples) if s.task_reward < 1)
    return run.rewrite(made, with_sample(file, row, replace(file.samples[row], task_reward=1.0, reward=1.0)))


@rejected_only_by("computation", Outcome.HARD)
def proofs_of_a_cheaper_model(run: TinyRun) -> Candidate:
    """Tokens, logprobs and rewards are right; the proofs are of another model's states."""
    from node.engine.torch_engine import bits
    from protocol import toploc

    made = run.honest()
    file = run.read(made)
    cheap = SmallerModelEngine("float32")
    cheap.load(run.model)
    samples = [
        replace(
            s, proofs=tuple(toploc.prove([bits(cheap.prefill([(s.prompt.tolist(), s.completion.tolist())])[0])])[0])
        )
        for s in file.samples
    ]
    return run.rewrite(made, replace(file, samples=tuple(samples)))


@rejected_only_by("sampling", Outcome.HARD)
def an_edited_token(run: TinyRun) -> Candidate:
    """One token in the middle is another; proofs, logprobs and rewards are recomputed for the edited text."""
    made = run.honest()
    file, honest = run.read(made), run.candidate(made)
    row = longest(file, at_least=3)
    sample = file.samples[row]
    completion = sample.completion.copy()
    middle = len(completion) // 2
    completion[middle] = next(t for t in range(3, 60) if t != completion[middle])
    return run.rewrite(made, with_sample(file, row, run.consistent(honest, replace(sample, completion=completion))))


def test_honest_work_is_accepted(tiny_run: TinyRun) -> None:
    for sequence in range(3):
        candidate = tiny_run.candidate(tiny_run.honest(sequence=sequence, hardware=sequence % 2))
        assert judge(candidate) is None
        assert candidate.checked["sequences"] == tiny_run.spec.samples
        assert candidate.checked["proofs"] >= tiny_run.spec.samples


def test_there_is_a_tampered_file_for_every_rule() -> None:
    assert set(TAMPERED) == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_alone_rejects_its_tampered_file(tiny_run: TinyRun, rule: str) -> None:
    tamper, outcome = TAMPERED[rule]
    candidate = tamper(tiny_run)
    finding = judge(candidate)
    assert finding is not None
    assert (finding.rule, finding.outcome) == (rule, outcome), finding
    assert finding.measured
    assert finding.threshold
    assert judge(candidate, [name for name in RULES if name != rule]) is None


def test_a_worker_with_a_cheaper_model_is_found_out_by_its_proofs(tiny_run: TinyRun) -> None:
    cheap = SmallerModelEngine("float32")
    cheap.load(tiny_run.model)
    run = replace(tiny_run, engine=cheap)
    made = run.honest()
    assert judge(run.candidate(made)) is None  # its own check finds nothing
    finding = judge(tiny_run.candidate(made))
    assert finding is not None
    assert (finding.rule, finding.outcome) == ("computation", Outcome.HARD)


def test_a_wrong_sampling_key_is_found_out(tiny_run: TinyRun) -> None:
    made = tiny_run.honest()
    finding = judge(tiny_run.candidate(made, beacon=b"\x0b" * 32), ["sampling"])
    assert finding is not None
    assert finding.outcome == Outcome.HARD


@pytest.mark.parametrize(
    "proofs", [(), (b"",), (b"\x00" * 258,), (b"\xff" * 258,)], ids=["none", "empty", "zero", "ones"]
)
def test_null_and_missing_proofs_never_pass(tiny_run: TinyRun, proofs: tuple[bytes, ...]) -> None:
    made = tiny_run.honest()
    file = tiny_run.read(made)
    finding = judge(tiny_run.rewrite(made, with_sample(file, 0, replace(file.samples[0], proofs=proofs))))
    assert finding is not None
    assert (finding.rule, finding.outcome) == ("computation", Outcome.HARD)


def test_a_constant_proof_fails_on_signs_at_least(tiny_run: TinyRun) -> None:
    made = tiny_run.honest()
    file = tiny_run.read(made)
    sample = file.samples[0]
    constant = (65497).to_bytes(2, "big") + (0x3F80).to_bytes(2, "big") + bytes(254)
    forged = replace(sample, proofs=tuple(constant[: len(p)] for p in sample.proofs))
    finding = judge(tiny_run.rewrite(made, with_sample(file, 0, forged)))
    assert finding is not None
    assert finding.rule == "computation"


def test_a_reader_that_takes_every_file_for_broken_gives_no_verdict(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where this validator's pyarrow lacks a codec: its own file tells it that the fault is its own."""
    sandbox = tiny_run.context.sandbox
    send = sandbox._send

    def sends(process: Any, request: dict[str, Any]) -> Any:
        if request["op"] == "read":
            return {"ok": False, "kind": "malformed", "message": "Support for codec 'zstd' not built"}, {}
        return send(process, request)

    monkeypatch.setattr(sandbox, "_send", sends)
    with pytest.raises(Unavailable, match="cannot read rollout files"):
        judge(tiny_run.candidate(tiny_run.honest()))


def test_nan_rewards_are_a_schema_fault(tiny_run: TinyRun) -> None:
    made = tiny_run.honest()
    file = tiny_run.read(made)
    finding = judge(tiny_run.rewrite(made, with_sample(file, 0, replace(file.samples[0], reward=float("nan")))))
    assert finding is not None
    assert (finding.rule, finding.outcome) == ("schema", Outcome.SOFT)


def test_a_broken_validator_gives_no_verdict(tiny_run: TinyRun) -> None:
    """NaN in the validator's own prefill is its own trouble, never the node's."""
    import torch

    broken = TorchEngine("float32")
    broken.load(tiny_run.model)
    with torch.no_grad():
        broken._model.base_model.norm.weight.fill_(float("nan"))
    candidate = replace(tiny_run, engine=broken).candidate(tiny_run.honest())
    with pytest.raises(MurmurationError):
        judge(candidate)


def test_a_share_of_the_samples_is_drawn_by_a_secret(tiny_run: TinyRun) -> None:
    made = tiny_run.honest()
    some = tiny_run.candidate(made, share=0.3)
    assert judge(some) is None
    assert 1 <= some.checked["sequences"] < tiny_run.spec.samples
    rows = {tuple(replace(some.plan, secret=bytes([i])).choose(some.work_id, b"\x00" * 32, 8)) for i in range(40)}
    assert len(rows) > 10


def test_the_receipt_says_what_was_checked(tiny_run: TinyRun) -> None:
    candidate = TAMPERED["reward"][0](tiny_run)
    finding = judge(candidate)
    told = details(candidate.context, candidate.commitment, finding, 123, candidate.checked)
    assert (told.rule, told.outcome, told.time) == ("reward", Outcome.HARD, 123)
    assert told.work == candidate.work_id.hex()
    assert np.isclose(float(told.measured), 1.0)
