"""When this node makes a submission and when it leaves it: advice from hub and chain, put together (wanted.py decides).

Where the hub says nothing, or nothing that holds, or the chain cannot be read, there is no advice and work goes on.
"""

from __future__ import annotations

import logging

from node.contributor.commitments import RecentCommitments
from node.contributor.mail import Mail
from node.contributor.wanted import Commitments, prospect
from protocol import metrics
from protocol.chain.transport import Request
from protocol.chain.types import Publication
from protocol.clock import SYSTEM, Clock
from protocol.errors import ProtocolViolation, RpcUnavailable, Unavailable
from protocol.hub.wire import Refused
from protocol.shell.connection import Connection
from protocol.signing import Need

log = logging.getLogger("node")

_WANTED = metrics.gauge(
    "murmur_node_wanted_submissions",
    "Submissions that the trainer wants beyond those committed, as of the last look; negative where there are more.",
)
_LEFT = metrics.counter(
    "murmur_node_left_turns_total", "Looks at which this node left making a submission to others or to later."
)


class Demand:
    """For one thread."""

    def __init__(self, connection: Connection, node: str, mail: Mail, clock: Clock = SYSTEM) -> None:
        self._c = connection
        self._mail = mail
        self._node = node
        self._clock = clock
        self._commitments = RecentCommitments(connection.chain, connection.run)
        self._took: float | None = None  # seconds for this node's last submission
        self._seen: tuple[int, Commitments | None] = (-1, None)
        self._since = clock.monotonic()  # when what was seen last changed
        self._is_silent = False
        self.last: int | None = None
        """The run's last step, as the trainer said last."""

    def took(self, seconds: float) -> None:
        """So long this node's last submission took, from the beginning to its commitment."""
        self._took = seconds

    def requests(self) -> list[Request]:
        """What the next `reason_to_wait` is likely to ask, beside the newest block."""
        return self._commitments.requests()

    def reason_to_wait(self, head: Publication) -> str:
        """Why no submission of `head` should be begun now; empty where it should, or where there is no advice."""
        try:
            need = self._need()
            committed = None if need is None else self._commitments.look(max(0, need.step - self._c.spec.max_lag))
        except (Unavailable, RpcUnavailable, Refused, ProtocolViolation) as error:
            self._tell_silence(str(error))
            return ""
        if need is None or committed is None:
            self._tell_silence("the hub does not say what the trainer needs")
            return ""
        self._is_silent, self.last = False, need.last
        spec = self._c.spec
        found = prospect(
            self._node, need, head.step, committed, max_lag=spec.max_lag, groups=spec.sampling.groups_per_submission,
            patient=self._is_patient(head, committed),
        )  # fmt: skip
        _WANTED.set(found.wanted)
        if found.reason:
            _LEFT.add()
        return found.reason

    def _need(self) -> Need | None:
        found = self._mail.need
        return found.need if found is not None and found.holds(self._c.block_time()) else None

    def _is_patient(self, head: Publication, committed: Commitments) -> bool:
        """Whether somebody committed to something within the time that this node takes for a submission."""
        now, seen = self._clock.monotonic(), (head.step, committed)
        if seen != self._seen:
            self._seen, self._since = seen, now
        return self._took is not None and now < self._since + self._took

    def _tell_silence(self, why: str) -> None:
        if not self._is_silent:
            log.info("working without knowing what the trainer needs: %s", why)
        self._is_silent = True
