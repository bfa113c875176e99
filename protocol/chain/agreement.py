"""Whether all endpoints tell of the same contracts: asked before an address that one of them named may take tokens.

A configuration names Runs alone. Where Bonds and the token are, an endpoint says, and one that lies would name its own.
"""

from __future__ import annotations

from eth_utils import keccak, to_checksum_address

from protocol.chain import networks
from protocol.chain.access import Addresses
from protocol.chain.client import Chain
from protocol.errors import RpcUnavailable, WrongChain

_SECONDS = 5.0
"""For each answer of an endpoint that nobody configured."""
_HINT = "one of them lies or lags: ask whom you trust, and leave it out of chain.rpc"


def require_agreement(chain: Chain, *, run: int | None = None, spender: str | None = None) -> list[str]:
    """The endpoints that answer, as people may see them: each names the contracts that `chain` uses, with the code this package ships, the same
    policy of `run`, and the same code at `spender`. On a public network its own endpoint is asked too.

    Raises WrongChain where one says otherwise, RpcUnavailable where none answers.
    """
    asked = [*chain.singles, *_own_endpoint(chain)]
    if len(asked) == 1:
        return [chain.rpc]
    expected: dict[str, object] = _named(chain) | (
        {} if run is None else {f"the policy of run {run}": chain.policy(run)}
    )
    problem = RpcUnavailable(f"{chain.rpc} did not answer")
    told: dict[str, dict[str, object]] = {}
    for one in asked:
        try:
            told[one.rpc] = _told(one, chain.chain_id, run, spender)
        except RpcUnavailable as error:
            problem = error
        except WrongChain as error:
            raise WrongChain(f"{one.rpc} contradicts what the others say: {error}", hint=_HINT) from error
    if not told:
        raise problem
    for rpc, each in told.items():
        for what, value in (next(iter(told.values())) | expected).items():
            if each[what] != value:
                raise WrongChain(
                    f"the endpoints do not agree on {what}: {rpc} says {each[what]}, another {value}", hint=_HINT
                )
    return list(told)


def _named(chain: Chain) -> dict[str, object]:
    """The addresses in use."""
    named = {
        "the token": chain.token,
        "Bonds": chain.bonds,
        **{name.capitalize(): getattr(chain, name) for name in Addresses._fields},
    }
    return {name: contract.address for name, contract in named.items()}


def _told(one: Chain, chain_id: int, run: int | None, spender: str | None) -> dict[str, object]:
    one.check(chain_id)
    told = _named(one) | {"the token's code": _digest(one, one.token.address)}
    if spender is not None:
        told[f"the code at {spender}"] = _digest(one, spender)
    if run is not None:
        told[f"the policy of run {run}"] = one.policy(run)
    return told


def _digest(one: Chain, address: str) -> str:
    with one.errors("reading contract code"):
        return keccak(one.ethereum.code(to_checksum_address(address))).hex()


def _own_endpoint(chain: Chain) -> list[Chain]:
    name = networks.Name.of(chain.chain_id)
    if name is None or not name.network.is_public or name.network.rpc in chain.endpoints:
        return []
    return [Chain(name.network.rpc, chain.runs.address, timeout=_SECONDS)]
