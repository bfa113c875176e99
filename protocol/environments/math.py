"""Problems of mathematics from task files; the answer is compared by what it says, not by its letters.

    [[spec.environments]]
    package = "math"
    exact = false

Files are those of taskfile.py, and so are which rows are training problems. A completion's final answer is found, both answers are
brought into one notation, parsed, and compared exactly or to many digits (maths/). What our grammar cannot read is put to
math-verify. Never exact: an answer that takes longer than its deadline of CPU time earns 0, and machines may differ there.
"""

from __future__ import annotations

from typing import Any

from protocol.environments.environment import Grants
from protocol.environments.maths import grade
from protocol.environments.taskfile import TaskFiles


class Maths(TaskFiles):
    """The rows of task files, scored 1 for an answer that is equal to the reference."""

    name = "math"
    version = "2"
    exact = False
    grants = Grants(seconds=300.0)
    """As many answers at the deadline as one submission may hold at most, or nearly."""

    def score(self, entry: dict[str, Any], completion: str) -> float:
        return float(grade.is_right(completion, entry["answer"]))
