"""Deploys the contracts from the shipped bytecode, without a compiler, and remembers where they are.

The addresses file (JSON) is what people hand around: chain id, the contracts and the block to index from. Runs names the
address of Court before Court is there (the next transaction's of the same key), and Court refuses to live anywhere else.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import rlp
from eth_utils import keccak, to_canonical_address, to_checksum_address

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
    court: str
    wages: str
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
    """Deploys Runs (which brings Bonds), Court and Wages over `token`, or over a new development token.

    `withdrawal_delay` in seconds. Raises ChainError when another process used the key meanwhile: nothing of value is lost
    then but gas, and the same call works.
    """
    chain = sender.chain
    block = chain.block_number()
    if token is None:
        token = _create(sender, "Token", DEVELOPMENT_SUPPLY)
    court = _address_of_next(sender, after=1)
    runs = _create(sender, "Runs", to_checksum_address(token), withdrawal_delay, to_checksum_address(sink), court)
    _create(sender, "Court", runs)
    wages = _create(sender, "Wages", runs)
    deployed = Chain(chain.endpoints, runs)
    deployed.check()
    return Deployment(chain.chain_id, runs, deployed.bonds.address, deployed.court.address, wages, token, block)


def _address_of_next(sender: Sender, *, after: int) -> str:
    """Where the transaction that follows `after` others of this key will create a contract."""
    nonce = sender.next_nonce() + after
    return to_checksum_address(keccak(rlp.encode([to_canonical_address(sender.key.address), nonce]))[12:])


def _create(sender: Sender, name: str, *arguments: object) -> str:
    artifact = artifacts.load(name)
    web3 = sender.chain.web3
    constructor = web3.eth.contract(abi=artifact.abi, bytecode=artifact.bytecode).constructor(*arguments)
    sent = sender.send(Call(f"deploying {name}", constructor))
    return str(sent.contract)
