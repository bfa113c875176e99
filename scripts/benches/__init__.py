"""Benchmarks, one module each: `run() -> Bench`. Add a module and name it in `__main__.py`.

Ours and the peer do the same work, in turns, in one run; what counts is the ratio, for these machines are noisy. A peer
that is not a dependency of ours is installed into an environment of its own, never into the project's.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """`ours` and `peer` in `unit`; `ratio` and `goal` are such that more is better. What has no peer or goal holds None."""

    name: str
    unit: str
    ours: float
    peer: float | None
    ratio: float | None
    goal: float | None

    @property
    def met(self) -> bool | None:
        """None where nothing was promised."""
        return None if self.goal is None else self.ratio is not None and self.ratio >= self.goal

    @property
    def remark(self) -> str:
        """What else a reader of the line is told; the JSON has it in fields."""
        return ""


@dataclass(frozen=True)
class Cost(Row):
    """Less is better: `goal` is the most that `ours` may be; `ratio` says how many times as much the peer needs."""

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.ours <= self.goal


@dataclass
class Bench:
    bench: str
    rows: list[Row] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        machine = (
            f"{platform.machine()} {platform.system()}, {platform.python_implementation()} {platform.python_version()}"
        )
        return {"bench": self.bench, "machine": machine, "rows": [{**asdict(row), "met": row.met} for row in self.rows]}


def in_turns(ours: Callable[[], float], peer: Callable[[], float], rounds: int = 5) -> tuple[float, float]:
    """Work per CPU second of both, run alternately; each callable returns how much work it did. The best round counts."""
    best = [0.0, 0.0]
    for _ in range(rounds):
        for i, call in enumerate((ours, peer)):
            started = time.process_time()
            done = call()
            best[i] = max(best[i], done / (time.process_time() - started))
    return best[0], best[1]
