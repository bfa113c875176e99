"""A tiny policy at school: right conversations with the calculator are shown to it until it asks now and then by itself."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from swarm.tiny_run import run_tables

from node.engine import EngineSettings
from node.engine.weights import save_weights
from protocol.environments import Problem, TaskSet
from protocol.model_files import WEIGHTS
from protocol.rollout import Sample
from protocol.runspec import RunSpec
from protocol.sandbox import EnvironmentSandbox, Sandbox
from protocol.settings import write_toml
from protocol.shell import runfile
from protocol.tokenizer import Tokenizer
from trainer.evaluation.evaluate import Evaluator
from trainer.models import tiny
from trainer.rollouts.data import training_sample

ENGINE = EngineSettings(device="cpu", threads=1)
BEGINNING = 0.3
"""Held-out reward at which the lessons end."""


def tables() -> dict[str, Any]:
    made = run_tables()
    environment = made["spec"]["environments"][0]
    made["spec"]["environments"] = [
        environment | {"package": "calculator", "dataset": "sums", "config": {"digits": 1, "operators": "+"}, "size": 10_000, "held_out_size": 40}
    ]  # fmt: skip
    made["spec"]["sampling"] |= {
        "group_size": 8, "groups_per_submission": 16, "max_new_tokens": 24, "turns": 2, "reply_tokens": 8,
    }  # fmt: skip
    return made


@dataclass
class Lesson:
    spec: RunSpec
    tasks: TaskSet
    sandbox: Sandbox
    tokenizer: Tokenizer
    start: Path

    def score(self, folder: Path) -> float:
        return Evaluator(self.spec, self.tasks, self.sandbox, ENGINE).evaluate(folder).score

    def demonstration(self, problem: Problem) -> Sample:
        """A call, the calculator's reply, and the answer."""
        expression = problem.prompt.removeprefix("What is ").partition("?")[0]
        call, reply = (self.tokenizer.encode(text) for text in (f"<<{expression}>>", problem.answer or ""))
        turns = [*call, tiny.END], [*reply, tiny.END]
        ids = [
            np.array(one, np.int32)
            for one in (
                self.tokenizer.encode(problem.prompt),
                [*turns[0], *turns[1]],
                [len(turns[0])],
                [len(reply)],
                reply,
            )
        ]
        return Sample(0, 0, problem.index, 0, ids[0], ids[1], None, (), 1.0, 0.0, 1.0, *ids[2:])


def write(model: Any, folder: Path) -> Path:
    save_weights(model, folder / WEIGHTS, torch.bfloat16)
    return folder


def begin(folder: Path) -> Lesson:
    """A policy that has seen just enough right conversations to be told something now and then."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    write_toml(folder / "run.toml", tables(), "A run with a tool.")
    policy = folder / "policy"
    policy.mkdir()
    environments = runfile.environments(folder / "run.toml")
    with EnvironmentSandbox(environments) as drawing:
        vocabulary = tiny._write_tokenizer(TaskSet(environments, drawing), policy / "tokenizer.json", ())
    model = tiny._model(vocabulary)
    model.config.save_pretrained(policy)
    write(model, policy)
    spec = runfile.complete(folder / "run.toml", policy)
    sandbox = Sandbox(spec)
    lesson = Lesson(spec, TaskSet(spec.environments, sandbox), sandbox, Tokenizer(policy), policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = random.Random(0)
    for step in range(1, 400):
        problems = lesson.tasks.problems([draw.randrange(lesson.tasks.size) for _ in range(64)])
        shown = [training_sample(lesson.demonstration(one), 0.0) for one in problems if not one.is_held_out]
        tiny._supervised_step(model, optimizer, shown)
        if step % 5 == 0 and lesson.score(write(model, policy)) >= BEGINNING:
            break
    return lesson
