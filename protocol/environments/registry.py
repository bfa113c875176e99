"""Environments by name. One of our own is a file beside this one and a line below; an installed package adds one by

    [project.entry-points."murmuration.environments"]
    my-tasks = "my_tasks:MyTasks"

A name and where its class is are read from what pip installed, without running any of it; the class is imported in the
sandboxed child only.
"""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, entry_points
from typing import Any

from protocol import __version__
from protocol.environments import content
from protocol.environments.environment import Environment
from protocol.errors import ConfigError, VersionMismatch
from protocol.runspec import EnvironmentSpec

GROUP = "murmuration.environments"

_OURS = {
    "calculator": "protocol.environments.calculator:Calculator",
    "code": "protocol.environments.code:JudgedCode",
    "math": "protocol.environments.math:Maths",
    "parquet": "protocol.environments.taskfile:TaskFiles",
    "python": "protocol.environments.interpreter:PythonTool",
    "reasoning-gym": "protocol.environments.reasoning:ReasoningGym",
    "retrieval": "protocol.environments.retrieval:Retrieval",
    "verifiers": "protocol.environments.tasksets.environment:Tasksets",
}

RUN_PROGRAMS = frozenset({"code", "python"})
"""Of ours, those that have strangers' programs run; of others only the child knows."""


@dataclass(frozen=True)
class Registered:
    """Where an environment's class is. `version` is that of the distribution it comes with."""

    name: str
    place: str
    version: str = ""
    distribution: Distribution | None = None
    """None for ours."""

    @property
    def content(self) -> str | None:
        """Digest of what is installed (content.py); None for ours, and where there is nothing to compare."""
        return content.of_installed(self.distribution) if self.distribution else None

    def load(self) -> type[Environment]:
        """Imports the class: its module is a stranger's code. Raises ConfigError where that does not work."""
        module, _, name = self.place.partition(":")
        try:
            found: Any = getattr(importlib.import_module(module), name)
        except Exception as error:
            raise ConfigError(f"the environment {self.name!r} cannot be loaded from {self.place}: {error}") from error
        if not (isinstance(found, type) and issubclass(found, Environment)):
            raise ConfigError(f"{self.place} is no environment", hint="see docs/environments.md")
        if found.__dict__.get("name") != self.name:
            raise ConfigError(
                f"{self.place} is registered as {self.name!r} and calls itself {found.__dict__.get('name')!r}"
            )
        return found


def installed() -> dict[str, Registered]:
    """All environments of this machine, ours and those of installed packages. Raises ConfigError where two have one name."""
    found = {name: Registered(name, place) for name, place in _OURS.items()}
    for point in entry_points(group=GROUP):
        here = Registered(point.name, point.value, point.dist.version if point.dist else "", point.dist)
        if point.name in found and found[point.name].place != here.place:
            raise ConfigError(
                f"two packages call an environment {point.name!r}: {found[point.name].place} and {point.value}",
                hint="uninstall one of them",
            )
        found[point.name] = here
    return found


@cache
def find(package: str) -> Registered:
    """Raises ConfigError, naming those that are here, where none is called so."""
    known = installed()
    if package not in known:
        near = difflib.get_close_matches(package, known, 1, 0.5)
        raise ConfigError(
            f"no environment is called {package!r} here" + (f"; did you mean {near[0]!r}?" if near else ""),
            hint=f"installed: {', '.join(sorted(known))}; a Python package adds one by the entry point {GROUP}",
        )
    return known[package]


def version_of(package: str) -> str:
    """What a spec made on this machine says of `version`. Imports the class."""
    registered = find(package)
    kind = registered.load()
    # Ours come with this distribution. Task files are named by their digests, and how they are read by the protocol's version.
    return kind.version or registered.version or ("" if kind.Spec.from_files else __version__)


def require_installed(spec: EnvironmentSpec) -> str:
    """What this machine has of a spec's environment, as far as that can be said without running anything of a stranger's: its name and version.
    Raises ConfigError or VersionMismatch where it has another or none."""
    _require_content(spec)
    if find(spec.package).distribution is None:
        _require_version(spec, version_of(spec.package))
    if spec.package == "verifiers":
        from protocol.environments.tasksets.opened import require_verifiers

        require_verifiers()
    return f"{spec.package} {spec.version}"


def open_environment(spec: EnvironmentSpec, *, held_out: bool) -> Environment:
    """The environment of a spec. Raises ConfigError or VersionMismatch where this machine does not have it so."""
    _require_content(spec)
    kind, here = find(spec.package).load(), version_of(spec.package)
    if not isinstance(spec, kind.Spec):
        wants = "task files: name them in `files`" if kind.Spec.from_files else "seeds, and takes no `files`"
        raise ConfigError(f"the environment {spec.package!r} draws its problems from {wants}")
    _require_version(spec, here)
    if spec.exact and not kind.exact:
        raise ConfigError(
            f"{spec.package} does not score exactly: its rewards cannot be slashed",
            hint="say exact = false in the spec",
        )
    return kind(spec, held_out=held_out)


def _require_version(spec: EnvironmentSpec, here: str) -> None:
    if spec.version != here:
        raise VersionMismatch(
            f"the run wants {spec.package} {spec.version}; installed is {here}",
            hint=f"install {spec.package}=={spec.version}",
        )


def _require_content(spec: EnvironmentSpec) -> None:
    """Before anything of it runs. Raises VersionMismatch where another package is installed by that name."""
    if spec.content is None:
        return
    here = find(spec.package).content
    if here != spec.content:
        of = "an editable one, which cannot be compared" if here is None else f"one whose content is {here[:16]}…"
        raise VersionMismatch(
            f"the run wants {spec.package} {spec.version} with the content {spec.content[:16]}…; installed is {of}",
            hint="install the very wheel that the run's owner published",
        )
