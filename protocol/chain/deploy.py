"""Deploys the contracts from the shipped bytecode, without a compiler, and remembers where they are.

The addresses file (JSON) is what people hand around: chain id, Runs, Bonds, token and the block to index from.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from eth_utils import to_checksum_address

from protocol.chain import artifacts
from protocol.chain.client import Call, Chain
from protocol.chain.sender import Sender
from protocol.errors import ConfigError

DEVELOPMENT_SUPPLY = 10**9 * 10**18
"""Development tokens minted to the deployer, in wei."""


@dataclass(frozen=True)
class Deployment:
    chain_id: int
    runs: str
    bonds: str
    token: str
    block: int
    """Block of deployment: events need not be looked for before it."""

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Deployment:
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} is no addresses file: {error}") from error


def deploy(sender: Sender, *, withdrawal_delay: int, sink: str, token: str | None = None) -> Deployment:
    """Deploys Runs (which brings Bonds) over `token`, or over a new development token; `withdrawal_delay` in seconds."""
    chain = sender.chain
    block = chain.block_number()
    if token is None:
        token = _create(sender, "Token", DEVELOPMENT_SUPPLY)
    runs = _create(sender, "Runs", to_checksum_address(token), withdrawal_delay, to_checksum_address(sink))
    deployed = Chain(chain.rpc, runs)
    deployed.check()
    return Deployment(chain.chain_id, runs, deployed.bonds.address, token, block)


def _create(sender: Sender, name: str, *arguments: object) -> str:
    artifact = artifacts.load(name)
    web3 = sender.chain.web3
    constructor = web3.eth.contract(abi=artifact.abi, bytecode=artifact.bytecode).constructor(*arguments)
    sent = sender.send(Call(f"deploying {name}", constructor))
    with sender.chain.errors(f"deploying {name}"):
        return str(web3.eth.get_transaction_receipt(sent.hash)["contractAddress"])
