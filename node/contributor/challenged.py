"""Answering matrix challenges (protocol/hub/challenges.py), beside the work and never in its way: in a thread of its own, one at a time.

What is not answered costs nothing, so that whatever fails is logged and left: the next challenge begins anew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from protocol import challenge, metrics
from protocol.challenge import Int8, Int32, Tree, operations, require_side
from protocol.clock import SYSTEM, Clock
from protocol.errors import MurmurationError, Unavailable
from protocol.hub import challenges as wire
from protocol.hub.challenges import ASK, OPENING, READY, ROOT, ROWS, SEED, Dialogue
from protocol.shell.connection import Connection
from protocol.shell.home import read_json, write_json

log = logging.getLogger("node")

_LOOK_SECONDS = 1.0  # between looks at whether the node ends

_ANSWERED = metrics.counter(
    "murmur_node_matrix_challenges_total", "Matrix challenges of validators that were answered."
)


class ChallengedSeat:
    """For one thread."""

    def __init__(
        self, connection: Connection, file: Path, product: Callable[[Int8, Int8], Int32], clock: Clock = SYSTEM
    ) -> None:
        """`file`: how many were answered, and of the last its time, side and this machine's own operations per second. `product` multiplies
        as challenge.product does."""
        self._c = connection
        self._file = file
        self._product = product
        self._clock = clock
        self._address = connection.key.address

    def follow(self, stop: threading.Event, challenged: threading.Event) -> None:
        """Answers when `challenged` is set, until `stop` is."""
        while not stop.is_set():
            if not self._clock.wait(challenged, _LOOK_SECONDS):
                continue
            challenged.clear()
            try:
                self.turn()
            except MurmurationError as error:
                log.info("a challenge was not answered: %s", error)
                if isinstance(error, Unavailable):
                    self._c.forget_hub()
            except Exception:
                log.exception("a challenge was not answered")

    def turn(self) -> bool:
        """Whether a challenge was there and answered. Raises what kept it from being answered."""
        hub, domain, run = self._c.hub, self._c.chain.domain, self._c.run
        said = hub.said(self._address, 0)
        if len(said) != 1:  # nobody asks, or it is under way without us
            return False
        validator, ask = said[0]
        wire.require(ask)
        if ask["say"] != ASK or not self._c.chain.validator(run, validator).serves(self._c.block_time()):
            return False
        side = require_side(ask["side"])
        dialogue = Dialogue(hub, self._address, ask["challenge"], validator, self._clock)
        dialogue.say(READY)
        seed = dialogue.hear(SEED, wire.ROOT_SECONDS)
        if seed is None:
            return False
        began = self._clock.monotonic()
        tree = self._tree(wire.seed_of(domain, run, self._address, wire.bytes32(seed, "nonce")), side)
        seconds = self._clock.monotonic() - began
        dialogue.say(ROOT, root=tree.root.hex())
        asked = dialogue.hear(ROWS, wire.OPENING_SECONDS)
        if asked is None:
            return False
        dialogue.say(OPENING, opening=wire.opening_text(tree.opening(wire.rows_of(asked, side))))
        self._note(side, seconds)
        return True

    def _tree(self, seed: bytes, side: int) -> Tree:
        left, right = (challenge.matrix(seed, name, side) for name in ("left", "right"))
        return Tree(self._product(left, right))

    def _note(self, side: int, seconds: float) -> None:
        _ANSWERED.add()
        answered = ((read_json(self._file) or {}).get("answered") or 0) + 1
        rate = round(operations(side) / max(seconds, 1e-6))
        last = {"time": round(self._clock.wall()), "side": side, "operations_per_second": rate}
        write_json(self._file, {"answered": answered, **last})
