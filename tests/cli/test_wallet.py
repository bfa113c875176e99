"""`murmur wallet`: what an address has, and sending some of it, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from eth_utils import to_checksum_address
from swarm.world import TOKEN, World

from protocol.chain import Sender
from protocol.chain.calls import Call
from protocol.chain.client import Chain
from protocol.chain.command import journal_path
from protocol.chain.transaction_log import TransactionLog
from protocol.identity import Key, save_keystore
from tests.cli.conftest import PASSWORD, Console, Ended
from tests.clock import eventually

FRIEND = to_checksum_address("0x" + "f1" * 20)
DEAD = "http://127.0.0.1:9"


class Wallet:
    """A keystore with 1 ETH and 100 tokens."""

    def __init__(self, console: Console, world: World, folder: Path) -> None:
        self.console, self.world, self.key, self.keystore = console, world, Key.generate(), folder / "key.json"
        save_keystore(self.key, self.keystore, PASSWORD, chain_id=31337)
        world.anvil.give(self.key.address, TOKEN)
        world.anvil.give(FRIEND, 0)
        world.owner.send(world.chain.transfer_tokens(self.key.address, 100 * TOKEN))

    def balance(self, address: str, *options: object) -> Ended:
        return self.console.murmur("wallet", "balance", address, "--rpc", self.world.anvil.rpc, *options)

    def send(self, to: str, amount: str, *options: object) -> Ended:
        where = ("--rpc", self.world.anvil.rpc, "--keystore", self.keystore)
        return self.console.murmur("wallet", "send", to, amount, *where, *options)

    @property
    def contract(self) -> tuple[object, ...]:
        return ("--contract", self.world.chain.runs.address)


@pytest.fixture
def wallet(console: Console, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wallet:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    return Wallet(console, world, tmp_path)


# ---- balance -----------------------------------------------------------------------------------------------------------


def test_balance_shows_gas_money_tokens_and_stake(wallet: Wallet) -> None:
    world, address = wallet.world, wallet.key.address
    sender = world.sender(wallet.key)
    sender.send(world.chain.approve_tokens(world.chain.bonds.address, 30 * TOKEN))
    sender.send(world.chain.deposit(address, 30 * TOKEN))
    sender.send(world.chain.unbond(10 * TOKEN))
    world.anvil.give(address, TOKEN // 2)
    found = wallet.balance(address, *wallet.contract, "--json").json
    ready_at = found.pop("ready_at")
    assert found == {
        "address": address, "chain_id": 31337, "eth": str(TOKEN // 2), "tokens": str(70 * TOKEN), "stake": str(20 * TOKEN), "locked": "0",
        "leaving": str(10 * TOKEN),
    }  # fmt: skip
    assert ready_at == world.chain.account(address).ready_at
    shown = wallet.balance(address, *wallet.contract).out
    for text in ("0.5 ETH", "70 MUR", "20 MUR, 0 MUR of it locked", "10 MUR, in 7 d"):
        assert text in shown


def test_without_contracts_balance_shows_gas_money_alone(wallet: Wallet) -> None:
    assert wallet.balance(wallet.key.address, "--json").json.keys() == {"address", "chain_id", "eth"}


def test_balance_refuses_what_is_no_address_and_what_are_no_contracts(wallet: Wallet) -> None:
    typo = wallet.key.address[:-1] + ("0" if wallet.key.address[-1] != "0" else "1")
    for address in ("0x12", "owner.json", typo):
        ended = wallet.balance(address)
        assert (ended.code, "is no address" in ended.err) == (2, True), ended.err
    ended = wallet.balance(wallet.key.address, "--contract", FRIEND)
    assert (ended.code, "no such contract" in ended.err) == (4, True), ended.err
    ended = wallet.console.murmur("wallet", "balance", FRIEND, "--rpc", DEAD)
    assert (ended.code, "try: check the RPC address" in ended.err) == (4, True)


# ---- send --------------------------------------------------------------------------------------------------------------


def test_eth_is_sent_exactly_and_the_sender_pays_the_gas(wallet: Wallet) -> None:
    ended = wallet.send(FRIEND, "0.25", "--eth", "--yes")
    assert (ended.code, ended.out) == (0, f"{FRIEND} has 0.25 ETH\n"), ended.err
    assert "0.25 ETH from" in ended.err
    assert "for good" in ended.err
    chain = wallet.world.chain
    assert chain.balance(FRIEND) == TOKEN // 4
    assert TOKEN // 2 < chain.balance(wallet.key.address) < TOKEN * 3 // 4
    assert chain.token_balance(wallet.key.address) == 100 * TOKEN


def test_tokens_are_sent_exactly(wallet: Wallet) -> None:
    ended = wallet.send(FRIEND, "1.5", *wallet.contract, "--yes", "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["amount"], ended.json["has"], ended.json["eth"]) == (
        str(TOKEN * 3 // 2),
        str(TOKEN * 3 // 2),
        False,
    )
    assert wallet.world.chain.token_balance(FRIEND) == TOKEN * 3 // 2
    assert wallet.world.chain.balance(FRIEND) == 0


@pytest.mark.parametrize(
    ("amount", "options", "said"),
    [
        ("100.1", (), "holds 100 MUR, fewer than 100.1 MUR"),
        ("1.1", ("--eth",), "has 1 ETH, less than 1.1 ETH"),
        ("1", ("--eth",), "and with the gas this takes up to 1.0"),
    ],
)
def test_more_than_there_is_is_refused_before_anything_is_signed(wallet: Wallet, amount: str, options: tuple[str, ...], said: str) -> None:  # fmt: skip
    blocks = wallet.world.chain.block_number()
    ended = wallet.send(FRIEND, amount, *wallet.contract, *options, "--yes")
    assert (ended.code, said in ended.err) == (6, True), ended.err
    assert wallet.world.chain.block_number() == blocks


def test_without_a_confirmation_nothing_is_sent(wallet: Wallet) -> None:
    ended = wallet.send(FRIEND, "0.25", "--eth")
    assert (ended.code, "give --yes" in ended.err) == (2, True)
    assert wallet.world.chain.balance(FRIEND) == 0


def test_tokens_of_no_contracts_are_a_usage_error(wallet: Wallet) -> None:
    ended = wallet.send(FRIEND, "1", "--yes")
    assert (ended.code, "of which token?" in ended.err, "--eth" in ended.err) == (2, True, True)


def test_eth_that_a_killed_command_had_signed_is_sent_once(wallet: Wallet) -> None:
    """The journal keeps how much went along: what lands later is the same transfer, and the same command again is that one."""
    world = wallet.world
    chain = Chain(world.anvil.rpc, None)
    journal = TransactionLog(journal_path(chain, wallet.key, wallet.keystore))
    killed = Sender(chain, wallet.key, journal)
    killed._begin(chain.transfer_ether(FRIEND, TOKEN // 4), None)  # and it is gone before it sends anything
    journal.close()
    ended = wallet.send(FRIEND, "0.25", "--eth", "--yes")
    assert ended.code == 0, ended.err
    assert chain.balance(FRIEND) == TOKEN // 4
    ended = wallet.send(FRIEND, "0.25", "--eth", "--yes")
    assert chain.balance(FRIEND) == TOKEN // 2, "the same again later is another deed"


def test_another_amount_than_what_was_interrupted_is_another_transfer(wallet: Wallet) -> None:
    chain = Chain(wallet.world.anvil.rpc, None)
    journal = TransactionLog(journal_path(chain, wallet.key, wallet.keystore))
    Sender(chain, wallet.key, journal)._begin(chain.transfer_ether(FRIEND, TOKEN // 4), None)
    journal.close()
    ended = wallet.send(FRIEND, "0.5", "--eth", "--yes")
    assert ended.code == 0, ended.err
    assert chain.balance(FRIEND) == TOKEN * 3 // 4


def test_a_contract_that_takes_no_eth_is_said_to_refuse_it(wallet: Wallet) -> None:
    ended = wallet.send(wallet.world.chain.runs.address, "0.1", "--eth", "--yes")
    assert (ended.code, "sending 0.1 ETH to" in ended.err) == (4, True), ended.err


def test_a_replacement_carries_the_same_eth(wallet: Wallet) -> None:
    """What is signed again at a higher fee is made of what the journal holds."""
    sender = Sender(Chain(wallet.world.anvil.rpc, None), wallet.key)
    call: Call = sender.chain.transfer_ether(FRIEND, TOKEN // 4)
    transaction = sender._begin(call, None)
    (kept,) = sender._journal.pending()
    assert kept == transaction
    assert kept.value == TOKEN // 4
    dearer = sender._replace(kept, sender._journal.attempts(kept)[0])
    wallet.world.anvil.request("eth_sendRawTransaction", "0x" + dearer.raw.hex())
    eventually(lambda: wallet.world.chain.balance(FRIEND) == TOKEN // 4, what="it is mined")
