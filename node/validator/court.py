"""What becomes of a judgement that is decided: challenged on chain, settled when its time has come.

Chain and hub do not wait for each other: a hub that is down or refuses a receipt saves nobody from a challenge.

A soft case lists the submissions of one seat with the most at stake first, and no more than what this validator's lock covers: the bond grows
with what a case withholds. Beside another case it takes no more than half of the lock: the rest is for appeals, or a friend's junk would keep this
validator from standing by what it accepted. What was submitted under another bench, before or after somebody came or went, goes into a case of its own. So does what
stands on the seat's sums, or on bits that not every machine computes, for a juror may know nothing of it.

No case of somebody else's closes a hard finding: its challenger may be the seat's friend, and may have named rows that are good. While it is open this
one waits, for a conviction takes the submission as well; what is lost, undecided or softened leaves the way open. After a conviction a submission is
accused once more where somebody vouched for rows that no conviction names.

A case is read, settled and closed once, however many submissions it lists, and is not looked at before its deadline unless
something was heard of it. All waits but those after a failure are in block time.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from node.judging.bitwise import OTHER_BITS
from node.judging.history import NOWHERE
from node.validator import judgement_log as states
from node.validator.findings import LAST_PART, REFUSALS, Findings, ReceiptsOf
from node.validator.judgement_log import CaseName, Judgement, JudgementLog
from node.validator.settings import JudgeSettings
from protocol import metrics
from protocol.chain import Sender
from protocol.chain.events import Challenged, Impeached, Settled
from protocol.chain.sender import Sent
from protocol.chain.sync import Book
from protocol.chain.types import Case, Stage
from protocol.chain.view import CaseEntry
from protocol.clock import SYSTEM, Clock
from protocol.errors import InsufficientFunds, TransactionReverted
from protocol.retry import Backoff
from protocol.shell.connection import Connection
from protocol.shell.money import tokens
from protocol.verdict import HISTORY, Outcome, Receipt, evidence_of

log = logging.getLogger("validator")

_CASES = metrics.counter(
    "murmur_validator_cases_total", "Cases of this validator: accused, challenged, closed.", "event"
)
_CASES.from_zero("accused", "challenged", "closed")
_SUBMISSIONS_MOST = 64  # in one case: its gas stays well below any block's limit
_NO_RIGHT = ("Denied", "NotOnBench")
_NOBODY = ("0x" + "0" * 40, 0, bytes(32), b"")  # a second validator's receipt, where the policy asks for none

Brought = tuple[str, CaseName | None]
"""The next state of judgements that were brought to court, and their case: challenged; closed, where there is nothing to gain
any more; decided as before, for later."""


class Court:
    def __init__(
        self,
        connection: Connection,
        book: Book,
        judgements: JudgementLog,
        findings: Findings,
        settings: JudgeSettings,
        sender: Sender,
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        self._c = connection
        self._book = book
        self._log = judgements
        self._findings = findings
        self._settings = settings
        self._address = connection.key.address
        self._sender = sender
        self._refused_on_chain = Backoff(settings.retry_seconds, REFUSALS * settings.retry_seconds, clock=clock)
        self._poor = Backoff(settings.retry_seconds, clock=clock)
        self._deadlines: dict[CaseName, int] = {}  # of open cases that were read, in block time

    def challenge(self, now: int, receipts: ReceiptsOf) -> None:
        """Takes to court what is to be challenged, the gravest first; `now` in block time. `receipts`: what validators have said, also
        those who have left since."""
        for judgement in self._log.decided(Outcome.HARD):
            if judgement.submission not in self._refused_on_chain:
                accuse = partial(self._accuse, receipts=receipts)
                self._bring([judgement], now, accuse, judgement.submission)
        ripe = self._log.decided_nodes(Outcome.SOFT, int(now - self._settings.batch_seconds))
        late = (
            each
            for each in self._log.decided(Outcome.SOFT)
            if self._findings.left(each, now) < self._settings.batch_seconds
        )
        for node in dict.fromkeys([*ripe, *(self._findings.receipt(each).details.node for each in late)]):
            if node not in self._refused_on_chain:
                self._bring(self._of_one_kind(node), now, self._challenge, node)

    def _bring(
        self,
        judgements: list[Judgement],
        now: int,
        to_court: Callable[[list[Judgement], int], Brought],
        key: bytes | str,
    ) -> None:
        """Brings judgements to court together, but for those that are there; they share what becomes of them.

        `key`: what is left alone for a while where that is for later.
        """
        name = ", ".join(judgement.submission.hex()[:12] for judgement in judgements)
        case = None
        try:
            self._sender.recover()  # what was sent before a crash may land only now
            judgements = [judgement for judgement in judgements if not self._took_up(judgement)]
            if not judgements:
                return
            self._book.poll()  # a case that somebody else has just opened may spare this one
            judgements = judgements if self._poor.left() else self._covered(judgements)
            state, case = (states.DECIDED, None) if self._poor.left() else to_court(judgements, now)
        except InsufficientFunds as error:
            log.error("cannot challenge %s now: %s (%s)", name, error, error.hint)
            self._refused_on_chain.failed(key)  # what is smaller comes first the next time
            self._poor.failed()
            return  # cases that are settled free their bonds; the window is long
        except TransactionReverted as error:
            state = self._after_refusal(error, judgements[0])
            log.info("no case on %s: %s", name, error)
            if state == states.DECIDED and error.reason in _NO_RIGHT:
                self._log.put(self._findings.softened(judgements[0]))
                return
        if state == states.DECIDED:
            self._refused_on_chain.failed(key)
        else:
            self._log.put(*(_in_case(judgement, state, case) for judgement in judgements))

    def _of_one_kind(self, node: str) -> list[Judgement]:
        """What is to be challenged of one node's, with the most at stake first: what any juror finds by itself, and the rest later."""
        found = self._log.decided_of(node, Outcome.SOFT, _SUBMISSIONS_MOST)
        plain = [judgement for judgement in found if not _needs_more(self._findings.receipt(judgement))]
        return self._of_one_bench(plain or found)

    def _of_one_bench(self, judgements: list[Judgement]) -> list[Judgement]:
        """Those that the first one's bench judges. A case leaves out the others, and they have one of their own after it."""
        times = [self._committed_at(judgement) for judgement in judgements]
        if len(set(times)) < 2:
            return judgements
        first, last = self._c.chain.bench_term(self._c.run, times[0])
        return [judgement for judgement, time in zip(judgements, times, strict=True) if first <= time <= last]

    def _committed_at(self, judgement: Judgement) -> int:
        """Block time; of a commitment that a reorg took, when it was judged."""
        submission = self._book.submission(judgement.submission)
        return int(judgement.judged_at if submission is None else self._book.time(submission))

    def _covered(self, judgements: list[Judgement]) -> list[Judgement]:
        """As many of them, from the first on, as this validator's lock covers the bond for. Raises InsufficientFunds where it covers none."""
        policy = self._c.policy
        if not policy.appeal:
            return judgements
        seat, units = self._c.chain.validator(self._c.run, self._address), 0
        free = seat.free
        if seat.at_risk:  # else what takes more than half of the lock would never be challenged
            free = max(0, free - seat.locked // policy.bond // 2 * policy.bond)
        for many, judgement in enumerate(judgements):
            units += judgement.units
            if policy.bond_for(units) > free:
                if not many:
                    raise InsufficientFunds(
                        f"a case about {units} units puts {tokens(policy.bond_for(units))} at risk, and {tokens(free)} of the seat's lock are free",
                        hint="murmur validator reinforce locks more of your stake",
                    )
                return judgements[:many]
        return judgements

    def _took_up(self, judgement: Judgement) -> bool:
        """Whether this validator has a case about the submission, which a crash kept it from noting; now it is noted.

        Overlooked, that case would never be settled and its bond never be free.
        """
        ref, run, chain = self._findings.receipt(judgement).details.ref, self._c.run, self._c.chain
        if judgement.outcome == Outcome.HARD:
            number = chain.charge(run, ref, self._signer(judgement))
        else:
            number = chain.submission(run, ref).number
        if not number:
            return False
        case = chain.seat_name(run, ref.node), number
        if chain.case(run, *case).challenger != self._address:
            return False
        self._log.put(_in_case(judgement, states.CHALLENGED, case))
        log.info("case %d about %s was opened before", number, judgement.submission.hex()[:12])
        return True

    def _signer(self, judgement: Judgement) -> str:
        """Whose verdict an accusation stands on, as the contract notes it."""
        if self._c.policy.co_signers and judgement.second is not None:
            return self._findings.parse(judgement.second).validator
        return self._address

    def _after_refusal(self, error: TransactionReverted, first: Judgement) -> str:
        """What becomes of judgements whose case was refused. Raises the refusal when this seat is gone."""
        if error.reason in _NO_RIGHT:
            if self._address not in self._book.validators(self._book.now()):
                raise error
            # one of the two was seated after the submission; as soft it needs no second, and older validators may still see it
            return states.DECIDED if first.outcome == Outcome.HARD else states.CLOSED
        return states.CLOSED if error.reason in ("WrongState", "TooLate") else states.DECIDED

    def _accuse(self, judgements: list[Judgement], now: int, *, receipts: ReceiptsOf) -> Brought:
        """Accuses the author of one submission."""
        (judgement,) = judgements
        receipt, run, chain, book = self._findings.receipt(judgement), self._c.run, self._c.chain, self._book
        ref, submission = receipt.details.ref, book.submission(judgement.submission)
        left = self._committed_at(judgement) + self._c.policy.window - now
        if left <= 0:
            return states.CLOSED, None
        if submission is None:
            return states.DECIDED, None  # a reorg took the commitment: it may come back
        second = None if judgement.second is None else self._findings.parse(judgement.second)
        if book.is_convicted(ref.node):
            if not self._has_false_accepts(receipt, second, receipts):
                return states.CLOSED, None
        elif any(self._is_served_by(receipt, each.name) for each in book.cases_of(judgement.submission) if each.hard):
            return states.CLOSED, None
        elif left > self._c.policy.window / LAST_PART and any(
            each.hard and self._names_as_much(receipt, each.name) for each in book.open_cases(book.seat(ref.node))
        ):
            return states.DECIDED, None  # that case takes this submission as well, unless it is lost
        named = _NOBODY if second is None else second.on_chain()
        call = chain.accuse(run, ref, receipt.samples, receipt.evidence(chain.domain), named)
        sent = self._sender.send(call, name=f"accuse/{judgement.submission.hex()}")
        _CASES.add(event="accused")
        log.warning("accused %s: rule %s", receipt.details.submission[:12], receipt.details.rule)
        return states.CHALLENGED, _opened(sent)

    def _names_as_much(self, receipt: Receipt, name: CaseName) -> bool:
        """Whether a hard case names rows where this receipt does. One about the seat's sums names none, and nobody could be impeached by it."""
        return receipt.samples == NOWHERE or self._case(name).samples != NOWHERE

    def _is_served_by(self, receipt: Receipt, name: CaseName) -> bool:
        """Whether this validator's own verdict stands in an open case, by another's hand."""
        case = self._case(name)
        return not case.stage.closed and case.co_signer == self._address and self._names_as_much(receipt, name)

    def _has_false_accepts(self, receipt: Receipt, second: Receipt | None, receipts: ReceiptsOf) -> bool:
        """Whether somebody vouched for rows that are false and that no conviction names, and has not lost a bond for this submission."""
        submission, named = (
            receipt.submission,
            receipt.samples & (receipt.samples if second is None else second.samples),
        )
        for case in self._book.cases_of(submission):
            if case.convicts and case.hard:
                named &= ~self._case(case.name).samples
        return any(
            each.outcome == Outcome.ACCEPT and each.samples & named and not self._is_impeached(submission, validator)
            for validator, each in receipts(submission).items()
            if validator != self._address
        )

    def _is_impeached(self, submission: bytes, validator: str) -> bool:
        return any(event.data.submission == submission for event in self._book.events(Impeached, validator))

    def _challenge(self, judgements: list[Judgement], now: int) -> Brought:
        """Disputes submissions of one seat in one case. Those past their window or in a case already are left out by the chain."""
        receipts = [self._findings.receipt(judgement) for judgement in judgements]
        if all(self._book.cases_of(judgement.submission) for judgement in judgements):
            return states.CLOSED, None
        is_whole = all(self._book.submission(judgement.submission) is not None for judgement in judgements)
        if not is_whole and now < judgements[0].judged_at + self._c.policy.window:
            return states.DECIDED, None  # a reorg took a commitment: it may come back
        evidence = evidence_of(receipts, self._c.chain.domain)
        call = self._c.chain.challenge(self._c.run, [r.details.ref for r in receipts], evidence)
        name = hashlib.sha256(b"".join(judgement.submission for judgement in judgements)).hexdigest()
        sent = self._sender.send(call, name=f"challenge/{name}")
        _CASES.add(event="challenged")
        for receipt in receipts:
            log.warning("challenged %s: rule %s", receipt.details.submission[:12], receipt.details.rule)
        return states.CHALLENGED, _opened(sent)

    def heard_of(self, name: CaseName) -> None:
        """Something happened in a case: should it be one of this validator's, it is looked at again."""
        self._deadlines.pop(name, None)

    def settle(self, now: int, open_cases: Sequence[CaseEntry]) -> None:
        """Closes this validator's cases whose time is up, also those that it took up after another; `now` in block time."""
        taken_up = (case.name for case in open_cases if case.challenger == self._address)
        for name in dict.fromkeys([*self._log.cases(), *taken_up]):
            if name not in self._refused_on_chain and now >= self._deadlines.get(name, 0):
                self._settle(name, now)

    def _settle(self, name: CaseName, now: int) -> None:
        seat, number = name
        case = self._case(name)
        is_mine = case.challenger == self._address
        if not is_mine and not case.again:  # a reorg took ours, or this endpoint lags: it is brought once more
            self._close(name, states.DECIDED)
            return
        if not case.stage.closed:
            if now < case.deadline or not is_mine:  # another has taken it up
                self._deadlines[name] = max(case.deadline, now + 1)
                return
            try:
                call, deed = (
                    self._c.chain.settle(self._c.run, seat, number),
                    f"{case.stage.name.lower()}/{case.again:d}",
                )
                sent = self._sender.send(call, name=f"settle/{seat}/{number}/{deed}")
            except (TransactionReverted, InsufficientFunds) as error:
                log.warning("case %d against %s not settled yet: %s", number, seat, error)
                self._refused_on_chain.failed(name)
                return
            if not Stage(sent.event(Settled).stage).closed:
                log.info("case %d against %s found no majority; another validator may take it up", number, seat)
                return
        self._close(name, states.CLOSED)
        _CASES.add(event="closed")
        log.info("case %d against %s is closed", number, seat)

    def _case(self, name: CaseName) -> Case:
        """A case as two endpoints have it; one that was opened after the book's head, as the next endpoint asked has it."""
        run = self._c.run
        if self._book.case(*name) is None:
            return self._c.chain.case(run, *name)
        return self._book.ask(lambda one, at: one.case(run, *name, at=at), f"case {name[1]} against {name[0]}")

    def _close(self, name: CaseName, state: str) -> None:
        """Gives all judgements of a case their next state."""
        judgements = self._log.in_case(name)
        self._log.put(*(replace(judgement, state=state) for judgement in judgements))
        self._deadlines.pop(name, None)
        if state == states.DECIDED:
            for judgement in judgements:
                self._refused_on_chain.failed(
                    judgement.submission if judgement.outcome == Outcome.HARD else judgement.node
                )


def _needs_more(receipt: Receipt) -> bool:
    """Whether a juror may not find the same by itself: it stands on all the seat's work, or on bits that only some machines compute."""
    return receipt.details.rule == HISTORY or receipt.details.measured == OTHER_BITS


def _opened(sent: Sent) -> CaseName:
    opened = sent.event(Challenged)
    return opened.seat, opened.number


def _in_case(judgement: Judgement, state: str, case: CaseName | None) -> Judgement:
    seat, number = case or (None, None)
    return replace(judgement, state=state, seat=seat, number=number)
