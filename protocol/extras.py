"""How what only some need is installed: an extra of pyproject.toml, into a clone's environment or into one made from a release."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, distribution


def how_to_install(extra: str) -> str:
    """A hint, as it is to be typed."""
    if _is_clone():
        return f"in the clone: {sys.executable} -m pip install -e '.[{extra}]'"
    return f"in the release's folder: sh install --extra {extra} {sys.prefix}"


def _is_clone() -> bool:
    """Whether this runs from the sources: not installed, or installed so that an edit counts."""
    try:
        origin = distribution("murmuration").read_text("direct_url.json")
    except PackageNotFoundError:
        return True
    return origin is not None and bool(json.loads(origin).get("dir_info", {}).get("editable"))
