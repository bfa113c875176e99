"""Where a run is, as its owner says on chain: who may say it, and what a reader makes of it."""

from __future__ import annotations

import pytest
from swarm.world import World

from protocol.chain import Chain, artifacts
from protocol.errors import TransactionReverted


def test_the_owner_alone_says_where_a_run_is_and_takes_it_back(world: World) -> None:
    chain, run = world.chain, world.run
    assert chain.located(run) == b""
    with pytest.raises(TransactionReverted, match="Denied"):
        world.trainer.send(chain.locate(run, b"{}"))
    for said in (b"x" * 512, b'{"hub":"https://hub.example"}', b""):
        world.owner.send(chain.locate(run, said))
        assert Chain(world.anvil.rpc, chain.runs.address).located(run) == said
    with pytest.raises(TransactionReverted, match="TooLong") as caught:
        world.owner.send(chain.locate(run, b"x" * 513))
    assert caught.value.hint


def test_each_run_has_a_location_of_its_own(world: World) -> None:
    other = World.sharing(world)
    world.owner.send(world.chain.locate(world.run, b"here"))
    assert (world.chain.located(world.run), world.chain.located(other.run)) == (b"here", b"")
    other.owner.send(other.chain.locate(other.run, b"there"))
    assert (world.chain.located(world.run), world.chain.located(other.run)) == (b"here", b"there")


def test_no_other_code_passes_for_ours(world: World) -> None:
    court = artifacts.load("Court")
    code = world.chain.ethereum.code(world.chain.court.address)
    assert court.is_code(code)
    assert not court.is_code(code[:-1] + bytes([code[-1] ^ 1]))
