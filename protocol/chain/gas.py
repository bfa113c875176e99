"""The gas of a transaction: what the chain takes before anything is carried out, and an estimate that may be true.

A transaction with less is taken by no node, and none of its key with a later nonce lands before it. So one false estimate, signed
and written down, would stop a key for good.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from protocol.chain.client import Chain
from protocol.chain.endpoints import EndpointsDisagree
from protocol.chain.ethereum import RpcRefusal
from protocol.errors import RpcUnavailable

log = logging.getLogger(__name__)

_TRANSACTION, _CREATION, _CODE_WORD = 21_000, 32_000, 2
_TOKEN, _TOKEN_FLOOR = 4, 10
_NONZERO_TOKENS = 4
"""Tokens in a byte that is not zero, which has one."""


def intrinsic(target: str | None, data: bytes) -> int:
    """The least gas of a transaction to `target`, None: that deploys (EIP-2028, EIP-3860, EIP-7623)."""
    zeros = data.count(0)
    tokens = zeros + _NONZERO_TOKENS * (len(data) - zeros)
    creation = _CREATION + _CODE_WORD * -(-len(data) // 32) if target is None else 0
    return _TRANSACTION + max(_TOKEN * tokens + creation, _TOKEN_FLOOR * tokens)


def estimate(chain: Chain, transaction: Mapping[str, Any], least: int) -> int:
    """What the best endpoint estimates whose estimate is not below `least`; `least` itself where all that answer are below it, as on a chain
    that asks less. Raises RpcRefusal where the call would revert, RpcUnavailable where no endpoint gives an estimate."""
    problem, is_low = RpcUnavailable(f"{chain.rpc} did not answer"), False
    for one in chain.best:
        try:
            with one.errors("estimating gas", passing=(RpcRefusal,)):
                found = one.ethereum.estimate_gas(transaction)
        except EndpointsDisagree:
            raise
        except RpcUnavailable as error:
            problem = error
            continue
        if found >= least:
            return found
        is_low = True
        log.warning("%s estimates %d gas, and %d is the least for such a transaction", one.rpc, found, least)
    if is_low:
        return least
    raise problem
