"""Strangers' programs, run by a fresh interpreter within bubblewrap, one sandbox for each answer.

The environments' child may start nothing that it could confine, so it asks its parent, and the parent runs them here and interprets
nothing of what they say. `walls.py` is what confines a program, `runner.py` starts sandboxes and takes
answers back, `driver.py` is what runs inside, `idleness.py` measures how long it did nothing, and `survey.py` finds out what this
machine grants.
"""

from protocol.sandbox.programs.runner import Runner

__all__ = ["Runner"]
