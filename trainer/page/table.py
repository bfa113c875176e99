"""The table of nodes: sorted, searched and cut into pages here, so that a browser never holds a thousand rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = (
    "address", "class", "state", "stake", "submissions", "tokens", "accepted", "soft", "hard", "pending", "step", "last",
    "paid", "slashed",
)  # fmt: skip
PAGE_MAX = 100
_AMOUNTS = ("stake", "paid", "slashed")  # wei, as text


def page_of(
    rows: Sequence[Mapping[str, Any]], sort: str, downwards: bool, find: str, offset: int, limit: int
) -> dict[str, Any]:
    """A page of those whose address holds `find`; rows that say nothing of the column come last either way."""
    wanted = find.lower()
    found = [row for row in rows if wanted in row["address"].lower()]
    known = [row for row in found if row[sort] is not None]
    known.sort(key=lambda row: row["address"])
    known.sort(key=lambda row: int(row[sort]) if sort in _AMOUNTS else row[sort], reverse=downwards)
    ordered = known + [row for row in found if row[sort] is None]
    return {"total": len(found), "offset": offset, "rows": ordered[offset : offset + limit]}
