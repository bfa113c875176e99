"""Whether another submission is wanted: what the trainer says it needs, against what the chain says is committed.

The trainer's statement is protocol/hub/need.py; who committed to what is read off the chain (commitments.py). Between nodes nothing is
agreed: each does the same arithmetic. Whoever has committed least lately goes first, by a hash where it is equal, and no node's surplus takes
a turn away from one that has made less. So shares are as even as nodes are fast; why, and what a node gains by not asking:
docs/decisions/0019-nodes-make-what-is-wanted.md.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from math import ceil

from protocol.signing import Need

NOT_WANTED = "the trainer wants no more of this version; waiting for the next one"
ENOUGH = "all that the trainer wants for now is made or on its way"
NOT_OUR_TURN = "what the trainer still wants is the turn of nodes that have made less lately"
AT_AN_END = "the trainer wants nothing more: its last batch is being made"


@dataclass(frozen=True)
class Commitments:
    """Submissions by node."""

    in_window: Counter[str]
    """Of the versions that the batch being collected may hold."""
    lately: Counter[str]
    """Of more versions, before those too: who works, and how much it made."""


@dataclass(frozen=True)
class Prospect:
    """What is left to make. `reason` says why nothing should be begun now; empty: begin."""

    wanted: int
    """Submissions that the trainer wants beyond what is committed; negative where there are more."""
    reason: str


def limit(need: Need, head: int, *, max_lag: int, groups: int) -> int:
    """Submissions of the versions need.step - max_lag and later that may be committed in all, when the newest version is `head`.

    `groups` are those of one submission. Work on `head` can go into batches up to head + max_lag, and no further.
    """
    left = min(head + max_lag, need.last - 1) - need.step + 1  # batches that can hold such work
    if left <= 0:
        return 0
    lacking = min(need.ahead, 100 * left) * need.groups - 100 * need.ready  # hundredths of groups
    return need.settled + max(0, ceil(10 * lacking / (need.usable * groups)))


def prospect(
    node: str, need: Need, head: int, committed: Commitments, *, max_lag: int, groups: int, patient: bool
) -> Prospect:
    """Whether `node` should make another submission of version `head`.

    `patient`: whether others are still given the time that a submission takes; else those whose turn it is are taken to have gone.
    """
    most = limit(need, head, max_lag=max_lag, groups=groups)
    wanted = most - committed.in_window.total()
    if need.step >= need.last:
        return Prospect(wanted, AT_AN_END)
    if head + max_lag < need.step:
        return Prospect(wanted, NOT_WANTED)
    if _would_be(node, committed, ahead=frozenset()) > most:
        return Prospect(wanted, ENOUGH)
    if patient and _would_be(node, committed, ahead=_before(node, head, committed)) > most:
        return Prospect(wanted, NOT_OUR_TURN)
    return Prospect(wanted, "")


def _would_be(node: str, committed: Commitments, *, ahead: frozenset[str]) -> int:
    """Submissions there would be with one more of `node`'s and of those `ahead`, if nobody had made more than `node` then has."""
    level = committed.in_window[node] + 1
    others = (committed.in_window.keys() | ahead) - {node}
    return level + sum(min(committed.in_window[other] + (other in ahead), level) for other in others)


def _before(node: str, head: int, committed: Commitments) -> frozenset[str]:
    """Nodes that work and whose turn comes before `node`'s: they are about to commit, as far as anybody knows.

    Nobody waits for who has made less than half as much: it is slow and keeps its turn whenever it comes, or a seat that idles to keep
    others waiting.
    """
    least = (committed.lately[node] + 1) // 2

    def place(of: str) -> tuple[int, bytes]:
        return committed.lately[of], sha256(f"{head}/{of}".encode()).digest()

    return frozenset(
        other for other in committed.lately if committed.lately[other] >= least and place(other) < place(node)
    )
