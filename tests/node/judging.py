"""What tests of judging and of the court share: submissions with one fault, a validator that sees none, and whose turn it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from node.contributor.generation import Made
from node.validator.service import ValidatorService
from protocol import rendezvous
from protocol.chain.sync import Book
from protocol.constants import UPLOAD_SECONDS_MAX
from protocol.identity import Key
from protocol.verdict import Details
from tests.node.stage import Stage


def line(stage: Stage, submission_id: bytes) -> list[str]:
    """Validators in the order in which a submission is theirs."""
    book = Book(stage.world.chain, stage.world.run)
    now = book.poll().time
    submission = book.submission(submission_id)
    assert submission is not None
    return rendezvous.order(submission_id, submission.block_hash, book.validators(now))


def in_line(stage: Stage, submission_id: bytes, *services: ValidatorService) -> list[ValidatorService]:
    """The services in that order."""
    return sorted(services, key=lambda service: line(stage, submission_id).index(service._address))


def inflated(stage: Stage, node: Key, sequence: int = 0) -> tuple[Made, bytes]:
    """A submission whose only fault is a hard one: it claims a token more than it has."""
    made = stage.make(node, sequence)
    submission_id = stage.commit(node, made.ref, made.units + 1)
    stage.upload(node, made.ref, made.path)
    return made, submission_id


def softly_wrong(stage: Stage, node: Key, sequence: int = 0) -> tuple[Made, bytes]:
    """A submission whose only fault is a soft one: no file."""
    made = stage.make(node, sequence)
    return made, stage.commit(node, made.ref, made.units)


def past_grace(stage: Stage) -> None:
    stage.world.anvil.advance(stage.tiny.spec.upload_grace_seconds + UPLOAD_SECONDS_MAX + 1)


def asked_for(stage: Stage) -> list[tuple[str, str]]:
    return [r for r in stage.hub.requests if r[0] == "POST" and r[1].endswith("/opinions")]


def disagrees(service: ValidatorService, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this validator finds nothing wrong with anything."""
    judge = service._bench.judge

    def accept(*arguments: Any, **options: Any) -> Details:
        found = judge(*arguments, **options)
        return replace(found, outcome=1, rule="", measured="", threshold="", detail="", samples="f" * 64)

    monkeypatch.setattr(service._bench, "judge", accept)
