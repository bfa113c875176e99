"""A taskset that is loaded: its tasks by number, in the order in which it yields them."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Coroutine, Iterator
from functools import cached_property, lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from typing import Any

from protocol import extras
from protocol.environments import content
from protocol.environments.tasksets import refusals
from protocol.environments.tasksets.tools import Tools
from protocol.errors import ConfigError, MurmurationError

VERSION = "0.4.0"
"""Of verifiers, which this adapter was written for and tested with."""


def require_verifiers() -> None:
    """Raises ConfigError where it is not installed, or another version is. Imports nothing."""
    try:
        found = distribution("verifiers").version
    except PackageNotFoundError:
        found = "not there"
    if found != VERSION:
        raise ConfigError(
            f"tasksets are played with verifiers {VERSION}, and what is installed is {found}",
            hint=extras.how_to_install("verifiers"),
        )


@lru_cache(maxsize=8)
def opened(taskset: str, settings: str) -> Opened:
    """`settings` is a JSON object. The same for problems to train on and held-out ones."""
    return Opened(taskset, json.loads(settings))


class Opened:
    """Raises ConfigError for what cannot be loaded or repeated."""

    def __init__(self, taskset: str, settings: dict[str, Any]) -> None:
        self.name = taskset
        try:
            self._load(settings)
        except MurmurationError:
            raise
        except Exception as error:
            raise self._broken("cannot be loaded", error) from error

    def _load(self, settings: dict[str, Any]) -> None:
        from verifiers.v1.configs.taskset import TasksetConfig
        from verifiers.v1.taskset import Taskset
        from verifiers.v1.utils.generic import concrete_type

        refusals.forbid_judges(self.name)
        module = importlib.import_module(self.name.rsplit("/", 1)[-1].replace("-", "_").lower())
        kind = refusals.only_taskset(module)
        configured = concrete_type(kind, TasksetConfig, origin=Taskset) or TasksetConfig
        config = configured.model_validate({"id": self.name, **settings})
        self._taskset = kind(config)
        self._loop = asyncio.new_event_loop()
        self._shared = type(self._taskset).toolsets(config)
        self._common = Tools(self._shared, None, self.run)
        self._source: Iterator[Any] = iter(self._taskset)
        self._tasks: list[Any] = []

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(coroutine)

    def task(self, number: int) -> Any:
        """Raises ConfigError beyond the last, and for one that cannot be repeated."""
        while len(self._tasks) <= number:
            try:
                task = next(self._source)
                refusals.require_task(task)
                type(task).toolsets(task.config)
            except MurmurationError:
                raise
            except StopIteration:
                raise ConfigError(
                    f"the taskset {self.name} has {len(self._tasks)} tasks, and problem {number} is asked for",
                    hint="seed + size and held_out_seed + held_out_size count its tasks",
                ) from None
            except Exception as error:
                raise self._broken("cannot load its tasks", error) from error
            self._tasks.append(task)
        return self._tasks[number]

    def tools(self, task: Any) -> list[Tools]:
        """Those of all tasks, and those of this one made anew."""
        own = type(task).toolsets(task.config)
        return [one for one in (self._common, Tools(own, task, self.run)) if one.schemas]

    def has_tools(self, task: Any) -> bool:
        return bool(self._shared or type(task).toolsets(task.config))

    @cached_property  # to find it, what pip says of every package is read: a fifth of a second
    def installed(self) -> str:
        """Name, version and content of the package that it comes with. Raises ConfigError where pip knows of none."""
        of = self._distribution()
        return f"{of.name} {of.version} {content.of_installed(of) or ''}"

    def _distribution(self) -> Distribution:
        module = type(self._taskset).__module__.partition(".")[0]
        for name in sorted(set(packages_distributions().get(module, ()))):
            return distribution(name)
        raise ConfigError(f"pip did not install the taskset {self.name}: nothing says which version it is")

    def _broken(self, what: str, error: Exception) -> ConfigError:
        return ConfigError(
            f"the taskset {self.name} {what}: {type(error).__name__}: {str(error)[:300]}",
            hint="it runs in the sandbox, which has no network: its data must come with its package",
        )
