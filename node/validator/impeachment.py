"""Holding other validators to their word: who accepted a sample that a hard case convicted loses a bond, to whoever shows it.

A receipt binds its signer (docs/contracts.md). This validator has read the others' receipts anyway; the finder's share pays for
looking. It never acts on its own receipts, and what the contract refuses (somebody was quicker) is not tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from node.validator.record import CaseName, Record
from node.validator.rests import Rests
from protocol.chain import Sender
from protocol.chain.events import Impeached
from protocol.chain.types import Case, Ref, Stage
from protocol.errors import MurmurationError, TransactionReverted
from protocol.money import tokens
from protocol.role import Connection, is_fatal
from protocol.verdict import Outcome, Receipt

log = logging.getLogger("validator")


class Impeachment:
    def __init__(
        self,
        connection: Connection,
        sender: Sender,
        receipts: Callable[[bytes], Mapping[str, Receipt]],
        retry_seconds: float,
    ) -> None:
        """`receipts`: what validators have said of a work, by validator, also those who have left since."""
        self._c = connection
        self._sender = sender
        self._receipts = receipts
        self._cases: dict[CaseName, Case] = {}
        self._done: set[tuple[bytes, str]] = set()
        self._rests = Rests(retry_seconds)

    def turn(self, record: Record) -> None:
        """Impeaches whoever vouched for what was convicted, as far as their receipts are known by now."""
        for name, ref in record.convictions.items():
            if name not in self._rests:
                self._look(name, ref)

    def _look(self, name: CaseName, ref: Ref) -> None:
        work = ref.work_id(self._c.run)
        for validator, receipt in self._receipts(work).items():
            if (
                receipt.outcome is not Outcome.ACCEPT
                or validator == self._c.key.address
                or (work, validator) in self._done
            ):
                continue
            try:
                self._impeach(name, ref, work, receipt)
            except MurmurationError as error:
                if is_fatal(error):
                    raise
                log.warning("%s cannot be impeached yet: %s", validator, error)
                self._rests.add(name)
                return
            self._done.add((work, validator))

    def _impeach(self, name: CaseName, ref: Ref, work: bytes, accepted: Receipt) -> None:
        seat, number = name
        case = self._cases.get(name) or self._c.chain.case(self._c.run, seat, number)
        if case.stage != Stage.UPHELD:
            return
        self._cases[name] = case
        if case.samples & accepted.samples == 0:
            return  # it vouched for other samples of the file
        try:
            call = self._c.chain.impeach(self._c.run, ref, number, accepted.on_chain())
            sent = self._sender.send(call, name=f"impeach/{work.hex()}/{accepted.validator}")
        except TransactionReverted as error:
            log.info("%s is not impeached for %s: %s", accepted.validator, work.hex()[:12], error)
            return
        taken = tokens(sent.event(Impeached).slashed)
        log.warning("impeached %s, who had accepted %s: it lost %s", accepted.validator, work.hex()[:12], taken)
