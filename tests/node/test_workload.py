"""Who judges what, and when: every submission once, through restarts, reorgs and endpoints that fail."""

from __future__ import annotations

from typing import Any

import pytest

from node.validator import workload
from protocol import rendezvous
from protocol.errors import RpcUnavailable
from protocol.verdict import Outcome
from tests.node.judging import line
from tests.node.stage import Panel, Stage, rounds, until


def test_honest_work_is_accepted_and_each_submission_judged_once(stage: Stage, panel: Panel) -> None:
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


def test_who_took_its_seat_after_a_commitment_stands_in_last(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would begin with a window full of what others have judged, whose weights nobody keeps any more."""
    node, seated = stage.seated(), stage.validator()
    stage.publish()
    before = [stage.submit(node, stage.make(node, sequence)) for sequence in range(2)]
    late = stage.validator()
    after = stage.submit(node, stage.make(node, 2))
    monkeypatch.setattr(
        rendezvous, "order", lambda submission, block, among: sorted(among, key=lambda v: v != late.address)
    )
    monkeypatch.setattr(workload, "_line", workload._line.__wrapped__)
    service = panel.start(late)
    rounds(service)
    assert [r.submission for r in panel.all_receipts()] == [after]
    assert all(submission in service._workload for submission in before), "it may have to stand in"
    rounds(panel.start(seated))
    rounds(service, count=2)
    assert {r.submission for r in panel.all_receipts() if r.validator == seated.address} == set(before)
    assert len(service._workload) == 0


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


def test_submissions_are_judged_in_the_order_in_which_their_windows_end(stage: Stage, panel: Panel) -> None:
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


def test_a_book_that_was_read_anew_loses_no_submission_and_judges_nothing_twice(stage: Stage, panel: Panel) -> None:
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


def test_a_chain_that_fails_in_the_middle_of_the_news_loses_no_submission(
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
