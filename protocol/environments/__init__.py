"""Environments: where problems come from and how an answer is scored.

`environment.py` is what each provides and `registry.py` how it is found; `reasoning.py` adapts the package reasoning-gym,
`taskfile.py` files of problems, whose answers `answer.py` compares; `math.py` compares them by what they say (maths/), and
`code.py` has programs tested, which `blocks.py` finds in completions; `calculator.py`, `interpreter.py` and `retrieval.py` reply to turns, the last by `bm25.py`. `content.py` is the digest of an
installed package, which a spec pins.
`tasksets/` plays tasksets of the package verifiers. `importing/` makes task files of published data sets; `selection.py` keeps some problems of any environment. `problems.py` draws a
run's problems, in the sandbox's child, each as in a fresh process (`process_state.py`) and from characters that every Python knows (`unicode.py`); `tasks.py` is how everybody else sees them, and `assignment.py` derives which of them a
submission is about. `programs.py` is how one scores programs that it does not run itself.
"""

from protocol.environments.environment import Config, Environment, Grants
from protocol.environments.problems import Problem
from protocol.environments.tasks import Grader, Tasks, TaskSet

__all__ = ["Config", "Environment", "Grader", "Grants", "Problem", "TaskSet", "Tasks"]
