"""`node status` and `node submissions`: am I earning, and if not, why?"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.contributor import submission_log
from node.contributor.commands.appeal import find
from node.contributor.commands.context import DEFAULT_HOME, HomeOption, open_chain, open_home, settings
from node.contributor.submission_log import LoggedSubmission, SubmissionLog
from protocol.chain.types import Role, Seat, State
from protocol.errors import ChainError, PreflightError, RpcUnavailable, VersionMismatch
from protocol.shell.cli import Json, emit
from protocol.shell.home import LAST_STEP, OVER, Home, read_json

if TYPE_CHECKING:
    from node.contributor.settings import NodeSettings
    from protocol.calibration_notice import CalibrationNotice
    from protocol.chain import Chain
    from protocol.chain.types import Publication
    from protocol.runspec import RunSpec

_NEWEST = 10  # submissions that --watch shows
_DISPUTED_MOST = 20  # rejected submissions of which the chain is asked


def register(app: typer.Typer) -> None:
    app.command()(status)
    app.command()(submissions)


def status(
    home: HomeOption = DEFAULT_HOME,
    as_json: Json = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it anew every 15 seconds, with the newest submissions, until Ctrl-C.")
    ] = False,
) -> None:
    """Show seat, stake, work and rewards, and what to do next."""
    from node.contributor import next_step
    from node.contributor.commands import status_text, submission_text
    from protocol.shell.repeating import repeat

    place = open_home(home)
    node = settings(place).value
    with closing(SubmissionLog(place.data / submission_log.FILE)) as log:
        chain = open_chain(node)

        def look() -> dict[str, Any]:
            newest = {"newest": [row_of(one) for one in log.all(most=_NEWEST)]} if watch else {}
            return collect(place, chain, node.chain.run, log) | newest

        def show(data: dict[str, Any]) -> None:
            told = data | {"next": next_step.as_typed(data["next"], place.command("").strip())}
            status_text.show(told, begins_with_next=watch)
            if data.get("newest"):
                typer.echo("\nNewest submissions")
                submission_text.show_many(data["newest"])

        if watch:
            repeat(look, show, as_json=as_json)
            return
        data = look()
    emit(data, as_json, lambda: show(data))


def collect(place: Home, chain: Chain, run: int, log: SubmissionLog) -> dict[str, Any]:
    """Everything `status` shows. Amounts in wei, as strings; times in seconds."""
    from node.contributor import case_story, earning, next_step
    from protocol.chain import ring

    address = place.address("node")
    seat, policy, head = chain.seat(run, address), chain.policy(run), chain.head(run)
    ready, pending = chain.claimable(run, address)
    operator = _operator(place, seat)
    account, gas = chain.account(operator), chain.balance(address)
    said, doing = place.read_status(), place.doing()
    running = doing is not None
    counts = log.counts()
    spec, now = _kept_spec(place, chain, run), chain.block().time
    notice, read = _notice(place, head)
    sums = _sums(log, spec, notice, now)
    cases = case_story.of_seat(chain, run, chain.seat_name(run, address), seat, log) if seat.cases else []
    disputed = _disputed(chain, run, log, now - policy.window)
    recent = log.recent(earning.RECENT)
    budget, over = chain.status(run), _was_last(said or {}, head)
    paused, emptied = _begun(budget.paused_from, now), _begun(budget.defunded_from, now)
    maturing = ring.waiting(seat.ring, now, policy.window)
    over = over or (paused and emptied)
    ended = seat.role != Role.NONE and not seat.serves(now)
    situation = next_step.Situation(
        node=address, seat=seat, account=account, policy=policy, now=now, gas=gas, ready=ready,
        matures=maturing[0][0] if maturing else None,
        appeal_before=min((one.case.deadline for one in cases if one.can_be_appealed(now)), default=None),
        owed=counts.get(submission_log.MADE, 0) + counts.get(submission_log.COMMITTED, 0), disputed=disputed,
        is_running=running, is_over=over,
    )  # fmt: skip
    told = {
        "node": address, "run": run, "role": seat.role.name.lower(), "operator": operator, "hardware": seat.hardware,
        "open_hard": seat.open_hard, "shut_until": seat.shut_until if seat.is_shut(now) else None,
        "suspended_until": seat.suspended_until(policy, now), "strikes": seat.strikes, "cases": [one.table(policy, now) for one in cases],
        "units_most": seat.most(policy.leverage), "penalty_left": str(max(0, policy.penalty - seat.spent)),
        "stake": str(account.active), "locked": str(account.locked), "seat_stake": str(seat.locked), "free": str(account.free),
        "unlocks_at": next_step.unlocks_at(seat, policy) if ended and seat.locked else None, "open_cases": seat.open_cases,
        "leaving": str(account.leaving), "leaving_at": account.ready_at if account.leaving else None,
        "head": head.step if head else None, "running": running, "doing": doing, "over": over,
        "submissions": dict(counts), "ready_units": ready, "pending_units": pending, "paid_units": seat.proven, "reward": str(policy.reward),
        "maturing": [{"at": at, "units": units, "amount": str(units * policy.reward)} for at, units in maturing],
        "held_units": seat.held, "now": now, "penalty": str(policy.penalty), "gas": str(gas), "paused": paused,
        "matrix_challenges": read_json(place.challenges), "sums": sums, "calibration": _calibration(spec, notice, read, head),
        "recent": dict(recent), "next": next_step.of_node(situation),
    }  # fmt: skip
    told |= {"earning": asdict(earning.earning(told))}
    expected = earning.forecast(log, told, policy.window)
    return told | {"forecast": None if expected is None else asdict(expected)}


def _was_last(said: dict[str, Any], head: Publication | None) -> bool:
    """Whether the node heard that the run is over; or the chain has the version that is made of the step which the trainer called its last."""
    return bool(said.get(OVER)) or (head is not None and said.get(LAST_STEP) == head.step)


def _begun(since: int, now: int) -> bool:
    return 0 < since <= now


def _disputed(chain: Chain, run: int, log: SubmissionLog, since: int) -> int:
    """How many of the newest submissions that a validator rejected no case has decided yet; only those made from `since` on can be."""
    newest = log.all(submission_log.SOFT, submission_log.HARD, most=_DISPUTED_MOST)
    rejected, undecided = [one.ref for one in newest if one.made_at > since], (State.SUBMITTED, State.CHALLENGED)
    with chain.ahead(*(chain.court.functions.stateOf(run, ref.as_tuple()).request() for ref in rejected)):
        return sum(chain.state(run, ref) in undecided for ref in rejected)


def _kept_spec(place: Home, chain: Chain, run: int) -> RunSpec | None:
    """The run's spec, where an earlier start has kept it; None also of one that this version cannot read: the status is told all the same."""
    from protocol.shell import spec_file

    try:
        return spec_file.find(place, chain.spec_digest(run), None)
    except VersionMismatch:
        return None


def _notice(place: Home, head: Publication | None) -> tuple[CalibrationNotice | None, int]:
    """What holds for the head, as far as the versions say that this node has had, and the newest of these; -1 where it has had none, or its notes of them are damaged."""
    from protocol.notice_book import FILE, NoticeBook

    try:
        book = NoticeBook(place.data / FILE)
    except PreflightError as error:
        typer.echo(f"{error}; {error.hint}", err=True)
        return None, -1
    return (None if head is None else book.of(head.step)), book.last


def _calibration(
    spec: RunSpec | None, notice: CalibrationNotice | None, read: int, head: Publication | None
) -> dict[str, Any] | None:
    """Which calibration work is judged by, and from which version on, as far as version `read` says, the newest that was here; None where that, or the run's spec, is not known here yet."""
    if spec is None and notice is None:
        return None
    up_to = None if head is None or (spec is not None and spec.verification.recalibration is None) else read
    if up_to == -1:
        return None
    behind = {} if up_to is None or head is None or up_to >= head.step else {"as_of_version": up_to}
    if notice is not None:
        return {"digest": notice.calibration, "since": notice.since, "notice": notice.number} | behind
    assert spec is not None
    return {"digest": spec.verification.calibration, "since": 0, "notice": 0} | behind


def _sums(
    log: SubmissionLog, spec: RunSpec | None, notice: CalibrationNotice | None, now: int
) -> dict[str, Any] | None:
    """How this node stands in the sums over its work; None where the run does not judge by them, or its spec is not here yet. E-values as powers of ten."""
    from node.contributor.standing import standing
    from protocol import history
    from protocol.calibration_notice import in_force

    budget = in_force(spec.verification, notice).history if spec is not None else None
    if budget is None:
        return None
    found = standing(log, budget, now, 0 if notice is None else notice.since)
    return {
        "submissions": found.submissions, "tokens": found.tokens, "soft_share": round(found.soft_share, 3),
        "hard_share": round(found.hard_share, 3), "log10_evidence": f"{found.evidence.soft / math.log(10):.1f}",
        "log10_bound": f"{found.bound.soft / math.log(10):.1f}", "begin_anew": history.begins(now, budget) + budget.days * 86_400,
        "soft_share_by_statistic": {name: round(share, 3) for name, share in found.shares.items()}, "causes": found.causes,
    }  # fmt: skip


def _operator(place: Home, seat: Seat) -> str:
    """Who holds the seat; before there is one, the operator whose keystore lies here."""
    if seat.role == Role.NONE and place.keystore("operator").exists():
        return place.address("operator")
    return seat.operator


def submissions(
    submission: Annotated[
        str | None, typer.Argument(help="A submission id (or its beginning): show its verdict in full.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    most: Annotated[int, typer.Option(help="How many of the newest to list.")] = 20,
    as_json: Json = False,
) -> None:
    """List submissions, or explain what a validator found in one."""
    from node.contributor import next_step
    from node.contributor.commands import submission_text

    place = open_home(home)
    node = settings(place).value
    log = SubmissionLog(place.data / submission_log.FILE)
    found = [find(place, submission)] if submission is not None else log.all(most=most)
    rows = [row_of(one) for one in found]
    with _chain_or_not(node) as chain:
        if chain is not None and rows:
            add_chain_story(place, chain, node.chain.run, log, found, rows)
    log.close()
    typed = [row | {"next": next_step.as_typed(row["next"], place.command("").strip())} for row in rows]
    show = (
        partial(submission_text.show_one, typed[0])
        if submission is not None
        else partial(submission_text.show_many, rows)
    )
    emit({"submissions": rows}, as_json, show)


def row_of(s: LoggedSubmission) -> dict[str, Any]:
    return {
        "submission": s.id.hex(), "step": s.ref.step, "sequence": s.ref.sequence, "units": s.units, "state": s.state, "made_at": s.made_at,
        "receipt": json.loads(s.receipt) if s.receipt else None, "storage": json.loads(s.storage) if s.storage else None,
        "chain": None, "next": "node start, once the chain can be asked",
    }  # fmt: skip


@contextmanager
def _chain_or_not(node: NodeSettings) -> Iterator[Chain | None]:
    """None where no endpoint answers, and from within the block once none does any more: the log is worth telling without the chain."""
    try:
        chain = open_chain(node)
    except ChainError as error:
        typer.echo(f"the chain cannot be asked ({error}); what follows is this node's own log", err=True)
        chain = None
    try:
        yield chain
    except RpcUnavailable as error:
        typer.echo(f"the chain cannot be asked ({error}); what follows is this node's own log", err=True)


def add_chain_story(
    place: Home, chain: Chain, run: int, log: SubmissionLog, found: list[LoggedSubmission], rows: list[dict[str, Any]]
) -> None:
    """State, case and pay of each, and what to do next about it. Raises RpcUnavailable."""
    from node.contributor.submission_story import SubmissionStories

    stories = SubmissionStories.of(chain, run, place.address("node"), log, place.doing() is not None)
    for row, (told, step) in zip(rows, stories.tell(found), strict=True):
        row |= {"chain": told, "next": step}
