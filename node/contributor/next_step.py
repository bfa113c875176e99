"""What a contributor should do next, by the state of seat, case and money, and by nothing else.

A step is a command, or says from when on there is one; it is empty where all is well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from node.contributor import submission_log
from node.contributor.main import COMMANDS
from protocol.chain.types import Account, Policy, Role, Seat, State
from protocol.shell.money import SYMBOL, tokens
from protocol.shell.sentences import when

_COMMAND = re.compile(rf"\bnode (?:{'|'.join(COMMANDS)})\b(?: (?:[0-9.]+|[0-9a-f]{{12}})\b)?")
"""A command in a step, with the amount or submission that it is about."""


@dataclass(frozen=True)
class Situation:
    """Of a node. Times are block time, None where there is none."""

    node: str
    seat: Seat
    account: Account
    """The operator's."""
    policy: Policy
    now: int
    gas: int
    """Wei on the node's key."""
    ready: int
    """Units that can be claimed."""
    matures: int | None
    """When more can."""
    appeal_before: int | None
    """Until when the soonest of the cases can be appealed that nobody has."""
    owed: int
    """Submissions on chain whose files are not at the hub."""
    disputed: int
    """Submissions with a verdict that no case has decided."""
    is_running: bool
    is_over: bool
    """The run."""


def as_typed(step: str, home: str) -> str:
    """A step with every command as it is to be typed; `home` is what follows it, `--home …` or nothing."""
    return _COMMAND.sub(lambda found: f"{found[0]} {home}".rstrip(), step)


def of_node(s: Situation) -> str:
    if s.seat.role == Role.NONE:
        return "" if s.is_over else "node stake"
    if s.appeal_before is not None and s.seat.locked:
        return f"node submissions, and node appeal where a verdict is wrong, before {when(s.appeal_before, s.now)}"
    if not s.seat.serves(s.now):
        return _way_out(s)
    if s.owed and not s.is_running:
        return "node start: what is committed has to reach the hub"
    if s.is_over:
        return "node leave: the run is over, and the stake is locked until some time after that"
    if not s.gas:
        return f"send some ETH to {s.node}; it pays for every submission"
    if not s.is_running:
        return "node start"
    if s.ready:
        return "node claim"
    return "node submissions" if s.disputed else ""


def _way_out(s: Situation) -> str:
    """Of somebody whose seat has ended: everything that is still theirs, what can be had now first."""
    if s.ready:
        return "node claim"
    if s.account.leaving and s.now >= s.account.ready_at:
        return "node withdraw"
    released = s.seat.locked if unlocks_at(s.seat, s.policy) <= s.now and not s.seat.open_cases else 0
    if released + s.account.free and not s.account.leaving:  # unstaking more would restart the clock of what is leaving
        return f"node unstake {_typed(released + s.account.free)}"
    later = min(_later(s), default=None)
    if later is not None:
        return f"nothing before {when(later[0], s.now)}; then {later[1]}"
    if s.seat.open_cases:
        return "nothing before the open cases are settled"
    return "nothing; no stake and no rewards are left here"


def _later(s: Situation) -> Iterator[tuple[int, str]]:
    if s.account.leaving:
        yield s.account.ready_at, "node withdraw"
    if s.matures is not None:
        yield s.matures, "node claim"
    if s.seat.locked and not s.seat.open_cases:
        yield unlocks_at(s.seat, s.policy), f"node unstake {_typed(s.seat.locked)}"


def unlocks_at(seat: Seat, policy: Policy) -> int:
    """From when on nothing can be held against a seat that has ended."""
    return seat.until + policy.span


def _typed(wei: int) -> str:
    return tokens(wei).removesuffix(f" {SYMBOL}").replace(",", "")


@dataclass(frozen=True)
class SubmissionFate:
    """What decides what comes next for one submission."""

    short: str
    """The beginning of its id."""
    logged: str
    """Its state in the node's log."""
    on_chain: State | None
    """None: the chain was not asked, or did not answer."""
    appeal_before: int | None
    """Until when its case can be appealed; None where it cannot, or no more."""
    deadline: int | None
    """Of its case, while that is open."""
    matures: int
    """When it can be claimed, if nothing is held against it."""
    challenged_before: int
    """Until when somebody can challenge it."""
    is_swept: bool
    """A conviction took it with the rest of the seat's window."""
    is_running: bool


def of_submission(f: SubmissionFate, now: int) -> str:
    if f.logged == submission_log.LOST:
        return "nothing; it never reached chain or hub in time and earns nothing"
    if f.is_swept:
        return "nothing; the seat's conviction took it with everything else of its window"
    match f.on_chain:
        case State.CHALLENGED if f.appeal_before is not None:
            return f"node appeal {f.short}, if the verdict is wrong, before {when(f.appeal_before, now)}; it earns nothing otherwise"
        case State.CHALLENGED:
            return "nothing; nobody can appeal any more, and the verdict counts once somebody settles the case"
        case State.APPEALED if f.deadline is not None and now < f.deadline:
            return f"nothing; the other validators vote until {when(f.deadline, now)}"
        case State.APPEALED:
            return "nothing; the time to vote is over, and the votes are counted once somebody settles the case"
        case State.REVOKED:
            return "nothing; it is revoked for good and earns nothing"
        case State.UNDECIDED if f.deadline is not None and now < f.deadline:
            return f"nothing before {when(f.deadline, now)}: until then another validator may challenge it again, else it is paid"
    if f.logged in (submission_log.MADE, submission_log.COMMITTED):
        sends = "the running node brings it to the hub" if f.is_running else ""
        return f"nothing; {sends}" if sends else "node start: the file has to reach the hub in time"
    if f.logged in (submission_log.SOFT, submission_log.HARD) and f.on_chain != State.CLEARED:
        if now < f.challenged_before:
            return f"nothing yet: no case on the chain says so. If one comes before {when(f.challenged_before, now)}, node appeal {f.short}, where the verdict is wrong"
        return "nothing; nobody brought the verdict to the chain in time" + _pay(f, now)
    if now >= f.matures:
        return "node claim, unless it is claimed already"
    return ("nothing; a validator will judge it" if f.logged == submission_log.STORED else "nothing") + _pay(f, now)


def _pay(f: SubmissionFate, now: int) -> str:
    if now < f.matures:
        return f"; node claim from {when(f.matures, now)} on"
    return "; node claim pays it, unless it is claimed already"
