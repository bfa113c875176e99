"""A trainer's folder as some hours of work leave it, and its page on a real socket."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from benches.page_run import CONTRACT, RUN, MadeRun

from protocol.page.log_tail import LogTail
from protocol.page.server import SleepingServer, listen
from protocol.shell.home import Home, write_json
from tests.clock import eventually
from trainer.config import Layout, RunSettings
from trainer.learning.checkpoint import Checkpoints
from trainer.telemetry.page.app import create_page
from trainer.telemetry.page.keeper import TrainerPageKeeper

NOW = 1_790_000_000.0
"""Wall time of the status."""
CLOCK = f"Date.now = () => {int(1000 * NOW) + 4000}"
"""What a browser takes for the time, that sees these pages soon after."""
KEY = "k3yOfACustomer42"
RPC = f"https://user:hunter2secret@rpc.example/v2/{KEY}"
BASE = {"step": 0, "score": 0.25, "problems": 80, "by_environment": {"fractions": 0.3, "sums": 0.2}}


class MadeTrainer:
    """Writes itself into `folder`; nothing is trained."""

    def __init__(self, folder: Path, **tables: Any) -> None:
        chain = {"rpc": RPC, "contract": CONTRACT, "chain_id": 84532, "run": RUN}
        trainer = {"steps": 100, "checkpoint_every": 5, "checkpoints_kept": 3, "checkpoint_keep_every": 10}
        self.settings = RunSettings.model_validate({"chain": chain, "trainer": trainer, "page": {"port": 0}, **tables})
        self.layout = Layout(folder / "run.toml", self.settings)
        self.layout.output.mkdir(parents=True, exist_ok=True)

    def work(self, steps: int = 40) -> MadeTrainer:
        """Metrics, phases, checkpoints and versions of so many steps."""
        with self.layout.metrics.open("w") as file:
            for step in range(steps):
                file.write(json.dumps(record(step, steps)) + "\n")
                if step % 5 == 0:
                    score = 0.25 + 0.45 * step / steps
                    by_environment = {"fractions": score + 0.05, "sums": score - 0.05}
                    file.write(
                        json.dumps({"step": step, "held_out_score": score, "held_out_by_environment": by_environment})
                        + "\n"
                    )
        with self.layout.phases.open("w") as file:
            file.writelines(json.dumps(span) + "\n" for span in spans(steps))
        checkpoints = Checkpoints(self.layout.checkpoints, 3, keep_every=10)
        for step in range(max(0, steps - 40), steps + 1, 5):
            saved = checkpoints.save(
                step, {}, lambda folder: (folder / "tensors.safetensors").write_bytes(bytes(300_000)) and None
            )
            os.utime(saved, (NOW - 20 * (steps - step), NOW - 20 * (steps - step)))
        for step in (steps - 1, steps):
            (self.layout.outgoing / str(step)).mkdir(parents=True, exist_ok=True)
        self.publish(steps)
        return self.say(steps)

    def publish(self, versions: int) -> None:
        """The hub's book with so many of them."""
        run = MadeRun(self.layout.file.parent, nodes=1, per_node=1, validators=2, steps=versions)
        run.close()
        write_json(self.layout.hub_status, {"published": versions - 1, "page": "http://127.0.0.1:8450/run/1/"})

    def say(
        self, step: int, state: str = "waiting for rollouts", *, at: float = NOW, alive: bool = True, **changes: Any
    ) -> MadeTrainer:
        """As the running trainer says it; this very process stands in for it."""
        waiting = {"have": 11, "need": 16, "seconds": 12.4} if state.startswith("waiting") else None
        phases = [
            {"name": state, "since": at - 12.4, "seconds": 12.4, "deadline": 3600.0, "step": step, "beside": False},
            {"name": "evaluating", "since": at - 10, "seconds": 10.0, "deadline": 1800.0, "step": step - 1, "beside": True},
        ]  # fmt: skip
        status = {
            "state": state, "waiting": waiting, "step": step, "steps": 100, "phases": phases, "at": at, "trained_tokens": 1_216_523,
            "seconds": {"training": 240.0, "waiting for rollouts": 421.0}, "evaluations": [BASE, {**BASE, "step": 35, "score": 0.64}],
            "alarms": [], "metrics": record(step - 1, step) if step else {}, "pid": os.getpid() if alive else 0, "page_url": None,
        }  # fmt: skip
        write_json(self.layout.status, status | changes)
        return self


def record(step: int, steps: int) -> dict[str, Any]:
    """One step as metrics.jsonl has it. Steps 12 and 31 had an alarm."""
    part, odd = step / max(1, steps), random.Random(step).random()
    reward = 0.2 + 0.5 * part + 0.08 * odd
    return {
        "step": step, "time": NOW - 20 * (steps - step), "reward": reward, "reward_deviation": 0.31, "loss": -0.02 + 0.03 * odd,
        "gradient_norm": 0.08 + 0.05 * odd, "kl": 0.002 * part, "entropy": 1.0 - 0.5 * part, "learning_rate": 3e-7 * min(1.0, step / 25),
        "log_ratio": 0.31 if step == 12 else 0.02 + 0.01 * odd, "clipped": 0.004 + 0.01 * odd,
        "zero_advantage_share": 0.8 if step == 31 else 0.3 + 0.05 * odd, "alarms": int(step in (12, 31)), "truncated_share": 0.05 * odd,
        "completion_length": 210 + 60 * odd, "staleness": 1 + odd / 2, "nodes": 3, "tokens_per_second": 5200 + 900 * odd, "mfu": 0.31,
        "length_error": None, "reward_by_environment": {"fractions": reward + 0.05, "sums": reward - 0.05}, "length_error_by_environment": {},
        "seconds": {"waiting for rollouts": 11 + 4 * odd, "training": 6.0, "saving": 0.4, "publishing": 1.2}, "dropped_groups": {"low": 1},
    }  # fmt: skip


def spans(steps: int) -> Iterator[dict[str, Any]]:
    """What phases.jsonl has of them: the trainer waits and trains, saves every fifth step, and evaluates beside the step after."""
    at = NOW - 12.4 - 20 * steps
    yield {"step": None, "name": "starting", "at": at - 9, "seconds": 9.0, "net": 9.0, "beside": False}
    for step in range(steps):
        waits, odd = 9.0 + 5 * random.Random(step).random(), step % 5 == 4
        yield {"step": step, "name": "waiting for rollouts", "at": at, "seconds": waits, "net": waits, "beside": False}
        if odd and step > 5:
            yield {"step": step - 1, "name": "evaluating", "at": at - 2, "seconds": 16.0, "net": 16.0, "beside": True}
        yield {"step": step, "name": "training", "at": at + waits, "seconds": 6.0, "net": 6.0, "beside": False}
        if odd:
            yield {"step": step, "name": "saving", "at": at + waits + 6, "seconds": 0.9, "net": 0.9, "beside": False}
        yield {"step": step, "name": "publishing", "at": at + waits + 7, "seconds": 1.5, "net": 1.5, "beside": True}
        at += 20


@dataclass
class ShownTrainer:
    trainer: MadeTrainer
    keeper: TrainerPageKeeper
    server: SleepingServer

    @property
    def url(self) -> str:
        return self.server.url

    def get(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=30)

    def part(self, name: str) -> Any:
        answer = self.get(f"api/v1/{name}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ready(self) -> ShownTrainer:
        def is_there() -> bool:
            self.keeper.want()
            return "log" in self.keeper.content.parts

        eventually(is_there, what="the page is made")
        return self


@contextmanager
def shown_trainer(trainer: MadeTrainer, tail: LogTail | None = None, *, runs: bool = True) -> Iterator[ShownTrainer]:
    """`runs`: whether somebody holds the trainer's lock."""
    keeper = TrainerPageKeeper(trainer.layout, trainer.settings, tail, turn_seconds=0.05)
    listener = listen(0)
    assert listener is not None
    with SleepingServer(listener, partial(create_page, keeper)) as serving, keeper:
        made = ShownTrainer(trainer, keeper, serving)
        if not runs:
            yield made
            return
        with Home(trainer.layout.output, "trainer").lock():
            yield made
