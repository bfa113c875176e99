"""`--calldata`: an owner or operator that is a contract does with what is printed all that one with a key does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from eth_utils import to_checksum_address
from swarm.world import TOKEN, World, policy_for

from protocol.chain.events import RunCreated
from protocol.chain.types import Role
from protocol.chain.vouchers import Vouchers
from protocol.identity import Key, save_keystore
from protocol.settings import write_toml
from protocol.shell import runfile
from tests.cli.conftest import PASSWORD, SPEC, Console, Contributor, Ended
from tests.cli.test_invite import SAYS_NO, SAYS_YES
from tests.clock import eventually

SAFE = to_checksum_address("0x" + "5a" * 20)


class Owner:
    """A contract that owns a run and holds tokens. What it is asked to send, Anvil sends in its name."""

    def __init__(self, console: Console, world: World) -> None:
        self.console, self.world, self.run = console, world, 0
        world.anvil.request("anvil_setCode", SAFE, "0x00")
        world.anvil.give(SAFE, TOKEN)
        world.owner.send(world.chain.transfer_tokens(SAFE, 1000 * TOKEN))
        created = world.owner.send(world.chain.create(policy_for(world.owner.key, world.trainer.key), SPEC.digest))
        self.file = console.folder / "run.toml"
        self.name(created.event(RunCreated).run)

    def name(self, run: int) -> None:
        world, self.run = self.world, run
        chain = {"rpc": world.anvil.rpc, "contract": world.chain.runs.address, "run": run, "vouchers": world.vouchers}
        write_toml(self.file, {"chain": chain}, "A run.")

    def command(self, verb: str, *options: object) -> Ended:
        return self.console.murmur("run", verb, f"@{self.file}", *options)

    def execute(self, verb: str, *options: object) -> list[dict[str, Any]]:
        """Prints the command's calls and sends them as the contract."""
        blocks = self.world.chain.block_number()
        ended = self.command(verb, *options, "--calldata", "--json")
        assert ended.code == 0, ended.err
        assert self.world.chain.block_number() == blocks, "nothing was sent"
        batch = ended.json
        assert (batch["chainId"], batch["meta"]["createdFromSafeAddress"]) == ("31337", SAFE)
        for call in batch["transactions"]:
            send_as_contract(self.world, call)
        return list(batch["transactions"])


def send_as_contract(world: World, call: dict[str, Any]) -> None:
    anvil = world.anvil
    anvil.request("anvil_impersonateAccount", SAFE)
    fields = {"from": SAFE, "to": call["to"], "data": call["data"], "value": hex(int(call["value"]))}
    hash = anvil.request("eth_sendTransaction", fields)
    receipt = eventually(lambda: anvil.request("eth_getTransactionReceipt", hash), what="a receipt")
    assert receipt["status"] == "0x1", call


@pytest.fixture
def owner(console: Console, world: World, monkeypatch: pytest.MonkeyPatch) -> Owner:
    made = Owner(console, world)
    monkeypatch.setattr(runfile, "complete", lambda path, folder: SPEC)
    monkeypatch.setattr(runfile, "model_folder", lambda path: path.parent)
    policy = policy_for(world.owner.key, world.trainer.key)

    class Table:
        def policy(self, owner: str) -> Any:
            from dataclasses import replace

            return replace(policy, owner=owner)  # type: ignore[arg-type]

    monkeypatch.setattr(runfile, "read_policy", lambda path: Table())
    before = world.chain.run_count()
    made.execute("create", "--owner", SAFE)
    assert world.chain.run_count() == before + 1
    made.name(before + 1)
    return made


def test_a_contract_owns_the_run_that_it_created(owner: Owner) -> None:
    assert owner.world.chain.policy(owner.run).owner == SAFE
    assert owner.world.chain.spec_digest(owner.run) == SPEC.digest


def test_a_contract_does_all_that_owners_do(owner: Owner) -> None:
    world, run = owner.world, owner.run
    chain, validator, trainer, node = world.chain, Key.generate().address, Key.generate().address, Key.generate()
    assert len(owner.execute("fund", 200)) == 2, "the tokens are approved first"
    assert chain.funds(run).free == 200 * TOKEN
    owner.execute("fund-vouchers", 30)
    assert Vouchers(chain, world.vouchers).pot(run) == 30 * TOKEN
    owner.execute("send-tokens", validator, 5, "--owner", SAFE)
    assert chain.token_balance(validator) == 5 * TOKEN
    owner.execute("approve", validator)
    assert chain.validator(run, validator).approved
    owner.execute("approve", validator, "--off")
    assert not chain.validator(run, validator).approved
    owner.execute("locate", "--hub", "https://hub.example")
    assert b"hub.example" in chain.located(run)
    owner.execute("appoint", trainer)
    assert (chain.next_trainer(run) or ("",))[0] == trainer
    mine, world.run = world.run, run
    world.seat_node(Key.generate(), node)
    world.run = mine
    owner.execute("ban", node.address)
    assert chain.seat(run, node.address).role == Role.BANNED
    owner.execute("pause")
    owner.execute("defund", 50)
    world.anvil.advance(chain.policy(run).notice + 1)
    assert chain.paused(run)
    owner.execute("collect")
    assert chain.funds(run).free == 150 * TOKEN
    assert chain.token_balance(SAFE) == (1000 - 200 - 30 - 5 + 50) * TOKEN


def test_a_contract_takes_back_what_is_in_the_pot_with_what_it_has_signed(owner: Owner) -> None:
    world, run, chain = owner.world, owner.run, owner.world.chain
    owner.execute("fund-vouchers", 30)
    before = chain.token_balance(SAFE)
    world.anvil.request("anvil_setCode", SAFE, SAYS_NO)
    asked = owner.command("collect-vouchers", "--leave", 10, "--calldata")
    assert (asked.json["primaryType"], asked.json["message"]["total"]) == ("Voucher", str(20 * TOKEN))
    assert (asked.json["message"]["validator"], "--signature" in asked.err) == (SAFE, True)
    unsigned = owner.command("collect-vouchers", "--leave", 10, "--calldata", "--signature", "0x" + "ab" * 200)
    assert (unsigned.code, "has not signed" in unsigned.err, unsigned.out) == (2, True, "")
    for wrong in ("0xno", "0x" + "00" * 5000):
        assert owner.command("collect-vouchers", "--calldata", "--signature", wrong).code == 2
    world.anvil.request("anvil_setCode", SAFE, SAYS_YES)
    owner.execute("collect-vouchers", "--leave", 10, "--signature", "0x" + "ab" * 200)
    assert chain.token_balance(SAFE) == before + 20 * TOKEN
    assert Vouchers(chain, world.vouchers).pot(run) == 10 * TOKEN


def test_every_command_that_sends_for_the_owner_prints_calldata(console: Console) -> None:
    for verb in ("create", "fund", "fund-vouchers", "collect-vouchers", "send-tokens", "approve", "pause", "locate", "defund", "collect", "ban", "appoint"):  # fmt: skip
        assert "--calldata" in console.murmur("run", verb, "--help").out, verb


def test_as_text_each_call_says_what_it_does(owner: Owner) -> None:
    ended = owner.command("fund", 1, "--calldata")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0] == f"from {SAFE} on chain 31337, in this order:"
    assert [line for line in lines if line in ("approving tokens", "funding the run")] == [
        "approving tokens",
        "funding the run",
    ]
    assert f"  to     {owner.world.chain.runs.address}" in lines
    assert "  value  0" in lines


def test_what_the_contracts_would_refuse_is_refused_before_anybody_signs(owner: Owner) -> None:
    ended = owner.command("collect", "--calldata")
    assert (ended.code, ended.out) == (4, ""), ended.err
    ended = owner.command("fund", 5000, "--calldata")
    assert (ended.code, f"{SAFE} holds 1,000 MUR" in ended.err) == (6, True)


def test_a_key_and_calldata_or_neither_are_a_usage_error(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    save_keystore(Key.generate(), tmp_path / "key.json", PASSWORD, chain_id=31337)
    both = owner.command("pause", "--calldata", "--keystore", tmp_path / "key.json")
    for ended in (both, owner.command("pause", "--yes")):
        assert (ended.code, "either --keystore or --calldata" in ended.err) == (2, True), ended.err
    ended = owner.command("create", "--calldata")
    assert (ended.code, "give --owner ADDRESS" in ended.err) == (2, True)


# ---- operators ---------------------------------------------------------------------------------------------------------


def test_a_contract_operates_a_node_from_its_seat_to_its_money_back(contributor: Contributor) -> None:
    world, node = contributor.world, contributor.node
    chain, run = world.chain, world.run
    world.anvil.request("anvil_setCode", SAFE, "0x00")
    world.anvil.give(SAFE, TOKEN)
    world.owner.send(chain.transfer_tokens(SAFE, 200 * TOKEN))
    before, stake = chain.token_balance(SAFE), chain.policy(run).node_stake

    def execute(*words: object) -> int:
        ended = contributor.run(*words, "--calldata", "--operator", SAFE, "--json")
        assert ended.code == 0, ended.err
        calls = ended.json["transactions"]
        for call in calls:
            send_as_contract(world, call)
        return len(calls)

    assert execute("stake") == 3, "approve, deposit, join"
    assert chain.seat(run, node).operator == SAFE
    assert chain.token_balance(SAFE) == before - stake
    execute("leave")
    assert chain.seat(run, node).role == Role.LEFT
    ended = contributor.run("unstake", 100, "--calldata", "--operator", SAFE)
    assert (ended.code, "still locked" in ended.err) == (6, True), ended.err
    world.anvil.advance(chain.policy(run).span + 1)
    assert execute("unstake", 100) == 2, "release, unbond"
    ended = contributor.run("withdraw", "--calldata", "--operator", SAFE)
    assert ended.code == 4, "too early: nobody needs to sign it"
    world.anvil.advance(chain.withdrawal_delay() + 1)
    execute("withdraw")
    assert chain.token_balance(SAFE) == before


def test_whose_calls_they_are_to_be_must_be_said(contributor: Contributor) -> None:
    ended = contributor.run("leave", "--calldata")
    assert (ended.code, "give --operator ADDRESS" in ended.err) == (2, True), ended.err
