"""Every rule has files that it alone rejects: with that rule switched off, they are accepted.

Each branch of a rule has one, but for those under "what two rules reject", which say why they cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cheats.engines import SmallerModelEngine
from swarm.conversing import conversed
from swarm.tiny_run import TinyRun, longest, tokens_of, with_sample

from node.contributor.generation import Made
from node.engine import Prompt
from node.engine.torch_engine import TorchEngine
from node.judging.candidate import Candidate, PrefillPlan
from node.judging.judge import details, judge
from node.judging.rules import RULES
from protocol.errors import MurmurationError, Unavailable
from protocol.length_rewards import penalty
from protocol.rollout import Header, Sample
from protocol.runspec import RewardSpec, RunSpec
from protocol.sampling import TokenScores
from protocol.sandbox import Sandbox
from protocol.verdict import Outcome

Tamper = Callable[[TinyRun], Candidate]


@dataclass(frozen=True)
class Case:
    rule: str
    outcome: Outcome
    tamper: Tamper
    name: str

    def __str__(self) -> str:
        return f"{self.rule}-{self.name}"


CASES: list[Case] = []


def rejected_only_by(rule: str, outcome: Outcome, name: str = "") -> Callable[[Tamper], Tamper]:
    def register(tamper: Tamper) -> Tamper:
        CASES.append(Case(rule, outcome, tamper, name or tamper.__name__))
        return tamper

    return register


# ---- means -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sparing(PrefillPlan):
    """The validator drew all rows but one for its prefill."""

    row: int = 0

    def choose(self, submission: bytes, block_hash: bytes, samples: int) -> list[int]:
        return [row for row in range(samples) if row != self.row]


def spared(candidate: Candidate, row: int) -> Candidate:
    """With the tampered row left out of the prefill, which would not know what to do with it: no rule would say anything."""
    return replace(candidate, plan=Sparing(1.0, b"secret", row))


def rescored(run: TinyRun, sample: Sample) -> Sample:
    """With the rewards that its problem, budget and tokens deserve."""
    reward = run.context.sandbox.score([(sample.problem, run.tokenizer.answer(sample.completion.tolist()))])[0]
    penalty = run.penalty(sample)
    return replace(sample, task_reward=reward, length_penalty=penalty, reward=reward - penalty)


def at_full_length(run: TinyRun, honest: Candidate, sample: Sample, tail: Sequence[int] = ()) -> Sample:
    """A completion without an end token, as long as may be, then `tail`; its proofs are true, its tokens nobody drew."""
    filler = next(token for token in range(3, 60) if token not in run.tokenizer.end_tokens)
    completion = tokens_of([filler] * run.spec.sampling.max_new_tokens + list(tail))
    return run.consistent(honest, replace(sample, completion=completion))


# ---- available, schema, identity, duplicate ----------------------------------------------------------------------------


@rejected_only_by("available", Outcome.SOFT)
def another_file_than_committed(run: TinyRun) -> Candidate:
    made = run.honest()
    return run.candidate(made, ref=replace(made.ref, root=b"\x01" * 32))


@rejected_only_by("schema", Outcome.SOFT)
def an_extra_column(run: TinyRun) -> Candidate:
    made = run.honest()
    table = pq.read_table(made.path)
    path = run.folder / "tampered.parquet"
    pq.write_table(table.append_column("extra", pa.array([0] * len(table))), path, use_dictionary=False)
    return run.committed(made, path)


@rejected_only_by("schema", Outcome.SOFT)
def columns_in_another_order(run: TinyRun) -> Candidate:
    made = run.honest()
    table = pq.read_table(made.path)
    path = run.folder / "tampered.parquet"
    pq.write_table(table.select(table.column_names[::-1]), path, use_dictionary=False)
    return run.committed(made, path)


@rejected_only_by("schema", Outcome.SOFT)
def a_column_of_another_type(run: TinyRun) -> Candidate:
    made = run.honest()
    table = pq.read_table(made.path)
    index = table.column_names.index("budget")
    wide = pa.field("budget", pa.int64(), nullable=False)
    path = run.folder / "tampered.parquet"
    pq.write_table(table.set_column(index, wide, table.column("budget").cast(pa.int64())), path, use_dictionary=False)
    return run.committed(made, path)


@rejected_only_by("schema", Outcome.SOFT)
def a_nan_where_nobody_looks(run: TinyRun) -> Candidate:
    made = run.honest()
    file = run.read(made)
    logprobs = file.samples[2].logprobs.copy()
    logprobs[0] = np.nan
    return spared(run.rewrite(made, with_sample(file, 2, replace(file.samples[2], logprobs=logprobs))), 2)


ANOTHER: dict[str, object] = {
    "protocol": 99, "chain_id": 1, "contract": "0x" + "51" * 20, "run": 7, "node": "0x" + "52" * 20, "step": 7, "sequence": 7,
    "beacon": "ab" * 32, "spec": "cd" * 32, "hardware": 1,
}  # fmt: skip


def a_header_with_another(field: str) -> Tamper:
    def tamper(run: TinyRun) -> Candidate:
        made = run.honest()
        file = run.read(made)
        return run.rewrite(made, replace(file, header=replace(file.header, **{field: ANOTHER[field]})))

    return tamper


for header_field in fields(Header):
    if header_field.name in ("version", "proof"):
        continue  # of the ones that this program does not know it reads no file: see "another version" below
    rejected_only_by("identity", Outcome.SOFT, f"another_{header_field.name}")(a_header_with_another(header_field.name))


@rejected_only_by("duplicate", Outcome.SOFT)
def committed_before(run: TinyRun) -> Candidate:
    """The chain says so, not the file: under another sequence the same file would be another node's or sequence's as well."""
    made = run.honest()
    return run.candidate(made, is_repeated=True)


# ---- assignment, tokens, termination -----------------------------------------------------------------------------------


@rejected_only_by("assignment", Outcome.HARD)
def rows_in_another_order(run: TinyRun) -> Candidate:
    made = run.honest()
    file = run.read(made)
    first, second, *others = file.samples
    return run.rewrite(made, replace(file, samples=(second, first, *others)))


@rejected_only_by("assignment", Outcome.HARD)
def another_problems_number(run: TinyRun) -> Candidate:
    """The assigned prompt and honest completions, scored as answers to another problem."""
    made = run.honest()
    file = run.read(made)
    sample = file.samples[0]
    return run.rewrite(made, with_sample(file, 0, rescored(run, replace(sample, problem=sample.problem + 1))))


@rejected_only_by("assignment", Outcome.HARD)
def another_budget(run: TinyRun) -> Candidate:
    """The assigned prompt, which announces a budget, and the penalty of another budget."""
    run = run.with_budgets()
    made = run.honest()
    file = run.read(made)
    sample = file.samples[0]
    assert sample.budget
    return run.rewrite(made, with_sample(file, 0, rescored(run, replace(sample, budget=sample.budget + 1))))


@rejected_only_by("assignment", Outcome.HARD)
def an_easier_prompt(run: TinyRun) -> Candidate:
    """The assigned problem's number, another prompt, and everything else honestly generated from that prompt."""
    made = run.honest()
    file, honest = run.read(made), run.candidate(made)
    sample = file.samples[0]
    prompt = run.tokenizer.encode("9 9 9 9")
    generated = run.engine.generate(
        [Prompt(prompt, (honest.key(sample),))], temperature=1.0, max_new_tokens=40, end_tokens=run.tokenizer.end_tokens
    )[0][0]
    forged = replace(sample, prompt=tokens_of(prompt), completion=tokens_of(generated.tokens))
    return run.rewrite(made, with_sample(file, 0, run.consistent(honest, forged)))


@rejected_only_by("tokens", Outcome.HARD)
def inflated_units(run: TinyRun) -> Candidate:
    made = run.honest()
    return run.candidate(made, units=made.units + 1)


def a_token_outside_the_vocabulary(token: Callable[[TinyRun], int]) -> Tamper:
    def tamper(run: TinyRun) -> Candidate:
        made = run.honest()
        file, honest = run.read(made), run.candidate(made)
        sample = at_full_length(run, honest, file.samples[1])
        completion = sample.completion.copy()
        completion[3] = token(run)
        return spared(run.rewrite(made, with_sample(file, 1, replace(sample, completion=completion))), 1)

    return tamper


rejected_only_by("tokens", Outcome.HARD, "an_id_too_high")(
    a_token_outside_the_vocabulary(lambda run: run.tokenizer.vocabulary)
)
rejected_only_by("tokens", Outcome.HARD, "an_id_below_zero")(a_token_outside_the_vocabulary(lambda run: -1))


@rejected_only_by("tokens", Outcome.HARD)
def an_overlong_completion(run: TinyRun) -> Candidate:
    """It ends in an end token, so that nothing is wrong with its end."""
    made = run.honest()
    file, honest = run.read(made), run.candidate(made)
    sample = at_full_length(run, honest, file.samples[1], tail=[min(run.tokenizer.end_tokens)])
    return spared(run.rewrite(made, with_sample(file, 1, sample)), 1)


@rejected_only_by("tokens", Outcome.HARD)
def a_sequence_longer_than_the_models_positions(run: TinyRun) -> Candidate:
    """Which nobody could prefill: unjudged it would be paid."""
    made = run.honest()
    tampered = run.candidate(made)
    tampered.tokenizer = copy(run.tokenizer)
    tampered.tokenizer.positions = max(len(sample.context) for sample in run.read(made).samples) - 1
    return tampered


@rejected_only_by("tokens", Outcome.HARD)
def a_logprob_too_few(run: TinyRun) -> Candidate:
    made = run.honest()
    file = run.read(made)
    sample = file.samples[1]
    return spared(run.rewrite(made, with_sample(file, 1, replace(sample, logprobs=sample.logprobs[:-1]))), 1)


@rejected_only_by("tokens", Outcome.HARD)
def a_logprob_too_many(run: TinyRun) -> Candidate:
    made = run.honest()
    file = run.read(made)
    sample = file.samples[1]
    more = np.append(sample.logprobs, np.float32(-1))
    return spared(run.rewrite(made, with_sample(file, 1, replace(sample, logprobs=more))), 1)


@rejected_only_by("termination", Outcome.HARD)
def tokens_after_the_end(run: TinyRun) -> Candidate:
    """Everything is drawn as it should be, only that the end token did not end it: more units for the same answer."""
    made = run.honest()
    file, honest = run.read(made), run.candidate(made)
    most = run.spec.sampling.max_new_tokens
    row = min(range(len(file.samples)), key=lambda r: len(file.samples[r].completion))
    sample = file.samples[row]
    assert len(sample.completion) < most
    generated = run.engine.generate(
        [Prompt(sample.prompt.tolist(), (honest.key(sample),))], temperature=1.0, max_new_tokens=most, end_tokens=frozenset()
    )[0][0]  # fmt: skip
    longer = replace(sample, completion=tokens_of(generated.tokens))
    return run.rewrite(made, with_sample(file, row, run.consistent(honest, longer)))


@rejected_only_by("termination", Outcome.HARD)
def a_truncated_answer(run: TinyRun) -> Candidate:
    made = run.honest()
    file, honest = run.read(made), run.candidate(made)
    row = longest(file)
    sample = file.samples[row]
    cut = replace(sample, completion=sample.completion[:-1])
    return run.rewrite(made, with_sample(file, row, run.consistent(honest, cut)))


# ---- reward, computation, sampling ---------------------------------------------------------------------------------------


@rejected_only_by("reward", Outcome.HARD)
def a_penalty_left_out(run: TinyRun) -> Candidate:
    run = run.with_budgets()
    made = run.honest()
    file = run.read(made)
    row = next(r for r, s in enumerate(file.samples) if s.length_penalty)
    sample = file.samples[row]
    return run.rewrite(made, with_sample(file, row, replace(sample, length_penalty=0.0, reward=sample.task_reward)))


def another_kinds_penalty(run: TinyRun, length: str, claimed: str, shorter: bool) -> Candidate:
    """A run whose second environment, the only one with budgets, has this kind of them, and a sample with the penalty of another."""
    own = {
        kind: RewardSpec.model_validate({"alpha": "0.01", "length": kind, "budgets": {"0": [8], "1": [8]}})
        for kind in (length, claimed)
    }
    run = run.with_reward(RewardSpec(), None, own[length])
    for sequence in range(64):
        made = run.honest(sequence=sequence)
        file = run.read(made)
        rows = [
            r
            for r, s in enumerate(file.samples)
            if s.budget and (len(s.completion) < 8) is shorter and len(s.completion) != 8
        ]
        if rows:
            break
    sample = file.samples[rows[0]]
    assert sample.length_penalty == penalty(own[length], 8, len(sample.completion))
    other = penalty(own[claimed], 8, len(sample.completion))
    assert judge(run.candidate(made)) is None
    return run.rewrite(
        made, with_sample(file, rows[0], replace(sample, length_penalty=other, reward=sample.task_reward - other))
    )


@rejected_only_by("reward", Outcome.HARD)
def no_penalty_for_a_short_answer_where_a_length_is_to_be_met(run: TinyRun) -> Candidate:
    return another_kinds_penalty(run, "exact", "maximum", shorter=True)


@rejected_only_by("reward", Outcome.HARD)
def a_penalty_for_a_short_answer_where_the_budget_is_a_maximum(run: TinyRun) -> Candidate:
    return another_kinds_penalty(run, "maximum", "exact", shorter=True)


@rejected_only_by("reward", Outcome.HARD)
def a_penalty_per_token_where_it_is_per_budget(run: TinyRun) -> Candidate:
    return another_kinds_penalty(run, "ratio", "exact", shorter=False)


@rejected_only_by("reward", Outcome.HARD)
def a_reward_that_is_not_the_difference(run: TinyRun) -> Candidate:
    made = run.honest()
    file = run.read(made)
    sample = file.samples[0]
    return run.rewrite(made, with_sample(file, 0, replace(sample, reward=sample.reward + 1)))


@rejected_only_by("reward", Outcome.HARD)
def a_forged_reward(run: TinyRun) -> Candidate:
    made = run.honest()
    file = run.read(made)
    row = next(r for r, s in enumerate(file.samples) if s.task_reward < 1)
    return run.rewrite(made, with_sample(file, row, replace(file.samples[row], task_reward=1.0, reward=1.0)))


@rejected_only_by("computation", Outcome.HARD)
def proofs_of_a_cheaper_model(run: TinyRun) -> Candidate:
    """Tokens, logprobs and rewards are right; the proofs are of another model's states."""
    from node.engine.proofs import bits
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
    middle = len(sample.completion) // 2

    def edited(token: int) -> Sample:
        completion = sample.completion.copy()
        completion[middle] = token
        return run.consistent(honest, replace(sample, completion=completion))

    others = [token for token in range(3, 60, 7) if token != sample.completion[middle]]
    worst = max(map(edited, others), key=lambda one: margin(run, honest, one, middle))  # another may be nearly as good
    return run.rewrite(made, with_sample(file, row, worst))


def margin(run: TinyRun, honest: Candidate, sample: Sample, place: int) -> float:
    """How far the token at this place is from the one that was drawn."""
    hidden = run.engine.prefill([(sample.prompt.tolist(), sample.completion.tolist())])[0]
    return float(run.engine.score(hidden, sample.completion, key=honest.key(sample), temperature=1.0).margins[place])


@rejected_only_by("sampling", Outcome.HARD)
def an_end_that_nobody_drew(run: TinyRun) -> Candidate:
    """Work cut short where it was far from over, and an end token put to it: everything but the draw is as it should be."""
    made = run.honest()
    file, honest = run.read(made), run.candidate(made)
    row = longest(file, at_least=4)
    sample, end = file.samples[row], min(run.tokenizer.end_tokens)

    def cut(length: int) -> Sample:
        completion = tokens_of([*sample.completion[:length].tolist(), end])
        return run.consistent(honest, replace(sample, completion=completion))

    shortened = max(map(cut, range(1, len(sample.completion) - 1)), key=lambda one: margin(run, honest, one, -1))
    return run.rewrite(made, with_sample(file, row, shortened))


@rejected_only_by("sampling", Outcome.HARD)
def a_forged_logprob(run: TinyRun) -> Candidate:
    made = run.honest()
    file = run.read(made)
    logprobs = file.samples[0].logprobs.copy()
    logprobs[-1] -= 5
    return run.rewrite(made, with_sample(file, 0, replace(file.samples[0], logprobs=logprobs)))


@rejected_only_by("conversation", Outcome.HARD)
def answers_that_nobody_gave(run: TinyRun) -> Candidate:
    """Asked for two turns more, the model goes on: honestly drawn and proved, in a run whose environments never answer."""
    made = run.honest()
    file, honest = run.read(made), run.candidate(made)
    rows = [conversed(run, sample, honest.key(sample)) for sample in file.samples]
    row = max(range(len(rows)), key=lambda r: len(rows[r].turns))
    assert len(rows[row].turns)
    return run.rewrite(made, with_sample(file, row, rows[row]))


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


def test_a_chunk_of_small_margins_is_judged_where_the_spec_has_a_limit(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every token a little off, as an average over a chunk shows and no single token does."""
    made = tiny_run.honest()
    score = TorchEngine.score

    def slightly_off(self: TorchEngine, *given: Any, **named: Any) -> TokenScores:
        found = score(self, *given, **named)
        return TokenScores(found.margins + 0.009, found.logprobs)

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


@pytest.mark.parametrize(
    ("tamper", "first", "second"),
    [(an_empty_completion, "tokens", "termination"), (a_file_over_the_cap, "available", "schema")],
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
