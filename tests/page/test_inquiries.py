"""Questions about one thing of many, which a page asks in threads of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from protocol.errors import Unavailable
from protocol.page.inquiries import PageInquiries


def test_what_waits_for_a_thread_when_the_page_ends_is_not_asked() -> None:
    """Python waits for the threads of a pool before it ends: with a chain that hangs, a queue of questions took minutes."""
    inquiries, gate, begun = PageInquiries(), threading.Event(), threading.Semaphore(0)
    answered: list[int] = []

    def answer(number: int) -> dict[str, Any]:
        begun.release()
        gate.wait(20)
        answered.append(number)
        return {}

    async def ask_all() -> None:
        asked = [asyncio.ensure_future(inquiries.ask(n, "", lambda n=n: answer(n))) for n in range(8)]  # type: ignore[misc]
        for _ in range(2):
            await asyncio.to_thread(begun.acquire, timeout=20)
        inquiries.close()
        gate.set()
        await asyncio.gather(*asked, return_exceptions=True)
        with pytest.raises(Unavailable):
            await inquiries.ask(9, "", lambda: {})

    asyncio.run(ask_all())
    assert len(answered) == 2
