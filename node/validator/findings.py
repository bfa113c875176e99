"""What becomes of a judgement before it goes to court: shown at the hub, and held until a second validator has found the same.

A hard finding stays secret until a second validator has judged the submission without knowing it; only when both say hard does it
go on chain as hard, otherwise as soft. It is shown earlier where another validator asked about the same submission, since then
both have judged it by themselves, and after half the wait, since both may be waiting for each other.

No finding becomes soft unseen for want of an answer: a receipt is shown first, the wait for the second counts from when the hub has it, and it is
over only in a turn that has heard what the hub had to say. Else a cheat would keep validators busy for that long, with programs that take minutes,
and nobody would learn that two had found the same. A second validator that comes too late finds the receipt at the hub, and accuses by itself.
The end of the window alone is not waited for.

All waits but those after a failure are in block time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import replace
from functools import lru_cache

from node.judging.history import NOWHERE
from node.validator import judgement_log as states
from node.validator.judgement_log import Judgement, JudgementLog
from node.validator.settings import JudgeSettings
from protocol.chain.sync import Book
from protocol.clock import SYSTEM, Clock
from protocol.hub.wire import Refused
from protocol.retry import Backoff
from protocol.shell.connection import Connection
from protocol.verdict import Details, Outcome, Receipt

log = logging.getLogger("validator")

LAST_PART = 10
"""A submission is challenged in the last tenth of its window, even while another hard case is open."""

REFUSALS = 16
"""How many times as long the longest pause is after a refusal as the first."""

_LAST_WAITS = 4  # so many times the wait for a second before its window ends a finding is challenged as it stands

_FIRST = (-1, b"")
_POSTS_MOST = 64  # receipts in one turn: a hub that refuses them all is no reason to do nothing else
_PARSED_MOST = 256  # own receipts whose signature need not be checked again

ReceiptsOf = Callable[[bytes], Mapping[str, Receipt]]
"""Receipts of seated validators on a submission, by validator."""


class Findings:
    """A validator's own judgements until they are decided. For one thread."""

    def __init__(
        self,
        connection: Connection,
        book: Book,
        judgements: JudgementLog,
        settings: JudgeSettings,
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        self._c = connection
        self._book = book
        self._log = judgements
        self._settings = settings
        self._address = connection.key.address
        self._refused_at_hub = Backoff(settings.retry_seconds, REFUSALS * settings.retry_seconds, clock=clock)
        self._posted = _FIRST  # up to where receipts were tried to be posted
        self.parse = lru_cache(_PARSED_MOST)(lambda data: Receipt.parse(data, connection.chain.domain, connection.run))

    def receipt(self, judgement: Judgement) -> Receipt:
        return self.parse(judgement.receipt)

    def take(self, details: Details, validators: Collection[str], requested: Container[bytes]) -> None:
        """Takes in this validator's own judgement."""
        receipt = Receipt.issue(details, self._c.key, self._c.chain.domain)
        state = self._first_state(receipt.outcome, validators)
        is_secret = state == states.WAITING and receipt.submission not in requested
        self._log.put(_judgement(receipt, state, states.SECRET if is_secret else states.DUE))

    def take_up(self, receipt: Receipt, validators: Collection[str]) -> None:
        """Takes in a judgement that this validator has shown before, and that its log has lost."""
        self._log.put(_judgement(receipt, self._first_state(receipt.outcome, validators), states.POSTED))

    def _first_state(self, outcome: Outcome, validators: Collection[str]) -> str:
        if outcome == Outcome.ACCEPT:
            return states.CLOSED
        return states.WAITING if outcome == Outcome.HARD and set(validators) - {self._address} else states.DECIDED

    # ---- hard findings -------------------------------------------------------------------------------------------------

    def decide(self, receipts: ReceiptsOf, validators: Collection[str], now: int, *, has_heard: bool) -> None:
        """Hard findings become hard once another validator has found the same, and soft when none does in time.

        `now` in block time, which nothing that the hub has told is older than where `has_heard`.
        """
        for judgement in self._log.waiting():
            others = {
                validator: r for validator, r in receipts(judgement.submission).items() if validator != self._address
            }
            everybody = not set(validators) - {self._address} - set(others)
            second = self._second(judgement, others.values())
            if second is not None:
                self._log.put(_shown(replace(judgement, state=states.DECIDED, second=second.encode())))
            elif everybody or self._is_over(judgement, now, has_heard=has_heard):
                reason = "no other validator found it" if others else "no second validator answered"
                log.warning("hard finding on %s becomes soft: %s", judgement.submission.hex()[:12], reason)
                self._log.put(self.softened(judgement) if everybody and others else _treated_as_soft(judgement))
            elif judgement.asked_at is not None and (
                now - judgement.asked_at > self._settings.opinion_seconds / 2 or self.left(judgement, now) < self._late
            ):
                self._log.put(_shown(judgement))

    def _second(self, judgement: Judgement, others: Collection[Receipt]) -> Receipt | None:
        """Another validator's receipt that finds some of the same samples false, or as this one none by itself (rule `history`)."""
        samples = self.receipt(judgement).samples
        hard = [receipt for receipt in others if receipt.outcome == Outcome.HARD]
        return next((r for r in hard if r.samples & samples or r.samples == samples == NOWHERE), None)

    def _is_over(self, judgement: Judgement, now: int, *, has_heard: bool) -> bool:
        """Whether nobody is waited for any more. Where the hub takes no request, or no receipt, half of the window is waited."""
        shown, window = judgement.shown_at, self._c.policy.window
        if has_heard and shown is not None and now - shown > self._settings.opinion_seconds:
            return True
        left, waited = self.left(judgement, now), now - judgement.judged_at
        # What is found this late waits half of what was left then: a second may still find it, and a case be opened after that.
        return (left < self._late and waited > left) or (shown is None and waited > window / 2)

    @property
    def _late(self) -> float:
        """Seconds before the end of a window from which on nothing waits for long."""
        return min(self._c.policy.window / LAST_PART, _LAST_WAITS * self._settings.opinion_seconds)

    def left(self, judgement: Judgement, now: int) -> float:
        """Seconds until its submission's window ends."""
        submission = self._book.submission(judgement.submission)
        begins = judgement.judged_at if submission is None else self._book.time(submission)
        return begins + self._c.policy.window - now

    def ask(self, requested: Container[bytes], now: int) -> None:
        """Asks for second opinions. A submission that somebody else asked about needs none: both judged without the other.

        The hub may have enough requests of this validator until it has posted receipts: then the rest waits.
        """
        for judgement in self._log.waiting():
            if judgement.asked_at is not None:
                continue
            asked = replace(judgement, asked_at=now)
            if judgement.submission in requested:
                self._log.put(_shown(asked))
            else:
                try:
                    self._c.hub.ask_opinion(judgement.submission)
                except Refused as error:
                    log.warning("the hub refuses to ask about %s: %s", judgement.submission.hex()[:12], error)
                    return
                self._log.put(asked)

    def softened(self, judgement: Judgement) -> Judgement:
        """As soft; its receipt says so as well, unless the hard one was shown. Of what every other validator has judged."""
        soft = _treated_as_soft(judgement)
        if judgement.posting == states.SECRET:
            details = replace(self.receipt(judgement).details, outcome=int(Outcome.SOFT))
            receipt = Receipt.issue(details, self._c.key, self._c.chain.domain)
            soft = replace(soft, receipt=receipt.encode(), posting=states.DUE)
        return soft

    # ---- hub -----------------------------------------------------------------------------------------------------------

    def post(self, now: int) -> None:
        """Posts receipts, at `now` in block time. One that the hub refuses is tried again; it keeps no other from being posted."""
        page = self._log.due(self._posted, _POSTS_MOST)
        for judgement in page:
            self._posted = judgement.judged_at, judgement.submission
            if judgement.submission in self._refused_at_hub:
                continue
            try:
                self._c.hub.post_receipt(judgement.receipt)
            except Refused as error:
                log.warning("the hub refuses the receipt of %s: %s", judgement.submission.hex()[:12], error)
                self._refused_at_hub.failed(judgement.submission)
                continue
            if self._c.gossip is not None:
                self._c.gossip.tell_verdict(self.receipt(judgement))
            self._log.put(replace(judgement, posting=states.POSTED, shown_at=now))
        if len(page) < _POSTS_MOST:
            self._posted = _FIRST


def _judgement(receipt: Receipt, state: str, posting: str) -> Judgement:
    d = receipt.details
    return Judgement(
        receipt.submission, d.node, int(receipt.outcome), receipt.encode(), state, posting, d.units, d.time
    )


def _treated_as_soft(judgement: Judgement) -> Judgement:
    """As soft, under the hard receipt, which is shown: another validator may have found the same by then."""
    return _shown(replace(judgement, outcome=int(Outcome.SOFT), state=states.DECIDED))


def _shown(judgement: Judgement) -> Judgement:
    return replace(judgement, posting=states.DUE) if judgement.posting == states.SECRET else judgement
