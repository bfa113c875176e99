"""Submissions in lines, one for each node and step: usable is what lies before the first that is missing or not accepted.

Nobody gains by withholding a submission. A line is looked at again only where something in it has changed, and from there on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Key = tuple[str, int]
"""Node and step."""


@dataclass
class _Line:
    submissions: dict[int, bytes] = field(default_factory=dict)
    """By sequence."""
    front: int = 0
    """Sequences before it are usable."""


class SubmissionLines:
    """Not safe to share between threads."""

    def __init__(
        self,
        stands: Callable[[bytes], bool],
        admit: Callable[[bytes], bool],
        withdraw: Callable[[bytes], None],
    ) -> None:
        """`stands`: whether a submission that was admitted still counts; `admit` makes one usable, or says that it is not (what
        it raises ends `settle`, and it is asked again); `withdraw` takes it back."""
        self._stands = stands
        self._admit = admit
        self._withdraw = withdraw
        self._lines: dict[Key, _Line] = {}
        self._places: dict[bytes, tuple[Key, int]] = {}
        self._stirred: dict[Key, int] = {}  # → from which sequence on

    def put(self, node: str, step: int, sequence: int, submission: bytes) -> None:
        """A node has submitted something."""
        self._lines.setdefault((node, step), _Line()).submissions[sequence] = submission
        self._places[submission] = (node, step), sequence
        self.stir(submission)

    def remove(self, submission: bytes) -> None:
        """A reorg took a submission back."""
        if submission in self._places:
            key, sequence = self._places.pop(submission)
            self._cut(self._lines[key], sequence)
            self._lines[key].submissions.pop(sequence, None)

    def stir(self, submission: bytes) -> None:
        """Something was said of a submission."""
        if submission in self._places:
            key, sequence = self._places[submission]
            self._stirred[key] = min(sequence, self._stirred.get(key, sequence))

    def stir_all(self) -> None:
        """Whatever was said may count or not count from now on."""
        self._stirred = dict.fromkeys(self._lines, 0)

    def settle(self) -> None:
        """Brings lines that have changed up to date."""
        while self._stirred:
            key, lowest = next(iter(self._stirred.items()))
            line = self._lines[key]
            for sequence in range(lowest, line.front):
                if not self._stands(line.submissions[sequence]):
                    self._cut(line, sequence)
                    break
            while (submission := line.submissions.get(line.front)) is not None and self._admit(submission):
                line.front += 1
            del self._stirred[key]

    def forget_before(self, step: int) -> None:
        """Drops lines of older versions."""
        for key in [key for key in self._lines if key[1] < step]:
            line = self._lines[key]
            self._cut(line, 0)
            for submission in line.submissions.values():
                del self._places[submission]
            del self._lines[key]
            self._stirred.pop(key, None)

    def _cut(self, line: _Line, sequence: int) -> None:
        """Nothing from here on is usable."""
        for at in range(sequence, line.front):
            self._withdraw(line.submissions[at])
        line.front = min(line.front, sequence)
