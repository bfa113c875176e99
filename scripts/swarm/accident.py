"""Accidents on purpose: a relay dies midway for good, and a validator is killed (SIGKILL) while it judges an honest node's
submission, and started again.

That it judges is seen from outside: the submission's file lies in its folder from the download until the verdict, and its journal
has no verdict on the submission yet.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from swarm.swarm import Member, Swarm
from swarm.watch import Watch

_LOOK_EVERY = 0.004  # seconds; a judgement takes some tens of milliseconds


@dataclass(frozen=True)
class Interrupted:
    """The submission that was being judged when its validator was killed."""

    validator: Member
    submission: bytes


class RelayDeath:
    """The last relay is killed at half the steps and does not come back; with one relay only, none is."""

    def __init__(self, swarm: Swarm, watch: Watch, say: Callable[[str], None]) -> None:
        self._swarm, self._watch, self._say = swarm, watch, say
        self.victim = swarm.relays[-1] if len(swarm.relays) > 1 else None

    def happen_midway(self) -> None:
        if self.victim is not None and 2 * self._watch.trainer.get("step", 0) >= self._swarm.settings.steps:
            self._swarm.kill(self.victim)
            self._say(f"{self.victim} was killed for good; nodes go on with the others")
            self.victim = None


class Accident:
    def __init__(self, swarm: Swarm, watch: Watch, say: Callable[[str], None]) -> None:
        self._swarm = swarm
        self._watch = watch
        self._say = say
        self.happened: Interrupted | None = None

    def wait(self, seconds: float) -> None:
        """Lets so much time pass, and has the accident if there is an occasion."""
        until = time.monotonic() + seconds
        while self.happened is None and time.monotonic() < until:
            for validator in self._swarm.validators:
                if submission := self._judging(validator):
                    self._have(validator, submission)
                    break
            time.sleep(_LOOK_EVERY)
        time.sleep(max(0.0, until - time.monotonic()))

    def _judging(self, validator: Member) -> bytes | None:
        """An honest node's submission whose file a validator has and has not judged."""
        honest = {node.address for node in self._swarm.nodes if not node.is_cheat}
        files = {path.stem for path in (validator.home / "data/rollouts").glob("*.parquet")}
        for submission, s in self._watch.seen.submitted.items() if files else ():
            if s.root.hex() in files and s.node in honest and not self._judged(validator, submission):
                return submission
        return None

    def _have(self, validator: Member, submission: bytes) -> None:
        self._swarm.kill(validator.name)
        if not self._judged(validator, submission):  # else it was faster than the signal
            self.happened = Interrupted(validator, submission)
            self._say(
                f"{validator.name} was killed while it judged {self._watch.submission_name(submission)}, and is started again"
            )
        self._swarm.start_validator(validator)

    def _judged(self, validator: Member, submission: bytes) -> bool:
        with closing(sqlite3.connect(validator.home / "data/judgements.sqlite", timeout=5)) as judgements:
            return (
                judgements.execute("SELECT 1 FROM judgements WHERE submission = ?", (submission,)).fetchone()
                is not None
            )
