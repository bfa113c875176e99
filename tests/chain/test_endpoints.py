"""Several endpoints as one: whatever one of them does, the others carry on, and no lie goes unnoticed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from email.utils import formatdate

import pytest
from swarm.anvil import Anvil
from swarm.faulty_endpoint import Drop, FaultyEndpoint, Hang, Refuse, error, result
from swarm.world import TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.endpoints import Endpoints, EndpointsDisagree
from protocol.chain.ethereum import newest_block, numbered_block, quantity
from protocol.chain.sender import SendLimits
from protocol.chain.settings import ChainSettings
from protocol.errors import RpcUnavailable, StaleHead
from protocol.identity import Key
from tests.clock import VirtualClock


def hang(*_: object) -> bytes:
    raise Hang


def drop(*_: object) -> bytes:
    raise Drop


FAULTS = {
    "hangs": hang,
    "hangs up": drop,
    "garbage": lambda *_: b"\xff\xfe{{{",
    "html": lambda *_: b"<html>busy</html>",
    "a list": lambda *_: b"[1, 2]",
    "nothing": lambda *_: b"",
    "no result": lambda *_: b'{"jsonrpc": "2.0", "id": 1}',
    "deep nesting": lambda *_: b"[" * 200_000,
    "rate limit": lambda *_: error(-32005, "limit exceeded"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_second_endpoint_takes_over(world: World, faulty: FaultyEndpoint, name: str) -> None:
    faulty.fault = FAULTS[name]
    chain = Chain([faulty.url, world.anvil.rpc], world.chain.runs.address, timeout=1)
    assert chain.policy(world.run).window == 86_400
    assert faulty.asked


@pytest.mark.parametrize("name", FAULTS)
def test_alone_it_is_one_clear_error(world: World, faulty: FaultyEndpoint, name: str) -> None:
    faulty.fault = FAULTS[name]
    with pytest.raises(RpcUnavailable) as caught:
        Chain(faulty.url, world.chain.runs.address, timeout=1).policy(world.run)
    assert faulty.url in str(caught.value)


def test_an_answer_without_end_is_cut_off(
    world: World, faulty: FaultyEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.chain.endpoints.ANSWER_BYTES_MAX", 100_000)
    faulty.fault = lambda *_: result("0x" + "00" * 200_000)
    with pytest.raises(RpcUnavailable, match="more than 100000 bytes"):
        Chain(faulty.url, None, timeout=5).block_number()


def test_a_failed_endpoint_rests_and_comes_back(world: World, faulty: FaultyEndpoint) -> None:
    clock = VirtualClock()
    chain = Chain([faulty.url, world.anvil.rpc], None, timeout=1, clock=clock)
    chain.block_number()
    faulty.fault = drop
    chain.block_number()
    asked = sum(faulty.asked.values())
    chain.block_number()
    assert sum(faulty.asked.values()) == asked
    faulty.fault = lambda *_: None
    clock.advance(2)
    chain.block_number()
    assert sum(faulty.asked.values()) == asked + 1


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("said", ["40", "a date"])
def test_an_endpoint_is_asked_nothing_before_the_time_that_it_names(
    faulty: FaultyEndpoint, status: int, said: str
) -> None:
    clock = VirtualClock()

    def refuse(*_: object) -> bytes:
        when = formatdate(clock.wall() + 40, usegmt=True) if said == "a date" else said
        raise Refuse(status, Retry_After=when)

    faulty.fault = refuse
    chain = Chain(faulty.url, None, timeout=5, clock=clock)
    for _ in range(3):
        with pytest.raises(RpcUnavailable):
            chain.block_number()
        clock.advance(10)
    assert sum(faulty.asked.values()) == 1
    faulty.fault = lambda *_: None
    clock.advance(6)
    waits = len(clock.waits)
    chain.block_number()
    assert sum(clock.waits[waits:]) == pytest.approx(4, abs=1.1), "a short time is waited for"


def test_while_one_asks_to_be_left_alone_another_is_asked(world: World, faulty: FaultyEndpoint) -> None:
    clock = VirtualClock()

    def refuse(*_: object) -> bytes:
        raise Refuse(429, Retry_After="100000")

    faulty.fault = refuse
    chain = Chain([faulty.url, world.anvil.rpc], None, timeout=5, clock=clock)
    chain.block_number()
    asked = sum(faulty.asked.values())
    for _ in range(9):
        clock.advance(60)
        chain.block_number()
    assert sum(faulty.asked.values()) == asked
    faulty.fault = lambda *_: None
    clock.advance(61)
    chain.block_number()
    assert sum(faulty.asked.values()) > asked, "no longer than ten minutes"


NO_DATES = [
    "Mon, 01 Jan 99999999999 00:00:00 GMT",
    f"Mon, 01 Jan 2024 00:00:00 +{'9' * 14}",
    "Mon, 01 Jan 0100 00:00:00 -0000",
    "1e999",
]


@pytest.mark.parametrize("said", NO_DATES)
def test_a_date_that_is_none_spoils_no_answer(world: World, faulty: FaultyEndpoint, said: str) -> None:
    faulty.headers["Retry-After"] = said
    chain = Chain([faulty.url, world.anvil.rpc], None, timeout=5)
    assert chain.block() == world.chain.block()
    asked = sum(faulty.asked.values())
    chain.block()
    assert sum(faulty.asked.values()) > asked


@pytest.mark.parametrize("is_compared", [False, True], ids=["asked", "compared"])
@pytest.mark.parametrize("place", [0, 1], ids=["first", "second"])
def test_numbers_beyond_all_bounds_are_that_endpoints_failure(
    world: World, faulty: FaultyEndpoint, place: int, is_compared: bool
) -> None:
    """A block's time of 500 digits was an OverflowError, which ended the role."""
    huge = "0x" + "f" * 500
    block = {"number": huge, "hash": "0x" + "11" * 32, "timestamp": huge}
    faulty.fault = lambda method, _: result(huge if method == "eth_blockNumber" else block)
    urls = [world.anvil.rpc]
    urls.insert(place, faulty.url)
    chain = Chain(urls, None, timeout=5)
    chain.expect_blocks(1e9)
    if not is_compared:
        chain.provider._checked_at = time.monotonic()
    assert chain.block_number() == world.chain.block_number()
    assert chain.block() == world.chain.block()


def test_what_nobody_thought_of_in_an_answer_is_that_endpoints_failure(
    world: World, faulty: FaultyEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.chain.transport._seconds", lambda said, now: 1 / 0 if said else 0.0)
    faulty.headers["Retry-After"] = "1"
    chain = Chain([faulty.url, world.anvil.rpc], world.chain.runs.address, timeout=5)
    with chain.ahead(newest_block(), numbered_block(0)):
        assert chain.block() == world.chain.block()
    assert chain.policy(world.run).window == 86_400
    with pytest.raises(RpcUnavailable, match="nonsense"):
        chain.singles[0].block()


@pytest.mark.parametrize("said", ["0x-5", "0x+5", "0x 5", "0x5_0", "0x٣", "0x", "5", "0x" + "f" * 65, 5, None])
def test_a_quantity_is_hex_digits(said: object) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        quantity(said)


def test_an_endpoint_that_stays_away_for_hours_is_still_no_more_than_unavailable() -> None:
    """The pause after each failure doubles: the thousandth doubling must not end the role."""
    clock = VirtualClock()
    chain = Chain("http://127.0.0.1:9", None, timeout=1, clock=clock)
    for _ in range(1100):
        with pytest.raises(RpcUnavailable):
            chain.block_number()
        clock.advance(2)


def test_an_endpoint_that_lags_is_passed_over(world: World, faulty: FaultyEndpoint) -> None:
    world.anvil.request("anvil_mine", hex(30))
    head = world.chain.block_number()
    faulty.fault = lambda method, _: result(hex(head - 20)) if method == "eth_blockNumber" else None
    chain = Chain([faulty.url, world.anvil.rpc], None, timeout=5)
    assert chain.block_number() == head
    assert chain.block_number() == head


def test_a_head_that_goes_back_is_noticed(world: World, faulty: FaultyEndpoint) -> None:
    world.anvil.request("anvil_mine", hex(30))
    chain = Chain([faulty.url, world.anvil.rpc], None, timeout=5)
    head = chain.block_number()
    faulty.fault = lambda method, _: result(hex(3)) if method == "eth_blockNumber" else None
    chain.block_number()  # the lie itself may come through once; from then on the other is asked
    assert chain.block_number() >= head


# ---- the age of the newest block -------------------------------------------------------------------------------------------


def newest(number: int, age: float) -> Callable[[str, list[str]], bytes | None]:
    """A chain whose newest block is `age` seconds old."""

    def fault(method: str, params: list[str]) -> bytes | None:
        if method == "eth_blockNumber":
            return result(hex(number))
        if method != "eth_getBlockByNumber":
            return None
        asked = number if params[0] == "latest" else int(params[0], 16)
        block = {"number": hex(asked), "hash": f"0x{asked:064x}", "timestamp": hex(int(time.time() - age))}
        return result(block | {"baseFeePerGas": "0x1"})

    return fault


@pytest.fixture
def second(anvil: Anvil) -> Iterator[FaultyEndpoint]:
    endpoint = FaultyEndpoint(anvil.rpc)
    yield endpoint
    endpoint.close()


def test_a_frozen_endpoint_is_no_clock_even_while_block_numbers_are_close(
    faulty: FaultyEndpoint, second: FaultyEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.fault, second.fault = newest(100, age=90), newest(101, age=1)
    chain = Chain([faulty.url, second.url], None, timeout=5)
    chain.expect_blocks(60)
    assert chain.block().number == 101
    assert chain.block_number() == 101
    asked = sum(faulty.asked.values())
    assert {chain.block().number for _ in range(5)} == {101}
    assert sum(faulty.asked.values()) == asked, "it is passed over"
    assert caplog.text.count("s old") == 1


def test_a_frozen_endpoint_is_asked_again_once_it_has_caught_up(faulty: FaultyEndpoint, second: FaultyEndpoint) -> None:
    clock = VirtualClock(wall=time.time())
    faulty.fault, second.fault = newest(100, age=90), newest(101, age=1)
    chain = Chain([faulty.url, second.url], None, timeout=5, clock=clock)
    chain.expect_blocks(60)
    assert chain.block().number == 101
    faulty.fault = newest(102, age=-61)
    clock.advance(61)
    assert chain.block().number == 102


def test_a_chain_that_stands_still_is_nobodys_clock(
    faulty: FaultyEndpoint, second: FaultyEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.fault, second.fault = newest(100, age=90), newest(100, age=95)
    chain = Chain([faulty.url, second.url], None, timeout=5)
    chain.expect_blocks(60)
    for _ in range(3):
        with pytest.raises(StaleHead, match=r"newest block is 9\d s old") as caught:
            chain.block()
    assert "chain.rpc" in caught.value.hint
    assert caplog.text.count("stands still") == 1
    assert chain.block_number() == 100, "what is no clock can still be read"
    chain.expect_blocks(0)
    assert chain.block().number == 100


def test_nothing_is_sent_by_a_clock_that_stands_still(world: World, faulty: FaultyEndpoint) -> None:
    world.anvil.give((key := Key.generate()).address, TOKEN)
    chain = Chain(faulty.url, world.chain.runs.address, timeout=5)
    chain.expect_blocks(60)
    faulty.fault = lambda method, params: (
        newest(100, age=90)(method, params) if method == "eth_getBlockByNumber" and params[0] == "latest" else None
    )
    with pytest.raises(StaleHead):
        Sender(chain, key).send(chain.approve_tokens(chain.bonds.address, 1))
    assert not faulty.asked["eth_sendRawTransaction"]
    faulty.fault = lambda *_: None
    chain.expect_blocks(0)
    Sender(chain, key).send(chain.approve_tokens(chain.bonds.address, 1))


def test_what_was_done_is_still_told_by_a_clock_that_stands_still(world: World, faulty: FaultyEndpoint) -> None:
    world.anvil.give((key := Key.generate()).address, TOKEN)
    chain = Chain(faulty.url, world.chain.runs.address, timeout=5)
    one = Sender(chain, key, limits=SendLimits(depth=12))
    call = chain.approve_tokens(chain.bonds.address, 1)
    sent = one.send(call, name="approval")
    chain.expect_blocks(60)
    faulty.fault = lambda method, params: (
        newest(100, age=90)(method, params) if method == "eth_getBlockByNumber" and params[0] == "latest" else None
    )
    assert one.send(call, name="approval") == sent
    with pytest.raises(StaleHead):
        one.send(call, name="another")


def test_a_short_pause_ends_no_long_one() -> None:
    endpoints = Endpoints([f"http://127.0.0.1:{port}" for port in (1, 2)], timeout=1, clock=(clock := VirtualClock()))
    endpoints.pass_over(0, "it left out events", seconds=600)
    endpoints.pass_over(0, "its events come later than its blocks")
    clock.advance(590)
    assert endpoints.order(of_logs=True) == [1, 0]
    clock.advance(20)
    assert endpoints.order(of_logs=True) == [0, 1]


def test_a_role_holds_public_chains_to_the_clock_and_development_chains_not(
    world: World, faulty: FaultyEndpoint
) -> None:
    late = VirtualClock(wall=time.time() + 10**9)
    where = {"rpc": faulty.url, "contract": world.chain.runs.address, "run": world.run}
    ChainSettings(**where, chain_id=31_337).open(clock=late).block()
    faulty.fault = lambda method, _: result(hex(8_453)) if method == "eth_chainId" else None
    with pytest.raises(StaleHead):
        ChainSettings(**where, chain_id=8_453).open(clock=late).block()
    ChainSettings(**where, chain_id=8_453, head_age_seconds=0).open(clock=late).block()


def test_endpoints_that_hold_different_blocks_are_an_error(world: World, faulty: FaultyEndpoint) -> None:
    world.anvil.request("anvil_mine", hex(30))

    def lie(method: str, params: list[object]) -> bytes | None:
        return result({"hash": "0x" + "99" * 32, "number": params[0]}) if method == "eth_getBlockByNumber" else None

    faulty.fault = lie
    with pytest.raises(EndpointsDisagree, match="different blocks"):
        Chain([world.anvil.rpc, faulty.url], None, timeout=5).block_number()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/v2/CANARY", "http://127.0.0.1:1/?key=CANARY", "http://CANARY@127.0.0.1:1"]
)
def test_a_providers_key_is_in_no_error_and_no_log(url: str, caplog: pytest.LogCaptureFixture) -> None:
    chain = Chain([url, url.replace(":1", ":2")], None, timeout=1)
    with pytest.raises(RpcUnavailable) as caught:
        chain.block_number()
    assert "http://127.0.0.1:1/…" in str(caught.value)
    assert "CANARY" not in str(caught.value) + caplog.text + chain.rpc
