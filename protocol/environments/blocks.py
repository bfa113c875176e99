"""Programs in a completion: blocks of code between fences, as CommonMark writes them.

The program is the last closed block of its language after the last </think>, in any case and at any indent; where there is none, the last
that names no language.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_FENCE = re.compile(r"^([ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)*)```([^\n`]*+)\n", re.MULTILINE)
_CLOSED = re.compile(r"^[ \t]*+```[ \t]*+$", re.MULTILINE)
_INDENT_MAX = 64
_HALF = re.compile("[\ud800-\udfff]")
"""Half of a pair, which no file of source text can hold."""


class Blocks:
    """Blocks of one language, by the names that their fences give it."""

    def __init__(self, names: Sequence[str]) -> None:
        """Lower case; the first is what `written` writes."""
        self.names = tuple(names)
        of_language = "|".join(map(re.escape, self.names))
        self._fence = re.compile(
            _FENCE.pattern.replace(r"([^\n`]*+)", rf"[ \t]*+(?:{of_language})[ \t]*+"), re.MULTILINE | re.IGNORECASE
        )

    def written(self, program: str) -> str:
        """A completion that is this program."""
        return f"```{self.names[0]}\n{program}\n```"

    def program_of(self, completion: str, *, named: bool = False) -> str | None:
        """The program of a completion; None where there is none.

        A block that names no language counts where none names this one, for it may as well be an example's output; with `named` it never does.
        """
        text = completion.rpartition("</think>")[2]
        if "<think>" in text:
            return None
        text = text.replace("\r\n", "\n")
        found = plain = None
        position = 0
        while opening := _FENCE.search(text, position):
            language, indent = opening[2].strip().lower(), re.sub(r"\S", " ", opening[1])
            closing = self._end(text, opening.end(), language, min(len(indent), _INDENT_MAX))
            if closing is None:
                break
            block = text[opening.end() : closing.start()]
            position = closing.end()
            if closing.re is self._fence:  # it was never closed
                position = closing.start()
            elif language in self.names:
                found = _outdented(block, indent)
            elif not language and not named:
                plain = _outdented(block, indent)
        found = plain if found is None else found
        return None if found is None or _HALF.search(found) else found

    def _end(self, text: str, begin: int, language: str, deepest: int) -> re.Match[str] | None:
        """What ends a block. One of this language, or of none, may hold fences that stand deeper than its own; one of another ends where one
        of this begins."""
        closing = (
            _CLOSED
            if language and language not in self.names
            else re.compile(rf"^[ \t]{{0,{deepest}}}+```[ \t]*+$", re.MULTILINE)
        )
        closed = closing.search(text, begin)
        begins = (
            None if language in self.names else self._fence.search(text, begin, closed.start() if closed else len(text))
        )
        return begins or closed


def _outdented(block: str, indent: str) -> str:
    """A block of a list's item, without the white space that its fence stands behind."""
    return "".join(line.removeprefix(indent) for line in block.splitlines(keepends=True)) if indent else block


PYTHON = Blocks(("python", "python3", "py"))
