"""Whatever bytes a rollout file has: refused for a named reason, or read as what it says. Nothing else happens to the service.

A case that fails is printed with its seed and number and its file is kept; what was once troublesome goes into
tests/vectors/rollouts, under the name of its trouble.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from swarm.tiny_run import TinyRun

from node.contributor.generation import Made
from node.judging.judge import judge
from protocol.errors import Malformed
from protocol.rollout import RolloutFile, Sample
from tests.hostile.large import memory
from tests.hostile.mutation import Case, Mutator

CORPUS = sorted((Path(__file__).parents[1] / "vectors" / "rollouts").glob("*.parquet"))
READER = 256 << 20  # bytes of memory that a reader of small files may come to hold, its libraries included
SERVICE = 64 << 20  # bytes by which the service may grow over all cases


class Desk:
    """Hands cases to the judge's machinery and says what came of each."""

    def __init__(self, run: TinyRun, folder: Path) -> None:
        self._run, self._folder = run, folder
        self.made: Made = run.honest()
        self.honest: RolloutFile = run.read(self.made)
        self._tolerance = 2 * float(run.spec.verification.sampling.logprob_error.soft)

    def outcome(self, case: Case) -> str:
        """ "refused", "equal", "within limits" or the rule that found something. Raises anything else."""
        path = self._folder / "case.parquet"
        path.write_bytes(case.data)
        root = hashlib.sha256(case.data).digest()
        candidate = self._run.candidate(self.made, path, ref=replace(self.made.ref, root=root))
        try:
            file = candidate.file
        except Malformed:
            return "refused"
        if finding := judge(candidate):
            return finding.rule
        if not same(file, self.honest, logprobs=self._tolerance):
            raise AssertionError("accepted, although it says something else")
        return "equal" if same(file, self.honest) else "within limits"

    def reader(self) -> int:
        process = self._run.context.sandbox._process
        assert process
        return memory(process.pid)["VmHWM"]

    def keep(self, case: Case) -> Path:
        path = self._folder / f"{hashlib.sha256(case.data).hexdigest()[:8]}.parquet"
        path.write_bytes(case.data)
        return path


def same(a: RolloutFile, b: RolloutFile, *, logprobs: float = 0.0) -> bool:
    """Equal contents. With a tolerance, what no token follows from may differ by so much that it means the same: logprobs,
    rewards beyond their sixth digit, and proofs, whose values are compared and not their bytes."""
    return a.header == b.header and all(_same(x, y, logprobs) for x, y in zip(a.samples, b.samples, strict=True))


def _same(x: Sample, y: Sample, tolerance: float) -> bool:
    rewards = [np.array([s.task_reward, s.length_penalty, s.reward]) for s in (x, y)]
    return (
        (x.group, x.sample, x.problem, x.budget) == (y.group, y.sample, y.problem, y.budget)
        and x.prompt.tolist() == y.prompt.tolist()
        and x.completion.tolist() == y.completion.tolist()
        and len(x.logprobs) == len(y.logprobs)
        and bool(np.abs(x.logprobs - y.logprobs).max() <= tolerance)
        and bool(np.abs(rewards[0] - rewards[1]).max() <= (2e-6 if tolerance else 0))
        and ([len(p) for p in x.proofs] == [len(p) for p in y.proofs] if tolerance else x.proofs == y.proofs)
    )


def test_an_honest_file_reads_the_same_however_it_was_written(run: TinyRun, tmp_path: Path) -> None:
    desk = Desk(run, tmp_path)
    mutator = Mutator(pq.read_table(desk.made.path), seed=0)
    found = {case.name: desk.outcome(case) for case in mutator.equal}
    assert {name for name, outcome in found.items() if outcome != "equal"} <= {
        *(name for name in found if "dictionary True" in name),  # refused: what they expand to is not declared
        "delta encodings",
        "no Arrow schema",
        "old format",
    }
    assert set(found.values()) <= {"equal", "refused", "schema"}
    assert Counter(found.values())["equal"] > 15


def test_tables_that_are_no_rollout_file_are_refused_or_reported(run: TinyRun, tmp_path: Path) -> None:
    desk = Desk(run, tmp_path)
    mutator = Mutator(pq.read_table(desk.made.path), seed=0)
    assert len(mutator.other) > 200
    for case in mutator.other:
        assert desk.outcome(case) in ("refused", "schema"), case.name
    assert run.context.sandbox.restarts == 0


def torment(run: TinyRun, folder: Path, *, seed: int, cases: int) -> Counter[str]:
    desk, sandbox = Desk(run, folder), run.context.sandbox
    mutator = Mutator(pq.read_table(desk.made.path), seed)
    for case in mutator.equal:
        desk.outcome(case)
    outcomes: Counter[str] = Counter()
    before = memory()["VmRSS"]
    for number, case in enumerate(mutator.cases(cases)):
        place = f"seed {seed}, case {number} ({case.name})"
        reader = sandbox._process
        try:
            outcome = desk.outcome(case)
        except BaseException as error:
            error.add_note(f"{place}; kept as {desk.keep(case)}")
            raise
        outcomes[outcome] += 1
        if sandbox._process is not reader:
            pytest.fail(f"{place}: its reader ended; kept as {desk.keep(case)}")
    assert desk.reader() < READER
    assert memory()["VmRSS"] - before < SERVICE
    assert outcomes["equal"]
    assert outcomes["refused"] > cases / 2
    return outcomes


def test_a_mutated_file_is_refused_or_judged_and_never_hurts(run: TinyRun, tmp_path: Path) -> None:
    outcomes = torment(run, tmp_path, seed=1, cases=1500)
    assert outcomes.keys() & {"computation", "sampling", "assignment", "tokens"}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 104))
def test_ten_thousand_mutated_files_never_hurt(run: TinyRun, tmp_path: Path, seed: int) -> None:
    print(torment(run, tmp_path, seed=seed, cases=10_000))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_was_once_troublesome_is_refused_at_once(run: TinyRun, path: Path) -> None:
    """By the first reader, which goes on: a file that ends its reader costs a validator seconds."""
    reader = run.context.sandbox._process
    with pytest.raises(Malformed):
        run.context.sandbox.read(path)
    assert run.context.sandbox._process is reader
    assert run.context.sandbox.read(run.honest().path).problem is None


def test_there_is_a_corpus() -> None:
    assert len(CORPUS) >= 5
    assert sum(path.stat().st_size for path in CORPUS) < 300_000
