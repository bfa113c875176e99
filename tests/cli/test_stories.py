"""What `node status` and `node submissions ID` tell of a seat and its cases, from the verdict to the last token that is taken out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from swarm.world import DAY

from node.contributor import case_story
from node.contributor.submission_log import SubmissionLog
from protocol.chain import Sender
from protocol.chain.calls import Call
from protocol.chain.transport import RpcTransport
from protocol.identity import Key
from protocol.shell.sentences import at
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome
from tests.cli.conftest import Contributor
from tests.cli.test_node import submitted, told


@dataclass
class Dispute:
    """A seat with two submissions, a case against the first of them, and the four validators of the run."""

    contributor: Contributor
    accused: SubmissionRef
    other: SubmissionRef
    id: str
    """Of the accused one."""
    validators: list[Sender]

    def status(self) -> str:
        return self.contributor.run("status").out

    def next(self) -> str:
        return str(self.contributor.status()["next"])

    def shown(self, ref: SubmissionRef | None = None) -> str:
        found = self.accused if ref is None else ref
        done = self.contributor.run("submissions", found.submission_id(self.contributor.world.run).hex())
        assert done.code == 0, done.err
        return done.out.replace(f" --home {self.contributor.path}", "")  # which commands of other homes name

    def settle(self) -> str:
        """Ends the case; the transaction."""
        world = self.contributor.world
        sent = self.validators[3].send(world.chain.settle(world.run, self.contributor.node, 1))
        assert sent is not None
        return f"0x{sent.hash.hex()}"

    def vote(self, found_false: int, found_hard: int) -> str:
        """Two of three jurors find this of it; the transaction of the second, which decides."""
        world = self.contributor.world
        call = world.chain.vote(world.run, self.contributor.node, 1, found_false, found_hard, bytes(32))
        sent = [juror.send(call) for juror in self.validators[1:3]][-1]
        assert sent is not None
        return f"0x{sent.hash.hex()}"


def dispute(contributor: Contributor, *, hard: bool) -> Dispute:
    world, keys = contributor.world, [Key.generate() for _ in range(4)]
    contributor.seat()
    world.publish(0)
    for key in keys:
        world.seat_validator(key)
    refs = submitted(contributor, 0), submitted(contributor, 1)
    if hard:
        world.accuse(keys[0], refs[0])
    else:
        world.sender(keys[0]).send(world.chain.challenge(world.run, [refs[0]], b"\x0e" * 32))
    submission = told(contributor, refs[0], Outcome.HARD if hard else Outcome.SOFT)
    return Dispute(contributor, *refs, submission, [world.sender(key) for key in keys])


def lines(text: str, word: str) -> str:
    """The line of a report that begins with this word."""
    return next(line for line in text.splitlines() if line.split(" ")[0] == word or line.startswith(f"  {word}"))


def test_an_open_case_says_until_when_it_can_be_appealed(contributor: Contributor) -> None:
    case = dispute(contributor, hard=True)
    chain, run = contributor.world.chain, contributor.world.run
    before = at(chain.case(run, contributor.node, 1).deadline)
    assert f"node appeal where a verdict is wrong, before {before} UTC (in 1 h)" in case.next()
    assert f"upheld unless it is appealed before {before} UTC" in lines(case.status(), "case 1")
    assert f"node appeal {case.id[:12]}, if the verdict is wrong, before {before} UTC" in lines(case.shown(), "next:")
    contributor.world.anvil.advance(3600)
    assert "nobody can appeal any more" in lines(case.shown(), "next:")
    assert "appeal" not in case.next()


def test_an_appealed_case_says_until_when_it_is_voted_on(contributor: Contributor) -> None:
    case = dispute(contributor, hard=False)
    assert contributor.run("appeal", case.id, "--yes").code == 0
    until = at(contributor.world.chain.case(contributor.world.run, contributor.node, 1).deadline)
    assert lines(case.shown(), "next:").startswith(f"next: nothing; the other validators vote until {until} UTC")
    assert "appeal" not in case.next()
    contributor.world.anvil.advance(3600)
    assert "the votes are counted once somebody settles" in lines(case.shown(), "next:")


def test_a_lost_appeal_says_what_it_cost_and_offers_no_other(contributor: Contributor) -> None:
    case = dispute(contributor, hard=True)
    assert contributor.run("appeal", case.id, "--yes").code == 0
    transaction = case.vote(1, 1)
    cost = f"by the vote; 1000 units (10 MUR) revoked, 70 MUR of stake slashed, in transaction {transaction}"
    assert cost in lines(case.status(), "case 1"), "the penalty, and the bond of the operator's appeal"
    assert "banned (convicted)" in lines(case.status(), "seat")
    shown = case.shown()
    assert cost in lines(shown, "case")
    assert lines(shown, "next:") == "next: nothing; it is revoked for good and earns nothing"
    assert "none; it would have been 5 MUR" in lines(case.shown(case.other), "pay")
    assert "the seat's conviction took it" in lines(case.shown(case.other), "next:")
    listed = contributor.run("submissions").out
    assert " revoked " in listed
    assert " swept " in listed


def test_a_won_appeal_says_that_the_work_is_paid_and_when(contributor: Contributor) -> None:
    case = dispute(contributor, hard=True)
    assert contributor.run("appeal", case.id, "--yes").code == 0
    case.vote(0, 0)
    assert "cleared by the vote; the work is paid" in lines(case.status(), "case 1")
    assert "state     cleared" in (shown := case.shown())
    assert "node claim from" in lines(shown, "next:")


def test_a_banned_seat_is_told_the_way_out_to_the_last_token(contributor: Contributor) -> None:
    case = dispute(contributor, hard=True)
    world = contributor.world
    world.anvil.advance(3600)
    transaction = case.settle()
    told = contributor.status()
    assert [(c["slashed"], c["units_revoked"], c["transaction"]) for c in told["cases"]] == [
        (str(60 * 10**18), 1000, transaction)
    ]
    unlocked = at(told["unlocks_at"])
    assert f"40 MUR are locked until {unlocked} UTC" in lines(case.status(), "seat's")
    assert case.next() == f"nothing before {unlocked} UTC (in 1 d 5 h); then node unstake 40"
    world.anvil.advance(world.chain.policy(world.run).span)
    assert case.next() == "node unstake 40"
    assert contributor.run("unstake", "40", "--yes").code == 0
    assert case.next().endswith("(in 7 d); then node withdraw")
    assert f"from {at(contributor.status()['leaving_at'])} UTC" in lines(case.status(), "leaving")
    world.anvil.advance(7 * DAY)
    assert case.next() == "node withdraw"
    assert contributor.run("withdraw").code == 0
    assert case.next() == "nothing; no stake and no rewards are left here"


def test_after_leave_the_way_out_is_next_and_each_amount_has_its_date(contributor: Contributor) -> None:
    case = dispute(contributor, hard=False)
    world = contributor.world
    world.anvil.advance(3600)
    transaction = case.settle()
    assert f"1 MUR of stake slashed, in transaction {transaction}" in lines(case.status(), "case 1")
    assert contributor.run("leave", "--yes").code == 0
    (maturing,) = contributor.status()["maturing"]
    dated = f"5 MUR from {at(maturing['at'])} UTC"
    assert dated in lines(case.status(), "pending")
    assert case.next().startswith(f"nothing before {at(maturing['at'])} UTC")
    assert case.next().endswith("then node claim")
    world.anvil.advance(maturing["at"] - world.chain.block().time)
    assert (contributor.status()["ready_units"], case.next()) == (500, "node claim"), "no second later than it said"


def test_after_the_last_step_of_the_run_nothing_is_started(contributor: Contributor) -> None:
    contributor.seat()
    contributor.home.write_status(state="stopped", over=True)
    told = contributor.status()
    assert (told["over"], told["next"].split(":")[0]) == (True, "node leave")
    assert "the run is over" in contributor.run("status").out.splitlines()[0]


def test_a_node_that_was_stopped_before_the_last_step_hears_of_the_end_by_the_chain(contributor: Contributor) -> None:
    contributor.seat()
    contributor.home.write_status(state="stopped", last_step=2)
    for step in range(2):
        contributor.world.publish(step)
        told = contributor.status()
        assert (told["over"], told["next"]) == (False, "node start")
    contributor.world.publish(2)
    told = contributor.status()
    assert (told["over"], told["next"].split(":")[0]) == (True, "node leave")
    contributor.world.publish(3)  # the trainer went on after all
    assert contributor.status()["next"] == "node start"


def test_a_run_whose_owner_has_paused_it_and_taken_the_budget_is_over(contributor: Contributor) -> None:
    contributor.seat()
    world, runs = contributor.world, contributor.world.chain.runs
    world.owner.send(world.chain.pause(world.run, True))
    world.anvil.advance(120)
    assert not contributor.status()["over"], "it may go on"
    world.owner.send(Call("taking the budget", runs.functions.defund(world.run, 10**18)))
    world.anvil.advance(120)
    assert contributor.status()["over"]


def test_a_suspended_seat_says_until_when(contributor: Contributor) -> None:
    world, validator = contributor.world, Key.generate()
    contributor.seat()
    world.publish(0)
    world.seat_validator(validator)
    strikes = world.chain.policy(world.run).strikes
    refs = [submitted(contributor, sequence, units=10) for sequence in range(strikes)]
    sender = world.sender(validator)
    sender.send(world.chain.challenge(world.run, refs, b"\x0e" * 32))
    world.anvil.advance(3600)
    sender.send(world.chain.settle(world.run, contributor.node, 1))
    until = world.chain.block().time + DAY
    contributor.works(state="waiting")
    told = contributor.status()
    assert told["suspended_until"] == until
    assert f"suspended after {strikes} rejected submissions, until {at(until)} UTC" in contributor.run("status").out


def test_what_a_case_has_cost_is_told_when_no_endpoint_has_its_events_any_more(
    contributor: Contributor, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = dispute(contributor, hard=True)
    contributor.world.anvil.advance(3600)
    transaction = case.settle()
    monkeypatch.setattr(case_story, "_DEEP", 0)
    assert transaction in case.status()
    monkeypatch.setattr(case_story, "settlements", lambda *_: [])
    assert transaction in case.status(), "it was noted at the first look"
    log = SubmissionLog(contributor.home.data / "submissions.sqlite")
    log._db.execute("DELETE FROM settlements")
    log.close()
    assert "what it cost is in no event that the endpoint still has" in case.status()


def test_the_chain_is_asked_about_many_submissions_at_once(
    contributor: Contributor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public endpoint counts requests."""
    contributor.seat()
    contributor.world.publish(0)
    asked, post = 0, RpcTransport.post

    def counting(self: RpcTransport, url: str, body: object, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        return post(self, url, body, **options)

    monkeypatch.setattr(RpcTransport, "post", counting)
    counts = []
    for command in ("submissions", "status"):
        for sequences in ((0, 1), (2, 3, 4, 5)) if command == "submissions" else ((6, 7), (8, 9, 10)):
            for sequence in sequences:
                told(contributor, submitted(contributor, sequence), Outcome.SOFT)
            asked = 0
            assert contributor.run(command).code == 0
            counts.append(asked)
    assert counts[1] <= counts[0] + 1, "a batch holds ten requests"
    assert counts[3] <= counts[2] + 1


def test_without_a_chain_the_log_is_told(contributor: Contributor) -> None:
    case = dispute(contributor, hard=False)
    config = contributor.home.config
    config.write_text(config.read_text().replace(contributor.world.anvil.rpc, "http://127.0.0.1:9"))
    done = contributor.run("submissions", case.id)
    assert (done.code, "the chain cannot be asked" in done.err) == (0, True)
    assert "state     soft" in done.out
