"""Questions about one thing of many: read when they are asked, by two threads, once for all who ask the same, and kept for a while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from protocol.errors import Unavailable
from protocol.page.document import PageDocument

WAITING_MAX = 32
"""Different questions at once; more are refused."""
_KEPT = 256
_THREADS = 2

Answer = Callable[[], dict[str, Any] | None]


class PageInquiries:
    """For one event loop at a time."""

    def __init__(self, document: Callable[[dict[str, Any]], PageDocument] = PageDocument.of) -> None:
        """`document` makes an answer ready for browsers."""
        self._document = document
        self._pool = ThreadPoolExecutor(_THREADS, "page")
        self._is_closed = False
        self._asked: dict[tuple[Hashable, str], Future[PageDocument | None]] = {}
        self._answers: OrderedDict[Hashable, tuple[str, PageDocument | None]] = OrderedDict()

    def close(self) -> None:
        """Nothing more is asked: what waits for a thread is given up, or the process would answer all of it before it ends."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def ask(self, question: Hashable, mark: str, answer: Answer) -> PageDocument | None:
        """What `answer` gives, in a thread of this room; of one `mark` it is asked once. Raises Unavailable where too much is asked."""
        kept = self._answers.get(question)
        if kept is not None and kept[0] == mark:
            return kept[1]
        asked = self._asked.get((question, mark))
        if asked is None:
            if len(self._asked) >= WAITING_MAX or self._is_closed:
                raise Unavailable("the page has too much to do; try again")
            asked = self._asked[question, mark] = self._pool.submit(self._made, answer)
            asked.add_done_callback(lambda _: self._asked.pop((question, mark)))
        made = await asyncio.shield(asyncio.wrap_future(asked))  # who leaves takes nothing from others who wait for it
        self._answers[question] = mark, made
        self._answers.move_to_end(question)
        while len(self._answers) > _KEPT:
            self._answers.popitem(last=False)
        return made

    def _made(self, answer: Answer) -> PageDocument | None:
        found = answer()
        return None if found is None else self._document(found)
