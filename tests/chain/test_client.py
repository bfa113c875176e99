"""The chain client against real contracts on Anvil."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from swarm.world import DAY, TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain import index as chain_index
from protocol.chain.events import Challenged, Event, Settled, Submitted
from protocol.chain.index import EventIndex
from protocol.chain.types import Role, Stage, State
from protocol.errors import ConfigError, InsufficientFunds, RpcUnavailable, TransactionReverted, WrongChain
from protocol.identity import Key
from protocol.submission import SubmissionRef


def test_a_submission_is_read_back_as_it_was_sent(world: World) -> None:
    operator, node = Key.generate(), Key.generate()
    world.seat_node(operator, node, hardware=3)
    world.publish(0)
    ref = world.submit(node, 0, 0, b"\x01" * 32, units=77)
    work = world.chain.work(world.run, ref)
    assert (work.units, world.chain.state(world.run, ref)) == (77, State.SUBMITTED)
    seat = world.chain.seat(world.run, node.address)
    assert (seat.operator, seat.role, seat.hardware) == (operator.address, Role.ACTIVE, 3)
    assert seat.next_sequence(0) == 1
    assert seat.next_sequence(1) == 0


def test_the_work_id_is_the_contracts(world: World) -> None:
    ref = SubmissionRef(world.owner.key.address, 3, 9, b"\x05" * 32)
    assert world.chain.runs.functions.workId(7, ref.as_tuple()).call() == ref.work_id(7)


def test_a_refusal_names_the_contracts_reason_and_values(world: World) -> None:
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    beacon = world.publish(0)
    with pytest.raises(TransactionReverted, match=r"WrongSequence \(sequence 5, expected 0\)") as caught:
        world.sender(node).send(
            world.chain.submit(world.run, SubmissionRef(node.address, 0, 5, b"\x01" * 32), 1, beacon)
        )
    assert caught.value.reason == "WrongSequence"
    assert caught.value.hint


def test_a_sender_goes_on_after_a_refusal(world: World) -> None:
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    world.publish(0)
    with pytest.raises(TransactionReverted):
        world.submit(node, 0, 3, b"\x01" * 32)
    world.submit(node, 0, 0, b"\x01" * 32)
    world.submit(node, 0, 1, b"\x02" * 32)


def test_missing_stake_is_a_matter_of_funds(world: World) -> None:
    validator = Key.generate()
    world.owner.send(world.chain.approve_validator(world.run, validator.address, True))
    with pytest.raises(InsufficientFunds, match="InsufficientStake"):
        world.sender(validator).send(world.chain.enlist(world.run, True))


def test_missing_gas_money_says_where_to_send_it(world: World) -> None:
    poor = Key.generate()
    with pytest.raises(InsufficientFunds) as caught:
        Sender(world.chain, poor).send(world.chain.approve_tokens(world.chain.bonds.address, 1))
    assert poor.address in caught.value.hint


def test_a_silent_endpoint_is_unavailable_not_a_crash() -> None:
    with pytest.raises(RpcUnavailable):
        _ = Chain("http://127.0.0.1:9", None, timeout=1).chain_id


def test_another_chain_or_foreign_code_is_noticed(world: World) -> None:
    world.chain.check(31337)
    with pytest.raises(WrongChain, match="not 8453"):
        world.chain.check(8453)
    with pytest.raises(WrongChain, match="no such contract"):
        Chain(world.anvil.rpc, Key.generate().address).check()
    with pytest.raises(WrongChain, match="other code"):
        Chain(world.anvil.rpc, world.chain.token.address).check()


def test_an_unknown_run_is_a_config_error(world: World) -> None:
    with pytest.raises(ConfigError, match="no run 99"):
        world.chain.policy(99)


def test_the_index_sees_every_event_once_and_in_order(world: World) -> None:
    index = EventIndex(world.chain)
    index.poll()
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    world.publish(0)
    for sequence in range(3):
        world.submit(node, 0, sequence, bytes([sequence + 1]) * 32)
    added = [e.data for e in index.poll().added if isinstance(e.data, Submitted)]
    assert [(s.node, s.sequence, s.units) for s in added] == [(node.address, i, 10) for i in range(3)]
    assert index.poll().added == []
    assert [data for _, data in index.events(Submitted)] == added


def test_the_index_takes_back_what_a_reorg_took_back(world: World) -> None:
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    world.publish(0)
    world.submit(node, 0, 0, b"\x01" * 32)
    index = EventIndex(world.chain)
    index.poll()
    world.submit(node, 0, 1, b"\x02" * 32)
    index.poll()
    world.anvil.request("anvil_reorg", 1, [])
    changes = index.poll()
    assert [e.data.sequence for e in changes.removed if isinstance(e.data, Submitted)] == [1]
    assert [data.sequence for _, data in index.events(Submitted)] == [0]


def test_the_index_resumes_from_its_file(world: World, tmp_path) -> None:
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    world.publish(0)
    world.submit(node, 0, 0, b"\x01" * 32)
    first = EventIndex(world.chain, path=tmp_path / "index.sqlite")
    first.poll()
    first.close()
    world.submit(node, 0, 1, b"\x02" * 32)
    second = EventIndex(world.chain, path=tmp_path / "index.sqlite")
    assert [e.data.sequence for e in second.poll().added if isinstance(e.data, Submitted)] == [1]
    assert [data.sequence for _, data in second.events(Submitted)] == [0, 1]


class Flaky:
    """A chain whose provider does not answer for the ranges that `refuses`, and remembers what it was asked."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.refuses: Callable[[int, int], bool] = lambda first, last: False
        self.asked: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chain, name)

    def logs(self, first: int, last: int) -> list[Event]:
        self.asked.append((first, last))
        if self.refuses(first, last):
            raise RpcUnavailable("not now")
        return self._chain.logs(first, last)


def sequences(events: list[Event]) -> list[int]:
    return [event.data.sequence for event in events if isinstance(event.data, Submitted)]


@pytest.fixture
def flaky(world: World, monkeypatch: pytest.MonkeyPatch) -> Flaky:
    monkeypatch.setattr(chain_index, "_RANGE", 4)
    return Flaky(world.chain)


def committing(world: World) -> Key:
    node = Key.generate()
    world.seat_node(Key.generate(), node)
    world.publish(0)
    return node


def test_a_range_that_fails_in_the_middle_loses_no_event(world: World, flaky: Flaky) -> None:
    node, index = committing(world), EventIndex(flaky)  # type: ignore[arg-type]
    index.poll()
    blocks = []
    for sequence in range(12):
        world.submit(node, 0, sequence, bytes([sequence + 1]) * 32)
        blocks.append(world.chain.block().number)
    flaky.refuses = lambda first, last: first <= blocks[6] <= last
    for _ in range(2):
        with pytest.raises(RpcUnavailable):
            index.poll()
    assert len(list(index.events(Submitted))) == 6, "half of it was read"
    flaky.refuses = lambda first, last: False
    changes = index.poll()
    assert (sequences(changes.added), changes.removed) == (list(range(12)), [])
    assert index.poll().added == []


def test_ranges_grow_again_after_an_outage(world: World, flaky: Flaky) -> None:
    index = EventIndex(flaky)  # type: ignore[arg-type]
    flaky.refuses = lambda first, last: True
    with pytest.raises(RpcUnavailable):
        index.poll()
    flaky.refuses, flaky.asked = lambda first, last: False, []
    for _ in range(20):
        world.anvil.advance(1)
    index.poll()
    sizes = [last - first + 1 for first, last in flaky.asked]
    assert sizes[:4] == [1, 2, 4, 4]


def test_what_a_reorg_took_back_is_told_after_a_poll_that_failed(world: World, flaky: Flaky) -> None:
    node, index = committing(world), EventIndex(flaky)  # type: ignore[arg-type]
    world.submit(node, 0, 0, b"\x01" * 32)
    index.poll()
    world.submit(node, 0, 1, b"\x02" * 32)
    index.poll()
    world.anvil.request("anvil_reorg", 1, [])
    flaky.refuses = lambda first, last: True
    with pytest.raises(RpcUnavailable):
        index.poll()
    flaky.refuses = lambda first, last: False
    changes = index.poll()
    assert (sequences(changes.removed), sequences(changes.added)) == ([1], [])
    assert index.poll().removed == []


def test_what_came_and_went_between_two_polls_is_never_told(world: World, flaky: Flaky) -> None:
    node, index = committing(world), EventIndex(flaky)  # type: ignore[arg-type]
    index.poll()
    world.submit(node, 0, 0, b"\x01" * 32)
    seen = world.chain.block().number
    world.anvil.advance(1)
    flaky.refuses = lambda first, last: last > seen
    with pytest.raises(RpcUnavailable):
        index.poll()
    assert len(list(index.events(Submitted))) == 1
    world.anvil.request("anvil_reorg", 2, [])
    flaky.refuses = lambda first, last: False
    changes = index.poll()
    assert (sequences(changes.removed), sequences(changes.added)) == ([], [])


def test_a_hard_verdict_slashes_bans_and_revokes(world: World) -> None:
    operator, node, validator = Key.generate(), Key.generate(), Key.generate()
    world.seat_node(operator, node)
    world.seat_validator(validator)
    world.publish(0)
    ref = world.submit(node, 0, 0, b"\x01" * 32)
    sent = world.accuse(validator, ref).event(Challenged)
    assert (sent.hard, sent.seat, sent.number) == (True, node.address, 1)
    assert world.chain.case(world.run, node.address, 1).hard
    with pytest.raises(TransactionReverted, match="TooEarly"):
        world.sender(validator).send(world.chain.settle(world.run, node.address, 1))
    world.anvil.advance(3600)
    settled = world.sender(validator).send(world.chain.settle(world.run, node.address, 1)).event(Settled)
    assert (settled.units, settled.slashed, settled.verdict) == (10, 60 * TOKEN, Stage.UPHELD)
    assert world.chain.account(operator.address).active == 40 * TOKEN
    assert world.chain.seat(world.run, node.address).role == Role.BANNED


def test_rewards_wait_for_the_window_and_go_to_the_operator(world: World) -> None:
    operator, node = Key.generate(), Key.generate()
    world.seat_node(operator, node)
    world.publish(0)
    world.submit(node, 0, 0, b"\x01" * 32, units=500)
    world.anvil.advance(DAY - 1)
    assert world.chain.claimable(world.run, node.address) == (0, 500)
    world.anvil.advance(DAY // 5 + 1)
    assert world.chain.claimable(world.run, node.address) == (500, 0)
    world.sender(operator).send(world.chain.claim(world.run, node.address))
    assert world.chain.token_balance(operator.address) == 5 * TOKEN
