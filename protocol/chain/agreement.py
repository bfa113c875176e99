"""Whether all endpoints tell of the same contracts: asked before an address that one of them named may take tokens.

A configuration names Runs alone. Where Bonds and the token are, an endpoint says, and one that lies would name its own. Who has answered anything is
asked to the end, or nothing is done: a contradiction is not forgotten because the rest of it did not come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from eth_utils import keccak, to_checksum_address

from protocol.chain import artifacts, networks
from protocol.chain.access import Addresses
from protocol.chain.client import Chain
from protocol.chain.contract import Contract
from protocol.chain.endpoints import EndpointsDisagree
from protocol.chain.ethereum import code_request
from protocol.chain.transport import Request
from protocol.chain.types import Policy
from protocol.errors import RpcUnavailable, WrongChain
from protocol.http_url import is_of_this_machine

_SECONDS = 5.0
"""For each answer of an endpoint that nobody configured."""
_HINT = "one of them lies or lags: ask whom you trust, and leave it out of chain.rpc"


@dataclass(frozen=True)
class Agreement:
    """Who told the same, as people may see them."""

    told: tuple[str, ...]
    silent: tuple[str, ...]
    """Who did not answer at all."""


@dataclass(frozen=True)
class RunAgreement(Agreement):
    policy: Policy


def require_agreement(chain: Chain, *, spender: str | None = None) -> Agreement:
    """Each endpoint that answers names the contracts that `chain` uses, with the code this package ships, and the same code at `spender`. On a
    public network its own endpoint is asked too.

    Raises WrongChain where one says otherwise, RpcUnavailable where none answers, or one of them not to the end.
    """
    return Agreement(*_ask_all(chain, None, None, None, spender))


def require_same_run(chain: Chain, run: int, *, node: str | None = None) -> RunAgreement:
    """As require_agreement, of the policy of a run as well, and of whether `node` has a seat in it."""
    policy = chain.policy(run)
    return RunAgreement(*_ask_all(chain, policy, run, node, None), policy)


def _ask_all(
    chain: Chain, policy: Policy | None, run: int | None, node: str | None, spender: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(who told the same, who was silent)"""
    asked = [*chain.singles, *_own_endpoint(chain)]
    if len(asked) == 1:
        return (chain.rpc,), ()
    used, names = _said_of(chain, policy, run, node), _named(chain)
    told, silent, problem = dict[str, dict[str, object]](), list[str](), RpcUnavailable(f"{chain.rpc} did not answer")
    for one in asked:
        try:
            chain_id = one.ask_chain_id()
        except EndpointsDisagree:
            raise
        except RpcUnavailable as error:
            if one.provider.is_there(one.place):
                raise _not_to_the_end(one, error) from error
            problem = error
            silent.append(one.rpc)
            continue
        said = _all_of(one, chain_id, chain.chain_id, names, run, node, spender)
        for who, other in {**told, "another one": used}.items():
            for what in said.keys() & other.keys():
                if said[what] != other[what]:
                    raise WrongChain(
                        f"the endpoints do not agree on {what}: {one.rpc} says {said[what]}, {who} {other[what]}",
                        hint=_HINT,
                    )
        told[one.rpc] = said
    if not told:
        raise problem
    return tuple(told), tuple(silent)


def first_block(chain: Chain, *, is_known: Callable[[bytes], bool] = lambda _: False) -> bytes:
    """Hash of the chain's block 0, as all endpoints have it that know it: more than half of the configured ones, unless it `is_known` here.

    Raises WrongChain where they differ, RpcUnavailable where too few say it.
    """
    said = chain.answers("reading the first block", lambda one: (one.block_hash(0), one.rpc))
    told = [(found, rpc) for found, rpc in said if found is not None]
    by_hash = dict(told)
    if len(by_hash) > 1:
        raise WrongChain(f"{' and '.join(by_hash.values())} do not have the same first block", hint=_HINT)
    if chain.is_majority(len(told)) or any(map(is_known, by_hash)):
        return told[0][0]
    raise RpcUnavailable(
        f"{len(told)} of {len(chain.singles)} endpoints say what the first block of the chain is, and more than half must",
        hint="try again, or name another endpoint in chain.rpc in place of one that does not answer",
    )


def _all_of(
    one: Chain, chain_id: int, expected_id: int, names: dict[str, Contract], run: int | None, node: str | None, spender: str | None
) -> dict[str, object]:  # fmt: skip
    """What an endpoint says that has begun to answer."""
    if chain_id != expected_id:
        raise WrongChain(f"{one.rpc} is chain {chain_id}, not {expected_id}", hint=_HINT)
    try:
        with one.ahead(*_requests(one, names, run)):
            one.check(expected_id)
            said = _said_of(one, None if run is None else one.policy(run), run, node)
            said["the token's code"] = _digest(one, one.token.address)
            if spender is not None:
                said[f"the code at {spender}"] = _digest(one, spender)
    except WrongChain as error:
        raise WrongChain(f"{one.rpc} contradicts what the others say: {error}", hint=_HINT) from error
    except EndpointsDisagree:
        raise
    except RpcUnavailable as error:
        raise _not_to_the_end(one, error) from error
    return said


def _not_to_the_end(one: Chain, error: RpcUnavailable) -> RpcUnavailable:
    return RpcUnavailable(f"{one.rpc} could not be asked to the end: {error}", hint="try again in a minute")


def _requests(one: Chain, names: dict[str, Contract], run: int | None) -> list[Request]:
    """What is asked of one that says the same as the others, together."""
    runs, court, policies = (
        Contract(one.ethereum, names[name].address, artifacts.load(name).abi).functions
        for name in ("Runs", "Court", "Policies")
    )
    calls = [ask() for ask in (runs.bonds, runs.token, runs.court, runs.bench, runs.weights, court.policies)]
    calls += [] if run is None else [policies.policy(run)]
    return [*(code_request(each.address) for each in names.values()), *(call.request() for call in calls)]


def _said_of(chain: Chain, policy: Policy | None, run: int | None, node: str | None) -> dict[str, object]:
    """Addresses, the fields of the policy, and whether a node is seated, by what they are called."""
    said: dict[str, object] = {name: contract.address for name, contract in _named(chain).items()}
    if policy is not None:
        said |= {f"the policy's {field.name}": getattr(policy, field.name) for field in fields(policy)}
    if run is not None and node is not None:
        said[f"the seat of {node}"] = chain.seat(run, node).role.name
    return said


def _named(chain: Chain) -> dict[str, Contract]:
    """The contracts in use."""
    return {"the token": chain.token, "Bonds": chain.bonds} | {
        name.capitalize(): getattr(chain, name) for name in Addresses._fields
    }


def _digest(one: Chain, address: str) -> str:
    with one.errors("reading contract code"):
        return keccak(one.ethereum.code(to_checksum_address(address))).hex()


def _own_endpoint(chain: Chain) -> list[Chain]:
    """Not of a chain that is on this machine alone, and has the number of a public one: nobody else knows that."""
    name = networks.Name.of(chain.chain_id)
    if all(map(is_of_this_machine, chain.endpoints)):
        return []
    if name is None or not name.network.is_public or name.network.rpc in chain.endpoints:
        return []
    return [Chain(name.network.rpc, chain.runs.address, timeout=_SECONDS)]
