"""What a schedule keeps account of: tasks under way, and what all fetches have come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocol.shardcast.source import Source


@dataclass
class Statistics:
    """What a client's fetches have come to so far. `failovers` counts tasks that broke off and went back."""

    bytes_from: Counter[str] = field(default_factory=Counter)
    bad_chunks: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    failovers: int = 0
    resumed_chunks: int = 0


@dataclass(eq=False)
class FetchTask:
    """Chunks to be asked of one source in one request. `moved` is when it last made progress."""

    source: Source
    chunks: Sequence[int]
    moved: float
    done: int = 0
    cut: Callable[[], None] = lambda: None
    """Ends the request that is under way, from any thread."""
    is_cut: bool = False
