"""A part of a page, as it goes to browsers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PageDocument:
    """JSON, and what names this very text."""

    body: bytes
    tag: str

    @classmethod
    def of(cls, value: Any, *, without: Sequence[bytes] = (), instead: bytes = b"") -> PageDocument:
        """Each of `without`, as JSON has it within a string, is replaced by `instead`."""
        body = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
        for text in without:
            body = body.replace(text, instead)
        return cls(body, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
