"""Seats are challenged through a real hub: an honest one passes, nothing else does, and whatever fails on the way is no result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from swarm.anvil import Anvil

from node.contributor.challenged import ChallengedSeat
from node.contributor.settings import WorkSettings
from node.contributor.worker import Worker
from node.engine import int8
from node.engine.torch_engine import TorchEngine
from node.validator import challenger as challenger_module
from node.validator.challenger import Challenger
from node.validator.service import ValidatorService
from node.validator.settings import JudgeSettings
from protocol import challenge
from protocol.chain.sync import Book
from protocol.chain.types import Validator
from protocol.errors import MurmurationError, ProtocolViolation
from protocol.hub import challenges as wire
from protocol.hub.client import HubClient
from protocol.hub.wire import Refused
from protocol.identity import Key
from protocol.shell.home import read_json
from tests.clock import VirtualClock, eventually
from tests.hub.desk import Desk, open_desk
from tests.node.stage import Stage, running

SETTINGS = JudgeSettings(matrix_challenge_side=64)


@pytest.fixture(scope="module")
def desk(anvil: Anvil, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with open_desk(anvil, tmp_path_factory.mktemp("desk")) as made:
        yield made


class Party:
    """A connection's part that challenges need, over the desk's hub and chain."""

    def __init__(self, desk: Desk, key: Key, hub: HubClient | None = None) -> None:
        self.chain: Any = desk.world.chain
        self.run, self.key, self.block_time = desk.world.run, key, desk.now
        self.hub = hub or desk.client(key)

    def forget_hub(self) -> None: ...


class Hurried(HubClient):
    """Waits for nothing: what it would have waited passes on the clock."""

    def __init__(self, desk: Desk, key: Key, clock: VirtualClock) -> None:
        super().__init__(desk.url, desk.world.run, desk.world.chain.domain, key=key, now=desk.now, clock=clock)
        self.time = clock

    def said(self, node: str, after: int, *, wait: int = 0) -> list[tuple[str, dict[str, Any]]]:
        found = super().said(node, after)
        if not found:
            self.time.advance(wait)
        return found


def a_seat(desk: Desk, key: Key, folder: Path, product: Any = challenge.product) -> ChallengedSeat:
    return ChallengedSeat(Party(desk, key), folder / "node.json", product)  # type: ignore[arg-type]


def a_challenger(desk: Desk, folder: Path, hub: Callable[[Key], HubClient] | None = None, **more: Any) -> Challenger:
    key = desk.validator()
    party = Party(desk, key, None if hub is None else hub(key))
    return Challenger(party, Book(desk.world.chain, desk.world.run), folder / "seats.json", SETTINGS, **more)  # type: ignore[arg-type]


@contextmanager
def answering(seat: ChallengedSeat) -> Iterator[list[MurmurationError]]:
    """Looks until there is a challenge and answers it; what is raised meanwhile is listed."""
    raised: list[MurmurationError] = []

    def answer() -> None:
        try:
            eventually(seat.turn)
        except MurmurationError as error:
            raised.append(error)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    yield raised
    thread.join(30)
    assert not thread.is_alive()


def test_an_honest_seat_passes_and_all_sides_show_it(desk: Desk, tmp_path: Path) -> None:
    node, challenger = desk.node(), a_challenger(desk, tmp_path)
    with answering(a_seat(desk, node, tmp_path)) as raised:
        result = challenger.turn(node.address)
    assert raised == []
    assert (result.outcome, result.side) == ("passed", 64)
    assert result.rate > 0
    noted = read_json(tmp_path / "seats.json")[node.address]
    assert noted["counts"] == {"passed": 1, "false": 0, "late": 0, "silent": 0}
    assert noted["operations_per_second"] == result.rate
    assert desk.hub.challenges.results[node.address]["outcome"] == "passed"
    own = read_json(tmp_path / "node.json")
    assert (own["answered"], own["side"]) == (1, 64)
    assert challenger_module._RATE.values()[node.address,] == result.rate


def off_by_one(left: Any, right: Any) -> Any:
    return challenge.product(left, right) + np.int32(1)


def test_another_product_is_false(desk: Desk, tmp_path: Path) -> None:
    node = desk.node()
    with answering(a_seat(desk, node, tmp_path, off_by_one)):
        assert a_challenger(desk, tmp_path).turn(node.address).outcome == "false"
    assert read_json(tmp_path / "seats.json")[node.address]["counts"]["false"] == 1


def with_fields(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """The seat says these instead."""
    say = wire.Dialogue.say

    def instead(self: wire.Dialogue, kind: str, **honest: object) -> None:
        say(self, kind, **{name: fields.get(name, value) for name, value in honest.items()})

    monkeypatch.setattr(wire.Dialogue, "say", instead)


SIZE = 4 * -(-challenge.opening_bytes(64, challenge.ROWS) // 3)


@pytest.mark.parametrize(
    "fields",
    [
        {"root": "22" * 32}, {"root": "no root"}, {"root": 7}, {"root": None}, {"opening": "A" * SIZE}, {"opening": "!" * SIZE},
        {"opening": "A" * (SIZE - 4)}, {"opening": "A" * 200_000}, {"opening": None}, {"opening": {"a": ["b"]}},
    ],
    ids=lambda fields: "-".join(f"{k}-{str(v)[:8]}-{len(str(v))}" for k, v in fields.items()),
)  # fmt: skip
def test_garbage_is_false_and_stops_nothing(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    node, challenger = desk.node(), a_challenger(desk, tmp_path)
    with_fields(monkeypatch, **fields)
    with answering(a_seat(desk, node, tmp_path)):
        assert challenger.turn(node.address).outcome == "false"


def test_the_root_of_an_earlier_challenge_is_false(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, challenger = desk.node(), a_challenger(desk, tmp_path)
    seat = a_seat(desk, node, tmp_path)
    with answering(seat):
        assert challenger.turn(node.address).outcome == "passed"
    kept = seat._tree(bytes(32), 64)
    monkeypatch.setattr(seat, "_tree", lambda seed, side: kept)
    with answering(seat):
        assert challenger.turn(node.address).outcome == "false"


def test_rows_are_drawn_only_after_the_commitment(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, challenger = desk.node(), a_challenger(desk, tmp_path)
    draws: list[list[str]] = []

    class Chance:
        def sample(self, population: Any, k: int) -> list[int]:
            draws.append([message.value["say"] for message in desk.hub.challenges.said(node.address, 0)])
            return list(range(k))

    monkeypatch.setattr(challenger_module, "_CHANCE", Chance())
    with answering(a_seat(desk, node, tmp_path)):
        assert challenger.turn(node.address).outcome == "passed"
    assert draws == [["ask", "ready", "seed", "root"]]


def test_a_seat_that_does_not_look_is_silent_and_no_more(desk: Desk, tmp_path: Path) -> None:
    node, clock = desk.node(), VirtualClock()
    challenger = a_challenger(desk, tmp_path, lambda key: Hurried(desk, key, clock), clock=clock)
    result = challenger.turn(node.address)
    assert (result.outcome, result.seconds, result.rate) == ("silent", 0.0, 0.0)
    assert desk.hub.challenges.results[node.address]["outcome"] == "silent"


@pytest.mark.parametrize("until", ["root", "opening"])
def test_an_answer_that_comes_late_does_not_count(desk: Desk, tmp_path: Path, until: str) -> None:
    """The seat says everything in time but for `until`, which it says when the validator has given up."""
    node, clock = desk.node(), VirtualClock()

    class Waiting(Hurried):
        def say(self, address: str, value: dict[str, Any]) -> None:
            super().say(address, value)
            turns = {"ask": {"say": "ready"}, "seed": {"say": "root", "root": "22" * 32}}
            reply = turns.get(value["say"])
            if reply is not None and reply["say"] != until:
                own.say(address, {**reply, "challenge": value["challenge"]})
            names.append(value["challenge"])

    names: list[str] = []
    own = desk.client(node)
    challenger = a_challenger(desk, tmp_path, lambda key: Waiting(desk, key, clock), clock=clock)
    assert challenger.turn(node.address).outcome == "late"
    with pytest.raises(Refused):
        own.say(node.address, {"say": until, "challenge": names[0], until: "22" * 32})


def test_a_hub_that_hands_on_the_words_of_another_gives_no_result(desk: Desk, tmp_path: Path) -> None:
    node, other, clock = desk.node(), Key.generate(), VirtualClock()
    own = desk.client(node)

    class Lied(Hurried):
        def say(self, address: str, value: dict[str, Any]) -> None:
            super().say(address, value)
            own.say(address, {"say": "ready", "challenge": value["challenge"]})

        def said(self, address: str, after: int, *, wait: int = 0) -> list[tuple[str, dict[str, Any]]]:
            return [(other.address, value) for _, value in super().said(address, after, wait=wait)]

    challenger = a_challenger(desk, tmp_path, lambda key: Lied(desk, key, clock), clock=clock)
    with pytest.raises(ProtocolViolation, match="no part of this"):
        challenger.turn(node.address)
    assert not (tmp_path / "seats.json").exists()


def test_a_seat_answers_nobody_but_validators(desk: Desk, tmp_path: Path) -> None:
    node, validator = desk.node(), desk.validator()
    seat = a_seat(desk, node, tmp_path)
    ask = {"say": "ask", "challenge": "ab" * 32, "side": 64}
    desk.client(validator).say(node.address, ask)

    class Dismissed:
        domain = desk.world.chain.domain

        def validator(self, run: int, address: str) -> Validator:
            return Validator(0, 0, False, 0, 0, 0)

    seat._c.chain = Dismissed()  # type: ignore[assignment]
    assert not seat.turn()
    assert len(desk.hub.challenges.said(node.address, 0)) == 1


def test_only_seats_that_work_are_drawn(desk: Desk, tmp_path: Path) -> None:
    node, challenger = desk.node(), a_challenger(desk, tmp_path)
    assert challenger._draw() is None  # its book is empty
    challenger._view.poll()  # type: ignore[attr-defined]
    drawn = {challenger._draw() for _ in range(200)}
    joined = {event.data.node for event in challenger._view.events(challenger_module.Joined)}
    assert node.address in drawn
    assert drawn <= joined


def test_cudas_way_gives_the_same_product() -> None:
    """On the CPU, where torch has the same call."""
    rng = np.random.default_rng(1)
    left, right = (rng.integers(-128, 128, (256, 256)).astype(np.int8) for _ in range(2))
    made = int8.on_device(torch.device("cpu"), left, right)
    assert made.dtype == np.int32
    assert (made == challenge.product(left, right)).all()
    assert (int8.product("cpu", left, right) == made).all()


@pytest.mark.parametrize("answers", [True, False], ids=["willing", "unwilling"])
def test_a_running_validator_challenges_a_running_node_that_is_willing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setattr(wire, "READY_SECONDS", 20.0 if answers else 0.5)
    node, validator = stage.seated(), stage.validator()
    settings = WorkSettings(retry_seconds=0.05, answer_matrix_challenges=answers)
    worker = Worker(stage.connection(node), stage.home("node"), settings, lambda dtype: TorchEngine(dtype))
    judge = JudgeSettings(matrix_challenge_hours=0.1 / 3600, matrix_challenge_side=64)
    service = ValidatorService(stage.connection(validator), stage.home("validator", "validator"), judge)
    file = stage.home("validator", "validator").challenges
    with running(worker) as ended, running(service) as judging:
        noted = eventually(lambda: (read_json(file) or {}).get(node.address), within=30.0, what="a challenge ends")
    assert noted["outcome"] == ("passed" if answers else "silent")
    assert (read_json(stage.home("node").challenges) is not None) == answers
    assert ended.error is None
    assert judging.error is None
