"""A role's doctor: every check well and unwell, what is mended, that nothing hangs, and that `start` looks first and asks nobody."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from swarm.anvil import Anvil
from swarm.faulty_endpoint import FaultyEndpoint, result
from swarm.tiny_run import run_tables
from swarm.world import World

from node.contributor.commands import checks as node_checks
from node.contributor.commands.checks import NodeSubject
from node.contributor.survey import Survey
from node.engine import EngineSettings
from node.engine.fit import Fit
from node.engine.hardware import Measurement
from node.relay.checks import CHECKS as RELAY
from node.relay.checks import RelaySubject
from node.validator.commands.checks import CHECKS as VALIDATOR
from node.validator.commands.checks import ValidatorSubject
from protocol.environments import registry
from protocol.errors import PreflightError
from protocol.identity import Key, save_keystore
from protocol.runspec import RunSpec
from protocol.sandbox.confinement import Kernel
from protocol.sandbox.programs import survey
from protocol.settings import toml
from protocol.shardcast.store import RESERVE_BYTES
from protocol.shell.bootnode_checks import CHECKS as BOOTNODE
from protocol.shell.checkup import Check, CheckResult, examine, require_startable
from protocol.shell.home import Home, locked, only_here
from protocol.shell.role_checks import LOCAL
from tests.cli.conftest import PASSWORD, SPEC, Console, Contributor
from tests.clock import VirtualClock
from tests.p2p.network import Network
from trainer.commands.checks import CHECKS as TRAINER
from trainer.commands.checks import TrainerSubject

BASE_CHAIN = 84_532
CANARY = "c4n4ry-0123456789abcdef"
GIB = 2**30


def look(subject: Any, name: str, checks: Sequence[Check[Any]] = RELAY, *, fix: bool = False) -> CheckResult:
    """What one check says, whatever it needs."""
    (check,) = (check for check in checks if check.name == name)
    (found,) = examine([replace(check, needs=())], subject, fix=fix)
    return found


class Chain(FaultyEndpoint):
    """An endpoint of a chain with one block, of no contracts."""

    def __init__(self, chain_id: int = BASE_CHAIN, at: float | None = None) -> None:
        super().__init__("http://127.0.0.1:9")
        self.chain_id, self.at = chain_id, time.time() if at is None else at
        self.fault = self._answer

    def _answer(self, method: str, _: Any) -> bytes | None:
        block = {
            "number": "0x10", "timestamp": hex(int(self.at)), "hash": "0x" + "11" * 32, "parentHash": "0x" + "22" * 32,
            "gasLimit": "0x1c9c380", "baseFeePerGas": "0x1",
        }  # fmt: skip
        answers: dict[str, Any] = {
            "eth_chainId": hex(self.chain_id),
            "eth_getBlockByNumber": block,
            "eth_blockNumber": "0x10",
        }
        return result(answers[method])


@pytest.fixture
def chain() -> Iterator[Chain]:
    with closing(Chain()) as made:
        yield made


@pytest.fixture
def place(tmp_path: Path, chain: Chain) -> Home:
    """A relay's home, as `init` leaves it."""
    return settle(tmp_path / "relay", chain.url)


def settle(path: Path, *rpc: str, chain_id: int = BASE_CHAIN, **tables: dict[str, Any]) -> Home:
    home = Home(path, "relay")
    shutil.rmtree(path, ignore_errors=True)
    home.path.mkdir(mode=0o700)
    save_keystore(Key.generate(), home.keystore("relay"), PASSWORD, chain_id=31337)
    written = {
        "chain": {"rpc": list(rpc), "contract": "0x" + "ab" * 20, "chain_id": chain_id, "run": 1},
        "peers": {"listen": "/ip4/127.0.0.1/tcp/0"},
        "serve": {"host": "127.0.0.1", "port": 0, "public_url": "http://relay.example:8460"},
    }  # fmt: skip
    home.write_config(written | tables, "A relay.")
    return home


# ---- home, settings, keys ----------------------------------------------------------------------------------------------------------


def test_a_home_that_init_made_is_of_its_user_alone(place: Home) -> None:
    assert {path.stat().st_mode & 0o077 for path in (place.path, *place.path.rglob("*"))} == {0}
    assert look(RelaySubject(place), "home").health == "ok"


def test_a_home_that_others_may_read_is_a_warning_until_it_is_mended(place: Home) -> None:
    for path in (place.path, place.config, place.keystore("relay")):
        path.chmod(0o755)
    found = look(RelaySubject(place), "home")
    assert (found.health, "--fix" in found.hint) == ("warning", True)
    mended = look(RelaySubject(place), "home", fix=True)
    assert (mended.health, str(place.config) in mended.mended) == ("ok", True)
    assert place.config.stat().st_mode & 0o777 == 0o700  # its own rights stay as they are


def test_without_a_home_the_next_step_is_init(tmp_path: Path) -> None:
    found = look(RelaySubject(Home(tmp_path / "none", "relay")), "home")
    assert (found.health, found.exit_code, found.hint) == (
        "failed",
        3,
        f"murmur relay init CARD --home {tmp_path / 'none'}",
    )


def test_a_home_that_may_not_be_written_fails(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode, **_: path != place.path)  # root may do anything
    found = look(RelaySubject(place), "home")
    assert (found.health, found.hint) == ("failed", f"chmod u+rwx {place.path}")


@pytest.fixture
def stranger(place: Home) -> Iterator[Callable[[], None]]:
    """Makes another user of this process, who may enter the folder of the test."""
    if os.geteuid():
        pytest.skip("only root may become another user")
    for folder in place.path.parents:
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o55)
    yield lambda: os.seteuid(65_534)
    os.seteuid(0)


def given(path: Path, *, but: Path) -> None:
    """To that user, all in it except one file."""
    for each in (path, *path.rglob("*")):
        os.chown(each, 0 if each == but else 65_534, -1)


@pytest.mark.parametrize("name", ["settings", "keys", "lock"])
def test_a_file_that_belongs_to_another_user_says_whose_it_is_and_what_to_do(
    place: Home, stranger: Callable[[], None], name: str
) -> None:
    file = {"settings": place.config, "keys": place.keystore("relay"), "lock": place.lock_file}[name]
    place.lock_file.touch(mode=0o600)
    given(place.path, but=file)
    stranger()
    found = look(RelaySubject(place), name)
    assert (found.health, str(file) in found.detail) == ("failed", True), found
    assert (
        found.hint
        == f"it is user root's: run this as that user (sudo -u root …), or give it to this one: sudo chown -R $(id -un) {file}"
    )
    with pytest.raises(PreflightError, match=r"may not|cannot read"):
        require_startable(RELAY, RelaySubject(place, starting=True))


@pytest.mark.parametrize("mine", [True, False])
def test_a_home_without_rights_fails_once(place: Home, stranger: Callable[[], None], mine: bool) -> None:
    (place.path / "spec.json").touch()
    if mine:
        given(place.path, but=Path())
    place.path.chmod(0)
    stranger()
    found = {one.name: one for one in examine(LOCAL, RelaySubject(place))}
    assert [name for name, one in found.items() if one.health == "failed"] == ["home"], found
    assert (f"chmod u+rwx {place.path}" == found["home"].hint) == mine
    assert ("sudo chown -R $(id -un)" in found["home"].hint) != mine


def test_a_home_that_nobody_may_look_for_fails_once(place: Home, stranger: Callable[[], None]) -> None:
    place.path.parent.chmod(0o700)
    stranger()
    found = {one.name: one for one in examine(LOCAL, RelaySubject(place))}
    assert [name for name, one in found.items() if one.health == "failed"] == ["home"], found
    assert found["home"].hint.startswith(f"{place.path.parent} is user root's: run this as that user (sudo -u root …)")
    assert "chown" not in found["home"].hint


def test_a_port_that_is_roots_says_so(tmp_path: Path, chain: Chain, place: Home, stranger: Callable[[], None]) -> None:
    serve = {"host": "127.0.0.1", "port": 443, "public_url": "http://relay.example:443"}
    place = settle(tmp_path / "relay", chain.url, serve=serve)
    given(place.path, but=Path())
    stranger()
    found = look(RelaySubject(place), "ports")
    assert found.health == "failed"
    assert found.detail == "this user may not listen on 127.0.0.1:443 (serve.port): ports below 1024 are root's"
    assert "from 1024 on" in found.hint
    assert "CAP_NET_BIND_SERVICE" in found.hint


def test_settings_that_cannot_be_read_fail_with_the_nearest_key(place: Home) -> None:
    assert look(RelaySubject(place), "settings").health == "ok"
    place.config.write_text(place.config.read_text().replace("run = 1", "rum = 1"))
    found = look(RelaySubject(place), "settings")
    assert (found.health, found.hint) == ("failed", "did you mean 'chain.run'?")


def _gone(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize(
    "spoil, hint",
    [
        (_gone, "murmur relay init"),
        (lambda file: file.chmod(0o644), "chmod 600"),
        (lambda file: file.write_text("no keystore"), "copy"),
    ],
)
def test_a_key_that_is_not_there_open_to_others_or_broken_fails(
    place: Home, spoil: Callable[[Path], object], hint: str
) -> None:
    assert look(RelaySubject(place), "keys").detail == place.address("relay")
    spoil(place.keystore("relay"))
    found = look(RelaySubject(place), "keys")
    assert (found.health, hint in found.hint) == ("failed", True)


@pytest.mark.parametrize("given, health", [(None, "skipped"), (PASSWORD, "ok"), ("another", "failed")])
def test_a_password_is_tried_where_there_is_one(
    place: Home, monkeypatch: pytest.MonkeyPatch, given: str | None, health: str
) -> None:
    monkeypatch.delenv("MURMUR_PASSWORD", raising=False)
    if given:
        monkeypatch.setenv("MURMUR_PASSWORD", given)
    found = look(RelaySubject(place), "password")
    assert found.health == health
    assert "PASSWORD" in found.detail + found.hint or given == PASSWORD


# ---- lock --------------------------------------------------------------------------------------------------------------------------


def test_a_lock_says_who_runs_the_role_and_is_in_the_way_of_a_start_alone(place: Home) -> None:
    assert "does not run" in look(RelaySubject(place), "lock").detail
    with place.lock():
        found = look(RelaySubject(place), "lock")
        assert (found.health, str(os.getpid()) in found.detail) == ("ok", True)
        found = look(RelaySubject(place, starting=True), "lock")
        assert (found.health, found.exit_code) == ("failed", 7)


def test_the_lock_file_of_a_process_that_is_gone_holds_nobody_out(place: Home) -> None:
    place.lock_file.write_text("999999999")
    assert look(RelaySubject(place, starting=True), "lock").health == "ok"


def test_a_lock_that_a_child_of_a_dead_process_holds_fails(place: Home) -> None:
    with place.lock():
        place.lock_file.write_text("999999999")
        found = look(RelaySubject(place), "lock")
    assert (found.health, found.hint) == ("failed", f"fuser -v {place.lock_file}")


def test_a_key_that_works_from_another_home_fails(place: Home) -> None:
    with only_here(place.address("relay"), BASE_CHAIN):
        found = look(RelaySubject(place), "lock")
    assert (found.health, "another home" in found.detail) == ("failed", True)


# ---- disk and downloads ------------------------------------------------------------------------------------------------------------


def free(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage(100 * GIB, 0, count))


def test_a_full_disk_fails_and_stops_no_start(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 50 * GIB)
    assert "50 GiB of 100 GiB" in look(RelaySubject(place), "disk").detail
    free(monkeypatch, RESERVE_BYTES - 1)
    assert look(RelaySubject(place), "disk").health == "failed"
    assert look(RelaySubject(place, starting=True), "disk").health == "warning"


def test_a_node_hears_of_a_disk_on_which_it_would_warn(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = NodeSubject(Home(place.path, "node"))
    subject.settings = SimpleNamespace(work=SimpleNamespace(disk_low_gb=5.0), chain=SimpleNamespace(rpc=""))  # type: ignore[assignment]
    for gib, health in ((4, "warning"), (6, "ok")):
        free(monkeypatch, gib * GIB)
        assert look(subject, "disk", node_checks.CHECKS).health == health


def test_a_disk_without_inodes_fails(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 50 * GIB)
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_files=100, f_favail=0))
    assert "no inode" in look(RelaySubject(place), "disk").detail


def test_a_disk_too_small_for_the_versions_that_are_kept_is_a_warning(
    place: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.path / "spec.json").write_bytes(SPEC.canonical())
    version = place.data / "weights/complete/3"
    version.mkdir(parents=True)
    with (version / "model.safetensors").open("wb") as file:
        file.truncate(GIB)
    free(monkeypatch, 2 * GIB)
    assert look(RelaySubject(place), "disk").health == "warning"
    free(monkeypatch, 20 * GIB)
    assert look(RelaySubject(place), "disk").health == "ok"


def test_unfinished_downloads_that_nobody_goes_on_with_are_removed_while_the_role_does_not_run(
    place: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MURMUR_TASKS", str(tmp_path / "tasks"))
    weights, task = place.data / "weights", tmp_path / "tasks/.17-abc.parquet"
    old, wanted = weights / "drafts/2-aa", weights / "drafts/6-bb"
    for folder in (old, wanted, weights / "complete/5", weights / "retired/1"):
        folder.mkdir(parents=True)
    task.parent.mkdir()
    task.write_bytes(b"x")
    os.utime(task, (0, 0))
    with place.lock():
        assert (look(RelaySubject(place), "downloads", fix=True).health, old.exists()) == ("ok", True)
    assert look(RelaySubject(place), "downloads").health == "warning"
    found = look(RelaySubject(place), "downloads", fix=True)
    assert (found.health, found.mended) == ("ok", "removed 3 unfinished downloads")
    assert [path.exists() for path in (old, task, weights / "retired/1", wanted)] == [False, False, False, True]


# ---- ports, versions, sandbox ------------------------------------------------------------------------------------------------------


def test_a_port_that_another_program_has_fails(tmp_path: Path, chain: Chain) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        serve = {"host": "127.0.0.1", "port": port, "public_url": "http://relay.example:8460"}
        place = settle(tmp_path / "relay", chain.url, serve=serve)
        found = look(RelaySubject(place), "ports")
        assert (found.health, "serve.port" in found.detail, f":{port}" in found.hint) == ("failed", True, True)
        with place.lock():
            assert look(RelaySubject(place), "ports").health == "ok"
    assert look(RelaySubject(place), "ports").health == "ok"


def test_packages_that_this_version_was_not_made_for_fail(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["pydantic>=1", "no-such-package", "wandb==0.1; extra == 'wandb'"]
    monkeypatch.setattr(metadata, "requires", lambda name: needs[:1])
    assert look(RelaySubject(place), "versions").health == "ok"
    monkeypatch.setattr(metadata, "requires", lambda name: [*needs, "pydantic<1"])
    found = look(RelaySubject(place), "versions")
    assert found.health == "failed"
    assert found.detail.startswith("no-such-package is missing; pydantic is ")


def test_environments_of_the_run_that_are_not_here_as_its_spec_has_them_fail(place: Home) -> None:
    assert "environments" not in look(ValidatorSubject(place), "versions", VALIDATOR).detail
    text = json.loads(SPEC.canonical())
    environment = text["environments"][0]

    def versions(role: type = ValidatorSubject, **changes: object) -> CheckResult:
        spec = RunSpec.model_validate(text | {"environments": [environment | changes]})
        (place.path / "spec.json").write_bytes(spec.canonical())
        return look(role(place), "versions", VALIDATOR)

    here = registry.version_of(environment["package"])
    well = versions(version=here)
    assert (well.health, f"{environment['package']} {here}" in well.detail) == ("ok", True), well
    other = versions(version="0.0.1")
    assert (other.health, other.exit_code) == ("failed", 10)
    assert f"the run wants {environment['package']} 0.0.1; installed is {here}" in other.detail
    gone = versions(package="no-such-tasks", version="1")
    assert (gone.health, "no environment is called 'no-such-tasks' here" in gone.detail) == ("failed", True)
    assert versions(RelaySubject, package="no-such-tasks", version="1").health == "ok", "a relay plays none"


def test_a_package_that_a_run_takes_twice_is_named_once(place: Home) -> None:
    text = json.loads(SPEC.canonical())
    twice = [text["environments"][0], text["environments"][0] | {"dataset": "knights_knaves"}]
    (place.path / "spec.json").write_bytes(RunSpec.model_validate(text | {"environments": twice}).canonical())
    assert look(ValidatorSubject(place), "versions", VALIDATOR).detail.count(twice[0]["package"]) == 1


@pytest.mark.parametrize("kernel, health", [(Kernel(6, True), "ok"), (Kernel(0, False), "warning")])
def test_the_sandbox_of_this_kernel_is_looked_at(
    place: Home, monkeypatch: pytest.MonkeyPatch, kernel: Kernel, health: str
) -> None:
    monkeypatch.setattr(Kernel, "here", lambda: kernel)
    assert look(ValidatorSubject(place), "sandbox", VALIDATOR).health == health


def test_a_relay_that_nobody_could_be_told_of_fails(tmp_path: Path, chain: Chain) -> None:
    assert look(RelaySubject(settle(tmp_path / "relay", chain.url)), "serving").health == "ok"
    place = settle(tmp_path / "relay", chain.url, serve={"host": "0.0.0.0", "port": 0})
    assert "serve.public_url" in look(RelaySubject(place), "serving").hint


# ---- endpoints and clock -----------------------------------------------------------------------------------------------------------


def test_endpoints_are_tried_one_by_one(tmp_path: Path, chain: Chain) -> None:
    dead = "http://127.0.0.1:9"
    with closing(Chain(8453)) as other:
        for urls, health in (
            ((chain.url,), "ok"),
            ((chain.url, dead), "warning"),
            ((dead,), "failed"),
            ((other.url,), "failed"),
        ):
            found = look(RelaySubject(settle(tmp_path / "relay", *urls)), "endpoints")
            assert found.health == health, found
            assert bool(found.hint) == (health != "ok")
    assert "chain 8453, not 84532" in found.detail


def test_nothing_of_an_rpc_urls_secrets_is_said(tmp_path: Path, console: Console) -> None:
    settle(tmp_path / "relay", f"http://user:{CANARY}@127.0.0.1:9/v2/{CANARY}?key={CANARY}")
    for more in ([], ["--json"]):
        ended = console.murmur("relay", "doctor", "--home", tmp_path / "relay", *more)
        assert ended.code == 1
        assert CANARY not in ended.out + ended.err
        assert "http://127.0.0.1:9/…" in ended.out or more


@pytest.mark.parametrize(
    "ahead, health, says",
    [
        (0, "ok", "0 s old"), (-40, "warning", "40 s behind"), (-7200, "failed", "2 h behind"), (7200, "failed", "2 h old"),
    ],
)  # fmt: skip
def test_a_clock_that_is_wrong_is_told_from_one_that_is_right(
    place: Home, chain: Chain, ahead: int, health: str, says: str
) -> None:
    chain.at = 1_700_000_000
    found = look(RelaySubject(place, clock=VirtualClock(wall=1_700_000_000 + ahead)), "clock")
    assert (found.health, says in found.detail) == (health, True), found
    assert ("timedatectl" in found.hint) == (health != "ok")


def test_a_development_chain_is_not_compared_with_the_clock(tmp_path: Path) -> None:
    with closing(Chain(31337, at=5)) as chain:
        place = settle(tmp_path / "relay", chain.url, chain_id=31337)
        assert look(RelaySubject(place), "clock").health == "ok"


def test_a_chain_without_our_contracts_fails(place: Home, chain: Chain) -> None:
    chain.fault = lambda method, asked: (
        result("0x") if method in ("eth_getCode", "eth_call") else chain._answer(method, asked)
    )
    found = look(RelaySubject(place), "contracts")
    assert (found.health, "no such contract" in found.detail) == ("failed", True)
    assert f"chain.contract of {place.config}" in found.hint


# ---- network -----------------------------------------------------------------------------------------------------------------------


def test_bootnodes_are_dialled_also_while_the_chain_is_away(tmp_path: Path, network: Network) -> None:
    dead, alive = network.gone(), network.host().addresses[0]
    for bootnodes, health in (([dead], "failed"), ([alive], "ok"), ([], "failed")):
        peers = {"listen": "/ip4/127.0.0.1/tcp/0", "bootnodes": bootnodes}
        found = look(RelaySubject(settle(tmp_path / "relay", "http://127.0.0.1:9", peers=peers)), "network")
        assert found.health == health, found
    assert "peers.bootnodes" in found.hint


# ---- device and model --------------------------------------------------------------------------------------------------------------


def surveyed(place: Home, fit: Fit | None, gib_free: int = 20) -> NodeSubject:
    subject = NodeSubject(place)
    device = Measurement("a GPU", 24 * GIB, gib_free * GIB, {"float32": 50e12, "bfloat16": 400e12}, 2000e9)
    subject.survey = Survey(EngineSettings(), device, str(place.path), 50 * GIB, spec=SPEC, model=fit)
    return subject


def test_a_machine_that_cannot_run_the_runs_programs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Home(tmp_path, "validator")
    validator = ValidatorSubject(place)
    assert "not known" in look(validator, "programs", VALIDATOR).detail
    (tmp_path / "spec.json").write_bytes(SPEC.canonical())
    subjects = (surveyed(Home(tmp_path, "node"), None), node_checks.CHECKS), (ValidatorSubject(place), VALIDATOR)
    for subject, checks in subjects:
        assert look(subject, "programs", checks).detail == "none are run in this run"
    monkeypatch.setattr(survey, "require", lambda: require_nothing_but("bubblewrap"))
    monkeypatch.setattr(registry, "RUN_PROGRAMS", {SPEC.environments[0].package})
    for subject, checks in subjects:
        found = look(subject, "programs", checks)
        assert (found.health, "bubblewrap" in found.detail) == ("failed", True)


def require_nothing_but(what: str) -> None:
    raise PreflightError(f"{what} is not installed")


FITS = Fit(allowed=20 * GIB, weights=8 * GIB, row=GIB, prefill=GIB, tokens=1000, rows=8)


@pytest.mark.parametrize(
    "fit, gib_free, health",
    [(FITS, 20, "ok"), (FITS, 2, "warning"), (replace(FITS, rows=0), 20, "failed"), (None, 20, "skipped")],
)
def test_the_model_is_measured_against_the_device(place: Home, fit: Fit | None, gib_free: int, health: str) -> None:
    subject = surveyed(place, fit, gib_free)
    assert look(subject, "model", node_checks.CHECKS).health == health
    assert look(subject, "device", node_checks.CHECKS).detail.startswith(f"a GPU: {gib_free} GiB of 24 GiB free")


def test_a_device_that_is_not_there_fails(place: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(settings: EngineSettings) -> Measurement:
        raise PreflightError("engine.device is cuda, and torch sees 0 NVIDIA GPUs", hint='set it to "auto"')

    monkeypatch.setattr("node.engine.hardware.measure_of", absent)
    subject = ValidatorSubject(place)
    subject.settings = SimpleNamespace(engine=EngineSettings(), chain=SimpleNamespace(rpc=""))  # type: ignore[assignment]
    assert look(subject, "device", VALIDATOR).health == "failed"
    monkeypatch.setattr("node.engine.hardware.measure_of", lambda settings: surveyed(place, None).survey.device)
    assert look(subject, "device", VALIDATOR).health == "ok"


# ---- how checks are run ------------------------------------------------------------------------------------------------------------


def run(*checks: Check[Any], fix: bool = False) -> list[CheckResult]:
    return list(examine(checks, SimpleNamespace(urls=(f"http://127.0.0.1/{CANARY}",), role="node", then=""), fix=fix))


def test_a_check_that_hangs_fails_at_its_deadline_and_what_needs_it_is_skipped() -> None:
    forever = threading.Event()
    hangs = Check[Any]("slow", lambda s: str(forever.wait(60)), seconds=0.05)
    after = Check[Any]("after", lambda s: "well", ("slow",))
    slow, skipped, other = run(hangs, after, Check[Any]("other", lambda s: "well", ("after",)))
    forever.set()
    assert (slow.health, slow.detail) == ("failed", "no answer within 0.05 s")
    assert (skipped.health, skipped.detail) == ("skipped", "not checked: it needs slow")
    assert other.health == "skipped"


def test_an_error_that_nobody_foresaw_is_a_failed_check_without_secrets() -> None:
    def broken(_: object) -> str:
        raise KeyError(f"http://127.0.0.1/{CANARY}")

    (found,) = run(Check[Any]("broken", broken))
    assert (found.health, "KeyError" in found.detail, CANARY in found.detail) == ("failed", True, False)


def test_what_could_not_be_mended_is_said() -> None:
    def refuse(_: object) -> str:
        raise PermissionError(1, "Operation not permitted", "file")

    (found,) = run(Check[Any]("home", lambda s: ("others may read it", "chmod"), mend=refuse), fix=True)
    assert (found.health, "not mended: file may not be used" in found.detail) == ("warning", True)


@pytest.mark.parametrize("checks", [node_checks.CHECKS, VALIDATOR, RELAY, TRAINER, BOOTNODE])
def test_a_check_needs_only_what_was_looked_at_before(checks: Sequence[Check[Any]]) -> None:
    names = [check.name for check in checks]
    assert len(set(names)) == len(names)
    for place, check in enumerate(checks):
        assert set(check.needs) <= set(names[:place])


# ---- start -------------------------------------------------------------------------------------------------------------------------


def test_start_looks_first_and_asks_nobody(place: Home, chain: Chain, capfd: pytest.CaptureFixture[str]) -> None:
    began = time.process_time()
    require_startable(RELAY, RelaySubject(place, starting=True))
    assert time.process_time() - began < 1
    assert (chain.counted, capfd.readouterr().err) == ((0, 0), "")
    place.config.chmod(0o644)
    require_startable(RELAY, RelaySubject(place, starting=True))
    assert capfd.readouterr().err.startswith(
        f"warning: home: others may read {place.config}\n  try: murmur relay doctor"
    )


def test_start_ends_before_it_asks_for_a_password_where_it_could_not_go_on(place: Home, console: Console) -> None:
    with place.lock():
        ended = console.murmur("relay", "start", "--home", place.path)
    assert (ended.code, f"in use by process {os.getpid()}" in ended.err) == (7, True)
    place.keystore("relay").chmod(0o644)
    ended = console.murmur("relay", "start", "--home", place.path)
    assert (ended.code, "chmod 600" in ended.err) == (5, True)
    ended = console.murmur("relay", "start", "--home", place.path / "none")
    assert (ended.code, "murmur relay init" in ended.err) == (3, True)


# ---- whole -------------------------------------------------------------------------------------------------------------------------


def doctor(console: Console, *words: object) -> tuple[int, dict[str, str], dict[str, Any]]:
    """(exit code, what is not well by name, all that was said)."""
    ended = console.murmur(*words, "--json")
    said = ended.json
    assert said["ok"] == (ended.code == 0)
    return ended.code, {c["name"]: c["health"] for c in said["checks"] if c["health"] not in ("ok", "skipped")}, said


def test_a_node_is_led_from_its_home_to_its_start(
    contributor: Contributor,
    network: Network,
    served: Callable[[dict[str, bytes]], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gas first, then the seat, then the hub."""
    monkeypatch.setattr(Kernel, "here", lambda: Kernel(6, True))
    monkeypatch.setattr(NodeSubject, "survey", surveyed(contributor.home, FITS).survey)
    world, console = contributor.world, contributor.console
    bootnode = network.host()
    config = contributor.home.config
    text = config.read_text()
    config.write_text(text.replace(text.split('bootnodes = ["')[1].split('"')[0], bootnode.addresses[0]))
    words = ("node", "doctor", "--home", contributor.path)

    code, unwell, said = doctor(console, *words)
    assert (code, unwell) == (1, {"gas": "failed", "seat": "failed", "network": "failed"})
    assert said["next"].startswith(f"send some ETH to {contributor.node}")
    contributor.give()
    code, unwell, said = doctor(console, *words)
    assert (unwell, said["next"]) == ({"seat": "failed", "network": "failed"}, f"node stake --home {contributor.path}")
    contributor.seat()

    hub = network.host(bootnode, key=world.trainer.key)
    from protocol.p2p import Directory, Endpoint, Service

    service = Service(world.chain.chain_id, world.chain.runs.address, world.run, "hub")
    url = served({f"/v1/runs/{world.run}/spec": SPEC.canonical()})
    Directory(hub).announce(service, Endpoint("hub", world.run, url), deadline=20)
    ended = contributor.run("doctor")
    assert ended.code == 0, ended.out
    assert ended.out.endswith(f"\nnothing is wrong (1 skipped)\nnext: node start --home {contributor.path}\n")
    assert f"the hub is at {url}" in ended.out


def test_a_validator_is_told_whom_to_ask_and_a_paused_run_is_a_warning(world: World, tmp_path: Path) -> None:
    key = Key.generate()
    place = Home(tmp_path / "validator", "validator")
    save_keystore(key, place.keystore("validator"), PASSWORD, chain_id=31337)
    chain = {
        "rpc": world.anvil.rpc,
        "contract": world.chain.runs.address,
        "chain_id": world.chain.chain_id,
        "run": world.run,
    }
    place.write_config({"chain": chain}, "A validator.")

    assert "murmur run approve" in look(ValidatorSubject(place), "seat", VALIDATOR).hint
    assert look(ValidatorSubject(place), "gas", VALIDATOR).health == "failed"
    world.seat_validator(key)
    assert look(ValidatorSubject(place), "seat", VALIDATOR).health == "ok"
    assert look(ValidatorSubject(place), "gas", VALIDATOR).health == "ok"
    assert look(ValidatorSubject(place), "run", VALIDATOR).health == "ok"
    world.owner.send(world.chain.pause(world.run, True))
    world.anvil.advance(world.chain.policy(world.run).window + 1)
    assert look(ValidatorSubject(place), "run", VALIDATOR).health == "warning"


def test_a_trainer_is_told_of_its_file_its_key_its_run_and_its_model(
    anvil: Anvil, console: Console, network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.fresh(anvil, spec_digest=SPEC.digest)
    file, keystore = tmp_path / "run.toml", tmp_path / "trainer.json"
    chain = {
        "rpc": world.anvil.rpc,
        "contract": world.chain.runs.address,
        "chain_id": world.chain.chain_id,
        "run": world.run,
    }
    file.write_text(toml({"chain": chain, **run_tables()}, "A run."))
    code, unwell, said = doctor(console, "trainer", "doctor", f"@{file}")
    wanted = {"keys": "failed", "spec": "failed", "network": "failed", "plan": "failed"}
    assert (code, {name: unwell.get(name) for name in wanted}) == (1, wanted)
    assert said["next"] == f"murmur chain new-key {keystore}"
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[trainer]\nsteps = 'many'\n")
    for each, hint in ((wrong, f"change it in {wrong}"), (tmp_path / "none.toml", "murmur trainer preset --help")):
        found = look(TrainerSubject(each), "settings", TRAINER)
        assert (found.health, hint in found.hint) == ("failed", True), found

    save_keystore(world.trainer.key, keystore, PASSWORD, chain_id=31337)
    (tmp_path / "spec.json").write_bytes(SPEC.canonical())
    file.write_text(file.read_text() + f'[peers]\nbootnodes = ["{network.host().addresses[0]}"]\n')
    for name in ("keys", "spec", "trainer", "gas", "network"):  # a hub that does not run is looked for by nobody
        assert look(TrainerSubject(file), name, TRAINER).health == "ok", name
    assert look(TrainerSubject(file), "jury", TRAINER).health == "ok"
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy/config.json").write_text("{}")
    for refuses, health in ((None, "ok"), (PreflightError("this training does not fit", hint="set a=1"), "failed")):
        made = SimpleNamespace(require_fit=Mock(side_effect=refuses))
        monkeypatch.setattr("trainer.planning.plan.plan", lambda *_, made=made, **__: made)
        assert look(TrainerSubject(file), "plan", TRAINER).health == health
    (tmp_path / "spec.json").write_bytes(SPEC.model_copy(update={"max_lag": 7}).canonical())
    assert look(TrainerSubject(file), "trainer", TRAINER).exit_code == 8
    keystore.unlink()
    save_keystore(Key.generate(), keystore, PASSWORD, chain_id=31337)
    assert "is trained by" in look(TrainerSubject(file), "trainer", TRAINER).detail


def test_a_hub_that_starts_alone_minds_no_trainer_and_a_run_minds_both(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    chain = {"contract": "0x" + "ab" * 20, "chain_id": 1, "run": 1}
    file.write_text(toml({"chain": chain, "trainer": {"steps": 1}}, "A run."))
    with locked(TrainerSubject(file).layout.output / "trainer.lock", "x"):
        assert look(TrainerSubject(file, starting=True), "lock", TRAINER).exit_code == 7
        assert look(TrainerSubject(file, starting=True, hub_alone=True), "lock", TRAINER).health == "ok"
    with locked(TrainerSubject(file).layout.hub / "hub.lock", "x"):  # of a trainer that was just killed
        assert look(TrainerSubject(file, starting=True), "lock", TRAINER).health == "ok"
        assert look(TrainerSubject(file, starting=True, hub_alone=True), "lock", TRAINER).exit_code == 7


def test_a_run_file_that_cannot_be_read_is_a_failed_check(tmp_path: Path, console: Console) -> None:
    (tmp_path / "run.toml").write_text("[chain]\nrum = 1\n")
    code, unwell, said = doctor(console, "trainer", "doctor", f"@{tmp_path / 'run.toml'}")
    assert (code, unwell["settings"]) == (1, "failed")
    assert said["next"]
