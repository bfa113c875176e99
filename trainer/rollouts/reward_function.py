"""A researcher's own reward function, called in this process: it is their machine, and their code.

    def reward(completions, answer, **columns):        lists in, a list of numbers out: as TRL calls its reward functions
        return [float(a in text) for text, a in zip(completions, answer)]

    def reward(completion, answer):                    one answer at a time
        return float(answer in completion)

The parameters' names say what it gets: `prompts` and `completions` (or `prompt` and `completion`), texts; and any column of the tasks'
file. `**columns` gets all of them. Rewards are finite numbers on any scale. A group with a reward that is None or NaN is left out.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import math
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.errors import ConfigError, MurmurationError
from protocol.logs import escaped

log = logging.getLogger("trainer")

_FRAMES = 3  # of a traceback that are shown
_LETTERS = 300  # of a text that are shown
_NAMED = 3  # samples without a reward that a warning lists


class RewardError(MurmurationError):
    """The reward function raised, or gave something else than a number for each completion."""

    exit_code = 3
    default_hint = "mend it; the same command with --resume goes on"


@dataclass(frozen=True)
class Answered:
    """What one call is about: a completion, its prompt, and the row of the tasks' file that it answers."""

    prompt: str
    completion: str
    row: Mapping[str, Any]


class RewardFunction:
    """Safe to share between threads: one call at a time."""

    def __init__(self, place: str, columns: Sequence[str], beside: Path = Path()) -> None:
        """`place` is FILE.py:FUNCTION, the file relative to `beside`; `columns` are those of the tasks' file.

        Raises ConfigError where there is no such function, or it wants what nobody has.
        """
        file, colon, self.name = place.rpartition(":")
        if not colon or not self.name.isidentifier():
            raise ConfigError(f"{place!r} is no reward function", hint="write it as my_file.py:reward")
        self._file = (beside / file).resolve()
        self._call = _load(self._file, self.name)
        self._lock = threading.Lock()
        self.batched, self._wanted = _parameters(self._call, self.name, columns)

    def __call__(self, answered: Sequence[Answered]) -> list[float]:
        """A reward for each, NaN where the function gave None or NaN. Raises RewardError."""
        if not answered:
            return []
        with self._lock:
            found = self._batch(answered) if self.batched else [self._one(i, answered) for i in range(len(answered))]
        rewards = [_number(value, i, answered) for i, value in enumerate(found)]
        if unknown := [i for i, reward in enumerate(rewards) if not math.isfinite(reward)]:
            listed = "; ".join(_shown(answered[i]) for i in unknown[:_NAMED])
            log.warning("%s gave no finite reward for %d of %d: %s", self.name, len(unknown), len(rewards), listed)
        return [reward if math.isfinite(reward) else math.nan for reward in rewards]

    def _batch(self, answered: Sequence[Answered]) -> list[Any]:
        try:
            found = self._call(**self._arguments(answered))
        except Exception as error:
            culprit = self._culprit(answered, error)
            raise self._failed(error, answered, culprit) from error
        if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
            raise RewardError(f"{self.name} gave {_kind(found)} instead of a list of {len(answered)} rewards")
        rewards = list(found)
        if len(rewards) != len(answered):
            raise RewardError(f"{self.name} gave {len(rewards)} rewards for {len(answered)} completions")
        return rewards

    def _one(self, i: int, answered: Sequence[Answered]) -> Any:
        try:
            return self._call(**{name: values[0] for name, values in self._arguments([answered[i]]).items()})
        except Exception as error:
            raise self._failed(error, answered, i) from error

    def _arguments(self, answered: Sequence[Answered]) -> dict[str, list[Any]]:
        plural = "s" if self.batched else ""
        found: dict[str, list[Any]] = {name: [one.row.get(name) for one in answered] for name in self._wanted}
        texts = {
            f"prompt{plural}": [one.prompt for one in answered],
            f"completion{plural}": [one.completion for one in answered],
        }
        return found | {name: value for name, value in texts.items() if name in self._wanted}

    def _culprit(self, answered: Sequence[Answered], error: Exception) -> int | None:
        """The first sample that makes the function fail alike all by itself; None where none does."""
        for i, one in enumerate(answered):
            try:
                self._call(**self._arguments([one]))
            except type(error):
                return i
            except Exception:  # noqa: BLE001, S112  another failure than the one to be explained
                continue
        return None

    def _failed(self, error: Exception, answered: Sequence[Answered], culprit: int | None) -> RewardError:
        """Says what was raised, where in the researcher's code, and on which sample."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        own = max((i for i, frame in enumerate(frames) if Path(frame.filename) == self._file), default=0)
        shown = frames[: own + 1][-_FRAMES:] + frames[own + 1 :][-1:]
        where = [f"  {_short(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line}" for frame in shown]
        which = "on all of them together" if culprit is None else f"on {culprit + 1} of {len(answered)}"
        sample = [] if culprit is None else [f"  {_shown(answered[culprit])}"]
        message = f"{self.name} failed {which}: {type(error).__name__}: {escaped(str(error))[:_LETTERS]}"
        return RewardError("\n".join([message, *where, *sample]))


def _load(file: Path, name: str) -> Callable[..., Any]:
    """The function, with the file's folder importable as for a script. Raises ConfigError."""
    spec = importlib.util.spec_from_file_location(f"murmur_reward_{file.stem}", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"there is no Python file {file}", hint="--reward names it as my_file.py:reward")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # or its dataclasses could not be pickled, nor its annotations read
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"{file} cannot be imported: {type(error).__name__}: {error}\n  {_short(last.filename)}:{last.lineno}: {last.line}"
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        here = ", ".join(n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == spec.name)
        raise ConfigError(f"{file} has no function {name!r}", hint=f"it has: {here or 'none'}")
    if inspect.iscoroutinefunction(found):
        raise ConfigError(f"{name} of {file} is asynchronous", hint="write it with a plain `def`")
    return found


def _parameters(call: Callable[..., Any], name: str, columns: Sequence[str]) -> tuple[bool, frozenset[str]]:
    """Whether it takes lists, and the names that it is to be given. Raises ConfigError."""
    parameters = inspect.signature(call).parameters.values()
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    rest = any(p.kind == p.VAR_KEYWORD for p in parameters)
    batched = "completion" not in named
    texts = {"prompts", "completions"} if batched else {"prompt", "completion"}
    if batched and "completions" not in named and not rest:
        raise ConfigError(
            f"the reward function {name} has neither a parameter `completions` nor `completion`",
            hint=f"def {name}(completions, **columns): … a list of numbers, or def {name}(completion): … one",
        )
    needed = {p.name for p in parameters if p.default is p.empty and p.name in named}
    if missing := sorted(needed - texts - set(columns)):
        raise ConfigError(
            f"the reward function {name} wants {missing[0]!r}, which is no column of the tasks",
            hint=f"it can have: {', '.join(sorted({*texts, *columns}))}",
        )
    known = texts | set(columns)
    return batched, frozenset(known if rest else known & named)


def _number(value: Any, i: int, answered: Sequence[Answered]) -> float:
    """A reward as a float; None is NaN. Numbers of NumPy and torch are numbers."""
    if value is None:
        return math.nan
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise RewardError(
            f"the reward of {i + 1} of {len(answered)} is {_kind(value)} instead of a number\n  {_shown(answered[i])}"
        ) from None


def _kind(value: Any) -> str:
    return f"{escaped(repr(value))[:80]} ({type(value).__name__})"


def _short(file: str) -> str:
    """As somebody in this folder would name it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _shown(one: Answered) -> str:
    return f"prompt {_quoted(one.prompt)}, completion {_quoted(one.completion)}"


def _quoted(text: str) -> str:
    cut = text if len(text) <= _LETTERS else text[:_LETTERS] + "…"
    return f'"{escaped(cut)}"'
