"""How the chain is reached, and what a transaction may cost: the settings that every role and command shares.

`open` gives a checked `Chain`, `limits` what a `Sender` may offer. Which endpoints are given by default is no business of the
networks' table (networks.py): a role is always told where its chain is.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from protocol.chain.client import Chain
from protocol.chain.endpoints import HEAD_SECONDS
from protocol.chain.sender import SendLimits
from protocol.clock import SYSTEM, Clock
from protocol.constants import ANVIL_CHAIN_ID
from protocol.settings import Settings

_GWEI = 10**9


def usual_poll_seconds(chain_id: int) -> float:
    """What `chain.poll_seconds` is where nobody set it."""
    return 1.0 if chain_id == ANVIL_CHAIN_ID else 15.0


class ClientSettings(Settings):
    rpc: str | tuple[str, ...] = "http://127.0.0.1:8545"
    """JSON-RPC endpoint, or several, the preferred one first."""
    contract: str
    """Address of the Runs contract."""
    timeout_seconds: float = Field(default=10.0, gt=0)
    """How long one endpoint may take for one answer."""
    head_age_seconds: float = Field(default=HEAD_SECONDS, ge=0)
    """Age of the newest block, by this machine's clock, from which an endpoint lags (a time as far in the future counts like it): another is asked, and while all lag
    nothing is sent and nobody goes by that clock. 0: never. Blocks of Base come every 2 s; Anvil is not held to it."""
    gas_max: int = Field(default=SendLimits.gas, ge=21_000)
    """Gas above which a transaction is not sent."""
    fee_max_gwei: float = Field(default=SendLimits.fee / _GWEI, gt=0)
    """Most gwei per gas that a transaction offers; while the network asks for more, nothing is sent."""

    @property
    def limits(self) -> SendLimits:
        return SendLimits(gas=self.gas_max, fee=round(self.fee_max_gwei * _GWEI))

    def connect(self, chain_id: int | None, *, clock: Clock = SYSTEM) -> Chain:
        """Raises WrongChain unless `chain_id` (None: any) and our contracts are there; RpcUnavailable."""
        chain = Chain(self.rpc, self.contract, timeout=self.timeout_seconds, clock=clock)
        chain.check(chain_id)
        if chain.chain_id != ANVIL_CHAIN_ID:
            chain.expect_blocks(self.head_age_seconds)
        return chain


class ChainSettings(ClientSettings):
    vouchers: str | None = None
    """Address of the Vouchers contract, out of which validators are paid."""
    chain_id: int
    """Must be the endpoint's."""
    run: int = Field(ge=1)
    first_block: int = Field(default=0, ge=0)
    """Block from which events are read; that of the deployment or later."""
    confirmations: int = Field(default=0, ge=0)
    """Blocks to stay behind the head."""
    poll_seconds: float = Field(default=15.0, gt=0)
    """Between two looks at chain and hub, where nothing tells a role to look at once; 1 by default where the chain is Anvil's. At a public
    endpoint each look is a request: docs/running.md says what that comes to."""

    @model_validator(mode="before")
    @classmethod
    def _look_often_at_anvil(cls, given: Any) -> Any:
        is_anvil = isinstance(given, dict) and str(given.get("chain_id")) == str(ANVIL_CHAIN_ID)
        return {"poll_seconds": usual_poll_seconds(ANVIL_CHAIN_ID), **given} if is_anvil else given

    def open(self, *, clock: Clock = SYSTEM) -> Chain:
        """Raises WrongChain or RpcUnavailable."""
        return self.connect(self.chain_id, clock=clock)
