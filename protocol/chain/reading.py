"""What is read of chain and contracts, as the dataclasses of types.py."""

from __future__ import annotations

from contextlib import suppress

from eth_typing import ChecksumAddress
from eth_utils import to_checksum_address

from protocol.chain.access import Access
from protocol.chain.contract import Contract
from protocol.chain.types import (
    Account,
    Ballot,
    Block,
    Case,
    Funds,
    Offer,
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
from protocol.errors import BadSignature, ConfigError, RpcUnavailable, TransactionReverted, WrongChain
from protocol.signing import Typed
from protocol.submission import SubmissionRef

_ERC_1271 = [
    {
        "type": "function", "name": "isValidSignature", "inputs": [{"type": "bytes32"}, {"type": "bytes"}],
        "outputs": [{"type": "bytes4"}],
    }
]  # fmt: skip


class ChainReads(Access):
    """Each method asks once, now or in a named block."""

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

    def runs_of_vouchers(self, vouchers: str) -> ChecksumAddress:
        """The Runs that a Vouchers contract pays for."""
        return self._call("reading Vouchers", self._at("Vouchers", vouchers).functions.runs())

    def located(self, run: int) -> bytes:
        """What the run's owner says of where it is, unread (protocol/shell/location.py); nothing where it says nothing."""
        return bytes(self._call("reading a location", self.locations.functions.located(run)))

    def token_balance(self, address: str) -> int:
        return self._call("reading a token balance", self.token.functions.balanceOf(address))

    def allowance(self, owner: str, spender: str) -> int:
        return self._call("reading an allowance", self.token.functions.allowance(owner, spender))

    def policy(self, run: int) -> Policy:
        """Raises ConfigError where there is no such run."""
        try:
            return Policy(*self._call("reading the policy", self.policies.functions.policy(run)))
        except TransactionReverted as error:
            if error.reason != "NoSuchRun":
                raise
            raise ConfigError(
                f"there is no run {run} at {self.runs.address}", hint="check --run and --contract"
            ) from error

    def run_count(self) -> int:
        return self._call("counting runs", self.policies.functions.count())

    def spec_digest(self, run: int) -> bytes:
        return bytes(self._call("reading the spec digest", self.policies.functions.specDigests(run)))

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
        """Whether nothing is accepted any more."""
        since = self.status(run).paused_from
        return bool(since) and self.block().time >= since

    def published(self, run: int, *, at: int | None = None) -> int:
        """Versions published so far, or up to block `at`; the head is the one before."""
        return self._call("reading the head", self.weights.functions.published(run), at)

    def publication(self, run: int, step: int) -> Publication:
        return Publication(step, *self._call("reading a publication", self.weights.functions.publications(run, step)))

    def beacon(self, run: int, step: int) -> bytes | None:
        """The beacon of a version, as it was drawn or as the next submission will draw it; None while its block is not there yet, or
        out of reach."""
        found = bytes(self._call("reading a beacon", self.weights.functions.beaconOf(run, step)))
        return found if any(found) else None

    def beacon_source(self, run: int, step: int) -> int:
        """Number of the block whose hash the beacon of a version is made of."""
        return int(self._call("reading a beacon", self.weights.functions.sourceOf(run, step)))

    def trainer(self, run: int) -> ChecksumAddress:
        """The key that publishes, and signs manifests, storage receipts and vouchers, now."""
        found: ChecksumAddress = self._call("reading the trainer", self.weights.functions.trainer(run))
        return found

    def replaced_trainers(self, run: int) -> tuple[ChecksumAddress, ...]:
        """Keys that another was appointed to replace, as the trainer's, the earliest first; the one of now is among them while its
        successor waits, or where it has come back."""
        return tuple(self._call("reading the trainer", self.weights.functions.replaced(run)))

    def next_trainer(self, run: int) -> tuple[ChecksumAddress, int] | None:
        """(the key that follows, from when in block time); None where none was appointed."""
        trainer, since = self._call("reading the trainer", self.weights.functions.successor(run))
        return (trainer, since) if since else None

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

    def validator(self, run: int, address: str, *, at: int | None = None) -> Validator:
        """A validator's seat, now or in block `at`."""
        return Validator(*self._call("reading a validator", self.bench.functions.validators(run, address), at))

    def seated_validators(self, run: int) -> int:
        """How many validators have a seat and no end of service in sight."""
        return self._call("counting validators", self.bench.functions.seated(run))

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
        """Whether it voted on an appealed case, or abstained, or is barred from it."""
        return self._call("reading a vote", self.court.functions.voted(run, seat, number, validator))

    def is_juror(self, run: int, seat: str, number: int, validator: str, *, at: int | None = None) -> bool:
        """Whether it may vote on a case, now or in block `at`."""
        return self._call("reading a jury", self.court.functions.isJuror(run, seat, number, validator), at)

    def ballots(self, run: int, seat: str, number: int) -> list[Ballot]:
        """What was voted on a case so far; after a second challenge only what was voted since."""
        found = self._call("reading votes", self.court.functions.ballots(run, seat, number))
        return [Ballot(*each) for each in found]

    def bench_at(self, run: int, time: int) -> int:
        """How many validators are the bench of what is submitted at that block time."""
        return self._call("counting a bench", self.bench.functions.benchAt(run, time))

    def bench_term(self, run: int, time: int) -> tuple[int, int]:
        """First and last block time in which what is submitted has the same bench as at `time`."""
        first, last = self._call("reading when a bench changed", self.bench.functions.termOf(run, time))
        return first, last

    def offer_of(self, run: int, seat: str) -> Offer:
        return Offer(*self._call("reading an offer", self.runs.functions.offers(run, seat)))

    def charge(self, run: int, ref: SubmissionRef, signer: str) -> int:
        """Number of the hard case on a submission in which this validator's verdict served: as second, or alone where none is
        needed. 0: none."""
        return self._call("reading a charge", self.court.functions.charges(ref.submission_id(run), signer))

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
