"""Between machines of one build nothing at all may differ; between others the run's limits hold as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cheats.scene import PAPER_LR, train
from swarm.tiny_run import TinyRun

from node.engine import EngineSettings
from node.engine.degrade import DEGRADATIONS
from node.engine.torch_engine import TorchEngine
from node.judging.equipment import Equipment, Unfit
from node.judging.judge import judge
from node.judging.rules import RULES
from protocol import runspec
from protocol.errors import ConfigError, Malformed
from protocol.rollout import Header
from protocol.verdict import Finding, Outcome
from tests.node.tampered import an_edited_token

Worsen = Callable[[TinyRun, Path], None]


@pytest.fixture(scope="module")
def run(tiny_run: TinyRun) -> TinyRun:
    return tiny_run.with_bits()


def worker_of(run: TinyRun) -> TinyRun:
    """The same run on another machine of the same build."""
    return run.with_bits()


def found(run: TinyRun, worker: TinyRun, sequence: int = 0) -> Finding | None:
    """What a validator has against a worker's submission."""
    return judge(run.candidate(worker.honest(sequence=sequence)))


def int8(worker: TinyRun, _: Path) -> None:
    worker.engine.degrade(DEGRADATIONS["int8"])


def the_step_before(worker: TinyRun, folder: Path) -> None:
    """Weights that are one optimizer step at the paper's learning rate away from the published ones."""
    other = train(worker, worker.model, folder, [1], PAPER_LR)[0]
    worker.engine.load(other)
    theirs = {name: tensor.clone() for name, tensor in worker.engine._model.named_parameters()}
    worker.engine.load(worker.model)
    changed = sum(int((theirs[name] != own).sum()) for name, own in worker.engine._model.named_parameters())
    assert 0 < changed < 0.05 * sum(own.numel() for own in theirs.values())  # a few numbers in a hundred
    worker.engine.load(other)


def test_honest_work_of_the_same_build_is_the_same_bit_by_bit(run: TinyRun) -> None:
    worker = worker_of(run)
    for sequence in range(3):
        worker.engine._rows_most = 1 + sequence  # other batches
        candidate = run.candidate(worker.honest(sequence=sequence))
        assert candidate.is_bitwise
        assert judge(candidate) is None


@pytest.mark.parametrize(("worsen", "rules"), [(int8, {"computation"}), (the_step_before, {"sampling", "computation"})])
def test_a_little_less_than_the_published_weights_is_found_at_the_first_submission(
    run: TinyRun, worsen: Worsen, rules: set[str], tmp_path: Path
) -> None:
    """A step's weights mostly by their logprobs alone: proofs are of states in bfloat16, most of which are the same, and one that differs is seen first."""
    worker = worker_of(run)
    worsen(worker, tmp_path)
    finding = found(run, worker)
    assert finding is not None
    assert finding.rule in rules
    assert (finding.outcome, finding.measured) == (Outcome.SOFT, "other bits")
    assert "in one build" in finding.detail

    theirs = replace(worker, engine=Elsewhere.holding(worker))
    candidate = run.candidate(theirs.honest())
    assert not candidate.is_bitwise
    by_limits = judge(candidate)
    assert by_limits is None or (worsen, by_limits.rule) == (
        int8,
        "sampling",
    )  # of int8 one logprob is off by more than the run allows
    assert candidate.checked.other_build == Elsewhere.build


class Elsewhere(TorchEngine):
    """One that names another machine's build."""

    build = "torch 0, of another machine"  # type: ignore[assignment]

    @classmethod
    def holding(cls, worker: TinyRun) -> Elsewhere:
        """With the weights that a worker's engine holds."""
        engine = cls("float32", EngineSettings(device="cpu", batch_invariant=True))
        engine.load(worker.model)
        for own, other in zip(engine._model.parameters(), worker.engine._model.parameters(), strict=True):
            with torch.no_grad():
                own.copy_(other)
        return engine


def test_honest_work_of_another_build_is_accepted(run: TinyRun) -> None:
    assert found(run, replace(run, engine=Elsewhere.holding(run))) is None


def test_what_is_hard_stays_hard(run: TinyRun) -> None:
    finding = judge(an_edited_token(worker_of(run)))
    assert finding is not None
    assert (finding.rule, finding.outcome) == ("sampling", Outcome.HARD)


def test_who_lies_about_the_build_is_compared_with_it(run: TinyRun, tiny_run: TinyRun) -> None:
    """Honest work in shapes of its own, under the name of a build that does not compute so."""

    class Liar(TorchEngine):
        build = run.engine.build  # type: ignore[assignment]

    liar = Liar("float32", EngineSettings(device="cpu"))
    liar.load(run.model)
    finding = found(run, replace(run, engine=liar))
    assert finding is not None
    assert finding.outcome == Outcome.SOFT


def test_a_file_names_a_build_only_where_the_run_asks(run: TinyRun, tiny_run: TinyRun) -> None:
    assert run.read(run.honest()).header.build == run.engine.build
    header = tiny_run.read(tiny_run.honest()).header
    assert header.build == ""
    assert b"build" not in header.encode()
    named = replace(header, build="a build")
    assert Header.parse(named.encode()) == named
    for odd in ("", "two\nlines", "x" * 257, "\u00fc"):
        with pytest.raises(Malformed):
            Header.parse(named.encode().replace(b'"a build"', json.dumps(odd, ensure_ascii=False).encode()))


def test_a_run_that_compares_bits_computes_in_fixed_shapes(tiny_run: TinyRun) -> None:
    table = tiny_run.spec.model_dump()
    table["verification"]["bitwise"] = {}
    with pytest.raises(ConfigError, match=r"takes model\.batch_invariant"):
        runspec.from_table(table)
    table["model"]["batch_invariant"] = True
    spec = runspec.from_table(table)
    assert runspec.from_canonical(spec.canonical()) == spec
    assert b"bitwise" not in tiny_run.spec.canonical()


def test_a_worker_of_a_build_that_the_run_does_not_take_makes_no_work(run: TinyRun) -> None:
    other = run.with_bits(Elsewhere.build)  # type: ignore[arg-type]
    with (
        Equipment(
            other.spec, other.context.domain, 1, lambda _: other.engine, lambda: other.model, generates=True
        ) as own,
        pytest.raises(Unfit, match="takes work of"),
    ):
        own.load(other.model)
    with Equipment(other.spec, other.context.domain, 1, lambda _: other.engine, lambda: other.model) as judging:
        judging.load(other.model)


def test_bits_count_for_computation_and_sampling_each(run: TinyRun) -> None:
    worker = worker_of(run)
    int8(worker, Path())
    candidate = run.candidate(worker.honest())
    rules = [name for name in RULES if name != "computation"]
    finding = judge(candidate, rules)
    assert finding is not None
    assert (finding.rule, finding.measured) == ("sampling", "other bits")
