"""Submissions whose weights nobody keeps any more, and which are not here: this validator cannot judge them, and says so once for all of them.

Whoever takes a seat in a run that has gone on for long finds a window full of them. They bind nobody: a validator answers for what it signed, and a
juror who cannot judge abstains. One that was seated before the work should have held the weights, so it warns.
"""

from __future__ import annotations

import logging

log = logging.getLogger("validator")


class LeftAlone:
    def __init__(self) -> None:
        self._steps: list[int] = []
        self._ours = 0

    def note(self, step: int, *, is_ours: bool) -> None:
        """A submission to this version was left unjudged; `is_ours`: it was this validator's to judge."""
        self._steps.append(step)
        self._ours += is_ours

    def tell(self) -> None:
        """One line on all since the last."""
        if not self._steps:
            return
        first, last, many = min(self._steps), max(self._steps), len(self._steps)
        versions = f"version {first}" if first == last else f"versions {first} to {last}"
        log.log(
            logging.WARNING if self._ours else logging.INFO,
            "%d %s cannot be judged here and %s left alone: nobody keeps %s of the weights any more%s",
            many, "submission" if many == 1 else "submissions", "is" if many == 1 else "are", versions,
            f"; {self._ours} of them came while this validator had its seat" if self._ours else "",
        )  # fmt: skip
        self._steps.clear()
        self._ours = 0
