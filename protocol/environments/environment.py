"""What an environment is: a class that draws problems, asks them, and scores answers.

A run spec names it by `package`, a registry finds its class (registry.py), and it lives in the sandboxed child only: what it
computes with strangers' answers, and what it may be itself, is kept from keys and weights. docs/environments.md writes one.

Everything follows from the spec: problem i is the same on every machine and in every order of asking, and the same answer
gets the same score. Where floats differ in the last places, protocol/reward.py makes them one number.
"""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from protocol.complaints import complaints
from protocol.errors import ConfigError
from protocol.rollout import ToolResult
from protocol.runspec import EnvironmentSpec, Generated


class Config(BaseModel):
    """The fields of `config` in [[spec.environments]] that an environment knows; a subclass adds them. No floats: decimals are text."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


@dataclass(frozen=True)
class Grants:
    """What the sandbox must grant an environment; 0: no more than it gives to all (protocol/sandbox/process.py)."""

    memory: int = 0
    """Bytes of address space, of all environments of a run and the reader of rollout files together."""
    seconds: float = 0.0
    """For one request: some problems, or the answers of one submission."""
    files: int = 0
    """Open at once."""


class Environment(ABC):
    """Problems of one environment, those for training or the held-out ones."""

    name: ClassVar[str]
    """`package` in a run spec."""
    version: ClassVar[str] = ""
    """Of what draws and scores; empty: the version of the distribution that registers the class."""
    Spec: ClassVar[type[EnvironmentSpec]] = Generated
    """`Generated`: problems come from seeds. `FromFiles`: they are the rows of task files, which the spec pins."""
    Config: ClassVar[type[BaseModel]] = Config
    exact: ClassVar[bool] = False
    """Whether scores and replies are the same on all machines, and every answer and every turn comes to an end in bounded time: then a
    wrong reward, or a forged reply, may be slashed."""
    grants: ClassVar[Grants] = Grants()

    def __init__(self, spec: EnvironmentSpec, *, held_out: bool) -> None:
        """Quick: nothing is drawn or opened before it is asked for. Raises ConfigError or VersionMismatch where it cannot be used."""
        self.spec = spec
        self.held_out = held_out
        self.seed = spec.held_out_seed if held_out else spec.seed
        self.config: Any = self._configured(spec)

    def _configured(self, spec: EnvironmentSpec) -> BaseModel:
        try:
            return self.Config.model_validate(spec.config)
        except ValidationError as error:
            lines = complaints(error, self.Config, within="config")
            raise ConfigError(f"the environment {spec.dataset} of {self.name} cannot be used:\n{lines}") from None

    def random(self, index: int) -> random.Random:
        """A generator for problem `index` alone, the same on every machine: of the seed, the data set and the index."""
        text = f"{self.name}/{self.spec.dataset}/{self.seed}/{index}"
        return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))

    @abstractmethod
    def entry(self, index: int) -> Any:
        """Problem `index` ≥ 0, whatever the other methods need of it."""

    @abstractmethod
    def prompt(self, entry: Any) -> str:
        """What the model is asked, without the run's template."""

    @abstractmethod
    def score(self, entry: Any, completion: str) -> float:
        """How right an answer is, in [0, 1]. An answer is a stranger's text: never evaluate it, and come to an end."""

    def reply(self, entry: Any, turns: Sequence[str]) -> str | ToolResult | None:
        """What the model is told after a turn, where this environment has something to say; None: the turn was its last.

        `turns` are the texts of all that it wrote so far, the newest last; a turn of whitespace may come. A stranger's text, as an
        answer is. The same turns always get the same reply: nothing is kept from one call to the next. At most REPLY_CHARS_MAX
        characters, and REPLY_CALLS_MAX calls. Who defines it may have samples of several turns, of which the last one's text is scored.
        """
        return None

    def as_call(self, text: str) -> str | Sequence[str] | None:
        """A turn that hands a tool this text, where there is a tool: of several commands one for each. `murmur env check` looks at replies with
        them, and sees nothing of a command that is not among them."""
        return None

    def as_answer(self, program: str) -> str | None:
        """An answer that is this program in Python, where answers may be programs; `murmur env check` hands hostile ones in with it. None:
        answers are programs in another language."""
        return f"```python\n{program}\n```"

    @classmethod
    def converses(cls) -> bool:
        """Whether it replies to turns."""
        return cls.reply is not Environment.reply

    def answer(self, entry: Any) -> str | None:
        """A right answer, where there is one text that is; for warm-ups, never shown to a model that is trained."""
        return None

    def fingerprint(self, entry: Any) -> list[str]:
        """What of a problem the spec's digest covers: by default question and answer."""
        return [self.prompt(entry), str(self.answer(entry))]
