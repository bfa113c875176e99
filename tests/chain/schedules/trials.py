"""The bench and its cases."""

from __future__ import annotations

from hypothesis import strategies as st

from protocol.chain.types import Stage
from protocol.identity import Key
from tests.chain.model.books import Case, Place
from tests.chain.schedules.choices import amounts, anyone, mostly, often, pick, runs, validators
from tests.chain.schedules.labour import Labour
from tests.chain.twins.people import BENCHES, NODES, OPERATORS, VALIDATORS

minds = st.sampled_from(
    ["clear", "clear", "false", "hard", *["mixed"] * 3, "half-hard", "one-cheat", "silent", "silent", "abstain"]
)
"""What a juror makes of a case: see `_findings`."""
opinions = st.tuples(minds, st.lists(st.one_of(st.none(), st.none(), minds), min_size=6, max_size=6))
"""Of most jurors, and of those who differ."""


def _findings(case: Case, mind: str, seed: int) -> tuple[set[int], set[int]]:
    listed = set(range(len(case.listed)))
    some = {i for i in listed if (seed + i) % 2}
    found = {
        "false": (listed, set()),
        "hard": (listed, listed),
        "mixed": (some, set()),
        "half-hard": (listed, some),
        "one-cheat": (some, some),
    }
    return found.get(mind, (set(), set()))


class Trials(Labour):
    # ---- the bench -------------------------------------------------------------------------------------------------

    @often(1, run=runs, who=validators, on=mostly, right=mostly, other=anyone)
    def approve(self, run: int, who: Key, on: bool, right: bool, other: Key) -> None:
        self.twins.approve(self._owner(run) if right else other, run, who.address, on)

    @often(1, run=runs, who=validators, on=mostly)
    def enlist(self, run: int, who: Key, on: bool) -> None:
        self.twins.enlist(who, run, on)

    @often(2, run=runs, who=validators, late=st.booleans(), back=st.booleans(), by=anyone)
    def validator_goes(self, run: int, who: Key, late: bool, back: bool, by: Key) -> None:
        self.twins.enlist(who, run, False)
        v = self._run(run).validator(who.address)
        if late and v.until:
            self._wait_for(v.until + (0 if back else 2 * self._run(run).policy.span))
        self.twins.release_validator(by, run, who.address)
        if back:
            self.twins.enlist(who, run, True)

    @often(2, run=runs, who=validators, amount=amounts)
    def reinforce(self, run: int, who: Key, amount: int) -> None:
        self.twins.reinforce(who, run, amount)

    @often(1, run=runs, who=validators, by=anyone)
    def unseat(self, run: int, who: Key, by: Key) -> None:
        """One that has lost too much, if there is one."""
        weak = [
            (n, address)
            for n, r in self.twins.model.runs.items()
            for address, v in r.validators.items()
            if v.permanent and v.locked < r.policy.bond
        ]
        self.twins.unseat(by, *(weak or [(run, who.address)])[0])

    @often(2, which=pick, late=st.booleans(), by=anyone)
    def release_validator(self, which: int, late: bool, by: Key) -> None:
        everybody = [(n, who, v) for n, run in self.twins.model.runs.items() for who, v in run.validators.items()]
        leaving = [entry for entry in everybody if entry[2].until] or everybody
        run, who, v = leaving[which % len(leaving)]
        if late and v.until:
            self._wait_for(v.until + 2 * self._run(run).policy.span)
        self.twins.release_validator(by, run, who)

    # ---- cases -----------------------------------------------------------------------------------------------------

    @often(6, which=pick, others=st.lists(pick, max_size=3), who=validators, fresh=mostly)
    def challenge(self, which: int, others: list[int], who: Key, fresh: bool) -> None:
        submissions = self._submissions(Place.SEAT if fresh else None) or self._submissions()
        if not submissions:
            return self.twins.challenge(who, 1, [])
        run, first = submissions[-1 - which % min(6, len(submissions))]
        same_run = [ref for n, ref in submissions if n == run]
        of_seat = [ref for ref in same_run if ref.node == first.node]
        refs = [first] + [(of_seat if fresh else same_run)[i % len(of_seat)] for i in others]
        self.twins.challenge(who, run, refs)

    @often(2, which=pick, who=validators, late=st.sampled_from([False] * 5 + [True]))
    def challenge_again(self, which: int, who: Key, late: bool) -> None:
        run, seat, number = self._a_case(which, Stage.UNDECIDED)
        if late and (case := self._case(run, seat, number)):
            self._wait_for(case.deadline - which % 2)
        self.twins.challenge_again(who, run, seat, number)

    @often(6, 
        which=pick, who=validators, second=validators, samples=st.sampled_from([1, 3, 3, 2**256 - 1, 0]),
        named=st.sampled_from([2, 3, 3, 2**255 + 1]), forged=st.sampled_from([False] * 9 + [True]),
        place=st.sampled_from([Place.SEAT, Place.SEAT, Place.CASE, Place.CASE, Place.REVOKED, None]),
    )  # fmt: skip
    def accuse(
        self, which: int, who: Key, second: Key, samples: int, named: int, forged: bool, place: Place | None
    ) -> None:
        if submissions := self._submissions(place) or self._submissions():
            run, ref = submissions[-1 - which % min(6, len(submissions))]
            self.twins.accuse(who, run, ref, samples, second, named, for_run=run % 3 + 1 if forged else 0)

    @often(
        5, which=pick, by=st.sampled_from([*OPERATORS, NODES[0], *VALIDATORS]), right=st.booleans(), late=st.booleans()
    )
    def appeal(self, which: int, by: Key, right: bool, late: bool) -> None:
        run, seat, number = self._a_case(which, Stage.OPEN)
        if right:
            by = self._person(self._run(run).seat(seat).operator)
        if late and (case := self._case(run, seat, number)):
            self._wait_for(case.deadline - which % 2)
        self.twins.appeal(by, run, seat, number)

    @often(4, which=pick, first=pick, opinions=opinions, many=st.integers(1, 6), late=mostly)
    def vote(self, which: int, first: int, opinions: tuple[str, list[str | None]], many: int, late: bool) -> None:
        case = self._a_case(which, Stage.APPEALED)
        if not late and (found := self._case(*case)):
            self._wait_for(found.deadline - 1)
        self._hear(case, first, opinions, many)

    def _hear(
        self, case: tuple[int, str, int], first: int, opinions: tuple[str, list[str | None]], many: int = 6
    ) -> None:
        """So many of the bench, parties as well, vote until the case is decided."""
        bench, (mind, others) = BENCHES[case[0] - 1], opinions
        for i in range(min(many, len(bench))):
            self._judge(case, bench[(first + i) % len(bench)], others[i] or mind, first)
            if self._stage(*case) != Stage.APPEALED:
                return

    def _judge(self, case: tuple[int, str, int], juror: Key, mind: str, seed: int) -> None:
        if mind == "abstain":
            self.twins.abstain(juror, *case, "no weights" if seed % 5 else "ä" * 65)
        elif mind != "silent" and (found := self._case(*case)):
            self.twins.vote(juror, *case, *_findings(found, mind, seed))

    @often(1, which=pick, who=validators, too_far=st.booleans())
    def vote_void(self, which: int, who: Key, too_far: bool) -> None:
        """On a submission that the case does not list; or hard and not false."""
        run, seat, number = self._a_case(which, Stage.APPEALED)
        case = self._case(run, seat, number)
        listed = set(range(len(case.listed) if case else 1))
        self.twins.vote(who, run, seat, number, listed | {len(listed)} if too_far else set(), listed)

    @often(
        9, node=st.sampled_from(NODES[:2]), run=st.sampled_from([1, 1, 2]), hard=st.booleans(), first=st.integers(0, 5),
        appellant=st.sampled_from(["operator", "node", "validator"]), opinions=opinions, settling=mostly,
        again=mostly, second=opinions, sizes=st.sampled_from([[7], [7, 4], [1, 5, 2], [20, 5]]),
    )  # fmt: skip
    def trial(
        self,
        node: Key,
        run: int,
        hard: bool,
        first: int,
        appellant: str,
        opinions: tuple[str, list[str | None]],
        settling: bool,
        again: bool,
        second: tuple[str, list[str | None]],
        sizes: list[int],
    ) -> None:
        """From submission to verdict, with nothing in between: verdicts would else be rare."""
        node = self._worker(run, node)
        self._submit(run, node, sizes, "")
        seat = self._run(run).seat(node.address).node
        if not (submissions := self._run(run).seat(seat).submissions):
            return
        bench = [VALIDATORS[(first + i) % len(VALIDATORS)] for i in range(len(VALIDATORS))]
        if hard:
            self.twins.accuse(bench[0], run, submissions[-1].ref, 3, bench[1], 1)
        else:
            self.twins.challenge(bench[0], run, [submission.ref for submission in submissions[-3:]])
        case = (run, seat, len(self._run(run).seat(seat).cases))
        operator = self._person(self._run(run).seat(seat).operator)
        by = {"operator": operator, "node": node, "validator": bench[2]}[appellant]
        self._try(case, by, first + 2, opinions, settling)
        if again and self._stage(*case) == Stage.UNDECIDED:
            self.twins.challenge_again(bench[3], *case)
            self._try(case, by, first, second, settling)
            self._end(case, settling)

    def _try(
        self, case: tuple[int, str, int], by: Key, first: int, opinions: tuple[str, list[str | None]], settling: bool
    ) -> None:
        self.twins.appeal(by, *case)
        self._hear(case, first, opinions)
        if self._stage(*case) in (Stage.OPEN, Stage.APPEALED):
            self._end(case, settling)

    def _end(self, case: tuple[int, str, int], settling: bool) -> None:
        if settling and (found := self._case(*case)):
            self._wait_for(found.deadline)
            self.twins.settle(OPERATORS[0], *case)

    @often(
        3, which=pick, by=anyone, who=validators, samples=st.sampled_from([0, 1, 3, 3, 4]), outcome=st.sampled_from("aaaas")
    )  # fmt: skip
    def impeach(self, which: int, by: Key, who: Key, samples: int, outcome: str) -> None:
        """For a submission of a case that convicted, if there is one; the receipt says accepted, or soft."""
        charged = [(n, ref, number) for n, r in self.twins.model.runs.items() for (ref, _), number in r.charges.items()]
        upheld = [entry for entry in charged if self._stage(entry[0], entry[1].node, entry[2]) == Stage.UPHELD]
        if charged:
            run, ref, number = (upheld or charged)[which % len(upheld or charged)]
            self.twins.impeach(by, run, ref, number, who, samples, outcome=1 if outcome == "a" else 2)

    @often(4, which=pick, by=anyone, early=st.sampled_from([0, 0, 1, 2]))
    def settle(self, which: int, by: Key, early: int) -> None:
        run, seat, number = self._a_case(which, Stage.OPEN, Stage.APPEALED, Stage.UNDECIDED)
        if early < 2 and (case := self._case(run, seat, number)):
            self._wait_for(case.deadline - early)
        self.twins.settle(by, run, seat, number)
