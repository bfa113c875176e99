"""The demo's last act: the clock is moved past appeals and windows, verdicts settle, rewards vest and are claimed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from protocol.errors import DeadlineExceeded
from protocol.verdict import Outcome
from swarm.pace import slowness
from swarm.processes import wait_until
from swarm.settings import DAY
from swarm.swarm import Member, Swarm
from swarm.watch import Watch

_WINDOW, _APPEAL = DAY, 3600


@dataclass(frozen=True)
class Payout:
    """One operator's rewards, in wei. `early` is what could be claimed one second before the window had passed."""

    member: Member
    early: int
    pending: int
    claimed: int
    expected: int


def finish_judging(swarm: Swarm, watch: Watch, say: Callable[[str], None], tick: Callable[[], None]) -> None:
    """Stops the nodes and waits until everything they submitted has a verdict."""
    say("stopping the nodes; validators judge what is left")
    swarm.stop_nodes(grace=20 * slowness())  # what is committed is uploaded first

    def judged() -> bool:
        tick()
        return not watch.unjudged()

    try:
        wait_until(judged, deadline=60, what="every submission is judged", poll=0.2)
    except DeadlineExceeded as error:
        waiting = ", ".join(watch.unjudged())
        raise DeadlineExceeded(f"{error}; still waiting: {waiting}", hint=error.hint) from error


def settle(swarm: Swarm, watch: Watch, say: Callable[[str], None], tick: Callable[[], None]) -> None:
    """Moves the clock past the time for appeals; the validators settle their cases by themselves."""
    say("moving the clock past the time for appeals")
    swarm.anvil.advance(_APPEAL)
    cases = {(c.seat, c.number) for _, c in watch.seen.challenged}

    def settled() -> bool:
        tick()
        return cases <= {(settled.seat, settled.number) for settled in watch.seen.settled}

    wait_until(settled, deadline=60, what="all cases are settled", poll=0.2)


def pay(swarm: Swarm, watch: Watch, say: Callable[[str], None], tick: Callable[[], None]) -> list[Payout]:
    """Checks that nothing can be claimed too early, lets the window pass, and claims for everybody."""
    reward = swarm.chain.policy(swarm.run).reward
    first, last = min(watch.seen.times.values()), max(watch.seen.times.values())
    say("moving the clock to one second before the first window ends")
    swarm.anvil.stop_clock()  # or blocks would go on being mined while we look
    swarm.anvil.advance_to(first + _WINDOW - 1)
    early = {node.name: _status(swarm, node) for node in swarm.nodes}
    say("moving the clock 1.2 windows on")
    swarm.anvil.advance_to(last + _WINDOW + _WINDOW // 5 + 1)
    payouts = []
    for node in watch.members():
        before = early[node.name]
        claim = swarm.json("node", "claim", "--home", node.home)
        payout = Payout(
            node,
            early=before["ready_units"] * reward,
            pending=before["pending_units"] * reward,
            claimed=int(claim["amount"]),
            expected=earned_units(watch, node) * reward,
        )
        payouts.append(payout)
        tick()
    return payouts


def earned_units(watch: Watch, node: Member) -> int:
    """Units that a node's accepted submission amounts to; a convicted seat has none in the window."""
    if node.address in watch.seen.banned:
        return 0
    submissions = [(submission, s) for submission, s in watch.seen.submitted.items() if s.node == node.address]
    return sum(s.units for submission, s in submissions if watch.seen.outcome(submission) == Outcome.ACCEPT)


def _status(swarm: Swarm, node: Member) -> dict[str, Any]:
    return swarm.json("node", "status", "--home", node.home)
