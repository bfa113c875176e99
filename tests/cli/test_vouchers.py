"""Pay by hand: the owner fills the pot, the validator sees what it is owed and has it paid, from the hub's own voucher;
what is left, the owner takes back."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from eth_utils import keccak
from swarm.anvil import Anvil
from swarm.faulty_endpoint import FaultyEndpoint, result
from swarm.world import TOKEN, World

from protocol.chain.vouchers import Vouchers
from protocol.identity import Key, load_keystore, save_keystore
from protocol.settings import write_toml
from protocol.signing import Voucher
from tests.chain.lying_contracts import input_of
from tests.cli.conftest import PASSWORD, Console, Ended, init_options
from tests.hub.desk import open_desk
from tests.hub.test_vouchers import ledger, post, submissions


def test_pay_goes_from_the_owner_to_the_validator(
    anvil: Anvil, console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    folder = tmp_path / "hub"
    folder.mkdir()
    with open_desk(anvil, folder) as desk:
        world = desk.world
        where = f'[chain]\nrpc = "{anvil.rpc}"\ncontract = "{world.chain.runs.address}"\nrun = {world.run}\n'
        file, keystore, home = tmp_path / "run.toml", tmp_path / "owner.json", tmp_path / "validator"
        save_keystore(world.owner.key, keystore, PASSWORD, chain_id=31337)
        file.write_text(where)
        fund = ("run", "fund-vouchers", f"@{file}", "3", "--keystore", keystore)
        unknown = console.murmur(*fund, "--yes")
        assert (unknown.code, "vouchers" in unknown.err) == (3, True)
        wrong = [*init_options(world), "--vouchers", world.chain.bonds.address, "--home", home]
        assert console.murmur("validator", "init", *wrong).code == 4
        assert not home.exists()
        made = console.murmur(
            "validator", "init", *init_options(world), "--vouchers", world.vouchers, "--home", home, "--json"
        )
        address = made.json["validator"]
        anvil.give(address, TOKEN)
        key = load_keystore(home / "keys/validator.json", PASSWORD)
        world.seat_validator(key)

        at = ("--home", home, "--hub", desk.url)
        assert "nothing is owed" in console.murmur("validator", "redeem", *at, "--yes").out
        for ref in submissions(desk, 5):
            post(desk, key, ref)
        for _ in range(2):
            desk.pass_span()
        ledger(desk)
        empty = console.murmur("validator", "redeem", *at, "--yes")
        assert (empty.code, "murmur run fund-vouchers" in empty.err) == (6, True)

        file.write_text(where + f'vouchers = "{world.vouchers}"\n')
        asked = console.murmur(*fund)
        assert (asked.code, "signs no vouchers" in asked.err) == (2, True), "without --yes and terminal"
        file.write_text(file.read_text() + '[vouchers]\nper_submission = "1"\n')
        assert "signs no vouchers" not in console.murmur(*fund).err
        assert "3 MUR" in console.murmur(*fund, "--yes").out
        assert console.murmur("run", "show", f"@{file}", "--json").json["pot"] == str(3 * TOKEN)
        told = console.murmur("validator", "vouchers", *at, "--json").json
        assert (told["promised"], told["redeemed"], told["owed"], told["pot"]) == tuple(
            str(n * TOKEN) for n in (5, 0, 5, 3)
        )
        assert console.murmur("validator", "redeem", *at).code == 2
        partly = console.murmur("validator", "redeem", *at, "--yes")
        assert ("redeemed 3 MUR" in partly.out, "2 MUR stay owed" in partly.err) == (True, True)
        assert console.murmur(*fund, "--yes").code == 0
        assert "redeemed 2 MUR" in console.murmur("validator", "redeem", *at, "--yes").out
        assert world.chain.token_balance(address) == 5 * TOKEN
        before = world.chain.block_number()
        again = console.murmur("validator", "redeem", *at, "--yes")
        assert (again.code, world.chain.block_number()) == (0, before), "what was paid is not sent for again"


@dataclass
class Pot:
    """The pot of a run whose owner has a key, with ten tokens in it."""

    world: World
    console: Console
    file: Path
    keystore: Path

    @property
    def contract(self) -> Vouchers:
        return Vouchers(self.world.chain, self.world.vouchers)

    @property
    def owned(self) -> int:
        return self.world.chain.token_balance(self.world.owner.key.address)

    def collect(self, *options: object) -> Ended:
        return self.console.murmur("run", "collect-vouchers", f"@{self.file}", "--keystore", self.keystore, *options)

    def promise(self, validator: Key, total: int) -> None:
        """As the hub promises, and redeemed at once."""
        voucher = Voucher(self.world.run, validator.address, total)
        self.world.owner.send(
            self.contract.redeem(voucher, voucher.sign(self.world.trainer.key, self.world.chain.domain))
        )


@pytest.fixture
def pot(world: World, console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pot:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    chain = {"rpc": world.anvil.rpc, "contract": world.chain.runs.address, "run": world.run, "vouchers": world.vouchers}
    write_toml(tmp_path / "run.toml", {"chain": chain}, "A run.")
    save_keystore(world.owner.key, tmp_path / "owner.json", PASSWORD, chain_id=31337)
    made = Pot(world, console, tmp_path / "run.toml", tmp_path / "owner.json")
    assert console.murmur("run", "fund-vouchers", f"@{made.file}", "10", "--keystore", made.keystore, "--yes").code == 0
    return made


def test_the_owner_takes_back_what_it_does_not_leave_in_the_pot(pot: Pot) -> None:
    before, run = pot.owned, pot.world.run
    asked = pot.collect("--leave", 4)
    assert (asked.code, pot.owned) == (2, before), "without --yes and terminal"
    assert "6 MUR of the 10 MUR in the pot" in asked.err
    done = pot.collect("--leave", 4, "--yes")
    assert (done.code, f"the pot of run {run} holds 4 MUR" in done.out) == (0, True), done.err
    assert pot.owned == before + 6 * TOKEN
    again = pot.collect("--leave", 4, "--yes")
    assert (again.code, "nothing is taken out" in again.out, pot.owned) == (0, True, before + 6 * TOKEN)


def test_a_second_time_it_takes_out_what_came_since_and_no_more(pot: Pot) -> None:
    before = pot.owned
    assert pot.collect("--yes").code == 0
    fund = ("run", "fund-vouchers", f"@{pot.file}", "3", "--keystore", pot.keystore, "--yes")
    assert pot.console.murmur(*fund).code == 0
    assert pot.collect("--yes").code == 0
    assert (pot.contract.pot(pot.world.run), pot.owned) == (0, before + 10 * TOKEN)


def test_validators_are_paid_out_of_what_was_left(pot: Pot) -> None:
    validator = Key.generate()
    pot.world.seat_validator(validator)
    assert pot.collect("--leave", 4, "--yes").code == 0
    pot.promise(validator, 5 * TOKEN)
    assert pot.world.chain.token_balance(validator.address) == 4 * TOKEN
    assert "nothing is taken out" in pot.collect("--yes").out


def test_nobody_but_the_owner_empties_the_pot(pot: Pot, tmp_path: Path) -> None:
    save_keystore(pot.world.trainer.key, tmp_path / "trainer.json", PASSWORD, chain_id=31337)
    pot.keystore = tmp_path / "trainer.json"
    done = pot.collect("--yes")
    assert (done.code, "is not the owner of run" in done.err) == (2, True)
    assert pot.contract.pot(pot.world.run) == 10 * TOKEN
    done = pot.collect("--yes", "--signature", "0x00")
    assert (done.code, "goes with --calldata" in done.err) == (2, True)


@pytest.mark.parametrize("more", [True, False], ids=["more", "less"])
def test_an_endpoint_that_lies_of_the_pot_has_nothing_promised_that_is_not_in_it(pot: Pot, more: bool) -> None:
    """A voucher over more could be redeemed by anybody, once the pot is filled again."""
    world, run = pot.world, pot.world.run
    question = "0x" + keccak(text="pots(uint256)")[:4].hex()

    def lie(method: str, params: Any) -> bytes | None:
        if method == "eth_call" and input_of(params).startswith(question):
            return result(f"0x{(10_000 if more else 3) * TOKEN:064x}")
        return None

    with closing(FaultyEndpoint(world.anvil.rpc)) as liar:
        liar.fault = lie
        chain = {
            "rpc": [liar.url, world.anvil.rpc],
            "contract": world.chain.runs.address,
            "run": run,
            "vouchers": world.vouchers,
        }
        write_toml(pot.file, {"chain": chain}, "A run.")
        done = pot.collect("--yes")
    assert done.code == 0, done.err
    assert pot.contract.pot(run) == (0 if more else 7 * TOKEN)
    (sent,) = world.anvil.request("eth_getBlockByNumber", "latest", True)["transactions"]
    total = bytes.fromhex(sent["input"][2:])[4 + 64 :][:32]
    assert int.from_bytes(total) == (10 if more else 3) * TOKEN
