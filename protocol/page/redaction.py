"""What no page shows: the part of an RPC URL that its customer pays with, and where keys lie.

Providers put a key in the user, the path or the query. Host and port of a URL are no secret, and short words of a path (`v2`) are none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from protocol.page.document import PageDocument

HIDDEN = "…"
_LEAST = 8
"""Letters of a word of a path from which on it may be a key."""


class PageSecrets:
    """Takes secrets out of parts of a page, wherever in a text they stand."""

    def __init__(self, urls: Iterable[str], paths: Iterable[Path] = ()) -> None:
        found = {secret for url in urls for secret in _of_url(url)} | {str(path) for path in paths}
        self._written = sorted((json.dumps(secret)[1:-1].encode() for secret in found), key=len, reverse=True)

    def document(self, value: object) -> PageDocument:
        return PageDocument.of(value, without=self._written, instead=json.dumps(HIDDEN)[1:-1].encode())


def _of_url(url: str) -> Iterator[str]:
    parts = urlsplit(url)
    for text in (parts.username, parts.password):
        if text:
            yield from (text, unquote(text))
    words = [word for word in parts.path.split("/") if len(word) >= _LEAST]
    words += [value for _, value in parse_qsl(parts.query) if value]
    if parts.query:
        yield parts.query
    for word in words:
        yield from (word, unquote(word))
