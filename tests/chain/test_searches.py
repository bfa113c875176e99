"""What used a nonce is looked for over several looks: at endpoints that take their time, are busy now and then, or keep the states of few blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swarm.faulty_endpoint import FaultyEndpoint, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.finality import Finality
from protocol.chain.sender import SendLimits
from protocol.identity import Key
from tests.chain.paying import deposits
from tests.chain.test_late_deeds import displaced
from tests.chain.test_told import forgetful
from tests.clock import VirtualClock

LIMITS = SendLimits(deadline=3, depth=12)


def search(world: World, chain: Chain, key: Key, blocks: int) -> Callable[[], bytes | None]:
    """A look at what used the nonce of a deed that a wallet has displaced so many blocks ago; whoever can tell, says so."""
    world.anvil.request("anvil_mine", hex(600))
    _, journal = displaced(world, chain, key, 1, LIMITS)
    world.anvil.request("anvil_mine", hex(blocks))
    (deed,) = journal.pending()
    finality = Finality(chain, key.address, LIMITS.depth or 0)
    return lambda: finality.user(deed.nonce, journal.hashes(deed))


def test_a_search_of_an_endpoint_that_is_busy_now_and_then_goes_on(
    world: World, honest: list[FaultyEndpoint], key: Key
) -> None:
    """It answers four such questions in a row, and then says that it is busy for a moment."""
    chain = Chain([each.url for each in honest], world.chain.runs.address, timeout=3)
    look = search(world, chain, key, 100)
    asked = {each.url: 0 for each in honest}

    def limited(url: str) -> Any:
        def fault(method: str, params: Any) -> bytes | None:
            if method != "eth_getTransactionCount" or params[1] == "latest":
                return None
            asked[url] += 1
            return error(-32005, "limit exceeded") if asked[url] > 4 else None

        return fault

    for each in honest:
        each.fault = limited(each.url)
    looks = []
    for _ in range(12):
        looks.append(look())
        asked.update(dict.fromkeys(asked, 0))
    assert any(looks)


def test_two_honest_ones_that_take_their_time_and_prune_can_tell_in_the_end(
    world: World, honest: list[FaultyEndpoint], key: Key
) -> None:
    """Two answers a look."""
    clock = VirtualClock()
    chain = Chain([each.url for each in honest], world.chain.runs.address, timeout=5, clock=clock)
    look = search(world, chain, key, 300)
    forget = forgetful(world)

    def slow(method: str, params: Any) -> bytes | None:
        if method == "eth_getTransactionCount":
            clock.advance(12)
        return forget(method, params)

    for each in honest:
        each.fault = slow
    looks = [look() for _ in range(12)]
    assert any(looks)


def test_who_says_for_a_moment_that_it_is_busy_has_not_forgotten(
    world: World, faulty: FaultyEndpoint, key: Key
) -> None:
    """In words, as public endpoints do: it keeps all states, and would show in which block the nonce was used."""
    world.anvil.request("anvil_mine", hex(600))
    chain = Chain(faulty.url, world.chain.runs.address, timeout=3)
    _, journal = displaced(world, chain, key, 1, LIMITS)
    world.anvil.request("anvil_mine", hex(200))
    asked = [0]

    def limited(method: str, params: Any) -> bytes | None:
        if method == "eth_getTransactionCount" and params[1] != "latest":
            asked[0] += 1
            return error(-32016, "over rate limit") if 8 < asked[0] < 17 else None
        return None

    faulty.fault = limited
    one = Sender(chain, key, journal, SendLimits(deadline=20, depth=12))
    one.send(chain.deposit(key.address, TOKEN), name="deed/0")
    assert deposits(world, key.address) == 1


def test_two_that_take_their_time_tell_in_the_end_though_one_began_later(
    world: World, honest: list[FaultyEndpoint], key: Key
) -> None:
    """Each needs two looks. One was busy during the first look of all."""
    clock = VirtualClock()
    chain = Chain([each.url for each in honest], world.chain.runs.address, timeout=5, clock=clock)
    look = search(world, chain, key, 100)

    def slow(method: str, _: object) -> None:
        if method == "eth_getTransactionCount":
            clock.advance(2.5)

    honest[0].fault = slow
    busy = lambda method, _: error(-32005, "limit exceeded") if "Count" in method else None  # noqa: E731
    honest[1].fault = busy
    looks = [look()]
    honest[1].fault = slow
    looks += [look() for _ in range(8)]
    assert any(looks)


def test_one_count_that_was_wrong_is_asked_for_again(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    """A proxy in front of it once took no heed of the block."""
    chain = Chain(faulty.url, world.chain.runs.address, timeout=3)
    look = search(world, chain, key, 100)
    newest = world.anvil.request("eth_getTransactionCount", key.address, "latest")
    faulty.fault = lambda method, params: result(newest) if method == "eth_getTransactionCount" else None
    assert look() is None
    faulty.fault = lambda *_: None
    looks = [look() for _ in range(2)]
    assert any(looks)


def test_who_is_busy_in_words_again_and_again_tells_in_the_end(world: World, faulty: FaultyEndpoint, key: Key) -> None:
    """Of each look it answers eight such questions."""
    chain = Chain(faulty.url, world.chain.runs.address, timeout=3)
    look = search(world, chain, key, 200)
    asked = [0]

    def limited(method: str, params: Any) -> bytes | None:
        if method == "eth_getTransactionCount" and params[1] != "latest":
            asked[0] += 1
            return error(-32016, "over rate limit") if asked[0] > 8 else None
        return None

    faulty.fault = limited
    looks = []
    for _ in range(8):
        asked[0] = 0
        looks.append(look())
    assert any(looks)
