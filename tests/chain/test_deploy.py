"""A deployment that is killed at any point goes on: nothing is deployed twice, and Court is where Runs looks for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest
from swarm.anvil import Anvil
from swarm.faulty_endpoint import Drop, FaultyEndpoint, Hang, result
from swarm.processes import ROOT
from swarm.world import DAY, TOKEN

from protocol.chain import Chain, Sender
from protocol.chain.deploy import Deployment, deploy_to
from protocol.errors import ChainError, ConfigError
from protocol.identity import Key, save_keystore
from tests.clock import eventually

PASSWORD = "canary-2b81"
SINK = "0x" + "51" * 20


@pytest.fixture
def key(anvil: Anvil) -> Key:
    key = Key.generate()
    anvil.give(key.address, TOKEN)
    return key


def sent_by(chain: Chain, key: Key) -> int:
    return int(chain.ethereum.transaction_count(key.address))


def deploy(chain: Chain, key: Key, out: Path) -> Deployment:
    return deploy_to(out, chain, key, withdrawal_delay=7 * DAY, sink=SINK)


class Killer:
    """Notices the `number`-th transaction on its way to the chain: `sent` tells whether it gets there."""

    def __init__(self, anvil: Anvil, faulty: FaultyEndpoint, number: int, sent: bool) -> None:
        self.reached = Event()
        self._left = number
        self._anvil, self._sent = anvil, sent
        faulty.fault = self._fault

    def _fault(self, method: str, parameters: list[str]) -> None:
        if method != "eth_sendRawTransaction":
            return
        self._left -= 1
        if not self._left:
            if self._sent:
                self._anvil.request(method, *parameters)
            self.reached.set()
            raise Hang


@pytest.mark.parametrize(("number", "sent"), [(1, True), (2, False), (2, True), (3, False), (3, True), (4, False)])
def test_a_killed_deployment_goes_on_without_deploying_twice(
    anvil: Anvil, faulty: FaultyEndpoint, key: Key, tmp_path: Path, number: int, sent: bool
) -> None:
    save_keystore(key, tmp_path / "key.json", PASSWORD, chain_id=31337)
    out = tmp_path / "deployment.json"
    killer = Killer(anvil, faulty, number, sent)
    command = [
        sys.executable, "-m", "protocol", "chain", "deploy", "--rpc", faulty.url, "--keystore", tmp_path / "key.json",
        "--sink", SINK, "--out", out, "--yes",
    ]  # fmt: skip
    environment = {**os.environ, "MURMUR_PASSWORD": PASSWORD, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    eventually(killer.reached.is_set, within=30)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    assert not out.exists()

    chain = Chain(anvil.rpc, None)
    deployment = deploy(chain, key, out)
    assert sent_by(chain, key) == 4
    assert Deployment.load(out) == deployment
    Chain(anvil.rpc, deployment.runs).check(31337)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deployment.json", "key.json"]


def test_what_the_key_did_between_runs_and_court_makes_both_new(
    anvil: Anvil, faulty: FaultyEndpoint, key: Key, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chain, out = Chain(faulty.url, None), tmp_path / "deployment.json"
    interrupted_after(2, faulty, chain, key, out)
    direct = Chain(anvil.rpc, None)
    deploy(direct, key, tmp_path / "other.json")  # four transactions of the same key
    deployment = deploy(direct, key, out)
    assert "which can no longer come; deploying both anew" in caplog.text
    assert sent_by(direct, key) == 2 + 4 + 3  # Token and the lost Runs; the other deployment; Runs, Court, Vouchers
    Chain(anvil.rpc, deployment.runs).check(31337)


def interrupted_after(transactions: int, faulty: FaultyEndpoint, chain: Chain, key: Key, out: Path) -> None:
    """A deployment that ends for want of an answer when so many transactions have landed."""

    def fault(method: str, parameters: list[str]) -> None:
        if method == "eth_estimateGas" and sent_by(Chain(faulty.upstream, None), key) >= transactions:
            raise Drop

    faulty.fault = fault
    with pytest.raises(ChainError):
        deploy(chain, key, out)
    assert not out.exists()


def test_another_plan_is_another_deployment(anvil: Anvil, faulty: FaultyEndpoint, key: Key, tmp_path: Path) -> None:
    out = tmp_path / "deployment.json"
    interrupted_after(1, faulty, Chain(faulty.url, None), key, out)
    chain = Chain(anvil.rpc, None)
    deployment = deploy_to(out, chain, key, withdrawal_delay=9 * DAY, sink=SINK)
    assert Chain(anvil.rpc, deployment.runs).withdrawal_delay() == 9 * DAY
    assert sent_by(chain, key) == 1 + 4


def test_an_addresses_file_is_never_overwritten(anvil: Anvil, key: Key, tmp_path: Path) -> None:
    chain, out = Chain(anvil.rpc, None), tmp_path / "deployment.json"
    deployment = deploy(chain, key, out)
    with pytest.raises(ConfigError, match="exists"):
        deploy(chain, key, out)
    assert Deployment.load(out) == deployment
    assert sent_by(chain, key) == 4


def test_events_are_looked_for_from_the_block_of_runs_on(anvil: Anvil, key: Key, tmp_path: Path) -> None:
    deployment = deploy(Chain(anvil.rpc, None), key, tmp_path / "deployment.json")
    chain = Chain(anvil.rpc, deployment.runs)
    assert chain.ethereum.code(deployment.runs, deployment.block)
    assert not chain.ethereum.code(deployment.runs, deployment.block - 1)


BASE_FIELDS = {
    "l1BaseFeeScalar": "0x8dd", "l1BlobBaseFee": "0x1", "l1BlobBaseFeeScalar": "0x101c12", "l1Fee": "0x5e1b8b1",
    "l1GasPrice": "0x7a3f1c2", "l1GasUsed": "0x640", "operatorFeeScalar": "0x0", "operatorFeeConstant": "0x0",
    "daFootprintGasScalar": "0x190", "depositNonce": "0x1", "depositReceiptVersion": "0x1",
}  # fmt: skip
"""What a receipt carries on Base; Anvil's Base mode leaves it out."""


@pytest.mark.chain
def test_in_base_mode_transactions_land_and_receipts_with_fees_of_layer_one_are_read(tmp_path: Path) -> None:
    anvil = Anvil(tmp_path, chain_id=84_532, optimism=True)
    faulty = FaultyEndpoint(anvil.rpc)

    def fault(method: str, parameters: list[str]) -> bytes | None:
        if method != "eth_getTransactionReceipt":
            return None
        receipt = anvil.request(method, *parameters)
        return result(receipt and {**receipt, **BASE_FIELDS})

    faulty.fault = fault
    try:
        deployment = deploy(Chain(faulty.url, None), anvil.bank, tmp_path / "deployment.json")
        chain = Chain(faulty.url, deployment.runs)
        chain.check(84_532)
        sent = Sender(chain, anvil.bank).send(chain.approve_tokens(deployment.bonds, 1))
        assert chain.ethereum.request("eth_getTransactionReceipt", "0x" + sent.hash.hex())["l1Fee"]
        assert chain.allowance(anvil.bank.address, deployment.bonds) == 1
    finally:
        faulty.close()
        anvil.stop()
