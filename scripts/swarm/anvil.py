"""Anvil: a real Ethereum node for development, in one process, with a clock that can be moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protocol.chain.endpoints import Endpoints
from protocol.constants import ANVIL_CHAIN_ID
from protocol.errors import RpcUnavailable
from protocol.identity import Key
from swarm.hosts import HERE, SwarmHost
from swarm.processes import Process, foundry, free_port, wait_until

_MNEMONIC_KEYS = [
    # Anvil's well-known development accounts, printed at its every start; they hold play money only.
    "0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80",
    "0x59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d",
]


_STATES_KEPT = 256  # of past blocks, in memory: enough for any reorg and any look back


class Anvil:
    """Mines a block per transaction and, with `block_time`, one every so many seconds as well.

    With `optimism` it speaks the dialect of an OP chain such as Base: receipts and blocks carry further fields.
    """

    def __init__(self, folder: Path, *, chain_id: int = ANVIL_CHAIN_ID, port: int | None = None, block_time: int | None = None,
                 optimism: bool = False, detach: bool = False, host: SwarmHost = HERE) -> None:  # fmt: skip
        self.port = port or free_port()
        self.rpc = f"http://{host.address}:{self.port}"
        command: list[str | Path] = [
            *host.prefix,
            foundry("anvil"),
            "--host",
            host.address,
            "--port",
            str(self.port),
            "--chain-id",
            str(chain_id),
            "--silent",
            "--prune-history",  # else it writes the state of every block to the home folder, gigabytes in the end
            str(_STATES_KEPT),
            "--cache-path",
            folder / "anvil-cache",
        ]
        if optimism:
            command.append("--optimism")
        if block_time:
            command += ["--block-time", str(block_time), "--mixed-mining"]
        self.process = Process("anvil", command, folder / "anvil.log", detach=detach)
        self._endpoint = Endpoints([self.rpc], timeout=10)
        wait_until(self._answers, deadline=15, what="anvil answers")

    def _answers(self) -> bool:
        self.process.require_running()
        try:
            return bool(self.request("eth_chainId"))
        except RpcUnavailable:
            return False

    @property
    def bank(self) -> Key:
        """The account that pays for everything."""
        return Key.from_secret(_MNEMONIC_KEYS[0])

    def request(self, method: str, *parameters: Any) -> Any:
        answer = self._endpoint.make_request(method, parameters)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def give(self, address: str, wei: int) -> None:
        """Sets an account's gas money."""
        self.request("anvil_setBalance", address, hex(wei))

    def advance(self, seconds: int) -> None:
        """Moves the chain's clock forward and mines a block there."""
        self.request("evm_increaseTime", seconds)
        self.request("evm_mine")

    def advance_to(self, time: int) -> None:
        """Mines a block at exactly this time."""
        self.request("evm_setNextBlockTimestamp", time)
        self.request("evm_mine")

    def stop_clock(self) -> None:
        """From now on blocks are mined for transactions only."""
        self.request("evm_setAutomine", True)

    def stop(self) -> None:
        self.process.stop()
