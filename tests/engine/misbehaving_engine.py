"""An engine without a model, which does what the version's config.json or the variable MISBEHAVE says: {"load": "die"}, {"generate": "hang"}.

For tests of what runs an engine in a process of its own: it imports nothing heavy. `install` makes it a package's, as entry points are
found in a child.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.engine.interface import Completion, Prompt
from node.engine.self_check import SelfCheck
from node.engine.settings import EngineSettings
from protocol.errors import ConfigError

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = "misbehaving"
BUSY = "busy"
"""File that appears in the version's folder while the engine hangs."""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For this process, and those that are started from now on."""
    info = folder / "misbehaving-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: misbehaving\nVersion: 1\n")
    place = "tests.engine.misbehaving_engine:MisbehavingEngine"
    (info / "entry_points.txt").write_text(f"[murmuration.engines]\n{NAME} = {place}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{folder}")


def write_version(folder: Path, **does: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(does))
    for name in ("tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder


class MisbehavingEngine:
    """Answers each key with its last digits: as many tokens as there are, one fewer than it may at most."""

    def __init__(self, compute_dtype: str, settings: EngineSettings) -> None:
        if settings.device == "cuda:9":
            raise ConfigError("there is no cuda:9", hint="plug one in")
        self._settings = settings
        SelfCheck.__call__ = lambda *_: None  # type: ignore[method-assign]  there is no model; this process is its own

    def load(self, folder: Path) -> None:
        self._folder = folder
        self._does = json.loads((folder / "config.json").read_text()) | json.loads(os.environ.get("MISBEHAVE", "{}"))
        self._do("load")

    def generate(self, prompts: Sequence[Prompt], *, max_new_tokens: int, **_: Any) -> list[list[Completion]]:
        self._do("generate")
        told = [int(digit) for digit in str(prompts[0].tokens[0])]
        return [
            [Completion([*told, key % 1000][: max_new_tokens + self._does.get("more", 0)]) for key in prompt.keys]
            for prompt in prompts
        ]

    def _do(self, when: str) -> None:
        match self._does.get(when):
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "crash":
                print("Fatal: an illegal instruction", flush=True)
                os._exit(3)
            case "hang":
                (self._folder / BUSY).touch()
                while True:
                    time.sleep(60)
            case "memory":
                raise MemoryError
            case "bug":
                raise KeyError("layers")
            case "nan":
                raise ValueError("the weights compute no numbers")
            case "warn":
                logging.getLogger("node.engine").warning("half the rows from now on")
            case "vanish":
                shutil.rmtree(self._folder)
            case "change":
                (self._folder / "model.safetensors").write_text("others")
            case "settings":
                raise ConfigError(self._settings.model_dump_json())
