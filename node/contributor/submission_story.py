"""What the chain says of a node's submissions, and what to do next about each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from node.contributor import case_story, next_step
from node.contributor.case_story import CaseStory
from node.contributor.submission_log import LoggedSubmission, SubmissionLog
from protocol.chain import ring
from protocol.chain.types import Policy, Seat, State

if TYPE_CHECKING:
    from protocol.chain import Chain

_TOGETHER = 50  # submissions of which the chain is asked in one request


@dataclass(frozen=True)
class SubmissionStories:
    """Of one seat, as of one moment."""

    chain: Chain
    run: int
    name: str
    seat: Seat
    policy: Policy
    now: int
    cases: Sequence[CaseStory]
    log: SubmissionLog
    is_running: bool

    @classmethod
    def of(cls, chain: Chain, run: int, node: str, log: SubmissionLog, is_running: bool) -> SubmissionStories:
        """Raises RpcUnavailable."""
        seat, name = chain.seat(run, node), chain.seat_name(run, node)
        cases = case_story.of_seat(chain, run, name, seat, log)
        return cls(chain, run, name, seat, chain.policy(run), chain.block().time, cases, log, is_running)

    def tell(self, submissions: Sequence[LoggedSubmission]) -> Iterator[tuple[dict[str, Any], str]]:
        """(what the chain says, what to do next) of each. Raises RpcUnavailable."""
        runs, court = self.chain.runs.functions, self.chain.court.functions
        swept_at = self._swept_at()
        for first in range(0, len(submissions), _TOGETHER):
            part = submissions[first : first + _TOGETHER]
            known = [runs.submissions(one.id).request() for one in part]
            states = [court.stateOf(self.run, one.ref.as_tuple()).request() for one in part]
            with self.chain.ahead(*known, *states):
                yield from [self._tell(one, swept_at) for one in part]

    def _swept_at(self) -> int | None:
        """When a conviction took all of the seat's window."""
        convictions = [one.ends[-1].block for one in self.cases if one.ends and one.case.hard]
        return self.chain.block(min(convictions)).time if convictions else None

    def _tell(self, one: LoggedSubmission, swept_at: int | None) -> tuple[dict[str, Any], str]:
        on_chain, state = self.chain.submission(self.run, one.ref), self.chain.state(self.run, one.ref)
        committed = on_chain.time or one.made_at
        matures = ring.matures_at(committed, self.policy.window)
        story = self._case(on_chain.number) if on_chain.number else None
        deadline = story.case.deadline if story is not None and not story.case.stage.closed else None
        fate = next_step.SubmissionFate(
            short=one.id.hex()[:12], logged=one.state, on_chain=state, deadline=deadline, matures=matures,
            appeal_before=deadline if story is not None and story.can_be_appealed(self.now) and self.seat.locked else None,
            challenged_before=committed + self.policy.window, is_running=self.is_running,
            is_swept=swept_at is not None and state == State.SUBMITTED and matures > swept_at,
        )  # fmt: skip
        told = {
            "state": "swept" if fate.is_swept else state.name.lower(),
            "case": None if story is None else story.table(self.policy, self.now),
            "amount": str(one.units * self.policy.reward),
            "claimable_at": matures if on_chain.time else None,
        }
        return told, next_step.of_submission(fate, self.now)

    def _case(self, number: int) -> CaseStory:
        known = (case for case in self.cases if case.number == number)
        return next(known, None) or case_story.of_case(self.chain, self.run, self.name, number, self.log)
