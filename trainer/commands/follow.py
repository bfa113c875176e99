"""What torchrun's other processes do; it is rank 0 that is told to stop, and that tells them."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from node.engine import EngineSettings
    from trainer.config import Outputs, TrainSettings
    from trainer.learning.ranks import Ranks


def follow_rank(settings: TrainSettings, engine: EngineSettings, layout: Outputs, ranks: Ranks) -> None:
    from trainer.learning.learner import Learner
    from trainer.loop.followers import follow
    from trainer.telemetry.phases import Phases
    from trainer.telemetry.watchdog import Watchdog

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    phases, stacks = Phases(), layout.stacks.with_name(f"stacks-{ranks.rank}.txt")
    with Watchdog(phases, stacks, lambda phase: None):
        with phases("starting", settings.deadlines.starting):
            learner = Learner(layout.model, settings, ranks, threads=engine.thread_count)
            learner.require_right()
        follow(learner, settings, phases)
