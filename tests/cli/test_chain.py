"""`murmur chain`: deploy by network name, look at what is there, and a doctor that names each thing that is wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from swarm.anvil import Anvil
from swarm.faulty_endpoint import FaultyEndpoint, result
from swarm.world import DAY, TOKEN, World, policy_for

from protocol.chain import Chain, Sender, gas
from protocol.chain.deploy import GAS, Deployment, deploy_to
from protocol.identity import Key, load_keystore, save_keystore
from protocol.sandbox.confinement import Kernel
from tests.cli.conftest import PASSWORD, Console

DEAD = "http://127.0.0.1:9"
SINK = "0x" + "51" * 20


@pytest.fixture
def addresses(anvil: Anvil, tmp_path: Path) -> Path:
    """An addresses file of contracts that are there, without a run."""
    path = tmp_path / "addresses" / "deployment.json"
    deploy_to(path, Chain(anvil.rpc, None), anvil.bank, withdrawal_delay=7 * DAY, sink=SINK)
    return path


@pytest.fixture
def faulty(anvil: Anvil) -> Iterator[FaultyEndpoint]:
    endpoint = FaultyEndpoint(anvil.rpc)
    yield endpoint
    endpoint.close()


@pytest.fixture
def base() -> Iterator[FaultyEndpoint]:
    """Something that says it is Base, and counts what it is asked."""
    endpoint = FaultyEndpoint(DEAD)
    endpoint.fault = lambda method, _: result(hex(8453) if method == "eth_chainId" else None)
    yield endpoint
    endpoint.close()


def with_run(anvil: Anvil, addresses: Path, validators: int = 0, **policy: Any) -> World:
    deployment = Deployment.load(addresses)
    chain = Chain(anvil.rpc, deployment.runs)
    owner, trainer = Sender(chain, anvil.bank), Sender(chain, Key.generate())
    for spender in (deployment.runs, deployment.bonds):
        owner.send(chain.approve_tokens(spender, 10**6 * TOKEN))  # type: ignore[arg-type]
    owner.send(chain.create(policy_for(owner.key, trainer.key, **policy), b"\x07" * 32))
    owner.send(chain.fund(1, 1000 * TOKEN))
    world = World(anvil, chain, owner, trainer, 1, b"\x07" * 32, deployment.vouchers)
    for _ in range(validators):
        world.seat_validator(Key.generate())
    return world


def doctor(console: Console, *arguments: object) -> tuple[int, dict[str, dict[str, Any]]]:
    """(exit code, the checks by name)."""
    ended = console.murmur("chain", "doctor", *arguments, "--json")
    report = ended.json
    assert report["ok"] == (ended.code == 0)
    return ended.code, {check["name"]: check for check in report["checks"]}


def unwell(checks: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: check["health"] for name, check in checks.items() if check["health"] != "ok"}


# ---- deploy ------------------------------------------------------------------------------------------------------------


def test_deploy_writes_addresses_of_contracts_that_info_finds_as_shipped(anvil: Anvil, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    key, keystore, out = Key.generate(), console.folder / "key.json", console.folder / "d.json"
    anvil.give(key.address, TOKEN)
    save_keystore(key, keystore, PASSWORD, chain_id=31337)
    options = ("--rpc", anvil.rpc, "--keystore", keystore, "--sink", SINK, "--out", out, "--yes")
    ended = console.murmur("chain", "deploy", "--network", "anvil", *options)
    assert ended.code == 0, ended.err
    again = console.murmur("chain", "deploy", *options)
    assert (again.code, "exists" in again.err) == (3, True)

    info = console.murmur("chain", "info", "--deployment", out, "--rpc", anvil.rpc, "--json")
    assert info.code == 0
    contracts = info.json["contracts"]
    deployment = Deployment.load(out)
    named = {name: found["address"] for name, found in contracts.items()}
    assert named.keys() >= {"Policies", "Bench", "Weights"}
    assert {name: named[name] for name in named if name not in ("Policies", "Bench", "Weights")} == {
        "Runs": deployment.runs, "Bonds": deployment.bonds, "Court": deployment.court, "Vouchers": deployment.vouchers,
        "Token": deployment.token,
    }  # fmt: skip
    assert {found["code"] for found in contracts.values()} == {"the code this version ships"}
    shown = console.murmur("chain", "info", "--deployment", out, "--rpc", anvil.rpc).out
    assert all(found["address"] in shown for found in contracts.values())


@pytest.mark.parametrize("command", ["deploy", "info", "new-key"])
def test_another_chain_than_the_named_one_is_refused_before_anything_is_sent(
    anvil: Anvil, console: Console, base: FaultyEndpoint, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    keystore = console.folder / "key.json"
    save_keystore(Key.generate(), keystore, PASSWORD, chain_id=31337)
    options: dict[str, tuple[object, ...]] = {
        "deploy": ("--keystore", keystore, "--sink", SINK, "--out", console.folder / "d.json", "--yes"),
        "info": ("--contract", SINK),
        "new-key": (console.folder / "new.json",),
    }
    for network in ("anvil", "base-sepolia"):
        ended = console.murmur("chain", command, "--network", network, "--rpc", base.url, *options[command])
        assert (ended.code, "chain 8453" in ended.err) == (4, True), ended.err
    assert set(base.asked) == {"eth_chainId"}
    mixed = ("--rpc", anvil.rpc, "--rpc", base.url)
    assert console.murmur("chain", command, *mixed, *options[command]).code == 4, "the second endpoint is another's"
    assert not (console.folder / "new.json").exists()


def test_an_addresses_file_says_which_chain_is_meant(console: Console, anvil: Anvil, addresses: Path) -> None:
    moved = console.folder / "base.json"
    moved.write_text(json.dumps({**asdict(Deployment.load(addresses)), "chain_id": 8453}))
    for command in ("info", "doctor"):
        ended = console.murmur("chain", command, "--deployment", moved, "--network", "anvil", "--rpc", anvil.rpc)
        assert (ended.code, "is of chain 8453" in ended.err) == (4, True), ended.err
    ended = console.murmur("chain", "info", "--deployment", moved, "--rpc", anvil.rpc)
    assert (ended.code, "not 8453" in ended.err) == (4, True), ended.err


def test_a_key_for_a_public_network_is_strong_and_asks_no_endpoint(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    path = console.folder / "owner.json"
    ended = console.murmur("chain", "new-key", path, "--network", "base")
    assert ended.code == 0, ended.err
    assert json.loads(path.read_text())["crypto"]["kdfparams"]["n"] == 1 << 18
    assert load_keystore(path, PASSWORD).address == ended.out.strip()


def test_info_shows_what_is_not_ours_and_ends_with_4(console: Console, anvil: Anvil, world: World) -> None:
    for contract, code in ((SINK, "no such contract"), (world.chain.token.address, "other code")):
        ended = console.murmur("chain", "info", "--contract", contract, "--rpc", anvil.rpc)
        assert (ended.code, code in ended.out) == (4, True), ended.out


# ---- doctor ------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _a_kernel_that_holds_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the doctor finds here must not hang on the machine that tests run on."""
    monkeypatch.setattr(Kernel, "here", classmethod(lambda kernel: kernel(6, True)))


@pytest.mark.parametrize(
    "kernel, said", [(Kernel(2, True), "cut files short; send signals"), (Kernel(0, False), "open sockets")]
)
def test_what_the_sandbox_cannot_hold_here_is_a_warning(
    console: Console, anvil: Anvil, monkeypatch: pytest.MonkeyPatch, kernel: Kernel, said: str
) -> None:
    monkeypatch.setattr(Kernel, "here", lambda: kernel)
    code, checks = doctor(console, "--rpc", anvil.rpc)
    assert (code, unwell(checks)) == (0, {"sandbox": "warning"})
    assert said in checks["sandbox"]["detail"]
    assert checks["sandbox"]["hint"]


def test_the_doctor_finds_nothing_where_nothing_is_wrong(console: Console, anvil: Anvil, addresses: Path) -> None:
    with_run(anvil, addresses, validators=5)
    what = ("--deployment", addresses, "--rpc", anvil.rpc, "--run", 1, "--address", anvil.bank.address)
    code, checks = doctor(console, *what)
    assert (code, unwell(checks)) == (0, {})
    assert list(checks) == [
        "sandbox", f"endpoint {anvil.rpc}", "head", "code of Runs", "code of Bonds", "code of Court",
        "code of Policies, Bench, Weights", "code of Vouchers",
        "addresses file", "run", "jury", "gas money",
    ]  # fmt: skip
    lines = console.murmur("chain", "doctor", *what).out.splitlines()
    assert len(lines) == 12
    assert all(line.startswith("ok ") for line in lines)


def test_a_dead_endpoint_fails_and_the_other_serves(console: Console, anvil: Anvil, addresses: Path) -> None:
    code, checks = doctor(console, "--deployment", addresses, "--rpc", DEAD, "--rpc", anvil.rpc)
    assert (code, unwell(checks)) == (4, {f"endpoint {DEAD}": "failed", "endpoints agree": "warning"})
    assert checks[f"endpoint {DEAD}"]["hint"]


def test_without_an_endpoint_nothing_else_passes(console: Console, addresses: Path) -> None:
    code, checks = doctor(console, "--deployment", addresses, "--rpc", DEAD, "--run", 1, "--address", SINK)
    assert code == 4
    assert [c["health"] for c in checks.values()] == ["ok", "failed"] + ["skipped"] * 10
    ended = console.murmur("chain", "doctor", "--deployment", addresses, "--rpc", DEAD)
    assert ended.code == 4
    assert ended.out.splitlines()[1].startswith(f"failed   endpoint {DEAD} ")
    assert "  try: " in ended.out
    assert "skipped  head       not checked" in ended.out


def test_an_endpoint_of_another_chain_fails(console: Console, anvil: Anvil, base: FaultyEndpoint) -> None:
    code, checks = doctor(console, "--rpc", base.url, "--rpc", anvil.rpc)
    assert (code, checks[f"endpoint {base.url}"]["health"]) == (4, "failed")
    assert "chain 8453, not 31337" in checks[f"endpoint {base.url}"]["detail"]
    code, checks = doctor(console, "--network", "base", "--rpc", anvil.rpc)
    assert (code, unwell(checks)) == (4, {f"endpoint {anvil.rpc}": "failed", "head": "skipped"})


def test_endpoints_with_different_blocks_fail_and_nobody_is_believed(
    console: Console, anvil: Anvil, addresses: Path, faulty: FaultyEndpoint
) -> None:
    for _ in range(20):
        anvil.advance(1)

    def lie(method: str, parameters: list[Any]) -> bytes | None:
        if method != "eth_getBlockByNumber" or parameters[0] == "latest":
            return None
        return result({**anvil.request(method, *parameters), "hash": "0x" + "66" * 32})

    faulty.fault = lie
    code, checks = doctor(console, "--deployment", addresses, "--rpc", anvil.rpc, "--rpc", faulty.url)
    assert (code, checks["endpoints agree"]["health"]) == (4, "failed")
    assert checks["code of Runs"]["health"] == "skipped"


@pytest.mark.chain
def test_an_old_head_is_a_warning_on_a_public_network(tmp_path: Path, console: Console) -> None:
    chain = Anvil(tmp_path, chain_id=84_532, optimism=True)
    try:
        chain.advance(1)
        code, checks = doctor(console, "--network", "base-sepolia", "--rpc", chain.rpc)
        assert (code, checks["head"]["health"]) == (0, "ok")
        chain.request("anvil_reset")
        chain.request("evm_setTime", int(time.time()) - 4000)
        chain.request("evm_mine")
        code, checks = doctor(console, "--network", "base-sepolia", "--rpc", chain.rpc)
        assert (code, checks["head"]["health"]) == (0, "warning")
        assert "1 h" in checks["head"]["detail"]
    finally:
        chain.stop()


@pytest.mark.parametrize("broken", ["runs", "bonds", "court"])
def test_foreign_code_fails_and_what_hangs_on_it_is_not_checked(
    console: Console, anvil: Anvil, addresses: Path, broken: str
) -> None:
    with_run(anvil, addresses)
    deployment = Deployment.load(addresses)
    anvil.request("anvil_setCode", getattr(deployment, broken), "0x6001600155")
    code, checks = doctor(console, "--deployment", addresses, "--rpc", anvil.rpc, "--run", 1)
    name = f"code of {broken.capitalize()}"
    assert (code, checks[name]["health"]) == (4, "failed")
    assert "other code" in checks[name]["detail"]
    assert checks["run"]["health"] == "skipped"


def test_an_address_without_code_fails(console: Console, anvil: Anvil, addresses: Path) -> None:
    code, checks = doctor(console, "--contract", SINK, "--rpc", anvil.rpc)
    assert (code, checks["code of Runs"]["health"]) == (4, "failed")
    assert "no such contract" in checks["code of Runs"]["detail"]


def test_vouchers_without_code_fail(console: Console, anvil: Anvil, addresses: Path) -> None:
    replace(Deployment.load(addresses), vouchers=SINK).save(addresses)
    code, checks = doctor(console, "--deployment", addresses, "--rpc", anvil.rpc)
    assert (code, unwell(checks)) == (4, {"code of Vouchers": "failed", "addresses file": "failed"})


def test_a_file_that_mixes_deployments_fails(console: Console, anvil: Anvil, addresses: Path) -> None:
    replace(Deployment.load(addresses), vouchers=World.another(anvil).vouchers).save(addresses)
    code, checks = doctor(console, "--deployment", addresses, "--rpc", anvil.rpc)
    assert (code, unwell(checks)) == (4, {"addresses file": "failed"})


def test_a_run_that_is_not_there_fails(console: Console, anvil: Anvil, addresses: Path) -> None:
    code, checks = doctor(console, "--deployment", addresses, "--rpc", anvil.rpc, "--run", 7)
    assert (code, unwell(checks)) == (3, {"run": "failed", "jury": "skipped"})


def test_too_few_validators_for_a_jury_fail(console: Console, anvil: Anvil, addresses: Path) -> None:
    with_run(anvil, addresses, validators=2, co_signers=1)
    code, checks = doctor(console, "--deployment", addresses, "--rpc", anvil.rpc, "--run", 1)
    assert (code, unwell(checks)) == (3, {"jury": "failed"})
    assert "2 validators are seated and 3" in checks["jury"]["detail"]


def test_a_run_without_validators_is_warned_of(console: Console, anvil: Anvil, addresses: Path) -> None:
    with_run(anvil, addresses, appeal=0, vote=0, co_signers=0)
    code, checks = doctor(console, "--deployment", addresses, "--rpc", anvil.rpc, "--run", 1)
    assert (code, unwell(checks)) == (0, {"jury": "warning"})
    assert "nothing is judged, and all work is paid" in checks["jury"]["detail"]


def test_missing_gas_money_fails_and_little_of_it_is_a_warning(console: Console, anvil: Anvil) -> None:
    poor = Key.generate().address
    code, checks = doctor(console, "--rpc", anvil.rpc, "--address", poor)
    assert (code, unwell(checks)) == (6, {"gas money": "failed"})
    assert poor in checks["gas money"]["hint"]
    anvil.give(poor, 20 * 80_000 * gas.price(Chain(anvil.rpc, None)))
    code, checks = doctor(console, "--rpc", anvil.rpc, "--address", poor)
    assert (code, unwell(checks)) == (0, {"gas money": "warning"})
    assert "about 20 transactions" in checks["gas money"]["detail"]


def test_gas_costs_what_a_transaction_pays_and_not_what_an_endpoint_recommends(
    console: Console, anvil: Anvil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MURMUR_PASSWORD", PASSWORD)
    anvil.request("anvil_setNextBlockBaseFeePerGas", hex(10**6))
    anvil.request("anvil_mine", "0x1")
    assert int(anvil.request("eth_gasPrice"), 16) > 10**9, "Anvil recommends a tip of one gwei"
    key, keystore = Key.generate(), console.folder / "key.json"
    anvil.give(key.address, 1000 * 80_000 * 2 * 10**6)
    code, checks = doctor(console, "--rpc", anvil.rpc, "--address", key.address)
    assert (code, unwell(checks)) == (0, {})
    save_keystore(key, keystore, PASSWORD, chain_id=31337)
    ended = console.murmur(
        "chain", "deploy", "--rpc", anvil.rpc, "--keystore", keystore, "--sink", SINK, "--out", "d.json"
    )
    assert f"now about {GAS * 2 * 10**6 / 1e18:.6f} ETH" in ended.err


def test_a_run_without_contracts_to_ask_is_a_usage_error(console: Console, anvil: Anvil) -> None:
    assert console.murmur("chain", "doctor", "--rpc", anvil.rpc, "--run", 1).code == 2
