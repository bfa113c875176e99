"""`node join`: a run's card is all that a newcomer has, and one command brings keys, gas money, stake and seat together."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from swarm.anvil import Anvil
from swarm.faulty_endpoint import FaultyEndpoint, result
from swarm.world import DAY, TOKEN, World

from protocol.chain import Chain, gas
from protocol.chain.deploy import Deployment
from protocol.chain.faucet import creating
from protocol.chain.types import Role
from protocol.clock import SystemClock
from protocol.environments import registry
from protocol.environments.programs import ProgramEnvironment, ProgramTool
from protocol.errors import PreflightError, UsageError
from protocol.identity import Key, save_keystore
from protocol.sandbox.programs import survey
from protocol.settings import read_toml
from protocol.shell.gas import WORK_GAS
from protocol.shell.home import Home
from protocol.shell.money import tokens
from protocol.shell.run_card import public_endpoints
from tests.cli.conftest import PASSWORD, SPEC, Console, Ended

BOOTNODE = f"/ip4/127.0.0.1/tcp/1/p2p/{Key.generate().peer_id}"


@dataclass
class Newcomer:
    world: World
    console: Console
    folder: Path

    @property
    def home(self) -> Home:
        return Home(self.folder / "home", "node")

    @property
    def card(self) -> Path:
        return self.folder / "card.json"

    def join(self, *options: object, card: bool = True, wait: float = 0) -> Ended:
        given = (self.card,) if card else ()
        where = ("--home", self.home.path, "--spec", self.folder / "spec.json", "--wait", wait)
        return self.console.node("join", *given, *where, "--yes", *options)

    @property
    def role(self) -> Role:
        return self.world.chain.seat(self.world.run, self.home.address("node")).role


def run_file(world: World, folder: Path, rpc: str) -> Path:
    table = {"rpc": rpc, "contract": world.chain.runs.address, "run": world.run, "first_block": 2}
    file = folder / "run.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    file.write_text("\n".join(["[chain]", *lines, "[peers]", f'bootnodes = ["{BOOTNODE}"]']))
    return file


@pytest.fixture
def newcomer(anvil: Anvil, console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Newcomer]:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    world = World.fresh(anvil, spec_digest=SPEC.digest)
    (tmp_path / "spec.json").write_bytes(SPEC.canonical())
    made = console.murmur("run", "card", f"@{run_file(world, tmp_path, anvil.rpc)}")
    assert made.code == 0, made.err
    newcomer = Newcomer(world, console, tmp_path)
    newcomer.card.write_text(made.out)
    yield newcomer


@pytest.mark.parametrize("words", [("node",), ("validator",), ("relay", "--host", "127.0.0.1")])
def test_every_role_takes_the_card_in_place_of_its_lines(newcomer: Newcomer, words: tuple[str, ...]) -> None:
    def init(*options: object) -> Ended:
        return newcomer.console.murmur(words[0], "init", *words[1:], *options, "--home", home.path)

    home, card = Home(newcomer.folder / words[0], words[0]), json.loads(newcomer.card.read_text())
    for given, said in (
        ((newcomer.card, "--run", 1), "--run stands in the card"),
        (("--run", 1, "--bootnode", BOOTNODE), "--rpc, --contract is missing"),
    ):
        done = init(*given)
        assert (done.code, said in done.err, home.path.exists()) == (2, True, False), done.err
    newcomer.card.write_text(json.dumps(card | {"chain_id": 8453}))
    assert init(newcomer.card).code == 4, "endpoints of another chain than the card's"
    newcomer.card.write_text(json.dumps(card | {"rpc": ["http://127.0.0.1:9"]}))
    done = init(newcomer.card, "--rpc", newcomer.world.anvil.rpc)
    assert done.code == 0, done.err
    tables = read_toml(home.config)
    assert tables["chain"] == {name: card[name] for name in ("contract", "chain_id", "run", "first_block")} | {
        "rpc": newcomer.world.anvil.rpc
    }
    assert tables["peers"]["bootnodes"] == card["bootnodes"] == [BOOTNODE]


@pytest.mark.parametrize("change", [{"chain_id": 8453}, {"run": 99}, {"contract": "0x" + "11" * 20}], ids=str)
def test_a_card_of_something_else_is_named_and_no_option_that_nobody_typed(
    newcomer: Newcomer, change: dict[str, object]
) -> None:
    newcomer.card.write_text(json.dumps(json.loads(newcomer.card.read_text()) | change))
    hint = f"  try: {newcomer.card} names chain, contract and run; ask the run's owner for a newer card\n"
    assert newcomer.join().err.endswith(hint)
    given = newcomer.join("--rpc", f"{newcomer.world.anvil.rpc}/")
    assert given.err.endswith(f"{newcomer.card} names chain, contract and run, and --rpc another's endpoint\n"), (
        given.err
    )
    for role in ("node", "validator", "relay"):
        words = ("--host", "127.0.0.1") if role == "relay" else ()
        done = newcomer.console.murmur(role, "init", *words, newcomer.card, "--home", newcomer.folder / "home")
        assert done.code in (3, 4) and done.err.endswith(hint), done.err


def test_given_again_with_the_endpoint_that_it_was_made_with_it_goes_on(newcomer: Newcomer) -> None:
    rpc, card = newcomer.world.anvil.rpc, json.loads(newcomer.card.read_text())
    newcomer.card.write_text(json.dumps(card | {"rpc": ["http://127.0.0.1:9"]}))
    for _ in range(2):
        poor = newcomer.join("--rpc", rpc)
        assert poor.code == 6 and "ETH for gas" in poor.err, poor.err
    other = newcomer.join("--rpc", "http://127.0.0.1:9")
    assert other.code == 2 and f"write chain.rpc into {newcomer.home.config}" in other.err, other.err


@pytest.mark.parametrize("teller", ["addresses file", "run's file", "nobody"])
def test_a_validator_hears_from_the_card_what_pays_it(newcomer: Newcomer, teller: str) -> None:
    world, file = newcomer.world, run_file(newcomer.world, newcomer.folder, newcomer.world.anvil.rpc)
    options, paid_from = [], "" if teller == "nobody" else world.vouchers
    if teller == "addresses file":
        chain, addresses = world.chain, newcomer.folder / "deployment.json"
        named = {"bonds": chain.bonds.address, "court": "", "vouchers": paid_from, "token": chain.token.address}
        Deployment(chain.chain_id, chain.runs.address, **named, block=2).save(addresses)
        options = ["--deployment", addresses]
    elif paid_from:
        file.write_text(file.read_text().replace("[chain]", f'[chain]\nvouchers = "{paid_from}"'))
    newcomer.card.write_text(newcomer.console.murmur("run", "card", f"@{file}", *options).out)
    home = Home(newcomer.folder / "validator", "validator")
    done = newcomer.console.murmur("validator", "init", newcomer.card, "--home", home.path)
    assert done.code == 0, done.err
    assert read_toml(home.config)["chain"].get("vouchers", "") == paid_from


def with_faucet(newcomer: Newcomer, amount: int) -> None:
    chain, owner = newcomer.world.chain, newcomer.world.owner
    call = creating(chain, chain.token.address, amount=amount, most=1000 * TOKEN, period=DAY)
    faucet = str(owner.send(call).contract)
    owner.send(chain.transfer_tokens(faucet, 1000 * TOKEN))
    card = json.loads(newcomer.card.read_text())
    newcomer.card.write_text(json.dumps(card | {"faucet": faucet}))


def test_without_money_it_says_what_to_send_to_the_one_address_and_goes_on_when_given_again(newcomer: Newcomer) -> None:
    poor = newcomer.join()
    operator = newcomer.home.address("operator")
    assert poor.code == 6 and f"100 MUR for the stake, which the run's owner sells or gives to {operator}" in poor.err
    assert "ETH for gas" in poor.err and newcomer.role == Role.NONE
    newcomer.world.anvil.give(operator, TOKEN)
    newcomer.world.owner.send(newcomer.world.chain.transfer_tokens(operator, 100 * TOKEN))
    done = newcomer.join(card=False)
    assert done.code == 0, done.err
    assert newcomer.home.address("operator") == operator
    assert newcomer.role == Role.ACTIVE
    chain = newcomer.world.chain
    assert chain.balance(newcomer.home.address("node")) >= WORK_GAS * gas.price(chain)
    newcomer.world.anvil.give(operator, 0)
    again = newcomer.join()
    assert again.code == 0 and newcomer.world.chain.account(operator).active == 100 * TOKEN, (
        "a seat that is taken asks for no ETH"
    )


def rich(newcomer: Newcomer) -> str:
    """A home whose operator has all that the seat takes: its address."""
    newcomer.join()
    operator = newcomer.home.address("operator")
    newcomer.world.anvil.give(operator, TOKEN)
    newcomer.world.owner.send(newcomer.world.chain.transfer_tokens(operator, 100 * TOKEN))
    return operator


def test_it_asks_before_anything_is_sent_and_says_whose_word_it_goes_by(newcomer: Newcomer) -> None:
    operator, chain = rich(newcomer), newcomer.world.chain
    node = newcomer.home.address("node")
    asked = newcomer.console.node(
        "join", "--home", newcomer.home.path, "--spec", newcomer.folder / "spec.json", "--wait", 0
    )
    assert (asked.code, chain.balance(operator), newcomer.role) == (2, TOKEN, Role.NONE)
    for said in (
        f"{newcomer.world.run} of {chain.runs.address} on chain 31337 (anvil)",
        f"told by   {newcomer.world.anvil.rpc}, and by no other",
        f"ETH from the operator to {node}, for its gas",
        "deposits  100 MUR from the operator",
    ):
        assert said in asked.err, asked.err
    assert newcomer.join().code == 0
    newcomer.world.anvil.give(node, 0)
    held = chain.balance(operator)
    asked = newcomer.console.node("join", "--home", newcomer.home.path, "--spec", newcomer.folder / "spec.json")
    assert (asked.code, "Pass ETH to the node key?" in asked.err, chain.balance(operator)) == (2, True, held), asked.err


def test_an_endpoint_of_the_card_that_contradicts_another_gets_no_money(newcomer: Newcomer) -> None:
    card, chain = json.loads(newcomer.card.read_text()), newcomer.world.chain
    liar = FaultyEndpoint(newcomer.world.anvil.rpc)
    bonds = "0x" + chain.runs.functions.bonds().data.hex()
    is_asked = lambda method, params: method == "eth_call" and bonds in params[0].values()  # noqa: E731
    liar.fault = lambda method, params: (
        result("0x" + chain.token.address[2:].rjust(64, "0")) if is_asked(method, params) else None
    )
    rich(newcomer)
    newcomer.card.write_text(json.dumps(card | {"rpc": [newcomer.world.anvil.rpc, liar.url]}))
    done = newcomer.join()
    assert done.code == 4 and f"{liar.url} contradicts what the others say" in done.err, done.err
    assert newcomer.role == Role.NONE
    liar.close()


def test_a_policy_that_one_endpoint_tells_at_the_right_moment_changes_no_amount(
    newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is deposited follows from the policy that all told."""
    rich(newcomer)
    agreement = importlib.import_module("protocol.chain.agreement")
    real, asked = agreement.require_same_run, Chain.policy

    def then_it_lies(chain: Chain, run: int, **about: Any) -> Any:
        found = real(chain, run, **about)
        monkeypatch.setattr(Chain, "policy", lambda chain, run: replace(asked(chain, run), node_stake=TOKEN))
        return found

    monkeypatch.setattr(agreement, "require_same_run", then_it_lies)
    done = newcomer.join()
    assert done.code == 0 and "deposits  100 MUR" in done.err, done.err


def test_gas_money_is_not_passed_again_because_one_endpoint_shows_none(newcomer: Newcomer) -> None:
    world = newcomer.world
    operator, second = rich(newcomer), FaultyEndpoint(world.anvil.rpc)
    assert newcomer.join().code == 0
    node = newcomer.home.address("node").lower()
    asks_for_node = lambda method, params: method == "eth_getBalance" and params[0].lower() == node  # noqa: E731
    second.fault = lambda method, params: result("0x0") if asks_for_node(method, params) else None
    card = json.loads(newcomer.card.read_text())
    newcomer.card.write_text(json.dumps(card | {"rpc": [second.url, world.anvil.rpc]}))
    held = world.chain.balance(operator)
    assert newcomer.join().code == 0
    assert world.chain.balance(operator) == held
    second.close()


def test_who_comes_back_with_the_stake_still_locked_deposits_nothing(newcomer: Newcomer) -> None:
    rich(newcomer)
    assert newcomer.join().code == 0
    assert newcomer.console.node("leave", "--home", newcomer.home.path, "--yes").code == 0
    done = newcomer.join()
    assert (done.code, "deposits" in done.err, "seats     " in done.err) == (0, False, True), done.err
    assert newcomer.role == Role.ACTIVE


def test_a_seat_whose_operators_key_was_moved_away_takes_a_corrected_card(newcomer: Newcomer) -> None:
    rich(newcomer)
    assert newcomer.join().code == 0
    newcomer.home.keystore("operator").rename(newcomer.folder / "safe.json")
    card = json.loads(newcomer.card.read_text())
    newcomer.card.write_text(json.dumps(card | {"first_block": 3}))
    done = newcomer.join()
    assert (done.code, "is seated" in done.out) == (0, True), done.err
    assert read_toml(newcomer.home.config)["chain"]["first_block"] == 3


def test_tokens_are_sent_on_the_word_of_all_endpoints_only(newcomer: Newcomer) -> None:
    world, console = newcomer.world, newcomer.console
    liar = FaultyEndpoint(world.anvil.rpc)
    token = "0x" + world.chain.runs.functions.token().data.hex()
    another = World.another(world.anvil)
    another.owner.send(another.chain.transfer_tokens(world.owner.key.address, 100 * TOKEN))
    other = another.chain.token.address
    is_asked = lambda method, params: method == "eth_call" and token in params[0].values()  # noqa: E731
    liar.fault = lambda method, params: result("0x" + other[2:].rjust(64, "0")) if is_asked(method, params) else None
    file = run_file(world, newcomer.folder, world.anvil.rpc)
    file.write_text(file.read_text().replace(json.dumps(world.anvil.rpc), json.dumps([liar.url, world.anvil.rpc])))
    keystore = newcomer.folder / "owner.json"
    save_keystore(world.owner.key, keystore, PASSWORD, chain_id=world.chain.chain_id)
    to = Key.generate().address
    for words in (("send-tokens", f"@{file}", to, "2"), ("fund", f"@{file}", "2")):
        done = console.murmur("run", *words, "--keystore", keystore, "--yes")
        assert done.code == 4, (words, done.err)
    assert world.chain.token_balance(to) == 0
    liar.fault = lambda *_: None
    done = console.murmur("run", "send-tokens", f"@{file}", to, "2", "--keystore", keystore, "--yes")
    assert (done.code, world.chain.token_balance(to)) == (0, 2 * TOKEN), done.err
    assert "which name the same contracts" in done.err
    liar.close()


def test_a_corrected_card_is_taken_unless_the_settings_were_changed_by_hand(newcomer: Newcomer) -> None:
    newcomer.join()
    card, home = json.loads(newcomer.card.read_text()), newcomer.home
    other = f"/ip4/127.0.0.1/tcp/2/p2p/{Key.generate().peer_id}"
    newcomer.card.write_text(json.dumps(card | {"bootnodes": [other]}))
    done = newcomer.join()
    assert "were written to" in done.err and read_toml(home.config)["peers"]["bootnodes"] == [other]
    assert "were written to" not in newcomer.join().err
    home.config.write_text(home.config.read_text() + "\n[page]\nport = 0\n")
    before = home.config.read_text()
    newcomer.card.write_text(json.dumps(card))
    done = newcomer.join()
    assert f'peers.bootnodes = ["{BOOTNODE}"]' in done.err and home.config.read_text() == before
    assert "is not as a card made it" not in newcomer.join().err, "said once"


def test_it_waits_for_eth_and_the_tokens_come_from_the_runs_faucet(
    newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def somebody_sends(clock: SystemClock, seconds: float) -> None:
        newcomer.world.anvil.give(newcomer.home.address("operator"), TOKEN)

    with_faucet(newcomer, 250 * TOKEN)
    monkeypatch.setattr(SystemClock, "sleep", somebody_sends)
    done = newcomer.join(wait=1)
    operator = newcomer.home.address("operator")
    assert done.code == 0, done.err
    assert "waiting for it" in done.err and "MUR for the stake, which" not in done.err
    assert newcomer.world.chain.token_balance(operator) == 150 * TOKEN
    assert newcomer.role == Role.ACTIVE


def test_a_faucet_that_gives_too_little_is_not_asked(newcomer: Newcomer) -> None:
    with_faucet(newcomer, 30 * TOKEN)
    newcomer.join()
    assert "ETH" not in newcomer.join().err.split("error:")[1], "before anybody buys gas money"
    newcomer.world.anvil.give(newcomer.home.address("operator"), TOKEN)
    done = newcomer.join(card=False)
    assert done.code == 6 and "the faucet gives 30 MUR" in done.err and "70 MUR" in done.err
    assert newcomer.world.chain.token_balance(newcomer.home.address("operator")) == 0


def test_a_validator_comes_from_a_card_to_its_seat_by_what_the_commands_say(newcomer: Newcomer) -> None:
    with_faucet(newcomer, 500 * TOKEN)
    chain, console, home = newcomer.world.chain, newcomer.console, Home(newcomer.folder / "v a l", "validator")

    def run(*words: object) -> Ended:
        return console.murmur("validator", *words, "--home", home.path)

    def next_said() -> str:
        said = run("status", "--json").json["next"]
        assert f"next: {said}" in run("status").out
        return str(said)

    begun = run("init", newcomer.card)
    address, stake = home.address("validator"), chain.policy(newcomer.world.run).validator_stake
    asked = f"murmur chain faucet --card '{home.path}/card.json' --keystore '{home.path}/keys/validator.json'"
    assert re.search(rf"send it [0-9.]+ ETH for gas and {tokens(stake)} for the stake, which `{asked}` gets", begun.out)
    assert re.fullmatch(f"send [0-9.]+ ETH for gas to {address}", next_said())
    newcomer.world.anvil.give(address, TOKEN)
    poor = run("stake", "--yes")
    assert poor.code == 6 and f"try: {asked}; then give the same command again" in poor.err
    assert next_said() == asked
    assert console.murmur(*shlex.split(asked)[1:], "--yes").code == 0
    assert next_said() == f"murmur validator stake --home '{home.path}'"
    assert run("stake", "--yes").code == 0
    assert f"murmur run approve @run.toml {address}" in next_said()
    newcomer.world.owner.send(chain.approve_validator(newcomer.world.run, address, True))
    assert next_said() == f"murmur validator enlist --home '{home.path}'"
    assert run("enlist", "--yes").code == 0
    assert next_said() == f"murmur validator start --home '{home.path}'"


def test_a_validator_whose_card_names_no_faucet_that_helps_hears_how_much_to_ask_for(newcomer: Newcomer) -> None:
    stake, home = newcomer.world.chain.policy(newcomer.world.run).validator_stake, newcomer.folder / "validator"
    asks = f"ask the run's owner to send {tokens(stake)} to"
    begun = newcomer.console.murmur("validator", "init", newcomer.card, "--home", home)
    assert f"ETH for gas and {tokens(stake)} for the stake, then" in begun.out
    assert asks in newcomer.console.murmur("validator", "stake", "--yes", "--home", home).err
    none = newcomer.console.murmur("chain", "faucet", "--card", newcomer.card)
    assert (none.code, "names no faucet" in none.err) == (3, True)
    with_faucet(newcomer, stake - 1)
    (home / "card.json").write_text(newcomer.card.read_text())
    assert asks in newcomer.console.murmur("validator", "stake", "--yes", "--home", home).err
    shown = newcomer.console.murmur("chain", "faucet", "--card", newcomer.card)
    assert "once in 1 d" in shown.out


def test_a_machine_that_cannot_do_the_work_is_told_before_money_is_sent(
    newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks() -> None:
        raise PreflightError("programs cannot be run on this machine: bubblewrap: it is not installed")

    monkeypatch.setattr(survey, "require", lacks)
    monkeypatch.setattr(registry, "RUN_PROGRAMS", {SPEC.environments[0].package})
    done = newcomer.join()
    assert done.code == 5 and "bubblewrap" in done.err and "send" not in done.err.split("error:")[1]


def test_which_environments_run_programs_is_what_their_classes_say() -> None:
    found = {name for name, one in registry.installed().items() if one.distribution is None}
    kinds = {name: registry.find(name).load() for name in found}
    runs = {name for name, kind in kinds.items() if issubclass(kind, ProgramEnvironment | ProgramTool)}
    assert runs == registry.RUN_PROGRAMS


def test_a_home_of_another_run_is_left_alone(newcomer: Newcomer) -> None:
    newcomer.join()
    before = newcomer.home.config.read_text()
    card = json.loads(newcomer.card.read_text())
    newcomer.card.write_text(json.dumps(card | {"run": card["run"] + 1}))
    done = newcomer.join()
    assert done.code == 3 and "belongs to run" in done.err and newcomer.home.config.read_text() == before


@pytest.mark.parametrize(
    ("text", "code"), [("", 3), ("[]", 3), ("[" * 60_000, 3), ('{"run": 1}', 3), ('{"contract": "0x12"}', 3), (None, 2)]
)
@pytest.mark.usefixtures("deep")
def test_what_is_no_card_is_refused_before_a_key_is_made(
    console: Console, tmp_path: Path, text: str | None, code: int
) -> None:
    if text is not None:
        (tmp_path / "card.json").write_text(text)
    done = console.node("join", tmp_path / "card.json", "--home", tmp_path / "home", "--yes")
    assert done.code == code and not (tmp_path / "home").exists()
    assert console.node("join", "--home", tmp_path / "home", "--yes").code == 2


def test_a_card_names_no_endpoint_with_a_key_in_it() -> None:
    secret = ("https://rpc.example/v2/canary5f3a9c7d", "http://127.0.0.1:8545")
    assert public_endpoints([], 84_532, secret) == ("https://sepolia.base.org",)
    assert public_endpoints([], 31_337, secret) == secret[1:]
    assert public_endpoints(["https://a.example"], 31_337, secret) == ("https://a.example",)
    with pytest.raises(UsageError):
        public_endpoints([], 999, secret[0])


def test_a_folder_that_hardware_made_is_for_its_user_alone(console: Console, tmp_path: Path) -> None:
    place = Home(tmp_path / "home", "node")
    assert place.data.is_dir() and place.path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "change",
    [
        {"run": 1 << 256}, {"chain_id": 1 << 64}, {"first_block": -1}, {"contract": "0x52908400098527886E0F7030069857D2E4169Ee7"},
        {"faucet": "42" * 20}, {"rpc": []}, {"rpc": ["http://127.0.0.1:9"] * 17}, {"bootnodes": ["no multiaddr"]},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_card_with_a_field_out_of_range_makes_no_home(newcomer: Newcomer, change: dict[str, object]) -> None:
    newcomer.card.write_text(json.dumps(json.loads(newcomer.card.read_text()) | change))
    done = newcomer.join()
    assert done.code == 3 and not newcomer.home.config.exists(), done.err
