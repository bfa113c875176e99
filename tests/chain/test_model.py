"""The deployed contracts do what the reference model does: same results, same refusals, same books, whoever does whatever when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from swarm.anvil import Anvil

from protocol.chain.types import Role, Stage
from protocol.submission import SubmissionRef
from tests.chain.model import Place, Run, Seat
from tests.chain.twins import NODES, OPERATORS, OWNERS, PEOPLE, POLICIES, TRAINER, VALIDATORS, Disagreement, Twins

pytestmark = pytest.mark.chain
CLOSED = (Stage.UPHELD, Stage.UNDECIDED, Stage.CLEARED)

pick = st.integers(0, 2**16)
Action = Callable[..., None]
ACTIONS: dict[str, tuple[Action, st.SearchStrategy[dict[str, Any]]]] = {}
WEIGHTED: list[str] = []

runs = st.sampled_from([1, 2, 3])
nodes = st.sampled_from(NODES)
validators = st.sampled_from(VALIDATORS)
anyone = st.sampled_from(PEOPLE)
amounts = st.integers(0, 150)
mostly = st.sampled_from([True] * 7 + [False])


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    anvil = Anvil(tmp_path_factory.mktemp("model"))
    try:
        twins = Twins(anvil)
        twins.settle_in()
        yield twins
    finally:
        anvil.stop()


def often(weight: int, **choices: st.SearchStrategy[Any]) -> Callable[[Action], Action]:
    """Marks something to do, `weight` times as often as what has weight 1, and what there is to draw for it."""

    def mark(action: Action) -> Action:
        ACTIONS[action.__name__] = (action, st.fixed_dictionaries(choices))
        WEIGHTED.extend([action.__name__] * weight)
        return action

    return mark


class Machine(RuleBasedStateMachine):
    """Random people do random things, right or wrong, at random times."""

    twins: Twins

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        """One rule for all: Hypothesis leaves out some of the rules in each example, and a case needs many of them."""
        name = data.draw(st.sampled_from(WEIGHTED), "action")
        action, choices = ACTIONS[name]
        action(self, **data.draw(choices, name))

    @initialize()
    def start_over(self) -> None:
        self.twins.start_over()

    # ---- what there is to choose from ------------------------------------------------------------------------------

    def _run(self, run: int) -> Run:
        return self.twins.model.runs[run]

    def _seats(self) -> list[tuple[int, Seat]]:
        return [(n, seat) for n, run in self.twins.model.runs.items() for seat in run.seats.values()]

    def _submissions(self, place: Place | None = None) -> list[tuple[int, SubmissionRef]]:
        everywhere = [(n, submission) for n, seat in self._seats() for submission in seat.submissions]
        return [(n, submission.ref) for n, submission in everywhere if place is None or submission.place == place]

    def _a_case(self, which: int, *stages: Stage) -> tuple[int, str, int, int]:
        """(run, seat, number, deadline) of a case, in one of these stages if there is one; of none where there is none."""
        numbered = [(n, seat.node, i, case) for n, seat in self._seats() for i, case in enumerate(seat.cases, 1)]
        wanted = [entry for entry in numbered if entry[3].stage in stages] or numbered
        if not wanted:
            return 1, NODES[0].address, 1, 0
        run, seat, number, case = wanted[which % len(wanted)]
        return run, seat, number, case.deadline

    def _stage(self, run: int, seat: str, number: int) -> Stage:
        cases = self._run(run).seat(seat).cases
        return cases[number - 1].stage if 0 < number <= len(cases) else Stage.NONE

    def _operator(self, seat: Seat) -> Any:
        return next((person for person in PEOPLE if person.address == seat.operator), OPERATORS[0])

    def _worker(self, run: int, node: Any) -> Any:
        """The key with which the node's seat works now."""
        return next(key for key in NODES if key.address == self._run(run).seat(node.address).key)

    def _seated(self, run: int, node: Any) -> Any:
        """This node, or one that has a seat where it has none and another has."""
        seats = self._run(run).seats
        seated = [key for key in NODES if key.address in seats and seats[key.address].role == Role.ACTIVE]
        return node if node in seated or not seated else seated[0]

    def _unseated(self, run: int, node: Any) -> Any:
        """This key, or one that no seat of the run has, had or works with where there is one."""
        of, names = self._run(run).seats, self._run(run).names
        free = [
            key
            for key in NODES
            if key.address not in names and (key.address not in of or of[key.address].role == Role.NONE)
        ]
        return node if node in free or not free else free[0]

    def _owner(self, run: int) -> Any:
        return next(owner for owner in OWNERS if owner.address == self._run(run).policy.owner)

    def _turning_points(self) -> list[int]:
        """Times to come at which something changes."""
        model, times = self.twins.model, []
        for run in model.runs.values():
            p = run.policy
            times += [run.paused_from, run.defunded_from]
            times += [publication.superseded + p.grace for publication in run.publications if publication.superseded]
            times += [v.until for v in run.validators.values()] + [
                v.until + 2 * p.span for v in run.validators.values()
            ]
            for seat in run.seats.values():
                times += [seat.until, seat.until + p.span, seat.strikes_since + p.window]
                times += [case.deadline for case in seat.cases if case.open]
                for submission in seat.submissions:
                    epoch = -(-p.window // 5)
                    times += [submission.time + p.window, (submission.time // epoch + 6) * epoch]
        times += [account.ready_at for account in model.accounts.values()]
        return sorted({time for time in times if time > self.twins.now + 3})

    def _wait_for(self, time: int) -> None:
        """The next action happens at `time`, if that is to come."""
        if time - 1 > self.twins.now:
            self.twins.wait_until(time - 1)

    # ---- time ------------------------------------------------------------------------------------------------------

    @often(2, which=pick, early=st.integers(0, 2))
    def wait_for_a_turning_point(self, which: int, early: int) -> None:
        if times := self._turning_points()[:12]:
            self._wait_for(times[which % len(times)] + 1 - early)
            self.twins.compare()

    @often(1, seconds=st.integers(2, 150))
    def wait(self, seconds: int) -> None:
        self.twins.wait_until(self.twins.now + seconds)

    # ---- money -----------------------------------------------------------------------------------------------------

    @often(1, by=anyone, to=anyone, amount=st.sampled_from([0, 1, 17, 100, 5000]))
    def deposit(self, by: Any, to: Any, amount: int) -> None:
        self.twins.deposit(by, to.address, amount)

    @often(2, by=st.sampled_from([*OPERATORS, *VALIDATORS]), amount=amounts, back=amounts, late=st.booleans())
    def stake_goes(self, by: Any, amount: int, back: int, late: bool) -> None:
        self.twins.unbond(by, amount)
        self.twins.rebond(by, back)
        if late and self.twins.model.account(by.address).leaving:
            self._wait_for(self.twins.model.account(by.address).ready_at)
        self.twins.withdraw(by)

    @often(2, by=anyone, run=st.sampled_from([1, 2, 3, 9]), amount=amounts)
    def fund(self, by: Any, run: int, amount: int) -> None:
        self.twins.fund(by, run, amount)

    @often(1, run=runs, amount=st.sampled_from([0, 1, 100, 400]), right=mostly, on=st.booleans(), other=anyone)
    def owner_announces(self, run: int, amount: int, right: bool, on: bool, other: Any) -> None:
        by = self._owner(run) if right else other
        if on:
            self.twins.defund(by, run, amount)
        else:
            self.twins.pause(by, run, amount > 100)

    @often(1, run=runs, other=anyone, right=mostly, late=st.booleans())
    def collect(self, run: int, other: Any, right: bool, late: bool) -> None:
        if late:
            self._wait_for(self._run(run).defunded_from)
        self.twins.collect(self._owner(run) if right else other, run)

    @often(1, run=runs, amount=st.sampled_from([10, 100, 400]), early=st.integers(0, 1))
    def owner_takes_out(self, run: int, amount: int, early: int) -> None:
        self.twins.defund(self._owner(run), run, amount)
        self._wait_for(self._run(run).defunded_from - early)
        self.twins.collect(self._owner(run), run)

    @often(2, run=runs, right=mostly, ahead=mostly, other=anyone)
    def publish(self, run: int, right: bool, ahead: bool, other: Any) -> None:
        step = len(self._run(run).publications) + (0 if ahead else 1)
        self.twins.publish(TRAINER if right else other, run, step)

    # ---- seats -----------------------------------------------------------------------------------------------------

    @often(3, run=runs, node=nodes, which=pick, hardware=st.integers(0, 2), valid=st.sampled_from("vvvvvex"))
    def join(self, run: int, node: Any, which: int, hardware: int, valid: str) -> None:
        """Valid, expired, or a consent for another run."""
        by = OPERATORS[which % 2]
        if valid == "v":
            self.twins.join(by, run, node, hardware)
        elif valid == "e":
            self.twins.join(by, run, node, hardware, deadline=self.twins.now)
        else:
            self.twins.join(by, run, node, hardware, for_run=run % 3 + 1)

    @often(1, run=runs, node=nodes, by=st.sampled_from([*OPERATORS, *OPERATORS, VALIDATORS[0]]))
    def leave(self, run: int, node: Any, by: Any) -> None:
        self.twins.leave(by, run, node.address)

    @often(1, run=runs, node=nodes, right=mostly, other=anyone)
    def ban(self, run: int, node: Any, right: bool, other: Any) -> None:
        self.twins.ban(self._owner(run) if right else other, run, node.address)

    @often(2, run=runs, node=nodes, new=nodes, right=mostly, other=anyone, valid=st.sampled_from("vvvvvex"))
    def rotate(self, run: int, node: Any, new: Any, right: bool, other: Any, valid: str) -> None:
        if right:
            node, new = self._seated(run, node), self._unseated(run, new)
        by = self._operator(self._run(run).seat(node.address)) if right else other
        if valid == "v":
            self.twins.rotate(by, run, node.address, new)
        elif valid == "e":
            self.twins.rotate(by, run, node.address, new, deadline=self.twins.now)
        else:
            self.twins.rotate(by, run, node.address, new, for_run=run % 3 + 1)

    @often(2, run=runs, node=nodes, to=st.sampled_from([*OPERATORS, VALIDATORS[4]]), right=mostly, other=anyone)
    def hand_over(self, run: int, node: Any, to: Any, right: bool, other: Any) -> None:
        self.twins.offer(
            self._operator(self._run(run).seat(node.address)) if right else other, run, node.address, to.address
        )
        self.twins.accept(to if right else other, run, node.address)

    @often(2, which=pick, late=st.booleans(), by=anyone)
    def release(self, which: int, late: bool, by: Any) -> None:
        leaving = [(n, seat) for n, seat in self._seats() if seat.until and seat.locked] or self._seats()
        run, seat = leaving[which % len(leaving)]
        if late and seat.until:
            self._wait_for(seat.until + self._run(run).policy.span)
        self.twins.release(by, run, seat.node)

    # ---- work ------------------------------------------------------------------------------------------------------

    def _turn(self, run: int, node: Any, fault: str) -> tuple[int, int, bytes]:
        r = self._run(run)
        seat = r.seat(node.address)
        step = max(0, len(r.publications) - (2 if fault == "s" else 1))
        sequence = (seat.next if step == seat.step else 0) + (fault == "n")
        beacon = bytes(32) if fault == "b" else r.publications[step].beacon
        return step, sequence, beacon

    def _submit(self, run: int, node: Any, sizes: list[int], fault: str) -> None:
        step, sequence, beacon = self._turn(run, node, fault)
        items = [(bytes([sequence % 256, i]) * 16, size) for i, size in enumerate(sizes)]
        self.twins.submit(node, run, step, sequence, beacon, items)

    @often(
        7,
        run=runs,
        node=st.sampled_from(NODES[:2]),
        size=st.integers(1, 25),
        old_key=st.sampled_from([False] * 9 + [True]),
    )
    def submit(self, run: int, node: Any, size: int, old_key: bool) -> None:
        self._submit(run, node if old_key else self._worker(run, node), [size], "")

    @often(4, run=runs, node=nodes, sizes=st.lists(st.integers(0, 12), max_size=4), fault=st.sampled_from("     nbs"))
    def submit_many(self, run: int, node: Any, sizes: list[int], fault: str) -> None:
        self._submit(run, node, sizes, fault)

    @often(1, run=runs, size=st.integers(20, 45), two=st.booleans())
    def submit_much(self, run: int, size: int, two: bool) -> None:
        self._submit(run, NODES[0], [size, size] if two else [size], "")

    @often(1, run=runs, node=nodes, fault=st.sampled_from("     nbs"), times=st.integers(1, 3))
    def skip(self, run: int, node: Any, fault: str, times: int) -> None:
        for _ in range(times):
            self.twins.skip(node, run, *self._turn(run, node, fault))

    @often(4, which=pick, late=mostly, by=anyone)
    def claim(self, which: int, late: int, by: Any) -> None:
        """Also when so many epochs have begun since the first submission that its units have just matured, or are about to."""
        earning = [(n, seat) for n, seat in self._seats() if any(w.place == Place.SEAT for w in seat.submissions)]
        run, seat = (earning or self._seats())[which % len(earning or self._seats())]
        if late and seat.submissions:
            epoch = -(-self._run(run).policy.window // 5)
            self._wait_for((seat.submissions[0].time // epoch + late) * epoch)
        self.twins.claim(by, run, seat.node)

    # ---- the bench -------------------------------------------------------------------------------------------------

    @often(1, run=runs, who=validators, on=mostly, right=mostly, other=anyone)
    def approve(self, run: int, who: Any, on: bool, right: bool, other: Any) -> None:
        self.twins.approve(self._owner(run) if right else other, run, who.address, on)

    @often(1, run=runs, who=validators, on=mostly)
    def enlist(self, run: int, who: Any, on: bool) -> None:
        self.twins.enlist(who, run, on)

    @often(2, run=runs, who=validators, late=st.booleans(), back=st.booleans(), by=anyone)
    def validator_goes(self, run: int, who: Any, late: bool, back: bool, by: Any) -> None:
        self.twins.enlist(who, run, False)
        v = self._run(run).validator(who.address)
        if late and v.until:
            self._wait_for(v.until + (0 if back else 2 * self._run(run).policy.span))
        self.twins.release_validator(by, run, who.address)
        if back:
            self.twins.enlist(who, run, True)

    @often(2, run=runs, who=validators, amount=amounts)
    def reinforce(self, run: int, who: Any, amount: int) -> None:
        self.twins.reinforce(who, run, amount)

    @often(1, run=runs, who=validators, by=anyone)
    def unseat(self, run: int, who: Any, by: Any) -> None:
        """One that has lost too much, if there is one."""
        weak = [
            (n, address)
            for n, r in self.twins.model.runs.items()
            for address, v in r.validators.items()
            if v.permanent and v.locked < r.policy.bond
        ]
        self.twins.unseat(by, *(weak or [(run, who.address)])[0])

    @often(2, which=pick, late=st.booleans(), by=anyone)
    def release_validator(self, which: int, late: bool, by: Any) -> None:
        everybody = [(n, who, v) for n, run in self.twins.model.runs.items() for who, v in run.validators.items()]
        leaving = [entry for entry in everybody if entry[2].until] or everybody
        run, who, v = leaving[which % len(leaving)]
        if late and v.until:
            self._wait_for(v.until + 2 * self._run(run).policy.span)
        self.twins.release_validator(by, run, who)

    # ---- cases -----------------------------------------------------------------------------------------------------

    @often(6, which=pick, others=st.lists(pick, max_size=3), who=validators, fresh=mostly)
    def challenge(self, which: int, others: list[int], who: Any, fresh: bool) -> None:
        submissions = self._submissions(Place.SEAT if fresh else None) or self._submissions()
        if not submissions:
            return self.twins.challenge(who, 1, [])
        run, first = submissions[-1 - which % min(6, len(submissions))]
        same_run = [ref for n, ref in submissions if n == run]
        of_seat = [ref for ref in same_run if ref.node == first.node]
        refs = [first] + [(of_seat if fresh else same_run)[i % len(of_seat)] for i in others]
        self.twins.challenge(who, run, refs)

    @often(6, 
        which=pick, who=validators, second=validators, samples=st.sampled_from([1, 3, 3, 2**256 - 1, 0]),
        named=st.sampled_from([2, 3, 3, 2**255 + 1]), forged=st.sampled_from([False] * 9 + [True]),
        place=st.sampled_from([Place.SEAT, Place.SEAT, Place.CASE, Place.REVOKED, None]),
    )  # fmt: skip
    def accuse(
        self, which: int, who: Any, second: Any, samples: int, named: int, forged: bool, place: Place | None
    ) -> None:
        if submissions := self._submissions(place) or self._submissions():
            run, ref = submissions[-1 - which % min(6, len(submissions))]
            self.twins.accuse(who, run, ref, samples, second, named, for_run=run % 3 + 1 if forged else 0)

    @often(
        5, which=pick, by=st.sampled_from([*OPERATORS, NODES[0], *VALIDATORS]), right=st.booleans(), late=st.booleans()
    )
    def appeal(self, which: int, by: Any, right: bool, late: bool) -> None:
        run, seat, number, deadline = self._a_case(which, Stage.OPEN)
        if right:
            by = self._operator(self._run(run).seat(seat))
        if late:
            self._wait_for(deadline - which % 2)
        self.twins.appeal(by, run, seat, number)

    @often(5, which=pick, first=validators, uphold=st.booleans(), many=st.integers(1, 5), late=mostly)
    def vote(self, which: int, first: Any, uphold: bool, many: int, late: bool) -> None:
        run, seat, number, deadline = self._a_case(which, Stage.APPEALED)
        if not late:
            self._wait_for(deadline - 1)
        start = VALIDATORS.index(first)
        for i in range(many if self._stage(run, seat, number) == Stage.APPEALED else 1):
            self.twins.vote(VALIDATORS[(start + i) % len(VALIDATORS)], run, seat, number, uphold != (i == 1))

    @often(
        6, node=st.sampled_from(NODES[:2]), run=st.sampled_from([1, 1, 2]), hard=st.booleans(), first=st.integers(0, 4),
        appellant=st.sampled_from(["operator", "operator", "node", "validator"]), rejecting=st.integers(0, 3),
        speaking=st.booleans(), settling=st.booleans(),
    )  # fmt: skip
    def trial(
        self,
        node: Any,
        run: int,
        hard: bool,
        first: int,
        appellant: str,
        rejecting: int,
        speaking: bool,
        settling: bool,
    ) -> None:
        """From submission to verdict, with nothing in between: verdicts would else be rare."""
        node = self._worker(run, node)
        self._submit(run, node, [7, 4], "")
        seat = self._run(run).seat(node.address)
        if not seat.submissions:
            return
        bench = [VALIDATORS[(first + i) % len(VALIDATORS)] for i in range(len(VALIDATORS))]
        if hard:
            self.twins.accuse(bench[0], run, seat.submissions[-1].ref, 3, bench[1], 1)
        else:
            self.twins.challenge(bench[0], run, [submission.ref for submission in seat.submissions[-3:]])
        by = self._operator(seat)
        case = (run, seat.node, len(self._run(run).seat(node.address).cases))
        self.twins.appeal({"operator": by, "node": node, "validator": bench[2]}[appellant], *case)
        for i, juror in enumerate(bench[2:] if speaking else []):
            if self._stage(*case) == Stage.APPEALED:
                self.twins.vote(juror, *case, i >= rejecting)
        if self._stage(*case) in (Stage.OPEN, Stage.APPEALED) and settling:
            self._wait_for(self._run(run).seat(seat.node).cases[case[2] - 1].deadline)
            self.twins.settle(by, *case)

    @often(
        3,
        which=pick,
        by=anyone,
        who=validators,
        samples=st.sampled_from([0, 1, 3, 3, 4]),
        outcome=st.sampled_from("aaaas"),
    )
    def impeach(self, which: int, by: Any, who: Any, samples: int, outcome: str) -> None:
        """For a submission of a case that convicted, if there is one; the receipt says accepted, or soft."""
        charged = [(n, ref, number) for n, r in self.twins.model.runs.items() for (ref, _), number in r.charges.items()]
        upheld = [entry for entry in charged if self._stage(entry[0], entry[1].node, entry[2]) == Stage.UPHELD]
        if charged:
            run, ref, number = (upheld or charged)[which % len(upheld or charged)]
            self.twins.impeach(by, run, ref, number, who, samples, outcome=1 if outcome == "a" else 2)

    @often(4, which=pick, by=anyone, early=st.sampled_from([0, 0, 1, 2]))
    def settle(self, which: int, by: Any, early: int) -> None:
        run, seat, number, deadline = self._a_case(which, Stage.OPEN, Stage.APPEALED)
        if early < 2:
            self._wait_for(deadline - early)
        self.twins.settle(by, run, seat, number)


def drive(twins: Twins, examples: int, steps: int, *phases: Phase) -> int:
    """Returns how many transactions were tried."""
    twins.done.clear()
    twins.verdicts.clear()
    machine = type("Machine", (Machine,), {"twins": twins})
    options = settings(
        max_examples=examples, stateful_step_count=steps, derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck), phases=phases or (Phase.generate, Phase.shrink),
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=options)
    for (function, how), times in sorted(twins.done.items()):
        print(f"{function:18} {how:24} {times}")
    print(*twins.verdicts.items())
    return twins.done.total()


@pytest.mark.timeout(900)  # a failure is shrunk to the few actions that matter
def test_contracts_and_model_agree(twins: Twins) -> None:
    assert drive(twins, examples=30, steps=40) >= 500
    ends = {verdict for verdict, _ in twins.verdicts}
    assert ends == set(CLOSED)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_contracts_and_model_agree_for_long(twins: Twins) -> None:
    assert drive(twins, examples=200, steps=60) >= 5_000
    succeeded = {function for function, how in twins.done if how == "done"}
    assert succeeded == {function for function, _ in twins.done}, "something never succeeded"
    assert set(twins.verdicts) == {(end, hard) for end in CLOSED for hard in (False, True)}


FAULTS: dict[str, tuple[str, Any]] = {
    "units mature an epoch early": ("EPOCHS_TO_MATURE", 5),
    "who appealed wins more than half": ("WINNER_BPS", 6_000),
    "an appeal is free for a validator": ("Case.parties", property(lambda case: [case.challenger])),
    "no work can be disputed": ("Run.in_window", lambda r, w, now: False),
    "a hard case stops no pay": ("Seat.open_hard", property(lambda seat: 0)),
    "a conviction takes no penalty": ("Model._convict", lambda m, r, seat, case, at: setattr(seat, "swept", True)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_model_with_other_rules_is_found_out(twins: Twins, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    place, other = FAULTS[name]
    monkeypatch.setattr(f"tests.chain.model.{place}", other)
    with pytest.raises(Disagreement):
        drive(twins, 30, 40, Phase.generate)


def test_the_twins_notice_an_old_key_that_goes_on_working(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    twins.start_over()
    twins.rotate(OPERATORS[0], 1, NODES[0].address, NODES[3])
    twins.publish(TRAINER, 1, 1)
    monkeypatch.setattr("tests.chain.model.Seat.key", property(lambda seat: seat.node))
    with pytest.raises(Disagreement):
        twins.submit(NODES[0], 1, 1, 0, twins.model.runs[1].publications[1].beacon, [(b"\x01" * 32, 5)])


def test_the_twins_notice_an_impeachment_that_costs_nothing(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    twins.start_over()
    beacon = twins.model.runs[2].publications[0].beacon
    twins.submit(NODES[0], 2, 0, 0, beacon, [(b"\x01" * 32, 5)])
    ref = SubmissionRef(NODES[0].address, 0, 0, b"\x01" * 32)
    twins.accuse(VALIDATORS[0], 2, ref, 3, VALIDATORS[1], 3)
    twins.wait_until(twins.now + POLICIES[1].appeal + 1)
    twins.settle(OPERATORS[0], 2, NODES[0].address, 1)
    monkeypatch.setattr("tests.chain.model.Model._lose_bond", lambda *_: None)
    with pytest.raises(Disagreement):
        twins.impeach(OPERATORS[1], 2, ref, 1, VALIDATORS[2], 1)
