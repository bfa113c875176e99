"""`node appeal`: asks the validators to vote on a verdict, with a bond out of what the seat has locked."""

from __future__ import annotations

from typing import Annotated

import typer

from node.commands.context import (
    DEFAULT_HOME,
    HomeOption,
    OperatorKeystore,
    open_chain,
    open_home,
    operator_sender,
    settings,
)
from node.journal import Journal, Submission
from protocol.chain import Chain
from protocol.chain.types import Case, State
from protocol.cli import PasswordFile, Yes, confirm
from protocol.errors import UsageError
from protocol.home import Home
from protocol.money import duration, tokens

_SETTLED = {
    State.NONE: "never reached the chain",
    State.SUBMITTED: "is not challenged; there is nothing to appeal against",
    State.APPEALED: "is appealed already; the validators vote",
    State.REVOKED: "is revoked for good",
    State.CLEARED: "was cleared; it will be paid",
}


def register(app: typer.Typer) -> None:
    app.command()(appeal)


def appeal(
    work: Annotated[str, typer.Argument(help="A work id, or its beginning, as `node submissions` lists it.")],
    home: HomeOption = DEFAULT_HOME,
    operator_keystore: OperatorKeystore = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
) -> None:
    """Have the other validators vote on a verdict that is wrong. Costs a bond if they uphold it."""
    place = open_home(home)
    node = settings(place).value
    chain, run = open_chain(node), node.chain.run
    submission = find(place, work)
    sender = operator_sender(place, node, chain, password_file, operator_keystore)
    seat, number, case = _open_case(chain, run, submission)
    policy = chain.policy(run)
    call = chain.appeal(run, seat, number)
    _, gas = sender.estimate(call)
    ref, kind = submission.ref, "hard" if case.hard else "soft"
    confirm(
        "Appeal?",
        [
            f"appeals   against the {kind} verdict on step {ref.step}, sequence {ref.sequence}",
            f"at risk   {tokens(policy.bond)} of what the seat has locked, lost if the verdict is upheld",
            f"decided   by the votes of {policy.quorum} other validators within {duration(policy.vote)}; "
            "without them the work earns nothing and nobody loses stake",
            f"costs     at most {gas / 1e18:.6f} ETH of gas",
        ],
        yes,
    )
    sender.send(call)
    typer.echo(f"appealed; the vote ends in {duration(policy.vote)}")
    typer.echo(f"next: node submissions {submission.work.hex()[:12]}", err=True)


def find(place: Home, work: str) -> Submission:
    """The one submission of this node whose work id begins with `work`. Raises UsageError."""
    journal = Journal(place.data / "journal.sqlite")
    found = [submission for submission in journal.all() if submission.work.hex().startswith(work.removeprefix("0x"))]
    journal.close()
    if len(found) != 1:
        raise UsageError(f"{len(found)} submissions begin with {work!r}", hint="node submissions lists them")
    return found[0]


def _open_case(chain: Chain, run: int, submission: Submission) -> tuple[str, int, Case]:
    """(seat, number, case)"""
    name = submission.work.hex()[:12]
    state, found = chain.state(run, submission.ref), chain.case_of(run, submission.ref)
    if state != State.CHALLENGED or found is None:
        raise UsageError(f"{name} {_SETTLED[state]}", hint=f"node submissions {name}")
    late = chain.block().time - found[2].deadline
    if late >= 0:
        raise UsageError(f"the time to appeal against the verdict on {name} ended {duration(late)} ago", hint="")
    return found
