"""Holding other validators to their word: who accepted a sample that a hard case convicted loses a bond, to whoever shows it.

A receipt binds its signer (docs/contracts.md). This validator has read the others' receipts anyway; the finder's share pays for
looking. It never acts on its own receipts, and what the contract refuses (somebody was quicker) is not tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from node.validator.record import CaseName, Record
from protocol.chain import Sender
from protocol.chain.events import Impeached
from protocol.chain.types import Stage
from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError, TransactionReverted, Unavailable
from protocol.retry import Backoff
from protocol.shell.connection import Connection, is_fatal
from protocol.shell.money import tokens
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome, Receipt

log = logging.getLogger("validator")


class Impeachment:
    def __init__(
        self,
        connection: Connection,
        sender: Sender,
        receipts: Callable[[bytes], Mapping[str, Receipt]],
        retry_seconds: float,
        clock: Clock = SYSTEM,
    ) -> None:
        """`receipts`: what validators have said of a work, by validator, also those who have left since."""
        self._c = connection
        self._sender = sender
        self._receipts = receipts
        self._false: dict[CaseName, int] = {}
        self._done: set[tuple[bytes, str]] = set()
        self._backoff = Backoff(retry_seconds, clock=clock)

    def turn(self, record: Record) -> None:
        """Impeaches whoever vouched for what was convicted, as far as their receipts are known by now."""
        for name, ref in record.convictions.items():
            if name in self._backoff:
                continue
            try:
                self._look(name, ref)
            except MurmurationError as error:
                if is_fatal(error):
                    raise
                log.warning("who accepted %s cannot be impeached yet: %s", ref.root.hex()[:12], error)
                self._backoff.failed(name)

    def _look(self, name: CaseName, ref: SubmissionRef) -> None:
        work = ref.work_id(self._c.run)
        for validator, receipt in self._receipts(work).items():
            if validator == self._c.key.address or (work, validator) in self._done:
                continue
            if receipt.outcome is Outcome.ACCEPT and self._samples(name) & receipt.samples:
                self._impeach(name[1], ref, receipt)
            self._done.add((work, validator))

    def _samples(self, name: CaseName) -> int:
        """Those that the case found false. Raises Unavailable from an endpoint that does not know of its end yet."""
        if name not in self._false:
            case = self._c.chain.case(self._c.run, *name)
            if case.stage != Stage.UPHELD:
                raise Unavailable(f"case {name[1]} against {name[0]} is not upheld where it was asked about")
            self._false[name] = case.samples
        return self._false[name]

    def _impeach(self, number: int, ref: SubmissionRef, accepted: Receipt) -> None:
        work = ref.work_id(self._c.run).hex()
        try:
            call = self._c.chain.impeach(self._c.run, ref, number, accepted.on_chain())
            sent = self._sender.send(call, name=f"impeach/{work}/{accepted.validator}")
        except TransactionReverted as error:
            log.info("%s is not impeached for %s: %s", accepted.validator, work[:12], error)
            return
        taken = tokens(sent.event(Impeached).slashed)
        log.warning("impeached %s, who had accepted %s: it lost %s", accepted.validator, work[:12], taken)
