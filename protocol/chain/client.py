"""The chain as programs hold it: one object to read from and to build calls with."""

from __future__ import annotations

from protocol.chain.calls import Calls
from protocol.chain.reading import ChainReads


class Chain(ChainReads, Calls):
    """RPC endpoints and the contracts behind one Runs address. Safe to share between threads."""
