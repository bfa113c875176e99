"""The validator's own trouble, its hub's and its endpoints': nothing of it becomes a verdict, and it ends nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from starlette.responses import PlainTextResponse, Response

from node.validator.service import ValidatorService
from node.validator.settings import JudgeSettings
from protocol.chain.sync import Book
from protocol.chain.types import State
from protocol.errors import PreflightError, RpcUnavailable, Unavailable
from protocol.verdict import Outcome
from tests.clock import VirtualClock
from tests.node.judging import inflated
from tests.node.stage import Panel, Stage, rounds, until


def test_a_validator_that_computes_nonsense_gives_no_verdict(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    first = stage.submit(node, stage.make(node, 0))
    rounds(service)
    weight = service._bench._engine._model.base_model.norm.weight
    with torch.no_grad():
        right = weight.clone()
        weight.fill_(float("nan"))
    second = stage.submit(node, stage.make(node, 1))
    rounds(service)
    assert [r.submission for r in panel.all_receipts()] == [first]
    with torch.no_grad():
        weight.copy_(right)
    until(lambda: panel.receipts(second), service, what="the verdict, once it is well again")
    assert panel.receipts(second)[service._address].outcome == Outcome.ACCEPT


def test_a_machine_that_cannot_judge_the_runs_longest_sequence_ends_its_validator(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a warning each minute would hide: all that is too long for it is paid unjudged."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    stage.submit(node, stage.make(node))

    def full(tokens: int, *, prompt: int | None = None) -> None:
        raise PreflightError(f"one sequence of {tokens} tokens is too long")

    monkeypatch.setattr(service._bench._engine, "require_room", full)
    with pytest.raises(PreflightError, match="too long"):
        rounds(service)
    assert not panel.all_receipts()


def test_verifiers_that_do_not_work_at_all_give_no_verdict(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stage.seated()
    stage.publish()
    service, sandbox = panel.seat(), None
    sandbox = service._bench.context.sandbox
    scored = sandbox.bounds

    def dead(*arguments: Any, **options: Any) -> list[Any]:
        raise Unavailable("the sandbox does not start")

    monkeypatch.setattr(sandbox, "bounds", dead)
    monkeypatch.setattr(sandbox, "warm_up", dead)
    made = stage.make(node)
    submission = stage.submit(node, made)
    rounds(service)
    assert not panel.all_receipts()
    monkeypatch.setattr(sandbox, "bounds", scored)
    until(lambda: panel.receipts(submission), service, what="the verdict")
    assert panel.receipts(submission)[service._address].outcome == Outcome.ACCEPT


def test_a_reader_that_does_not_start_gives_no_verdict(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from protocol.sandbox import Sandbox

    node = stage.seated()
    stage.publish()
    service = panel.seat()
    stage.submit(node, stage.make(node))
    broken = Sandbox(stage.tiny.spec, deadline=5, memory=1 << 20)  # too little for any child
    object.__setattr__(service._bench.context, "sandbox", broken)
    rounds(service, count=2)
    broken.close()
    assert not panel.all_receipts()


def test_a_file_that_this_disk_spoiled_is_fetched_again(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    made = stage.make(node)
    spoiled = service._bench._files / f"{made.ref.root.hex()}.parquet"
    spoiled.write_bytes(made.path.read_bytes()[:-1])
    submission = stage.submit(node, made)
    rounds(service)
    assert panel.receipts(submission)[service._address].outcome == Outcome.ACCEPT


@pytest.mark.parametrize("garbage", ["[" * 20_000, '{"entries": [{"id": 1e999, "value": {}}]}', '{"entries": 7}'])
def test_a_hub_that_talks_nonsense_stops_nothing_and_causes_no_verdict(
    stage: Stage, panel: Panel, garbage: str
) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    submission = stage.submit(node, stage.make(node))
    stage.hub.fault = lambda method, path: PlainTextResponse(garbage)
    rounds(service)
    stage.hub.fault = lambda method, path: None
    assert not panel.all_receipts()
    until(lambda: panel.receipts(submission), service, what="the verdict, once the hub is well again")
    assert panel.receipts(submission)[service._address].outcome == Outcome.ACCEPT


def test_other_bytes_than_the_committed_ones_are_the_hubs_fault(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    submission = stage.submit(node, stage.make(node))
    stage.hub.fault = lambda method, path: Response(b"PAR1 other bytes") if "/files/" in path else None
    rounds(service)
    assert not panel.all_receipts()
    stage.hub.fault = lambda method, path: None
    until(lambda: panel.receipts(submission), service, what="the verdict")
    assert panel.receipts(submission)[service._address].outcome == Outcome.ACCEPT


def test_a_hub_that_went_away_is_looked_up_again_and_read_from_the_start(stage: Stage, panel: Panel) -> None:
    """A rebuilt hub numbers its listings anew; whoever goes on from the old number would hear nothing any more."""
    node = stage.seated()
    stage.publish()
    one, two = panel.seat(), panel.seat()
    for sequence in range(3):
        stage.submit(node, stage.make(node, sequence))
    rounds(one, two)
    assert len(panel.all_receipts()) == 3
    stage.hub.stop()
    for name in ("hub.sqlite", "hub.sqlite-wal", "hub.sqlite-shm"):
        (stage.folder / "hub" / name).unlink(missing_ok=True)
    rounds(one, two, count=1)
    stage.hub.start()
    made = stage.make(node, 3)
    submission = stage.commit(node, made.ref, made.units + 1)
    stage.upload(node, made.ref, made.path)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, one, two, what="both hear each other again")
    assert panel.case(made.ref).hard
    assert len(panel.receipts(submission)) == 2


def test_an_unforeseen_fault_in_one_judgement_leaves_the_others(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    odd, honest = stage.make(node, 0), stage.make(node, 1)
    submissions = [stage.submit(node, made) for made in (odd, honest)]
    judge = service._bench.judge

    def failing(commitment: Any, *arguments: Any, **options: Any) -> Any:
        if commitment.ref.root == odd.ref.root:
            raise ZeroDivisionError("nobody thought of this")
        return judge(commitment, *arguments, **options)

    monkeypatch.setattr(service._bench, "judge", failing)
    rounds(service)
    assert [r.submission for r in panel.all_receipts()] == [submissions[1]]


def test_a_judgement_that_cannot_be_noted_is_made_again(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is out of the queue meanwhile: forgotten there, it would vest unjudged."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    odd, honest = (stage.submit(node, stage.make(node, sequence)) for sequence in range(2))
    take, failures = service._findings.take, iter([ZeroDivisionError("nobody thought of this")])

    def failing(*arguments: Any) -> None:
        if (error := next(failures, None)) is not None:
            raise error
        take(*arguments)

    monkeypatch.setattr(service._findings, "take", failing)
    until(lambda: len(panel.all_receipts()) == 2, service, what="both are judged")
    assert {r.submission for r in panel.all_receipts()} == {odd, honest}


def test_attempts_that_fail_keep_nobody_from_the_court(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt takes as long as a hub may; there are so many that the first is ready again before the last has failed."""
    node = stage.seated()
    stage.publish()
    clock, attempts = VirtualClock(), []
    service = panel.seat()
    for part in (service, service._workload, service._workload._queue):
        monkeypatch.setattr(part, "_clock", clock)
    for sequence in range(3):
        stage.submit(node, stage.make(node, sequence))

    def fail(task: object) -> None:
        attempts.append(task)
        clock.advance(40)
        raise Unavailable("the hub does not answer")

    monkeypatch.setattr(service._attempts, "judge", fail)
    service.turn()
    assert len(attempts) == 1


def test_a_lagging_endpoint_makes_no_honest_beacon_false(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint that has not seen the publication yet answers with zeros; the book has its event."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    submission = stage.submit(node, stage.make(node))
    real = service._c.chain.publication
    monkeypatch.setattr(
        service._c.chain, "publication", lambda run, step: replace(real(run, step), beacon=bytes(32), block=0)
    )
    rounds(service)
    assert service._bench.commitment(service._book.submission(submission)).beacon != bytes(32)
    assert [r.outcome for r in panel.all_receipts()] == [Outcome.ACCEPT]


def test_nothing_is_rejected_on_one_endpoints_word(stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one endpoint says of a commitment enters at once. Honest work is accepted on that; a rejection waits for a second."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    is_sure, judge, judged = False, service._bench.judge, []

    def counted(commitment: Any, *arguments: Any, **options: Any) -> Any:
        judged.append(commitment.ref)
        return judge(commitment, *arguments, **options)

    monkeypatch.setattr(service._book, "is_sure", lambda submission: is_sure)
    monkeypatch.setattr(service._bench, "judge", counted)
    made, doubtful = inflated(stage, node)
    honest = stage.submit(node, stage.make(node, 1))
    until(lambda: panel.receipts(honest), service, what="the honest one is accepted")
    rounds(service, count=3)
    assert not panel.receipts(doubtful)
    assert panel.state(made.ref) == State.SUBMITTED
    assert judged.count(made.ref) == 1, "that it is found false again and again helps nobody"
    is_sure = True
    until(lambda: panel.state(made.ref) == State.CHALLENGED, service, what="the challenge")


def test_a_seat_older_than_the_book_is_judged_by_the_class_it_had(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where the endpoint has pruned that state, not at all: by another class an honest proof may look false."""
    node, world = stage.seated(hardware=0), stage.world
    operator = stage.operators[node.address]
    stage.publish()
    service = panel.seat()
    since = world.chain.block_number() + 1
    first = stage.submit(node, stage.make(node))
    bench, book = service._bench, Book(world.chain, world.run, first_block=since)
    monkeypatch.setattr(bench, "_book", book)
    book.poll()
    early = book.submission(first)
    assert early is not None
    assert (book.hardware(early), book.rejoined(early), bench._hardware(early)) == (None, False, 0)
    world.sender(operator).send(world.chain.leave(world.run, node.address))
    world.seat_node(operator, node, hardware=1)
    book.poll()
    assert world.chain.seat(world.run, node.address).hardware == 1
    assert (book.rejoined(early), bench._hardware(early)) == (True, 0)
    seat = world.chain.seat

    def pruned(run: int, who: str, *, at: int | None = None) -> Any:
        if at is not None and at < world.chain.block_number():
            raise RpcUnavailable("missing trie node")
        return seat(run, who, at=at)

    monkeypatch.setattr(world.chain, "seat", pruned)
    with pytest.raises(RpcUnavailable):
        bench._hardware(early)


def test_a_validator_starts_again_while_the_hub_is_away(stage: Stage) -> None:
    key, home, kept = stage.validator(), stage.home("validator", "validator"), stage.folder / "spec.json"
    stage.publish()
    ValidatorService(stage.connection(key, kept_spec=kept), home, JudgeSettings()).close()
    stage.hub.stop()
    service = ValidatorService(stage.connection(key, kept_spec=kept), home, JudgeSettings())
    service.close()


def test_who_uploads_last_of_all_does_not_choose_what_is_never_judged(stage: Stage, panel: Panel) -> None:
    """A seat commits to more versions than a validator holds at least, and its false work for the first comes after all of them."""
    node, key = stage.seated(), stage.validator()
    service = panel.start(key)
    other, made = stage.variant(1.3), []
    for number in range(2 * stage.tiny.spec.versions_kept + 2):
        stage.publish(None if number else other)  # for which work of the tiny model is false
        made.append(stage.make(node))
        stage.commit(node, made[-1].ref, made[-1].units)
        rounds(service, count=2)
    first = made[0]
    stage.upload(node, first.ref, first.path)
    submission = first.ref.submission_id(stage.world.run)
    until(lambda: submission in {r.submission for r in panel.all_receipts()}, service, what="it is judged")
    (receipt,) = [r for r in panel.all_receipts() if r.submission == submission]
    assert (receipt.outcome.name, receipt.details.rule) == ("HARD", "computation")


def test_what_nobody_keeps_the_weights_of_is_left_alone_and_told_in_one_line(
    stage: Stage, panel: Panel, caplog: pytest.LogCaptureFixture
) -> None:
    """A new validator finds a window full of it: a warning each, again and again, would hide all else."""
    node = stage.seated()
    stage.publish()
    for sequence in range(3):
        stage.submit(node, stage.make(node, sequence))
    for _ in range(stage.tiny.spec.versions_kept):
        stage.publish()
    service = panel.seat()
    with caplog.at_level("INFO", "validator"):
        until(lambda: not len(service._workload), service, what="all are left alone")
        rounds(service, count=2)
    assert not panel.all_receipts()
    assert [r.getMessage() for r in caplog.records if r.name == "validator"] == [
        "3 submissions cannot be judged here and are left alone: nobody keeps version 0 of the weights any more"
    ]
    assert len(panel.start(service._c.key)._workload) == 0, "also after a restart"


def test_what_cannot_be_judged_yet_is_told_once(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = stage.seated()
    stage.publish()
    service, attempts = panel.seat(), []
    stage.submit(node, stage.make(node))

    def fail(task: object) -> None:
        attempts.append(task)
        raise Unavailable("the hub does not answer")

    monkeypatch.setattr(service._attempts, "judge", fail)
    until(lambda: len(attempts) > 2, service, what="several attempts")
    assert caplog.text.count("no verdict yet: the hub does not answer") == 1
