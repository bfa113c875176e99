"""The worker is refused, or has no money or seat: it waits where that helps, and ends with the right code where not."""

from __future__ import annotations

import pytest
from swarm.world import TOKEN

from node.contributor import submission_log as states
from protocol.chain import Sender
from protocol.errors import Banned, InsufficientFunds, PreflightError, RpcUnavailable
from protocol.identity import Key
from protocol.metrics import REGISTRY
from tests.clock import eventually
from tests.node.stage import Stage, running
from tests.node.working import a_worker, hooked, submitted, waits_because


def test_it_goes_on_when_the_head_moved_while_it_generated(stage: Stage) -> None:
    """grace is 60 s of block time; beyond it the old version is refused with WrongStep."""
    node = stage.seated()
    stage.publish()
    worker = a_worker(stage, node)

    def move() -> None:
        stage.publish()
        stage.world.anvil.advance(61)

    hooked(worker).before = move
    with running(worker) as ended:
        eventually(lambda: submitted(stage), what="it submits for the new version")
        assert {s.step for s in submitted(stage)} == {1}
        assert not ended.event.is_set()
        eventually(lambda: worker.submissions.all(states.LOST), what="the refused one is given up")
        lost = worker.submissions.all(states.LOST)
        assert [(s.ref.step, s.ref.sequence) for s in lost] == [(0, 0)]
        assert not (stage.home("node").data / "rollouts" / f"{lost[0].ref.root.hex()}.parquet").exists()


def test_it_goes_on_when_a_reorg_replaced_the_beacon(stage: Stage) -> None:
    node = stage.seated()
    stage.world.anvil.advance(1)
    stage.publish()
    worker = a_worker(stage, node)
    anvil = stage.world.anvil

    def replace_head() -> None:
        before = stage.world.chain.publication(stage.world.run, 0).beacon
        anvil.request("anvil_reorg", 4, [])  # the publication, two blocks and the draw
        stage.world.trainer = Sender(
            stage.world.chain, stage.world.trainer.key
        )  # the old one counts a nonce that is free again
        stage.world.publish(0, stage.origin.publish(stage.tiny.model, 0).digest)
        assert stage.world.chain.publication(stage.world.run, 0).beacon != before

    hooked(worker).before = replace_head
    with running(worker) as ended:
        eventually(lambda: submitted(stage), what="it submits with the new beacon")
        assert not ended.event.is_set()
        assert [s.ref.sequence for s in worker.submissions.all(states.LOST)] == [0]


def test_a_paused_run_is_waited_for_without_burning_power(stage: Stage) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    world.owner.send(world.chain.pause(world.run, True))
    world.anvil.advance(61)  # the notice
    with running(a_worker(stage, node)) as ended:
        eventually(waits_because(stage, "paused"), what="the status says so")
        assert not list((stage.home("node").data / "rollouts").glob("*"))
        world.owner.send(world.chain.pause(world.run, False))
        eventually(lambda: submitted(stage), what="it goes on")
        assert not ended.event.is_set()


def test_an_open_hard_case_is_waited_for_and_the_status_says_so(stage: Stage) -> None:
    node, validator, world = stage.seated(), stage.validator(), stage.world
    stage.publish()
    made = stage.make(node)
    stage.submit(node, made)
    world.accuse(validator, made.ref)
    with running(a_worker(stage, node)) as ended:
        eventually(waits_because(stage, "hard case"), what="the status says so")
        assert len(submitted(stage)) == 1
        assert REGISTRY["murmur_node_open_cases"].values() == {(): 1}
        assert 0 < REGISTRY["murmur_node_suspended_seconds"].values()[()] < 10 * 86_400
        assert not ended.event.is_set()


def test_a_run_without_budget_is_waited_for(stage: Stage) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    free = world.chain.funds(world.run).free
    worker = a_worker(stage, node)

    def defund() -> None:
        world.owner.send(world.chain.defund(world.run, free))
        world.anvil.advance(61)  # the notice

    hooked(worker).before = defund
    with running(worker) as ended:
        eventually(waits_because(stage, "budget"), what="the status says so")
        assert not submitted(stage)
        world.owner.send(world.chain.fund(world.run, 1000 * TOKEN))
        eventually(lambda: submitted(stage), what="it goes on")
        assert not ended.event.is_set()


def test_a_banned_node_ends_with_code_nine(stage: Stage) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    with running(a_worker(stage, node)) as ended:
        eventually(lambda: submitted(stage), what="it works")
        world.owner.send(world.chain.ban(world.run, node.address))
        world.anvil.advance(61)  # the notice
        assert ended.event.wait(15)
        assert isinstance(ended.error, Banned)
        assert ended.error.exit_code == 9


def test_a_ban_between_the_look_and_the_submission_is_called_a_ban(stage: Stage) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    worker = a_worker(stage, node)

    def ban() -> None:
        world.owner.send(world.chain.ban(world.run, node.address))
        world.anvil.advance(61)  # the notice

    hooked(worker).before = ban
    with running(worker) as ended:
        assert ended.event.wait(15)
        assert isinstance(ended.error, Banned)


def test_without_a_seat_it_says_how_to_take_one(stage: Stage) -> None:
    stage.publish()
    with running(a_worker(stage, Key.generate())) as ended:
        assert ended.event.wait(15)
        assert isinstance(ended.error, PreflightError)
        assert "node stake" in ended.error.hint


def test_a_seat_that_is_left_while_it_works_ends_it_with_these_words(stage: Stage) -> None:
    node, world = stage.seated(), stage.world
    stage.publish()
    worker = a_worker(stage, node)
    hooked(worker).before = lambda: world.sender(stage.operators[node.address]).send(
        world.chain.leave(world.run, node.address)
    )
    with running(worker) as ended:
        assert ended.event.wait(15)
        assert isinstance(ended.error, PreflightError)
        assert "was left" in str(ended.error) and "node status" in ended.error.hint


def test_without_gas_money_it_ends_and_says_where_to_send_some(stage: Stage) -> None:
    node = stage.seated()
    stage.publish()
    stage.world.anvil.give(node.address, 0)
    with running(a_worker(stage, node)) as ended:
        assert ended.event.wait(15)
        assert isinstance(ended.error, InsufficientFunds)
        assert node.address in ended.error.hint


def test_a_chain_that_does_not_answer_is_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    node = stage.seated()
    stage.publish()
    chain, down = stage.world.chain, [True]
    read = chain.seat

    def seat(*arguments, **which):
        if down[0]:
            raise RpcUnavailable("no answer")
        return read(*arguments, **which)

    monkeypatch.setattr(chain, "seat", seat)
    with running(a_worker(stage, node)) as ended:
        eventually(waits_because(stage, "no answer"), what="the status says so")
        down[0] = False
        eventually(lambda: submitted(stage), what="it goes on")
        assert not ended.event.is_set()


def test_a_seat_of_a_class_that_the_run_does_not_list_makes_nothing(stage: Stage) -> None:
    node = stage.seated(hardware=7)
    stage.publish()
    with running(a_worker(stage, node)) as ended:
        assert ended.event.wait(15)
        assert isinstance(ended.error, PreflightError)
        assert "hardware class 7 cannot work in this run, which lists 0, 1" in str(ended.error)
        assert "node stake --hardware" in ended.error.hint
        assert not submitted(stage)
