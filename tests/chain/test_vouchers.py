"""Pay of validators on the real contracts: what is refused by name, and that a pot pays a promise once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from swarm.anvil import Anvil
from swarm.world import TOKEN, World

from protocol.chain.client import Chain
from protocol.chain.vouchers import Vouchers
from protocol.errors import ConfigError, TransactionReverted, WrongChain
from protocol.identity import Key
from protocol.signing import Voucher
from tests.chain.test_bad_input import another_run


def opened(world: World, pot: int = 100) -> Vouchers:
    vouchers = Vouchers(world.chain, world.vouchers)
    if pot:
        world.owner.send(world.chain.approve_tokens(vouchers.address, pot * TOKEN))
        world.owner.send(vouchers.fund(world.run, pot * TOKEN))
    return vouchers


def signed(world: World, voucher: Voucher, **domain: Any) -> bytes:
    return voucher.sign(world.trainer.key, replace(world.chain.domain, **domain))


def seated(world: World) -> Key:
    """A validator with a seat: the trainer's vouchers pay nobody else."""
    validator = Key.generate()
    world.seat_validator(validator)
    return validator


def refused(world: World, sender: Key, call: Any) -> str:
    with pytest.raises(TransactionReverted) as caught:
        world.sender(sender).send(call)
    return caught.value.reason


def test_a_voucher_pays_what_it_promises_beyond_what_was_paid(world: World) -> None:
    vouchers, validator = opened(world), seated(world)
    for total in (30, 70):
        voucher = Voucher(world.run, validator.address, total * TOKEN)
        world.sender(validator).send(vouchers.redeem(voucher, signed(world, voucher)))
        assert world.chain.token_balance(validator.address) == vouchers.redeemed(world.run, validator.address)
        assert vouchers.redeemed(world.run, validator.address) == total * TOKEN
    assert vouchers.pot(world.run) == 30 * TOKEN
    for total in (70, 50):
        voucher = Voucher(world.run, validator.address, total * TOKEN)
        assert refused(world, validator, vouchers.redeem(voucher, signed(world, voucher))) == "ZeroAmount"


@pytest.mark.parametrize("fault", ["run", "chain", "contract", "total", "validator", "signer"])
def test_a_voucher_counts_for_what_was_signed_only(world: World, fault: str) -> None:
    vouchers, validator, other = opened(world), seated(world), another_run(world)
    right = Voucher(world.run, validator.address, TOKEN)
    forgeries: dict[str, Callable[[], bytes]] = {
        "run": lambda: signed(world, replace(right, run=other)),
        "chain": lambda: signed(world, right, chain_id=84532),
        "contract": lambda: signed(world, right, contract=world.chain.court.address),
        "total": lambda: signed(world, replace(right, total=1)),
        "validator": lambda: signed(world, replace(right, validator=Key.generate().address)),
        "signer": lambda: right.sign(validator, world.chain.domain),
    }
    assert refused(world, validator, vouchers.redeem(right, forgeries[fault]())) == "Denied"
    world.sender(validator).send(vouchers.redeem(right, signed(world, right)))


def test_an_empty_pot_pays_nothing_and_a_small_one_what_it_has(world: World) -> None:
    vouchers, validator = opened(world, pot=0), seated(world)
    voucher = Voucher(world.run, validator.address, 10 * TOKEN)
    call = vouchers.redeem(voucher, signed(world, voucher))
    assert refused(world, validator, call) == "ZeroAmount"
    opened(world, pot=4)
    world.sender(validator).send(call)
    assert (vouchers.pot(world.run), vouchers.redeemed(world.run, validator.address)) == (0, 4 * TOKEN)


def test_only_the_vouchers_of_this_deployment_is_taken(world: World) -> None:
    with pytest.raises(ConfigError, match="not known"):
        Vouchers(world.chain, None)
    with pytest.raises(ConfigError, match="no contract address"):
        Vouchers(world.chain, "0x12")
    with pytest.raises(WrongChain, match="lies"):
        Vouchers(world.chain, world.chain.bonds.address)
    elsewhere = World.another(world.anvil)
    with pytest.raises(WrongChain, match="pays for Runs"):
        Vouchers(Chain(world.anvil.rpc, world.chain.runs.address), elsewhere.vouchers)


def test_the_trainers_vouchers_pay_nobody_without_a_seat_and_at_most_the_cap_in_a_window(anvil: Anvil) -> None:
    world = World.another(anvil, voucher_cap=5 * TOKEN)
    vouchers, validator, stranger = opened(world), seated(world), Key.generate()
    for who, total in ((stranger, 1), (validator, 8)):
        voucher = Voucher(world.run, who.address, total * TOKEN)
        call = vouchers.redeem(voucher, signed(world, voucher))
        if who is stranger:
            assert refused(world, validator, call) == "Denied"
        else:
            world.sender(validator).send(call)
    assert (vouchers.redeemed(world.run, validator.address), vouchers.left(world.run)) == (5 * TOKEN, 0)
    owners = Voucher(world.run, stranger.address, 2 * TOKEN)
    world.owner.send(vouchers.redeem(owners, owners.sign(world.owner.key, world.chain.domain)))
    assert vouchers.redeemed(world.run, stranger.address) == 2 * TOKEN
    world.anvil.advance(world.chain.policy(world.run).window)
    world.sender(validator).send(call)
    assert vouchers.redeemed(world.run, validator.address) == 8 * TOKEN
