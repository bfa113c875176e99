"""Problems and verifiers of the package reasoning-gym.

An answer is a stranger's bytes, and some of its verifiers pass one to `eval`, hang on long ones, or score by the order of a set. So
each data set was examined (`murmur env check`, scripts/check-reasoning-gym), and what was found is kept in reasoning_sets.json:
where the set is, and why it may not be used if it may not. Where it makes a set fit for use, `eval` is a parser of literals in its
module: it gives the same result for every literal and refuses everything else. Where a set asks for the day, it is always the same one.
"""

from __future__ import annotations

import ast
import datetime
import difflib
import importlib
import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from pydantic import BaseModel, ConfigDict

from protocol.constants import HELD_OUT_LOOKS
from protocol.environments.environment import Environment
from protocol.errors import ConfigError, VersionMismatch
from protocol.runspec import EnvironmentSpec

SETS_FILE = "reasoning_sets.json"
_FIT = "docs/reasoning-gym.md lists those that may be used, and why not the others"
_PICTURES = ("matplotlib", "mpl_toolkits")
_DAY = datetime.date(2024, 1, 1)
_importing = threading.Lock()


@dataclass(frozen=True)
class DataSet:
    """What was found of one data set."""

    module: str
    """Within reasoning-gym."""
    literal: bool
    """Whether `eval` is a parser of literals there."""
    today: bool
    """Whether it is always the same day there."""
    refused: str
    """Why it may not be used; empty where it may."""


def _read() -> tuple[str, dict[str, DataSet]]:
    kept = json.loads(Path(__file__).with_name(SETS_FILE).read_text())
    found = {
        name: DataSet(row["module"], "eval" in row, "today" in row, row.get("refused", ""))
        for name, row in kept["sets"].items()
    }
    return kept["version"], found


EXAMINED_VERSION, SETS = _read()
"""Of reasoning-gym, another version of which is refused; and its data sets by name."""


class AnyConfig(BaseModel):
    """The data sets of reasoning-gym check their fields themselves."""

    model_config = ConfigDict(extra="allow", frozen=True)


class ReasoningGym(Environment):
    """One data set; entry i is drawn from the seed `seed + i`, so any index is as quick as the first."""

    name = "reasoning-gym"
    version = EXAMINED_VERSION
    exact = True
    Config = AnyConfig

    def __init__(self, spec: EnvironmentSpec, *, held_out: bool) -> None:
        super().__init__(spec, held_out=held_out)
        _require_fit(spec)
        size = HELD_OUT_LOOKS * max(1, spec.held_out_size) if held_out else spec.size
        with _importing, _without_the_rest(SETS[spec.dataset].module):
            _load(spec.dataset)
            from reasoning_gym.factory import create_dataset

            try:
                self._data = create_dataset(spec.dataset, seed=self.seed, size=size, **spec.config)
            except (TypeError, ValueError, AssertionError) as error:
                raise ConfigError(f"reasoning-gym refuses the configuration of {spec.dataset}: {error}") from error

    def entry(self, index: int) -> dict[str, Any]:
        return self._data[index]

    def prompt(self, entry: dict[str, Any]) -> str:
        return entry["question"]

    def answer(self, entry: dict[str, Any]) -> str | None:
        return None if entry["answer"] is None else str(entry["answer"])

    def fingerprint(self, entry: dict[str, Any]) -> list[str]:
        return [self.prompt(entry), str(entry["answer"])]

    def score(self, entry: dict[str, Any], completion: str) -> float:
        """The data set's own verifier; an answer that is too much for it is wrong."""
        try:
            return float(self._data.score_answer(completion, entry))
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001  whatever a verifier has not thought of
            return 0.0


@cache
def _installed() -> str:
    return version("reasoning-gym")


def _require_fit(spec: EnvironmentSpec) -> None:
    found = SETS.get(spec.dataset)
    if found is None:
        near = difflib.get_close_matches(spec.dataset, SETS, 1, 0.5)
        raise ConfigError(
            f"reasoning-gym has no data set {spec.dataset!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
            hint=_FIT,
        )
    if found.refused:
        raise ConfigError(f"the data set {spec.dataset!r} of reasoning-gym may not be used: {found.refused}", hint=_FIT)
    if _installed() != spec.version or spec.version != EXAMINED_VERSION:
        raise VersionMismatch(
            f"the run wants reasoning-gym {spec.version}; installed is {_installed()}, examined {EXAMINED_VERSION}",
            hint=f"install reasoning-gym=={spec.version}",
        )


def _load(dataset: str) -> None:
    importlib.import_module("reasoning_gym.coaching")  # it and the factory import each other: this way round it works
    module = importlib.import_module(f"reasoning_gym.{SETS[dataset].module}")
    if SETS[dataset].literal:
        module.eval = ast.literal_eval  # type: ignore[attr-defined]
    if SETS[dataset].today:
        _fix_day(module)


class _Date(datetime.date):
    @classmethod
    def today(cls) -> datetime.date:  # type: ignore[override]
        return _DAY


def _fix_day(module: Any) -> None:
    """A time of day is parsed as one of today's, twice for each problem: at midnight, a day would lie in between."""
    from dateutil import parser

    begins = datetime.datetime.combine(_DAY, datetime.time())
    module.date, module.parser = _Date, SimpleNamespace(parse=partial(parser.parse, default=begins))


@contextmanager
def _without_the_rest(module: str) -> Iterator[None]:
    """Imports of one module of reasoning-gym bring no other data set, and none of them brings matplotlib, to draw what nobody sees.

    The package's own `__init__` imports all data sets, and with them sympy and matplotlib: over a second and 75 MB in every process
    of a role. So the packages above the module are empty until somebody wants what they hold.
    """
    above = ["reasoning_gym"]
    for part in module.split(".")[:-1]:
        above.append(f"{above[-1]}.{part}")
    for name in above:
        if name not in sys.modules:
            found = importlib.util.find_spec(name)
            assert found is not None
            sys.modules[name] = _Shell.of(found)
    pictures = None if "matplotlib" in sys.modules else _Pictures()
    if pictures:
        sys.meta_path.insert(0, pictures)
    try:
        yield
    finally:
        if pictures:
            sys.meta_path.remove(pictures)
            for name in [name for name in sys.modules if name.partition(".")[0] in _PICTURES]:
                del sys.modules[name]  # whoever imports it later gets it whole


class _Shell(ModuleType):
    """A package whose `__init__` runs when something is asked of it that is no module in it."""

    @classmethod
    def of(cls, spec: ModuleSpec) -> _Shell:
        shell = cls(spec.name)
        shell.__spec__, shell.__loader__, shell.__file__ = spec, spec.loader, spec.origin
        shell.__package__, shell.__path__ = spec.name, spec.submodule_search_locations or []
        return shell

    def __getattr__(self, name: str) -> Any:
        inner = f"{self.__name__}.{name}"
        dunder = name.startswith("__") and name != "__version__"
        if dunder or inner in sys.modules or importlib.util.find_spec(inner) is not None:
            raise AttributeError(name)
        held = [
            one
            for at, one in sorted(sys.modules.items())
            if isinstance(one, _Shell) and f"{at}.".startswith(f"{self.__name__}.")
        ]
        for one in held:
            one.__class__ = ModuleType  # type: ignore[assignment]
        for one in held:
            assert one.__spec__ is not None and one.__spec__.loader is not None
            one.__spec__.loader.exec_module(one)
        return getattr(self, name)


class _Pictures(MetaPathFinder, Loader):
    """Finds matplotlib, with nothing in it."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in _PICTURES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Nothing(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Nothing(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})
