"""Leave to take tokens, as a call gives it, and whether who gets it is one of our contracts: for what an earlier command signed on a liar's word."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from eth_utils import keccak, to_checksum_address

from protocol.chain import artifacts
from protocol.chain.access import Code
from protocol.chain.calls import Call
from protocol.chain.client import Chain
from protocol.chain.contract import Contract, Function, NoContract
from protocol.chain.ethereum import RpcRefusal, called_by

_APPROVE = keccak(text="approve(address,uint256)")[:4]
_SPENDERS = "Bonds", "Runs", "Vouchers"


class Leave(NamedTuple):
    token: str
    spender: str


def spender_of(data: bytes) -> str | None:
    """Who may take tokens after this call of approve(address,uint256); None of another call, or of one that gives no leave."""
    is_leave = data[:4] == _APPROVE and len(data) == 68 and any(data[36:])
    return to_checksum_address(data[16:36]) if is_leave else None


def is_ours(chain: Chain, address: str) -> bool:
    """Whether every endpoint that answers has a contract of ours there that takes tokens. Raises RpcUnavailable where none answers."""

    def is_shipped(one: Chain) -> bool:
        return any(one.code_at(address, name) is Code.SHIPPED for name in _SPENDERS)

    return all(chain.answers("looking who may take tokens", is_shipped))


def to_take_back(chain: Chain, owner: str, signed: Iterable[bytes]) -> set[Leave]:
    """The leave in any of these signed transactions that any endpoint shows to be given, and that is not for a contract of ours. Raises
    RpcUnavailable where none answers."""
    found = set()
    for token, data in map(called_by, signed):
        spender = spender_of(data)
        if token is not None and spender is not None:
            found.add(Leave(token, spender))
    return {each for each in found if not is_ours(chain, each.spender) and _is_given(chain, owner, each)}


def _is_given(chain: Chain, owner: str, leave: Leave) -> bool:
    def is_shown(one: Chain) -> bool:
        token = Contract(one.ethereum, leave.token, artifacts.load("Token").abi)
        try:
            return bool(token.functions.allowance(owner, leave.spender).call())
        except NoContract:
            return False
        except RpcRefusal as error:
            if error.revert is None:
                raise
            return False  # no token

    return any(chain.answers("reading an allowance", is_shown))


def taking_back(chain: Chain, leave: Leave) -> Call:
    token, spender = leave
    data = _APPROVE + bytes.fromhex(spender[2:]).rjust(32, b"\0") + bytes(32)
    return Call(
        f"taking back leave from {spender}", Function(chain.ethereum, to_checksum_address(token), data), adds=False
    )
