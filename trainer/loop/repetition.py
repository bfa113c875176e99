"""How often the same weights become another version, while one batch is waited for.

Each costs a step of the run, and the work on it its wages. And a stranger with one seat, which takes another key after each version and so
may work on none, would have them made for nothing, until no step is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer.rollouts.workforce import Workforce


@dataclass
class Repetition:
    """Publishing the weights again, while one batch is waited for. A seat that takes another key each time is no other seat."""

    most: int
    """In a row, while the batch has not more groups than it ever had."""
    version: int | None = None
    """That the weights were published as last, before the present one; None: they were published once."""
    since: float = 0.0
    """When the present version was first seen to be out, in monotonic seconds."""
    _out: int | None = None
    _groups: int = 0
    _in_a_row: int = 0
    _known: set[str] = field(default_factory=set)
    """Names of seats that were waited for."""

    def look(self, step: int, groups: int, seats: Workforce | None, now: float) -> None:
        if groups > self._groups:
            self._groups, self._in_a_row = groups, 0
        if seats is not None and self._out != step:
            self._out, self.since = step, now

    def may(self, seats: Workforce, *, is_due: bool) -> bool:
        """`is_due`: nothing has come for so long that others than those who may work are thought of."""
        is_first = self._in_a_row == 0 and seats.is_spent
        has_newcomer = bool(seats.young - self._known)
        return is_first or (is_due and (has_newcomer or (self._in_a_row < self.most and seats.would_work_on_the_next)))

    def note(self, version: int, seats: Workforce) -> None:
        self.version = version
        self._in_a_row += 1
        self._known |= seats.young
