"""A run's events as sentences for people: one for each kind that the contracts emit (chain/events.py).

They say what happened, not what it means for the reader: docs/contracts.md does. What a stranger may have written (the reason of an
abstention, where a run is) is made fit for a terminal first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from protocol.chain import events as e
from protocol.chain.types import Role, Stage
from protocol.shell.cli import plain
from protocol.shell.money import duration, tokens


def sentence(data: e.Emitted) -> str:
    """What one event says. Raises KeyError for what is none of KINDS."""
    return _SENTENCES[type(data)](data)


def at(seconds: int) -> str:
    """A block time as people read it, in UTC: `2026-11-26 12:00:00`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(min(seconds, _LAST)))


def when(seconds: int, now: int) -> str:
    """The same with how far off it is: `2026-11-26 12:00:00 UTC (in 3 h)`."""
    return f"{at(seconds)} UTC" + (f" (in {duration(seconds - now)})" if seconds > now else "")


_LAST = 253_402_300_799  # the end of the year 9999: contracts count further than calendars


def _bits(bitmap: int) -> str:
    """The submissions of a case that a bitmap names: `0, 1, 4`; `none`."""
    return ", ".join(str(place) for place in range(bitmap.bit_length()) if bitmap >> place & 1) or "none"


def _funded(event: e.Funded) -> str:
    if event.amount < 0:
        return f"the owner took {tokens(-event.amount)} out of the budget"
    return f"{tokens(event.amount)} were added to the budget"


def _defunding(event: e.Defunding) -> str:
    if not event.amount:
        return "the owner takes nothing out of the budget after all"
    return f"the owner may take {tokens(event.amount)} out of the budget from {at(event.from_)} on"


def _paused(event: e.Paused) -> str:
    return f"the run takes no new work from {at(event.from_)} on" if event.paused else "the run takes new work again"


def _left(event: e.Left) -> str:
    if event.role != Role.BANNED:
        return f"the seat {event.seat} left"
    return f"the seat {event.seat} is banned from {at(event.until)} on"


def _approved(event: e.ValidatorApproved) -> str:
    return f"the owner {'approved' if event.approved else 'no longer approves'} validator {event.validator}"


def _seated(event: e.ValidatorSeated) -> str:
    if event.seated:
        return f"validator {event.validator} took a seat"
    return f"validator {event.validator} serves until {at(event.until)}"


def _challenged(event: e.Challenged) -> str:
    brought = "accused" if event.hard else "challenged"
    return (
        f"{event.challenger} {brought} submission {event.step}.{event.sequence} of {event.node}:"
        f" case {event.number} of seat {event.seat}"
    )


def _voted(event: e.Voted) -> str:
    return (
        f"{event.validator} voted on case {event.number} of seat {event.seat}:"
        f" false {_bits(event.found_false)}; hard {_bits(event.found_hard)}"
    )


_ENDS = {
    Stage.UPHELD: "was upheld", Stage.UNDECIDED: "found no majority and may be challenged again", Stage.CLEARED: "was cleared",
    Stage.SPLIT: "was split", Stage.RETURNED: "found no majority, and what it listed returned",
}  # fmt: skip


def _settled(event: e.Settled) -> str:
    found = f"false {_bits(event.upheld)}; good {_bits(event.cleared)}"
    convicted = "; the seat is convicted" if event.convicted else ""
    ended = _ENDS.get(Stage(event.stage), "was settled")
    return (
        f"case {event.number} of seat {event.seat} {ended} ({found}):"
        f" {event.units:,} units revoked, {tokens(event.slashed)} of stake slashed{convicted}"
    )


_SENTENCES: dict[type[e.Emitted], Callable[[Any], str]] = {
    e.RunCreated: lambda x: f"{x.owner} created run {x.run} with spec {x.spec_digest.hex()}",
    e.Funded: _funded,
    e.Defunding: _defunding,
    e.Paused: _paused,
    e.Published: lambda x: f"version {x.step} was published, manifest {x.manifest.hex()}",
    e.Drawn: lambda x: f"the beacon of version {x.step} was drawn: {x.beacon.hex()}",
    e.Redrawn: lambda x: f"the beacon of version {x.step} was missed; it will be made of block {x.source}",
    e.Appointed: lambda x: f"{x.trainer} is the trainer from {at(x.from_)} on",
    e.Joined: lambda x: f"node {x.node} of operator {x.operator} took a seat, hardware class {x.hardware}",
    e.Rotated: lambda x: f"the seat {x.seat} works with the key {x.node} now",
    e.Offered: lambda x: f"the seat {x.seat} is offered to {x.to} until {at(x.deadline)}",
    e.HandedOver: lambda x: f"the seat {x.seat} went from operator {x.from_} to {x.to}",
    e.Left: _left,
    e.Released: lambda x: f"{tokens(x.amount)} of stake of the seat {x.seat} are free again, for {x.operator}",
    e.Submitted: lambda x: f"node {x.node} submitted {x.step}.{x.sequence}, {x.units:,} units, root {x.root.hex()}",
    e.Skipped: lambda x: f"node {x.node} skipped submission {x.step}.{x.sequence}",
    e.Claimed: lambda x: (
        f"operator {x.operator} was paid {tokens(x.amount)} for {x.units:,} units of the seat {x.seat}"
    ),
    e.ValidatorApproved: _approved,
    e.ValidatorSeated: _seated,
    e.ValidatorReinforced: lambda x: f"validator {x.validator} has {tokens(x.locked)} locked in its seat now",
    e.ValidatorReleased: lambda x: f"{tokens(x.amount)} of stake of validator {x.validator} are free again",
    e.Challenged: _challenged,
    e.ChallengedAgain: lambda x: f"{x.challenger} challenged case {x.number} of seat {x.seat} again",
    e.CoSigned: lambda x: f"{x.co_signer} found the same as the accuser in case {x.number} of seat {x.seat}",
    e.Appealed: lambda x: f"{x.appellant} appealed case {x.number} of seat {x.seat}",
    e.Voted: _voted,
    e.Abstained: lambda x: f"{x.validator} abstained from case {x.number} of seat {x.seat}: {plain(x.reason)}",
    e.Settled: _settled,
    e.Silent: lambda x: f"{x.validator} was silent on case {x.number} of seat {x.seat} and paid {tokens(x.charged)}",
    e.Impeached: lambda x: (
        f"validator {x.validator} lost {tokens(x.slashed)} for accepting submission {x.submission.hex()}, found by {x.finder}"
    ),
    e.Deposited: lambda x: f"{tokens(x.amount)} were deposited as stake of {x.account}",
    e.Unbonding: lambda x: f"{x.account} takes {tokens(x.amount)} of its stake out from {at(x.ready_at)} on",
    e.Rebonded: lambda x: f"{x.account} made {tokens(x.amount)} that were leaving stake again",
    e.Withdrawn: lambda x: f"{x.account} withdrew {tokens(x.amount)} of stake",
    e.Slashed: lambda x: f"{x.account} lost {tokens(x.amount)} of stake, {tokens(x.finder_share)} of it to {x.finder}",
    e.Disbursed: lambda x: f"{tokens(x.amount)} of a verdict went to the stake of {x.account}",
    e.Moved: lambda x: f"{tokens(x.amount)} of stake went from {x.from_} to {x.to}",
    e.VouchersFunded: lambda x: f"{tokens(x.amount)} were added to the pot of the validators",
    e.Redeemed: lambda x: f"validator {x.validator} was paid {tokens(x.amount)} by voucher, {tokens(x.total)} in all",
    e.Located: lambda x: f"the owner says where the run is: {plain(x.where.decode('utf-8', 'replace')) or 'nothing'}",
    e.Dripped: lambda x: f"the faucet gave {tokens(x.amount)} to {x.account}",
}
