"""Whether a reference can be given as an answer at all: the environment must score \\boxed{reference} as right.

Nearly every reference is, as one text; those that are not are put to the grammar of mathematics, so many of a file and no more: each may take
seconds. A worked solution in place of an answer is found by its lines of prose: who solves the problem does not write it again.
"""

from __future__ import annotations

import re

from protocol.environments import answer as plain_answer
from protocol.environments.importing.task import LeftOut, Task
from protocol.environments.maths import final, grade

LOOKS = 100
"""References of a file that are compared by more than their text."""
_PROSE_WORDS = 12
_PROSE = re.compile(r"(?<![\\\\A-Za-z])[A-Za-z]{3,}")


class References:
    """Of one file."""

    def __init__(self) -> None:
        self._looks = LOOKS

    def require(self, task: Task) -> None:
        """Raises LeftOut for a reference that no answer is equal to. Tests of programs are looked at where they are read."""
        if task.package == "code":
            return
        reference = task.answer
        if "\n" in reference and len(_PROSE.findall(reference)) >= _PROSE_WORDS:
            raise LeftOut("a worked solution in place of an answer", reference)
        boxed = f"\\boxed{{{reference}}}"
        if not (
            plain_answer.is_right(boxed, reference) if task.package == "parquet" else self._is_right(boxed, reference)
        ):
            raise LeftOut("an answer that is not right itself", reference)

    def _is_right(self, boxed: str, reference: str) -> bool:
        found = final.said(boxed)
        if found is not None and grade.same_text(found, final.of_reference(reference)):
            return True
        if not self._looks:
            return True
        self._looks -= 1
        return grade.is_right(boxed, reference)
