"""Matrix challenges of seats (protocol/hub/challenges.py): one at a time, drawn by chance, at times nobody can foresee. For status only.

In a thread of its own: judging never waits for it. What fails on the way (the hub, the chain, a hub that lies) is no result.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path

from node.validator.settings import JudgeSettings
from protocol import metrics
from protocol.chain.events import Joined
from protocol.chain.view import View
from protocol.challenge import ROWS as ROWS_OPENED
from protocol.challenge import operations, require_opened
from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError, ProtocolViolation, Unavailable
from protocol.hub import challenges as wire
from protocol.hub.challenges import (
    ASK,
    FALSE,
    LATE,
    OPENING,
    OUTCOMES,
    PASSED,
    READY,
    RESULT,
    ROOT,
    ROWS,
    SEED,
    SILENT,
    Dialogue,
)
from protocol.shell.connection import Connection
from protocol.shell.home import read_json, write_json

log = logging.getLogger("validator")

_SEATS_MAX = 1000  # that are remembered, those challenged last
_DRAWS = 8  # at the chain for a seat that still works
_CHANCE = random.SystemRandom()
_CHALLENGES = metrics.counter(
    "murmur_validator_matrix_challenges_total", "Matrix challenges of seats, by what came of them: passed, false, late, silent.",
    "outcome",
)  # fmt: skip
_RATE = metrics.gauge(
    "murmur_validator_matrix_challenge_rate",
    "Operations per second of the last matrix challenge that a seat passed; the way to the hub and back counts as well.",
    "node",
)


@dataclass(frozen=True)
class Result:
    """`seconds` from when the seat could know the matrices until the root was here; 0 where none came."""

    node: str
    outcome: str
    side: int
    seconds: float
    time: int

    @property
    def rate(self) -> float:
        """Operations per second."""
        return operations(self.side) / self.seconds if self.seconds else 0.0


class Challenger:
    """For one thread."""

    def __init__(
        self, connection: Connection, view: View, file: Path, settings: JudgeSettings, clock: Clock = SYSTEM
    ) -> None:
        """`file`: by seat its last challenge, and how many came to which outcome."""
        self._c = connection
        self._view = view
        self._file = file
        self._settings = settings
        self._clock = clock

    def follow(self, stop: threading.Event) -> None:
        """Challenges until `stop` is set; times between are exponentially distributed, so that the last tells nothing of the next."""
        mean = 3600 * self._settings.matrix_challenge_hours
        while not self._clock.wait(stop, _CHANCE.expovariate(1 / mean)):
            try:
                node = self._draw()
                if node is not None:
                    self.turn(node)
            except MurmurationError as error:
                log.info("no challenge: %s", error)
                if isinstance(error, Unavailable):
                    self._c.forget_hub()
            except Exception:
                log.exception("no challenge")

    def turn(self, node: str) -> Result:
        """Challenges a seat. Raises what keeps it from a result; then there is none."""
        dialogue = Dialogue(self._c.hub, node, secrets.token_hex(32), node, self._clock)
        dialogue.say(ASK, side=self._settings.matrix_challenge_side)
        outcome, seconds = self._outcome(dialogue, node)
        result = Result(node, outcome, self._settings.matrix_challenge_side, seconds, round(self._clock.wall()))
        self._note(result)
        dialogue.say(RESULT, outcome=outcome, milliseconds=round(1000 * seconds))
        return result

    def _outcome(self, dialogue: Dialogue, node: str) -> tuple[str, float]:
        if dialogue.hear(READY, wire.READY_SECONDS) is None:
            return SILENT, 0.0
        nonce, side = secrets.token_bytes(32), self._settings.matrix_challenge_side
        dialogue.say(SEED, nonce=nonce.hex())
        began = self._clock.monotonic()
        answer = dialogue.hear(ROOT, wire.ROOT_SECONDS)
        if answer is None:
            return LATE, 0.0
        seconds = max(self._clock.monotonic() - began, 1e-3)
        rows = _CHANCE.sample(range(side), ROWS_OPENED)  # only now: what is committed to cannot follow them
        dialogue.say(ROWS, rows=rows)
        opened = dialogue.hear(OPENING, wire.OPENING_SECONDS)
        if opened is None:
            return LATE, seconds
        try:
            seed, root = wire.seed_of(self._c.chain.domain, self._c.run, node, nonce), wire.bytes32(answer, "root")
            require_opened(seed, side, root, rows, wire.opening_of(opened, side))
        except ProtocolViolation as error:
            log.warning("the challenge of %s was answered falsely: %s", node, error)
            return FALSE, seconds
        return PASSED, seconds

    def _draw(self) -> str | None:
        """A seat that works; None where none was found soon."""
        joined = list({event.data.node for event in self._view.events(Joined)})
        now = self._c.block_time()
        for node in _CHANCE.sample(joined, min(_DRAWS, len(joined))):
            key = self._view.keys(self._view.seat(node))[-1]
            if key != self._c.key.address and self._c.chain.seat(self._c.run, key).serves(now):
                return key
        return None

    def _note(self, result: Result) -> None:
        _CHALLENGES.add(outcome=result.outcome)
        if result.outcome == PASSED:
            _RATE.set(result.rate, node=result.node)
        log.info("challenge of %s: %s, %.3g operations per second", result.node, result.outcome, result.rate)
        noted = read_json(self._file) or {}
        counts = noted.pop(result.node, {}).get("counts", dict.fromkeys(OUTCOMES, 0))
        counts[result.outcome] += 1
        noted[result.node] = {
            "outcome": result.outcome, "time": result.time, "side": result.side, "seconds": result.seconds,
            "operations_per_second": result.rate, "counts": counts,
        }  # fmt: skip
        write_json(self._file, dict(list(noted.items())[-_SEATS_MAX:]))
