"""The order in which a server sends, on a clock that moves only when it is told."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from random import Random

import pytest

from protocol.shardcast import precedence as precedence_module
from protocol.shardcast import uplink as uplink_module
from protocol.shardcast.bucket import NoTurn, TokenBucket
from protocol.shardcast.guest import Guest
from protocol.shardcast.precedence import RelaysFirst
from protocol.shardcast.uplink import Uplink, _Turn

from .conftest import DEADLINE, wait_until

CHUNK = 4 << 20


class Time:
    def __init__(self) -> None:
        self.now = 1000.0
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Line:
    """An uplink with transfers that wait in threads; `served` says who got a turn, in order. They last no time, or until they `may_end`."""

    def __init__(self, **options: float) -> None:
        self.time = Time()
        self.uplink = Uplink(clock=self.time, sleep=self.time.sleep, **options)  # type: ignore[arg-type]
        self.served: list[str] = []
        self.threads: list[threading.Thread] = []
        self.may_end = threading.Event()
        self.may_end.set()

    def ask(self, name: str, *, first: bool = False, peer: str = "", patience: float = 1e6) -> None:
        waiting = self.uplink.waiting

        def wait() -> None:
            with suppress(NoTurn), self.uplink.turn(CHUNK, first=first, deadline=self.time.now + patience, peer=peer):
                self.served.append(name)
                assert self.may_end.wait(DEADLINE)

        self.threads.append(threading.Thread(target=wait, daemon=True))
        self.threads[-1].start()
        wait_until(lambda: self.uplink.waiting > waiting)
        self.time.now += 0.001

    def aged(self, peer: str) -> list[ExitStack]:
        """A turn that began so long after the others that these no longer count."""
        self.time.now += 2.1
        return [self.turn(peer)]

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


def test_relays_that_never_stop_asking_leave_a_turn_in_four_to_others() -> None:
    line = Line()
    under_way = [line.turn(), line.turn()]
    for number in range(12):
        line.ask("relay", first=True, peer=f"relay {number}")
    for name in ("node 1", "node 2", "node 3"):
        line.ask(name, peer=name)
    under_way[0].close()
    wait_until(lambda: len(line.served) == 15)
    assert line.served == [*["relay"] * 3, "node 1", *["relay"] * 3, "node 2", *["relay"] * 3, "node 3", *["relay"] * 3]
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


class Address(str):
    """An address that counts how often it is looked up, or compared with another."""

    __slots__ = ()
    looks = 0

    def __hash__(self) -> int:
        Address.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Address.looks += 1
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        Address.looks += 1
        return super().__ne__(other)


def test_a_turn_that_ends_wakes_the_next_of_a_crowd_and_nobody_else() -> None:
    line = Line()
    under_way = [line.turn(), line.turn()]
    for number in range(100):
        line.ask(f"node {number}", peer=Address(f"node {number}"))
    before, addresses_before = line.time.looks, Address.looks
    under_way[0].close()
    wait_until(lambda: len(line.served) == 100)
    for thread in line.threads:
        thread.join()
    assert line.time.looks - before <= 4 * 100, "each looks when the one before it begins, and when that ends"
    assert Address.looks - addresses_before <= 4 * 100 * 8 * 100, "each looks at each other a few times"
    under_way[1].close()


@pytest.mark.parametrize("crowd", [32, 256])
def test_to_find_the_next_of_a_crowd_takes_one_pass_over_it(crowd: int) -> None:
    line = Line()
    line.uplink._turns += [
        _Turn(False, Address(f"node {number}"), line.time.now, threading.Condition()) for number in range(crowd)
    ]
    before = Address.looks
    line.uplink._next()
    assert Address.looks - before <= 8 * crowd


def test_beside_slow_peers_the_next_go_on_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplink_module, "_TURN_SECONDS", 0.05)
    line = Line()
    slow = [line.turn("slow"), line.turn("slow")]
    for name, first in (("node 1", False), ("node 2", False), ("relay", True)):
        line.ask(name, first=first, peer=name)
    line.may_end.clear()
    line.time.now += 0.06  # and no turn ends
    wait_until(lambda: len(line.served) == 2)
    assert set(line.served) == {"relay", "node 1"}
    line.time.now += 0.06
    wait_until(lambda: line.served[2:] == ["node 2"])
    line.may_end.set()
    for turn in slow:
        turn.close()


def test_beside_slow_peers_others_go_on_though_the_next_has_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplink_module, "_TURN_SECONDS", 0.5)
    line = Line()
    slow = [line.turn("slow"), line.turn("slow")]
    line.ask("relay", first=True, peer="relay", patience=0.01)
    line.ask("node", peer="node")
    line.time.now += 0.02
    wait_until(lambda: line.uplink.waiting == 1)
    assert line.served == []
    line.time.now += 0.5
    wait_until(lambda: line.served == ["node"])
    for turn in slow:
        turn.close()


def test_a_capped_line_sends_no_faster_than_its_rate() -> None:
    line = Line(rate=1e6)
    began = line.time.now
    sent = 0
    while sent < 5_000_000:
        piece = line.uplink.bucket.piece(CHUNK)
        line.uplink.bucket.spend(piece)
        sent += piece
    assert sent / (line.time.now - began) == pytest.approx(1e6, rel=0.06)
    assert line.uplink.bucket.piece(CHUNK) <= 100_000, "a pause is never long"


def test_an_idle_line_saves_up_no_more_than_a_moment() -> None:
    line = Line(rate=1e6)
    line.uplink.bucket.spend(1000)
    line.time.now += 3600
    before = line.time.now
    for _ in range(10):
        line.uplink.bucket.spend(100_000)
    assert line.time.now - before == pytest.approx(0.8, abs=0.01)


# ---- small answers and pieces of chunks on one capped line


class Queue:
    """A used-up line of 100 kB/s whose first claim pauses until it is told to go on; `served` says who came after it, in order."""

    def __init__(self) -> None:
        self.time, self.served = Time(), list[str]()
        self.go_on, self.threads = threading.Event(), list[threading.Thread]()
        self.bucket = TokenBucket(1e5, self.time, self.pause)
        self.bucket.spend(10_000)
        self.bucket.spend(10_000)
        self.ask("holder", lambda: self.bucket.spend(1))
        wait_until(lambda: self.time.now > 1000.0)

    def pause(self, seconds: float) -> None:
        self.time.sleep(seconds)
        if threading.current_thread() is not threading.main_thread():
            assert self.go_on.wait(DEADLINE)

    def ask(self, name: str, spend: Callable[[], None]) -> None:
        def wait() -> None:
            spend()
            self.served.append(name)

        self.threads.append(threading.Thread(target=wait))
        self.threads[-1].start()

    def piece(self, name: str, count: int = 10_000) -> None:
        self._queue(name, lambda: self.bucket.spend(count))

    def small(self, name: str, count: int = 1000, *, peer: str = "", first: bool = False) -> None:
        self._queue(
            name, lambda: self.bucket.spend_small(count, peer=peer or name, first=first, deadline=self.time.now + 1e6)
        )

    def end(self) -> list[str]:
        self.go_on.set()
        for thread in self.threads:
            thread.join()
        return self.served[1:]

    def _queue(self, name: str, spend: Callable[[], None]) -> None:
        waiting = self.bucket.waiting
        self.ask(name, spend)
        wait_until(lambda: self.bucket.waiting > waiting)


def test_a_small_answer_leaves_before_pieces_of_chunks_that_wait() -> None:
    queue = Queue()
    queue.piece("chunk 1")
    queue.piece("chunk 2")
    queue.small("holding")
    assert queue.end() == ["holding", "chunk 1", "chunk 2"]


def test_a_crowd_of_small_answers_leaves_chunks_three_quarters_of_the_line() -> None:
    queue = Queue()
    for number in range(6):
        queue.piece(f"chunk {number}")
    for number in range(4):
        queue.small(f"small {number}", 10_000)
    assert queue.end() == ["small 0", *(f"chunk {n}" for n in range(3)), "small 1", *(f"chunk {n}" for n in (3, 4, 5)), "small 2", "small 3"]  # fmt: skip


def test_of_small_answers_relays_have_theirs_first_and_then_who_had_the_fewest() -> None:
    queue = Queue()
    for number in range(3):
        queue.small(f"crowd {number}", peer="crowd")
    queue.small("other")
    queue.small("relay", first=True)
    assert queue.end() == ["relay", "crowd 0", "other", "crowd 1", "crowd 2"]


def test_relays_that_never_stop_asking_leave_a_small_answer_in_four_to_others() -> None:
    queue = Queue()
    for number in range(6):
        queue.small(f"relay {number}", peer="relay", first=True)
    queue.small("a node's manifest")
    assert queue.end().index("a node's manifest") <= 3


def test_a_small_answer_that_would_come_too_late_is_not_sent() -> None:
    queue = Queue()
    with pytest.raises(NoTurn):
        queue.bucket.spend_small(1000, peer="late", first=False, deadline=queue.time.now)
    assert queue.end() == []


def test_an_idle_line_delays_nobody() -> None:
    time = Time()
    bucket = TokenBucket(1e5, time, time.sleep)
    bucket.spend_small(10_000, peer="", first=False, deadline=time.now)
    assert time.now == 1000.0
    TokenBucket(None, time, time.sleep).spend_small(1 << 30, peer="", first=False, deadline=time.now)
    assert time.now == 1000.0


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
    assert relays.is_first(Guest("::ffff:127.0.0.1", RELAY.serves)), "it comes over IPv4 to a listener for both"
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


def test_a_stranger_who_passes_for_a_relay_keeps_others_from_a_version_for_a_bounded_time_whatever_it_does() -> None:
    relays, clock = precedence()
    away = {7: 0.0, 8: 0.0}
    for second in range(3600):
        if second % 9 == 0 and second % 100 < 80:  # one byte every nine seconds, and now and then none for a while
            relays.elsewhere(RELAY, 7)
            relays.elsewhere(RELAY, 8)
        for step in away:
            away[step] += bool(relays.elsewhere(STRANGER, step))
        clock.now += 1.0
    assert away == {7: 20, 8: 20}


def test_a_guest_is_one_whatever_address_of_its_network_it_takes_and_another_is_sent_away_for_itself() -> None:
    relays, clock = precedence()
    first, second, other = (Guest(address, None) for address in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"))
    relays.elsewhere(RELAY, 7)
    assert relays.elsewhere(first, 7)
    for _ in range(5):
        clock.now += 5.0
        relays.elsewhere(RELAY, 7)
    assert relays.elsewhere(second, 7) == []
    assert relays.elsewhere(other, 7)


def test_a_crowd_of_addresses_takes_no_memory_without_end_and_is_served_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precedence_module, "_AWAY_MAX", 3)
    relays, _ = precedence()
    relays.elsewhere(RELAY, 7)
    guests = [Guest(f"192.0.2.{number}", None) for number in range(5)]
    assert [bool(relays.elsewhere(guest, 7)) for guest in guests] == [True] * 3 + [False] * 2
    assert relays.elsewhere(guests[0], 7), "who was known before is so still"


def test_of_many_relays_others_are_named_every_time() -> None:
    relays, _ = precedence()
    urls = [RELAY.serves or "", *(f"http://127.0.0.1:{port}" for port in range(9001, 9012))]
    relays.learn(urls)
    relays.elsewhere(RELAY, 7)
    named = [relays.elsewhere(STRANGER, 7) for _ in range(100)]
    assert all(len(set(each)) == 4 for each in named)
    assert {url for each in named for url in each} == set(urls)


def test_beside_others_a_peer_has_no_more_than_sixteen_turns_with_theirs_however_slow_the_line_is() -> None:
    """Where the line itself is slow every turn stops counting before its end, and those of a crowd would add up until nothing arrives in time."""
    line = Line()
    other = line.turn("other")
    held = [turn for _ in range(15) for turn in line.aged("crowd")]
    line.time.now += 2.1
    with pytest.raises(NoTurn):
        line.turn("crowd")
    held += [turn for _ in range(4) for turn in line.aged("newcomer")]  # which is let in all the same
    line.time.now += 2.1
    with pytest.raises(NoTurn):
        line.turn("newcomer")
    for turn in (other, *held[15:]):
        turn.close()
    held[15:] = [line.turn("crowd")]  # nobody else is there
    for turn in held:
        turn.close()


def test_two_peers_do_not_climb_over_each_other_beside_one_that_has_a_turn() -> None:
    """What one has is no measure for the other: together they would have all their connections, and a third a hundredth of the line."""
    line = Line()
    honest, held = line.turn("honest"), list[ExitStack]()
    for _ in range(20):
        for peer in ("crowd", "accomplice"):
            with suppress(NoTurn):
                held += line.aged(peer)
    assert len(held) == 16 - 1
    for turn in (honest, *held):
        turn.close()


def test_relays_of_one_address_do_not_go_before_another_beyond_one_more_than_it_has() -> None:
    line = Line()
    for peer, since in (*[("relays", line.time.now)] * 4, ("other", line.time.now), ("relays", None), ("other", None)):
        line.uplink._turns.append(_Turn(peer == "relays", peer, line.time.now, threading.Condition(), since))
    found = line.uplink._next()
    assert found is not None
    assert found.peer == "other"


def test_one_slow_reader_does_not_hold_a_network_behind_one_address_at_four_turns() -> None:
    """It has its turn and wants no more; the line has room for eight."""
    line = Line()
    for _ in range(8):
        line.uplink._ended.append((line.time.now - 0.05, CHUNK))
    line.uplink._turns.append(_Turn(False, "slow", line.time.now, threading.Condition(), line.time.now - 10))
    with ExitStack() as under_way:
        for _ in range(8):
            under_way.callback(line.turn("network").close)


@pytest.mark.parametrize("peers", [2, 5, 12])
def test_peers_who_want_ever_more_have_sixteen_turns_or_each_the_four_of_a_fetch(peers: int) -> None:
    line = Line()
    held = Counter[str]()
    with ExitStack() as under_way:
        for number in range(peers):
            under_way.callback(line.turn(f"peer {number}").close)
            line.time.now += 2.1
        for _ in range(20):
            for peer in (f"peer {number}" for number in range(peers)):
                with suppress(NoTurn):
                    (turn,) = line.aged(peer)
                    under_way.callback(turn.close)
                    held[peer] += 1
    most = max(4, 16 // peers)
    assert [1 + more for more in held.values()] == peers * [most]


def test_a_peer_alone_has_as_many_turns_as_it_asks_for_on_a_long_line() -> None:
    line = Line()
    for turn in [turn for _ in range(30) for turn in line.aged("alone")]:
        turn.close()


def test_who_is_next_does_not_change_by_time_alone() -> None:
    """Nobody would call who is next then: it would wait until a turn ends, however much room there is."""
    line = Line()
    for turn in [line.turn(peer) for peer in ("R", "C")]:
        turn.close()  # two chunks in a moment: more may be side by side now
    for peer, since in (*[("R", line.time.now)] * 5, ("C", line.time.now), ("R", None), ("C", None)):
        line.uplink._turns.append(_Turn(peer == "R", peer, line.time.now, threading.Condition(), since))
    before = line.uplink._next()
    line.time.now += 60
    assert line.uplink._next() is before


def test_who_is_next_begins_once_there_is_room_whatever_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplink_module, "_TURN_SECONDS", 0.02)
    line, random = Line(), Random(5)
    uplink, under_way = line.uplink, list[threading.Event]()

    def ask(peer: str, first: bool, ends: threading.Event) -> None:
        with uplink.turn(CHUNK, first=first, deadline=1e6, peer=peer):
            under_way.append(ends)
            assert ends.wait(DEADLINE)

    def nobody_is_kept_waiting() -> bool:
        with uplink._mutex:
            now = line.time.now
            young = [turn for turn in uplink._turns if turn.since is not None and turn.since + 0.02 > now]
            return uplink._next() is None or len(young) >= uplink._side_by_side(now)

    for _ in range(300):
        match random.choice(["ask", "ask", "end", "a moment", "a while"]):
            case "ask":
                arguments = (random.choice("ABC"), random.random() < 0.5, threading.Event())
                line.threads.append(threading.Thread(target=ask, args=arguments, daemon=True))
                line.threads[-1].start()
            case "end" if under_way:
                under_way.pop(random.randrange(len(under_way))).set()
            case moment:
                line.time.now += 0.021 if moment == "a moment" else 6.0
        wait_until(nobody_is_kept_waiting)

    def all_have_ended() -> bool:
        line.time.now += 0.021
        while under_way:
            under_way.pop().set()
        return not any(thread.is_alive() for thread in line.threads)

    wait_until(all_have_ended)
