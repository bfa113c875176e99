"""Reading the contracts, and building the calls that `Sender` sends.

Every request has a deadline. A refused or silent endpoint is `RpcUnavailable`, another chain or foreign code `WrongChain`,
a contract's no is explained by reverts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeVar

from eth_abi.exceptions import DecodingError
from eth_typing import ChecksumAddress
from eth_utils import to_checksum_address

from protocol.chain import artifacts, reverts
from protocol.chain.contract import Contract, EventType, Function, NoContract
from protocol.chain.endpoints import ANSWER_BYTES_MAX, Endpoints, OneEndpoint, shown
from protocol.chain.ethereum import Ethereum, Log, RpcRefusal, data
from protocol.chain.events import from_log
from protocol.chain.types import (
    Account,
    Block,
    Case,
    Funds,
    Policy,
    Publication,
    Role,
    Seat,
    Stage,
    State,
    Status,
    SubmissionState,
    Validator,
)
from protocol.clock import SYSTEM, Clock
from protocol.errors import BadSignature, ConfigError, MurmurationError, RpcUnavailable, TransactionReverted, WrongChain
from protocol.signing import Domain, Typed
from protocol.submission import SubmissionRef

T = TypeVar("T")
_ERC_1271 = [
    {
        "type": "function", "name": "isValidSignature", "inputs": [{"type": "bytes32"}, {"type": "bytes"}],
        "outputs": [{"type": "bytes4"}],
    }
]  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A contract call that may be sent. `doing` says in words what it does ("submitting work")."""

    doing: str
    function: Function


class Code(StrEnum):
    """What lies at an address."""

    SHIPPED = "the code this version ships"
    OTHER = "other code than this version ships"
    NONE = "no such contract"


class Chain:
    """RPC endpoints and the contracts behind one Runs address. Safe to share between threads."""

    def __init__(
        self, rpc: str | Sequence[str], contract: str | None, *, timeout: float = 10.0, clock: Clock = SYSTEM
    ) -> None:
        """`rpc`: one endpoint or several, the preferred one first; `timeout` in seconds bounds one request to one of them."""
        endpoints = [rpc] if isinstance(rpc, str) else list(rpc)
        self.endpoints = tuple(endpoints)
        self.rpc = ", ".join(map(shown, endpoints))
        """The endpoints as people may see them."""
        self.provider: Endpoints = Endpoints(endpoints, timeout=timeout, clock=clock)
        self._asked: Endpoints | OneEndpoint = self.provider
        self.ethereum = Ethereum(self._asked)
        self._contract = contract
        self._has_contracts = False  # whether our code was seen there
        self.place = 0
        """Of the only endpoint, in the configuration."""
        several = len(endpoints) > 1
        self.singles: tuple[Chain, ...] = tuple(map(self._single, range(len(endpoints)))) if several else (self,)
        """The same chain as each endpoint by itself tells of it, in configured order. They share what is known of the endpoints."""

    def _single(self, place: int) -> Chain:
        one = copy(self)
        one.endpoints, one.rpc, one.place = self.endpoints[place : place + 1], shown(self.endpoints[place]), place
        one._asked = OneEndpoint(self.provider, place)
        one.ethereum = Ethereum(one._asked)
        one.singles = (one,)
        return one

    @property
    def best(self) -> list[Chain]:
        """`singles`, those first that are awake and in step."""
        return [self.singles[place] for place in self.provider.order()] if len(self.singles) > 1 else [self]

    # ---- connection ----------------------------------------------------------------------------------------------------

    def expect_blocks(self, seconds: float) -> None:
        """Takes an endpoint for lagging while its newest block is older than this; 0: never. Not for development chains.

        Where all lag, asking for the newest block, and with it sending anything, raises StaleHead.
        """
        self.provider.head_age = seconds

    def check(self, chain_id: int | None = None) -> None:
        """Raises WrongChain unless this is `chain_id` and the contracts hold the code this package ships."""
        if chain_id is not None and self.chain_id != chain_id:
            raise WrongChain(f"{self.rpc} is chain {self.chain_id}, not {chain_id}")
        for name in ("runs", "bonds", "court"):  # in this order: Runs is asked where the others are
            self.check_code(name.capitalize(), getattr(self, name).address)
        for one in {self, *self.singles}:
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
        shipped = artifacts.load(contract)
        return Code.SHIPPED if shipped.code_hash(code) == shipped.expected_code_hash else Code.OTHER

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
        return self._at("Bonds", self._read("finding Bonds", lambda: self.runs.functions.bonds().call()))

    @cached_property
    def court(self) -> Contract:
        return self._at("Court", self._read("finding Court", lambda: self.runs.functions.court().call()))

    def ask_court(self) -> str:
        """The address of Court that the endpoint names now."""
        return str(self._read("finding Court", lambda: self.runs.functions.court().call()))

    @cached_property
    def token(self) -> Contract:
        return self._at("Token", self._read("finding the token", lambda: self.runs.functions.token().call()))

    @cached_property
    def _topics(self) -> dict[tuple[str, bytes], EventType]:
        contracts = (self.runs, self.bonds, self.court) if self._contract else ()
        return {(c.address.lower(), topic): event for c in contracts for topic, event in c.events.items()}

    def decode(self, entry: Log) -> Any:
        """The event dataclass (events.py) of a raw log of Runs, Bonds or Court; None for anything else."""
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

    # ---- reading -------------------------------------------------------------------------------------------------------

    def block(self, which: int | str = "latest") -> Block:
        found = self._read("reading a block", lambda: self.ethereum.block(which))
        if found is None:
            raise RpcUnavailable(f"reading a block: {self.rpc} does not know block {which}")
        return found

    def find_block(self, number: int) -> Block | None:
        """None when the chain is not that long (any more)."""
        found = self._read("reading a block", lambda: self.ethereum.block(number))
        if found is not None and found.number != number:
            raise RpcUnavailable(f"reading a block: {self.rpc} answered with block {found.number}, not {number}")
        return found

    def block_hash(self, number: int) -> bytes | None:
        """Hash of a block; None when the chain is not that long (any more)."""
        found = self.find_block(number)
        return None if found is None else found.hash

    def block_number(self) -> int:
        return self._read("reading the block number", self.ethereum.block_number)

    def balance(self, address: str) -> int:
        """Gas money in wei."""
        return self._read("reading a balance", lambda: self.ethereum.balance(to_checksum_address(address)))

    def gas_price(self) -> int:
        """Wei per gas that a transaction pays about now."""
        return self._read("reading the gas price", self.ethereum.gas_price)

    def runs_of_vouchers(self, vouchers: str) -> ChecksumAddress:
        """The Runs that a Vouchers contract pays for."""
        return self._call("reading Vouchers", self._at("Vouchers", vouchers).functions.runs())

    def token_balance(self, address: str) -> int:
        return self._call("reading a token balance", self.token.functions.balanceOf(address))

    def allowance(self, owner: str, spender: str) -> int:
        return self._call("reading an allowance", self.token.functions.allowance(owner, spender))

    def policy(self, run: int) -> Policy:
        """Raises ConfigError where there is no such run."""
        try:
            return Policy(*self._call("reading the policy", self.court.functions.policy(run)))
        except TransactionReverted as error:
            if error.reason != "NoSuchRun":
                raise
            raise ConfigError(
                f"there is no run {run} at {self.runs.address}", hint="check --run and --contract"
            ) from error

    def run_count(self) -> int:
        return self._call("counting runs", self.runs.functions.count())

    def spec_digest(self, run: int) -> bytes:
        return bytes(self._call("reading the spec digest", self.runs.functions.specDigests(run)))

    def funds(self, run: int) -> Funds:
        return Funds(*self._call("reading the budget", self.runs.functions.funds(run)))

    def available(self, run: int) -> int:
        """What of the budget, in wei, backs new submissions: what is free, less what the owner has announced to take out."""
        funds, status = self.funds(run), self.status(run)
        leaving = status.leaving if status.defunded_from and self.block().time >= status.defunded_from else 0
        return max(0, funds.free - leaving)

    def status(self, run: int) -> Status:
        return Status(*self._call("reading the run", self.runs.functions.status(run)))

    def paused(self, run: int) -> bool:
        return self._call("reading the pause", self.runs.functions.paused(run))

    def published(self, run: int, *, at: int | None = None) -> int:
        """Versions published so far, or up to block `at`; the head is the one before."""
        return self._call("reading the head", self.runs.functions.published(run), at)

    def publication(self, run: int, step: int) -> Publication:
        return Publication(step, *self._call("reading a publication", self.runs.functions.publications(run, step)))

    def head(self, run: int) -> Publication | None:
        count = self.published(run)
        return self.publication(run, count - 1) if count else None

    def seat(self, run: int, node: str, *, at: int | None = None) -> Seat:
        """The seat that `node` holds or held, now or in block `at`."""
        operator, role, *rest = self._call("reading a seat", self.runs.functions.seats(run, node), at)
        return Seat(operator, Role(role), *rest)

    def seat_name(self, run: int, node: str) -> ChecksumAddress:
        """Name of the seat that `node` holds or held: the first key it had."""
        return self._call("reading a seat", self.runs.functions.seatOf(run, node))

    def validator(self, run: int, address: str) -> Validator:
        return Validator(*self._call("reading a validator", self.court.functions.validators(run, address)))

    def seated_validators(self, run: int) -> int:
        """How many validators have a seat and no end of service in sight."""
        return self._call("counting validators", self.court.functions.seated(run))

    def submission(self, run: int, ref: SubmissionRef) -> SubmissionState:
        return SubmissionState(
            *self._call("reading a submission", self.runs.functions.submissions(ref.submission_id(run)))
        )

    def state(self, run: int, ref: SubmissionRef) -> State:
        return State(self._call("reading a submission", self.court.functions.stateOf(run, ref.as_tuple())))

    def case(self, run: int, seat: str, number: int, *, at: int | None = None) -> Case:
        """Case `number` against a seat, now or in block `at`; they are counted from 1."""
        challenger, earliest, deadline, stage, *rest = self._call(
            "reading a case", self.court.functions.cases(run, seat, number), at
        )
        return Case(challenger, earliest, deadline, Stage(stage), *rest)

    def voted(self, run: int, seat: str, number: int, validator: str) -> bool:
        return self._call("reading a vote", self.court.functions.voted(run, seat, number, validator))

    def charge(self, run: int, ref: SubmissionRef, signer: str) -> int:
        """Number of the hard case on a submission in which this validator's verdict served: as second, or alone where none is
        needed. 0: none."""
        return self._call("reading a charge", self.court.functions.charges(ref.submission_id(run), signer))

    def case_of(self, run: int, ref: SubmissionRef) -> tuple[ChecksumAddress, int, Case] | None:
        """(seat, number, case) of the case that last took a submission's units; None when none did. There may be others about it."""
        number = self.submission(run, ref).number
        if not number:
            return None
        seat = self.seat_name(run, ref.node)
        return seat, number, self.case(run, seat, number)

    def account(self, address: str) -> Account:
        return Account(*self._call("reading a stake", self.bonds.functions.accounts(address)))

    def claimable(self, run: int, node: str) -> tuple[int, int]:
        """(units that may be claimed now, units that still wait)."""
        ready, pending = self._call("reading rewards", self.runs.functions.claimable(run, node))
        return ready, pending

    def withdrawal_delay(self) -> int:
        return self._call("reading the withdrawal delay", self.bonds.functions.delay())

    def signed(self, message: Typed, signature: bytes, who: ChecksumAddress) -> bool:
        """Whether `who` signed, with a plain key or, being a contract, by ERC-1271: as Typed.signedBy of the contracts."""
        with suppress(BadSignature):
            if message.signer(signature, self.domain) == who:
                return True
        if not self._read("asking the contract that signs", lambda: self.ethereum.code(who)):
            return False
        contract = Contract(self.ethereum, who, _ERC_1271)
        asked = contract.functions.isValidSignature(message.signing_hash(self.domain), signature)
        try:
            return bool(self._call("asking the contract that signs", asked) == asked.data[:4])
        except (TransactionReverted, WrongChain):  # it says no; or there is no contract
            return False

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

    # ---- calls to send -------------------------------------------------------------------------------------------------

    def approve_tokens(self, spender: ChecksumAddress, amount: int) -> Call:
        return Call("approving tokens", self.token.functions.approve(spender, amount))

    def transfer_tokens(self, to: str, amount: int) -> Call:
        return Call("sending tokens", self.token.functions.transfer(to, amount))

    def deposit(self, account: str, amount: int) -> Call:
        return Call("depositing stake", self.bonds.functions.deposit(account, amount))

    def unbond(self, amount: int) -> Call:
        return Call("unbonding stake", self.bonds.functions.unbond(amount))

    def rebond(self, amount: int) -> Call:
        return Call("rebonding stake", self.bonds.functions.rebond(amount))

    def withdraw(self) -> Call:
        return Call("withdrawing stake", self.bonds.functions.withdraw())

    def create(self, policy: Policy, spec_digest: bytes) -> Call:
        return Call("creating the run", self.runs.functions.create(policy.as_tuple(), spec_digest))

    def fund(self, run: int, amount: int) -> Call:
        return Call("funding the run", self.runs.functions.fund(run, amount))

    def pause(self, run: int, on: bool) -> Call:
        return Call("pausing the run" if on else "resuming the run", self.runs.functions.pause(run, on))

    def approve_validator(self, run: int, validator: str, on: bool) -> Call:
        return Call("approving the validator", self.court.functions.approve(run, validator, on))

    def enlist(self, run: int, on: bool) -> Call:
        return Call("taking the validator seat" if on else "leaving the seat", self.court.functions.enlist(run, on))

    def reinforce(self, run: int, amount: int) -> Call:
        return Call("locking more stake", self.court.functions.reinforce(run, amount))

    def release_validator(self, run: int, validator: str) -> Call:
        return Call("freeing the seat's stake", self.court.functions.release(run, validator))

    def join(
        self, run: int, node: str, peer: bytes, hardware: int, deadline: int, consent: bytes, invite: bytes = b""
    ) -> Call:
        """`consent` is the node's signature, `invite` that of the run's gate, where it has one: both until `deadline`."""
        function = self.runs.functions.join(run, node, peer, hardware, deadline, consent, invite)
        return Call("taking a seat", function)

    def leave(self, run: int, node: str) -> Call:
        return Call("leaving the seat", self.runs.functions.leave(run, node))

    def release(self, run: int, node: str) -> Call:
        return Call("freeing the seat's stake", self.runs.functions.release(run, node))

    def rotate(self, run: int, node: str, new: str, peer: bytes, deadline: int, consent: bytes) -> Call:
        return Call("changing the node's key", self.runs.functions.rotate(run, node, new, peer, deadline, consent))

    def offer(self, run: int, node: str, to: str) -> Call:
        return Call("offering the seat", self.runs.functions.offer(run, node, to))

    def accept(self, run: int, node: str) -> Call:
        return Call("taking over the seat", self.runs.functions.accept(run, node))

    def ban(self, run: int, node: str) -> Call:
        return Call("banning the node", self.runs.functions.ban(run, node))

    def defund(self, run: int, amount: int) -> Call:
        return Call("announcing the withdrawal", self.runs.functions.defund(run, amount))

    def collect(self, run: int) -> Call:
        return Call("collecting from the budget", self.runs.functions.collect(run))

    def publish(self, run: int, step: int, manifest: bytes) -> Call:
        return Call("publishing weights", self.runs.functions.publish(run, step, manifest))

    def submit(self, run: int, ref: SubmissionRef, units: int, beacon: bytes) -> Call:
        function = self.runs.functions.submit(run, ref.root, ref.step, ref.sequence, units, beacon)
        return Call("submitting work", function)

    def challenge(self, run: int, refs: Sequence[SubmissionRef], evidence: bytes) -> Call:
        """A soft case on submissions of one seat; those past their window or in a case already are left out."""
        function = self.court.functions.challenge(run, [ref.as_tuple() for ref in refs], evidence)
        return Call("challenging submissions", function)

    def accuse(self, run: int, ref: SubmissionRef, samples: int, evidence: bytes, second: tuple[object, ...]) -> Call:
        """A hard case; bit i of `samples`: sample i is false. `second`: another validator's receipt, as Receipt.on_chain."""
        return Call("accusing a node", self.court.functions.accuse(run, ref.as_tuple(), samples, evidence, second))

    def appeal(self, run: int, seat: str, number: int) -> Call:
        return Call("appealing", self.court.functions.appeal(run, seat, number))

    def vote(self, run: int, seat: str, number: int, uphold: bool) -> Call:
        return Call("voting on an appeal", self.court.functions.vote(run, seat, number, uphold))

    def settle(self, run: int, seat: str, number: int) -> Call:
        return Call("settling a case", self.court.functions.settle(run, seat, number))

    def impeach(self, run: int, ref: SubmissionRef, number: int, accepted: tuple[object, ...]) -> Call:
        """Slashes a validator whose accept receipt covers a sample that case `number` convicted."""
        return Call("impeaching a validator", self.court.functions.impeach(run, ref.as_tuple(), number, accepted))

    def claim(self, run: int, node: str) -> Call:
        return Call("claiming rewards", self.runs.functions.claim(run, node))
