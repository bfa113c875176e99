"""A gated run: its gate's key signs an invite, and only with it a node takes a seat, before any stake is deposited."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from swarm.anvil import Anvil
from swarm.world import DAY, World

from protocol.chain.types import Role
from protocol.constants import ANVIL_CHAIN_ID
from protocol.identity import Key, save_keystore
from tests.cli.conftest import PASSWORD, SPEC, Console, Contributor, Ended, init_options

# Bytecode of a contract that answers to everything with ERC-1271's yes, and of one that answers with a no.
SAYS_YES = "0x631626ba7e60e01b5f5260205ff3"
SAYS_NO = "0x5f5f5260205ff3"


@dataclass
class Gated:
    contributor: Contributor
    file: Path
    keystore: Path

    @property
    def world(self) -> World:
        return self.contributor.world

    def invite(self, *options: object, node: str | None = None) -> str:
        done = self.run("invite", node or self.contributor.node, *options)
        assert done.code == 0, done.err
        return done.out.strip()

    def run(self, command: str, *arguments: object) -> Ended:
        return self.contributor.console.murmur("run", command, f"@{self.file}", *arguments, "--keystore", self.keystore)

    def stake(self, *options: object) -> Ended:
        return self.contributor.run("stake", *options, "--yes")

    def require_nothing_done(self) -> None:
        chain = self.world.chain
        assert chain.account(self.contributor.operator).active == 0
        assert chain.seat(self.world.run, self.contributor.node).role == Role.NONE


@pytest.fixture
def gated(anvil: Anvil, console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Gated:
    gate = Key.from_secret(b"\x6a" * 32)
    return _gated(anvil, console, monkeypatch, tmp_path, gate)


def _gated(anvil: Anvil, console: Console, monkeypatch: pytest.MonkeyPatch, folder: Path, gate: Key) -> Gated:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    world = World.fresh(anvil, spec_digest=SPEC.digest, gate=gate.address)
    home = folder / "home"
    made = console.node("init", *init_options(world), "--home", home, "--json").json
    (home / "spec.json").write_bytes(SPEC.canonical())
    contributor = Contributor(world, console, home, made["node"], made["operator"])
    contributor.give()
    file, keystore = folder / "run.toml", folder / "gate.json"
    save_keystore(gate, keystore, PASSWORD, chain_id=ANVIL_CHAIN_ID)
    table = {"rpc": world.anvil.rpc, "contract": world.chain.runs.address, "run": world.run}
    file.write_text("[chain]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items()))
    return Gated(contributor, file, keystore)


def test_join_without_an_invite_names_the_node_key_and_with_one_takes_the_seat(gated: Gated) -> None:
    uninvited = gated.contributor.run("join", "--yes", "--wait", 0)
    assert uninvited.code == 2 and f"node key      {gated.contributor.node}" in uninvited.err
    assert "then give this command again with --invite WORD" in uninvited.err
    gated.require_nothing_done()
    done = gated.contributor.run("join", "--yes", "--wait", 0, "--invite", gated.invite())
    assert done.code == 0, done.err


def test_an_invited_node_takes_a_seat(gated: Gated) -> None:
    done = gated.stake("--invite", gated.invite())
    assert done.code == 0, done.err
    assert gated.world.chain.seat(gated.world.run, gated.contributor.node).role == Role.ACTIVE


def test_an_invite_comes_in_a_file_as_well(gated: Gated, tmp_path: Path) -> None:
    told = gated.run("invite", gated.contributor.node, "--days", 1, "--json").json
    (tmp_path / "invite").write_text(told["invite"] + "\n")
    assert (told["node"], told["run"]) == (gated.contributor.node, gated.world.run)
    assert abs(told["deadline"] - gated.world.chain.block().time - DAY) < 60
    assert gated.stake("--invite", tmp_path / "invite").code == 0


def test_without_an_invite_nothing_is_deposited(gated: Gated) -> None:
    done = gated.stake()
    assert (done.code, "invited nodes only" in done.err) == (2, True)
    assert f"murmur run invite @run.toml {gated.contributor.node} --keystore GATE.json" in done.err
    gated.require_nothing_done()


@pytest.mark.parametrize("fault", ["another node", "another run", "another key", "expired", "mangled", "nonsense"])
def test_an_invite_that_does_not_fit_is_refused_before_the_deposit(gated: Gated, fault: str) -> None:
    if fault == "another node":
        word = gated.invite(node=Key.generate().address)
    elif fault == "expired":
        word = gated.invite("--days", 0.01)
        gated.world.anvil.advance(DAY)
    elif fault == "nonsense":
        word = "please"
    else:
        run, node, deadline, signature = gated.invite().split(":")
        last = "00" if fault == "mangled" else signature[-2:]
        other = (
            "0x" + bytes(Key.generate().sign(b"\x01" * 32)).hex() if fault == "another key" else signature[:-2] + last
        )
        word = ":".join([str(int(run) + (fault == "another run")), node, deadline, other])
    done = gated.stake("--invite", word)
    assert done.code == 2
    assert "invite" in done.err
    assert "Traceback" not in done.err
    gated.require_nothing_done()


@pytest.mark.parametrize(("code", "ends"), [(SAYS_YES, 0), (SAYS_NO, 2)], ids=["yes", "no"])
def test_a_gate_that_is_a_contract_is_asked(gated: Gated, code: str, ends: int) -> None:
    """A wallet of several people, for one (ERC-1271)."""
    gate = gated.world.chain.policy(gated.world.run).gate
    run, node, deadline, _ = gated.invite().split(":")
    gated.world.anvil.request("anvil_setCode", gate, code)
    done = gated.stake("--invite", f"{run}:{node}:{deadline}:0x{'ab' * 200}")
    assert done.code == ends, done.err
    gated.world.anvil.request("anvil_setCode", gate, "0x")


def test_a_gate_that_is_a_contract_takes_back_every_invite_it_gave(gated: Gated) -> None:
    """It is asked when the seat is taken, not when the invite is written: the only way to revoke one before it expires."""
    gate, anvil = gated.world.chain.policy(gated.world.run).gate, gated.world.anvil
    run, node, deadline, _ = gated.invite().split(":")
    word = f"{run}:{node}:{deadline}:0x{'ab' * 200}"
    anvil.request("anvil_setCode", gate, SAYS_NO)  # a wallet whose owners have changed its signer, say
    done = gated.stake("--invite", word)
    assert (done.code, "invite" in done.err) == (2, True)
    gated.require_nothing_done()
    anvil.request("anvil_setCode", gate, SAYS_YES)
    assert gated.stake("--invite", word).code == 0
    anvil.request("anvil_setCode", gate, "0x")


def test_a_banned_node_takes_no_seat_with_an_invite_that_is_still_good(gated: Gated) -> None:
    """What the owner can do where the gate is a key."""
    world, word = gated.world, gated.invite("--days", 30)
    assert gated.stake("--invite", word).code == 0
    world.owner.send(world.chain.ban(world.run, gated.contributor.node))
    world.anvil.advance(world.chain.policy(world.run).notice + DAY)
    assert gated.stake("--invite", word).code != 0
    assert world.chain.seat(world.run, gated.contributor.node).role == Role.BANNED


def test_only_the_gate_invites(gated: Gated, tmp_path: Path) -> None:
    save_keystore(Key.generate(), tmp_path / "other.json", PASSWORD, chain_id=ANVIL_CHAIN_ID)
    gated.keystore = tmp_path / "other.json"
    done = gated.run("invite", gated.contributor.node)
    assert (done.code, "not the gate" in done.err) == (2, True)
    assert gated.run("invite", "0x12").code == 2


def test_a_run_without_a_gate_needs_no_invite(contributor: Contributor, tmp_path: Path) -> None:
    world, file = contributor.world, tmp_path / "run.toml"
    file.write_text(f'[chain]\nrpc = "{world.anvil.rpc}"\ncontract = "{world.chain.runs.address}"\nrun = {world.run}\n')
    done = contributor.console.murmur("run", "invite", f"@{file}", contributor.node, "--keystore", tmp_path / "none")
    assert (done.code, "no gate" in done.err) == (2, True)


def test_who_is_not_the_owner_hears_so_before_an_approval_is_asked_about(gated: Gated) -> None:
    """The gate's key is not the owner's."""
    validator, owner = Key.generate().address, gated.world.owner.key.address
    done = gated.run("approve", validator, "--yes")
    assert (done.code, f"is not the owner of run {gated.world.run}" in done.err, owner in done.err) == (2, True, True)
    assert validator not in done.err
