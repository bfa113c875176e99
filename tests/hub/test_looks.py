"""What strangers cost: the hub answers from its book, and however many ask for what is not in it, it looks only so often."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from swarm.anvil import Anvil

from protocol.errors import MurmurationError, RpcUnavailable
from protocol.hub.wire import TryAgain, sign_write
from protocol.identity import Key
from tests.clock import VirtualClock
from tests.hub.desk import Desk, open_desk, some_file
from trainer.hub.hub import Signed

STRANGERS = 2000
LOOKS = 20
WAIT = 60 / LOOKS
"""Seconds until there may be another look, at most."""
CALLS = 12
"""Calls to the endpoint of a look that finds something, at most; one that finds nothing makes one."""


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def desk(anvil: Anvil, tmp_path_factory: pytest.TempPathFactory, clock: VirtualClock) -> Iterator[Desk]:
    """A hub that looks at the chain twenty times a minute for those who ask, by a clock that stands still."""
    folder = tmp_path_factory.mktemp("desk")
    with open_desk(anvil, folder, looks_per_minute=LOOKS, clock=clock) as made:
        yield made


@contextmanager
def counting(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """JSON-RPC requests within."""
    asked: list[str] = []
    provider = desk.world.chain.provider
    original = provider.ask

    def ask(method: str, *values: object, **named: object) -> object:
        asked.append(method)
        return original(method, *values, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(provider, "ask", ask)
        yield asked


async def stranger(desk: Desk, now: int, *, uploads: bool) -> MurmurationError:
    """What the holder of a key that nobody knows is answered."""
    data = b"" if uploads else b"{}"
    method, path = ("PUT", "/x") if uploads else ("POST", "/y")
    headers = sign_write(
        Key.generate(), desk.world.chain.domain, run=desk.world.run, method=method, path=path,
        body=hashlib.sha256(data).digest(), now=now,
    )  # fmt: skip
    request = Signed(method, path, headers)

    async def body() -> AsyncIterator[bytes]:
        yield data

    with pytest.raises(MurmurationError) as refusal:
        if uploads:
            await desk.hub.upload(secrets.token_bytes(32), request, body())
        else:
            await desk.hub.add_receipt(data, request)
    return refusal.value


def exhaust(desk: Desk) -> None:
    """Strangers come until the hub looks at the chain for nobody."""
    ref, key = desk.commit(desk.node(), b"work"), Key.generate()
    answers = []
    while 503 not in answers:
        answers.append(desk.upload(key, replace(ref, sequence=1 + len(answers)), b"").status_code)
    assert answers == [404] * LOOKS + [503]


def test_thousands_of_strangers_cost_a_few_calls_to_the_endpoint(
    desk: Desk, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = desk.now()

    async def flood() -> None:
        with counting(desk, monkeypatch) as asked:
            answers = [await stranger(desk, now, uploads=bool(n % 2)) for n in range(STRANGERS)]
        assert 0 < len(asked) <= LOOKS + CALLS
        told = [answer for answer in answers if isinstance(answer, TryAgain)]
        assert len(told) == STRANGERS - LOOKS
        assert all(0 < answer.seconds <= WAIT for answer in told)

    async def floods() -> None:
        await flood()
        clock.advance(60)
        await flood()

    asyncio.run(floods())


def test_a_node_that_joins_during_a_flood_and_uploads_at_once_gets_its_receipt(desk: Desk, clock: VirtualClock) -> None:
    """And a validator that has just enlisted is heard: both wait for the next look, and lose nothing."""
    exhaust(desk)
    node, data = desk.node(), some_file()
    ref = desk.commit(node, data)
    path = desk.folder / "file"
    path.write_bytes(data)
    stored = desk.client(node).upload(desk.submission(ref), ref.root, path, desk.key.address)
    assert stored.receipt.root == ref.root
    waited = sum(clock.waits)
    assert 0 < waited <= 1.5 * WAIT
    validator = desk.validator()
    receipt = desk.receipt(validator, ref)
    desk.client(validator).post_receipt(receipt)
    assert [data for _, data in desk.client().receipts(0)] == [receipt]
    assert waited < sum(clock.waits) <= 3 * WAIT


def test_who_has_to_wait_is_told_for_how_long(desk: Desk, clock: VirtualClock) -> None:
    exhaust(desk)
    node = desk.node()
    ref = desk.commit(node, b"file")
    answer = desk.upload(node, ref, b"file")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, str(int(WAIT)))
    assert desk.hub.refused["TryAgain"] == 2
    clock.advance(WAIT)
    assert desk.upload(node, ref, b"file").status_code == 200


def test_an_endpoint_that_fails_is_not_asked_again_by_everybody_who_waits(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[None] = []
    now = desk.now()

    def fail() -> None:
        looks.append(None)
        raise RpcUnavailable("no answer")

    monkeypatch.setattr(desk.hub._book, "poll", fail)

    async def ask_together() -> list[MurmurationError]:
        return await asyncio.gather(*(stranger(desk, now, uploads=True) for _ in range(20)))

    answers = asyncio.run(ask_together())
    assert [type(answer) for answer in answers] == [RpcUnavailable, *[TryAgain] * 19]
    assert len(looks) == 1


def test_what_the_book_holds_costs_no_call(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A validator's receipt and a node's upload, once their seats and the commitment were read."""
    validator, node = desk.validator(), desk.node()
    ref = desk.commit(node, b"file")
    receipt = desk.receipt(validator, ref)
    desk.hub.learn()
    now = desk.now()
    monkeypatch.setattr(desk, "now", lambda: now)
    with counting(desk, monkeypatch) as asked:
        desk.client(validator).post_receipt(receipt)
        assert desk.upload(node, ref, b"file").status_code == 200
    assert asked == []
