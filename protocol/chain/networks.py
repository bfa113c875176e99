"""The networks that have a name: chain ids, public endpoints, depth of reorgs. A name binds what is sent to that chain."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from protocol.constants import ANVIL_CHAIN_ID
from protocol.errors import ConfigError, RpcUnavailable, WrongChain

if TYPE_CHECKING:
    from protocol.chain import Chain

SETTLED_BLOCKS = 12
"""Blocks on a block after which honest endpoints agree on it and no reorg takes it, on networks that say nothing else."""


@dataclass(frozen=True)
class Network:
    chain_id: int
    rpc: str
    """A public endpoint, or where Anvil listens."""
    depth: int = SETTLED_BLOCKS
    """Blocks on a block after which what is in it is believed for good. 0: at once, on chains for development."""

    @property
    def is_public(self) -> bool:
        return self.chain_id != ANVIL_CHAIN_ID


class Name(StrEnum):
    ANVIL = "anvil"
    BASE_SEPOLIA = "base-sepolia"
    BASE = "base"

    @property
    def network(self) -> Network:
        return NETWORKS[self]

    @classmethod
    def of(cls, chain_id: int) -> Name | None:
        return next((name for name, network in NETWORKS.items() if network.chain_id == chain_id), None)


NETWORKS = {
    Name.ANVIL: Network(ANVIL_CHAIN_ID, "http://127.0.0.1:8545", depth=0),
    Name.BASE_SEPOLIA: Network(84_532, "https://sepolia.base.org"),
    Name.BASE: Network(8_453, "https://mainnet.base.org"),
}


def depth(chain_id: int) -> int:
    """Network.depth of any chain."""
    name = Name.of(chain_id)
    return SETTLED_BLOCKS if name is None else name.network.depth


def endpoints(name: Name | None, rpc: Sequence[str], chain_id: int | None = None) -> tuple[list[str], int]:
    """(endpoints to ask, chain id they must have) of a named network, or of the chain that an addresses file names.

    `rpc` takes the place of the network's own endpoint. Raises WrongChain when name and file contradict each other,
    ConfigError for a chain without a name and without `rpc`.
    """
    if name is not None and chain_id is not None and name.network.chain_id != chain_id:
        raise WrongChain(
            f"the addresses file is of chain {chain_id}, and {name} is chain {name.network.chain_id}",
            hint="leave --network out, or give the file of that network",
        )
    if name is None:
        name = Name.ANVIL if chain_id is None else Name.of(chain_id)
    if name is not None:
        return list(rpc) or [name.network.rpc], name.network.chain_id
    if not rpc:
        raise ConfigError(f"no endpoint of chain {chain_id} is known", hint="give --rpc")
    return list(rpc), int(chain_id or 0)


def connect(urls: Sequence[str], chain_id: int, contract: str | None = None) -> Chain:
    """Raises WrongChain when any endpoint that answers is of another chain, RpcUnavailable when none answers."""
    from protocol.chain import Chain

    for url in urls if len(urls) > 1 else ():
        with suppress(RpcUnavailable):
            _require(Chain(url, None), chain_id)
    chain = Chain(urls, contract)
    _require(chain, chain_id)
    return chain


def _require(chain: Chain, chain_id: int) -> None:
    if chain.chain_id != chain_id:
        name = Name.of(chain_id)
        raise WrongChain(
            f"{chain.rpc} is chain {chain.chain_id}, not {chain_id}" + (f" ({name})" if name else ""),
            hint="give the --network that this endpoint belongs to, or another --rpc",
        )
