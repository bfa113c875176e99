"""A validator with several endpoints, the preferred of which lies: what the book has from two stands against it.

The book of these validators asks each endpoint by itself and hears the truth; whatever is asked beside the book hears the lie.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocol.chain import Chain
from protocol.chain.completeness import BATCH
from protocol.chain.networks import SETTLED_BLOCKS
from protocol.chain.types import State
from protocol.verdict import Outcome
from tests.node.judging import inflated
from tests.node.stage import Panel, Stage, rounds, until

Lies = dict[str, Callable[[Any], Any]]
"""By name of a question: what becomes of the true answer."""


def lied_to(stage: Stage, monkeypatch: pytest.MonkeyPatch, lies: Lies) -> None:
    """From now on whoever connects prefers an endpoint that lies."""
    connection = stage.connection

    def connect(*arguments: Any, **options: Any) -> Any:
        made, rpc = connection(*arguments, **options), stage.world.anvil.rpc
        made.chain = Chain([rpc, rpc, rpc], stage.world.chain.runs.address)
        for name, lie in lies.items():
            true = getattr(made.chain, name)
            setattr(made.chain, name, lambda *a, true=true, lie=lie, **o: lie(true(*a, **o)))
        return made

    monkeypatch.setattr(stage, "connection", connect)


def of_no_version(true: Any) -> Any:
    return replace(true, manifest=bytes([1]) * 32)


@pytest.mark.parametrize(
    "lies",
    [
        {"publication": of_no_version, "head": of_no_version},
        {"published": lambda true: true + 1_000, "head": lambda true: replace(true, step=1_000)},
        {"block": lambda true: replace(true, time=true.time + 100_000)},
        {"seat": lambda true: replace(true, hardware=7), "validator": lambda true: replace(true, since=0)},
    ],
    ids=["manifest", "head", "time", "seats"],
)
def test_one_endpoint_that_lies_neither_silences_a_validator_nor_discredits_its_sources(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lies: Lies
) -> None:
    node = stage.seated()
    stage.publish()
    lied_to(stage, monkeypatch, lies)
    service = panel.seat()
    submission = stage.submit(node, stage.make(node))
    with caplog.at_level(logging.WARNING):
        rounds(service)
    assert panel.receipts(submission)[service._address].outcome == Outcome.ACCEPT
    assert not [record for record in caplog.records if record.name != "protocol.chain.endpoints"]


def test_one_endpoint_that_calls_a_seat_convicted_keeps_no_finding_from_court(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stage.seated()
    stage.publish()
    lies: Lies = {
        "seat": lambda true: replace(true, swept=True, open_hard=1),
    }
    lied_to(stage, monkeypatch, lies)
    service = panel.seat()
    made, _ = inflated(stage, node)
    stage.world.anvil.request("anvil_mine", hex(BATCH + SETTLED_BLOCKS))  # two have told of the commitment then
    until(lambda: panel.state(made.ref) == State.CHALLENGED, service, what="the accusation")
