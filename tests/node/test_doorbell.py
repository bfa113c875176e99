"""An idle validator does not ask the hub in every turn: it waits there, and comes when it is called."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import httpx
import pytest

from node.validator import doorbell as doorbell_module
from node.validator.doorbell import WAIT_SECONDS, Doorbell
from node.validator.service import ValidatorService
from node.validator.settings import JudgeSettings
from protocol.errors import Unavailable
from protocol.hub.client import Heard
from protocol.hub.listing import Mark
from protocol.hub.wire import TryAgain
from tests.clock import VirtualClock, eventually
from tests.node.stage import Stage, running

NOTHING = Heard([], [])


class Hub:
    """Answers as the script says, one entry per poll, and ends the follower after the last."""

    def __init__(self, clock: VirtualClock, stop: threading.Event) -> None:
        self.clock, self.stop = clock, stop
        self.script: list[Callable[[], Heard]] = []
        self.waits: list[int] = []

    def heard(self, receipts: Mark, opinions: Mark, *, wait: int = 0) -> Heard:
        self.waits.append(wait)
        answer = self.script.pop(0)
        if not self.script:
            self.stop.set()
        return answer()


class Scene:
    def __init__(self) -> None:
        self.clock, self.stop = VirtualClock(), threading.Event()
        self.hub = Hub(self.clock, self.stop)
        self.marks = Mark(), Mark()
        self.doorbell = Doorbell(SimpleNamespace(hub=self.hub), lambda: self.marks, 2.0, self.clock)  # type: ignore[arg-type]
        self.was_quiet: list[bool] = []

    def follow(self, *script: Callable[[], Heard]) -> None:
        self.hub.script = [self.noting(answer) for answer in script]
        self.doorbell.follow(self.stop)

    def noting(self, answer: Callable[[], Heard]) -> Callable[[], Heard]:
        def noted() -> Heard:
            self.was_quiet.append(self.doorbell.is_quiet)
            return answer()

        return noted

    def held_back(self) -> Heard:
        """The hub waited as long as it was asked to."""
        self.clock.advance(self.hub.waits[-1])
        return NOTHING

    def news(self) -> Heard:
        """And the turn takes them in."""

        def listen() -> None:
            self.marks = Mark(self.marks[0].number + 1, b"x"), Mark()
            self.doorbell.heard()

        self.clock.meanwhile = listen
        return Heard([(1, b"{}")], [])


@pytest.fixture
def scene() -> Scene:
    return Scene()


def fails(error: Exception) -> Callable[[], Heard]:
    def answer() -> Heard:
        raise error

    return answer


def test_where_there_is_nothing_it_waits_at_the_hub_a_little_more_than_once_a_minute(scene: Scene) -> None:
    scene.follow(*[scene.held_back] * 13)
    assert scene.hub.waits == [0] + [WAIT_SECONDS] * 12
    assert scene.clock.monotonic() - VirtualClock().monotonic() >= 600, "13 requests in ten minutes"
    assert scene.was_quiet == [False] + [True] * 12, "and the turn need not ask meanwhile"


def test_it_is_loud_from_the_news_until_they_have_been_heard_and_the_hub_has_nothing_more(scene: Scene) -> None:
    scene.follow(scene.held_back, scene.news, scene.held_back, scene.held_back)
    assert scene.was_quiet == [False, True, False, True]
    assert scene.hub.waits == [0, WAIT_SECONDS, 0, WAIT_SECONDS]


def test_news_that_nobody_takes_in_are_not_asked_for_without_pause(scene: Scene) -> None:
    def untouched() -> Heard:
        scene.clock.meanwhile = scene.stop.set
        return Heard([(1, b"{}")], [])

    scene.follow(scene.held_back, untouched, scene.held_back)
    assert scene.hub.waits == [0, WAIT_SECONDS]
    assert scene.clock.waits == [WAIT_SECONDS]
    assert not scene.doorbell.is_quiet


@pytest.mark.parametrize(
    ("error", "pause"), [(Unavailable("away"), 2.0), (TryAgain("busy", 15), 15.0), (KeyError("x"), 2.0)]
)
def test_a_hub_that_fails_makes_it_loud_and_is_left_alone_for_a_while(
    scene: Scene, error: Exception, pause: float
) -> None:
    scene.follow(scene.held_back, fails(error), scene.held_back)
    assert scene.was_quiet == [False, True, False]
    assert scene.clock.waits[0] >= pause
    assert scene.hub.waits == [0, WAIT_SECONDS, 0]


def test_a_hub_that_holds_nothing_back_is_not_asked_without_pause(scene: Scene) -> None:
    scene.follow(*[lambda: NOTHING] * 4)
    assert scene.clock.waits == [doorbell_module._MOMENT] * 2, "but for the first, which asks for no wait, and the last"


def test_a_real_service_with_nothing_to_judge_asks_once_in_a_while_and_hears_at_once(stage: Stage) -> None:
    """Two requests in every turn it would be, thirty turns a minute."""
    turns: list[None] = []
    connection = stage.connection(stage.validator(), poll_seconds=0.01)
    service = ValidatorService(
        connection,
        stage.home("idle", "validator"),
        JudgeSettings(retry_seconds=0.02),
        progress=lambda: turns.append(None),
    )
    named = b"\x05" * 32

    def is_asked(method: str, path: str) -> None:
        if stage.hub._database.add_opinion(named, "0x", 0):
            stage.hub.hub.bells.ring("opinions")

    with running(service):
        eventually(lambda: service._doorbell.is_quiet, what="it has heard what there is")
        asked, begun, taken = len(stage.hub.requests), time.monotonic(), len(turns)
        eventually(lambda: len(turns) >= taken + 30, what="thirty turns")
        assert len(stage.hub.requests) - asked <= 2 + (time.monotonic() - begun) // (WAIT_SECONDS / 2)
        stage.hub.fault = is_asked  # about a submission, from now on
        httpx.get(stage.hub.url)
        eventually(lambda: named in service._receipts, what="the request is heard")
