"""A worker that heeds what the trainer wants, against a real chain and a real hub."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from node.contributor.commitments import RecentCommitments
from node.contributor.wanted import AT_AN_END, ENOUGH
from protocol.hub.need import SignedNeed
from protocol.identity import Key
from protocol.shell.home import write_json
from tests.clock import eventually
from tests.node.stage import Stage, running
from tests.node.working import a_worker, submitted, waits_because


def say(stage: Stage, **changes: int) -> None:
    """The trainer says what it needs: one submission at first."""
    groups = stage.tiny.spec.sampling.groups_per_submission
    told = {"step": 0, "last": 9, "groups": groups, "ahead": 100, "ready": 0, "settled": 0, "usable": 1000, **changes}
    write_json(stage.folder / "hub/need.json", told)


def has_made(stage: Stage, count: int) -> Callable[[], bool]:
    return lambda: len(submitted(stage)) == count


def test_it_makes_what_is_wanted_and_goes_on_when_there_is_more(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    say(stage)
    with running(a_worker(stage, node)):
        eventually(waits_because(stage, ENOUGH), within=40, what="it has made what is wanted")
        assert has_made(stage, 1)()
        say(stage, settled=1)
        eventually(has_made(stage, 2), what="it makes what is wanted now")
        say(stage, settled=2, step=9)
        eventually(waits_because(stage, AT_AN_END), what="nothing is wanted any more")
        status = stage.home("node").read_status() or {}
        assert (status["over"], status["last_step"]) == (True, 9)
        assert has_made(stage, 2)()


def test_a_node_that_waits_hears_what_is_wanted_and_does_not_ask(stage: Stage) -> None:
    node, turns = stage.seated(), 0

    def turned() -> None:
        nonlocal turns
        turns += 1

    stage.publish()
    say(stage, ready=99)
    worker = a_worker(stage, node)
    worker._progress = turned
    with running(worker):
        eventually(waits_because(stage, ENOUGH), within=40, what="nothing is wanted")
        eventually(lambda: stage.hub.hub.bells.waits("need"), what="it waits for news")
        before, seen = len(stage.hub.requests), turns
        eventually(lambda: turns >= seen + 10, within=40, what="it has looked ten times whether to work")
        assert len(stage.hub.requests) == before
        say(stage)
        eventually(has_made(stage, 1), within=40, what="it makes what is wanted now")


def test_what_others_commit_to_counts(stage: Stage) -> None:
    node, other = stage.seated(), stage.seated()
    stage.publish()
    stage.submit(other, stage.make(other))
    say(stage)
    with running(a_worker(stage, node)):
        eventually(waits_because(stage, ENOUGH), within=40, what="the other has made what is wanted")
        assert [s.node for s in submitted(stage)] == [other.address]


def _forged(stage: Stage) -> Any:
    need = stage.hub.hub.need(stage.folder / "hub/need.json")
    stranger = SignedNeed.issue(
        SignedNeed.parse(need, stage.world.chain.domain, stage.world.run, stage.world.trainer.key.address).need,
        Key.generate(),
        stage.world.chain.domain,
    )
    return {"entries": [], "from": 0, "since": 0, "challenge": "", "tag": "", "need": stranger.as_json()}


@pytest.mark.parametrize("what", ["nothing", "garbage", "forged", "an error"])
def test_without_a_word_that_counts_it_works_on(stage: Stage, what: str) -> None:
    node = stage.seated()
    stage.publish()
    say(stage, ready=99)  # nothing is wanted, says who is not to be believed
    answers = {
        "garbage": ("[7]", 200),
        "forged": (json.dumps(_forged(stage)), 200),
        "an error": ("no", 500),
        "nothing": ("no", 404),
    }
    body, status = answers[what]
    stage.hub.fault = lambda method, path: PlainTextResponse(body, status) if "/nodes/" in path else None
    with running(a_worker(stage, node)):
        eventually(has_made(stage, stage.world.chain.policy(stage.world.run).max_per_step), within=40, what="it works")


def test_a_statement_that_ran_out_means_nothing(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    say(stage, ready=99)
    stage.hub.hub.learn()
    old = stage.hub.hub.need(stage.folder / "hub/need.json")
    stage.world.anvil.advance(old["until"] - stage.world.chain.block().time + 1)
    stage.hub.hub.need = lambda path: old  # type: ignore[method-assign]
    with running(a_worker(stage, node)):
        eventually(lambda: len(submitted(stage)) >= 2, within=40, what="it works")


def test_no_statement_binds_a_node_for_longer_than_a_statement_holds(stage: Stage) -> None:
    """A trainer that signs one for ever, and is gone, would idle the swarm for ever."""
    node, world = stage.seated(), stage.world
    stage.publish()
    say(stage, ready=99)
    stage.hub.hub.learn()
    of = SignedNeed.parse(
        stage.hub.hub.need(stage.folder / "hub/need.json"), world.chain.domain, world.run, world.trainer.key.address
    ).need
    endless = SignedNeed.issue(replace(of, until=of.until + 10**6), world.trainer.key, world.chain.domain)
    stage.hub.hub.need = lambda path: endless.as_json()  # type: ignore[method-assign]
    with running(a_worker(stage, node)):
        eventually(lambda: len(submitted(stage)) >= 2, within=40, what="it works")


def test_commitments_are_counted_by_node_and_by_age(stage: Stage) -> None:
    one, two = stage.seated(), stage.seated()
    world, found = stage.world, RecentCommitments(stage.world.chain, stage.world.run)
    world.publish(0)
    world.submit(one, 0, 0, b"a" * 32)
    assert found.look(0).in_window == Counter({one.address: 1})
    world.submit(one, 0, 1, b"b" * 32)
    world.publish(1)
    world.submit(two, 1, 0, b"c" * 32)
    committed = found.look(1)
    assert committed.in_window == Counter({two.address: 1})
    assert committed.lately == Counter({one.address: 2, two.address: 1})


def test_a_commitment_that_a_reorg_took_back_counts_no_more(stage: Stage) -> None:
    one = stage.seated()
    world, found = stage.world, RecentCommitments(stage.world.chain, stage.world.run)
    world.publish(0)
    before = world.anvil.request("evm_snapshot")
    world.submit(one, 0, 0, b"a" * 32)
    assert found.look(0).in_window.total() == 1
    world.anvil.request("evm_revert", before)
    world.anvil.request("anvil_mine", "0x2")
    assert found.look(0).in_window.total() == 0
