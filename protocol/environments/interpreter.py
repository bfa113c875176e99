"""Problems of task files with a Python interpreter at hand: a turn that ends in a block of Python is told what the program printed.

    [[spec.environments]]
    package = "python"
    exact = false

A program is a whole one: it knows nothing of the programs before it, reads an empty stdin, and runs where those of `code` run (programs.py). The
text of the last turn is compared with the answer as task files compare it (answer.py). Never exact: CPU time differs between machines, so
a program that took between a quarter and four times its limit may honestly have been too slow or not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from protocol.environments.blocks import PYTHON
from protocol.environments.code import DOUBT
from protocol.environments.environment import Config
from protocol.environments.programs import IDLE_SECONDS, WALL, ProgramTool, Trial, TrialCase, TrialRun
from protocol.environments.taskfile import TaskFiles
from protocol.rollout import ToolCall, ToolResult

TOOL = "python"
PROGRAM_BYTES_MAX = 1 << 13
_NEARLY = 0.9  # of its time: what a signal ended so late was ended for that
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}\b")
"""Where an object is, as Python writes it. It differs between builds and machines."""
_WRAPPED = """import sys
try:
    exec(compile({program!r}, "program", "exec"), {{"__name__": "__main__"}})
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}"[:500])
    sys.exit(1)
"""


class InterpreterConfig(Config):
    cpu_seconds: int = Field(default=5, ge=1, le=60)
    """For one program."""
    memory_mib: int = Field(default=1024, ge=64, le=8192)
    output_letters: int = Field(default=2000, ge=16, le=4000)
    """Of what a program printed; the rest is cut off."""


class PythonTool(TaskFiles, ProgramTool):
    """Rows of task files; each turn that ends in a block of Python is a call."""

    name = "python"
    version = f"3 on Python {sys.version_info[0]}.{sys.version_info[1]}"
    exact = False
    Config = InterpreterConfig
    reply = ProgramTool.reply

    def call(self, entry: dict[str, Any], turns: Sequence[str], claimed: str | None) -> Trial | None:
        program = _program(turns[-1])
        if program is None:
            return None
        # Who says that it was too slow is right as soon as it takes a quarter of its time; any other claim may need four times of it.
        factor = 1.0 if claimed is None else 1 / DOUBT if claimed == self.too_slow else float(DOUBT)
        return Trial(
            _WRAPPED.format(program=program), (TrialCase("", 4 * self.config.output_letters + 4),),
            cpu=factor * self.config.cpu_seconds, total=factor * self.config.cpu_seconds, wall=factor * self._wall,
            idle=factor * IDLE_SECONDS, memory=self.config.memory_mib << 20, stop=True,
        )  # fmt: skip

    def as_call(self, text: str) -> str | None:
        """Of a program; None where it is too long, or would end its own block."""
        turn = f"```python\n{text}\n```"
        return turn if _program(turn) == f"{text}\n" else None

    def told(self, entry: dict[str, Any], turns: Sequence[str], run: TrialRun, claimed: str | None) -> ToolResult:
        doubt = 1 if claimed is None else DOUBT
        used = max(run.cpu / self.config.cpu_seconds, run.wall / self._wall, run.idle / IDLE_SECONDS)
        may_be_slow = claimed == self.too_slow
        limit = 1 / doubt if may_be_slow else doubt
        text = self.too_slow if used > limit or (run.status < 0 and used > _NEARLY * limit) else self._printed(run)
        return ToolResult(text, (ToolCall(len(turns) - 1, TOOL, _program(turns[-1]) or "", text),))

    @property
    def too_slow(self) -> str:
        return f"It took longer than {self.config.cpu_seconds} s."

    @property
    def _wall(self) -> float:
        return float(WALL * self.config.cpu_seconds + 1)

    def _printed(self, run: TrialRun) -> str:
        text = _ADDRESS.sub(" at 0x0", run.output.decode(errors="replace"))
        if run.is_cut or len(text) > self.config.output_letters:
            return text[: self.config.output_letters] + " (cut)"
        ended = "" if run.status in (0, 1) else "(it was ended)"
        return "\n".join(part for part in (text.rstrip("\n"), ended) if part) or "(nothing was printed)"


def _program(turn: str) -> str | None:
    """The block of Python that a turn ends in."""
    program = PYTHON.program_of(turn, named=True) if turn.rstrip().endswith("```") else None
    return None if program is None or len(program.encode()) > PROGRAM_BYTES_MAX else program
