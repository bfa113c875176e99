"""Files that one rule alone rejects: with that rule switched off, they are accepted.

Each branch of a rule has one, but for those that two rules reject (test_rules.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cheats.engines import SmallerModelEngine
from swarm.conversing import conversed, conversing
from swarm.tiny_run import TinyRun, longest, tokens_of, with_sample

from node.engine import Prompt
from node.engine.degrade import DEGRADATIONS
from node.engine.proofs import bits
from node.judging.candidate import Candidate, PrefillPlan
from node.judging.history import CountedReceipt, History
from node.judging.judge import judge
from protocol import toploc
from protocol.constants import SUM_UNIT
from protocol.eprocess import Sums
from protocol.length_rewards import penalty
from protocol.rollout import Header, Sample
from protocol.runspec import RewardSpec
from protocol.statistics import MARGINS_HARD
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
    "beacon": "ab" * 32, "spec": "cd" * 32, "hardware": 1, "build": "another",
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


@rejected_only_by("identity", Outcome.SOFT)
def a_build_that_the_run_does_not_list(run: TinyRun) -> Candidate:
    run = run.with_bits("torch 1, of another machine")
    return run.candidate(run.honest())


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


@rejected_only_by("computation", Outcome.SOFT)
def proofs_of_weights_in_int8_where_bits_are_compared(run: TinyRun) -> Candidate:
    """Everything else is right, and each single value within the run's limits."""
    run = run.with_bits()
    made = run.honest()
    file = run.read(made)
    run.engine.degrade(DEGRADATIONS["int8"])
    states = run.engine.prefill([(one.prompt.tolist(), one.completion.tolist()) for one in file.samples])
    run.engine.load(run.model)
    proofs = toploc.prove([bits(of) for of in states])
    samples = [replace(one, proofs=tuple(own)) for one, own in zip(file.samples, proofs, strict=True)]
    return run.rewrite(made, replace(file, samples=tuple(samples)))


@rejected_only_by("sampling", Outcome.SOFT)
def a_logprob_off_by_its_last_bit_where_bits_are_compared(run: TinyRun) -> Candidate:
    run = run.with_bits()
    made = run.honest()
    file = run.read(made)
    logprobs = file.samples[0].logprobs.copy()
    logprobs[0] = np.nextafter(logprobs[0], np.float32(-100))
    return run.rewrite(made, with_sample(file, 0, replace(file.samples[0], logprobs=logprobs)))


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
    """Asked for two turns more, the model goes on: honestly drawn and proved, in a run with room for it whose environments never answer."""
    spec = conversing(run).spec
    run = replace(run, spec=spec, context=replace(run.context, spec=spec))
    made = run.honest()
    file, honest = run.read(made), run.candidate(made)
    rows = [conversed(run, sample, honest.key(sample)) for sample in file.samples]
    row = max(range(len(rows)), key=lambda r: len(rows[r].turns))
    assert len(rows[row].turns)
    return run.rewrite(made, with_sample(file, row, rows[row]))


@rejected_only_by("history", Outcome.HARD)
def tokens_of_a_cooler_temperature_after_others_like_them(run: TinyRun) -> Candidate:
    own = run.with_history("0.0003", "0.0006", blind=["sampling"])
    cooler = own.spec.model_copy(update={"sampling": own.spec.sampling.model_copy(update={"temperature": "0.8"})})
    context = replace(own.context, spec=cooler)
    context.__dict__["spec_digest"] = own.spec.digest  # what the file says
    candidate = own.candidate(replace(own, spec=cooler, context=context).honest())
    budget = own.spec.verification.history
    assert budget is not None
    earlier = {MARGINS_HARD: Sums(8000 * SUM_UNIT, 64000 * SUM_UNIT, SUM_UNIT)}
    candidate.history = History(budget, 0, [CountedReceipt("0" * 64, "", "0" * 64, 1000, earlier, own=True)])
    return candidate
