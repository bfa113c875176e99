"""`node appeal`: asks the validators to vote on a verdict, with a bond out of what the seat has locked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from node.contributor import submission_log
from node.contributor.commands.context import (
    DEFAULT_HOME,
    HomeOption,
    OperatorKeystore,
    open_chain,
    open_home,
    operator_sender,
    settings,
)
from node.contributor.submission_log import LoggedSubmission, SubmissionLog
from protocol.chain.types import Case, State
from protocol.errors import UsageError
from protocol.shell.cli import PasswordFile, Yes, confirm
from protocol.shell.home import Home
from protocol.shell.money import duration, tokens

if TYPE_CHECKING:
    from protocol.chain import Chain

_SETTLED = {
    State.NONE: "never reached the chain",
    State.SUBMITTED: "is not challenged; there is nothing to appeal against",
    State.CHALLENGED: "was challenged this very moment; try again",
    State.APPEALED: "is appealed already; the validators vote",
    State.REVOKED: "is revoked for good, and no other verdict on it can be appealed against",
    State.CLEARED: "was cleared; it will be paid",
    State.UNDECIDED: "found no majority of the validators; it is paid unless another one challenges it again",
}


def register(app: typer.Typer) -> None:
    app.command()(appeal)


def appeal(
    submission: Annotated[
        str, typer.Argument(help="A submission id (or its beginning), as `node submissions` lists it.")
    ],
    home: HomeOption = DEFAULT_HOME,
    operator_keystore: OperatorKeystore = None,
    password_file: PasswordFile = None,
    yes: Yes = False,
) -> None:
    """Have the other validators vote on a verdict that is wrong. Costs a bond if they uphold all of it; a hard one only if they find it hard."""
    place = open_home(home)
    node = settings(place).value
    chain, run = open_chain(node), node.chain.run
    logged = find(place, submission)
    sender = operator_sender(place, node, chain, password_file, operator_keystore)
    name, found = _open_cases(chain, run, logged)
    policy, ref = chain.policy(run), logged.ref
    calls = [chain.appeal(run, name, number) for number, _ in found]
    gas = sum(sender.estimate(call)[1] for call in calls)
    each = " for each" if len(found) > 1 else ""
    confirm(
        "Appeal?",
        [
            *(f"appeals   against {_verdict(case)} on step {ref.step}, sequence {ref.sequence}" for _, case in found),
            f"at risk   {tokens(policy.bond)} of what the seat has locked{each}, lost if nothing of it is cleared, and a hard verdict is found hard",
            f"decided   by a majority of the other validators that were seated before the work, within {duration(policy.vote)}; "
            "without one the submission is paid, unless another validator challenges it again",
            f"costs     at most {gas / 1e18:.6f} ETH of gas",
        ],
        yes,
    )
    for call in calls:
        sender.send(call)
    typer.echo(f"appealed; the vote ends in {duration(policy.vote)}")
    typer.echo(f"next: node submissions {logged.id.hex()[:12]}", err=True)


def _verdict(case: Case) -> str:
    return f"the {'hard' if case.hard else 'soft'} verdict of {case.challenger}"


def find(place: Home, submission_id: str) -> LoggedSubmission:
    """The one submission of this node whose id begins with `submission_id`. Raises UsageError."""
    kept = SubmissionLog(place.data / submission_log.FILE)
    found = [
        submission for submission in kept.all() if submission.id.hex().startswith(submission_id.removeprefix("0x"))
    ]
    kept.close()
    if len(found) != 1:
        raise UsageError(f"{len(found)} submissions begin with {submission_id!r}", hint="node submissions lists them")
    return found[0]


def _open_cases(chain: Chain, run: int, submission: LoggedSubmission) -> tuple[str, list[tuple[int, Case]]]:
    """The seat's name, and (number, case) of all that can be appealed and concern a submission. Raises UsageError where none does."""
    from protocol.chain import cases

    short, ref, now = submission.id.hex()[:12], submission.ref, chain.block().time
    name = chain.seat_name(run, ref.node)
    found = [
        (number, case)
        for number, case in cases.unanswered(chain, run, name, chain.seat(run, ref.node))
        if ref in cases.submissions(chain, run, name, number, case)
    ]
    if not found:
        raise UsageError(f"{short} {_SETTLED[chain.state(run, ref)]}", hint=f"node submissions {short}")
    in_time = [(number, case) for number, case in found if now < case.deadline]
    if not in_time:
        ended = duration(now - max(case.deadline for _, case in found))
        raise UsageError(f"the time to appeal against the verdict on {short} ended {ended} ago", hint="")
    return name, in_time
