"""How the contracts are reached: endpoints, which chain and whose code is there, and what goes wrong in asking.

Every request has a deadline. A refused or silent endpoint is `RpcUnavailable`, another chain or foreign code `WrongChain`,
a contract's no is explained by reverts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from dataclasses import replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeVar

from eth_abi.exceptions import DecodingError
from eth_utils import to_checksum_address

from protocol.chain import artifacts, reverts
from protocol.chain.ahead import AskedAhead, PollRounds
from protocol.chain.contract import Contract, EventType, Function, NoContract
from protocol.chain.endpoints import ANSWER_BYTES_MAX, Endpoints, EndpointsDisagree, OneEndpoint
from protocol.chain.ethereum import Ethereum, Log, RpcRefusal, data
from protocol.chain.events import from_log
from protocol.chain.transport import Request
from protocol.clock import SYSTEM, Clock
from protocol.errors import ConfigError, MurmurationError, RpcUnavailable, WrongChain
from protocol.http_url import without_secrets
from protocol.signing import Domain

T = TypeVar("T")


class Addresses(NamedTuple):
    """Addresses of the contracts that emit a run's events, by the names of their artifacts in lower case."""

    runs: str
    court: str
    policies: str
    bench: str
    weights: str

    @property
    def artifacts(self) -> dict[str, str]:
        """Name of the artifact, by address."""
        return {address: name.capitalize() for name, address in self._asdict().items()}


class Code(StrEnum):
    """What lies at an address."""

    SHIPPED = "the code this version ships"
    OTHER = "other code than this version ships"
    NONE = "no such contract"


class Access:
    """The part of Chain that reaches endpoints and contracts."""

    def __init__(
        self: Self, rpc: str | Sequence[str], contract: str | None, *, timeout: float = 10.0, clock: Clock = SYSTEM
    ) -> None:
        """`rpc`: one endpoint or several, the preferred one first; `timeout` in seconds bounds one request to one of them."""
        endpoints = [rpc] if isinstance(rpc, str) else list(rpc)
        self.endpoints = tuple(endpoints)
        self.rpc = ", ".join(map(without_secrets, endpoints))
        """The endpoints as people may see them."""
        self.provider: Endpoints = Endpoints(endpoints, timeout=timeout, clock=clock)
        self._asked: Endpoints | OneEndpoint = self.provider
        self.ethereum = Ethereum(self._asked)
        self._contract = contract
        self._has_contracts = False  # whether our code was seen there
        self.place = 0
        """Of the only endpoint, in the configuration."""
        several = len(endpoints) > 1
        self.singles: tuple[Self, ...] = tuple(map(self._single, range(len(endpoints)))) if several else (self,)
        """The same chain as each endpoint by itself tells of it, in configured order. They share what is known of the endpoints."""

    def _single(self, place: int) -> Self:
        one = copy(self)
        one.endpoints, one.rpc, one.place = (
            self.endpoints[place : place + 1],
            without_secrets(self.endpoints[place]),
            place,
        )
        one._asked = OneEndpoint(self.provider, place)
        one.ethereum = Ethereum(one._asked)
        one.singles = (one,)
        return one

    @property
    def best(self) -> list[Self]:
        """`singles`, those first that are awake and in step."""
        return self._in_order(of_logs=False)

    @property
    def best_for_logs(self) -> list[Self]:
        """As `best`, those last that left out events."""
        return self._in_order(of_logs=True)

    def _in_order(self, *, of_logs: bool) -> list[Self]:
        several = len(self.singles) > 1
        return [self.singles[place] for place in self.provider.order(of_logs=of_logs)] if several else [self]

    def is_majority(self, votes: int) -> bool:
        """Whether so many are more than half of all endpoints that are configured: who is silent may be so for a liar's sake."""
        return 2 * votes > len(self.singles)

    def answers(self, doing: str, question: Callable[[Self], T]) -> Iterator[T]:
        """What each endpoint says to `question` that answers, the best one first; who is not needed any more is not asked.

        Raises RpcUnavailable in the end where none did, EndpointsDisagree at once: nobody can be believed then, and whoever it came up with is
        not silent.
        """
        has_answered, problem = False, RpcUnavailable(f"{doing}: {self.rpc} did not answer")
        for one in self.best:
            try:
                with one.errors(doing):
                    said = question(one)
            except EndpointsDisagree:
                raise
            except RpcUnavailable as error:
                problem = error
                continue
            has_answered = True
            yield said
        if not has_answered:
            raise problem

    def expect_blocks(self, seconds: float) -> None:
        """Takes an endpoint for lagging while its newest block is older than this; 0: never. Not for development chains.

        Where all lag, asking for the newest block, and with it sending anything, raises StaleHead.
        """
        self.provider.head_age = seconds

    def check(self, chain_id: int | None = None) -> None:
        """Raises WrongChain unless this is `chain_id` and the contracts hold the code this package ships."""
        if chain_id is not None and self.chain_id != chain_id:
            raise WrongChain(f"{self.rpc} is chain {self.chain_id}, not {chain_id}")
        for name in (
            "runs",
            "bonds",
            "court",
            "policies",
            "bench",
            "weights",
        ):  # in this order: Runs is asked where others are
            self.check_code(name.capitalize(), getattr(self, name).address)
        everyone: tuple[Access, ...] = (self, *self.singles)
        for one in everyone:
            one._has_contracts = True

    def check_code(self, contract: str, address: str) -> None:
        """Raises WrongChain unless the code that this package ships as `contract` is at `address`."""
        code = self.code_at(address, contract)
        if code is not Code.SHIPPED:
            raise WrongChain(f"at {address} ({contract}) on chain {self.chain_id} lies {code}")

    def code_at(self, address: str, contract: str) -> Code:
        """What is at `address`, where the code shipped as `contract` (artifacts.CONTRACTS) should be."""
        with self.errors("reading contract code"):
            code = self.ethereum.code(to_checksum_address(address))
        if not code:
            return Code.NONE
        return Code.SHIPPED if artifacts.load(contract).is_code(code) else Code.OTHER

    @contextmanager
    def errors(self, doing: str, *, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Maps what asking an endpoint raises into our tree, but for what is `passing`."""
        try:
            yield
        except passing:
            raise
        except RpcUnavailable as error:
            raise type(error)(f"{doing}: {error}") from error
        except MurmurationError:
            raise
        except RpcRefusal as error:
            if (said := error.revert) is None:
                raise RpcUnavailable(f"{doing}: {self.rpc} refused: {error.message[:200]}") from error
            raise reverts.explain(said, doing if said else f"{doing} ({error.message[:200]})") from error
        except NoContract as error:
            if self._has_contracts:  # what was there once does not go: the node behind the endpoint is still syncing
                raise RpcUnavailable(f"{doing}: {self.rpc} answers as if there were no such contract") from error
            raise WrongChain(f"{doing}: there is no such contract on chain {self.chain_id}") from error
        except (DecodingError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise RpcUnavailable(f"{doing}: {self.rpc} answered nonsense: {str(error)[:200]}") from error

    @cached_property
    def chain_id(self) -> int:
        return self.ask_chain_id()

    def ask_chain_id(self) -> int:
        """What the endpoint says now: the one behind a URL can change."""
        return self._read("reading the chain id", self.ethereum.chain_id)

    def ask(self, method: str, params: list[Any], *, cap: int = ANSWER_BYTES_MAX) -> Any:
        """The `result` of a JSON-RPC request as it came; arguments as of Endpoints.ask. Raises RpcUnavailable, also where it is
        refused."""
        answer = self._asked.ask(method, params, cap=cap)
        if "error" in answer:
            raise RpcUnavailable(f"{method}: {self.rpc} refuses: {str(answer['error'])[:200]}")
        return answer["result"]

    def ahead(self, *asked: Request, cap: int = ANSWER_BYTES_MAX) -> AbstractContextManager[None]:
        """Asks all of this together, of the endpoint that answers best; within, these answers are taken (ahead.py)."""
        return self.provider.ahead(AskedAhead(self.best[0].place, self.provider.clock), asked, cap=cap)

    def is_beyond(self, number: int) -> bool:
        """Whether the endpoint has lately named a newer block its newest."""
        return self.provider.head(self.place) > number

    def turns(self) -> PollRounds:
        """For a loop that asks about the newest block time and again."""
        return PollRounds(self.provider)

    def known(self, method: str, params: list[Any]) -> Any:
        """The `result` of a request, where it was asked ahead; None where it was not."""
        answer = self.provider.known(self.place, method, params)
        return None if answer is None else answer.get("result")

    @cached_property
    def domain(self) -> Domain:
        return Domain(self.chain_id, self.runs.address)

    @cached_property
    def runs(self) -> Contract:
        if self._contract is None:
            raise ConfigError("no contract address", hint="give --contract, or put chain.contract into the config file")
        return self._at("Runs", self._contract)

    @cached_property
    def bonds(self) -> Contract:
        return self._at("Bonds", self._call("finding Bonds", self.runs.functions.bonds()))

    @cached_property
    def court(self) -> Contract:
        return self._at("Court", self._call("finding Court", self.runs.functions.court()))

    @cached_property
    def weights(self) -> Contract:
        return self._at("Weights", self._call("finding Weights", self.runs.functions.weights()))

    @cached_property
    def bench(self) -> Contract:
        return self._at("Bench", self._call("finding Bench", self.runs.functions.bench()))

    @cached_property
    def policies(self) -> Contract:
        return self._at("Policies", self._call("finding Policies", self.court.functions.policies()))

    @property
    def places(self) -> Addresses:
        """Where the contracts are whose events are of a run."""
        contracts = (self.runs, self.court, self.policies, self.bench, self.weights)
        return Addresses(*(str(contract.address) for contract in contracts))

    def ask_places(self) -> Addresses:
        """The same as the endpoint names them now."""
        runs = self.runs.functions
        court, bench, weights = (
            str(self._read(f"finding {name}", ask().call))
            for name, ask in (("Court", runs.court), ("Bench", runs.bench), ("Weights", runs.weights))
        )
        policies = self._at("Court", court).functions.policies()
        return Addresses(self.runs.address, court, str(self._read("finding Policies", policies.call)), bench, weights)

    @cached_property
    def locations(self) -> Contract:
        return self._at("Locations", self._call("finding Locations", self.court.functions.locations()))

    @cached_property
    def token(self) -> Contract:
        return self._at("Token", self._call("finding the token", self.runs.functions.token()))

    @cached_property
    def _topics(self) -> dict[tuple[str, bytes], EventType]:
        contracts = (
            (self.runs, self.bonds, self.court, self.policies, self.bench, self.weights) if self._contract else ()
        )
        return {(c.address.lower(), topic): event for c in contracts for topic, event in c.events.items()}

    def decode(self, entry: Log) -> Any:
        """The event dataclass (events.py) of a raw log of the contracts; None for anything else."""
        topics = entry["topics"]
        event = self._topics.get((entry["address"].lower(), data(topics[0]) if topics else b""))
        return event and from_log(event.name, event.arguments(entry))

    def _at(self, name: str, address: str) -> Contract:
        try:
            return Contract(self.ethereum, address, artifacts.load(name).abi)
        except ValueError as error:
            raise ConfigError(f"{address!r} is no contract address") from error

    def _read(self, doing: str, call: Callable[[], T]) -> T:
        with self.errors(doing):
            return call()

    def _call(self, doing: str, function: Function, at: int | None = None) -> Any:
        which = "latest" if at is None else at

        def call() -> Any:
            try:
                return function.call(which)
            except NoContract:
                for one in self.best if len(self.singles) > 1 else ():
                    with suppress(NoContract, RpcUnavailable):
                        return replace(function, ethereum=one.ethereum).call(which)
                raise

        return self._read(doing, call)
