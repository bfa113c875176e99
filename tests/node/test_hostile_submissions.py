"""Submissions made to escape a verdict, or to break whoever gives it."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from swarm.tiny_run import longest, with_sample

from node.contributor.generation import Made
from protocol import rollout
from protocol.chain.types import State
from protocol.errors import DeadlineExceeded
from protocol.identity import Key
from protocol.verdict import Outcome
from tests.clock import eventually
from tests.node.stage import Panel, Stage, rounds


def tampered(stage: Stage, made: Made, change: Any) -> Made:
    """The submission with another file: `change` gets the old one."""
    file = change(stage.context.sandbox.read(made.path).file)
    path = made.path.with_name("tampered.parquet")
    rollout.write(file, path)
    return committed_as(made, path, file.units)


def committed_as(made: Made, path: Path, units: int) -> Made:
    import hashlib

    root = hashlib.sha256(path.read_bytes()).digest()
    final = path.with_name(f"{root.hex()}.parquet")
    path.replace(final)
    return Made(replace(made.ref, root=root), units, final, made.place)


def test_a_file_that_kills_its_reader_is_soft_and_the_service_goes_on(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    hostile, honest = stage.make(node, 0), stage.make(node, 1)
    sandbox = stage.tiny.context.sandbox
    send = sandbox._send

    def killing(process: Any, request: dict[str, Any]) -> Any:
        if hostile.ref.root.hex() in str(request.get("path")):
            os.kill(process.pid, signal.SIGKILL)
        return send(process, request)

    monkeypatch.setattr(sandbox, "_send", killing)
    submissions = [stage.submit(node, made) for made in (hostile, honest)]
    rounds(service)
    found = {r.submission: (r.outcome, r.details.rule) for r in panel.all_receipts()}
    assert found == {submissions[0]: (Outcome.SOFT, "schema"), submissions[1]: (Outcome.ACCEPT, "")}


def test_an_answer_that_breaks_its_verifier_is_soft(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise anything could be sold: rules after this one would never be asked."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    hostile, honest = stage.make(node, 0), stage.make(node, 1)
    sandbox = service._bench.context.sandbox
    poison = {s.problem for s in stage.context.sandbox.read(hostile.path).file.samples[:4]}
    scored = sandbox.bounds

    def breaking(items: Any, claims: Any, *tolerance: float) -> list[Any]:
        if any(problem in poison for problem, _ in items):
            raise DeadlineExceeded("the sandbox failed twice: it ended")
        return scored(items, claims, *tolerance)

    monkeypatch.setattr(sandbox, "bounds", breaking)
    submissions = [stage.submit(node, made) for made in (hostile, honest)]
    rounds(service)
    found = {r.submission: (r.outcome, r.details.rule) for r in panel.all_receipts()}
    assert found == {submissions[0]: (Outcome.SOFT, "reward"), submissions[1]: (Outcome.ACCEPT, "")}
    assert panel.state(hostile.ref) == State.CHALLENGED


def test_answers_that_are_too_much_at_once_are_scored_one_by_one(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    sandbox = service._bench.context.sandbox
    scored = sandbox.bounds

    def narrow(items: Any, claims: Any, *tolerance: float) -> list[Any]:
        if len(items) > 1:
            raise DeadlineExceeded("the sandbox failed twice: no answer within 30 s")
        return scored(items, claims, *tolerance)

    submission = stage.submit(node, stage.make(node))
    monkeypatch.setattr(sandbox, "bounds", narrow)
    rounds(service)
    assert panel.receipts(submission)[service._address].outcome == Outcome.ACCEPT


def test_a_file_that_fills_the_receipt_is_judged_all_the_same(stage: Stage, panel: Panel) -> None:
    """A column name of 100 kB is quoted in the finding: cut short, and without what would garble a terminal."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    made = stage.make(node)
    table = pq.read_table(made.path)
    path = made.path.with_name("tampered.parquet")
    pq.write_table(table.append_column("\x1b[31m\n" + "x" * 100_000, table.column("group")), path, use_dictionary=False)
    hostile = committed_as(made, path, made.units)
    submission = stage.submit(node, hostile)
    rounds(service)
    receipt = panel.receipts(submission)[service._address]
    assert (receipt.outcome, receipt.details.rule) == (Outcome.SOFT, "schema")
    assert len(receipt.encode()) < 4096
    assert receipt.details.detail.isprintable()
    assert panel.state(hostile.ref) == State.CHALLENGED


@pytest.mark.parametrize("cheats", [False, True], ids=["honest", "cheat"])
def test_joining_again_with_other_hardware_changes_no_verdict(stage: Stage, panel: Panel, cheats: bool) -> None:
    """What counts is the seat in the block of the commitment: a cheat cannot make a hard finding soft afterwards, and an
    honest node loses nothing."""
    node, world = stage.seated(hardware=0), stage.world
    stage.publish()
    service = panel.seat()
    made = stage.make(node, hardware=0)
    submission = stage.commit(node, made.ref, made.units + cheats)
    stage.upload(node, made.ref, made.path)
    operator = stage.operators[node.address]
    world.sender(operator).send(world.chain.leave(world.run, node.address))
    _join_again(stage, node, operator, hardware=1)  # which is not calibrated: nothing is worse than soft there
    rounds(service)
    receipt = panel.receipts(submission)[service._address]
    assert receipt.outcome == (Outcome.HARD if cheats else Outcome.ACCEPT)


def _join_again(stage: Stage, node: Key, operator: Key, hardware: int) -> None:
    from eth_utils import keccak

    from protocol.signing import Join

    world = stage.world
    deadline = world.chain.block().time + 600
    consent = Join(world.run, operator.address, node.address, keccak(node.peer), hardware, deadline)
    signature = consent.sign(node, world.chain.domain)
    world.sender(operator).send(world.chain.join(world.run, node.address, node.peer, hardware, deadline, signature))


def test_tampered_tokens_are_found_and_taken_to_court(stage: Stage, panel: Panel) -> None:
    """The whole way, with a file whose only fault is a token that was not drawn."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()

    def edit(file: Any) -> Any:
        row = longest(file)
        sample = file.samples[row]
        tokens = sample.completion.copy()
        tokens[0] = (tokens[0] + 1) % 20 + 3
        return with_sample(file, row, replace(sample, completion=np.array(tokens, np.int32)))

    made = tampered(stage, stage.make(node), edit)
    submission = stage.submit(node, made)
    rounds(service)
    assert panel.receipts(submission)[service._address].outcome == Outcome.HARD
    eventually(lambda: panel.state(made.ref) == State.CHALLENGED, what="the challenge")
    assert panel.case(made.ref).hard
