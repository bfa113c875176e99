"""Two validators for a hard verdict: what is secret, shown, shared, or softened, and when, whoever is slow, silent or a friend of the cheat."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.responses import PlainTextResponse, Response

from node.validator import judgement_log as states
from node.validator.service import ValidatorService
from protocol.chain.types import State
from protocol.verdict import Outcome
from tests.node.judging import asked_for, disagrees, in_line, inflated, past_grace, softly_wrong
from tests.node.stage import Panel, Stage, rounds, until


def asks(service: ValidatorService, submission: bytes) -> bool:
    """Whether it waits for another validator's word, since a known time."""
    judgement = service._judgements.get(submission)
    return judgement is not None and judgement.state == states.WAITING and judgement.asked_at is not None


def test_a_hard_finding_stays_secret_until_a_second_validator_confirms_it(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    services = panel.seat(), panel.seat()
    made, submission = inflated(stage, node)
    first, second = in_line(stage, submission, *services)
    rounds(first)
    assert not panel.receipts(submission)
    assert asked_for(stage)
    assert panel.state(made.ref) == State.SUBMITTED
    rounds(second, first)
    assert {r.outcome for r in panel.receipts(submission).values()} == {Outcome.HARD}
    assert len(panel.receipts(submission)) == 2
    assert (panel.state(made.ref), panel.case(made.ref).hard) == (State.CHALLENGED, True)


def test_a_hard_finding_that_the_second_does_not_share_is_soft(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = stage.seated()
    stage.publish()
    services = panel.seat(), panel.seat()
    made, submission = inflated(stage, node)
    first, second = in_line(stage, submission, *services)
    disagrees(second, monkeypatch)
    rounds(first, second)
    told = {validator: r.outcome for validator, r in panel.receipts(submission).items()}
    assert told == {first._address: Outcome.SOFT, second._address: Outcome.ACCEPT}
    assert (panel.state(made.ref), panel.case(made.ref).hard) == (State.CHALLENGED, False)


def test_one_that_shares_nothing_does_not_outvote_one_that_does(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three validators one is a friend of the cheat and the quickest to answer."""
    node = stage.seated()
    stage.publish()
    services = panel.seat(), panel.seat(), panel.seat()
    made, submission = inflated(stage, node)
    first, friend, honest = in_line(stage, submission, *services)
    disagrees(friend, monkeypatch)
    rounds(first)
    rounds(friend)
    rounds(first)
    assert panel.state(made.ref) == State.SUBMITTED, "the third may still speak"
    rounds(honest, first)
    assert (panel.state(made.ref), panel.case(made.ref).hard) == (State.CHALLENGED, True)


def test_a_hard_finding_that_nobody_answers_is_soft(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    keys = stage.validator(), stage.validator()
    made, submission = inflated(stage, node)
    services = [panel.start(key, opinion_seconds=30, fallback_seconds=0.01) for key in keys]
    until(lambda: asks(services[0], submission), services[0], what="the request")
    rounds(services[0])
    assert panel.state(made.ref) == State.SUBMITTED, "it waits"
    stage.world.anvil.advance(31)
    until(lambda: panel.receipts(submission), services[0], what="the receipt")
    rounds(services[0])
    assert panel.state(made.ref) == State.SUBMITTED, "it was only just shown"
    stage.world.anvil.advance(31)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, services[0], what="the challenge")
    assert not panel.case(made.ref).hard
    assert {validator: r.outcome for validator, r in panel.receipts(submission).items()} == {
        services[0]._address: Outcome.HARD
    }


@pytest.mark.parametrize("seconds", [20, 130, 1000])
def test_a_cheat_that_keeps_validators_busy_does_not_get_soft_for_hard(
    stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """The programs of its next submission take as long, in block time, and the second validator is as busy."""
    node = stage.seated()
    keys = [stage.validator() for _ in range(2)]
    stage.publish()
    made, submission = inflated(stage, node)
    one, two = (panel.start(key, opinion_seconds=120.0, fallback_seconds=0.01) for key in keys)
    until(lambda: asks(one, submission), one, what="the request")
    stage.submit(node, stage.make(node, 1))
    judge = one._bench.judge

    def long(*arguments: Any, **options: Any) -> Any:
        if arguments[0].ref.sequence == 1:
            stage.world.anvil.advance(seconds)
        return judge(*arguments, **options)

    monkeypatch.setattr(one._bench, "judge", long)
    rounds(one, count=4)
    assert {r.outcome for r in panel.receipts(submission).values()} <= {Outcome.HARD}
    assert one._judgements.get(submission).state == states.WAITING
    until(lambda: panel.state(made.ref) == State.CHALLENGED, one, two, what="the challenge")
    assert panel.case(made.ref).hard


def test_a_second_validator_that_was_busy_for_longer_than_is_waited_accuses_by_itself(
    stage: Stage, panel: Panel
) -> None:
    node = stage.seated()
    stage.publish()
    keys = stage.validator(), stage.validator()
    made, submission = inflated(stage, node)
    one, two = (panel.start(key, opinion_seconds=30, fallback_seconds=0.01) for key in keys)
    until(lambda: asks(one, submission), one, what="the request")
    for _ in range(3):
        stage.world.anvil.advance(31)
        rounds(one)
    assert (panel.state(made.ref), panel.case(made.ref).hard) == (State.CHALLENGED, False)
    until(lambda: stage.world.chain.seat(stage.world.run, node.address).open_hard, two, one, what="the accusation")


def test_a_validator_that_was_down_hears_before_it_gives_up_the_second(stage: Stage, panel: Panel) -> None:
    """It was shown long ago by then; while the hub tells nothing, nothing is decided."""
    node = stage.seated()
    stage.publish()
    keys = stage.validator(), stage.validator()
    _, submission = inflated(stage, node)
    one, two = (panel.start(key, opinion_seconds=30, fallback_seconds=0.01) for key in keys)
    until(lambda: asks(one, submission), one, what="the request")
    stage.world.anvil.advance(16)
    until(lambda: panel.receipts(submission), one, what="the receipt")
    panel.end(one._c.key)
    stage.world.anvil.advance(100)
    until(lambda: len(panel.receipts(submission)) == 2, two, what="the second's receipt")
    one = panel.start(one._c.key, opinion_seconds=30)
    stage.hub.fault = lambda method, path: PlainTextResponse("", 503)
    rounds(one)
    assert one._judgements.get(submission).state == states.WAITING
    stage.hub.fault = lambda *_: None
    until(lambda: one._judgements.get(submission).state != states.WAITING, one, what="the decision")
    assert one._judgements.get(submission).outcome == Outcome.HARD


@pytest.mark.parametrize("is_down", [False, True], ids=["hub", "no hub"])
def test_the_end_of_the_window_is_not_waited_for(stage: Stage, panel: Panel, is_down: bool) -> None:
    node = stage.seated()
    stage.publish()
    keys = stage.validator(), stage.validator()
    made, submission = inflated(stage, node)
    window = stage.world.chain.policy(stage.world.run).window
    service = panel.start(keys[0], opinion_seconds=10 * window, fallback_seconds=0.01)
    until(lambda: asks(service, submission), service, what="the request")
    if is_down:
        stage.hub.fault = lambda method, path: PlainTextResponse("", 503)
    stage.world.anvil.advance(window - window // 10 + 2)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, service, what="the challenge")
    assert not panel.case(made.ref).hard
    assert service._judgements.get(submission).posting != states.SECRET


def test_a_hard_finding_made_late_in_its_window_may_still_be_shared(stage: Stage, panel: Panel) -> None:
    """After an outage, or behind a backlog."""
    node = stage.seated()
    stage.publish()
    keys = stage.validator(), stage.validator()
    made, submission = inflated(stage, node)
    stage.world.anvil.advance(stage.world.chain.policy(stage.world.run).window - 420)
    services = [panel.start(key, opinion_seconds=120, fallback_seconds=0.01, batch_seconds=600.0) for key in keys]
    first, second = in_line(stage, submission, *services)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, first, second, what="the challenge")
    assert panel.case(made.ref).hard


def test_a_soft_finding_made_late_in_its_window_waits_for_no_others(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    key = stage.validator()
    made, _ = softly_wrong(stage, node)
    stage.world.anvil.advance(stage.world.chain.policy(stage.world.run).window - 300)
    service = panel.start(key, fallback_seconds=0.01, batch_seconds=600.0)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, service, what="the challenge")


def test_a_hub_that_takes_no_request_does_not_make_it_soft(stage: Stage, panel: Panel) -> None:
    """Or a cheat would only have to keep the hub busy for as long as an opinion is waited for."""
    node = stage.seated()
    stage.publish()
    keys = stage.validator(), stage.validator()
    made, submission = inflated(stage, node)
    first, second = in_line(stage, submission, *(panel.start(key, opinion_seconds=0.05) for key in keys))
    stage.hub.fault = lambda method, path: PlainTextResponse("", 503) if method == "POST" else None
    rounds(first, count=20)
    assert panel.state(made.ref) == State.SUBMITTED
    assert first._judgements.get(submission).state == states.WAITING
    stage.hub.fault = lambda method, path: None
    second = panel.start(second._c.key, opinion_seconds=600)
    first = panel.start(first._c.key, opinion_seconds=600)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, first, second, what="the challenge")
    assert panel.case(made.ref).hard


def test_two_that_wait_for_each_other_find_out(stage: Stage, panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both judged by themselves and ask at the same time; neither sees that the other asked as well."""
    node = stage.seated()
    stage.publish()
    keys = stage.validator(), stage.validator()
    made, submission = inflated(stage, node)
    services = [panel.start(key, fallback_seconds=0.01, opinion_seconds=30) for key in keys]
    monkeypatch.setattr(stage.hub._database, "opinions", lambda after, most: [])  # unheard
    until(lambda: all(asks(service, submission) for service in services), *services, what="both wait")
    stage.world.anvil.advance(16)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, *services, what="the challenge")
    assert panel.case(made.ref).hard


def test_an_only_validator_needs_no_second(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    service = panel.seat()
    made, submission = inflated(stage, node)
    rounds(service)
    assert panel.receipts(submission)[service._address].outcome == Outcome.HARD
    assert panel.case(made.ref).hard


def test_a_hub_that_takes_no_more_requests_gets_receipts_all_the_same(stage: Stage, panel: Panel) -> None:
    """Only receipts make room for requests."""
    node = stage.seated()
    stage.publish()
    key, _ = stage.validator(), stage.validator()
    _, hard = inflated(stage, node)
    _, soft = softly_wrong(stage, node, 1)
    past_grace(stage)
    service = panel.start(key, fallback_seconds=0.01)

    def full(method: str, path: str) -> Response | None:
        return PlainTextResponse("enough", 409) if method == "POST" and path.endswith("/opinions") else None

    stage.hub.fault = full
    until(lambda: panel.receipts(soft), service, what="the receipt that is no secret")
    assert not asks(service, hard)
    stage.hub.fault = lambda *_: None
    until(lambda: asks(service, hard), service, what="the request")


def test_a_validator_that_asks_and_then_falls_silent_saves_nobody(stage: Stage, panel: Panel) -> None:
    """It could ask about all submissions of a friend, so that the others take theirs for mere opinions."""
    node = stage.seated()
    stage.publish()
    accomplice = stage.validator()
    key = stage.validator()
    made, submission = inflated(stage, node)
    stage.client(accomplice).ask_opinion(submission)
    service = panel.start(key, opinion_seconds=30)
    until(lambda: asks(service, submission), service, what="the finding")
    stage.world.anvil.advance(31)
    until(lambda: panel.state(made.ref) == State.CHALLENGED, service, what="the challenge")
    assert panel.receipts(submission)[key.address].outcome == Outcome.HARD
    assert not panel.case(made.ref).hard


def test_two_that_were_asked_and_agree_need_no_word_of_who_asked(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    accomplice = stage.validator()
    one, two = panel.seat(), panel.seat()
    made, submission = inflated(stage, node)
    stage.client(accomplice).ask_opinion(submission)
    rounds(one, two)
    assert len(panel.receipts(submission)) == 2
    assert (panel.state(made.ref), panel.case(made.ref).hard) == (State.CHALLENGED, True)


def test_a_request_that_comes_before_the_commitment_is_not_forgotten(stage: Stage, panel: Panel) -> None:
    """The hub may be ahead of this validator's chain."""
    node = stage.seated()
    stage.publish()
    services = panel.seat(), panel.seat()
    before = services[0]._book.poll()
    services[1]._book.poll()
    made, submission = inflated(stage, node)
    first, second = in_line(stage, submission, *services)
    second._book.poll = lambda: before  # its endpoint lags behind
    rounds(first, count=2)
    rounds(second, count=2)
    assert submission in second._receipts
    del second._book.poll
    rounds(second, first)
    assert panel.case(made.ref).hard


def test_a_waiting_finding_survives_a_restart(stage: Stage, panel: Panel) -> None:
    node = stage.seated()
    stage.publish()
    services = panel.seat(), panel.seat()
    made, submission = inflated(stage, node)
    first, second = in_line(stage, submission, *services)
    rounds(first, count=2)
    rounds(second, count=2)
    first = panel.start(first._c.key)
    rounds(first, second)
    assert (panel.state(made.ref), panel.case(made.ref).hard) == (State.CHALLENGED, True)
    assert len(panel.receipts(submission)) == 2
