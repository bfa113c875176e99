"""What the demo's model is asked: three kinds of tasks in one run, each scored by another environment.

    reasoning-gym   small matrices, turned and unrolled; what the model must learn
    math            sums of fractions, compared by value
    code            programs of one line, run against tests; only where this machine can confine them

Tasks of the last two are rows of task files, written here on the spot. Problems are drawn evenly from all of a run, so the
sizes are the mixture. Few are of code: each answer costs an interpreter wherever it is scored.
"""

from __future__ import annotations

import json
import operator
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.environments import taskfile
from protocol.errors import PreflightError
from protocol.sandbox.programs import survey
from trainer.presets import demo
from trainer.rollouts.counts import names_of

FIRST = "reasoning-gym"
"""The kind that must be learned."""
_MATRICES = 1000  # training problems of each data set of the first kind
_HELD_OUT = {"math": 40, "code": 24}
_WORDS = {"plus": ("+", operator.add), "minus": ("-", operator.sub), "times": ("*", operator.mul)}
_INPUTS = (2, 11)

Table = dict[str, Any]


@dataclass(frozen=True)
class Mixture:
    environments: tuple[Table, ...]
    """As [[spec.environments]] has them; paths of files are as seen from the folder that `write` was given."""
    left_out: str = ""
    """Why there is no code among them, and how to get it."""


def write(folder: Path) -> Mixture:
    """The demo's, with its task files in `folder`."""
    tables = [table | {"size": _MATRICES} for table in demo()["spec"]["environments"]]
    tables.append(_from_rows("math", "fractions", _fractions(), folder))
    try:
        survey.require()
    except PreflightError as error:
        return Mixture(tuple(tables), f"{error}: the model learns without `code`. To have it: {error.hint}")
    return Mixture((*tables, _from_rows("code", "programs", _programs(), folder)))


def kinds(environments: Sequence[Table]) -> dict[str, str]:
    """The package of each environment, by the name that the trainer gives it."""
    names = names_of(str(table["dataset"]) for table in environments)
    return dict(zip(names, (str(table.get("package", FIRST)) for table in environments), strict=True))


def _from_rows(package: str, dataset: str, rows: Iterator[tuple[str, str]], folder: Path) -> Table:
    shuffled, held_out = list(rows), _HELD_OUT[package]
    random.Random(0).shuffle(shuffled)
    taskfile.write(shuffled, folder / f"{dataset}.parquet")
    return {
        "package": package, "dataset": dataset, "files": [f"{dataset}.parquet"], "exact": False,
        "size": len(shuffled) - held_out, "held_out_size": held_out,
    }  # fmt: skip


def _fractions() -> Iterator[tuple[str, str]]:
    for below in range(2, 10):
        for first in range(1, 6):
            for second in range(1, 6):
                yield f"What is {first}/{below} + {second}/{below}?", f"{first + second}/{below}"


def _programs() -> Iterator[tuple[str, str]]:
    for word, (sign, compute) in _WORDS.items():
        for number in range(2, 51):
            tests = [
                {"type": "stdin_stdout", "input": f"{one}\n", "output": f"{compute(one, number)}\n"} for one in _INPUTS
            ]
            answer = {"solution": f"print(int(input()){sign}{number})", "test_cases": tests}
            yield f"Write a Python program that reads a number and prints it {word} {number}.", json.dumps(answer)
