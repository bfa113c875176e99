"""`murmur validator …` and `murmur relay …`: the same manners as `node …`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from swarm.anvil import Anvil
from swarm.world import TOKEN, World

from node.relay.service import RelaySettings
from node.validator.judgement_log import JudgementLog
from protocol.errors import Unavailable
from protocol.settings import load
from protocol.shell.home import Home, write_json
from protocol.shell.role import role
from tests.cli.conftest import PASSWORD, SPEC, Console, Ended, init_options

Run = Callable[..., Ended]


@pytest.fixture
def validator(anvil: Anvil, console: Console, monkeypatch: pytest.MonkeyPatch) -> tuple[World, str, Run, Path]:
    """A world, the address of a validator whose home was made, a way to run its commands, and the home."""
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    world, path = World.fresh(anvil), console.folder / "validator"
    made = console.murmur("validator", "init", *init_options(world), "--home", path, "--json").json
    anvil.give(made["validator"], TOKEN)

    def run(*arguments: object) -> Ended:
        return console.murmur("validator", *arguments, "--home", path)

    return world, made["validator"], run, path


def test_a_validator_goes_from_key_to_seat_and_back(validator: tuple[World, str, Run, Path]) -> None:
    world, address, run, _ = validator
    unapproved = run("enlist", "--yes")
    assert (unapproved.code, f"murmur run approve @run.toml {address} --keystore" in unapproved.err) == (2, True)
    world.owner.send(world.chain.approve_validator(world.run, address, True))
    poor = run("enlist", "--yes")
    assert (poor.code, "murmur validator stake" in poor.err) == (6, True)
    assert run("stake", "--yes").code == 6
    world.owner.send(world.chain.transfer_tokens(address, 2000 * TOKEN))
    assert run("stake", "--yes").code == 0
    assert run("enlist").code == 2, "without --yes and terminal"
    assert run("enlist", "--yes").code == 0
    assert world.chain.validator(world.run, address).serves(world.chain.block().time)
    staked = world.chain.account(address).active
    again = run("stake", "--yes")
    assert (again.code, world.chain.account(address).active) == (0, staked), "staking twice costs once"
    left = run("enlist", "--off", "--yes")
    assert (left.code, "so keep `murmur validator start" in left.out) == (0, True)
    assert json.loads(run("status", "--json").out)["next"].startswith("murmur validator start"), "it still judges"
    seat, policy = world.chain.validator(world.run, address), world.chain.policy(world.run)
    assert seat.serves(world.chain.block().time), "it still judges what was submitted before"
    world.anvil.advance(seat.until - world.chain.block().time)
    locked = run("unstake", "500", "--yes")
    assert (locked.code, "answers for its receipts" in locked.err) == (6, True)
    assert locked.err.endswith("try: give the same command again then\n")
    world.anvil.advance(2 * policy.span)
    assert run("unstake", "500", "--yes").code == 0
    world.anvil.advance(world.chain.withdrawal_delay())
    assert "500 MUR" in run("withdraw").out
    assert world.chain.token_balance(address) == 2000 * TOKEN


def test_a_validator_without_a_seat_says_how_to_take_one(
    validator: tuple[World, str, Run, Path], tiny_bootnode: str
) -> None:
    _, address, run, path = validator
    config = path / "validator.toml"
    text = "\n".join(
        f'bootnodes = ["{tiny_bootnode}"]' if line.startswith("bootnodes") else line
        for line in config.read_text().splitlines()
    )
    config.write_text(text)
    done = run("start")
    assert (done.code, address in done.err, "murmur validator enlist" in done.err) == (5, True, True)


@pytest.fixture
def tiny_bootnode() -> str:
    from protocol.identity import Key

    return f"/ip4/127.0.0.1/tcp/1/p2p/{Key.generate().peer_id}"


def test_validator_status_is_json_in_every_state(validator: tuple[World, str, Run, Path]) -> None:
    _, address, run, _ = validator
    found = run("status", "--json").json
    assert (found["validator"], found["role"], found["doing"]["state"]) == (address, "none", "never started")
    assert run("status").code == 0


def test_validator_status_shows_the_challenges_of_each_seat(validator: tuple[World, str, Run, Path]) -> None:
    _, _, run, path = validator
    counts = {"passed": 2, "false": 0, "late": 0, "silent": 1}
    last = {"time": 1_700_000_000, "side": 1024, "seconds": 0.5, "counts": counts}
    passed = {**last, "outcome": "passed", "operations_per_second": 4.2e9}
    silent = {**last, "outcome": "silent", "operations_per_second": 0.0}
    write_json(path / "matrix-challenges.json", {"0xAA": passed, "0xBB": silent})
    assert run("status", "--json").json["matrix_challenges"] == {"0xAA": passed, "0xBB": silent}
    shown = run("status").out
    assert re.search("0xAA  passed .* ago, 0.0042 int8 TOPS; in all 2 passed, 1 silent", shown)
    assert re.search("0xBB  silent .* ago; in all 2 passed, 1 silent", shown)


def test_help_lists_commands_in_the_order_in_which_they_are_needed(console: Console) -> None:
    shown = re.findall(r"^  ([a-z-]+)", console.murmur("validator", "--help").out.split("Commands:")[1], re.MULTILINE)
    needed = ["init", "stake", "enlist", "start", "vouchers", "redeem"]
    assert [word for word in shown if word in needed] == needed


def test_no_secret_is_drawn_by_looking_for_it(validator: tuple[World, str, Run, Path]) -> None:
    """Reading commands write nothing: a master secret is the running validator's to draw."""
    _, _, run, path = validator
    journal = Home(path, "validator").data / "judgements.sqlite"
    done = run("secrets")
    assert (done.code, "murmur validator start" in done.err, journal.exists()) == (5, True, False)
    JudgementLog(journal).close()
    assert run("secrets").code == 5, "a log that holds none yet"


def test_a_validators_secrets_are_committed_to_and_then_revealed(validator: tuple[World, str, Run, Path]) -> None:
    world, _, run, path = validator
    with closing(JudgementLog(Home(path, "validator").data / "judgements.sqlite")) as journal:
        journal.secret("prefill", bytes(range(32)))  # as a start does
    shown, again = run("secrets", "--json").json, run("secrets", "--json").json
    assert shown["prefill"] == again["prefill"], "a secret stays the same"
    world.anvil.advance(world.chain.policy(world.run).window)
    later = run("secrets", "--json").json
    assert later["period"] == shown["period"] + 1
    assert hashlib.sha256(bytes.fromhex(later["prefill"])).hexdigest() == shown["prefill"]
    assert run("rejections", "--json").json == {"rejections": []}


@pytest.mark.parametrize("command", [["start"], ["stake", "--yes"], ["enlist", "--yes"]], ids=" ".join)
def test_passwords_are_asked_for_and_refused_as_everywhere(
    validator: tuple[World, str, Run, Path], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    _, _, run, _ = validator
    monkeypatch.setenv("MURMUR_PASSWORD", "wrong")
    assert run(*command).code == 3
    monkeypatch.delenv("MURMUR_PASSWORD")
    assert run(*command).code == 2


@pytest.mark.parametrize(
    "command",
    [
        ["validator", "start"], ["validator", "status"], ["validator", "stake", "--yes"], ["validator", "enlist", "--yes"],
        ["validator", "verify", "FILE"], ["validator", "replay", "ab"], ["validator", "rejections"], ["validator", "secrets"],
        ["validator", "audit"], ["validator", "seats"],
        ["relay", "start"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_missing_home_names_the_command_that_makes_one(console: Console, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "FILE").write_bytes(b"x")
    words = [str(tmp_path / word) if word == "FILE" else word for word in command]
    done = console.murmur(*words, "--home", tmp_path / "nowhere")
    assert done.code == 3
    assert f"murmur {command[0]} init" in done.err
    assert not (tmp_path / "nowhere").exists()


def test_a_relay_must_know_how_others_reach_it(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    options = [*init_options(world), "--home", tmp_path / "relay"]
    done = console.murmur("relay", "init", *options)
    assert (done.code, "--public-url" in done.err) == (3, True)
    assert not (tmp_path / "relay").exists()
    assert console.murmur("relay", "init", *options, "--public-url", "http://relay.example:8460").code == 0
    assert console.murmur("relay", "init", *options, "--host", "127.0.0.1").code == 3, "it is there already"


@pytest.mark.parametrize(
    "url",
    ["relay.example:8460", "ftp://relay.example:8460", "http://relay.example:8460/weights", "http://relay.example:99999",
     "http://relay.example", "https://Relay.Example:8460", "http://relay_1.example:8460"],
)  # fmt: skip
def test_a_public_address_that_nobody_can_be_told_is_refused_before_anything_is_written(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str
) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    options = [*init_options(world), "--home", tmp_path / "relay"]
    done = console.murmur("relay", "init", *options, "--public-url", url)
    assert (done.code, "serve.public_url" in done.err, "http://relay.example:8460" in done.err) == (3, True, True)
    assert not (tmp_path / "relay").exists()
    assert console.murmur("relay", "init", *options, "--public-url", "http://relay.example:8460/").code == 0
    settings = tmp_path / "relay/relay.toml"
    assert 'public_url = "http://relay.example:8460"' in settings.read_text()
    settings.write_text(settings.read_text().replace('"http://relay.example:8460"', json.dumps(url)))
    done = console.murmur("relay", "start", "--home", tmp_path / "relay")
    assert (done.code, "serve.public_url" in done.err) == (3, True)


@pytest.mark.parametrize(
    ("role", "option", "value"),
    [
        ("node", "--listen", "0.0.0.0:4001"), ("node", "--bootnode", "/ip4/192.0.2.7/tcp/4001"), ("node", "--first-block", -1),
        ("validator", "--listen", "/dns4/here.example/tcp/4001"), ("validator", "--bootnode", "boot.example"),
        ("relay", "--listen", "/ip4/0.0.0.0/udp/4001"), ("relay", "--bootnode", "/dns4/boot.example/tcp/4001/p2p/x"),
        ("bootnode", "--listen", "4001"), ("bootnode", "--announce", "boot.example:4001"),
        ("bootnode", "--announce", "/ip4/0.0.0.0/tcp/4001"),
    ],
)  # fmt: skip
def test_an_address_that_is_none_leaves_no_half_of_a_home(
    world: World,
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    role: str,
    option: str,
    value: object,
) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    options = [] if role == "bootnode" else init_options(world)
    options += ["--public-url", "http://relay.example:8460"] if role == "relay" else []
    run = console.node if role == "node" else lambda *words: console.murmur(role, *words)
    done = run("init", *options, option, value, "--home", tmp_path / "home")
    assert (done.code, (tmp_path / "home").exists()) == (3, False), done.err


def test_a_bootnode_takes_up_the_key_that_was_brought_to_its_new_machine(
    console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    old, new = tmp_path / "old", tmp_path / "new"
    made = console.murmur("bootnode", "init", "--home", old)
    peer_id = re.search(r"PeerID +(\S+)", made.out)
    assert peer_id, made.err
    (old / "keys").rename(new.mkdir() or new / "keys")
    key = (new / "keys/bootnode.json").read_bytes()
    done = console.murmur("bootnode", "init", "--home", new, "--announce", "/dns4/boot.example/tcp/4001")
    assert (done.code, peer_id[1] in done.out) == (0, True), done.err
    assert (new / "keys/bootnode.json").read_bytes() == key
    settings = (new / "bootnode.toml").read_text()
    again = console.murmur("bootnode", "init", "--home", new)
    assert (again.code, (new / "bootnode.toml").read_text()) == (3, settings), "settings that are there are not touched"


def test_a_role_that_has_read_the_run_spec_once_starts_while_the_hub_is_away(
    anvil: Anvil, console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    monkeypatch.setenv("MURMUR_PEERS__FIND_SECONDS", "0.2")
    world, place = World.fresh(anvil, spec_digest=SPEC.digest), Home(tmp_path / "relay", "relay")
    assert console.murmur("relay", "init", *init_options(world), "--host", "127.0.0.1", "--home", place.path).code == 0
    settings = load(RelaySettings, place.config).value
    with role(place, settings, None, what="a look") as up, pytest.raises(Unavailable):
        _ = up.connection.spec
    (place.path / "spec.json").write_bytes(SPEC.canonical())
    with role(place, settings, None, what="a look") as up:
        assert up.connection.spec == SPEC


def test_a_relay_looks_at_its_certificate_before_anything_else(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    options = ["--public-url", "https://relay.example", "--home", tmp_path / "relay"]
    assert console.murmur("relay", "init", *init_options(world), *options).code == 0
    for name in ("CERTIFICATE", "KEY"):
        monkeypatch.setenv(f"MURMUR_SERVE__TLS_{name}", str(tmp_path / "none.pem"))
    monkeypatch.setenv("MURMUR_PASSWORD", "wrong")
    done = console.murmur("relay", "start", "--home", tmp_path / "relay")
    assert (done.code, "cannot serve by" in done.err) == (3, True), done.err


@pytest.mark.parametrize("role_name", ["relay", "bootnode"])
def test_no_key_is_made_with_an_empty_password(
    world: World, console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, role_name: str
) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", "")
    options = [] if role_name == "bootnode" else [*init_options(world), "--host", "127.0.0.1"]
    done = console.murmur(role_name, "init", *options, "--home", tmp_path / "home")
    assert (done.code, "an empty password" in done.err, (tmp_path / "home").exists()) == (2, True, False)


def test_what_comes_next_names_the_home_that_was_given(
    console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    place, usual = tmp_path / "a place", tmp_path / "usual"
    monkeypatch.setattr("protocol.shell.home.default_home", lambda role: usual)
    assert console.murmur("bootnode", "init", "--home", place).out.rstrip().endswith(f"start --home '{place}'")
    assert console.murmur("bootnode", "init", "--home", usual).out.rstrip().endswith("next: murmur bootnode start")


INITS = {
    "node": ("node", "init"), "validator": ("murmur", "validator", "init"), "relay": ("murmur", "relay", "init", "--host", "127.0.0.1"),
}  # fmt: skip


@pytest.fixture(scope="module")
def shared_world(anvil: Anvil) -> World:
    return World.fresh(anvil)


@pytest.mark.parametrize("other", ["node", "validator", "relay", "bootnode", "trainer"])
def test_no_role_takes_another_ones_home(
    shared_world: World, console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: str
) -> None:
    """Both would write the same status and data. Homes of earlier versions are told by their settings as well."""
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    (tmp_path / ("trainer.lock" if other == "trainer" else f"{other}.toml")).touch()
    before = sorted(tmp_path.iterdir())
    commands = [[*words, *init_options(shared_world)] for role, words in INITS.items() if role != other]
    commands += [["murmur", role, "start"] for role in ("validator", "relay", "bootnode") if role != other]
    commands += [] if other == "bootnode" else [["murmur", "bootnode", "init"]]
    commands += [] if other == "node" else [["node", "start"], ["node", "join"]]
    for program, *words in commands:
        done = getattr(console, program)(*words, "--home", tmp_path)
        assert (done.code, f"is the home of a {other}" in done.err, "another --home" in done.err) == (2, True, True), (
            words
        )
    assert sorted(tmp_path.iterdir()) == before


def test_a_home_that_two_roles_share_already_says_what_to_move(
    validator: tuple[World, str, Run, Path],
) -> None:
    _, _, run, path = validator
    (path / "relay.toml").touch()
    done = run("start")
    assert (done.code, "take relay.toml out of one and" in done.err) == (2, True)
