"""Which cases are open against a seat, about which submissions, and what closed ones have cost.

The contract keeps no list of a case's submissions. A submission's own `number` is no way to find them either: it names the case that last
took its units. A second accusation moves it on while the first is still open, and an accusation after a soft verdict leaves it
where it was. What names every submission of every case are the events of the block that opened it, and while nobody has appealed,
the deadline tells which block that was. Of a case that was challenged again the deadline is another: it was opened within the window of its oldest
submission.

For the accused alone, who keeps no book of the chain (view.py): all it needs of a run is a few cases about itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.chain.client import Chain
from protocol.chain.events import Challenged, Settled
from protocol.chain.log_reader import LogReader
from protocol.chain.types import Case, Policy, Seat, Settlement, Stage
from protocol.constants import NOBODY
from protocol.errors import RpcUnavailable
from protocol.submission import SubmissionRef

_SAME_SECOND = 64  # blocks, more than any chain makes in a second
_RANGE = 1_000  # blocks of a request
_RANGES_MAX = 100  # in which a settlement is looked for: two days of Base


def still_open(chain: Chain, run: int, name: str, seat: Seat) -> Iterator[tuple[int, Case]]:
    """(number, case) of the cases that are not closed, newest first. `name` is the seat's name."""
    left = seat.open_cases
    for number in range(seat.cases, 0, -1):
        if not left:
            return
        case = chain.case(run, name, number)
        if not case.stage.closed:
            left -= 1
            yield number, case


def unanswered(chain: Chain, run: int, name: str, seat: Seat) -> Iterator[tuple[int, Case]]:
    """The same of those that nobody has appealed."""
    return ((number, case) for number, case in still_open(chain, run, name, seat) if case.stage == Stage.OPEN)


def submissions(chain: Chain, run: int, name: str, number: int, case: Case) -> list[SubmissionRef]:
    """What a case that nobody has appealed is about now, in the order of its bits.

    Raises RpcUnavailable from an endpoint that knows the case but not all of its events.
    """
    policy, head, reader = chain.policy(run), chain.block_number(), LogReader(chain, run)
    if case.again:
        first, until = _first_since(chain, case.earliest), _first_since(chain, case.earliest + policy.window)
    else:
        first = _first_since(chain, case.deadline - policy.appeal)
        until = first + _SAME_SECOND
    found: list[SubmissionRef] = []
    while first <= min(until, head) and len(found) < case.submissions:
        last = min(first + _RANGE - 1, until, head)
        brought = [log.kind(*log.values) for log in reader.read(first, last) if log.kind is Challenged]
        found += [
            SubmissionRef(c.node, c.step, c.sequence, c.root) for c in brought if (c.seat, c.number) == (name, number)
        ]
        first = last + 1
    if len(found) < max(1, case.submissions):
        raise RpcUnavailable(f"the events of case {number} against {name} are not all there (yet)")
    return [ref for i, ref in enumerate(found) if case.members >> i & 1]


def _first_since(chain: Chain, time: int) -> int:
    """Number of the first block of `time` or later; one more than the head's where there is none.

    Looks back from the head in growing strides, for a case that can be appealed is young and old blocks may be pruned.
    """
    since, stride = chain.block().number + 1, 1
    before = since - stride
    while before >= 0 and chain.block(before).time >= time:
        stride *= 2
        since, before = before, before - stride
    before = max(before, -1)
    while since - before > 1:
        middle = (since + before) // 2
        if chain.block(middle).time < time:
            before = middle
        else:
            since = middle
    return since


def settlements(chain: Chain, run: int, name: str, number: int, case: Case) -> list[Settlement]:
    """What closed a case, and what ended an undecided vote of it before; oldest first. Empty where the endpoints show no such events (any more).

    Whoever settles does so soon after the case may be, so that the events are looked for from there on, and not in all of the chain.
    """
    policy, head, reader = chain.policy(run), chain.block_number(), LogReader(chain, run)
    first, found = _first_since(chain, _may_be_settled_from(case, policy)), list[Settlement]()
    for _ in range(_RANGES_MAX):
        if first > head or (found and found[-1].stage.closed):
            break
        last = min(first + _RANGE - 1, head)
        for log in reader.read(first, last, topics=("0x" + name[2:].lower().rjust(64, "0"),)):
            if log.kind is Settled and (event := Settled(*log.values)).number == number:
                taken = event.units, event.slashed, event.convicted
                found.append(Settlement(Stage(event.stage), *taken, log.transaction, log.block))
        first = last + 1
    return found


def _may_be_settled_from(case: Case, policy: Policy) -> int:
    """Block time before which no stage of it can have ended."""
    if case.again or case.stage in (Stage.UNDECIDED, Stage.RETURNED):
        return case.earliest
    if not policy.appeal:
        return case.deadline
    return case.deadline - policy.vote if case.jurors or case.keyed or case.appellant != NOBODY else case.deadline
