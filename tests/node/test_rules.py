"""Every rule has files that it alone rejects (tampered.py), and some that two rules reject, which say why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from cheats.engines import SmallerModelEngine
from swarm.conversing import conversed, conversing
from swarm.tiny_run import TinyRun, longest, tokens_of, with_sample

from node.contributor.generation import Made
from node.engine.torch_engine import TorchEngine
from node.judging.candidate import Candidate
from node.judging.judge import details, judge
from node.judging.rules import RULES
from protocol.errors import MurmurationError, Unavailable
from protocol.runspec import RunSpec
from protocol.sampling import TokenScores
from protocol.sandbox import Sandbox
from protocol.verdict import Outcome
from tests.node.tampered import (
    CASES,
    Case,
    Tamper,
    a_forged_reward,
    an_edited_token,
    proofs_of_a_cheaper_model,
    rescored,
    spared,
)


@pytest.mark.parametrize("changes", [{"version": 2}, {"proof": "toploc/2"}], ids=["version", "proof"])
def test_a_file_of_another_version_earns_nothing_and_is_named(tiny_run: TinyRun, changes: dict[str, Any]) -> None:
    """The run's spec is known, and with it the version of its files: who writes another one is not ahead of this validator."""
    made = tiny_run.honest()
    file = tiny_run.read(made)
    finding = judge(tiny_run.rewrite(made, replace(file, header=replace(file.header, **changes))))
    assert finding is not None
    assert (finding.rule, finding.outcome, finding.measured) == ("schema", Outcome.SOFT, "another version")
    assert str(next(iter(changes.values()))) in finding.detail


def test_a_run_without_logprobs_takes_files_without_them_only(tiny_run: TinyRun) -> None:
    made = tiny_run.honest()
    sparing = sampled_as(tiny_run, logprobs=False)
    with Sandbox(sparing.spec) as sandbox:
        sparing = replace(sparing, context=replace(sparing.context, sandbox=sandbox))
        without = sparing.honest()
        file = sparing.read(without)
        assert all(sample.logprobs is None for sample in file.samples)
        assert judge(sparing.candidate(without)) is None
        finding = judge(sparing.candidate(made))
        assert finding is not None
        assert (finding.rule, finding.outcome) == ("schema", Outcome.SOFT)
        assert "logprobs" in finding.detail
    finding = judge(tiny_run.candidate(without))
    assert finding is not None
    assert (finding.rule, finding.detail) == ("schema", "column logprobs is missing")


def test_honest_work_is_accepted(tiny_run: TinyRun) -> None:
    for sequence in range(3):
        candidate = tiny_run.candidate(tiny_run.honest(sequence=sequence, hardware=sequence % 2))
        assert judge(candidate) is None
        assert candidate.checked.samples.bit_count() == tiny_run.spec.samples
        assert candidate.checked.proofs >= tiny_run.spec.samples


def test_there_is_a_tampered_file_for_every_rule() -> None:
    assert {case.rule for case in CASES} == set(RULES)
    assert len({str(case) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_rule_alone_rejects_its_tampered_files(tiny_run: TinyRun, case: Case) -> None:
    candidate = case.tamper(tiny_run)
    finding = judge(candidate)
    assert finding is not None
    assert (finding.rule, finding.outcome) == (case.rule, case.outcome), finding
    assert finding.measured
    assert finding.threshold
    assert judge(candidate, [name for name in RULES if name != case.rule]) is None


def sampled_as(run: TinyRun, **changes: Any) -> TinyRun:
    """The same run with another sampling section."""
    table = run.spec.model_dump()
    table["sampling"] |= changes
    spec = RunSpec.model_validate(table)
    context = replace(run.context, spec=spec)
    return replace(run, spec=spec, context=context)


CUTS = [
    {"top_k": 3}, {"top_p": "0.7"}, {"temperature": "0.8", "top_k": 8, "top_p": "0.9"}, {"temperature": "0"}, {"temperature": "2"},
]  # fmt: skip


@pytest.mark.parametrize("changes", CUTS, ids=str)
def test_honest_work_is_accepted_however_the_run_samples(tiny_run: TinyRun, changes: dict[str, Any]) -> None:
    run = sampled_as(tiny_run, **changes)
    made = run.honest()
    assert judge(run.candidate(made), ["sampling"]) is None


@pytest.mark.parametrize("changes", CUTS, ids=str)
def test_work_sampled_otherwise_is_found_out(tiny_run: TinyRun, changes: dict[str, Any]) -> None:
    """The uncut distribution at temperature 1 instead of the run's."""
    run = sampled_as(tiny_run, **changes)
    made = tiny_run.honest(sequence=3)
    finding = judge(run.candidate(made), ["sampling"])
    assert finding is not None
    assert finding.outcome == Outcome.HARD


def test_logprobs_that_are_steadily_a_little_off_are_judged_where_the_spec_has_a_limit(tiny_run: TinyRun) -> None:
    """None is beyond the limit of one token, and an honest machine is off by a hundred-thousandth."""
    made = tiny_run.honest()
    file = tiny_run.read(made)
    row = max(range(len(file.samples)), key=lambda i: len(file.samples[i].completion))
    sample = file.samples[row]
    off = np.where(np.arange(len(sample.logprobs)) % 2, 0.029, -0.029).astype(np.float32)
    claimed = with_sample(file, row, replace(sample, logprobs=sample.logprobs + off))
    outcomes = []
    for limit in (None, {"soft": "0.0005", "hard": "0.5"}, {"soft": "0.0005", "hard": "0.002"}):
        table = tiny_run.spec.model_dump()
        table["verification"]["sampling"] |= {"mean_logprob_error": limit}
        spec = RunSpec.model_validate(table)
        run = replace(tiny_run, spec=spec, context=replace(tiny_run.context, spec=spec))
        honest = run.candidate(run.honest())
        assert judge(honest) is None
        finding = judge(run.rewrite(run.honest(), with_sample(run.read(run.honest()), row, claimed.samples[row])))
        outcomes.append(None if finding is None else (finding.outcome, finding.samples))
    assert outcomes == [None, (Outcome.SOFT, 1 << row), (Outcome.HARD, 1 << row)]


def test_the_shipped_limits_find_logprobs_that_are_steadily_a_little_off(tiny_run: TinyRun) -> None:
    """In a whole judgement, by the calibration of the demo and the presets of one machine."""
    made = tiny_run.honest()
    assert judge(tiny_run.candidate(made)) is None
    file = tiny_run.read(made)
    row = longest(file, at_least=8)
    sample = file.samples[row]
    off = np.where(np.arange(len(sample.logprobs)) % 2, 0.029, -0.029).astype(np.float32)
    finding = judge(tiny_run.rewrite(made, with_sample(file, row, replace(sample, logprobs=sample.logprobs + off))))
    assert finding is not None
    assert (finding.rule, finding.samples) == ("sampling", 1 << row)
    assert "logprob" in finding.detail


def test_a_chunk_of_small_margins_is_judged_where_the_spec_has_a_limit(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every token a little off, as an average over a chunk shows and no single token does."""
    made = tiny_run.honest()
    score = TorchEngine.score

    def slightly_off(self: TorchEngine, *given: Any, **named: Any) -> TokenScores:
        found = score(self, *given, **named)
        return replace(found, margins=found.margins + 0.009)

    monkeypatch.setattr(TorchEngine, "score", slightly_off)
    table = tiny_run.spec.model_dump()
    table["verification"]["sampling"] |= {"mean_margin": {"soft": "1", "hard": "1"}}
    outcomes = []
    most = 0.009 * min(32, max(len(sample.completion) for sample in tiny_run.read(made).samples)) / 32
    soft = {"soft": f"{most / 1.1:.6f}", "hard": f"{most * 4:.6f}"}
    hard = {"soft": f"{most / 4:.6f}", "hard": f"{most / 1.1:.6f}"}
    for limit in (None, soft, hard):
        table["verification"]["sampling"]["chunk_mean_margin"] = limit
        spec = RunSpec.model_validate(table)
        run = replace(tiny_run, spec=spec, context=replace(tiny_run.context, spec=spec))
        finding = judge(run.candidate(made), ["sampling"])
        outcomes.append(finding and finding.outcome)
        assert finding is None or "mean margin" in finding.detail
    assert outcomes == [None, Outcome.SOFT, Outcome.HARD]


# ---- rewards of environments that are exact, beside some that are not --------------------------------------------------


def test_a_lie_about_an_inexact_environment_hides_none_about_an_exact_one(tiny_run: TinyRun) -> None:
    """Rows of the inexact one come first."""
    made = next(made for made in map(tiny_run.honest, [0] * 64, range(64)) if _mixed(tiny_run, made))
    file = tiny_run.read(made)
    lies = [
        replace(sample, task_reward=sample.task_reward + 0.5, reward=sample.reward + 0.5) for sample in file.samples
    ]
    first = tiny_run.context.tasks.problem(file.samples[0].problem).environment
    outcomes = []
    for inexact in ({first}, {0, 1}):
        environments = [
            environment.model_copy(update={"exact": number not in inexact})
            for number, environment in enumerate(tiny_run.spec.environments)
        ]
        spec = tiny_run.spec.model_copy(update={"environments": environments})
        run = replace(tiny_run, spec=spec, context=replace(tiny_run.context, spec=spec))
        finding = judge(run.rewrite(made, replace(file, samples=tuple(lies))), ["reward"])
        assert finding is not None
        outcomes.append((finding.outcome, finding.samples))
    assert outcomes == [(Outcome.HARD, 1 << tiny_run.spec.sampling.group_size), (Outcome.SOFT, 1)]


def _mixed(run: TinyRun, made: Made) -> bool:
    """Whether its groups are of both environments."""
    problems = run.context.tasks.problems([sample.problem for sample in run.read(made).samples])
    return len({problem.environment for problem in problems}) == 2


# ---- what two rules reject ---------------------------------------------------------------------------------------------


def an_empty_completion(run: TinyRun) -> Candidate:
    """`termination` as well: of no tokens the last one is no end, and they are not the most there may be."""
    made = run.honest()
    file = run.read(made)
    nothing = replace(file.samples[1], completion=tokens_of([]), logprobs=np.empty(0, np.float32), proofs=())
    return spared(run.rewrite(made, with_sample(file, 1, rescored(run, nothing))), 1)


def a_file_over_the_cap(run: TinyRun) -> Candidate:
    """`schema` as well: the sandbox opens no such file, however many bytes of it say nothing."""
    made = run.honest()
    data = made.path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path = run.folder / "tampered.parquet"
    path.write_bytes(data[:footer] + bytes(run.spec.file_bytes_max) + data[footer:])
    assert pq.read_table(path).equals(pq.read_table(made.path))
    return run.committed(made, path)


def more_turns_than_the_run_allows(run: TinyRun) -> Candidate:
    """`conversation` as well: the environment may say nothing after the last turn that the run allows."""
    run = conversing(run, turns=2)
    made = run.honest()
    file, honest = run.read(made), run.candidate(made)
    rows = [conversed(run, sample, honest.key(sample)) for sample in file.samples]
    row = max(range(len(rows)), key=lambda r: len(rows[r].turns))
    assert len(rows[row].turns) == 2
    return run.rewrite(made, with_sample(file, row, rows[row]))


@pytest.mark.parametrize(
    ("tamper", "first", "second"),
    [
        (an_empty_completion, "tokens", "termination"),
        (more_turns_than_the_run_allows, "tokens", "conversation"),
        (a_file_over_the_cap, "available", "schema"),
    ],
)
def test_what_one_rule_would_let_through_another_rejects(
    tiny_run: TinyRun, tamper: Tamper, first: str, second: str
) -> None:
    candidate = tamper(tiny_run)
    found = judge(candidate), judge(candidate, [name for name in RULES if name != first])
    assert [finding and finding.rule for finding in found] == [first, second]


def test_a_file_with_a_row_less_is_none_of_this_run(tiny_run: TinyRun) -> None:
    """`schema` says so, which reads exactly as many rows as a submission has: `assignment` never sees another number."""
    made = tiny_run.honest()
    file = tiny_run.read(made)
    finding = judge(tiny_run.rewrite(made, replace(file, samples=file.samples[:-1])))
    assert finding is not None
    assert (finding.rule, finding.outcome) == ("schema", Outcome.SOFT)


# ---- more ways to cheat ------------------------------------------------------------------------------------------------


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


def uncalibrated(candidate: Candidate) -> Candidate:
    """Judged for a run whose calibration covers another hardware class."""
    spec = candidate.spec
    verification = spec.verification.model_copy(update={"calibrated": [1], "uncalibrated": [0]})
    return replace(
        candidate, context=replace(candidate.context, spec=spec.model_copy(update={"verification": verification}))
    )


@pytest.mark.parametrize("tamper", [proofs_of_a_cheaper_model, an_edited_token], ids=["computation", "sampling"])
def test_a_device_that_nobody_calibrated_earns_nothing_and_loses_nothing(tiny_run: TinyRun, tamper: Tamper) -> None:
    hard = tamper(tiny_run)
    rules = [rule for rule in RULES if rule != "identity"]  # the changed spec has another digest than the file says
    found, capped = judge(hard, rules), judge(uncalibrated(hard), rules)
    assert found is not None and capped is not None
    assert (found.outcome, capped.outcome) == (Outcome.HARD, Outcome.SOFT)
    assert "hardware class 0 is not calibrated" in capped.detail


def test_nobody_is_slashed_in_a_class_that_nobody_calibrated_whatever_is_found(tiny_run: TinyRun) -> None:
    made = tiny_run.honest()
    file = tiny_run.read(made)
    unproved = tiny_run.rewrite(made, with_sample(file, 0, replace(file.samples[0], proofs=())))
    for candidate, rule in ((unproved, "computation"), (a_forged_reward(tiny_run), "reward")):
        hard, found = judge(candidate, [rule]), judge(uncalibrated(candidate), [rule])
        assert hard is not None and found is not None
        assert (hard.outcome, found.outcome) == (Outcome.HARD, Outcome.SOFT)


def test_nobody_is_slashed_in_a_run_of_a_model_that_is_not_listed(tiny_run: TinyRun) -> None:
    hard = an_edited_token(tiny_run)
    spec = hard.spec.model_copy(update={"model": hard.spec.model.model_copy(update={"unlisted": True})})
    unlisted = replace(hard, context=replace(hard.context, spec=spec))
    rules = [rule for rule in RULES if rule != "identity"]  # the changed spec has another digest than the file says
    found, capped = judge(hard, rules), judge(unlisted, rules)
    assert found is not None and capped is not None
    assert (found.outcome, capped.outcome) == (Outcome.HARD, Outcome.SOFT)
    assert "model is not in the list" in capped.detail


def test_a_seat_of_a_class_that_the_run_does_not_list_earns_nothing(tiny_run: TinyRun) -> None:
    """Its class would be covered by no calibration and by no length budget: it would have chosen its own rules."""
    candidate = tiny_run.candidate(tiny_run.honest(hardware=7), hardware=7)
    finding = judge(candidate)
    assert finding is not None
    assert (finding.rule, finding.outcome, finding.measured) == ("identity", Outcome.SOFT, "7")
    assert "lists no such hardware class" in finding.detail


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
    assert 1 <= some.checked.samples.bit_count() < tiny_run.spec.samples
    rows = {tuple(replace(some.plan, secret=bytes([i])).choose(some.submission_id, b"\x00" * 32, 8)) for i in range(40)}
    assert len(rows) > 10


def test_the_receipt_says_what_was_checked(tiny_run: TinyRun) -> None:
    candidate = a_forged_reward(tiny_run)
    finding = judge(candidate)
    told = details(candidate.context, candidate.commitment, finding, 123, candidate.checked)
    assert (told.rule, told.outcome, told.time) == ("reward", Outcome.HARD, 123)
    assert told.submission == candidate.submission_id.hex()
    assert np.isclose(float(told.measured), 1.0)
