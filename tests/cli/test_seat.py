"""`node rotate`, `offer`, `accept` and `rebond`: a seat changes its key or its operator, and nothing of it is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from swarm.world import TOKEN

from node.contributor import submission_log as states
from node.contributor.submission_log import SubmissionLog
from protocol.errors import TransactionReverted
from protocol.identity import Key
from protocol.submission import SubmissionRef
from tests.cli.conftest import PASSWORD, Contributor


@pytest.fixture
def seated(contributor: Contributor) -> Contributor:
    contributor.give()
    contributor.seat()
    return contributor


def test_a_new_key_takes_the_seat_over_and_works_for_it(seated: Contributor) -> None:
    world, old = seated.world, seated.node
    before = world.chain.seat(world.run, old)
    (seated.home.data / "transactions.sqlite").write_bytes(b"what the old key sent")
    done = seated.run("rotate", "--yes")
    assert done.code == 0, done.err
    new = seated.home.address("node")
    assert new != old
    assert world.chain.seat_name(world.run, new) == old
    assert world.chain.seat(world.run, new).locked == before.locked
    assert seated.home.address(f"node-{old}") == old
    assert not (seated.home.data / "transactions.sqlite").exists()
    assert (seated.home.data / f"transactions-{old}.sqlite").exists()
    world.anvil.give(new, TOKEN)
    world.publish(0)
    key = seated.key("node")
    world.sender(key)
    world.submit(key, 0, 0, b"\x07" * 32)
    with pytest.raises(TransactionReverted, match="Denied"):
        world.submit(world.senders[old].key, 0, 1, b"\x08" * 32)


def test_an_interrupted_rotation_goes_on_with_the_same_key(
    seated: Contributor, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, old = seated.world, seated.node
    with monkeypatch.context() as broken:
        broken.setattr("node.contributor.commands.seat._take_over", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert seated.run("rotate", "--yes").code == 130
    assert seated.home.address("node") == old
    planned = seated.home.address("node-next")
    blocks = world.chain.block_number()
    assert seated.run("rotate", "--yes").code == 0
    assert seated.home.address("node") == planned
    assert world.chain.block_number() == blocks, "nothing was sent twice"
    assert world.chain.seat_name(world.run, planned) == old


def test_a_rotation_killed_while_keys_change_places_goes_on(
    seated: Contributor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every single step of it."""
    world, old = seated.world, seated.node
    (seated.home.data / "transactions.sqlite").write_bytes(b"what the old key sent")
    for step in ("rename", "hardlink_to", "replace"):
        with monkeypatch.context() as broken:
            broken.setattr(Path, step, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            assert seated.run("rotate", "--yes").code == 130
        assert seated.home.address("node") == old, step
    planned = seated.home.address("node-next")
    assert seated.run("rotate", "--yes").code == 0
    assert seated.home.address("node") == planned
    assert seated.home.address(f"node-{old}") == old
    assert world.chain.seat_name(world.run, planned) == old


def test_a_key_is_not_rotated_under_a_running_node_or_unfinished_work(seated: Contributor) -> None:
    with seated.home.lock():
        assert seated.run("rotate", "--yes").code == 7
    kept = SubmissionLog(seated.home.data / "submissions.sqlite")
    ref = SubmissionRef(seated.node, 0, 0, b"\x01" * 32)  # type: ignore[arg-type]
    kept.add(ref, ref.submission_id(seated.world.run), 5, 0)
    done = seated.run("rotate", "--yes")
    assert (done.code, "not uploaded yet" in done.err) == (2, True)
    kept.advance(ref.submission_id(seated.world.run), states.LOST)
    kept.close()
    assert seated.run("rotate", "--yes").code == 0


def test_another_operator_takes_the_seat_over_with_its_stake(seated: Contributor) -> None:
    world, chain, run = seated.world, seated.world.chain, seated.world.run
    heir = Key.generate()
    world.anvil.give(heir.address, TOKEN)
    locked = chain.seat(run, seated.node).locked
    assert seated.run("offer", heir.address, "--yes").code == 0
    assert chain.seat(run, seated.node).operator == seated.operator
    keystore = seated.console.folder / "heir.json"
    from protocol.identity import save_keystore

    save_keystore(heir, keystore, PASSWORD, chain_id=31337)
    done = seated.run("accept", seated.node, "--operator-keystore", keystore, "--yes")
    assert done.code == 0, done.err
    assert f"{seated.node} in run {run}, which works, from {seated.operator}" in done.err
    assert chain.seat(run, seated.node).operator == heir.address
    assert chain.account(heir.address).locked == locked
    assert chain.account(seated.operator).locked == 0


def test_what_was_called_off_or_offered_to_others_cannot_be_accepted(seated: Contributor) -> None:
    heir = Key.generate().address
    assert seated.run("offer", heir, "--yes").code == 0
    assert seated.run("accept", seated.node, "--yes").code == 4, "the operator itself was offered nothing"
    assert seated.run("offer", "nobody", "--yes").code == 0
    assert seated.run("offer", "somebody", "--yes").code == 2
    assert seated.run("accept", "0x12", "--yes").code == 2


def test_unstaked_tokens_can_be_taken_back(contributor: Contributor) -> None:
    contributor.give()
    world, chain = contributor.world, contributor.world.chain
    world.owner.send(chain.deposit(contributor.operator, 30 * TOKEN))
    assert contributor.run("unstake", "20", "--yes").code == 0
    done = contributor.run("rebond", "25", "--yes")
    assert (done.code, "20 MUR" in done.err) == (6, True)
    assert contributor.run("rebond", "15", "--yes").code == 0
    account = chain.account(contributor.operator)
    assert (account.active, account.leaving) == (25 * TOKEN, 5 * TOKEN)
