"""In which order a judgement asks: what one finding hides of another, what strangers' programs cost, and which rows it names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cheats.engines import SmallerModelEngine
from swarm.conversing import Reply, ScriptedSandbox, conversed, conversing, count_characters
from swarm.tiny_run import TinyRun, with_sample

from node.contributor.generation import Made
from node.engine.proofs import bits
from node.engine.torch_engine import TorchEngine
from node.judging.candidate import Candidate, Checked, PrefillPlan
from node.judging.judge import judge
from node.judging.rules import CHEAP, RULES, computation, conversation, reward, sampling
from node.judging.rules.limits import worst
from protocol import toploc
from protocol.environments.programs import Range
from protocol.errors import Unavailable
from protocol.replies import Asked
from protocol.rollout import RolloutFile, Sample, ToolResult
from protocol.sandbox import Sandbox
from protocol.verdict import Finding, Outcome
from tests.node.tampered import (
    CASES,
    Tamper,
    an_edited_token,
    proofs_of_a_cheaper_model,
    spared,
)

# ---- soft findings that hide nothing ---------------------------------------------------------------------------------------


class SaysSomethingElse:
    """The run's sandbox on a day when the program of a submission's first row says something else."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    def bounds(self, answers: Any, claims: Sequence[float], tolerance: float) -> list[Range]:
        _, *others = self._sandbox.bounds(answers, claims, tolerance)
        return [Range(0.5, 0.5) if claims[0] != 0.5 else Range(0.0, 0.0), *others]


INEXACT = [rule for rule in RULES if rule != "identity"]
"""Rules for a candidate of a changed spec, which has another digest than the file says."""


def another_day(candidate: Candidate) -> Candidate:
    """In a run whose environments are not exact."""
    environments = [one.model_copy(update={"exact": False}) for one in candidate.spec.environments]
    context = candidate.context
    spec, sandbox = context.spec.model_copy(update={"environments": environments}), SaysSomethingElse(context.sandbox)
    return replace(candidate, context=replace(context, spec=spec, sandbox=sandbox))  # type: ignore[arg-type]


@pytest.mark.parametrize("tamper", [an_edited_token, proofs_of_a_cheaper_model], ids=["sampling", "computation"])
def test_a_cheat_does_not_hide_behind_a_reward_that_changes(tiny_run: TinyRun, tamper: Tamper) -> None:
    """A program can read a clock: it says what was claimed until its maker is being judged."""
    hard = tamper(tiny_run)
    found, cheap = (
        judge(another_day(hard), INEXACT),
        judge(another_day(hard), [rule for rule in CHEAP if rule in INEXACT]),
    )
    assert found is not None and cheap is not None
    assert (found.rule, found.outcome) == (next(case for case in CASES if case.tamper is tamper).rule, Outcome.HARD)
    assert (cheap.rule, cheap.outcome) == ("reward", Outcome.SOFT)


def test_honest_work_with_a_reward_that_changes_is_soft(tiny_run: TinyRun) -> None:
    finding = judge(another_day(tiny_run.candidate(tiny_run.honest())), INEXACT)
    assert finding is not None
    assert (finding.rule, finding.outcome) == ("reward", Outcome.SOFT)


def unavailable(*_: object) -> None:
    raise Unavailable("the engine ran out of memory")


def test_a_soft_finding_stands_where_a_later_rule_cannot_be_asked(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft = Finding("reward", Outcome.SOFT, "no score", "a score", "row 0: no verifier gets to an end", 1)
    monkeypatch.setitem(RULES, "computation", unavailable)
    monkeypatch.setitem(RULES, "reward", lambda candidate: soft)
    assert judge(tiny_run.candidate(tiny_run.honest())) == soft


def test_no_program_is_run_in_a_judgement_that_is_tried_again(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, "computation", unavailable)
    candidate, scored = counted(tiny_run.candidate(tiny_run.honest()))
    with pytest.raises(Unavailable):
        judge(candidate, INEXACT)
    assert scored == []


# ---- what strangers' programs cost -----------------------------------------------------------------------------------------


class Counting:
    """A sandbox that notes how many answers it scores at once."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.scored: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    def bounds(self, answers: Any, claims: Sequence[float], tolerance: float) -> list[Range]:
        self.scored.append(len(answers))
        return self._sandbox.bounds(answers, claims, tolerance)


def counted(candidate: Candidate) -> tuple[Candidate, list[int]]:
    """In a run whose environments are not exact, and how many answers were scored at once."""
    environments = [one.model_copy(update={"exact": False}) for one in candidate.spec.environments]
    context, sandbox = candidate.context, Counting(candidate.context.sandbox)
    spec = context.spec.model_copy(update={"environments": environments})
    return replace(candidate, context=replace(context, spec=spec, sandbox=sandbox)), sandbox.scored  # type: ignore[arg-type]


@pytest.mark.parametrize("tamper", [an_edited_token, proofs_of_a_cheaper_model], ids=["sampling", "computation"])
def test_no_program_is_run_that_the_model_did_not_write(tiny_run: TinyRun, tamper: Tamper) -> None:
    """Or a node could have its validators burn hours on programs of its own."""
    candidate, scored = counted(tamper(tiny_run))
    finding = judge(candidate, INEXACT)
    assert finding is not None and finding.outcome is Outcome.HARD
    assert scored == []


def test_once_a_reward_is_false_no_further_program_is_run(tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny_run.honest()
    file = tiny_run.read(made)
    lies = [
        replace(sample, task_reward=sample.task_reward + 0.5, reward=sample.reward + 0.5) for sample in file.samples
    ]
    monkeypatch.setattr(reward, "_INEXACT_AT_ONCE", 2)
    candidate, scored = counted(tiny_run.rewrite(made, replace(file, samples=tuple(lies))))
    finding = judge(candidate, INEXACT)
    assert finding is not None and (finding.rule, finding.outcome) == ("reward", Outcome.SOFT)
    assert scored == [2]
    candidate, scored = counted(tiny_run.candidate(made))
    assert judge(candidate, INEXACT) is None
    assert scored == [2] * (len(lies) // 2)


@pytest.mark.parametrize(
    ("seconds", "rules", "found"),
    [(-1.0, INEXACT, "sampling"), (1e9, INEXACT, None), (-1.0, [rule for rule in CHEAP if rule in INEXACT], None)],
    ids=["took long", "did not", "no weights"],
)
def test_rows_that_take_long_to_score_get_the_prefill_that_was_not_drawn_for_them(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch, seconds: float, rules: list[str], found: str | None
) -> None:
    """Who hides programs of its own among many rows pays for the first of them that costs anything."""
    monkeypatch.setattr(reward, "LONG_SECONDS", seconds)
    edited = an_edited_token(tiny_run)
    at_once = judge(edited)
    assert at_once is not None
    candidate, scored = counted(
        spared(replace(edited, checked=Checked(), sampled={}), at_once.samples.bit_length() - 1)
    )
    finding = judge(candidate, rules)
    assert (finding and (finding.rule, finding.outcome)) == (found and (found, Outcome.HARD))
    assert scored


@dataclass(frozen=True)
class Only(PrefillPlan):
    """The validator drew one row."""

    row: int = 0

    def choose(self, submission: bytes, block_hash: bytes, samples: int) -> list[int]:
        return [self.row]


ONLY = Only(0.1, b"secret")


def broken_but_for_drawn_rows(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The engine has no memory for more than one row; what it was asked for."""
    of_rows, asked = computation.of_rows, list[list[int]]()

    def one_at_a_time(c: Candidate, rows: Sequence[int]) -> Finding | None:
        asked.append(list(rows))
        if len(rows) > 1:
            c.checked.see(rows[0], 1)  # it fails somewhere within a batch
            unavailable()
        return of_rows(c, rows)

    monkeypatch.setattr(computation, "of_rows", one_at_a_time)
    return asked


def test_a_false_claim_stands_where_its_rows_cannot_be_examined_and_no_further_program_is_run(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tiny_run.honest()
    file = tiny_run.read(made)
    half = len(file.samples) // 2
    monkeypatch.setattr(reward, "LONG_SECONDS", -1.0)
    monkeypatch.setattr(reward, "_INEXACT_AT_ONCE", half)
    broken_but_for_drawn_rows(monkeypatch)

    def lying(row: int) -> tuple[Candidate, list[int]]:
        true = file.samples[row]
        lie = replace(true, task_reward=true.task_reward + 0.5, reward=true.reward + 0.5)
        candidate, scored = counted(tiny_run.rewrite(made, with_sample(file, row, lie)))
        return replace(candidate, plan=ONLY), scored

    candidate, scored = lying(half - 1)
    finding = judge(candidate, INEXACT)
    assert finding is not None
    assert (finding.rule, finding.outcome, len(scored)) == ("reward", Outcome.SOFT, 1)
    assert candidate.checked.samples == 1, "what could not be examined is not counted"
    candidate, scored = lying(half)
    with pytest.raises(Unavailable):
        judge(candidate, INEXACT)
    assert len(scored) == 1
    assert candidate.checked.unexamined == [tuple(range(1, half))]


def test_rows_that_could_not_be_examined_are_no_pass_and_come_before_any_program_next_time(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward, "LONG_SECONDS", -1.0)
    made, rest = tiny_run.honest(), tuple(range(1, tiny_run.spec.samples))
    with monkeypatch.context() as broken:
        asked = broken_but_for_drawn_rows(broken)
        candidate, scored = counted(replace(tiny_run.candidate(made), plan=ONLY))
        with pytest.raises(Unavailable):
            judge(candidate, INEXACT)
        assert candidate.checked.unexamined == [rest]
        again, scored = counted(replace(tiny_run.candidate(made), plan=replace(ONLY, examined=(rest,))))
        with pytest.raises(Unavailable):
            judge(again, INEXACT)
        assert (asked, scored) == ([[0], list(rest)] * 2, [])
    again, scored = counted(replace(tiny_run.candidate(made), plan=replace(ONLY, examined=(rest,))))
    assert judge(again, INEXACT) is None
    assert scored
    assert again.checked.examined == [rest]


@pytest.mark.parametrize("there", [-1.0, 1e9], ids=["slower", "faster"])
def test_a_judgement_made_again_from_its_evidence_does_not_ask_the_clock(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch, there: float
) -> None:
    """The receipt is the same on a machine of any speed, whether rows took long where it was signed or not."""
    edited = an_edited_token(tiny_run)
    at_once = judge(edited)
    assert at_once is not None
    another = replace(ONLY, row=0 if at_once.samples != 1 else 1)
    edited = replace(edited, checked=Checked(), sampled={}, plan=another)
    for here in (-1.0, 1e9):
        found = []
        monkeypatch.setattr(reward, "LONG_SECONDS", here)
        candidate, _ = counted(replace(edited, checked=Checked(), sampled={}))
        found.append(judge(candidate, INEXACT))
        monkeypatch.setattr(reward, "LONG_SECONDS", there)
        plan = replace(another, examined=tuple(candidate.checked.examined), by_clock=False)
        again, _ = counted(replace(edited, checked=Checked(), sampled={}, plan=plan))
        found.append(judge(again, INEXACT))
        assert found[0] == found[1]
        assert again.checked == candidate.checked
        assert (found[0] is not None) == (here < 0)


# ---- what a judgement of some rows names, one in full names too ----------------------------------------------------------


def two_kinds_of_false_rows(run: TinyRun) -> tuple[Candidate, int, int]:
    """Row A: drawn rightly, proofs of a cheaper model. Row B: a token that nobody drew, proofs right."""
    candidate = an_edited_token(run)
    file = run.context.sandbox.read(candidate.path).file
    found = judge(candidate)
    assert found is not None and found.rule == "sampling"
    b = found.samples.bit_length() - 1
    a = next(row for row, sample in enumerate(file.samples) if row != b and len(sample.completion) > 3)
    cheap = SmallerModelEngine("float32")
    cheap.load(run.model)
    sample = file.samples[a]
    hidden_TH = cheap.prefill([(sample.prompt.tolist(), sample.completion.tolist())])[0]
    (proofs,) = toploc.prove([bits(hidden_TH)])
    return run.rewrite(run.honest(), with_sample(file, a, replace(sample, proofs=tuple(proofs)))), a, b


def test_a_row_of_garbage_proofs_does_not_hide_one_that_nobody_drew(tiny_run: TinyRun) -> None:
    """Or second validators and jurors, who judge in full, would name no row that the first has named."""
    candidate, a, b = two_kinds_of_false_rows(tiny_run)
    finding = judge(candidate)
    assert finding is not None
    assert (finding.rule, finding.outcome) == ("computation", Outcome.HARD)
    assert finding.samples == 1 << a | 1 << b


SAMPLES = 8


def judged_by_tables(
    monkeypatch: pytest.MonkeyPatch, tables: dict[str, list[Outcome | None]], drawn: Sequence[int], seconds: float
) -> Finding | None:
    """The real order and the real union; what each rule has against a row is in its table."""

    def of_rows(name: str) -> Any:
        def found(c: Any, rows: Sequence[int]) -> Finding | None:
            for row in rows if name == "computation" else ():
                c.checked.see(row, 1)
            made = ((row, tables[name][row]) for row in rows)
            return worst([Finding(name, of, "", "", f"row {row}", 1 << row) for row, of in made if of is not None])

        return found

    def of_all_rows(name: str) -> Any:
        """As `conversation` and `reward` do: the first hard one, else the first."""
        made = [Finding(name, of, "", "", "", 1 << row) for row, of in enumerate(tables[name]) if of is not None]
        first_hard = next((finding for finding in made if finding.outcome is Outcome.HARD), None)
        return lambda c: first_hard or next(iter(made), None)

    def of_drawn_rows(module: Any) -> Any:
        return lambda c: module.of_rows(c, c.rows)

    rules: dict[str, Any] = {name: lambda c: None for name in RULES}
    for name in ("conversation", "reward"):
        rules[name] = of_all_rows(name)
    for name, module in (("computation", computation), ("sampling", sampling)):
        monkeypatch.setattr(module, "of_rows", of_rows(name))
        rules[name] = of_drawn_rows(module)
    monkeypatch.setattr("node.judging.judge.RULES", rules)
    monkeypatch.setattr(reward, "LONG_SECONDS", seconds)
    monkeypatch.setattr(reward, "_portions", lambda c, rows, most: ([row] for row in rows))
    monkeypatch.setattr(reward, "_Scorer", lambda c: SimpleNamespace(score=lambda rows: [Range(0.0, 0.0)] * len(rows)))
    monkeypatch.setattr(reward, "_compare", lambda c, row, bounds: None)
    monkeypatch.setattr("node.judging.judge.INEXACT", {"reward": reward.check_inexact})
    candidate = SimpleNamespace(
        samples=range(SAMPLES), rows=drawn, checked=Checked(), sampled={}, uncovered=None, is_exact=lambda row: False,
        plan=PrefillPlan(1.0, b""),
    )  # fmt: skip
    return judge(candidate)  # type: ignore[arg-type]


def test_what_a_judgement_of_any_rows_names_one_in_full_names_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of random tables of what rules find in rows: a hard one of drawn rows is hard in full, by the same rows at least; and what
    is not accepted by few is not accepted by all."""
    random, hard, of_both = np.random.default_rng(0), 0, 0
    for _ in range(400):
        weights = {"conversation": (0.98, 0.01, 0.01), "reward": (0.98, 0.01, 0.01)}
        tables = {
            name: [
                [None, Outcome.SOFT, Outcome.HARD][random.choice(3, p=weights.get(name, (0.6, 0.2, 0.2)))]
                for _ in range(SAMPLES)
            ]
            for name in ("conversation", "reward", "computation", "sampling")
        }
        full = judged_by_tables(monkeypatch, tables, range(SAMPLES), 1e9)
        drawn = sorted(random.choice(SAMPLES, size=random.integers(1, SAMPLES), replace=False).tolist())
        for seconds in (-1.0, 1e9):
            some = judged_by_tables(monkeypatch, tables, drawn, seconds)
            assert some is None or full is not None
            if some is not None and some.outcome is Outcome.HARD:
                assert full is not None and full.outcome is Outcome.HARD
                assert some.samples & ~full.samples == 0, (tables, drawn, some, full)
                hard += 1
                of_both += some.rule != full.rule
    assert hard > 100 and of_both > 10


def test_conversations_end_at_the_first_false_one_and_a_long_one_is_examined_before_it_is_believed(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate, _ = counted(tiny_run.candidate(tiny_run.honest()))
    false = Finding("conversation", Outcome.SOFT, "", "", "a reply is another", 1 << 2)
    hard = Finding("sampling", Outcome.HARD, "", "", "nobody drew this", 1 << 1)
    asked, examined = list[int](), list[int]()

    def by_turns(c: Candidate, row: int, sample: Sample) -> Iterator[Finding | None]:
        asked.append(row)
        yield false if row == 2 else None

    def examine(rows: Sequence[int], finding: Finding | None) -> Finding | None:
        examined.extend(rows)
        return hard if 1 in rows else finding

    monkeypatch.setattr(conversation, "_converses", lambda c, sample: True)
    monkeypatch.setattr(conversation, "_by_turns", by_turns)
    assert conversation.check(candidate) is None
    assert (conversation.check_inexact(candidate, examine), asked, examined) == (false, [0, 1, 2], [])
    asked.clear()
    monkeypatch.setattr(conversation, "LONG_SECONDS", -1.0)
    assert (conversation.check_inexact(candidate, examine), asked, examined) == (hard, [0, 1], [0, 1])


class Listening(ScriptedSandbox):
    """Notes of which turns it is asked for the replies."""

    def __init__(self, sandbox: Sandbox, reply: Reply) -> None:
        super().__init__(sandbox, reply)
        self.asked: list[range] = []

    def replies(self, asked: Sequence[Asked], *, held_out: bool = False) -> list[list[ToolResult]]:
        self.asked += [range(one.first, len(one.turns)) for one in asked]
        return super().replies(asked, held_out=held_out)


def talkative(
    run: TinyRun, *, turns: int = 4, reply: Reply = count_characters
) -> tuple[TinyRun, Made, RolloutFile, int]:
    """A run with turns whose environments are not exact, a submission to it, and a row of three turns, which is not the first."""
    run = conversing(run, reply, turns=turns)
    environments = [one.model_copy(update={"exact": False}) for one in run.spec.environments]
    spec = run.spec.model_copy(update={"environments": environments})
    run = replace(run, spec=spec, context=replace(run.context, spec=spec))
    made = run.honest()
    file, honest = run.read(made), run.candidate(made)
    rows = [conversed(run, sample, honest.key(sample), reply=reply) for sample in file.samples]
    row = next(row for row in range(1, len(rows)) if len(rows[row].turns) == 2)
    return run, made, with_sample(file, row, rows[row]), row


def heard(candidate: Candidate, run: TinyRun, reply: Reply = count_characters) -> tuple[Candidate, list[range]]:
    """With an environment that replies so, and the turns that it is asked about."""
    sandbox = Listening(run.context.sandbox, reply)
    candidate = replace(candidate, plan=ONLY, context=replace(candidate.context, sandbox=sandbox))  # type: ignore[arg-type]
    return candidate, sandbox.asked


def test_an_environment_is_asked_turn_by_turn_and_about_none_after_the_first_false_one(tiny_run: TinyRun) -> None:
    """A turn may be a program that never ends, and a row may hold as many as the run allows turns."""
    run, made, file, _ = talkative(tiny_run)
    candidate, asked = heard(run.rewrite(made, file), run)
    assert judge(candidate) is None
    assert {len(one) for one in asked} == {1}
    assert range(2, 3) in asked

    def another_day(said: Sequence[str]) -> ToolResult | None:
        reply = count_characters(said)
        return reply and replace(reply, text="[another] ")

    candidate, asked = heard(run.rewrite(made, file), run, another_day)
    finding = judge(candidate)
    assert finding is not None and (finding.rule, finding.outcome) == ("conversation", Outcome.SOFT)
    assert asked == [range(1)] * len(asked)


def test_a_row_whose_turns_take_long_is_examined_before_the_next_of_them_is_asked_about(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "LONG_SECONDS", -1.0)
    run, made, file, row = talkative(tiny_run)
    logprobs = file.samples[row].logprobs
    assert logprobs is not None
    file = with_sample(file, row, replace(file.samples[row], logprobs=logprobs - 5))
    candidate, asked = heard(run.rewrite(made, file), run)
    finding = judge(candidate)
    assert finding is not None
    assert (finding.rule, finding.outcome, finding.samples) == ("sampling", Outcome.HARD, 1 << row)
    assert asked[-1] == range(1)


def test_a_row_of_more_turns_than_the_run_allows_is_false_and_nobody_is_asked_about_it(tiny_run: TinyRun) -> None:
    run, made, file, row = talkative(tiny_run, turns=2)
    candidate, asked = heard(run.rewrite(made, file), run)
    finding = judge(candidate, CHEAP)
    assert finding is not None
    assert (finding.rule, finding.outcome, finding.samples) == ("tokens", Outcome.HARD, 1 << row)
    assert (finding.measured, finding.threshold, asked) == ("3", "2", [])


@pytest.mark.parametrize("signs", [70, 40], ids=["of one reply", "of both together"])
def test_a_row_that_was_told_more_than_the_run_allows_is_false_and_nobody_is_asked_about_it(
    tiny_run: TinyRun, signs: int
) -> None:
    """It may be longer than any validator has memory for: without a verdict it would be paid."""

    def talks_much(said: Sequence[str]) -> ToolResult | None:
        return ToolResult("1" * signs) if len(said) < 3 else None

    run, made, file, row = talkative(tiny_run, reply=talks_much)
    assert run.spec.sampling.reply_tokens == 64
    candidate, asked = heard(run.rewrite(made, file), run, talks_much)
    finding = judge(candidate, CHEAP)
    assert finding is not None
    assert (finding.rule, finding.outcome, finding.samples) == ("tokens", Outcome.HARD, 1 << row)
    assert (finding.measured, finding.threshold, asked) == (f"{2 * signs}", "64", [])


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB."),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9663676416 bytes."),
    MemoryError(),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["on a GPU", "on the CPU", "of Python"])
def test_an_engine_that_runs_out_of_memory_has_no_program_run_again_in_each_attempt(
    tiny_run: TinyRun, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(reward, "LONG_SECONDS", -1.0)
    monkeypatch.setattr(reward, "_INEXACT_AT_ONCE", 2)
    engine = TorchEngine("float32")
    engine.load(tiny_run.model)
    run, few = replace(tiny_run, engine=engine), [(1,)]
    made, forward = run.honest(), engine._model.base_model.forward
    room = [True]  # for a batch each

    def full(*given: Any, input_ids: torch.Tensor, **named: Any) -> Any:
        if not room:
            raise error
        room.pop()
        return forward(*given, input_ids=input_ids, **named)

    monkeypatch.setattr(engine._model.base_model, "forward", full)
    for planned, ran in (((), 1), (tuple(few), 0)):
        room[:] = [True]
        candidate, scored = counted(replace(run.candidate(made), plan=replace(ONLY, examined=planned)))
        with pytest.raises(Unavailable, match="the engine ran out of memory"):
            judge(candidate, INEXACT)
        assert (candidate.checked.unexamined, candidate.checked.samples, len(scored)) == (few, 1, ran)
    room.clear()
    with pytest.raises(Unavailable, match="the engine ran out of memory"):
        judge(replace(run.candidate(made), plan=ONLY), INEXACT)
