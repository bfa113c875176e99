"""To whom a page is shown. Imports nothing heavy: settings of roles come by here."""

from __future__ import annotations

from typing import Literal

PageFor = Literal["local", "public", "off"]
"""Browsers on this machine, everybody, or nobody."""
