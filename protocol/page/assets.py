"""The files of pages: written by hand but for uPlot, read once, and served as they are. Nothing is fetched from elsewhere.

uPlot 1.6.32 (MIT, https://github.com/leeoniya/uPlot), from its npm package: uPlot.iife.min.js, uPlot.min.css, and its licence as
uPlot.LICENSE. `VENDORED` has their SHA-256; a test compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SHARED = Path(__file__).parent / "static"
"""What every page has."""
VENDORED = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml", ".LICENSE": "text/plain; charset=utf-8",
}  # fmt: skip
_BASE = b"{base}"


@dataclass(frozen=True)
class Asset:
    body: bytes
    tag: str
    media_type: str


def read_assets(own: Path, base: str) -> Mapping[str, Asset]:
    """By name: those of every page and those of the folder `own`. A page's HTML learns under which path it is served."""
    found = {}
    for path in (*sorted(SHARED.iterdir()), *sorted(own.iterdir())):
        body = path.read_bytes()
        if path.suffix == ".html":
            body = body.replace(_BASE, base.encode())
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        found[path.name] = Asset(body, tag, _MEDIA_TYPES[path.suffix])
    return found
