"""A screen of sections that always fits its terminal: no row wraps, none is pushed out, and each section keeps some rows however small it is.

What does not fit a row ends in "…"; a list that does not fit its section says how much is left out. Drawn anew for the size that the terminal has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text


class Cut(Enum):
    """What goes where rows do not fit."""

    LAST = "the last ones, which matter least"
    COUNTED = "the last ones, and a row says how many"
    OLDEST = "the first ones"


@dataclass(frozen=True)
class Section:
    """`least`: rows that it keeps beside its heading while others can shrink."""

    heading: str
    rows: Sequence[Text]
    least: int = 2
    cut: Cut = Cut.COUNTED

    def fitting(self, room: int) -> list[Text]:
        rows = list(self.rows)
        if len(rows) <= room:
            return rows
        if self.cut == Cut.OLDEST:
            return rows[len(rows) - room :]
        if self.cut == Cut.LAST:
            return rows[:room]
        return [*rows[: max(0, room - 1)], Text(f"… and {len(rows) - room + 1} more", style="dim")][:room]


@dataclass(frozen=True)
class Screen:
    title: Text
    sections: Sequence[Section]

    def lines(self, width: int, height: int) -> list[Text]:
        """At most `height` lines, none wider than `width`."""
        found = [self.title.copy()]
        for section, room in zip(self.sections, heights(self.sections, height - 1), strict=True):
            if room:
                found.append(_heading(section.heading, width))
                found += [row.copy() for row in section.fitting(room - 1)]
        for line in found:
            line.truncate(width, overflow="ellipsis")
        return found[:height]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.size.height
        for line in self.lines(options.max_width, height):
            line.no_wrap, line.end = True, ""
            yield line
            yield Segment.line()


def _heading(words: str, width: int) -> Text:
    return Text(f"{words} ", style="bold").append("─" * max(0, width - len(words) - 1), style="dim")


def heights(sections: Sequence[Section], height: int) -> list[int]:
    """Lines for each section, headings included: what it wants, or less of what wants most."""
    found = [1 + len(section.rows) for section in sections]
    while sum(found) > height:
        over = [lines - 1 - section.least for lines, section in zip(found, sections, strict=True)]
        at = max(range(len(found)), key=lambda place: (over[place], found[place]))
        found[at] -= 1
    return found
