"""What docs/contracts.md and the interfaces promise, as a plain state machine to hold the deployed contracts against.

Here units stand with the submission they were claimed for: with its seat, in a case, revoked or paid; their age follows from the
time of the submission. What the contracts keep as counters, rings and packed words is derived, so that the two agree only if
the contracts keep their books right.

Covers: stake, seats (join, renew, rotate, hand over, leave, ban, release), budgets, publication, work, rewards, cases, strikes,
the bench, impeachment. Does not cover: gates, pay of validators, signatures (the caller says who signed).

A method is one transaction: `by` sends it, `at` is its block time. It raises Refused with the name of the contract's error,
and then whoever called it throws the model away and goes on with the copy from before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from protocol.chain.types import Policy, Role, Stage, State
from protocol.submission import SubmissionRef

EPOCHS_TO_MATURE = 6
WINNER_BPS = 5_000
ALL_BPS = 10_000


class Refused(Exception):
    """The contracts do not allow this; the text is the name of their error."""


def require(allowed: bool, error: str) -> None:
    if not allowed:
        raise Refused(error)


# ---- what there is -------------------------------------------------------------------------------------------------


@dataclass
class Account:
    """Stake of one address."""

    active: int = 0
    locked: int = 0
    leaving: int = 0
    ready_at: int = 0


class Place(Enum):
    """Where the units of a submission are."""

    SEAT = auto()
    CASE = auto()
    REVOKED = auto()
    PAID = auto()


@dataclass
class Submission:
    ref: SubmissionRef
    time: int
    units: int
    place: Place = Place.SEAT
    case: int = 0
    """That last took the units; 0: none did."""
    safe: bool = False
    """Had matured, unpaid, when the first of the open hard cases was opened."""


@dataclass
class Case:
    challenger: str
    earliest: int
    deadline: int
    submissions: int
    stage: Stage = Stage.OPEN
    hard: bool = False
    samples: int = 0
    """Of a hard case: those found false; 0: none by itself."""
    co_signer: str | None = None
    appellant: str | None = None
    votes: dict[str, bool] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        return self.stage in (Stage.OPEN, Stage.APPEALED)

    @property
    def parties(self) -> list[str]:
        """Whose bonds are at risk."""
        return [party for party in (self.challenger, self.co_signer, self.appellant) if party is not None]


@dataclass
class Seat:
    node: str
    """Its name: the first key it had."""
    rotated_to: str | None = None
    operator: str = ""
    offered: str | None = None
    """To whom its operator would hand it over."""
    role: Role = Role.NONE
    hardware: int = 0
    since: int = 0
    until: int = 0
    locked: int = 0
    step: int = 0
    next: int = 0
    strikes: int = 0
    strikes_since: int = 0
    swept: bool = False
    submissions: list[Submission] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)

    @property
    def key(self) -> str:
        return self.rotated_to or self.node

    def serves(self, now: int) -> bool:
        return self.role == Role.ACTIVE or (self.role == Role.BANNED and now < self.until)

    @property
    def open_cases(self) -> int:
        return sum(case.open for case in self.cases)

    @property
    def open_hard(self) -> int:
        return sum(case.open and case.hard for case in self.cases)

    def in_case(self, number: int) -> list[Submission]:
        return [
            submission
            for submission in self.submissions
            if submission.place == Place.CASE and submission.case == number
        ]

    @property
    def held(self) -> int:
        return sum(submission.units for submission in self.submissions if submission.place == Place.CASE)


@dataclass
class Validator:
    approved: bool = False
    since: int = 0
    until: int = 0
    locked: int = 0

    @property
    def permanent(self) -> bool:
        return self.since != 0 and self.until == 0

    def serves(self, now: int) -> bool:
        return self.since != 0 and (self.until == 0 or now < self.until)


@dataclass
class Publication:
    beacon: bytes
    block: int
    superseded: int = 0


@dataclass
class Run:
    policy: Policy
    free: int = 0
    reserved: int = 0
    leaving: int = 0
    defunded_from: int = 0
    paused_from: int = 0
    publications: list[Publication] = field(default_factory=list)
    seats: dict[str, Seat] = field(default_factory=dict)
    validators: dict[str, Validator] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Keys rotated in, and the seats they are of."""
    charges: dict[tuple[SubmissionRef, str], int] = field(default_factory=dict)
    """(submission, whose signature served to accuse its author) and the case: a signature serves once."""
    impeached: set[tuple[SubmissionRef, str]] = field(default_factory=set)

    def seat(self, node: str) -> Seat:
        """The seat that a key has or had; an empty one where it has none."""
        name = self.names.get(node, node)
        return self.seats.setdefault(name, Seat(name))

    def validator(self, address: str) -> Validator:
        return self.validators.setdefault(address, Validator())

    @property
    def seated(self) -> int:
        return sum(validator.permanent for validator in self.validators.values())

    def bonds_at_risk(self, validator: str) -> int:
        """Open cases to which a validator is a party."""
        return sum(case.parties.count(validator) for seat in self.seats.values() for case in seat.cases if case.open)

    def epoch(self, time: int) -> int:
        return time // -(-self.policy.window // 5)

    def matured(self, submission: Submission, now: int) -> bool:
        return self.epoch(now) >= self.epoch(submission.time) + EPOCHS_TO_MATURE

    def in_window(self, submission: Submission, now: int) -> bool:
        return now < submission.time + self.policy.window

    def most_units(self, seat: Seat) -> int:
        """Units that a seat may have at risk of a verdict."""
        return min(2**32 - 1, seat.locked * self.policy.leverage // self.policy.reward)

    def claimable(self, seat: Seat, now: int) -> tuple[int, int]:
        """(units that may be claimed now, units that still wait)"""
        ready = sum(submission.units for submission in self.payable(seat, now))
        mine = sum(submission.units for submission in seat.submissions if submission.place in (Place.SEAT, Place.CASE))
        return ready, mine - ready

    def payable(self, seat: Seat, now: int) -> list[Submission]:
        matured = [
            submission
            for submission in seat.submissions
            if submission.place == Place.SEAT and self.matured(submission, now)
        ]
        return [submission for submission in matured if submission.safe] if seat.open_hard else matured


def state_of(seat: Seat, submission: Submission) -> State:
    """A submission as the last case that took its units left it."""
    if not submission.case:
        return State.SUBMITTED
    stage = seat.cases[submission.case - 1].stage
    states = {Stage.OPEN: State.CHALLENGED, Stage.APPEALED: State.APPEALED, Stage.CLEARED: State.CLEARED}
    return states.get(stage, State.REVOKED)


# ---- what may happen -----------------------------------------------------------------------------------------------


@dataclass
class Model:
    bonds: str
    """Address of the contract that holds all stake."""
    treasury: str
    """Address of the contract that holds all budgets."""
    sink: str
    delay: int
    tokens: dict[str, int] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    runs: dict[int, Run] = field(default_factory=dict)

    def account(self, address: str) -> Account:
        return self.accounts.setdefault(address, Account())

    def _pay(self, sender: str, receiver: str, amount: int) -> None:
        require(self.tokens.get(sender, 0) >= amount, "ERC20InsufficientBalance")
        self.tokens[sender] = self.tokens.get(sender, 0) - amount
        self.tokens[receiver] = self.tokens.get(receiver, 0) + amount

    # ---- stake -----------------------------------------------------------------------------------------------------

    def deposit(self, by: str, account: str, amount: int) -> None:
        require(amount > 0, "ZeroAmount")
        self._pay(by, self.bonds, amount)
        self.account(account).active += amount

    def unbond(self, by: str, at: int, amount: int) -> None:
        require(amount > 0, "ZeroAmount")
        account = self.account(by)
        require(account.active - account.locked >= amount, "InsufficientStake")
        account.active -= amount
        account.leaving += amount
        account.ready_at = at + self.delay

    def rebond(self, by: str, amount: int) -> None:
        require(amount > 0, "ZeroAmount")
        account = self.account(by)
        require(account.leaving >= amount, "InsufficientStake")
        account.leaving -= amount
        account.active += amount

    def withdraw(self, by: str, at: int) -> None:
        account = self.account(by)
        require(account.leaving > 0, "ZeroAmount")
        require(at >= account.ready_at, "TooEarly")
        self._pay(self.bonds, by, account.leaving)
        account.leaving = 0

    def _lock(self, address: str, amount: int) -> None:
        account = self.account(address)
        require(account.active - account.locked >= amount, "InsufficientStake")
        account.locked += amount

    def _slash(self, address: str, amount: int, finder: str, finder_bps: int) -> None:
        """Moves locked stake to the finder and the sink, as stake; no token moves."""
        account = self.account(address)
        account.active -= amount
        account.locked -= amount
        share = amount * finder_bps // ALL_BPS
        self.account(finder).active += share
        self.account(self.sink).active += amount - share

    # ---- budgets and weights ---------------------------------------------------------------------------------------

    def fund(self, by: str, run: int, amount: int) -> None:
        require(run in self.runs, "NoSuchRun")
        require(amount > 0, "ZeroAmount")
        self._pay(by, self.treasury, amount)
        self.runs[run].free += amount

    def defund(self, by: str, at: int, run: int, amount: int) -> None:
        r = self.runs[run]
        require(by == r.policy.owner, "Denied")
        r.leaving = amount
        r.defunded_from = at + r.policy.notice if amount else 0

    def collect(self, by: str, at: int, run: int) -> None:
        """What the budget no longer holds stays announced."""
        r = self.runs[run]
        require(by == r.policy.owner, "Denied")
        require(0 < r.defunded_from <= at, "TooEarly")
        amount = min(r.free, r.leaving)
        self._pay(self.treasury, by, amount)
        r.free -= amount
        r.leaving -= amount
        if r.leaving == 0:
            r.defunded_from = 0

    def pause(self, by: str, at: int, run: int, on: bool) -> None:
        r = self.runs[run]
        require(by == r.policy.owner, "Denied")
        require(not on or r.paused_from == 0, "WrongState")
        r.paused_from = at + r.policy.notice if on else 0

    def publish(self, by: str, at: int, block: int, run: int, step: int, beacon: bytes) -> None:
        """The beacon comes from the chain: nobody can know it before."""
        r = self.runs[run]
        require(by == r.policy.trainer, "Denied")
        require(step == len(r.publications), "WrongStep")
        require(r.seated >= r.policy.jury, "TooFewValidators")
        if r.publications:
            r.publications[-1].superseded = at
        r.publications.append(Publication(beacon, block))

    # ---- seats -----------------------------------------------------------------------------------------------------

    def join(
        self, by: str, at: int, block: int, run: int, node: str, hardware: int, deadline: int, consents: bool
    ) -> None:
        """`consents`: whether the node signed exactly this."""
        require(run in self.runs, "NoSuchRun")
        r, seat = self.runs[run], self.runs[run].seat(node)
        require(seat.role != Role.BANNED, "WrongState")
        require(seat.role == Role.NONE or seat.operator == by, "Denied")
        require(seat.rotated_to in (None, node), "Denied")
        require(at <= deadline, "TooLate")
        require(consents, "Denied")
        missing = max(0, r.policy.node_stake - seat.locked)
        self._lock(by, missing)
        seat.operator, seat.role, seat.hardware, seat.since, seat.until = by, Role.ACTIVE, hardware, block, 0
        seat.locked += missing

    def rotate(
        self, by: str, at: int, block: int, run: int, node: str, new: str, deadline: int, consents: bool
    ) -> None:
        r, seat = self.runs[run], self.runs[run].seat(node)
        require(by == seat.operator, "Denied")
        require(new not in r.names and r.seat(new).role == Role.NONE, "WrongState")
        require(at <= deadline, "TooLate")
        require(consents, "Denied")
        del r.seats[new]
        r.names[new] = seat.node
        seat.rotated_to, seat.since = new, block

    def offer(self, by: str, run: int, node: str, to: str) -> None:
        seat = self.runs[run].seat(node)
        require(by == seat.operator, "Denied")
        seat.offered = to

    def accept(self, by: str, block: int, run: int, node: str) -> None:
        """The stake behind the seat moves along, and so do its rewards and what can still be held against it."""
        seat = self.runs[run].seat(node)
        require(by == seat.offered, "Denied")
        for address, amount in ((seat.operator, -seat.locked), (by, seat.locked)):
            self.account(address).active += amount
            self.account(address).locked += amount
        seat.operator, seat.offered, seat.since = by, None, block

    def leave(self, by: str, at: int, run: int, node: str) -> None:
        r, seat = self.runs[run], self.runs[run].seat(node)
        require(seat.serves(at), "WrongState")
        require(by == seat.operator or seat.locked < r.policy.penalty + r.policy.bond, "Denied")
        seat.role = Role.LEFT if seat.role == Role.ACTIVE else seat.role
        seat.until = at

    def ban(self, by: str, at: int, run: int, node: str) -> None:
        r, seat = self.runs[run], self.runs[run].seat(node)
        require(by == r.policy.owner, "Denied")
        require(seat.role in (Role.ACTIVE, Role.LEFT), "WrongState")
        if seat.role == Role.ACTIVE:
            seat.until = at + r.policy.notice
        seat.role = Role.BANNED

    def release(self, by: str, at: int, run: int, node: str) -> None:
        r, seat = self.runs[run], self.runs[run].seat(node)
        require(seat.until != 0 and seat.locked > 0, "WrongState")
        require(seat.open_cases == 0, "CaseOpen")
        require(at >= seat.until + r.policy.span, "TooEarly")
        self.account(seat.operator).locked -= seat.locked
        seat.locked = 0

    # ---- work and rewards ------------------------------------------------------------------------------------------

    def submit(
        self, by: str, at: int, run: int, step: int, sequence: int, beacon: bytes, items: list[tuple[bytes, int]]
    ) -> None:
        """`items`: (root, units) of each file, their sequence numbers counted up from `sequence`."""
        r = self.runs[run]
        seat, units = r.seat(by), sum(units for _, units in items)
        self._take_turn(r, seat, by, at, step, sequence, beacon, len(items), units)
        require(all(0 < units <= r.policy.max_units for _, units in items), "InvalidUnits")
        for i, (root, units) in enumerate(items):
            seat.submissions.append(Submission(SubmissionRef(by, step, sequence + i, root), at, units))  # type: ignore[arg-type]

    def skip(self, by: str, at: int, run: int, step: int, sequence: int, beacon: bytes) -> None:
        r, seat = self.runs[run], self.runs[run].seat(by)
        self._take_turn(r, seat, by, at, step, sequence, beacon, 1, 0)
        self._strike(r, seat, at, 1)

    def _take_turn(
        self, r: Run, seat: Seat, by: str, at: int, step: int, sequence: int, beacon: bytes, many: int, units: int
    ) -> None:
        """Uses up sequence numbers, and reserves what the units earn."""
        require(step < len(r.publications), "WrongStep")
        head = r.publications[step]
        require(head.superseded == 0 or at < head.superseded + r.policy.grace, "WrongStep")
        require(beacon == head.beacon, "WrongBeacon")
        require(seat.serves(at) and by == seat.key, "Denied")
        require(seat.since < head.block, "SeatTooYoung")
        require(seat.open_hard == 0, "CaseOpen")
        suspended = seat.strikes >= r.policy.strikes and at < seat.strikes_since + r.policy.window
        require(not suspended, "Suspended")
        require(not 0 < r.paused_from <= at, "RunPaused")
        gone = r.leaving if 0 < r.defunded_from <= at else 0
        require(max(0, r.free - gone) >= units * r.policy.reward, "Unfunded")
        at_risk = sum(
            submission.units
            for submission in seat.submissions
            if submission.place == Place.CASE or (submission.place == Place.SEAT and not r.matured(submission, at))
        )
        require(at_risk + units <= r.most_units(seat), "Overexposed")
        require(step >= seat.step or seat.next == 0, "WrongStep")
        expected = seat.next if step == seat.step else 0
        require(sequence == expected and many > 0, "WrongSequence")
        require(sequence + many <= r.policy.max_per_step, "WrongSequence")
        seat.step, seat.next = step, sequence + many
        r.free -= units * r.policy.reward
        r.reserved += units * r.policy.reward

    def _strike(self, r: Run, seat: Seat, at: int, many: int) -> int:
        """Counts strikes of the present window; returns how many found room before the seat is suspended."""
        if at >= seat.strikes_since + r.policy.window:
            seat.strikes, seat.strikes_since = 0, at
        counted = min(many, r.policy.strikes - seat.strikes)
        seat.strikes += counted
        return counted

    def claim(self, by: str, at: int, run: int, node: str) -> None:
        r, seat = self.runs[run], self.runs[run].seat(node)
        require(seat.role != Role.NONE, "WrongState")
        paid = r.payable(seat, at)
        for submission in paid:
            submission.place = Place.PAID
        amount = sum(submission.units for submission in paid) * r.policy.reward
        r.reserved -= amount
        self._pay(self.treasury, seat.operator, amount)

    # ---- the bench -------------------------------------------------------------------------------------------------

    def approve(self, by: str, at: int, run: int, validator: str, on: bool) -> None:
        r, v = self.runs[run], self.runs[run].validator(validator)
        require(by == r.policy.owner, "Denied")
        v.approved = on
        if not on and v.permanent:
            v.until = at + r.policy.span

    def enlist(self, by: str, at: int, run: int, on: bool) -> None:
        r, v = self.runs[run], self.runs[run].validator(by)
        if on:
            require(v.approved, "Denied")
            require(not v.serves(at), "WrongState")
            missing = max(0, r.policy.validator_stake - v.locked)
            self._lock(by, missing)
            v.since, v.until = at, 0
            v.locked += missing
        else:
            require(v.permanent, "WrongState")
            v.until = at + r.policy.span

    def reinforce(self, by: str, at: int, run: int, amount: int) -> None:
        v = self.runs[run].validator(by)
        require(amount > 0, "ZeroAmount")
        require(v.serves(at), "WrongState")
        self._lock(by, amount)
        v.locked += amount

    def unseat(self, by: str, at: int, run: int, validator: str) -> None:
        r, v = self.runs[run], self.runs[run].validator(validator)
        require(v.permanent and v.locked < r.policy.bond, "WrongState")
        v.until = at + r.policy.span

    def release_validator(self, by: str, at: int, run: int, validator: str) -> None:
        r, v = self.runs[run], self.runs[run].validator(validator)
        require(v.until != 0 and v.locked > 0 and r.bonds_at_risk(validator) == 0, "WrongState")
        require(at >= v.until + 2 * r.policy.span, "TooEarly")
        self.account(validator).locked -= v.locked
        v.locked = 0

    def _require_bench(self, r: Run, who: str, earliest: int, at: int) -> None:
        """Only those judge a submission who were seated before it was submitted, and still are."""
        v = r.validator(who)
        require(v.serves(at) and v.since < earliest, "NotOnBench")

    def _require_party(self, r: Run, who: str, earliest: int, at: int) -> None:
        """A party is of the bench, and its lock answers for one bond in each of its open cases."""
        self._require_bench(r, who, earliest, at)
        if r.policy.appeal:
            wanted = (r.bonds_at_risk(who) + 1) * r.policy.bond
            require(r.validator(who).locked >= wanted, "InsufficientStake")

    # ---- cases -----------------------------------------------------------------------------------------------------

    def challenge(self, by: str, at: int, run: int, refs: list[SubmissionRef]) -> None:
        r = self.runs[run]
        require(len(refs) > 0, "ZeroAmount")
        seat = r.seat(refs[0].node)
        require(not seat.swept, "WrongState")
        require(all(r.seat(ref.node) is seat for ref in refs), "Denied")
        taken = [
            submission
            for submission in seat.submissions
            if submission.ref in refs and submission.case == 0 and r.in_window(submission, at)
        ]
        require(len(taken) > 0, "WrongState")
        earliest = min(submission.time for submission in taken)
        self._require_party(r, by, earliest, at)
        self._open(r, seat, at, Case(by, earliest, at + r.policy.appeal, len(taken)), taken)

    def accuse(
        self, by: str, at: int, run: int, ref: SubmissionRef, samples: int, second: tuple[str, int] | None
    ) -> None:
        """`second`: who signed another hard verdict on this submission, and the samples it names; None: it is forged."""
        r = self.runs[run]
        seat = r.seat(ref.node)
        submission = next((submission for submission in seat.submissions if submission.ref == ref), None)
        if submission is None:
            raise Refused("WrongState")
        before = seat.cases[submission.case - 1] if submission.case else None
        soft = before if before is not None and before.open and not before.hard else None
        require(r.in_window(submission, at) or (soft is not None and at < soft.deadline), "TooLate")
        require(not seat.swept, "WrongState")
        co_signer = None
        if r.policy.co_signers:
            if second is None or second[0] == by:
                raise Refused("Denied")
            co_signer, both = second[0], samples & second[1]
            is_common = both != 0 or samples == second[1] == 0
            samples = both
        else:
            is_common = True
        if seat.open_hard == 0:
            for other in seat.submissions:
                other.safe = other.place == Place.SEAT and r.matured(other, at)
        taken = [] if submission.place == Place.REVOKED else [submission]
        if soft is not None:
            soft.submissions -= 1
            if soft.submissions == 0:  # nothing is left to dispute: it ends, and frees the bonds in it
                submission.place = Place.SEAT
                self._close(r, seat, submission.case, Stage.UNDECIDED, at)
        if co_signer is not None:
            self._require_party(r, co_signer, submission.time, at)
        require(is_common, "NoCommonSample")
        require((ref, co_signer or by) not in r.charges, "Denied")
        self._require_party(r, by, submission.time, at)
        r.charges[ref, co_signer or by] = len(seat.cases) + 1
        case = Case(by, submission.time, at + r.policy.appeal, 1, hard=True, samples=samples, co_signer=co_signer)
        self._open(r, seat, at, case, taken)

    def appeal(self, by: str, at: int, run: int, node: str, number: int) -> None:
        r, seat, case = self._case(run, node, number)
        require(case.stage == Stage.OPEN, "WrongState")
        require(at < case.deadline, "TooLate")
        if by not in (seat.operator, seat.key):
            require(by not in case.parties, "Denied")
            self._require_party(r, by, case.earliest, at)
            case.appellant = by
        case.stage, case.deadline = Stage.APPEALED, at + r.policy.vote

    def vote(self, by: str, at: int, run: int, node: str, number: int, uphold: bool) -> None:
        r, seat, case = self._case(run, node, number)
        require(case.stage == Stage.APPEALED, "WrongState")
        require(at < case.deadline, "TooLate")
        self._require_bench(r, by, case.earliest, at)
        require(by not in case.parties and by not in case.votes, "Denied")
        case.votes[by] = uphold
        if list(case.votes.values()).count(uphold) >= r.policy.quorum:
            self._close(r, seat, number, Stage.UPHELD if uphold else Stage.CLEARED, at)

    def settle(self, by: str, at: int, run: int, node: str, number: int) -> None:
        """Silence of the accused convicts; silence of the jury costs nobody stake."""
        r, seat, case = self._case(run, node, number)
        require(case.open, "WrongState")
        require(at >= case.deadline, "TooEarly")
        self._close(r, seat, number, Stage.UPHELD if case.stage == Stage.OPEN else Stage.UNDECIDED, at)

    def impeach(
        self, by: str, run: int, ref: SubmissionRef, number: int, validator: str, samples: int, accepted: bool
    ) -> None:
        """`samples`: those that the validator's receipt vouches for; `accepted`: it has signed exactly that."""
        r, _, case = self._case(run, ref.node, number)
        require(case.stage == Stage.UPHELD and (ref, validator) not in r.impeached, "WrongState")
        require(r.charges.get((ref, case.co_signer or case.challenger)) == number, "WrongState")
        require(case.samples & samples != 0, "NoCommonSample")
        require(accepted, "Denied")
        r.impeached.add((ref, validator))
        self._lose_bond(r, validator, by, r.policy.finder_bps)

    def _case(self, run: int, node: str, number: int) -> tuple[Run, Seat, Case]:
        seat = self.runs[run].seat(node)
        require(0 < number <= len(seat.cases), "WrongState")
        return self.runs[run], seat, seat.cases[number - 1]

    def _open(self, r: Run, seat: Seat, at: int, case: Case, taken: list[Submission]) -> None:
        seat.cases.append(case)
        for submission in taken:
            submission.place, submission.case = Place.CASE, len(seat.cases)
        if r.policy.appeal == 0:
            self._close(r, seat, len(seat.cases), Stage.UPHELD, at)

    def _close(self, r: Run, seat: Seat, number: int, verdict: Stage, at: int) -> None:
        case = seat.cases[number - 1]
        appealed = case.stage == Stage.APPEALED
        case.stage = verdict
        if verdict == Stage.CLEARED:
            for loser in (case.challenger, case.co_signer):
                if loser is not None:
                    self._lose_bond(r, loser, case.appellant or seat.operator, WINNER_BPS)
        elif verdict == Stage.UPHELD and appealed:
            if case.appellant is not None:
                self._lose_bond(r, case.appellant, case.challenger, r.policy.finder_bps)
            else:
                spared = 0 if seat.swept else r.policy.penalty
                self._take(seat, r.policy.bond, spared, case.challenger, r.policy.finder_bps)
        if seat.swept:
            return  # a conviction has taken everything else
        if verdict == Stage.UPHELD and case.hard:
            self._convict(r, seat, case, at)
        elif verdict == Stage.CLEARED:
            for submission in seat.in_case(number):
                submission.place = Place.SEAT
        else:
            self._revoke(r, seat.in_case(number))
            if verdict == Stage.UPHELD:
                fees = self._strike(r, seat, at, case.submissions) * r.policy.fee
                self._take(seat, fees, r.policy.penalty, case.challenger, ALL_BPS)

    def _convict(self, r: Run, seat: Seat, case: Case, at: int) -> None:
        """Takes all that had not matured before the seat was accused, its service, and the penalty."""
        at_seat = [
            submission for submission in seat.submissions if submission.place == Place.SEAT and not submission.safe
        ]
        in_cases = [submission for submission in seat.submissions if submission.place == Place.CASE]
        self._revoke(r, at_seat + in_cases)
        if seat.serves(at):
            seat.until = at
        seat.role, seat.swept = Role.BANNED, True
        self._take(seat, r.policy.penalty, 0, case.challenger, r.policy.finder_bps)

    def _revoke(self, r: Run, submissions: list[Submission]) -> None:
        for submission in submissions:
            submission.place = Place.REVOKED
            r.reserved -= submission.units * r.policy.reward
            r.free += submission.units * r.policy.reward

    def _take(self, seat: Seat, amount: int, spared: int, finder: str, finder_bps: int) -> None:
        """Slashes what a seat has locked beyond what must be spared."""
        taken = min(amount, max(0, seat.locked - spared))
        self._slash(seat.operator, taken, finder, finder_bps)
        seat.locked -= taken

    def _lose_bond(self, r: Run, validator: str, finder: str, finder_bps: int) -> None:
        v = r.validator(validator)
        taken = min(r.policy.bond, v.locked)
        self._slash(validator, taken, finder, finder_bps)
        v.locked -= taken
