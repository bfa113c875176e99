"""assignment: prompts, problems, budgets and group sizes are exactly the derived ones, complete and in order. Hard."""

from __future__ import annotations

from node.judging.candidate import Candidate
from protocol.verdict import Finding, Outcome


def check(c: Candidate) -> Finding | None:
    size = c.spec.sampling.group_size
    for row, sample in enumerate(c.samples):
        group = c.assigned[row // size]
        place = (row // size, row % size, group.problem.index, group.budget)
        found = (sample.group, sample.sample, sample.problem, sample.budget)
        if found != place:
            return _finding(found, place, row, "(group, sample, problem, budget)")
        prompt = c.tokenizer.prompt(c.spec, group.problem, group.budget)
        if sample.prompt.tolist() != prompt:
            return _finding(f"{len(sample.prompt)} tokens", f"{len(prompt)} tokens", row, "the prompt is another")
    return None


def _finding(measured: object, threshold: object, row: int, detail: str) -> Finding:
    return Finding("assignment", Outcome.HARD, str(measured), str(threshold), f"row {row}: {detail}", 1 << row)
