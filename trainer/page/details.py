"""What a page tells of one node, submission, case or version: a few indexed reads each, however large the run is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import base58

from protocol.chain.events import (
    Abstained,
    Appealed,
    Challenged,
    ChallengedAgain,
    Claimed,
    CoSigned,
    Drawn,
    Event,
    Joined,
    Settled,
    Silent,
    Voted,
)
from protocol.chain.types import Stage
from protocol.chain.view import Submission, View
from protocol.verdict import Outcome, Receipt
from trainer.page.documents import case_line
from trainer.page.sources import ReceiptIndex
from trainer.page.training import TrainingFiles

SUBMISSIONS = 50
EVENTS = 100
"""That are listed of one thing, the newest."""
_LETTERS_MAX = 1_000  # of a text that a stranger wrote
_OF_CASE = (Challenged, CoSigned, Appealed, Voted, Abstained, Silent, Settled, ChallengedAgain)


class RunDetails:
    """Each method gives None where there is no such thing. Safe to share between threads."""

    def __init__(self, view: View, index: ReceiptIndex, training: TrainingFiles) -> None:
        self._view = view
        self._index = index
        self._training = training

    def node(self, address: str, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
        """`rows`: the table of nodes, by seat."""
        seat = self._view.seat(address)
        row = rows.get(seat)
        joined = [event for key in self._view.keys(seat) for event in self._view.events(Joined, key)][-EVENTS:]
        if row is None and not joined:
            return None
        claims = self._view.events(Claimed, seat)[-EVENTS:]
        return {
            "address": seat, "asked": address, "row": row, "keys": self._view.keys(seat),
            "joined": [
                {
                    **self._place(event), "operator": event.data.operator, "class": event.data.hardware,
                    "peer": base58.b58encode(event.data.peer).decode()[:128],
                }
                for event in joined
            ],
            "submissions": [self._line(s) for s in self._view.newest_of_seat(seat, SUBMISSIONS)],
            "claims": [{**self._place(event), "amount": str(event.data.amount), "units": event.data.units} for event in claims],
            "cases": [case_line(case) for case in self._view.cases_against(seat, EVENTS)],
        }  # fmt: skip

    def submission(self, id: bytes) -> dict[str, Any] | None:
        found = self._view.submission(id)
        if found is None:
            return None
        stored = self._index.stored(id)
        receipts = self._index.receipts_on(id)[:EVENTS]
        return {
            **self._line(found), "seat": self._view.seat(found.node), "root": found.root.hex(), "block": found.block,
            "transaction": "0x" + found.transaction.hex(), "class": self._view.hardware(found),
            "stored": None if stored is None else _stored(stored),
            "receipts": [self._receipt(data) for data in receipts],
            "cases": [case_line(case) for case in self._view.cases_of(id)[:EVENTS]],
        }  # fmt: skip

    def case(self, seat: str, number: int) -> dict[str, Any] | None:
        found = self._view.case(seat, number)
        if found is None:
            return None
        events = [event for kind in _OF_CASE for event in self._view.events(kind, seat, number)]
        events.sort(key=lambda event: (event.block, event.log_index))
        return {
            **case_line(found),
            "accused": [
                {
                    "submission": ref.submission_id(self._view.run).hex(), "node": ref.node, "step": ref.step,
                    "sequence": ref.sequence, "upheld": bool(found.upheld >> i & 1), "cleared": bool(found.cleared >> i & 1),
                }
                for i, ref in enumerate(found.refs[:EVENTS])
            ],
            "events": [self._told(event) for event in events[:EVENTS]],
        }  # fmt: skip

    def version(self, step: int, row: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """`row`: how the work on it was judged."""
        published = self._view.publication(step)
        if published is None:
            return None
        drawn = self._view.events(Drawn, "", step)
        return {
            "step": step, **self._place(published), "manifest": published.data.manifest.hex(),
            "beacon": drawn[0].data.beacon.hex() if drawn else None, "work": row, "record": self._training.record(step),
        }  # fmt: skip

    # ---- parts ---------------------------------------------------------------------------------------------------------

    def _place(self, event: Event) -> dict[str, Any]:
        return {
            "time": self._view.block_time(event.block), "block": event.block, "transaction": "0x" + event.transaction.hex(),
        }  # fmt: skip

    def _line(self, s: Submission) -> dict[str, Any]:
        outcomes = [json.loads(data)["details"]["outcome"] for data in self._index.receipts_on(s.id)]
        return {
            "submission": s.id.hex(), "node": s.node, "step": s.step, "sequence": s.sequence, "tokens": s.units,
            "time": s.time, "outcome": Outcome(max(outcomes)).name.lower() if outcomes else None,
        }  # fmt: skip

    @staticmethod
    def _receipt(data: bytes) -> dict[str, Any]:
        receipt = Receipt.stored(data)
        names = (
            "rule",
            "measured",
            "threshold",
            "detail",
            "sequences_checked",
            "proofs_checked",
            "tokens_checked",
            "time",
        )
        shown = {name: getattr(receipt.details, name) for name in names}
        texts = {name: text[:_LETTERS_MAX] for name, text in shown.items() if isinstance(text, str)}
        return {**shown, **texts, "validator": receipt.validator, "outcome": receipt.outcome.name.lower()}

    def _told(self, event: Event) -> dict[str, Any]:
        """An event of a case in words of ours and values of theirs."""
        data, kind = asdict(event.data), type(event.data).__name__
        who = next((data[name] for name in ("challenger", "co_signer", "appellant", "validator") if name in data), None)
        told: dict[str, Any] = {**self._place(event), "kind": kind, "who": who}
        match event.data:
            case Voted():
                told |= {"found_false": data["found_false"].bit_count(), "found_hard": data["found_hard"].bit_count()}
            case Abstained():
                told["reason"] = data["reason"][:_LETTERS_MAX]
            case Silent():
                told["charged"] = str(data["charged"])
            case Settled():
                stage = Stage(data["stage"]).name.lower()
                told |= {"stage": stage, "convicted": data["convicted"], "slashed": str(data["slashed"])}
        return told


def _stored(text: str) -> dict[str, Any]:
    receipt = json.loads(text)
    return {name: receipt[name] for name in ("size", "time")}
