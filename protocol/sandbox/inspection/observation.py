"""What `murmur env check` says of one thing that it looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHOWN = 3  # names in one sentence


@dataclass(frozen=True)
class Observation:
    """One thing that was looked at. `holds` is None where there was nothing to see."""

    name: str
    holds: bool | None
    detail: str


def some(found: Sequence[str]) -> str:
    """The first of them, and how many more."""
    listed = list(dict.fromkeys(found))
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return "; ".join(listed[:SHOWN]) + more


def shown(text: str) -> str:
    """The beginning of a stranger's text."""
    return repr(text if len(text) < 40 else f"{text[:40]}…")
