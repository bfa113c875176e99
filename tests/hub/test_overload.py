"""Too many connections and too much to do: who gives way, what is refused first, and who never is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from protocol.places import Places, household
from trainer.hub.bells import Bells
from trainer.hub.load import LATE_SECONDS, REFUSED_FROM, Load, RequestKind, kind_of


@dataclass(eq=False)
class Guest:
    address: str
    is_away: bool = False

    def give_way(self) -> None:
        self.is_away = True


class House:
    def __init__(self, most: int, per_address: int = 100) -> None:
        self.time = 0.0
        self.places = Places(most, per_address, 1.0, lambda: self.time)

    def guests(self, address: str, count: int) -> list[Guest]:
        """As many of an address; those who found no place are away."""
        made = [Guest(address) for _ in range(count)]
        for guest in made:
            guest.is_away = not self.places.enter(guest)
        return made


def staying(guests: list[Guest]) -> int:
    return sum(not guest.is_away for guest in guests)


def test_idle_connections_of_many_addresses_give_way_to_who_comes() -> None:
    house = House(600)
    crowd = [guest for n in range(12) for guest in house.guests(f"10.0.0.{n}", 50)]
    honest = [house.guests(f"10.1.0.{n}", 1)[0] for n in range(300)]
    assert staying(honest) == 300
    assert staying(crowd) == 300
    assert len(house.places) == 600


def test_the_address_with_most_loses_first_and_none_takes_from_one_that_has_less() -> None:
    house = House(10)
    many, few = house.guests("10.0.0.1", 8), house.guests("10.0.0.2", 2)
    assert staying(house.guests("10.0.0.3", 1)) == 1
    assert (staying(many), staying(few)) == (7, 2)
    assert staying(house.guests("10.0.0.1", 1)) == 0, "it has most itself, and nobody has been idle for long"
    house.time = 2.0
    assert staying(house.guests("10.0.0.1", 1)) == 1, "the longest idle of its own gave way"
    assert (staying(many), staying(few)) == (6, 2)


def test_who_has_many_and_is_busy_with_most_of_them_loses_before_who_has_few() -> None:
    """The idle ones of the honest are more than those that one stranger leaves idle."""
    house = House(20)
    strange, honest = house.guests("10.0.0.1", 15), house.guests("10.0.0.2", 5)
    for guest in strange[:13]:
        house.places.works(guest)
    assert staying(house.guests("10.0.0.2", 2)) == 2
    assert (staying(strange), staying(honest)) == (13, 5)


def test_idle_connections_give_way_before_those_that_wait_and_no_busy_one_ever_does() -> None:
    house = House(6)
    idle, waiting, busy = (house.guests(f"10.0.0.{n}", 2) for n in range(3))
    for guest in waiting:
        house.places.waits(guest)
    for guest in busy:
        house.places.works(guest)
    house.time = 2.0
    assert staying(house.guests("10.0.0.7", 1) + house.guests("10.0.0.8", 1)) == 2
    assert (staying(idle), staying(waiting), staying(busy)) == (0, 2, 2)
    newest = house.guests("10.0.0.9", 1)  # of the two that came last, too young, one wait no longer
    assert (staying(newest), staying(waiting), staying(busy)) == (1, 1, 2)
    house.places.works(newest[0])


def test_who_was_sent_away_counts_nowhere_and_changes_nothing_any_more() -> None:
    house = House(1)
    first = house.guests("10.0.0.1", 1)[0]
    house.time = 2.0
    house.guests("10.0.0.2", 1)
    assert first.is_away
    for move in (house.places.rests, house.places.waits, house.places.works, house.places.leave):
        move(first)
    assert (len(house.places), len(house.places.idle), len(house.places.waiting)) == (1, 1, 0)


@pytest.mark.parametrize(
    ("hosts", "are_one"),
    [
        (("2001:db8::1", "2001:db8::ffff:2"), True), (("2001:db8::1", "2001:db8:0:1::1"), False),
        (("::ffff:10.0.0.1", "10.0.0.1"), True), (("::ffff:10.0.0.1", "::ffff:10.0.0.2"), False),
        (("10.0.0.1", "10.0.0.2"), False), (("fe80::1%eth0", "fe80::2%eth1"), True),
    ],
)  # fmt: skip
def test_an_ipv6_network_of_one_machine_counts_as_one_address(hosts: tuple[str, str], are_one: bool) -> None:
    assert (household(hosts[0]) == household(hosts[1])) == are_one


def test_the_runs_page_is_refused_before_polls_these_before_listings_then_downloads_and_uploads_last() -> None:
    """Ever more uploads are under way, each of its own address."""
    load, refused = Load(100), list[RequestKind]()
    for n in range(101):
        for kind in RequestKind:
            if kind not in refused and not load.admit(kind, f"10.0.1.{n}"):
                refused.append(kind)
            elif kind not in refused:
                load.done(kind, f"10.0.1.{n}")
        load.admit(RequestKind.UPLOAD, f"10.0.0.{n}")
    assert refused == list(RequestKind)
    assert list(REFUSED_FROM) == sorted(REFUSED_FROM, key=lambda kind: REFUSED_FROM[kind])


def test_a_late_event_loop_is_an_overload_too() -> None:
    load = Load(100)
    load.lateness = LATE_SECONDS / 2
    assert [load.admit(kind, "10.0.0.1") for kind in RequestKind] == [False] * 3 + [True] * 3
    load.lateness = LATE_SECONDS
    assert not any(load.admit(kind, "10.0.0.1") for kind in RequestKind)


def test_one_address_cannot_have_all_requests_that_are_answered() -> None:
    load = Load(80)
    assert sum(load.admit(RequestKind.UPLOAD, "10.0.0.1") for _ in range(80)) == 10
    assert load.admit(RequestKind.UPLOAD, "10.0.0.2")


@pytest.mark.parametrize(
    ("method", "target", "kind"),
    [
        ("GET", "receipts?after=3&wait=20", RequestKind.POLL), ("GET", "files/ab?wait=5", RequestKind.POLL),
        ("GET", "receipts?wait=0", RequestKind.LISTING), ("GET", "receipts?after=0", RequestKind.LISTING), ("GET", "spec", RequestKind.LISTING),
        ("GET", "files/ab", RequestKind.DOWNLOAD), ("GET", "files/ab?wait=0", RequestKind.DOWNLOAD), ("HEAD", "tasks/ab", RequestKind.DOWNLOAD),
        ("PUT", "submissions/ab?wait=20", RequestKind.UPLOAD), ("POST", "receipts", RequestKind.UPLOAD),
        ("GET", "receipts?%77ait=20", RequestKind.POLL), ("GET", "receipts?wait=0&wait=9", RequestKind.POLL),
        ("GET", "receipts?wait=" + "&" * 100, RequestKind.POLL), ("GET", "receipts?wait=x", RequestKind.POLL),
    ],
)  # fmt: skip
def test_requests_are_told_apart_by_what_it_costs_to_lose_them(method: str, target: str, kind: RequestKind) -> None:
    path, _, query = target.partition("?")
    assert kind_of({"method": method, "path": f"/v1/runs/7/{path}", "query_string": query.encode()}) == kind


def woken(at_once: int, count: int, act: Callable[[Bells, list[int]], None]) -> list[list[int]]:
    """Who was woken, after each of four pauses; `act` rings."""

    async def waits() -> list[list[int]]:
        bells, heard, seen = Bells(at_once, 0.02), list[int](), list[list[int]]()

        async def follow(number: int) -> None:
            done = False

            def condition() -> bool:
                nonlocal done
                was, done = done, True
                return was  # not when it comes, but when it is woken

            await bells.wait(("news",), condition, 60)
            heard.append(number)

        tasks = [asyncio.create_task(follow(n)) for n in range(count)]
        await asyncio.sleep(0)
        act(bells, heard)
        for _ in range(4):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            seen.append(list(heard))
            until = len(heard)
            for _ in range(200):
                if len(heard) > until:
                    break
                await asyncio.sleep(0.001)
        assert len(bells) == count - len(heard)
        for task in tasks:
            task.cancel()
        return seen

    return asyncio.run(waits())


def test_many_who_wait_for_the_same_are_woken_one_part_after_the_other() -> None:
    seen = woken(2, 5, lambda bells, _: bells.ring("news"))
    assert seen[0] == [0, 1]
    assert seen[-1] == [0, 1, 2, 3, 4]


def test_news_of_something_else_wake_nobody() -> None:
    assert woken(2, 3, lambda bells, _: bells.ring("other"))[-1] == []
