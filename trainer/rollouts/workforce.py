"""What a run's seats may still make of a version of the weights: whether a batch that is not full can still fill.

A seat works on versions published after it was taken, and commits to `max_per_step` submissions of one at most. Where all have,
or came too late, nothing more comes of a version however long one waits: it takes a new version, of the same weights if need be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from trainer.seats import HeldSeat


@dataclass(frozen=True)
class Workforce:
    """Seats that are held, by what they may do for one version that is out."""

    able: int
    """They may commit to more."""
    done: int
    """They have committed to all that the policy allows."""
    young: frozenset[str]
    """Names of those that were taken, or got another key, after the version was published."""
    on_the_way: int
    """Submissions of which a batch may still get groups."""

    @classmethod
    def of(
        cls, seats: Iterable[HeldSeat], block: int, committed: Counter[str], most: int, on_the_way: int
    ) -> Workforce:
        """For a version published in `block`, of which each node has `committed` to so many submissions of at `most`."""
        able, done, young = 0, 0, set[str]()
        for seat in seats:
            if seat.since >= block:
                young.add(seat.name)
            elif committed[seat.node] >= most:
                done += 1
            else:
                able += 1
        return cls(able, done, frozenset(young), on_the_way)

    @property
    def would_work_on_the_next(self) -> bool:
        """Whether a seat waits for the next version."""
        return self.done > 0 or bool(self.young)

    @property
    def is_spent(self) -> bool:
        """Whether nothing more can come of this version."""
        return self.able == 0 and self.on_the_way == 0 and self.would_work_on_the_next

    def __str__(self) -> str:
        reasons = {
            "made all they may of it": self.done, "took their seats after it": len(self.young), "may still work on it": self.able,
        }  # fmt: skip
        return ", ".join(f"{count} {why}" for why, count in reasons.items() if count)
