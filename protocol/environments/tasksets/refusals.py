"""What of a taskset no other machine can repeat, or nothing here plays: refused by name, before the first answer is scored.

A taskset is a program of anybody's. What it says of itself is looked at here: the classes of its package, the data of each task, the
parameters of its rewards, the settings of its tools. What it does without saying so finds no network in the sandbox.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from protocol.errors import ConfigError

_HOOKS = {
    "setup": "prepares a sandbox of its own", "finalize": "looks at a sandbox of its own", "stage_verifier": "prepares a sandbox of its own",
    "runtime_env": "sets variables of a sandbox of its own",
}  # fmt: skip
_DATA = {
    "image": "runs in a container", "workdir": "has a working folder", "agent_user": "has a user of its own", "skills": "installs skills",
    "artifacts": "collects files",
}  # fmt: skip


def refuse(what: str, why: str) -> ConfigError:
    return ConfigError(
        f"{what} {why}: no other machine could repeat it, or nothing here plays it",
        hint="docs/environments.md, Tasksets of verifiers",
    )


def only_taskset(module: ModuleType) -> type[Any]:
    """The Taskset that a module exports. Raises ConfigError where it has none, or brings ways to play its tasks as well."""
    from verifiers.v1.env import Env
    from verifiers.v1.harness import Harness
    from verifiers.v1.taskset import Taskset

    exported = [getattr(module, name, None) for name in getattr(module, "__all__", ())]
    kinds = [kind for kind in exported if isinstance(kind, type)]
    for kind in kinds:
        if issubclass(kind, Env | Harness):
            raise refuse(
                f"the {'environment' if issubclass(kind, Env) else 'harness'} {kind.__name__}",
                "plays its tasks by itself",
            )
    found = [kind for kind in kinds if issubclass(kind, Taskset)]
    if len(found) != 1:
        raise ConfigError(f"the module {module.__name__} exports {len(found)} tasksets by __all__, and one is needed")
    return found[0]


def require_task(task: Any) -> None:
    """Raises ConfigError for what this task is or has."""
    from verifiers.v1.task import Task, TaskData

    name = f"the task {type(task).__name__}"
    for why in _of_config(task.config):
        raise refuse(name, why)
    if type(task).NEEDS_CONTAINER:
        raise refuse(name, "needs a container")
    for hook, why in _HOOKS.items():
        if getattr(type(task), hook) is not getattr(Task, hook):
            raise refuse(f"{name}.{hook}", why)
    for field, why in _DATA.items():
        if getattr(task.data, field) != TaskData.model_fields[field].get_default(call_default_factory=True):
            raise refuse(f"{name} ({field})", why)
    for kind, functions in _decorated(task).items():
        for function in functions:
            hook_name = f"@vf.{kind} {function.__name__} of {type(task).__name__}"
            if kind in ("stop", "intercept"):
                raise refuse(hook_name, "changes what is said")
            if _is_required(function, "runtime"):
                raise refuse(hook_name, "looks into a sandbox of its own")
    if not task.hooks("reward"):
        raise refuse(name, "has no reward")


def require_toolset(toolset: Any) -> None:
    """Raises ConfigError for tools that run elsewhere, or share a state with rewards and one another."""
    from verifiers.v1.state import State

    name = f"the toolset {type(toolset).__name__}"
    if getattr(toolset.config, "url", None):
        raise refuse(name, "is asked over the network")
    if getattr(toolset.config, "colocated", False):
        raise refuse(name, "runs in a sandbox of its own")
    kind = getattr(getattr(toolset.config, "runtime", None), "type", "subprocess")
    if kind != "subprocess":
        raise refuse(name, f"runs in a sandbox of its own ({kind})")
    if toolset._state_cls is not State:
        raise refuse(name, f"keeps a state ({toolset._state_cls.__name__}) outside of itself")


def forbid_judges(taskset: str) -> None:
    """From here on in this process, whoever makes an LLM judge is told that there is none."""
    from verifiers.v1.judge import Judge

    def forbidden(self: Any, *_: Any, **__: Any) -> None:
        raise refuse(f"the judge {type(self).__name__} of {taskset}", "asks a language model")

    Judge.__init__ = forbidden


def _of_config(config: Any) -> Iterator[str]:
    from verifiers.v1.configs.judge import JudgeConfig

    if config.judges:
        yield f"asks a language model (judges: {', '.join(judge.id for judge in config.judges)})"
    for field, value in config:
        if isinstance(value, JudgeConfig):
            yield f"asks a language model ({field})"


def _decorated(task: Any) -> dict[str, list[Callable[..., Any]]]:
    from verifiers.v1.utils.decorators import discover_decorated

    found = {kind: task.hooks(kind) for kind in ("reward", "metric", "stop")}
    return {**found, "intercept": discover_decorated(task, "intercept")}


def _is_required(function: Callable[..., Any], parameter: str) -> bool:
    found = inspect.signature(function).parameters.get(parameter)
    return found is not None and found.default is inspect.Parameter.empty
