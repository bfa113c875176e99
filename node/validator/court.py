"""What becomes of a judgement: shown at the hub, challenged on chain, settled when its time has come.

A hard finding stays secret until a second validator has judged the work without knowing it; only when both say hard does it
go on chain as hard, otherwise as soft. It is shown earlier where another validator asked about the same work, since then
both have judged it by themselves, and after half the wait, since both may be waiting for each other.

Chain and hub do not wait for each other: a hub that is down or refuses a receipt saves nobody from a challenge.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from node.validator import journal as states
from node.validator.journal import Journal, Judgement
from node.validator.settings import JudgeSettings
from protocol.chain import Sender
from protocol.chain.types import State
from protocol.errors import InsufficientFunds, TransactionReverted
from protocol.hub import Refused
from protocol.role import Connection
from protocol.verdict import Details, Outcome, Receipt

log = logging.getLogger("validator")

_LAST_PART = 10  # a work is challenged in the last tenth of its window, even while another hard case is open

Told = Callable[[bytes], Mapping[str, Receipt]]
"""Receipts of seated validators on a work, by validator."""


class Court:
    def __init__(self, connection: Connection, journal: Journal, settings: JudgeSettings) -> None:
        self._c = connection
        self._journal = journal
        self._settings = settings
        self._address = connection.key.address
        self._sender = Sender(connection.chain, connection.key)
        self._rests_at_hub = Rests(settings.retry_seconds)
        self._rests_on_chain = Rests(settings.retry_seconds)
        self._poor_until = 0.0

    def take(self, details: Details, validators: Collection[str], requested: Collection[bytes]) -> None:
        """Takes in this validator's own judgement."""
        receipt = Receipt.issue(details, self._c.key, self._c.chain.domain)
        state, posting = states.DECIDED, states.DUE
        if receipt.outcome == Outcome.ACCEPT:
            state = states.CLOSED
        elif receipt.outcome == Outcome.HARD and set(validators) - {self._address}:
            state = states.WAITING
            posting = states.DUE if receipt.work in requested else states.SECRET
        self._journal.put(
            Judgement(receipt.work, int(receipt.outcome), receipt.encode(), state, posting, details.units, details.time)
        )

    # ---- hard findings -------------------------------------------------------------------------------------------------

    def decide(self, told: Told, validators: Collection[str], now: int) -> None:
        """Hard findings become hard once another validator has found the same, and soft when none does in time."""
        for judgement in self._journal.in_state(states.WAITING):
            others = {validator: r for validator, r in told(judgement.work).items() if validator != self._address}
            everybody = not set(validators) - {self._address} - set(others)
            waited = self._waited(judgement, now)
            if any(other.outcome == Outcome.HARD for other in others.values()):
                self._journal.put(_shown(replace(judgement, state=states.DECIDED)))
            elif everybody or waited > 1:
                reason = "no other validator found it" if others else "no second validator answered"
                log.warning("hard finding on %s becomes soft: %s", judgement.work.hex()[:12], reason)
                self._journal.put(self._softened(judgement))
            elif waited > 0.5:
                self._journal.put(_shown(judgement))

    def _waited(self, judgement: Judgement, now: int) -> float:
        """Which part of the wait for a second opinion is over. Where the hub takes no request, half of the window is."""
        if judgement.asked_at is not None:
            return (time.time() - judgement.asked_at) / self._settings.opinion_seconds
        return (now - judgement.judged_at) / (self._c.policy.window / 2)

    def ask(self, requested: Collection[bytes]) -> None:
        """Asks for second opinions. A work that somebody else asked about needs none: both judged without the other."""
        for judgement in self._journal.in_state(states.WAITING):
            if judgement.asked_at is not None:
                continue
            asked = replace(judgement, asked_at=time.time())
            if judgement.work in requested:
                self._journal.put(_shown(asked))
            else:
                self._c.hub.ask_opinion(judgement.work)
                self._journal.put(asked)

    def _softened(self, judgement: Judgement) -> Judgement:
        """As soft; its receipt says so as well, unless the hard one was shown."""
        soft = replace(judgement, outcome=int(Outcome.SOFT), state=states.DECIDED)
        if judgement.posting == states.SECRET:
            details = replace(self._receipt(judgement).details, outcome=int(Outcome.SOFT))
            receipt = Receipt.issue(details, self._c.key, self._c.chain.domain)
            soft = replace(soft, receipt=receipt.encode(), posting=states.DUE)
        return soft

    # ---- hub -----------------------------------------------------------------------------------------------------------

    def post(self) -> None:
        """Posts receipts. One that the hub refuses is tried again; it keeps no other from being posted."""
        for judgement in self._journal.due():
            if judgement.work in self._rests_at_hub:
                continue
            try:
                self._c.hub.post_receipt(judgement.receipt)
            except Refused as error:
                log.warning("the hub refuses the receipt of %s: %s", judgement.work.hex()[:12], error)
                self._rests_at_hub.add(judgement.work)
                continue
            self._journal.put(replace(judgement, posting=states.POSTED))

    # ---- chain ---------------------------------------------------------------------------------------------------------

    def challenge(self, now: int) -> None:
        """Takes to court what is to be challenged, the gravest first; `now` in block time."""
        for judgement in self._journal.in_state(states.DECIDED):
            if time.monotonic() < self._poor_until:
                return
            if judgement.work in self._rests_on_chain:
                continue
            try:
                state = self._challenge(judgement, now)
            except InsufficientFunds as error:
                log.error("cannot challenge %s now: %s (%s)", judgement.work.hex()[:12], error, error.hint)
                self._poor_until = time.monotonic() + self._settings.retry_seconds
                return  # cases that are settled free their bonds; the window is long
            if state == states.DECIDED:
                self._rests_on_chain.add(judgement.work)
            else:
                self._journal.put(replace(judgement, state=state))

    def _challenge(self, judgement: Judgement, now: int) -> str:
        """The judgement's next state: challenged; closed, where there is nothing to gain any more; the same, for later."""
        receipt, run = self._receipt(judgement), self._c.run
        ref, hard = receipt.details.ref, judgement.outcome == Outcome.HARD
        seat, work = self._c.chain.seat(run, ref.node), self._c.chain.work(run, ref)
        left = work.time + self._c.policy.window - now
        if work.state != State.SUBMITTED or seat.swept or left <= 0:
            return states.CLOSED
        if hard and seat.open_hard and left > self._c.policy.window / _LAST_PART:
            return states.DECIDED  # that case takes this work as well, unless it is cleared
        try:
            self._sender.send(self._c.chain.challenge(run, ref, hard, receipt.evidence(self._c.chain.domain)))
        except TransactionReverted as error:
            if error.reason == "Denied":
                raise  # this seat is gone
            log.info("no case on %s: %s", receipt.details.work[:12], error)
            return states.CLOSED if error.reason in ("WrongState", "TooLate") else states.DECIDED
        log.warning(
            "challenged %s as %s: rule %s", receipt.details.work[:12], "hard" if hard else "soft", receipt.details.rule
        )
        return states.CHALLENGED

    def settle(self, now: int) -> None:
        """Closes this validator's cases whose time is up; `now` in block time."""
        for judgement in self._journal.in_state(states.CHALLENGED):
            if judgement.work in self._rests_on_chain:
                continue
            ref = self._receipt(judgement).details.ref
            state = self._c.chain.work(self._c.run, ref).state
            if state in (State.CHALLENGED, State.APPEALED):
                if now < self._c.chain.case(self._c.run, ref).deadline:
                    continue
                try:
                    self._sender.send(self._c.chain.settle(self._c.run, ref))
                except (TransactionReverted, InsufficientFunds) as error:
                    log.warning("case %s not settled yet: %s", judgement.work.hex()[:12], error)
                    self._rests_on_chain.add(judgement.work)
                    continue
            self._journal.put(replace(judgement, state=states.CLOSED))
            log.info("case %s is closed", judgement.work.hex()[:12])

    # ---- both ----------------------------------------------------------------------------------------------------------

    def _receipt(self, judgement: Judgement) -> Receipt:
        return Receipt.parse(judgement.receipt, self._c.chain.domain, self._c.run)


class Rests:
    """Works that are left alone for a while, because something with them failed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: dict[bytes, float] = {}

    def add(self, work: bytes) -> None:
        self._until[work] = time.monotonic() + self._seconds

    def __contains__(self, work: bytes) -> bool:
        return time.monotonic() < self._until.get(work, 0.0)


def _shown(judgement: Judgement) -> Judgement:
    return replace(judgement, posting=states.DUE) if judgement.posting == states.SECRET else judgement
