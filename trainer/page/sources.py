"""What a page reads, and nothing else: the hub's book of the chain, its index of receipts, the trainer's files, and a few looks at the chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.chain import Chain
from protocol.runspec import RunSpec
from trainer.config import Layout


class ReceiptIndex(Protocol):
    """The hub's database as a page reads it (trainer/hub/database.py), over a connection of the page's own."""

    def receipts(self, after: int, most: int) -> list[tuple[int, bytes]]: ...

    def receipts_on(self, submission: bytes) -> list[bytes]: ...

    def stored(self, submission: bytes) -> str | None: ...

    def newest(self, listing: str) -> int: ...

    @property
    def since(self) -> int: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class RelayTally:
    """What the origin has sent to one relay, and of which version last."""

    bytes_sent: int = 0
    step: int | None = None
    of_step: int = 0
    """Bytes of that version."""
    at: float = 0.0
    """Wall time of the last of them."""


@dataclass(frozen=True)
class PageSources:
    """`relays` tells, by address, what the origin knows of the run's relays; `is_busy` whether the hub has better things to do than a
    page; `promised` what validators are owed by voucher so far, in wei; `open_index` connects to the hub's index."""

    chain: Chain
    run: int
    spec: RunSpec
    layout: Layout
    book: Path
    open_index: Callable[[], ReceiptIndex]
    relays: Callable[[], Mapping[str, RelayTally]]
    promised: Callable[[str], int]
    is_busy: Callable[[], bool] = lambda: False
    vouchers: str | None = None
    """Address of the Vouchers contract, where the settings name it."""
