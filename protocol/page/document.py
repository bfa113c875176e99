"""A part of a page, as it goes to browsers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PageDocument:
    """JSON, and what names this very text."""

    body: bytes
    tag: str

    @classmethod
    def of(cls, value: Any) -> PageDocument:
        body = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
        return cls(body, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
