"""The chain client against real contracts on Anvil."""

from __future__ import annotations

import pytest
from swarm.world import DAY, TOKEN, World

from protocol.chain import Chain, Sender
from protocol.chain.events import Challenged, Settled
from protocol.chain.types import Role, State
from protocol.errors import ConfigError, InsufficientFunds, RpcUnavailable, TransactionReverted, WrongChain
from protocol.identity import Key
from protocol.submission import SubmissionRef


def test_a_submission_is_read_back_as_it_was_sent(world: World) -> None:
    operator, node = Key.generate(), Key.generate()
    world.seat_node(operator, node, hardware=3)
    world.publish(0)
    ref = world.submit(node, 0, 0, b"\x01" * 32, units=77)
    submission = world.chain.submission(world.run, ref)
    assert (submission.units, world.chain.state(world.run, ref)) == (77, State.SUBMITTED)
    seat = world.chain.seat(world.run, node.address)
    assert (seat.operator, seat.role, seat.hardware) == (operator.address, Role.ACTIVE, 3)
    assert seat.next_sequence(0) == 1
    assert seat.next_sequence(1) == 0


def test_the_submission_id_is_the_contracts(world: World) -> None:
    ref = SubmissionRef(world.owner.key.address, 3, 9, b"\x05" * 32)
    assert world.chain.court.functions.submissionId(7, ref.as_tuple()).call() == ref.submission_id(7)


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
    assert (settled.units, settled.slashed, settled.convicted, settled.upheld) == (10, 60 * TOKEN, True, 1)
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
