"""What may be done how often, and what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from protocol.chain.types import Role, Stage
from protocol.identity import Key
from protocol.submission import SubmissionRef
from tests.chain.model.books import EPOCHS_TO_MATURE, Case, Place, Run, Seat
from tests.chain.twins import Twins
from tests.chain.twins.people import NODES, OPERATORS, OWNERS, PEOPLE, VALIDATORS

Action = Callable[..., None]
ACTIONS: dict[str, tuple[Action, st.SearchStrategy[dict[str, Any]]]] = {}
WEIGHTED: list[str] = []

pick = st.integers(0, 2**16)
runs = st.sampled_from([1, 2, 3])
nodes = st.sampled_from(NODES)
validators = st.sampled_from(VALIDATORS)
anyone = st.sampled_from(PEOPLE)
amounts = st.integers(0, 150)
mostly = st.sampled_from([True] * 7 + [False])


def often(weight: int, **choices: st.SearchStrategy[Any]) -> Callable[[Action], Action]:
    """Marks something to do, `weight` times as often as what has weight 1, and what there is to draw for it."""

    def mark(action: Action) -> Action:
        ACTIONS[action.__name__] = (action, st.fixed_dictionaries(choices))
        WEIGHTED.extend([action.__name__] * weight)
        return action

    return mark


class Choices:
    twins: Twins

    def _run(self, run: int) -> Run:
        return self.twins.model.runs[run]

    def _seats(self) -> list[tuple[int, Seat]]:
        return [(n, seat) for n, run in self.twins.model.runs.items() for seat in run.seats.values()]

    def _submissions(self, place: Place | None = None) -> list[tuple[int, SubmissionRef]]:
        everywhere = [(n, submission) for n, seat in self._seats() for submission in seat.submissions]
        return [(n, submission.ref) for n, submission in everywhere if place is None or submission.place == place]

    def _a_case(self, which: int, *stages: Stage) -> tuple[int, str, int]:
        """(run, seat, number) of a case, in one of these stages if there is one; of none where there is none."""
        numbered = [(n, seat.node, i, case) for n, seat in self._seats() for i, case in enumerate(seat.cases, 1)]
        wanted = [entry for entry in numbered if entry[3].stage in stages] or numbered
        return wanted[which % len(wanted)][:3] if wanted else (1, NODES[0].address, 1)

    def _case(self, run: int, seat: str, number: int) -> Case | None:
        cases = self._run(run).seat(seat).cases
        return cases[number - 1] if 0 < number <= len(cases) else None

    def _stage(self, run: int, seat: str, number: int) -> Stage:
        case = self._case(run, seat, number)
        return case.stage if case else Stage.NONE

    def _person(self, address: str) -> Key:
        return next((person for person in PEOPLE if person.address == address), OPERATORS[0])

    def _worker(self, run: int, node: Key) -> Key:
        """The key with which the node's seat works now."""
        return next(key for key in NODES if key.address == self._run(run).seat(node.address).key)

    def _seated(self, run: int, node: Key) -> Key:
        """This node, or one that has a seat where it has none and another has."""
        seats = self._run(run).seats
        seated = [key for key in NODES if key.address in seats and seats[key.address].role == Role.ACTIVE]
        return node if node in seated or not seated else seated[0]

    def _unseated(self, run: int, node: Key) -> Key:
        """This key, or one that no seat of the run has, had or works with where there is one."""
        of, names = self._run(run).seats, self._run(run).names
        free = [
            key
            for key in NODES
            if key.address not in names and (key.address not in of or of[key.address].role == Role.NONE)
        ]
        return node if node in free or not free else free[0]

    def _owner(self, run: int) -> Key:
        return next(owner for owner in OWNERS if owner.address == self._run(run).policy.owner)

    def _trainer(self, run: int) -> Key:
        """Who publishes a second from now."""
        return self._person(self._run(run).trainer(self.twins.now + 1))

    # ---- time ------------------------------------------------------------------------------------------------------

    def _turning_points(self) -> list[int]:
        """Times to come at which something changes."""
        model, times = self.twins.model, []
        for run in model.runs.values():
            p = run.policy
            times += [run.paused_from, run.defunded_from, *(since for since, _ in run.appointed)]
            times += [publication.superseded + p.grace for publication in run.publications if publication.superseded]
            times += [v.until + spans * p.span for v in run.validators.values() for spans in (0, 2)]
            for seat in run.seats.values():
                times += [seat.until, seat.until + p.span, seat.strikes_since + p.window]
                times += [seat.shut_until, seat.shut_until + p.span]
                times += [case.deadline for case in seat.cases if case.open]
                for submission in seat.submissions:
                    times += [submission.time + p.window, self._maturity(run, submission.time, EPOCHS_TO_MATURE)]
        times += [account.ready_at for account in model.accounts.values()]
        return sorted({time for time in times if time > self.twins.now + 3})

    def _maturity(self, run: Run, time: int, epochs: int) -> int:
        """When so many epochs have begun since `time`."""
        epoch = -(-run.policy.window // 5)
        return (time // epoch + epochs) * epoch

    def _wait_for(self, time: int) -> None:
        """The next action happens at `time`, if that is to come."""
        if time - 1 > self.twins.now:
            self.twins.wait_until(time - 1)

    @often(2, which=pick, early=st.integers(0, 2))
    def wait_for_a_turning_point(self, which: int, early: int) -> None:
        if times := self._turning_points()[:12]:
            self._wait_for(times[which % len(times)] + 1 - early)
            self.twins.compare()

    @often(1, seconds=st.integers(2, 150))
    def wait(self, seconds: int) -> None:
        self.twins.wait_until(self.twins.now + seconds)
