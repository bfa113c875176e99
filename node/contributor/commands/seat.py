"""`node rotate`, `offer` and `accept`: another key for a seat, another operator for it. Sent with the cold key.

A seat keeps the name of its first key; what was earned, and what can be held against it, stays with the seat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from node.contributor import submission_log
from node.contributor.commands.context import (
    CONSENT_SECONDS,
    DEFAULT_HOME,
    HomeOption,
    OperatorKeystore,
    open_home,
    open_operation,
)
from node.contributor.submission_log import SubmissionLog
from protocol.chain.types import Role, Seat
from protocol.constants import NOBODY
from protocol.errors import UsageError
from protocol.shell.cli import PasswordFile, Yes, confirm, parse_address
from protocol.shell.home import Home
from protocol.shell.money import duration, tokens

if TYPE_CHECKING:
    from protocol.chain import Chain
    from protocol.identity import Key

_NEXT = "node-next"
"""Keystore of a key that has not taken over yet."""


def register(app: typer.Typer) -> None:
    for command in (rotate, offer, accept):
        app.command()(command)


def rotate(
    home: HomeOption = DEFAULT_HOME,
    operator_keystore: OperatorKeystore = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
) -> None:
    """Give the seat a new node key. The node must not be running; interrupted, the same command goes on."""
    from eth_utils import keccak

    from protocol.signing import Join

    place = open_home(home)
    place.require_config()
    with place.lock():
        _require_delivered(place)
        o = open_operation(home, password_file, operator_keystore)
        chain, run, sender, old = o.chain, o.run, o.sender, o.node
        seat = _seat(chain, run, old)
        confirm(
            "Rotate the key?",
            [
                f"seat      {chain.seat_name(run, old)} in run {run} gets a new key; {old} can sign no more work",
                "works on  versions published from then on",
                "stays     stake, rewards and what can be held against the seat",
            ],
            yes,
        )
        new = place.new_key(_NEXT, chain_id=chain.chain_id, password_file=password_file)
        if chain.seat_name(run, new.address) == new.address:  # else a command that was interrupted had got that far
            deadline = chain.block().time + CONSENT_SECONDS
            join = Join(run, sender.key.address, new.address, keccak(new.peer), seat.hardware, deadline)
            sender.send(chain.rotate(run, old, new.address, new.peer, deadline, join.sign(new, chain.domain)))
        _take_over(place, old, new)
    typer.echo(f"{new.address} has taken the seat over; the old key lies in {place.keystore(f'node-{old}')}")
    typer.echo(f"next: send some ETH to {new.address}, then: {place.command('node start')}", err=True)


def _seat(chain: Chain, run: int, node: str) -> Seat:
    seat = chain.seat(run, node)
    if seat.role == Role.NONE:
        raise UsageError(f"{node} holds no seat in run {run}", hint="take one with `node stake`")
    return seat


def _require_delivered(place: Home) -> None:
    """Only the key that committed to a submission can upload it."""
    path = place.data / submission_log.FILE
    if not path.exists():
        return
    kept = SubmissionLog(path)
    try:
        open_ = kept.all(submission_log.MADE, submission_log.COMMITTED)
    finally:
        kept.close()
    if open_:
        raise UsageError(
            f"{len(open_)} submissions of the present key are not uploaded yet",
            hint="let `node start` finish them first",
        )


def _take_over(place: Home, old: str, new: Key) -> None:
    """The new key lies where the node looks for its key; the old one, and the log of what it sent, are kept.

    There is a node key at every moment: a command that is killed here finds one and goes on.
    """
    transactions = place.data / "transactions.sqlite"
    for suffix in ("", "-wal", "-shm"):
        path = transactions.with_name(transactions.name + suffix)
        if path.exists():
            path.rename(path.with_name(f"transactions-{old}.sqlite{suffix}"))
    kept = place.keystore(f"node-{old}")
    if not kept.exists():
        kept.hardlink_to(place.keystore("node"))
    place.keystore(_NEXT).replace(place.keystore("node"))


def offer(
    to: Annotated[
        str, typer.Argument(help="Address of the operator who shall take over; `nobody` calls an offer off.")
    ],
    days: Annotated[float, typer.Option(min=0.01, max=365, help="How long the offer stands.")] = 7.0,
    home: HomeOption = DEFAULT_HOME,
    operator_keystore: OperatorKeystore = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
) -> None:
    """Offer the seat to another operator, with the stake behind it; it is theirs once they accept."""
    taker = NOBODY if to == "nobody" else parse_address(to)
    o = open_operation(home, password_file, operator_keystore)
    chain, run, address = o.chain, o.run, o.node
    seat = _seat(chain, run, address)
    consequences = (
        [f"calls off what was offered of {address}"]
        if taker == NOBODY
        else [
            f"offers    {address} in run {run} to {taker}",
            f"within    {duration(round(days * 86_400))}; after that the offer has lapsed",
            f"once they accept, {tokens(seat.locked)} of stake and all rewards not yet claimed are theirs, without payment",
            "nothing   is asked for in return: agree on that first",
        ]
    )
    confirm("Offer the seat?", consequences, yes)
    deadline = 0 if taker == NOBODY else chain.block().time + round(days * 86_400)
    o.sender.send(chain.offer(run, address, taker, deadline))
    typer.echo("called off" if taker == NOBODY else f"offered; next, by {taker}: node accept {address}")


def accept(
    node: Annotated[str, typer.Argument(help="Address of the node whose seat was offered.")],
    home: HomeOption = DEFAULT_HOME,
    operator_keystore: OperatorKeystore = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
) -> None:
    """Take over a seat that another operator has offered, with its stake, rewards and open cases."""
    address = parse_address(node)
    o = open_operation(home, password_file, operator_keystore)
    chain, run = o.chain, o.run
    seat = _seat(chain, run, address)
    ready, pending = chain.claimable(run, address)
    reward, now = chain.policy(run).reward, chain.block().time
    serves = "works" if seat.serves(now) else f"gave up its seat {duration(now - seat.until)} ago"
    confirm(
        "Take the seat over?",
        [
            f"seat      {address} in run {run}, which {serves}, from {seat.operator}",
            f"brings    {tokens(seat.locked)} of stake, {tokens((ready + pending) * reward)} of rewards not yet claimed",
            f"answers   for {seat.open_cases} open cases, and for all work that can still be challenged",
        ],
        yes,
    )
    o.sender.send(chain.accept(run, address))
    typer.echo(f"{o.sender.key.address} operates {address} now")
