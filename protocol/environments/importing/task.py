"""One problem on its way from a data set to a task file, or the reason why it has no place there."""

from __future__ import annotations

from dataclasses import dataclass

SHOWN = 100
"""Characters of a row that an example shows."""


@dataclass(frozen=True, slots=True)
class Task:
    package: str
    """The environment that scores it: "math", "code" or "parquet"."""
    question: str
    """What the model is asked, instructions included."""
    answer: str
    """As that environment's task files hold it."""
    problem: str
    """The question as the data set has it, without the instructions that we add: what duplicates are found by."""
    tests_left_out: int = 0
    """Tests that a task file has no room for."""
    tests_unusable: int = 0
    """Tests that no program could pass, or that say nothing of one."""


class LeftOut(Exception):
    """A row that is not imported. `reason` is one of few, for counting; `shown` is of the row itself."""

    def __init__(self, reason: str, shown: object = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.shown = excerpt(shown)


def excerpt(value: object) -> str:
    """The beginning of a stranger's value, fit for a terminal: control characters and half letters are written out."""
    text = value if isinstance(value, str) else str(value)[: 4 * SHOWN]
    short = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in short)
