"""Has a block explorer show the contracts' sources: by Etherscan's API (version 2), which Blockscout answers too.

An explorer compiles the standard JSON input again and compares with what lies on chain, constructor arguments included. Those of
contracts that others created stand in no transaction; they are read back from the contracts. The API's words: https://docs.etherscan.io.
The key for it never appears in what is raised: it is part of requests' URLs, and so their errors are not shown.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import requests

from protocol import canonical
from protocol.chain import artifacts
from protocol.chain.access import Code
from protocol.chain.client import Chain
from protocol.chain.contract import Contract, creation
from protocol.chain.deploy import Deployment
from protocol.clock import SYSTEM, Clock
from protocol.errors import ChainError, DeadlineExceeded, Malformed, Unavailable

ETHERSCAN = "https://api.etherscan.io/v2/api"
"""One address for all chains it knows, Base and Base Sepolia among them."""

_TIMEOUT_SECONDS = 30.0  # of one request; sources are 400 kB
_PAUSE_SECONDS = 5.0  # between looks: keys without a price are limited to a few requests a second
_DEADLINE_SECONDS = 300.0  # for one contract, from the first request on
_ANSWER_BYTES_MAX = 1 << 20
_LATER = ("rate limit", "unable to locate contractcode", "pending")
"""What explorers say that passes: too many requests, a contract that they have not indexed yet, a queue."""


class Verified(StrEnum):
    NOW = "verified"
    BEFORE = "verified already"


@dataclass(frozen=True)
class Deployed:
    """One contract of a deployment."""

    name: str
    address: str
    arguments: bytes
    """The constructor's, as the ABI encodes them."""


def deployed(chain: Chain, known: Deployment) -> list[Deployed]:
    """Every contract of ours, with the arguments it was made with. Raises WrongChain where one is not what this version ships: its
    sources are not ours to show. A token of one's own is left out."""
    runs, court, policies, bench, weights = chain.places
    token, bonds = str(chain.token.address), chain.bonds
    with chain.errors("reading the contracts"):
        delay, sink = bonds.functions.delay().call(), bonds.functions.sink().call()
        signatures = chain.court.functions.signatures().call()
    found: list[tuple[str, str, tuple[object, ...]]] = [
        ("Runs", runs, (token, delay, sink, court)),
        ("Bench", bench, (token, delay, sink, runs, court)),
        ("Bonds", str(bonds.address), (token, delay, sink, runs, bench)),
        ("Weights", weights, (runs, court, bench)),
        ("Court", court, (runs,)),
        ("Signatures", signatures, (runs,)),
        ("Policies", policies, (runs, court)),
        ("Locations", str(chain.locations.address), (policies,)),
        ("Vouchers", known.vouchers, (runs,)),
    ]
    if chain.code_at(token, "Token") is Code.SHIPPED:
        with chain.errors("reading the token"):
            found.insert(
                0,
                (
                    "Token",
                    token,
                    (Contract(chain.ethereum, token, artifacts.load("Token").abi).functions.totalSupply().call(),),
                ),
            )
    if known.faucet:
        with chain.errors("reading the faucet"):
            ask = Contract(chain.ethereum, known.faucet, artifacts.load("Faucet").abi).functions
            found.append(
                (
                    "Faucet",
                    known.faucet,
                    (ask.token().call(), ask.amount().call(), ask.most().call(), ask.period().call()),
                )
            )
    for name, address, _ in found:
        chain.check_code(name, address)
    return [
        Deployed(name, address, creation(chain.ethereum, artifacts.load(name).abi, "", *arguments).data)
        for name, address, arguments in found
    ]


class SourceExplorer:
    """Of one chain."""

    def __init__(self, url: str, chain_id: int, key: str | None, *, clock: Clock = SYSTEM) -> None:
        self._url, self._chain_id, self._key, self._clock = url, chain_id, key, clock

    def verify(self, contract: Deployed) -> Verified:
        """Hands in one contract's sources and waits for what the explorer finds. Raises ChainError where it finds something else than
        lies on chain, DeadlineExceeded, Unavailable."""
        build, until = artifacts.build(), self._clock.monotonic() + _DEADLINE_SECONDS
        submission = {
            "action": "verifysourcecode", "contractaddress": contract.address, "codeformat": "solidity-standard-json-input",
            "sourceCode": json.dumps(build.standard_input(contract.name)), "contractname": build.full_name(contract.name),
            "compilerversion": f"v{build.compiler}", "constructorArguements": contract.arguments.hex(),
            "constructorArguments": contract.arguments.hex(), "licenseType": "12",
        }  # fmt: skip
        said = self._settled("POST", submission, contract, until)
        if "already verified" in said.lower():
            return Verified.BEFORE
        look = {"action": "checkverifystatus", "guid": said}
        found = self._settled("GET", look, contract, until)
        if "already verified" in found.lower():
            return Verified.BEFORE
        if not found.lower().startswith("pass"):
            raise ChainError(f"the explorer does not verify {contract.name} at {contract.address}: {found[:200]}")
        return Verified.NOW

    def _settled(self, method: str, fields: dict[str, str], contract: Deployed, until: float) -> str:
        """Asks until the answer is none of those that pass."""
        while True:
            is_yes, said = self._ask(method, fields)
            if not any(text in said.lower() for text in _LATER):
                break
            if self._clock.monotonic() > until:
                raise DeadlineExceeded(
                    f"{contract.name}: the explorer still says: {said[:200]}", hint="give the command again later"
                )
            self._clock.sleep(_PAUSE_SECONDS)
        if not is_yes and method == "POST" and "already verified" not in said.lower():
            raise ChainError(
                f"the explorer refuses {contract.name} at {contract.address}: {said[:200]}", hint=_hint(said)
            )
        return said

    def _ask(self, method: str, fields: dict[str, str]) -> tuple[bool, str]:
        """(whether its status is a yes, what it says). Raises Unavailable."""
        who = {"chainid": str(self._chain_id), "module": "contract", **({"apikey": self._key} if self._key else {})}
        sent: dict[str, Any] = (
            {"params": {**who, **fields}}
            if method == "GET"
            else {"params": {"chainid": who["chainid"]}, "data": {**who, **fields}}
        )
        try:
            with requests.request(
                method, self._url, timeout=_TIMEOUT_SECONDS, stream=True, allow_redirects=False, **sent
            ) as answer:
                body = _body(answer)
                if answer.status_code == requests.codes.too_many_requests:
                    return False, "rate limit"
                if answer.status_code != requests.codes.ok:
                    raise Unavailable(f"the explorer answers with HTTP {answer.status_code}", hint="check --explorer")
            said = canonical.parse(body, "the explorer's answer")
            return str(said["status"]) == "1", str(said["result"] or said["message"])
        except (requests.RequestException, Malformed, LookupError, TypeError) as error:
            raise Unavailable(
                f"the explorer did not answer as one does ({type(error).__name__})",
                hint="check --explorer, and try again",
            ) from None  # the error's text may hold the key


def _body(answer: requests.Response) -> bytes:
    """At most _ANSWER_BYTES_MAX of it: then it is no JSON."""
    body = b""
    for part in answer.iter_content(_ANSWER_BYTES_MAX):  # a chunked answer comes in parts, however many are asked for
        body += part
        if len(body) > _ANSWER_BYTES_MAX:
            break
    return body[:_ANSWER_BYTES_MAX]


def _hint(said: str) -> str:
    return (
        "put its key into MURMUR_EXPLORER_KEY"
        if "key" in said.lower()
        else "see its words; `murmur chain info` says what lies there"
    )
