"""What the hub knows of relays is what its own origin sent them."""

from __future__ import annotations

from protocol.shardcast.guest import Guest
from protocol.shardcast.precedence import RelaysFirst
from tests.clock import VirtualClock
from trainer.hub.relays import RelayTallies
from trainer.page.sources import RelayTally

URL, OTHER = "http://127.0.0.1:8460", "http://127.0.0.1:8461"


def test_bytes_are_counted_by_relay_and_anew_for_each_version() -> None:
    relays, clock = RelaysFirst(), VirtualClock()
    relays.learn([URL, OTHER])
    tallies = RelayTallies(relays, clock)
    relay = Guest("127.0.0.1", URL)
    for step, count in ((3, 100), (4, 50), (3, 7), (4, 5)):
        tallies.sent(relay, step, count)
    assert tallies.told() == {URL: RelayTally(162, 4, 55, clock.wall()), OTHER: RelayTally()}


def test_who_is_no_relay_is_not_listed() -> None:
    relays = RelaysFirst()
    relays.learn([URL])
    tallies = RelayTallies(relays)
    for guest in (Guest("127.0.0.1", None), Guest("127.0.0.1", "http://elsewhere:1"), Guest("10.0.0.1", URL)):
        tallies.sent(guest, 1, 100)
    assert tallies.told() == {URL: RelayTally()}
