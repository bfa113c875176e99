"""The cases against this node's seat, as its contributor wants them told: what each is about, what it has cost, and what comes of it when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from node.contributor.submission_log import SubmissionLog
from protocol.chain.cases import settlements
from protocol.chain.types import Case, Policy, Seat, Settlement, Stage
from protocol.constants import NOBODY
from protocol.errors import RpcUnavailable
from protocol.shell.money import tokens
from protocol.shell.sentences import when

if TYPE_CHECKING:
    from protocol.chain import Chain

_DEEP = 300  # blocks, after which an event is kept here and not looked for again


@dataclass(frozen=True)
class CaseStory:
    """`ends`: what the chain's events say of a closed case; empty where no endpoint has them any more."""

    number: int
    case: Case
    ends: tuple[Settlement, ...] = ()

    @property
    def kind(self) -> str:
        return "hard" if self.case.hard else "soft"

    @property
    def units(self) -> int:
        """Revoked."""
        return sum(end.units for end in self.ends)

    @property
    def slashed(self) -> int:
        return sum(end.slashed for end in self.ends)

    @property
    def transaction(self) -> str | None:
        """Which closed it."""
        return f"0x{self.ends[-1].transaction.hex()}" if self.ends else None

    def can_be_appealed(self, now: int) -> bool:
        return self.case.stage == Stage.OPEN and now < self.case.deadline

    def table(self, policy: Policy, now: int) -> dict[str, Any]:
        """As JSON has it; wei as strings."""
        c = self.case
        cost = {"units_revoked": self.units, "slashed": str(self.slashed)} if self.ends else {}
        return {
            "number": self.number, "kind": self.kind, "stage": c.stage.name.lower(), "challenger": c.challenger,
            "deadline": None if c.stage.closed else c.deadline, "transaction": self.transaction, **cost,
            "told": self.sentence(policy, now),
        }  # fmt: skip

    def sentence(self, policy: Policy, now: int) -> str:
        return f"{self.kind}, by {self.case.challenger}: {self.fate(policy, now)}"

    def fate(self, policy: Policy, now: int) -> str:
        """What has become of it, or will."""
        c, is_late = self.case, now >= self.case.deadline
        match c.stage:
            case Stage.OPEN if is_late:
                return "nobody appealed in time; it is upheld as soon as anybody settles it"
            case Stage.OPEN:
                return f"upheld unless it is appealed before {when(c.deadline, now)}"
            case Stage.APPEALED if is_late:
                return "appealed; the time to vote is over, and the votes are counted as soon as anybody settles it"
            case Stage.APPEALED:
                return f"appealed; the other validators vote until {when(c.deadline, now)}"
            case Stage.UNDECIDED if is_late:
                return (
                    "the vote found no majority, and nobody challenged again: the work is paid once anybody settles it"
                )
            case Stage.UNDECIDED:
                return f"the vote found no majority; the work is paid unless another validator challenges it before {when(c.deadline, now)}"
            case Stage.CLEARED:
                return "cleared by the vote; the work is paid"
            case Stage.RETURNED:
                return "ended without a verdict; the work is paid, unless a later case says otherwise"
        how = "by the vote" if self._was_voted else "without an appeal"
        what = "convicted, and the seat banned" if c.hard else "upheld" if c.stage == Stage.UPHELD else "upheld in part"
        return f"{what}, {how}{self._cost(policy)}"

    @property
    def _was_voted(self) -> bool:
        c = self.case
        return c.jurors > 0 or c.keyed or c.appellant != NOBODY

    def _cost(self, policy: Policy) -> str:
        if not self.ends:
            return "; what it cost is in no event that the endpoint still has"
        revoked = f"{self.units} units ({tokens(self.units * policy.reward)}) revoked"
        return f"; {revoked}, {tokens(self.slashed)} of stake slashed, in transaction {self.transaction}"


def of_seat(chain: Chain, run: int, name: str, seat: Seat, log: SubmissionLog, most: int = 5) -> list[CaseStory]:
    """The newest `most` cases against a seat, and every older one that is open; newest first."""
    left, found = seat.open_cases, list[CaseStory]()
    for number in range(seat.cases, 0, -1):
        if len(found) >= most and not left:
            break
        case = chain.case(run, name, number)
        left -= not case.stage.closed
        if len(found) < most or not case.stage.closed:
            found.append(_story(chain, run, name, number, case, log))
    return found


def of_case(chain: Chain, run: int, name: str, number: int, log: SubmissionLog) -> CaseStory:
    return _story(chain, run, name, number, chain.case(run, name, number), log)


def _story(chain: Chain, run: int, name: str, number: int, case: Case, log: SubmissionLog) -> CaseStory:
    if case.stage not in (Stage.UPHELD, Stage.SPLIT):
        return CaseStory(number, case)  # nothing was taken
    kept = log.settlements(name, number)
    if kept is None:
        kept = _look_for(chain, run, name, number, case)
        if kept and chain.block_number() - kept[-1].block >= _DEEP:
            log.keep_settlements(name, number, kept)
    return CaseStory(number, case, tuple(kept))


def _look_for(chain: Chain, run: int, name: str, number: int, case: Case) -> list[Settlement]:
    try:
        return settlements(chain, run, name, number, case)
    except RpcUnavailable:  # it answers, but keeps no events of then
        return []
