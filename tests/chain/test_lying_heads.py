"""Endpoints that lag, fork, lie about the head, or answer like another chain: who is waited for, and nothing is taken back."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.chain import Chain, completeness
from protocol.chain.endpoints import EndpointsDisagree
from protocol.errors import MurmurationError, RpcUnavailable, WrongChain
from protocol.shell.connection import is_fatal
from tests.chain.committed import submissions_of
from tests.chain.fake_chain import (
    BONDS,
    NODE,
    RUN,
    RUNS,
    Answer,
    Lie,
    block,
    serve,
)
from tests.chain.lies import (
    FORGED,
    HONEST,
    LIAR,
    THIRD,
    Follower,
    ahead,
    another_chain,
    another_hash,
    beginning,
    dead,
    mistimed,
    no_code,
    no_top,
    stuck,
)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completeness, "BATCH", 4)


def test_one_endpoint_alone_is_not_followed_far_while_another_was_just_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [LIAR, HONEST])
    follower.live(20)
    told[LIAR], told[HONEST] = ahead(10**9), dead
    follower.live(10)
    assert follower.waits == 10
    del told[HONEST]
    follower.live(10)
    follower.require_all()


def test_a_chain_that_stays_another_ends_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    def foreign(truth: Answer, method: str, params: Any) -> Any:
        told = truth(method, params)
        if method == "eth_getBlockByNumber" and told:
            return {**told, "hash": block(int(told["number"], 16), 0, "fork")["hash"]}
        return another_chain(truth, method, params)

    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [LIAR])
    follower.live(20)
    before = follower.told(1000)
    told[LIAR] = foreign
    ended = 0
    while not ended:
        follower.waits += 1
        with pytest.raises(WrongChain, match="has become chain 999") as caught:
            follower.book.poll()
        ended = is_fatal(caught.value)
    assert follower.waits == 30
    assert follower.told(1000) == before


def test_an_honest_endpoint_that_stands_still_holds_a_second_one_at_64_blocks_and_two_others_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for urls in ([LIAR, HONEST], [HONEST, LIAR], [LIAR, HONEST, THIRD]):
        chain, told = beginning(), {LIAR: stuck}
        serve(monkeypatch, chain, told)
        follower = Follower(chain, urls)
        follower.live(FORGED + 60 - len(chain.blocks))
        assert follower.waits == 0, "it lags, by the clock"
        follower.live(60)
        assert follower.book.head is not None
        assert follower.book.head.number == (FORGED + 64 if len(urls) == 2 else len(chain.blocks) - 1)
        if len(urls) == 2:
            with pytest.raises(RpcUnavailable, match=r"only http://honest is at block .*, http://liar not"):
                follower.book.poll()
        del told[LIAR]
        follower.live(60)
        follower.require_all()


def test_a_head_that_only_one_endpoint_claims_demotes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for blocks in (8, 10**9):
        chain = beginning()
        asked = serve(monkeypatch, chain, {LIAR: ahead(blocks)})
        reader = Chain([HONEST, LIAR], RUNS, clock=chain.clock)
        for _ in range(5):
            chain.live(20)
            assert reader.block().number == len(chain.blocks) - 1
            asked.clear()
            reader.block_number()
            assert {url for url, _ in asked} == {HONEST}


def test_one_url_whose_backends_lag_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    follower = Follower(chain, [LIAR])
    follower.live(20)
    top = hex(len(chain.blocks) - 1)
    chain.live(1)
    told[LIAR] = lambda truth, method, params: (
        None if method == "eth_getBlockByNumber" and params[0] == top else truth(method, params)
    )
    follower.live(3)
    assert follower.waits == 3
    assert follower.book.rows("SELECT count(*) FROM removed") == [(0,)]
    del told[LIAR]
    follower.live(20)
    assert follower.told(1000) == follower.true(1000)


@pytest.mark.parametrize("urls", [[LIAR, HONEST], [LIAR, HONEST, THIRD]], ids=len)
def test_a_reorg_that_only_one_endpoint_tells_of_takes_nothing_back(
    monkeypatch: pytest.MonkeyPatch, urls: list[str]
) -> None:
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    follower = Follower(chain, urls)
    follower.live(FORGED + 10 - len(chain.blocks))
    told[LIAR] = lambda truth, method, params: (truth if params[:1] == ["latest"] else partial(another_hash, truth))(
        method, params
    )
    follower.live(3)
    assert follower.book.rows("SELECT count(*) FROM removed") == [(0,)]
    del told[LIAR]
    follower.live(20)
    follower.require_all()


def test_a_submissions_time_is_what_two_headers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    followers = [Follower(chain, urls) for urls in ([LIAR, HONEST], [LIAR, HONEST, THIRD])]
    for follower in followers:
        follower.book.poll()
    told[LIAR] = mistimed(30)
    submission = submissions_of(followers[0].book, NODE, 0)[0]
    with pytest.raises(EndpointsDisagree, match="http://liar against http://honest"):
        followers[0].book.time(submission)
    assert followers[1].book.time(submission) == int(chain.blocks[submission.block]["timestamp"], 16)


@pytest.mark.parametrize("lie", [another_chain, no_code, another_hash, no_top], ids=lambda lie: lie.__name__)
def test_a_running_role_waits_for_an_endpoint_that_answers_like_another_chain(
    monkeypatch: pytest.MonkeyPatch, lie: Lie
) -> None:
    """Alone or one of two or three: whatever it raises, no role ends for it."""
    for urls in ([LIAR], [LIAR, HONEST], [LIAR, HONEST, THIRD]):
        chain, told = beginning(), dict[str, Lie]()
        serve(monkeypatch, chain, told)
        follower = Follower(chain, urls)
        follower.live(20)
        told[LIAR] = lie
        for _ in range(20):
            chain.live(1)
            try:
                follower.book.poll()
            except MurmurationError as error:
                assert not is_fatal(error)
        del told[LIAR]
        follower.live(40)
        follower.require_all()


def test_a_contract_that_was_there_and_seems_gone_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, told = beginning(), dict[str, Lie]()
    serve(monkeypatch, chain, told)
    monkeypatch.setattr(Chain, "check_code", lambda *_: None)
    monkeypatch.setattr(Chain, "bonds", SimpleNamespace(address=BONDS))
    one, two = Chain([LIAR], RUNS, clock=chain.clock), Chain([LIAR, HONEST], RUNS, clock=chain.clock)
    told[LIAR] = no_code
    with pytest.raises(WrongChain):
        one.published(RUN)
    del told[LIAR]
    one.check(8_453)
    told[LIAR] = no_code
    with pytest.raises(RpcUnavailable, match="no such contract"):
        one.published(RUN)
    assert two.published(RUN) == 1, "the other one has it"
