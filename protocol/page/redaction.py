"""What no page shows: the part of an RPC URL that its customer pays with, and where keys lie.

Providers put a key in the user, the path or the query. Host and port of a URL are no secret, and short words of a path (`v2`) are none. A short
user, password or value (`?v=1`) is hidden where it stands as in the URL, and not in every text that has a 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

from protocol.page.document import PageDocument

HIDDEN = "…"
_LEAST = 8
"""Letters of a word from which on it may be a key, and is hidden wherever it stands."""


class PageSecrets:
    """Takes secrets out of the texts of a value, wherever they stand; keys of objects, numbers and literals stay."""

    def __init__(self, urls: Iterable[str], paths: Iterable[Path] = ()) -> None:
        found = {pattern for url in urls for pattern in _of_url(url)} | {re.escape(str(path)) for path in paths}
        self._found = re.compile("|".join(sorted(found, key=len, reverse=True))) if found else None

    def document(self, value: object) -> PageDocument:
        return PageDocument.of(self._without(value))

    def text(self, text: str) -> str:
        return str(self._without(text))

    def _without(self, value: Any) -> Any:
        if self._found is None:
            return value
        if isinstance(value, str):
            return self._found.sub(HIDDEN, value)
        if isinstance(value, dict):
            return {name: self._without(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._without(one) for one in value]
        return value


def _of_url(url: str) -> Iterator[str]:
    """Regular expressions of what is hidden."""
    parts = urlsplit(url)
    user, has_user, _ = parts.netloc.rpartition("@")
    if has_user:
        yield from (rf"(?<!\w){re.escape(text)}(?=@)" for text in _written(user))
    for word in (parts.username, parts.password, *parts.path.split("/")):
        yield from _anywhere(word or "")
    for pair in parts.query.split("&"):
        name, has_value, value = pair.partition("=")
        yield from _anywhere(value if has_value else name)
        if value:
            yield from (rf"(?<=(?<!\w){re.escape(name)}=){re.escape(text)}(?!\w)" for text in _written(value))


def _anywhere(word: str) -> Iterator[str]:
    for text in _written(word):
        if len(text) >= _LEAST:
            yield rf"(?<!\d){text}(?!\d)" if text.isdecimal() else re.escape(text)


def _written(text: str) -> set[str]:
    """As it may stand in a text; never empty."""
    return {text, unquote(text), unquote_plus(text)} - {""}
