"""The order in which a server sends, on a clock that moves only when it is told."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from protocol.shardcast.guest import Guest
from protocol.shardcast.precedence import RelaysFirst
from protocol.shardcast.uplink import NoTurn, Uplink

from .conftest import wait_until

CHUNK = 4 << 20


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Line:
    """An uplink with transfers that wait in threads; `served` says who got a turn, in order."""

    def __init__(self, **options: float) -> None:
        self.time = Time()
        self.uplink = Uplink(clock=self.time, sleep=self.time.sleep, **options)  # type: ignore[arg-type]
        self.served: list[str] = []
        self.threads: list[threading.Thread] = []

    def ask(self, name: str, *, first: bool = False, peer: str = "") -> None:
        waiting = self.uplink.waiting

        def wait() -> None:
            with self.uplink.turn(CHUNK, first=first, deadline=self.time.now + 1e6, peer=peer):
                self.served.append(name)

        self.threads.append(threading.Thread(target=wait))
        self.threads[-1].start()
        wait_until(lambda: self.uplink.waiting > waiting)
        self.time.now += 0.001

    def turn(self, peer: str = "") -> ExitStack:
        """A turn that lasts until the stack is closed."""
        stack = ExitStack()
        stack.enter_context(self.uplink.turn(CHUNK, first=False, deadline=self.time.now, peer=peer))
        return stack


def test_relays_have_their_turn_before_everybody_else_and_others_in_the_order_they_came() -> None:
    line = Line()
    under_way = [line.turn(), line.turn()]
    for name, first in (("node 1", False), ("node 2", False), ("relay", True)):
        line.ask(name, first=first)
    assert line.served == []
    under_way[0].close()
    wait_until(lambda: len(line.served) == 3)
    assert line.served == ["relay", "node 1", "node 2"]
    under_way[1].close()


def test_few_are_sent_side_by_side_on_a_slow_line_and_more_on_a_fast_one() -> None:
    line = Line()
    slow = [line.turn(), line.turn()]
    with pytest.raises(NoTurn):
        line.turn()
    for turn in slow:
        turn.close()
    line.time.now += 0.01  # two chunks in ten milliseconds
    fast = [line.turn() for _ in range(8)]
    with pytest.raises(NoTurn):
        line.turn()
    for turn in fast:
        turn.close()


def test_a_peer_that_reads_slowly_does_not_keep_others_waiting() -> None:
    line = Line()
    stuck = [line.turn(), line.turn()]
    line.time.now += 2.1
    line.turn().close()
    for turn in stuck:
        turn.close()


def test_a_hundred_slow_connections_of_one_peer_do_not_go_before_anothers_first() -> None:
    line = Line()
    stuck = [line.turn("slow"), line.turn("slow")]
    for _ in range(100):
        line.ask("slow", peer="slow")
    line.ask("other", peer="other")
    line.time.now += 2.1
    stuck[0].close()
    wait_until(lambda: len(line.served) == 101)
    assert line.served[0] == "other"
    stuck[1].close()


def test_a_capped_line_sends_no_faster_than_its_rate() -> None:
    line = Line(rate=1e6)
    began = line.time.now
    sent = 0
    while sent < 5_000_000:
        piece = line.uplink.piece(CHUNK)
        line.uplink.spend(piece)
        sent += piece
    assert sent / (line.time.now - began) == pytest.approx(1e6, rel=0.06)
    assert line.uplink.piece(CHUNK) <= 100_000, "a pause is never long"


def test_an_idle_line_saves_up_no_more_than_a_moment() -> None:
    line = Line(rate=1e6)
    line.uplink.spend(1000)
    line.time.now += 3600
    before = line.time.now
    for _ in range(10):
        line.uplink.spend(100_000)
    assert line.time.now - before == pytest.approx(0.8, abs=0.01)


# ---- whom an origin serves first

RELAY = Guest("127.0.0.1", "http://127.0.0.1:8460")
STRANGER = Guest("127.0.0.1", None)


def precedence() -> tuple[RelaysFirst, Time]:
    clock = Time()
    relays = RelaysFirst(clock)
    relays.learn(["http://127.0.0.1:8460", "http://no.such.name.invalid:1", "gibberish"])
    return relays, clock


def test_a_relay_is_known_by_the_address_it_has_announced_and_comes_from() -> None:
    relays, _ = precedence()
    assert relays.is_first(RELAY)
    assert not relays.is_first(STRANGER)
    assert not relays.is_first(Guest("127.0.0.2", RELAY.serves)), "it comes from somewhere else"
    assert not relays.is_first(Guest("127.0.0.1", "http://127.0.0.1:9999")), "nobody announced that"


def test_others_are_sent_to_the_relays_while_these_fetch_and_served_when_they_are_quiet() -> None:
    relays, clock = precedence()
    assert relays.elsewhere(STRANGER, 7) == [], "no relay is fetching version 7"
    assert relays.elsewhere(RELAY, 7) == []
    assert RELAY.serves in relays.elsewhere(STRANGER, 7)
    assert relays.elsewhere(STRANGER, 6) == []
    clock.now += 11
    assert relays.elsewhere(STRANGER, 7) == []


def test_without_relays_everybody_is_served() -> None:
    assert RelaysFirst().elsewhere(STRANGER, 7) == []
