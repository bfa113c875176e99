"""Leave to take tokens, as a call gives it, and whether who gets it is one of our contracts: for what an earlier command signed on a liar's word."""

from __future__ import annotations

from eth_utils import keccak, to_checksum_address

from protocol.chain.access import Code
from protocol.chain.calls import Call
from protocol.chain.client import Chain
from protocol.chain.contract import Function

_APPROVE = keccak(text="approve(address,uint256)")[:4]
_SPENDERS = "Bonds", "Runs", "Vouchers"


def spender_of(data: bytes) -> str | None:
    """Who may take tokens after this call of approve(address,uint256); None of another call, or of one that gives no leave."""
    is_leave = data[:4] == _APPROVE and len(data) == 68 and any(data[36:])
    return to_checksum_address(data[16:36]) if is_leave else None


def is_ours(chain: Chain, address: str) -> bool:
    """Whether every endpoint that answers has a contract of ours there that takes tokens. Raises RpcUnavailable where none answers."""

    def is_shipped(one: Chain) -> bool:
        return any(one.code_at(address, name) is Code.SHIPPED for name in _SPENDERS)

    return all(chain.answers("looking who may take tokens", is_shipped))


def taking_back(chain: Chain, token: str, spender: str) -> Call:
    data = _APPROVE + bytes.fromhex(spender[2:]).rjust(32, b"\0") + bytes(32)
    return Call(f"taking back leave from {spender}", Function(chain.ethereum, to_checksum_address(token), data))
