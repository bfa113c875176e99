"""What one endpoint says while the others fail, lag, refuse or rest: it decides nothing that lasts, and nobody waits for ever."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from protocol.chain import Chain, completeness
from protocol.chain.endpoints import Endpoints
from protocol.chain.transport import Failed
from protocol.chain.witnesses import Witnesses
from protocol.errors import RpcUnavailable
from tests.chain.committed import submissions_of
from tests.chain.fake_chain import (
    NODE,
    RUN,
    RUNS,
    STRANGER,
    VALIDATOR,
    Answer,
    Lie,
    Silence,
    _selector,
    _words,
    answered,
    block,
    log_entry,
    seated,
    serve,
)
from tests.chain.lies import (
    FORGED,
    HONEST,
    LIAR,
    THIRD,
    Follower,
    ahead,
    beginning,
    dead,
    forging,
    mistimed,
    omitting,
)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completeness, "BATCH", 4)


def spans(params: Any, number: int) -> bool:
    return int(params[0]["fromBlock"], 16) <= number <= int(params[0]["toBlock"], 16)


def require_follower_whole(follower: Follower, told: dict[str, Lie]) -> None:
    """After all have told the truth for a while."""
    told.clear()
    follower.chain.clock.advance(120)
    follower.live(60)
    follower.require_all()


# ---- silence is no consent -------------------------------------------------------------------------------------------------


class Dropping:
    """An honest endpoint that does not answer three requests in a row, once, for a block's header: when `is_armed` is set."""

    def __init__(self, number: Callable[[], int], *, is_silent: bool) -> None:
        self.is_armed = False
        self.left = 3
        self._number = number
        self._is_silent = is_silent

    def __call__(self, truth: Answer, method: str, params: Any) -> Any:
        if (
            self.is_armed
            and self.left
            and method == "eth_getBlockByNumber"
            and params[0] in ("latest", hex(self._number()))
        ):
            self.left -= 1
            if self._is_silent:
                raise Silence
            if params[0] != "latest":
                return None
        return truth(method, params)


@pytest.mark.parametrize("is_silent", [True, False])
def test_requests_dropped_in_a_second_reading_let_no_forged_event_in(
    monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    chain, forged = beginning(), forging(seated(STRANGER))
    honest = Dropping(lambda: FORGED, is_silent=is_silent)

    def liar(truth: Answer, method: str, params: Any) -> Any:
        if int(truth("eth_blockNumber", []), 16) < FORGED + 12:  # not in the first reading
            return truth(method, params)
        if method == "eth_getLogs" and spans(params, FORGED):
            honest.is_armed = True
        return forged(truth, method, params)

    told = {LIAR: liar, HONEST: honest}
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [HONEST, LIAR])
    follower.live(70)
    assert not honest.left
    require_follower_whole(follower, told)


@pytest.mark.parametrize("is_silent", [True, False])
def test_requests_dropped_in_a_second_reading_take_no_true_event_out(
    monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    chain, told, hides = beginning(), dict[str, Lie](), omitting("ValidatorSeated")
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [HONEST, LIAR])
    follower.live(20)
    chain.mine(1, seated(VALIDATOR))
    number = len(chain.blocks) - 1
    follower.live(2)
    honest = Dropping(lambda: number, is_silent=is_silent)

    def liar(truth: Answer, method: str, params: Any) -> Any:
        if method == "eth_getLogs" and spans(params, number) and len(chain.blocks) > number + 12:
            honest.is_armed = True
        return hides(truth, method, params)

    told |= {LIAR: liar, HONEST: honest}
    for _ in range(60):
        follower.live(1)
        assert VALIDATOR in follower.book.ever_validated()
    assert not honest.left
    require_follower_whole(follower, told)


def test_a_block_that_the_other_does_not_know_yet_gives_nobody_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its backends is a block behind; its logs have just said that there is no such event."""
    chain = beginning()
    honest = Dropping(lambda: FORGED, is_silent=False)

    def armed(truth: Answer, method: str, params: Any) -> Any:
        honest.is_armed |= method == "eth_getLogs" and spans(params, FORGED)
        return honest(truth, method, params)

    told = {LIAR: forging(seated(STRANGER)), HONEST: armed}
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [LIAR, HONEST])
    follower.live(FORGED - len(chain.blocks) + 20)
    assert not honest.left
    require_follower_whole(follower, told)


@pytest.mark.parametrize("urls", [[HONEST, LIAR], [HONEST, LIAR, THIRD]], ids=len)
def test_honest_endpoints_that_drop_requests_now_and_then_still_outvote_a_liar(
    monkeypatch: pytest.MonkeyPatch, urls: list[str]
) -> None:
    chain, chance = beginning(), random.Random(1)
    forged: dict[str, dict[str, Any]] = {}

    def liar(truth: Answer, method: str, params: Any) -> Any:
        told = truth(method, params)
        if method == "eth_getLogs" and len(params[0]["topics"]) < 3:
            entry = log_entry(truth("eth_getBlockByNumber", [params[0]["toBlock"]]), 9, *seated(STRANGER))
            forged[entry["transactionHash"]] = entry
            return [*told, entry]
        return {"logs": [forged[params[0]]]} if method == "eth_getTransactionReceipt" and params[0] in forged else told

    def honest(truth: Answer, method: str, params: Any) -> Any:
        if chance.random() < 0.2:
            raise Silence
        return truth(method, params)

    told = {LIAR: liar, HONEST: honest, THIRD: honest}
    serve(monkeypatch, chain, told)
    follower = Follower(chain, urls)
    follower.live(200)
    require_follower_whole(follower, told)


def test_an_endpoint_that_fails_once_at_the_start_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = beginning()
    chain.live(FORGED)
    told = {LIAR: forging(seated(STRANGER)), HONEST: dead}
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [HONEST, LIAR])
    follower.live(10)
    assert follower.waits
    require_follower_whole(follower, told)


# ---- Court -----------------------------------------------------------------------------------------------------------------


def test_the_address_of_court_is_no_single_endpoints_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, evil = beginning(), "0x" + "e" * 40

    def is_court(method: str, params: Any) -> bool:
        return method == "eth_call" and params[0]["data"].startswith(_selector("court()"))

    def liar(truth: Answer, method: str, params: Any) -> Any:
        return _words(["address"], [evil]) if is_court(method, params) else truth(method, params)

    left = [3]

    def honest(truth: Answer, method: str, params: Any) -> Any:
        if is_court(method, params) and left[0]:
            left[0] -= 1
            raise Silence
        return truth(method, params)

    told = {LIAR: liar, HONEST: honest}
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [HONEST, LIAR])
    follower.live(3)
    chain.mine(1, seated(STRANGER))
    chain.logs.pop()["address"] = evil  # so there is such an event, of a contract of the attacker's
    follower.live(10)
    chain.mine(1, seated(VALIDATOR))
    follower.live(20)
    told.clear()
    follower.live(60)
    assert VALIDATOR in follower.book.ever_validated()
    follower.require_all()


# ---- blocks that one alone tells -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("urls", [[HONEST, LIAR], [HONEST, LIAR, THIRD]], ids=len)
def test_while_the_chain_stands_still_nobody_runs_away_with_the_book(
    monkeypatch: pytest.MonkeyPatch, urls: list[str]
) -> None:
    """The sequencer stands for 84 s and nobody is silent; the liar goes on, with a validator 70 blocks later."""
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    follower = Follower(chain, urls)
    follower.live(30)
    top, jump, times = len(chain.blocks) - 1, 0, dict[int, int]()

    def liar(truth: Answer, method: str, params: Any) -> Any:
        if method == "eth_blockNumber":
            return hex(top + jump)
        if method == "eth_getBlockByNumber":
            asked = top + jump if params[0] == "latest" else int(params[0], 16)
            if top < asked <= top + jump:
                return block(asked, times.setdefault(asked, int(chain.clock.wall())), "fork")
        if method == "eth_getLogs" and spans(params, top + 70) and jump >= 70:
            return [*truth(method, params), log_entry(block(top + 70, 0, "fork"), 0, *seated(STRANGER))]
        return truth(method, params)

    told[LIAR] = liar
    for _ in range(42):
        chain.clock.advance(2)
        jump += 60 if jump else 10
        try:
            follower.book.poll()
        except RpcUnavailable as error:
            said = str(error)
        assert STRANGER not in follower.book.ever_validated()
        assert follower.book.head is not None
        assert follower.book.head.number <= top + 64
    assert "only http://liar is at block" in said
    assert "http://honest" in said
    told.clear()
    follower.live(60)
    follower.require_all()


@pytest.mark.parametrize("jump", [20, 300, 20_000])
@pytest.mark.parametrize("is_removed", [False, True], ids=["stays", "is removed"])
def test_what_a_liar_told_alone_goes_when_the_others_are_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, jump: int, is_removed: bool
) -> None:
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [HONEST, LIAR])
    follower.live(30)
    told |= {HONEST: dead, LIAR: ahead(jump)}
    for _ in range(60):  # 120 s
        chain.live(1)
        try:
            follower.book.poll()
        except RpcUnavailable:
            continue
    assert follower.book.head is not None
    assert follower.book.head.number == len(chain.blocks) - 1 + jump
    told.clear()
    if is_removed:
        book = follower.book
        book._chain = Chain([HONEST], RUNS, clock=chain.clock)
        book._witnesses = Witnesses(book._chain, RUN)
        del book._completeness
    chain.clock.advance(60)
    follower.live(60)
    follower.require_all()
    assert "shorter than one endpoint alone had said" in caplog.text or "reorganised" in caplog.text


# ---- endpoints that are slow, late or choosy -------------------------------------------------------------------------------


def late_logs(lag: int) -> Lie:
    """Knows the newest block; its logs come some blocks later."""

    def lie(truth: Answer, method: str, params: Any) -> Any:
        told = truth(method, params)
        top = int(truth("eth_blockNumber", []), 16) - lag
        return [entry for entry in told if int(entry["blockNumber"], 16) <= top] if method == "eth_getLogs" else told

    return lie


@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize(
    "urls", [[THIRD], [THIRD, HONEST], [HONEST, THIRD], [THIRD, LIAR], [THIRD, HONEST, LIAR]],
    ids=lambda urls: " ".join(url[7:] for url in urls),
)  # fmt: skip
def test_logs_that_come_some_blocks_later_delay_nothing_by_more(
    monkeypatch: pytest.MonkeyPatch, urls: list[str], lag: int
) -> None:
    monkeypatch.setattr(completeness, "BATCH", 32)
    chain = beginning()
    serve(monkeypatch, chain, {THIRD: late_logs(lag), LIAR: late_logs(lag)})
    follower = Follower(chain, urls)
    for _ in range(100):
        if len(chain.blocks) % 40 == 20:
            chain.publish(1 + len(chain.blocks) // 40)
        follower.live(1)
        top = len(chain.blocks) - 1
        assert follower.told(top - lag) == follower.true(top - lag)
    assert follower.waited == 0


def refuses(wanted: str, chance: float, seed: int = 0) -> Lie:
    dice = random.Random(seed)

    def lie(truth: Answer, method: str, params: Any) -> Any:
        if method.startswith(wanted) and dice.random() < chance:
            raise Silence
        return truth(method, params)

    return lie


@pytest.mark.parametrize("methods", [("eth_getLogs",), ("eth_getLogs", "eth_getTransactionReceipt")], ids=len)
@pytest.mark.parametrize("urls", [[HONEST, THIRD], [THIRD, HONEST]], ids=lambda urls: urls[0][7:])
def test_a_second_endpoint_without_logs_is_waited_for_a_minute_and_for_the_second_reading(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, urls: list[str], methods: tuple[str, ...]
) -> None:
    def lie(truth: Answer, method: str, params: Any) -> Any:
        if method in methods:
            raise Silence
        return truth(method, params)

    chain, told = beginning(), {THIRD: lie}
    serve(monkeypatch, chain, told)
    follower = Follower(chain, urls)
    follower.live(60)
    assert follower.waits == 0
    waited = follower.waited
    for _ in range(10):
        chain.mine(1, seated(VALIDATOR))
        number = len(chain.blocks) - 1
        follower.live(5)
        assert (number, 0) in follower.told(number)
    assert follower.waited == waited
    assert follower.book.fact("read_twice") < FORGED
    assert "http://third is waited for" in caplog.text
    require_follower_whole(follower, told)


@pytest.mark.parametrize("urls", [[HONEST, THIRD], [THIRD, HONEST]], ids=lambda urls: urls[0][7:])
def test_an_endpoint_that_refuses_every_second_request_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, urls: list[str]
) -> None:
    chain = beginning()
    serve(monkeypatch, chain, {THIRD: refuses("eth", 0.5)})
    follower = Follower(chain, urls)
    longest = 0
    for _ in range(40):
        chain.mine(1, seated(VALIDATOR))
        for _ in range(5):
            follower.live(1)
            longest = max(longest, follower.waits)
    assert longest <= 10
    assert follower.waited < 40


def test_an_endpoint_that_hangs_costs_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request to it takes as long as it may."""
    for urls in ([HONEST, THIRD], [THIRD, HONEST]):
        chain = beginning()
        monkeypatch.undo()
        honest = chain.answer

        def post(self: Endpoints, endpoint: Any, body: Any, cap: int, answer: Any = honest, at: Any = chain) -> Any:
            if endpoint.url == THIRD:
                at.clock.advance(self._patience(endpoint))
                raise Failed("no answer", "timeout")
            return answered(at, body, answer)

        monkeypatch.setattr(Endpoints, "_post", post)
        follower = Follower(chain, urls)
        begun, blocked = chain.clock.monotonic(), 0.0
        while chain.clock.monotonic() - begun < 600:
            chain.mine()
            before = chain.clock.monotonic()
            with suppress(RpcUnavailable):
                follower.book.poll()
            blocked += chain.clock.monotonic() - before
        assert blocked < 60


def test_a_blocks_time_on_one_word_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [HONEST, LIAR])
    follower.book.poll()
    submission = submissions_of(follower.book, NODE, 0)[0]
    true = int(chain.blocks[submission.block]["timestamp"], 16)
    told |= {HONEST: dead, LIAR: mistimed(-86_400)}
    with pytest.raises(RpcUnavailable):
        follower.book.time(submission)
    chain.clock.advance(60)
    with suppress(RpcUnavailable):
        follower.book.time(submission)
    told.clear()
    chain.clock.advance(60)
    assert follower.book.time(submission) == true
    follower.live(20)
    follower.require_all()
