"""Questions about one thing of many: read when they are asked, by two threads, and kept until something new is shown."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from protocol.errors import Unavailable
from protocol.page.document import PageDocument

WAITING_MAX = 32
"""Questions at once; more are refused."""
_KEPT = 256
_THREADS = 2

Answer = Callable[[], dict[str, Any] | None]


class PageInquiries:
    """For one event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "page")
        self._asked = 0
        self._answers: OrderedDict[Hashable, tuple[str, PageDocument | None]] = OrderedDict()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    async def ask(self, question: Hashable, mark: str, answer: Answer) -> PageDocument | None:
        """What `answer` gives, in a thread of this room; of one `mark` it is asked once. Raises Unavailable where too many ask."""
        kept = self._answers.get(question)
        if kept is not None and kept[0] == mark:
            return kept[1]
        if self._asked >= WAITING_MAX:
            raise Unavailable("the page has too much to do; try again")
        self._asked += 1
        try:
            made = await asyncio.get_running_loop().run_in_executor(self._pool, _made, answer)
        finally:
            self._asked -= 1
        self._answers[question] = mark, made
        self._answers.move_to_end(question)
        while len(self._answers) > _KEPT:
            self._answers.popitem(last=False)
        return made


def _made(answer: Answer) -> PageDocument | None:
    found = answer()
    return None if found is None else PageDocument.of(found)
