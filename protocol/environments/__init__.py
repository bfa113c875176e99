"""Environments: where problems come from and how an answer is scored.

`tasks.py` holds what the rest of the system sees: problems by index, held-out problems, scores. `reasoning.py` adapts the
package reasoning-gym, `taskfile.py` files of problems, whose answers `answer.py` compares; `source.py` is what they have in
common, and another kind of environment one more adapter beside them. `selection.py` keeps some problems of any of them;
`assignment.py` derives which of them a submission is about.
"""

from protocol.environments.tasks import Problem, TaskSet

__all__ = ["Problem", "TaskSet"]
