"""The validator service: every submission is judged once, nothing else's fault becomes a verdict, and no file escapes one."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from starlette.responses import PlainTextResponse, Response
from swarm.tiny_run import longest, with_sample

from node.contributor.generation import Made
from node.validator import bench
from protocol import rendezvous, rollout
from protocol.chain.types import State
from protocol.constants import UPLOAD_SECONDS_MAX
from protocol.errors import DeadlineExceeded, RpcUnavailable, Unavailable
from protocol.identity import Key
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome
from tests.clock import VirtualClock
from tests.node.judging import line
from tests.node.stage import Panel, Stage, eventually, rounds, until


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


# ---- who judges --------------------------------------------------------------------------------------------------------


def test_honest_work_is_accepted_and_each_work_judged_once(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    one, two = panel.seat(), panel.seat()
    submissions = [stage.submit(node, stage.make(node, sequence)) for sequence in range(4)]
    rounds(one, two)
    found = panel.all_receipts()
    assert sorted(r.submission for r in found) == sorted(submissions)
    assert {r.outcome for r in found} == {Outcome.ACCEPT}
    assert all(r.validator == line(stage, r.submission)[0] for r in found)
    assert all(r.details.sequences_checked == stage.tiny.spec.samples for r in found), "a newcomer is checked in full"


def test_the_next_in_line_stands_in_for_a_silent_validator(stage: Stage, panel: Panel) -> None:
    node, keys = stage.seated(), [stage.validator(), stage.validator()]
    stage.publish()
    submission = stage.submit(node, stage.make(node))
    stand_in = next(key for key in keys if key.address == line(stage, submission)[1])
    patient = panel.start(stand_in, fallback_seconds=600)
    rounds(patient)
    assert not panel.all_receipts()
    until(lambda: panel.receipts(submission), panel.start(stand_in, fallback_seconds=0.05), what="the stand-in judges")


def test_a_validator_that_lost_its_seat_does_not_count(stage: Stage, panel: Panel) -> None:
    """Also not after a restart, when all events are read anew."""
    world, gone = stage.world, stage.validator()
    node = stage.seated()
    stage.publish()
    world.owner.send(world.chain.approve_validator(world.run, gone.address, False))
    service = panel.seat()
    stage.world.anvil.advance(
        stage.world.chain.policy(world.run).span
    )  # until then it judges what was submitted before
    submissions = [stage.submit(node, stage.make(node, sequence)) for sequence in range(3)]
    rounds(service)
    assert service._book.validators(world.chain.block().time) == {service._address}
    assert sorted(r.submission for r in panel.all_receipts()) == sorted(submissions)


def test_what_enough_have_judged_leaves_the_queue_until_one_of_them_loses_its_seat(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue of all that was submitted in a window would cost more every minute; yet nothing may be left unjudged."""
    world, gone, stays = stage.world, stage.validator(), stage.validator()
    node = stage.seated()
    stage.publish()
    monkeypatch.setattr(
        rendezvous, "order", lambda submission, block, among: sorted(among, key=lambda v: v != gone.address)
    )
    world.owner.send(world.chain.approve_validator(world.run, gone.address, False))
    world.anvil.advance(world.chain.policy(world.run).span - 60)  # until then it judges what is submitted
    submissions = [stage.submit(node, stage.make(node, sequence)) for sequence in range(2)]
    first, second = panel.start(gone), panel.start(stays)
    rounds(second, count=2)
    assert all(submission in second._workload for submission in submissions), "it may have to stand in"
    rounds(first)
    rounds(second, count=1)
    assert len(second._workload) == 0
    assert len(panel.start(stays)._workload) == 0, "also after a restart"
    world.anvil.advance(120)
    second = panel.start(stays)
    until(lambda: len(panel.all_receipts()) == 4, second, what="the one that is left judges them as well")


def test_works_are_judged_in_the_order_in_which_their_windows_end(stage: Stage, panel: Panel) -> None:
    """After an outage, say; a step may go on a little after the next one has begun. Only who is asked about a submission judges it
    before its turn."""
    one, two, three, four = nodes = [stage.seated() for _ in range(4)]
    stage.publish()
    made = {node: stage.make(node) for node in nodes[:3]}
    first = stage.submit(one, made[one])
    stage.publish()
    of_next = stage.submit(four, stage.make(four))
    stage.world.anvil.advance(5)
    of_before = stage.submit(two, made[two])
    stage.world.anvil.advance(5)
    request = stage.submit(three, made[three])
    key = stage.validator()
    stage.client(key).ask_opinion(request)
    service = panel.start(key)
    until(lambda: len(panel.all_receipts()) == 4, service, what="all are judged")
    assert [receipt.submission for receipt in panel.all_receipts()] == [request, first, of_next, of_before]


def test_a_restart_judges_nothing_twice_and_forgets_nothing(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    first = stage.submit(node, stage.make(node, 0))
    rounds(service)
    late = stage.make(node, 1)
    second = stage.commit(node, late.ref, late.units)  # its file comes while the validator is down
    rounds(service)
    service = panel.start(service._c.key)
    stage.upload(node, late.ref, late.path)
    posts = len(_posts(stage))
    rounds(service)
    assert [r.submission for r in panel.all_receipts()] == [first, second]
    assert len(_posts(stage)) == posts + 1


def test_a_book_that_was_read_anew_loses_no_work_and_judges_nothing_twice(stage: Stage, panel: Panel) -> None:
    """Its numbers begin anew, and soon stand above the place up to which the old one was followed: nothing would be missed."""
    node, key = stage.seated(), stage.validator()
    stage.publish()
    service = panel.start(key)
    judged = stage.submit(node, stage.make(node, 0))
    late, unheard = stage.make(node, 1), stage.make(node, 2)
    waiting = stage.commit(node, late.ref, late.units)  # known, its file is still missing
    rounds(service)
    home = stage.home(panel.end(key), "validator")
    new = stage.submit(node, unheard)
    for file in home.data.glob("chain.sqlite*"):
        file.unlink()
    stage.upload(node, late.ref, late.path)
    service = panel.start(key)
    until(lambda: len(panel.all_receipts()) == 3, service, what="all are judged")
    assert sorted(r.submission for r in panel.all_receipts()) == sorted([judged, waiting, new])
    assert service._judgements.totals() == {int(Outcome.ACCEPT): 3}


def _posts(stage: Stage) -> list[tuple[str, str]]:
    return [request for request in stage.hub.requests if request[0] == "POST" and request[1].endswith("/receipts")]


def test_a_chain_that_fails_in_the_middle_of_the_news_loses_no_work(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever call it is that fails: a submission that is overlooked would be paid unchecked."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    rounds(service)
    submissions = [stage.submit(node, stage.make(node, sequence)) for sequence in range(3)]
    chain, failures = stage.world.chain, iter(range(2))
    for name in ("ask", "block", "block_hash"):
        plain = getattr(chain, name)
        count = iter(range(1, 100))

        def flaky(*arguments: Any, plain: Any = plain, count: Any = count, **how: Any) -> Any:
            if next(count) == 2 and next(failures, None) is not None:
                raise RpcUnavailable("no answer")
            return plain(*arguments, **how)

        monkeypatch.setattr(chain, name, flaky)
    failed = 0
    for _ in range(10):
        try:
            service.turn()
        except RpcUnavailable:
            failed += 1
    assert failed
    assert sorted(r.submission for r in panel.all_receipts()) == sorted(submissions)


def test_what_a_reorg_took_back_is_forgotten(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    made = stage.make(node)
    submission = stage.commit(node, made.ref, made.units)
    rounds(service)
    assert submission in service._workload
    stage.world.anvil.request("anvil_reorg", 1, [])
    rounds(service)
    assert submission not in service._workload
    assert not panel.all_receipts()


# ---- missing files -------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_soft_after_the_grace_time_and_not_before(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    made = stage.make(node)
    submission = stage.commit(node, made.ref, made.units)
    rounds(service)
    stage.world.anvil.advance(stage.tiny.spec.upload_grace_seconds + 5)
    rounds(service)
    assert not panel.all_receipts(), "an upload that began in time may still go on"
    stage.world.anvil.advance(UPLOAD_SECONDS_MAX)
    until(lambda: panel.receipts(submission), service, what="the verdict")
    receipt = panel.receipts(submission)[service._address]
    assert (receipt.outcome, receipt.details.rule) == (Outcome.SOFT, "available")
    assert (panel.state(made.ref), panel.case(made.ref).hard) == (State.CHALLENGED, False)


def test_a_file_that_the_hub_holds_is_never_called_missing(stage: Stage, panel: Panel) -> None:
    """The hub cannot serve it just now: that is no fault of the node, however long it takes."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    made = stage.make(node)
    submission = stage.submit(node, made)
    stage.hub.fault = lambda method, path: PlainTextResponse("", 404) if "/files/" in path else None
    stage.world.anvil.advance(stage.tiny.spec.upload_grace_seconds + UPLOAD_SECONDS_MAX + 100)
    rounds(service)
    assert not panel.all_receipts()
    assert panel.state(made.ref) == State.SUBMITTED
    stage.hub.fault = lambda method, path: None
    until(lambda: panel.receipts(submission), service, what="the verdict")
    assert panel.receipts(submission)[service._address].outcome == Outcome.ACCEPT


def test_a_file_that_comes_at_the_last_moment_is_judged_though_its_version_is_gone(stage: Stage, panel: Panel) -> None:
    """Withholding the file until nobody keeps the weights any more must not save a submission from its verdict."""
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    made = stage.make(node)
    submission = stage.commit(node, made.ref, made.units + 1)  # inflated
    rounds(service)
    for _ in range(stage.tiny.spec.versions_kept + 1):
        stage.publish()
        rounds(service, count=1)
    stage.upload(node, made.ref, made.path)
    until(lambda: panel.receipts(submission), service, what="the verdict")
    assert panel.receipts(submission)[service._address].details.rule == "tokens"


def test_a_work_whose_version_is_gone_does_not_hold_up_the_others(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    old = stage.submit(node, stage.make(node))
    for _ in range(stage.tiny.spec.versions_kept + 1):
        stage.publish()
    service = panel.seat()  # it was not there in time
    new = stage.submit(node, stage.make(node))
    until(lambda: panel.receipts(new), service, within=10, what="the verdict on the new one")
    assert not panel.receipts(old)
    assert panel.receipts(new)[service._address].outcome == Outcome.ACCEPT


def test_a_work_whose_version_is_gone_is_held_to_the_rules_that_need_no_weights(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a long outage its window may still be open. Only what is found is said: nothing is accepted."""
    node, key = stage.seated(), stage.validator()
    stage.publish()
    made = stage.make(node)
    inflated = stage.commit(node, made.ref, made.units + 1)
    stage.upload(node, made.ref, made.path)
    honest = stage.make(node, 1)
    stage.submit(node, honest)
    for _ in range(stage.tiny.spec.versions_kept + 1):
        stage.publish()
    judged: list[SubmissionRef] = []

    def judge(candidate: Any, *rules: Any) -> Any:
        judged.append(candidate.commitment.ref)
        return judging(candidate, *rules)

    judging = bench.judge
    monkeypatch.setattr(bench, "judge", judge)
    service = panel.start(key)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, service, what="the challenge")
    rounds(service, count=20)
    assert panel.case(made.ref).hard
    assert [(r.submission, r.outcome, r.details.rule) for r in panel.all_receipts()] == [
        (inflated, Outcome.HARD, "tokens")
    ]
    assert judged.count(honest.ref) == 1, "asking the same rules again would find the same"


# ---- the validator's own trouble ---------------------------------------------------------------------------------------


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


def test_verifiers_that_do_not_work_at_all_give_no_verdict(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stage.seated()
    stage.publish()
    service, sandbox = panel.seat(), None
    sandbox = service._bench.context.sandbox
    scored = sandbox.score

    def dead(*arguments: Any, **options: Any) -> list[float]:
        raise Unavailable("the sandbox does not start")

    monkeypatch.setattr(sandbox, "score", dead)
    monkeypatch.setattr(sandbox, "warm_up", dead)
    made = stage.make(node)
    submission = stage.submit(node, made)
    rounds(service)
    assert not panel.all_receipts()
    monkeypatch.setattr(sandbox, "score", scored)
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


# ---- hostile works -------------------------------------------------------------------------------------------------------


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
    scored = sandbox.score

    def breaking(items: Any, **options: Any) -> list[float]:
        if any(problem in poison for problem, _ in items):
            raise DeadlineExceeded("the sandbox failed twice: it ended")
        return scored(items, **options)

    monkeypatch.setattr(sandbox, "score", breaking)
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
    scored = sandbox.score

    def narrow(items: Any, **options: Any) -> list[float]:
        if len(items) > 1:
            raise DeadlineExceeded("the sandbox failed twice: no answer within 30 s")
        return scored(items, **options)

    submission = stage.submit(node, stage.make(node))
    monkeypatch.setattr(sandbox, "score", narrow)
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

    monkeypatch.setattr(service, "_judge_task", fail)
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
    assert service._bench.commitment(service._book.submission(submission), service._book).beacon != bytes(32)
    assert all(r.outcome == Outcome.ACCEPT for r in panel.all_receipts())


def test_an_endpoint_that_fails_while_seats_change_loses_nothing(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = panel.seat()
    service.turn()
    workload, before = service._workload, service._workload._serving
    other = stage.validator()
    service._book.poll()

    def fail(now: int) -> None:
        raise RpcUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(workload._receipts, "greet", fail)
        with pytest.raises(RpcUnavailable):
            workload._seats(service._now())
    assert workload._serving == before
    workload._seats(service._now())
    assert other.address in workload._serving


def test_news_is_kept_until_it_was_taken_in(stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint that fails while requests of others are looked at costs none of them."""
    service, asked = panel.seat(), bytes(31) + b"\x01"
    service.turn()
    service._receipts._asked.append(asked)
    heard: list[bytes] = []

    def fail(*_: object) -> None:
        raise RpcUnavailable("no answer")

    monkeypatch.setattr(service._workload, "heard", fail)
    with pytest.raises(RpcUnavailable):
        service._hear(service._now())
    monkeypatch.setattr(service._workload, "heard", lambda requests, receipts, now: heard.extend(requests))
    service._hear(service._now())
    service._hear(service._now())
    assert heard == [asked]
