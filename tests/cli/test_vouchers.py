"""Pay by hand: the owner fills the pot, the validator sees what it is owed and has it paid, from the hub's own voucher."""

from __future__ import annotations

from pathlib import Path

import pytest
from swarm.anvil import Anvil
from swarm.world import TOKEN

from protocol.identity import load_keystore, save_keystore
from tests.cli.conftest import PASSWORD, Console, init_options
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
