"""`murmur chain deploy-faucet` and `murmur chain faucet`: development tokens for whoever comes, at a bounded rate."""

from __future__ import annotations

from pathlib import Path

import pytest
from swarm.anvil import Anvil
from swarm.world import DAY, TOKEN

from protocol.chain import Chain
from protocol.chain.deploy import Deployment, deploy_to
from protocol.identity import Key, save_keystore
from tests.cli.conftest import PASSWORD, Console, Ended

SINK = "0x" + "51" * 20


class Town:
    """A deployment whose deployer has the development tokens, and keys that have gas money and no tokens."""

    def __init__(self, console: Console, anvil: Anvil, folder: Path) -> None:
        self.console, self.anvil, self.folder = console, anvil, folder
        self.file = folder / "deployment.json"
        self.keys: dict[str, Key] = {}
        self.deployer = self.keystore("deployer.json")
        key = self.keys["deployer.json"]
        deploy_to(self.file, Chain(anvil.rpc, None), key, withdrawal_delay=7 * DAY, sink=SINK)

    def keystore(self, name: str) -> Path:
        key, path = Key.generate(), self.folder / name
        save_keystore(key, path, PASSWORD, chain_id=31337)
        self.anvil.give(key.address, TOKEN)
        self.keys[name] = key
        return path

    @property
    def chain(self) -> Chain:
        return Chain(self.anvil.rpc, Deployment.load(self.file).runs)

    def deploy(self, *options: object) -> Ended:
        where = ("--deployment", self.file, "--rpc", self.anvil.rpc, "--keystore", self.deployer)
        return self.console.murmur("chain", "deploy-faucet", *where, *options, "--yes")

    def faucet(self, *options: object) -> Ended:
        return self.console.murmur("chain", "faucet", "--deployment", self.file, "--rpc", self.anvil.rpc, *options)


@pytest.fixture
def town(console: Console, anvil: Anvil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Town:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    return Town(console, anvil, tmp_path)


def test_a_faucet_is_deployed_filled_and_written_into_the_addresses_file(town: Town) -> None:
    before = Deployment.load(town.file)
    ended = town.deploy("--amount", "50", "--most", "120", "--fill", "1000", "--hours", "6", "--json")
    assert ended.code == 0, ended.err
    after = Deployment.load(town.file)
    assert after.faucet == ended.json["faucet"]
    assert (after.runs, after.block) == (before.runs, before.block)
    state = town.faucet("--json").json
    assert (state["holds"], state["amount"], state["most"], state["period"], state["given"]) == (
        str(1000 * TOKEN), str(50 * TOKEN), str(120 * TOKEN), 6 * 3600, "0"
    )  # fmt: skip
    shown = town.faucet().out
    assert "gives 50 MUR to an account, once in 6 h" in shown
    info = town.console.murmur("chain", "info", "--deployment", town.file, "--rpc", town.anvil.rpc, "--json")
    assert info.json["contracts"]["Faucet"] == {"address": after.faucet, "code": "the code this version ships"}
    again = town.deploy()
    assert (again.code, "names a faucet already" in again.err) == (3, True)


def test_an_account_gets_tokens_once_in_a_period_and_all_so_many(town: Town) -> None:
    town.deploy("--amount", "50", "--most", "120", "--fill", "1000", "--hours", "6")
    town.anvil.advance_to((town.chain.block().time // 21_600 + 1) * 21_600)
    keystore = town.keystore("new.json")
    mine = town.keys["new.json"].address
    ended = town.faucet("--keystore", keystore, "--yes")
    assert (ended.code, ended.out) == (0, f"{mine} got 50 MUR\n"), ended.err
    assert town.chain.token_balance(mine) == 50 * TOKEN
    ended = town.faucet("--keystore", keystore, "--yes")
    assert (ended.code, "already" in ended.err, "ask again in" in ended.err) == (4, True, True), ended.err

    friend = Key.generate().address
    assert town.faucet(friend, "--keystore", keystore, "--yes", "--json").json["account"] == friend
    ended = town.faucet(Key.generate().address, "--keystore", keystore, "--yes")
    assert (ended.code, "others had all" in ended.err) == (4, True), ended.err
    town.anvil.advance(6 * 3600)
    assert town.faucet("--keystore", keystore, "--yes").code == 0
    assert town.chain.token_balance(mine) == 100 * TOKEN


def test_an_empty_faucet_is_said_to_be_empty(town: Town) -> None:
    town.deploy("--amount", "50", "--most", "120", "--fill", "49")
    ended = town.faucet("--keystore", town.keystore("new.json"), "--yes")
    assert (ended.code, "the faucet is empty" in ended.err, "send tokens to 0x" in ended.err) == (6, True, True)


def test_what_is_no_faucet_or_none_is_refused(town: Town) -> None:
    ended = town.faucet()
    assert (ended.code, "no faucet is known" in ended.err) == (3, True)
    ended = town.faucet("--faucet", town.chain.token.address)
    assert (ended.code, "other code" in ended.err) == (4, True), ended.err
    town.deploy()
    ended = town.faucet(SINK)
    assert (ended.code, "who pays the gas?" in ended.err) == (2, True)
    ended = town.faucet("--keystore", town.keystore("new.json"))
    assert (ended.code, "give --yes" in ended.err) == (2, True)


def test_more_than_the_deployer_has_is_refused_before_anything_is_deployed(town: Town) -> None:
    blocks = town.chain.block_number()
    ended = town.deploy("--fill", "1000000001")
    assert (ended.code, "holds 1,000,000,000 MUR" in ended.err) == (6, True), ended.err
    assert town.deploy("--amount", "5", "--most", "4").code == 2
    assert town.chain.block_number() == blocks
    assert Deployment.load(town.file).faucet == ""
