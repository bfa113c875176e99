"""What every kind of environment provides."""

from __future__ import annotations

from typing import Any, Protocol


class Source(Protocol):
    """One environment, as its adapter provides it."""

    def entry(self, index: int) -> Any: ...

    def prompt(self, entry: Any) -> str: ...

    def score(self, entry: Any, completion: str | None) -> float: ...
