"""The engine that evaluates, in this process: for trainings whose evaluation is not what is tested. A child's imports take seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from node.engine import Completion, EngineSettings, Generator, Prompt, make_engine
from trainer.loop import training


class EngineHere:
    """In place of a SeparateEngine."""

    def __init__(self, compute_dtype: str, settings: EngineSettings, **_: Any) -> None:
        self._asked = settings, compute_dtype

    @cached_property
    def _engine(self) -> Generator:
        return make_engine(*self._asked)

    @contextmanager
    def within(self, left: Callable[[], float]) -> Iterator[None]:
        yield

    def begin(self) -> None:
        """There is no process."""

    close = begin

    def load(self, folder: Path) -> None:
        self._engine.load(folder)

    def generate(self, prompts: list[Prompt], **how: Any) -> list[list[Completion]]:
        return self._engine.generate(prompts, **how)


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """For trainings that are made from now on."""
    monkeypatch.setattr(training, "SeparateEngine", EngineHere)
