"""What is asked of web3: the reason why a transaction failed, and whether a proposed call would be taken.

Reading and sending go through ethereum.py, which imports in a twentieth of the time; a command with which nothing goes wrong never comes here
(docs/decisions/0008-read-light-send-with-web3.md). Errors are those of ethereum.py: RpcRefusal for what an endpoint or a contract
refuses, ValueError, TypeError or LookupError for an answer that is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from web3 import Web3
from web3.exceptions import ContractLogicError, Web3Exception, Web3RPCError
from web3.middleware import AttributeDictMiddleware
from web3.providers import JSONBaseProvider
from web3.types import RPCEndpoint, RPCResponse, TxParams, Wei

from protocol.chain.contract import Function
from protocol.chain.ethereum import RpcProvider, RpcRefusal


class _Provider(JSONBaseProvider):
    """An endpoint of ours as web3 wants one."""

    def __init__(self, provider: RpcProvider) -> None:
        super().__init__()
        self._provider = provider

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        # web3's own encoder first: it knows the types that its formatters leave in `params`.
        return self._provider.make_request(method, json.loads(self.encode_rpc_request(method, params))["params"])


class Writer:
    """One account's way to the chain; safe to share between threads where the provider is."""

    def __init__(self, provider: RpcProvider, account: str) -> None:
        # Of web3's own middleware only this: the others ask for the chain id anew with every call, or resolve ENS names.
        self._eth = Web3(_Provider(provider), middleware=[(AttributeDictMiddleware, "attrdict")]).eth
        self._account = account

    def estimate_gas(self, function: Function) -> int:
        """Gas that a call needs. Raises RpcRefusal where it would revert."""
        with _refusals():
            return int(self._eth.estimate_gas(self._fields(function.address, function.data, function.value)))

    def call(self, target: str | None, data: bytes, gas: int, block: int, value: int = 0) -> None:
        """Repeats a call as of a block, for the reason of its failure: raises RpcRefusal where it reverts."""
        with _refusals():
            self._eth.call({**self._fields(target, data, value), "gas": gas}, block)

    def _fields(self, target: str | None, data: bytes, value: int) -> TxParams:
        to = {} if target is None else {"to": target}
        return {"from": self._account, "data": "0x" + data.hex(), "value": Wei(value), **to}


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ContractLogicError as error:
        raise RpcRefusal(3, str(error.message or ""), error.data) from error
    except Web3RPCError as error:
        said = (error.rpc_response or {}).get("error")
        refusal = said if isinstance(said, Mapping) else {}
        raise RpcRefusal(
            refusal.get("code"), str(refusal.get("message", error.message)), refusal.get("data")
        ) from error
    except Web3Exception as error:
        raise ValueError(str(error)) from error
