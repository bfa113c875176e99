"""`murmur chain verify`: an explorer that compiles the sources again finds what lies on chain, to the last byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from swarm.anvil import Anvil
from swarm.world import DAY, TOKEN

from protocol.chain import Chain, Sender, artifacts, explorer
from protocol.chain.deploy import Deployment, deploy_to
from protocol.chain.faucet import creating
from tests.cli.conftest import Console, Ended
from tests.cli.explorer import KEY, StandIn

SINK = "0x" + "51" * 20
DEAD = "http://127.0.0.1:9/api"


@pytest.fixture(scope="module")
def addresses(anvil: Anvil, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment with its token and a faucet."""
    path = tmp_path_factory.mktemp("verify") / "deployment.json"
    deployment = deploy_to(path, Chain(anvil.rpc, None), anvil.bank, withdrawal_delay=7 * DAY, sink=SINK)
    chain = Chain(anvil.rpc, deployment.runs)
    faucet = Sender(chain, anvil.bank).send(creating(chain, deployment.token, amount=TOKEN, most=5 * TOKEN, period=60))
    replace(deployment, faucet=str(faucet.contract)).save(path)
    return path


@pytest.fixture
def stand_in(anvil: Anvil) -> Iterator[StandIn]:
    made = StandIn(anvil, queued=2, busy=1)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "_PAUSE_SECONDS", 0.1)
    monkeypatch.setenv("MURMUR_EXPLORER_KEY", KEY)


def verify(console: Console, anvil: Anvil, addresses: Path, url: str, *options: object) -> Ended:
    where = ("--deployment", addresses, "--rpc", anvil.rpc, "--explorer", url)
    return console.murmur("chain", "verify", *where, *options)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("Faucet", "Bonds"), id="one of a transaction and one of another contract"),
        pytest.param(artifacts.CONTRACTS, id="all", marks=pytest.mark.long),  # each is compiled by itself
    ],
)
def test_a_deployments_contracts_are_verified_and_are_so_the_next_time(
    console: Console, anvil: Anvil, addresses: Path, stand_in: StandIn, names: tuple[str, ...]
) -> None:
    only = [] if names == artifacts.CONTRACTS else [word for name in names for word in ("--only", name)]
    ended = verify(console, anvil, addresses, stand_in.url, "--json", *only)
    assert ended.code == 0, ended.err
    found = ended.json["contracts"]
    assert set(found) == set(names)
    assert {each["outcome"] for each in found.values()} == {"verified"}
    assert stand_in.verified == {
        each["address"].lower(): artifacts.build().full_name(name) for name, each in found.items()
    }
    again = verify(console, anvil, addresses, stand_in.url, "--only", "Bonds", "--only", "Faucet")
    assert again.code == 0
    assert [line.split()[0] for line in again.out.splitlines()] == ["Bonds", "Faucet"]
    assert again.out.count("verified already") == 2


def test_other_sources_are_not_verified(
    console: Console, anvil: Anvil, addresses: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = artifacts.build()
    text = build.sources["src/Locations.sol"]
    assert "MOST = 512" in text
    other = replace(build, sources={**build.sources, "src/Locations.sol": text.replace("MOST = 512", "MOST = 513")})
    monkeypatch.setattr(artifacts, "build", lambda: other)
    ended = verify(console, anvil, addresses, stand_in.url, "--only", "Locations")
    assert (ended.code, "does not verify Locations" in ended.err) == (4, True), ended.err
    assert stand_in.verified == {}


def test_other_arguments_are_not_verified(
    console: Console, anvil: Anvil, addresses: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = explorer.deployed

    def other(chain: Chain, known: Deployment) -> list[explorer.Deployed]:
        return [replace(each, arguments=each.arguments[:-1] + b"\x01") for each in made(chain, known)]

    monkeypatch.setattr(explorer, "deployed", other)
    assert verify(console, anvil, addresses, stand_in.url, "--only", "Faucet").code == 4


@pytest.mark.long
def test_other_settings_are_not_verified(
    console: Console, anvil: Anvil, addresses: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**artifacts.build().settings, "optimizer": {"enabled": True, "runs": 101}}
    less = replace(artifacts.build(), settings=settings)
    monkeypatch.setattr(artifacts, "build", lambda: less)
    assert verify(console, anvil, addresses, stand_in.url, "--only", "Faucet").code == 4


def test_a_wrong_key_is_said_and_never_shown(
    console: Console, anvil: Anvil, addresses: Path, stand_in: StandIn, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("canary-wrong-7713\n")
    ended = verify(console, anvil, addresses, stand_in.url, "--only", "Faucet", "--key-file", tmp_path / "key")
    assert (ended.code, "Invalid API Key" in ended.err, "MURMUR_EXPLORER_KEY" in ended.err) == (4, True, True)
    ended = verify(console, anvil, addresses, DEAD, "--only", "Faucet")
    assert (ended.code, "did not answer" in ended.err) == (1, True), ended.err
    assert not [text for text in console.printed if "canary" in text]


def test_foreign_code_is_nothing_of_ours_to_verify(console: Console, anvil: Anvil, addresses: Path, stand_in: StandIn, tmp_path: Path) -> None:  # fmt: skip
    known = Deployment.load(addresses)
    file = tmp_path / "other.json"
    replace(known, vouchers=known.token).save(file)
    ended = verify(console, anvil, file, stand_in.url)
    assert (ended.code, "(Vouchers)" in ended.err) == (4, True), ended.err
    assert not stand_in.asked


def test_what_explorer_and_which_contracts_must_be_known(console: Console, anvil: Anvil, addresses: Path, stand_in: StandIn) -> None:  # fmt: skip
    ended = console.murmur("chain", "verify", "--deployment", addresses, "--rpc", anvil.rpc)
    assert (ended.code, "give --explorer" in ended.err) == (2, True)
    ended = verify(console, anvil, addresses, stand_in.url, "--only", "Ruins")
    assert (ended.code, "no contract is called 'Ruins'" in ended.err) == (2, True)


def test_the_addresses_file_says_what_the_bytecode_was_made_with(addresses: Path) -> None:
    written = json.loads(addresses.read_text())
    assert written["compiler"] == artifacts.build().compiler
    assert written["settings"]["optimizer"] == {"enabled": True, "runs": 100}
    assert written["settings"]["evmVersion"] == "cancun"
    old = {name: value for name, value in written.items() if name not in ("compiler", "settings", "faucet")}
    addresses.with_name("old.json").write_text(json.dumps(old))
    assert Deployment.load(addresses.with_name("old.json")).runs == written["runs"], (
        "files of earlier versions are read"
    )
