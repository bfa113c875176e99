"""Commands killed anywhere between signing and receipt, and given again: what they did is done once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from swarm.world import TOKEN, World

from protocol.chain.events import Appointed, Defunding, Deposited, Funded, Unbonding
from protocol.chain.sender import Sender
from protocol.chain.transaction_log import TransactionLog
from protocol.chain.types import Role
from protocol.identity import Key, save_keystore
from tests.cli.conftest import PASSWORD, Console, Contributor, Ended

PLACES = ("before sending", "after sending", "before noting the receipt")


def killed(monkeypatch: pytest.MonkeyPatch, place: str, doing: str, command: Callable[[], Ended]) -> None:
    """Runs a command that ends at `place` of the transaction that is `doing` this."""

    def dies_at(of: type, method: str, after: bool) -> None:
        real = getattr(of, method)

        def deadly(self: Any, transaction: Any, *rest: Any, **also: Any) -> Any:
            if transaction.doing != doing:
                return real(self, transaction, *rest, **also)
            if after:
                real(self, transaction, *rest, **also)
            raise KeyboardInterrupt

        broken.setattr(of, method, deadly)

    with monkeypatch.context() as broken:
        if place == "before noting the receipt":
            dies_at(TransactionLog, "finish", after=False)
        else:
            dies_at(Sender, "_push", after=place == "after sending")
        assert command().code == 130


def count(world: World, kind: type, **fields: object) -> int:
    """Events of this kind."""
    found = [event.data for event in world.logs() if isinstance(event.data, kind)]
    return sum(1 for data in found if all(getattr(data, name) == value for name, value in fields.items()))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("amount", [[], ["150"]], ids=["what is missing", "150"])
def test_a_stake_that_was_killed_is_deposited_once(
    contributor: Contributor, monkeypatch: pytest.MonkeyPatch, place: str, amount: list[str]
) -> None:
    contributor.give(tokens=200)
    killed(monkeypatch, place, "depositing stake", lambda: contributor.run("stake", *amount, "--yes"))
    again = contributor.run("stake", *amount, "--yes")
    assert again.code == 0, again.err
    world = contributor.world
    assert count(world, Deposited, account=contributor.operator) == 1
    assert world.chain.account(contributor.operator).active == int((amount or ["100"])[0]) * TOKEN
    assert world.chain.seat(world.run, contributor.node).role == Role.ACTIVE
    assert world.chain.allowance(contributor.operator, world.chain.bonds.address) == 0


def test_a_seat_that_was_killed_on_the_way_is_taken_once(
    contributor: Contributor, monkeypatch: pytest.MonkeyPatch
) -> None:
    contributor.give()
    killed(monkeypatch, "before sending", "taking a seat", lambda: contributor.run("stake", "--yes"))
    world = contributor.world
    assert world.chain.seat(world.run, contributor.node).role == Role.NONE
    again = contributor.run("stake", "--yes")
    assert (again.code, "seated in run" in again.out) == (0, True)
    assert count(world, Deposited, account=contributor.operator) == 1
    assert world.chain.seat(world.run, contributor.node).role == Role.ACTIVE


@pytest.mark.parametrize("place", PLACES)
def test_an_amount_is_unstaked_once_and_once_more_only_when_asked_again(
    contributor: Contributor, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    world, operator = contributor.world, contributor.operator
    contributor.give()
    world.owner.send(world.chain.deposit(operator, 50 * TOKEN))
    killed(monkeypatch, place, "unbonding stake", lambda: contributor.run("unstake", "30", "--yes"))
    assert contributor.run("unstake", "30", "--yes").code == 0
    assert world.chain.account(operator).leaving == 30 * TOKEN
    assert contributor.run("unstake", "20", "--yes").code == 0
    assert world.chain.account(operator).leaving == 50 * TOKEN
    assert count(world, Unbonding, account=operator) == 2
    assert contributor.run("unstake", "1", "--yes").code == 6


def test_another_command_first_ends_what_was_begun(contributor: Contributor, monkeypatch: pytest.MonkeyPatch) -> None:
    contributor.give()
    killed(monkeypatch, "before sending", "depositing stake", lambda: contributor.run("stake", "--yes"))
    assert contributor.run("unstake", "100", "--yes").code == 0
    assert contributor.world.chain.account(contributor.operator).leaving == 100 * TOKEN


def test_two_commands_of_one_key_do_not_send_at_once(contributor: Contributor) -> None:
    contributor.give()
    assert contributor.run("stake", "--yes").code == 0
    (path,) = contributor.home.keystore("operator").parent.glob("transactions-*.sqlite")
    assert contributor.operator in path.name
    other = TransactionLog(path)
    done = contributor.run("leave", "--yes")
    assert (done.code, "another command" in done.err) == (7, True)
    other.close()
    assert contributor.run("leave", "--yes").code == 0, "each command lets go of its journal"
    (contributor.home.data / "transactions.sqlite").touch()  # a service's; nothing to do with it
    running = TransactionLog(contributor.home.data / "transactions.sqlite")
    assert contributor.run("withdraw").code != 7
    running.close()


def test_a_keystore_that_cannot_be_written_beside_is_one_clear_error(
    contributor: Contributor, monkeypatch: pytest.MonkeyPatch
) -> None:
    contributor.give()

    def refused(*_: object) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr("protocol.chain.command.TransactionLog", refused)
    done = contributor.run("stake", "--yes")
    assert done.code == 5
    assert "Read-only file system" in done.err
    assert "copy the keystore" in done.err


def test_settings_bound_what_a_command_offers(contributor: Contributor) -> None:
    contributor.give()
    settings = contributor.home.config.read_text()
    for setting, told in (("fee_max_gwei = 0.0000001", "chain.fee_max_gwei"), ("gas_max = 21000", "chain.gas_max")):
        contributor.home.config.write_text(settings.replace("[chain]", f"[chain]\n{setting}"))
        done = contributor.run("stake", "--yes")
        assert (done.code, told in done.err) == (4, True)
    contributor.home.config.write_text(settings)
    assert contributor.run("stake", "--yes").code == 0


@pytest.fixture
def owner(world: World, console: Console, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Runs commands of the run's owner, who holds 100 tokens and a key of its own."""
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    key, keystore, file = Key.generate(), console.folder / "owner.json", console.folder / "run.toml"
    save_keystore(key, keystore, PASSWORD, chain_id=31337)
    world.anvil.give(key.address, TOKEN)
    world.owner.send(world.chain.transfer_tokens(key.address, 100 * TOKEN))
    file.write_text(f'[chain]\nrpc = "{world.anvil.rpc}"\ncontract = "{world.chain.runs.address}"\nrun = {world.run}\n')
    return lambda command, *rest: console.murmur("run", command, f"@{file}", *rest, "--keystore", keystore, "--yes")


@pytest.mark.parametrize("place", PLACES)
def test_a_run_is_funded_once(
    world: World, owner: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    before, events = world.chain.funds(world.run).free, count(world, Funded)
    killed(monkeypatch, place, "funding the run", lambda: owner("fund", "60"))
    again = owner("fund", "60")
    assert again.code == 0, again.err
    assert world.chain.funds(world.run).free == before + 60 * TOKEN
    assert count(world, Funded) == events + 1


def test_a_run_is_created_once_and_its_number_told(
    world: World, owner: Callable[..., Ended], console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spec:
        digest, name, environments, samples = b"\x05" * 32, "spec", (), 64
        verification = SimpleNamespace(recalibration=None, prefill_share="0.1")

    class Table:
        def policy(self, address: str) -> object:
            return replace(world.chain.policy(world.run), vote=2)

    monkeypatch.setattr("protocol.shell.runfile.complete", lambda *_: Spec)
    monkeypatch.setattr("protocol.shell.runfile.read_policy", lambda *_: Table())
    monkeypatch.setattr("protocol.shell.runfile.write_spec", lambda *_: None)
    runs = world.chain.run_count()
    killed(monkeypatch, "after sending", "creating the run", lambda: owner("create"))
    told = owner("create", "--json")
    assert told.code == 0, told.err
    assert told.json["run"] == runs + 1 == world.chain.run_count()
    assert "WARNING   bribe pays with one liar on a bench of 2 or 3: up to" in told.err
    assert "WARNING   vote is 2 s" in told.err
    file = console.folder / "run.toml"
    file.write_text(file.read_text().replace(f"run = {world.run}\n", f"run = {runs + 1}\n"))
    shown = console.murmur("run", "show", f"@{file}")
    assert "  WARNING vote is 2 s" in shown.out
    after = owner("create").err.splitlines()[-2:]
    assert [line.split(" @")[0] for line in after] == ["next: murmur run fund", "then: murmur run approve"]
    assert all("run.toml " in line and line.endswith("owner.json") for line in after), "to be copied as they are"


def test_a_key_used_on_another_chain_finds_no_journal_there(
    contributor: Contributor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A devnet that was set up anew counts nonces from 0 again: old transactions must not be sent there."""
    contributor.give()
    assert contributor.run("stake", "--yes").code == 0
    monkeypatch.setattr("protocol.chain.client.Chain.block_hash", lambda *_: b"\x01" * 32)
    assert contributor.run("leave", "--yes").code == 0
    assert len(list(contributor.home.keystore("operator").parent.glob("transactions-*.sqlite"))) == 2


@pytest.mark.parametrize("what", [["defund", "1"], ["appoint", "0x" + "11" * 20]], ids=lambda what: what[0])
def test_what_is_announced_already_is_not_put_off(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch, what: list[str]
) -> None:
    """An announcement was killed before it said so, and is given again: each begins the notice anew."""
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    keystore, file = console.folder / "owner.json", console.folder / "run.toml"
    save_keystore(world.owner.key, keystore, PASSWORD, chain_id=31337)
    file.write_text(f'[chain]\nrpc = "{world.anvil.rpc}"\ncontract = "{world.chain.runs.address}"\nrun = {world.run}\n')
    command, *rest = what
    give = lambda: console.murmur("run", command, f"@{file}", *rest, "--keystore", keystore, "--yes")  # noqa: E731
    doing = {"defund": "announcing the withdrawal", "appoint": "appointing the trainer"}[command]
    events = count(world, Defunding) + count(world, Appointed)
    killed(monkeypatch, "before noting the receipt", doing, give)
    again = give()
    assert (again.code, "already" in again.out) == (0, True), again.err
    assert count(world, Defunding) + count(world, Appointed) == events + 1
